// SPDX-License-Identifier: Apache-2.0 OR MIT
//! The program as its users start it: one file for each subject.
#![expect(clippy::unwrap_used, reason = "a test fails by panicking")]

mod activation;
mod advice;
mod alerts;
mod api;
mod clients;
#[path = "../common/mod.rs"]
mod common;
mod config;
mod control;
mod dmsetup;
mod dmsetup_linux;
mod drain;
mod leaves;
mod life;
mod log;
mod memory;
mod messages;
mod missing;
mod observe;
mod offline;
mod recache;
mod resize;
mod save;
mod service;
mod show;
mod tables;
mod top;
mod truncated;
mod trust;
mod verbs;
mod words;
mod writecache;
