//! Acquire and release by one process that nobody disturbs.

use std::time::Instant;

use crate::bench::{Bench, Measure};
use crate::cpus::Pinned;
use crate::locks::{Buflock, CasClock, Flock, Lock, OfdByte, RawCas, Robust};
use crate::report::{Bar, Row, Unit};
use crate::stats::{Series, median};

const KEY: &str = "cache:my_key:42";
const ROTATING: usize = 1000;

struct Subject<'b> {
    name: &'static str,
    /// Pairs in one block: about a millisecond's worth, so that many are not interrupted.
    pairs: u32,
    time: Box<dyn FnMut(u32) -> Result<f64, String> + 'b>,
    series: Series,
}

pub struct Uncontended<'b> {
    bench: &'b Bench,
    laps: usize,
    subjects: Vec<Subject<'b>>,
}

// Places in `subjects` that ratios are taken of.
const CAS: usize = 0;
const FLOCK: usize = 3;
const BUFLOCK: usize = 5;
const MANY: usize = 6;

impl<'b> Uncontended<'b> {
    pub fn new(bench: &'b Bench) -> Result<Self, String> {
        let word = bench.rivals.word();
        let keys = (0..ROTATING).map(|key| format!("cache:my_key:{key}").into_bytes()).collect();
        let dir = bench.dir.path();
        let subjects = vec![
            subject("raw CAS pair", 50_000, RawCas(word)),
            subject("CAS pair and one clock read", 25_000, CasClock(word, 0)),
            subject("robust shared mutex", 40_000, Robust(&bench.rivals)),
            subject("flock, open descriptor", 4_000, Flock::open(dir)?),
            subject("OFD lock, one byte", 2_500, OfdByte::open(dir)?),
            subject("buflock", 8_000, Buflock::trying(bench.handle()?, KEY)),
            subject("buflock, 1,000 rotating keys", 8_000, Buflock::rotating(bench.handle()?, keys)),
            subject("buflock with info", 8_000, Buflock::trying(bench.handle()?, KEY).asking_info()),
        ];
        let mut part = Self { bench, laps: bench.times(31, 3), subjects };
        part.warm_up()?;
        Ok(part)
    }

    /// Binds every key and faults every page in.
    fn warm_up(&mut self) -> Result<(), String> {
        let _pinned = Pinned::to(self.bench.quiet_cpu())?;
        for subject in &mut self.subjects {
            (subject.time)(2000)?;
        }
        Ok(())
    }
}

impl Measure for Uncontended<'_> {
    fn title(&self) -> &'static str {
        "Uncontended acquire and release"
    }

    fn how(&self) -> String {
        format!(
            "One process, pinned to CPU {}; key `{KEY}`, no wait, default ttl. Time for the pair of calls; \
             {} short blocks of each in turn per round.",
            self.bench.quiet_cpu(),
            self.laps
        )
    }

    fn round(&mut self) -> Result<(), String> {
        let _pinned = Pinned::to(self.bench.quiet_cpu())?;
        let mut blocks = vec![Vec::with_capacity(self.laps); self.subjects.len()];
        for lap in 0..self.laps {
            for place in 0..self.subjects.len() {
                // Each lap starts with another one, so that nobody always follows the same.
                let place = (place + lap) % self.subjects.len();
                let subject = &mut self.subjects[place];
                blocks[place].push((subject.time)(subject.pairs)?);
            }
        }
        for (subject, blocks) in self.subjects.iter_mut().zip(&blocks) {
            subject.series.push(median(blocks));
        }
        Ok(())
    }

    fn rows(&self) -> Vec<Row> {
        let over = |own: usize, base: usize| self.subjects[own].series.over(&self.subjects[base].series);
        let bar = |name: &str, own, base, limit| Row::new(name, &over(own, base), Unit::Times).bar(Bar::AtMost(limit));
        let mut rows: Vec<_> = (0..self.subjects.len())
            .map(|place| {
                let (cas, flock) = (over(place, CAS).median(), over(place, FLOCK).median());
                Row::new(self.subjects[place].name, &self.subjects[place].series, Unit::Nanoseconds)
                    .plotted()
                    .note(format!("{cas:.1} × CAS pair, {flock:.2} × flock"))
            })
            .collect();
        rows.push(bar("uncontended pair / raw CAS pair", BUFLOCK, CAS, 14.0));
        rows.push(bar("uncontended pair / flock", BUFLOCK, FLOCK, 0.50));
        rows.push(bar("1,000 rotating keys / raw CAS pair", MANY, CAS, 15.0));
        rows.push(bar("1,000 rotating keys / flock", MANY, FLOCK, 0.55));
        rows
    }
}

/// Boxed around the loop, not inside it: the calls of a pair are direct.
fn subject<'b>(name: &'static str, pairs: u32, mut lock: impl Lock + 'b) -> Subject<'b> {
    let time = Box::new(move |pairs| time_pairs(&mut lock, pairs));
    Subject { name, pairs, time, series: Series::default() }
}

/// Nanoseconds per pair.
fn time_pairs(lock: &mut impl Lock, pairs: u32) -> Result<f64, String> {
    let start = Instant::now();
    for _ in 0..pairs {
        lock.lock()?;
        lock.unlock()?;
    }
    Ok(start.elapsed().as_secs_f64() * 1e9 / f64::from(pairs))
}
