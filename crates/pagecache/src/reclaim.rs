// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Clean pages go when memory is needed.
