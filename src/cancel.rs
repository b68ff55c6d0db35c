//! Threads that a host cancels.

use std::ffi::c_int;

unsafe extern "C" {
    safe fn pthread_setcancelstate(state: c_int, old: Option<&mut c_int>) -> c_int;
}

const DISABLE: c_int = 1;

/// While it lives its thread is not cancelled. A cancellation unwinds, and what unwinds through Rust ends the process.
///
/// Only for what may take long anyway: it costs as much as a lock.
#[derive(Debug)]
pub struct Uncancelled {
    before: c_int,
}

impl Uncancelled {
    /// From now on.
    #[allow(clippy::new_without_default)] // it does something
    pub fn new() -> Self {
        let mut before = 0;
        pthread_setcancelstate(DISABLE, Some(&mut before));
        Self { before }
    }
}

impl Drop for Uncancelled {
    fn drop(&mut self) {
        pthread_setcancelstate(self.before, None);
    }
}
