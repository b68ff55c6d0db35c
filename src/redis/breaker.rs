//! The circuit breaker: after some failures in a row calls fail at once for a while, instead of each costing its caller
//! the whole time limit.
//!
//! Its state is in a page that forked processes share, so that one of them finds out for all.

use crate::hooks::{Mutant, mutant};
use crate::policy::NS_PER_MS;
use crate::sys::map;
use std::io;
use std::ptr::NonNull;
use std::sync::atomic::{
    AtomicU32, AtomicU64, Ordering::AcqRel, Ordering::Acquire, Ordering::Relaxed, Ordering::Release,
};

/// The first pause, in ns. It doubles with each probe that fails.
const FIRST: u64 = 1_000 * NS_PER_MS;
/// The longest pause, in ns.
const LONGEST: u64 = 30_000 * NS_PER_MS;

/// The state; all zero: closed.
struct Page {
    /// In a row.
    failures: AtomicU32,
    /// How often it opened since the server answered last.
    level: AtomicU32,
    /// Until when calls fail; 0: closed.
    open_until: AtomicU64,
    /// Until when one process has the right to try.
    probe_until: AtomicU64,
    /// How often it opened, ever.
    opened: AtomicU64,
    /// 1: the server did answer, that it can't work now.
    answers: AtomicU32,
    /// Calls that failed at once.
    refused: AtomicU64,
}

/// Whether a call may ask the server.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Pass {
    /// It may.
    Free,
    /// Not yet: calls fail for so many ns.
    Refused(u64),
}

/// The breaker of a lock service.
pub struct Breaker {
    page: Option<NonNull<Page>>,
    threshold: Option<u32>,
    /// How long a probe may take, in ns: after that another may try, in case the first was killed.
    claim: u64,
}

// SAFETY: all that is shared is atomics.
unsafe impl Send for Breaker {}
// SAFETY: as above.
unsafe impl Sync for Breaker {}

impl Breaker {
    /// A breaker that opens after `threshold` failures; None: never. `claim`: the longest time a call takes, in ns.
    ///
    /// # Errors
    /// The process gets no memory.
    pub fn new(threshold: Option<u32>, claim: u64) -> io::Result<Self> {
        if threshold.is_none() {
            return Ok(Self { page: None, threshold, claim });
        }
        Ok(Self { page: Some(map(libc::MAP_SHARED)?), threshold, claim })
    }

    fn page(&self) -> Option<&Page> {
        // SAFETY: mapped until drop, zeroed by the kernel, and all of it is atomics.
        self.page.map(|page| unsafe { page.as_ref() })
    }

    /// Whether a call may begin at `now`. `keeps`: it keeps a lock or gives it back, which a server that answers may well
    /// do, though it takes no new ones.
    pub fn pass(&self, now: u64, keeps: bool) -> Pass {
        let Some(page) = self.page() else { return Pass::Free };
        let until = page.open_until.load(Acquire);
        if until == 0 || keeps && page.answers.load(Relaxed) == 1 {
            return Pass::Free;
        }
        let probe = page.probe_until.load(Acquire);
        let closed_until = if mutant(Mutant::ManyProbes) { until } else { until.max(probe) };
        let claims = || page.probe_until.compare_exchange(probe, now + self.claim, AcqRel, Acquire).is_ok();
        if now >= closed_until && (claims() || mutant(Mutant::ManyProbes)) {
            return Pass::Free;
        }
        page.refused.fetch_add(1, Relaxed);
        Pass::Refused(closed_until.saturating_sub(now).max(NS_PER_MS))
    }

    /// The server answered.
    pub fn succeeded(&self) {
        let Some(page) = self.page().filter(|_| !mutant(Mutant::NeverCloses)) else { return };
        if page.failures.load(Relaxed) == 0 && page.open_until.load(Relaxed) == 0 {
            return; // written only when something changes: all processes share the page
        }
        page.failures.store(0, Relaxed);
        page.level.store(0, Relaxed);
        page.open_until.store(0, Release);
        page.probe_until.store(0, Release);
    }

    /// It did not, or said that it can't work: `answers`. `random` spreads the probes of different hosts.
    pub fn failed(&self, now: u64, random: u32, answers: bool) {
        let (Some(page), Some(threshold)) = (self.page(), self.threshold) else { return };
        page.answers.store(answers.into(), Relaxed);
        let failures = page.failures.fetch_add(1, Relaxed).saturating_add(1);
        let until = page.open_until.load(Acquire);
        if now < until || until == 0 && failures < threshold || mutant(Mutant::NeverOpens) {
            return; // the calls that were under way when it opened say nothing new
        }
        let level = page.level.load(Relaxed);
        let pause = (FIRST << level.min(5)).min(LONGEST);
        let pause = pause * 4 / 5 + pause * 2 / 5 * u64::from(random % 1024) / 1023;
        if page.open_until.compare_exchange(until, now + pause, AcqRel, Acquire).is_ok() {
            page.level.store(level + 1, Relaxed);
            page.probe_until.store(0, Release);
            page.opened.fetch_add(1, Relaxed);
        }
    }

