// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Leaf devices and the throttle: tests of their public items, one file for each subject.

mod costs;
mod losses;
mod wait_queue_model;
mod wbt;
