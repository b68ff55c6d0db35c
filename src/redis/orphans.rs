//! Locks that may be held though nobody knows it: their replies were lost. Their releases go ahead of the next command,
//! whichever driver sends it.

use std::collections::VecDeque;
use std::sync::atomic::{AtomicU64, Ordering::Relaxed};
use std::sync::{Mutex, MutexGuard, PoisonError};

/// How many are remembered. The oldest ends with its lease first.
const MOST: usize = 64;
/// How many go ahead of one command.
const AT_ONCE: usize = 8;

/// A lock to be released when there is a way.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Orphan {
    /// Its keys: all, or its own alone.
    pub keys: Vec<Vec<u8>>,
    /// Its token.
    pub token: Vec<u8>,
    /// When its lease is over anyway, on the monotonic clock, in ns.
    pub until: u64,
}

/// The list of a lock service in one process.
#[derive(Debug, Default)]
pub struct Orphans {
    list: Mutex<VecDeque<Orphan>>,
    forgotten: AtomicU64,
}

impl Orphans {
    fn list(&self) -> MutexGuard<'_, VecDeque<Orphan>> {
        self.list.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Remembers one.
    pub fn add(&self, orphan: Orphan) {
        let mut list = self.list();
        if list.len() == MOST {
            list.pop_front();
            self.forgotten.fetch_add(1, Relaxed);
        }
        list.push_back(orphan);
    }

    /// Takes some to send. Those whose lease is over are over.
    pub fn take(&self, now: u64) -> Vec<Orphan> {
        let mut list = self.list();
        list.retain(|orphan| orphan.until > now);
        let count = list.len().min(AT_ONCE);
        list.drain(..count).collect()
    }

    /// Forgets the one with this token: its owner releases it.
    pub fn forget(&self, token: &[u8]) {
        self.list().retain(|orphan| orphan.token != token);
    }

    /// How many there are, and how many were forgotten because there was no more room.
    pub fn counts(&self) -> (usize, u64) {
        (self.list().len(), self.forgotten.load(Relaxed))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn orphan(number: usize) -> Orphan {
        Orphan { keys: Vec::new(), token: number.to_string().into(), until: 100 }
    }

    #[test]
    fn the_oldest_are_sent_first_and_forgotten_first() {
        let orphans = Orphans::default();
        (0..MOST + 3).for_each(|number| orphans.add(orphan(number)));
        assert_eq!(orphans.counts(), (MOST, 3));
        assert_eq!(orphans.take(0), (3..3 + AT_ONCE).map(orphan).collect::<Vec<_>>());
        orphans.forget(&orphan(3 + AT_ONCE).token);
        assert_eq!(orphans.take(0).first(), Some(&orphan(4 + AT_ONCE)));
        assert_eq!(orphans.take(100), []);
        assert_eq!(orphans.counts(), (0, 3));
    }
}
