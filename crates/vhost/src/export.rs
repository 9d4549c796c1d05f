// SPDX-License-Identifier: Apache-2.0 OR MIT
//! The interface to the program: the device of a session, and what it promises.
use std::rc::Rc;
use std::sync::Arc;
use std::sync::atomic::AtomicBool;

use block::BlockDevice;
use block::latency::Latencies;

/// A device in use by one session. Dropped after its last bio has ended, so it can serve as the
/// guard that keeps the device open.
pub trait Export {
    /// Where bios go.
    fn device(&self) -> Rc<dyn BlockDevice>;

    /// Whether writes are refused. Asked when a session begins, and before each write.
    fn read_only(&self) -> bool;

    /// Whether a completed write survives the death of this process. Only then the front end gets
    /// memory for notes about requests in flight, and a guest may go on with the next process.
    fn outlives_process(&self) -> bool;

    /// Whether a guest has used the device in this process, so that a guest may go on with it: one
    /// flag of all sessions of the device. The session sets it.
    fn was_used(&self) -> Arc<AtomicBool>;

    /// Logs a warning about a session of it.
    fn warn(&self, why: &str);

    /// Where the times of its requests are recorded.
    fn latencies(&self) -> Option<Arc<Latencies>> {
        None
    }
}
