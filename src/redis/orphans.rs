//! Locks that may be held though nobody knows it: their replies were lost. Their releases go ahead of the next command,
//! whichever driver sends it.

use crate::policy::NS_PER_MS;
use std::sync::atomic::{AtomicU64, Ordering::Relaxed};
use std::sync::{Mutex, MutexGuard, PoisonError};

/// How many are remembered. The oldest ends with its lease first.
const MOST: usize = 64;

/// A lock to be released when there is a way.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Orphan {
    /// Its keys: all, or its own alone.
    pub keys: Vec<Vec<u8>>,
    /// Its token.
    pub token: Vec<u8>,
    /// When its lease is over anyway, on the monotonic clock, in ns.
    pub until: u64,
    /// Not before, on the same clock.
    pub after: u64,
    /// Whether it may come to hold the lock later, so that one release that finds nothing is not enough.
    pub may_be_late: bool,
}

impl Orphan {
    /// How long after a release that found nothing another one follows, in ns.
    const LATE: u64 = 1000 * NS_PER_MS;

    /// After a release at `now` that found nothing: what is left to do.
    pub fn found_nothing(self, now: u64) -> Option<Self> {
        self.may_be_late.then(|| Self { after: now + Self::LATE, may_be_late: false, ..self })
    }
}

/// The list of a lock service in one process.
#[derive(Debug, Default)]
pub struct Orphans {
    list: Mutex<Vec<Orphan>>,
    forgotten: AtomicU64,
}

impl Orphans {
    fn list(&self) -> MutexGuard<'_, Vec<Orphan>> {
        self.list.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Remembers one.
    pub fn add(&self, orphan: Orphan) {
        let mut list = self.list();
        if list.len() == MOST {
            list.remove(0);
            self.forgotten.fetch_add(1, Relaxed);
        }
        list.push(orphan);
    }

    /// Takes those to send ahead of a command of the hold `own`, which sees to that itself: its release would find nothing.
    /// Those whose lease is over are over.
    pub fn take(&self, own: &[u8], now: u64) -> Vec<Orphan> {
        let mut list = self.list();
        list.retain(|orphan| orphan.until > now && orphan.token != own);
        let is_due = |orphan: &mut Orphan| orphan.after <= now;
        list.extract_if(.., is_due).collect()
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
        Orphan { keys: Vec::new(), token: number.to_string().into(), until: 100, after: 0, may_be_late: true }
    }

    #[test]
    fn the_oldest_are_sent_first_and_forgotten_first() {
        let orphans = Orphans::default();
        (0..MOST + 3).for_each(|number| orphans.add(orphan(number)));
        assert_eq!(orphans.counts(), (MOST, 3));
        assert_eq!(
            orphans.take(&orphan(5).token, 0),
            (3..MOST + 3).filter(|number| *number != 5).map(orphan).collect::<Vec<_>>()
        );
        orphans.add(orphan(1));
        assert_eq!(orphans.take(b"", 100), []);
        assert_eq!(orphans.counts(), (0, 3));
    }

    #[test]
    fn what_may_come_late_is_released_twice() {
        let orphans = Orphans::default();
        let again = orphan(1).found_nothing(50).unwrap();
        let lasting = Orphan { until: u64::MAX, ..again };
        orphans.add(lasting.clone());
        assert_eq!(orphans.take(b"", 50 + Orphan::LATE - 1), []);
        assert_eq!(orphans.take(b"", 50 + Orphan::LATE), std::slice::from_ref(&lasting));
        assert_eq!(lasting.found_nothing(60), None);
    }
}