    /// For how many ns calls still fail at once, how often it opened, and how many calls it has refused.
    pub fn state(&self, now: u64) -> (u64, u64, u64) {
        self.page().map_or((0, 0, 0), |page| {
            let until = page.open_until.load(Relaxed).max(page.probe_until.load(Relaxed));
            let open = until.saturating_sub(now);
            (open, page.opened.load(Relaxed), page.refused.load(Relaxed))
        })
    }
}

impl Drop for Breaker {
    fn drop(&mut self) {
        if let Some(page) = self.page {
            // SAFETY: mapped by new, and nobody in this process has it any more.
            unsafe { libc::munmap(page.as_ptr().cast(), size_of::<Page>()) };
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::policy::NS_PER_MS as MS;

    const CLAIM: u64 = 500 * MS;
    const MIDDLE: u32 = 511; // no spread, nearly

    fn breaker() -> Breaker {
        Breaker::new(Some(3), CLAIM).unwrap()
    }

    fn seconds(breaker: &Breaker, now: u64) -> u64 {
        match breaker.pass(now, false) {
            Pass::Free => 0,
            Pass::Refused(left) => left.div_ceil(1_000 * MS),
        }
    }

    #[test]
    fn opens_after_failures_in_a_row() {
        let breaker = breaker();
        for _ in 0..5 {
            breaker.failed(1, MIDDLE, false);
            breaker.failed(1, MIDDLE, false);
            breaker.succeeded();
        }
        assert_eq!(breaker.pass(1, false), Pass::Free);
        (0..3).for_each(|_| breaker.failed(1, MIDDLE, false));
        assert_eq!(seconds(&breaker, 1), 1);
        breaker.succeeded();
        assert_eq!(breaker.pass(1, false), Pass::Free);
    }

    #[test]
    fn one_probe_per_pause_and_pauses_double() {
        let breaker = breaker();
        let mut now = 1;
        (0..3).for_each(|_| breaker.failed(now, MIDDLE, false));
        for pause in [1, 2, 4, 8, 16, 30, 30, 30] {
            assert_eq!(seconds(&breaker, now), pause, "second {}", now / 1_000 / MS);
            now += pause * 1_000 * MS;
            assert_eq!(breaker.pass(now, false), Pass::Free);
            assert_ne!(breaker.pass(now + 1, false), Pass::Free, "a second probe");
            now += CLAIM;
            breaker.failed(now, MIDDLE, false);
        }
        assert_eq!(breaker.state(now).1, 9);
    }

    #[test]
    fn a_probe_that_never_ends_is_followed_by_another() {
        let breaker = breaker();
        (0..3).for_each(|_| breaker.failed(1, MIDDLE, false));
        let now = 2_000 * MS;
        assert_eq!(breaker.pass(now, false), Pass::Free);
        assert_ne!(breaker.pass(now + CLAIM - 1, false), Pass::Free);
        assert_eq!(breaker.pass(now + CLAIM, false), Pass::Free);
    }

    #[test]
    fn calls_under_way_do_not_lengthen_the_pause() {
        let breaker = breaker();
        (0..50).for_each(|_| breaker.failed(1, MIDDLE, false));
        assert_eq!(seconds(&breaker, 1), 1);
    }

    #[test]
    fn the_spread_is_a_fifth() {
        for (random, ms) in [(0, 800), (1023, 1200)] {
            let breaker = breaker();
            (0..3).for_each(|_| breaker.failed(0, random, false));
            assert_eq!(breaker.pass(0, false), Pass::Refused(ms * MS));
        }
    }

    #[test]
    fn what_keeps_a_lock_passes_where_the_server_answers() {
        let breaker = breaker();
        (0..3).for_each(|_| breaker.failed(1, MIDDLE, true));
        assert_ne!(breaker.pass(1, false), Pass::Free);
        assert_eq!(breaker.pass(1, true), Pass::Free);
        breaker.failed(1, MIDDLE, false);
        assert_ne!(breaker.pass(1, true), Pass::Free);
    }

    #[test]
    fn may_be_off() {
        let breaker = Breaker::new(None, CLAIM).unwrap();
        (0..50).for_each(|_| breaker.failed(1, MIDDLE, false));
        assert_eq!(breaker.pass(1, false), Pass::Free);
    }
}
