//! From the releasing call of one process to a sleeping one that owns the lock.

use crate::bench::{Bench, Measure};
use crate::cpus::pin;
use crate::locks::Kind;
use crate::relay::{Cpus, Latencies, relay};
use crate::report::{Bar, Row, Unit};
use crate::stats::{Pauses, Series};

/// Blocks of each lock per round, in turn.
const LAPS: usize = 3;

#[derive(Clone, Copy, PartialEq)]
enum Place {
    OtherCpu,
    SameCpu,
}

struct Subject {
    kind: Kind,
    place: Place,
    samples: usize,
    latencies: Latencies,
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

    fn cpus(&self, place: Place) -> Cpus {
        match place {
            Place::SameCpu => Cpus::same(self.bench),
            Place::OtherCpu => Cpus::apart(self.bench),
        }
    }

    fn block(&mut self, number: usize) -> Result<Vec<u64>, String> {
        let Subject { kind, place, samples, .. } = self.subjects[number];
        let open = || self.bench.lock(kind, "handoff");
        let Cpus { releaser, waiter } = self.cpus(place);
        relay(releaser, samples, || self.pauses.hold(), open, || pin(waiter).and_then(|()| open()))
    }

    fn has(&self, place: Place) -> bool {
        self.find(Kind::Buflock, place).is_some()
    }

    fn find(&self, kind: Kind, place: Place) -> Option<&Subject> {
        self.subjects.iter().find(|subject| subject.kind == kind && subject.place == place)
    }
}

impl Measure for Handoff<'_> {
    fn title(&self) -> &'static str {
        "Hand-off to a sleeping waiter"
    }

    fn how(&self) -> String {
        let same = self.bench.quiet_cpu();
        let place = if self.has(Place::OtherCpu) {
            let Cpus { releaser, waiter } = self.cpus(Place::OtherCpu);
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
            subject.latencies.add(&latencies);
        }
        Ok(())
    }

    fn rows(&self) -> Vec<Row> {
        let mut rows: Vec<_> = self.subjects.iter().flat_map(Subject::rows).collect();
        let place = if self.has(Place::OtherCpu) { Place::OtherCpu } else { Place::SameCpu };
        let own = self.find(Kind::Buflock, place);
        let base = self.find(Kind::Robust, place);
        if let (Some(own), Some(base)) = (own, base) {
            let (own, base) = (&own.latencies, &base.latencies);
            let bar =
                |name, own: &Series, base, limit| Row::new(name, &own.over(base), Unit::Times).bar(Bar::AtMost(limit));
            rows.push(bar("hand-off p50 / robust mutex", &own.p50, &base.p50, 1.5));
            rows.push(bar("hand-off p99 / robust mutex", &own.p99, &base.p99, 3.0));
        }
        rows
    }
}

fn subject(kind: Kind, place: Place, samples: usize) -> Subject {
    Subject { kind, place, samples, latencies: Latencies::default() }
}

impl Subject {
    fn rows(&self) -> [Row; 2] {
        let place = if self.place == Place::SameCpu { ", same CPU" } else { "" };
        self.latencies.rows(&format!("{}{place}", self.kind.name()))
    }
}
