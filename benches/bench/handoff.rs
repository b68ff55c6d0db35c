//! From the releasing call of one process to a sleeping one that owns the lock.

use std::sync::atomic::{AtomicU32, AtomicU64, Ordering::SeqCst};
use std::time::Duration;

use crate::bench::{Bench, Measure};
use crate::cpus::{Pinned, pin};
use crate::locks::{Kind, Lock};
use crate::report::{Bar, Row, Unit};
use crate::shared::{Shared, Zeroed, now_ns, post, times_slept, wait_for};
use crate::stats::{Pauses, Series, percentile};
use crate::team::Team;

const SHORTEST_HOLD: Duration = Duration::from_millis(1);
const LONGEST_HOLD: Duration = Duration::from_millis(3);
/// Blocks of each lock per round, in turn.
const LAPS: usize = 3;
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

#[derive(Clone, Copy, PartialEq)]
enum Place {
    OtherCpu,
    SameCpu,
}

struct Subject {
    kind: Kind,
    place: Place,
    samples: usize,
    p50: Series,
    p99: Series,
    taken: usize,
    awake: usize,
}

pub struct Handoff<'b> {
    bench: &'b Bench,
    pauses: Pauses,
    subjects: Vec<Subject>,
}

impl<'b> Handoff<'b> {
    pub fn new(bench: &'b Bench) -> Self {
        let mut subjects = Vec::new();
        let other = bench.cpus.len() > 1;
        if other {
            subjects.extend([
                subject(Kind::Buflock, Place::OtherCpu, bench.times(120, 5)),
                subject(Kind::Robust, Place::OtherCpu, bench.times(120, 5)),
                subject(Kind::Flock, Place::OtherCpu, bench.times(40, 5)),
                subject(Kind::Polling, Place::OtherCpu, bench.times(40, 5)),
            ]);
        }
        // With one CPU this is the placement that the bars are about, so it gets the samples.
        let same = if other { bench.times(40, 5) } else { bench.times(120, 5) };
        subjects.extend([subject(Kind::Buflock, Place::SameCpu, same), subject(Kind::Robust, Place::SameCpu, same)]);
        Self { bench, pauses: Pauses::new(), subjects }
    }

    fn cpus(&self, place: Place) -> (usize, usize) {
        let releaser = self.bench.quiet_cpu();
        match place {
            Place::SameCpu => (releaser, releaser),
            Place::OtherCpu => (releaser, self.bench.cpu(self.bench.cpus.len() - 2)),
        }
    }

    fn block(&mut self, number: usize) -> Result<Vec<u64>, String> {
        let Subject { kind, place, samples, .. } = self.subjects[number];
        let (releaser_cpu, waiter_cpu) = self.cpus(place);
        let baton = Shared::new()?;
        let bench = self.bench;
        let team = Team::start(1, |_| {
            pin(waiter_cpu)?;
            waiter(&baton, &mut *kind.open(bench, "handoff")?, samples)
        })?;
        let _pinned = Pinned::to(releaser_cpu)?;
        let mut lock = kind.open(bench, "handoff")?;
        self.releaser(&baton, &mut *lock, samples, team)?;
        Ok(baton.latencies[..samples].iter().map(|latency| latency.load(SeqCst)).collect())
    }

    fn releaser(&mut self, baton: &Baton, lock: &mut dyn Lock, samples: usize, mut team: Team) -> Result<(), String> {
        for sample in (1..).take(samples) {
            lock.lock()?;
            post(&baton.turn, sample);
            team.wait_for(&baton.waiting, sample)?;
            std::thread::sleep(self.pauses.between(SHORTEST_HOLD, LONGEST_HOLD));
            baton.released.store(now_ns(), SeqCst);
            lock.unlock()?;
            team.wait_for(&baton.done, sample)?;
        }
        team.join()
    }
}

fn waiter(baton: &Baton, lock: &mut dyn Lock, samples: usize) -> Result<(), String> {
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

impl Measure for Handoff<'_> {
    fn title(&self) -> &'static str {
        "Hand-off to a sleeping waiter"
    }

    fn how(&self) -> String {
        let same = self.bench.quiet_cpu();
        let place = if self.has(Place::OtherCpu) {
            let (releaser, waiter) = self.cpus(Place::OtherCpu);
            format!(
                "Releaser pinned to CPU {releaser}, waiter to CPU {waiter}: the bars are about these. \
                 \"Same CPU\": both pinned to CPU {same}."
            )
        } else {
            format!("There is one CPU: both are pinned to CPU {same}.")
        };
        format!(
            "Two processes; a hold lasts 1 to 3 ms at random. From a stamp before the releasing call until the \
             waiter owns the lock; samples whose waiter had not slept are left out. {place} Locks take turns in \
             blocks, {LAPS} per round."
        )
    }

    fn round(&mut self) -> Result<(), String> {
        let mut latencies = vec![Vec::new(); self.subjects.len()];
        for lap in 0..LAPS {
            for number in 0..self.subjects.len() {
                let number = (number + lap) % self.subjects.len();
                latencies[number].extend(self.block(number)?);
            }
        }
        for (subject, latencies) in self.subjects.iter_mut().zip(latencies) {
            subject.add(&latencies);
        }
        Ok(())
    }

    fn rows(&self) -> Vec<Row> {
        let mut rows: Vec<_> = self.subjects.iter().flat_map(Subject::rows).collect();
        let place = if self.has(Place::OtherCpu) { Place::OtherCpu } else { Place::SameCpu };
        let own = self.find(Kind::Buflock, place);
        let base = self.find(Kind::Robust, place);
        if let (Some(own), Some(base)) = (own, base) {
            let bar =
                |name, own: &Series, base, limit| Row::new(name, &own.over(base), Unit::Times).bar(Bar::AtMost(limit));
            rows.push(bar("hand-off p50 / robust mutex", &own.p50, &base.p50, 1.5));
            rows.push(bar("hand-off p99 / robust mutex", &own.p99, &base.p99, 3.0));
        }
        rows
    }
}

impl Handoff<'_> {
    fn has(&self, place: Place) -> bool {
        self.find(Kind::Buflock, place).is_some()
    }

    fn find(&self, kind: Kind, place: Place) -> Option<&Subject> {
        self.subjects.iter().find(|subject| subject.kind == kind && subject.place == place)
    }
}

fn subject(kind: Kind, place: Place, samples: usize) -> Subject {
    let (p50, p99) = (Series::default(), Series::default());
    Subject { kind, place, samples, p50, p99, taken: 0, awake: 0 }
}

impl Subject {
    /// One round's latencies, in nanoseconds.
    fn add(&mut self, latencies: &[u64]) {
        let slept: Vec<f64> =
            latencies.iter().filter(|&&latency| latency != AWAKE).map(|&latency| latency as f64 / 1e3).collect();
        self.taken += slept.len();
        self.awake += latencies.len() - slept.len();
        self.p50.push(percentile(&slept, 50));
        self.p99.push(percentile(&slept, 99));
    }

    fn rows(&self) -> [Row; 2] {
        let place = if self.place == Place::SameCpu { ", same CPU" } else { "" };
        let mut note = format!("n = {}", self.taken);
        if self.awake > 0 {
            note += &format!(", {} left out", self.awake);
        }
        let row = |what, series| {
            let name = format!("{}{place}, {what}", self.kind.name());
            Row::new(name, series, Unit::Microseconds).plotted().note(&*note)
        };
        [row("p50", &self.p50), row("p99", &self.p99)]
    }
}
