//! Several processes that all want one key all the time.

use std::cell::UnsafeCell;
use std::sync::atomic::{AtomicBool, AtomicU32, AtomicU64, Ordering::SeqCst};
use std::time::{Duration, Instant};

use crate::bench::{Bench, Measure};
use crate::cpus::pin;
use crate::locks::{Kind, Lock};
use crate::report::{Bar, Row, Unit};
use crate::shared::{Line, Shared, Zeroed, count, post, wait_for};
use crate::stats::Series;
use crate::team::Team;

const CROWDS: [usize; 3] = [2, 4, 8];
const MOST: usize = 8;
const KINDS: [Kind; 3] = [Kind::Buflock, Kind::Flock, Kind::Robust];

struct Arena {
    ready: AtomicU32,
    go: AtomicU32,
    stop: Line<AtomicBool>,
    /// What the lock protects: a plain number, so that a broken lock loses counts.
    protected: Line<UnsafeCell<u64>>,
    counts: [Line<AtomicU64>; MOST],
}

// SAFETY: atomics, and a number that only holders of the lock touch, by raw pointer.
unsafe impl Zeroed for Arena {}

struct Cell {
    kind: Kind,
    crowd: usize,
    total: Series,
    /// The slowest process over the mean of all.
    fairness: Series,
    lost: u64,
    /// Of each process, over all rounds.
    counts: Vec<u64>,
}

pub struct Contended<'b> {
    bench: &'b Bench,
    time: Duration,
    cells: Vec<Cell>,
    /// Counts that buflock did not protect; a sum over the whole run, as no median may hide one.
    lost: Series,
}

impl<'b> Contended<'b> {
    pub fn new(bench: &'b Bench) -> Self {
        let cells = CROWDS.iter().flat_map(|&crowd| KINDS.map(|kind| cell(kind, crowd)));
        let time = Duration::from_millis(bench.times(400, 60));
        Self { bench, time, cells: cells.collect(), lost: Series::default() }
    }

    fn find(&self, kind: Kind, crowd: usize) -> Option<&Cell> {
        self.cells.iter().find(|cell| cell.kind == kind && cell.crowd == crowd)
    }
}

fn cell(kind: Kind, crowd: usize) -> Cell {
    let (total, fairness) = (Series::default(), Series::default());
    Cell { kind, crowd, total, fairness, lost: 0, counts: vec![0; crowd] }
}

impl Cell {
    fn run(&mut self, bench: &Bench, time: Duration) -> Result<(), String> {
        let arena: Shared<Arena> = Shared::new()?;
        let size = u32::try_from(self.crowd).unwrap_or(u32::MAX);
        let mut team = Team::start(self.crowd, |index| {
            pin(bench.cpu(index))?;
            let mut lock = bench.lock(self.kind, "contended")?;
            count(&arena.ready, size);
            wait_for(&arena.go, 1, || Ok(()))?;
            work(&arena, &mut *lock, &arena.counts[index].0)
        })?;
        team.wait_for(&arena.ready, size)?;
        let start = Instant::now();
        post(&arena.go, 1);
        std::thread::sleep(time);
        arena.stop.0.store(true, SeqCst);
        let seconds = start.elapsed().as_secs_f64();
        team.join()?;
        self.add(&arena, seconds);
        Ok(())
    }

    /// After the processes have ended.
    fn add(&mut self, arena: &Arena, seconds: f64) {
        let counts: Vec<u64> = arena.counts[..self.crowd].iter().map(|count| count.0.load(SeqCst)).collect();
        let total: u64 = counts.iter().sum();
        let slowest = counts.iter().copied().min().unwrap_or(0);
        // SAFETY: nobody else is left.
        let protected = unsafe { *arena.protected.0.get() };
        self.total.push(total as f64 / seconds);
        self.fairness.push(slowest as f64 * counts.len() as f64 / total as f64);
        self.lost += total.abs_diff(protected);
        for (sum, count) in self.counts.iter_mut().zip(&counts) {
            *sum += count;
        }
    }

    fn row(&self) -> Row {
        let name = format!("{} processes, {}", self.crowd, self.kind.name());
        let counts: Vec<_> = self.counts.iter().map(u64::to_string).collect();
        let note = format!("slowest / mean {:.2}; pairs of each process: {}", self.fairness.median(), counts.join(" "));
        Row::new(name, &self.total, Unit::PerSecond).plotted().note(note)
    }
}

fn work(arena: &Arena, lock: &mut dyn Lock, count: &AtomicU64) -> Result<(), String> {
    let mut own = 0;
    while !arena.stop.0.load(SeqCst) {
        lock.lock()?;
        let protected = arena.protected.0.get();
        // SAFETY: we hold the lock. Volatile, so that it is read and written right here.
        unsafe { protected.write_volatile(protected.read_volatile() + 1) };
        lock.unlock()?;
        own += 1;
    }
    count.store(own, SeqCst);
    Ok(())
}

impl Measure for Contended<'_> {
    fn title(&self) -> &'static str {
        "Contended on one key"
    }

    fn how(&self) -> String {
        format!(
            "Processes pinned in turn to CPUs {:?}; blocking waits; the critical section adds 1 to a plain shared \
             number. {} ms for each line per round. Time for {} processes on {} CPUs is mostly the scheduler's \
             to share out.",
            self.bench.cpus,
            self.time.as_millis(),
            MOST,
            self.bench.cpus.len()
        )
    }

    fn round(&mut self) -> Result<(), String> {
        let (bench, time) = (self.bench, self.time);
        self.cells.iter_mut().try_for_each(|cell| cell.run(bench, time))?;
        let lost: u64 = self.cells.iter().filter(|cell| cell.kind == Kind::Buflock).map(|cell| cell.lost).sum();
        self.lost = Series::one(lost as f64);
        Ok(())
    }

    fn rows(&self) -> Vec<Row> {
        let mut rows: Vec<_> = self.cells.iter().map(Cell::row).collect();
        for crowd in CROWDS {
            let own = self.find(Kind::Buflock, crowd);
            let base = self.find(Kind::Flock, crowd);
            if let (Some(own), Some(base)) = (own, base) {
                rows.extend(bars(crowd, own, base));
            }
        }
        rows.push(Row::new("contended, counts lost in all", &self.lost, Unit::Count).bar(Bar::AtMost(0.0)));
        rows
    }
}

fn bars(crowd: usize, own: &Cell, flock: &Cell) -> [Row; 2] {
    let row = |what, series, least| {
        let name = format!("contended, {crowd} processes: {what}");
        Row::new(name, series, Unit::Times).bar(Bar::AtLeast(least))
    };
    [row("slowest / mean", &own.fairness, 0.3), row("total / flock", &own.total.over(&flock.total), 1.0)]
}
