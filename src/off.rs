//! `off:`: every acquire is granted. A way out of an incident, not a lock.

use crate::answer::{Acquire, Held};
use crate::error::Error;
use crate::stats::Object;
use crate::token::Token;
use std::sync::atomic::{AtomicU64, Ordering::Relaxed};

/// A lock service that never refuses.
#[derive(Debug, Default)]
pub struct Off {
    granted: AtomicU64,
}

impl Off {
    /// Grants it.
    ///
    /// # Errors
    /// The kernel gives no random numbers.
    pub fn acquire(&self, ttl_ms: u32) -> Result<Acquire, Error> {
        let token = Token::random().map_err(|_| Error::NoRandom)?;
        self.granted.fetch_add(1, Relaxed);
        Ok(Acquire::Held(Held { token, fence: 0, left_ms: ttl_ms, waited_ms: 0 }))
    }

    /// Writes what is worth knowing.
    pub fn stats(&self, json: &mut Object) {
        json.text("backend", "off");
        json.number("granted", self.granted.load(Relaxed));
        json.notice("off: is in use: every acquire is granted and nothing is locked");
    }
}
