// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Memory of the cache: slabs cut into pieces of 4 KiB to 2 MiB.
