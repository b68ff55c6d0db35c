//! A lock that goes from one process to another that sleeps, many times, and how long each time took.

use std::sync::atomic::{AtomicU32, AtomicU64, Ordering::SeqCst};
use std::time::Duration;

use crate::bench::Bench;
use crate::cpus::Pinned;
use crate::locks::Lock;
use crate::report::{Row, Unit};
use crate::shared::{Shared, Zeroed, now_ns, post, times_slept, wait_for};
use crate::stats::{Series, percentile};
use crate::team::Team;

const MOST_SAMPLES: usize = 256;
/// Instead of a latency: the waiter got the lock without having slept.
const AWAKE: u64 = u64::MAX;

/// What releaser and waiter share. Words count samples, from 1.
struct Baton {
    turn: AtomicU32,
    waiting: AtomicU32,
    done: AtomicU32,
    released: AtomicU64,
    latencies: [AtomicU64; MOST_SAMPLES],
}

// SAFETY: atomics only.
unsafe impl Zeroed for Baton {}

/// The CPUs that the two are pinned to.
#[derive(Clone, Copy)]
pub struct Cpus {
    pub releaser: usize,
    pub waiter: usize,
}

impl Cpus {
    pub fn same(bench: &Bench) -> Self {
        Self { releaser: bench.quiet_cpu(), waiter: bench.quiet_cpu() }
    }

    /// One for each, where there are two.
    pub fn apart(bench: &Bench) -> Self {
        let count = bench.cpus.len();
        Self { waiter: bench.cpu(2 * count - 2), ..Self::same(bench) }
    }
}

/// One block of samples: from a stamp before the release until the waiter owns the lock. Each side opens its own lock,
/// in its own process; the releaser is pinned, the waiter where `waiters` does it. `hold`: how long the next hold lasts,
/// from when the waiter waits.
pub fn relay<'l>(
    releaser_cpu: usize,
    samples: usize,
    mut hold: impl FnMut() -> Duration,
    releasers: impl Fn() -> Result<Box<dyn Lock + 'l>, String>,
    waiters: impl Fn() -> Result<Box<dyn Lock + 'l>, String>,
) -> Result<Vec<u64>, String> {
    let baton: Shared<Baton> = Shared::new()?;
    let mut team = Team::start(1, |_| wait(&baton, &mut *waiters()?, samples))?;
    let _pinned = Pinned::to(releaser_cpu)?;
    let mut lock = releasers()?;
    for sample in (1..).take(samples) {
        lock.lock()?;
        post(&baton.turn, sample);
        team.wait_for(&baton.waiting, sample)?;
        std::thread::sleep(hold());
        baton.released.store(now_ns(), SeqCst);
        lock.unlock()?;
        team.wait_for(&baton.done, sample)?;
    }
    team.join()?;
    Ok(baton.latencies[..samples].iter().map(|latency| latency.load(SeqCst)).collect())
}

fn wait(baton: &Baton, lock: &mut dyn Lock, samples: usize) -> Result<(), String> {
    for (sample, latency) in (1..).zip(&baton.latencies[..samples]) {
        wait_for(&baton.turn, sample, || Ok(()))?;
        post(&baton.waiting, sample);
        let slept_before = times_slept();
        lock.lock()?;
        let owned = now_ns();
        let slept = times_slept() > slept_before;
        lock.unlock()?;
        let time = owned.saturating_sub(baton.released.load(SeqCst));
        latency.store(if slept { time } else { AWAKE }, SeqCst);
        post(&baton.done, sample);
    }
    Ok(())
}

/// Microseconds, one figure per round.
#[derive(Default)]
pub struct Latencies {
    pub p50: Series,
    pub p99: Series,
    taken: usize,
    awake: usize,
}

impl Latencies {
    /// One round's latencies, in nanoseconds.
    pub fn add(&mut self, latencies: &[u64]) {
        let slept: Vec<f64> =
            latencies.iter().filter(|&&latency| latency != AWAKE).map(|&latency| latency as f64 / 1e3).collect();
        self.taken += slept.len();
        self.awake += latencies.len() - slept.len();
        self.p50.push(percentile(&slept, 50));
        self.p99.push(percentile(&slept, 99));
    }

    pub fn rows(&self, name: &str) -> [Row; 2] {
        let mut note = format!("n = {}", self.taken);
        if self.awake > 0 {
            note += &format!(", {} left out", self.awake);
        }
        let row = |what, series| Row::new(format!("{name}, {what}"), series, Unit::Microseconds).plotted().note(&*note);
        [row("p50", &self.p50), row("p99", &self.p99)]
    }
}
