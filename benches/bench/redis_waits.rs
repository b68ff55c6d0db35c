//! Waiting over Redis: one waiter behind a long hold, and a hundred behind a short one.

use std::sync::atomic::{AtomicU32, AtomicU64, Ordering::SeqCst};
use std::time::Duration;

use crate::abi::{Handle, OK, Token};
use crate::bench::{Bench, Measure};
use crate::cpus::pin;
use crate::locks::{Buflock, Lock, Polling};
use crate::redis_server::{Control, Counts, Server};
use crate::relay::{Latencies, relay};
use crate::report::{Bar, Row, Unit};
use crate::shared::{Shared, Zeroed, count, now_ns, post, wait_for};
use crate::stats::{Pauses, Series, median};
use crate::team::Team;

const KEY: &str = "waited for";

/// How the waiters wait.
#[derive(Clone, Copy, PartialEq)]
enum Way {
    /// As the library does.
    Told,
    /// In steps, over the same library: acquire without wait, and sleep.
    Stepped,
}

impl Way {
    fn name(self) -> &'static str {
        match self {
            Self::Told => "buflock",
            Self::Stepped => "steps of lua-resty-lock, 1 ms to 0.5 s",
        }
    }

    fn lock<'b>(self, handle: Handle<'b>, key: &str) -> Box<dyn Lock + 'b> {
        match self {
            Self::Told => Box::new(Buflock::waiting(handle, key)),
            Self::Stepped => Box::new(Polling::growing(Buflock::trying(handle, key))),
        }
    }
}

pub struct OneWaiter<'b> {
    bench: &'b Bench,
    server: &'b Server,
    pauses: Pauses,
    samples: usize,
    told: Latencies,
    stepped: Latencies,
}

// So many milliseconds: 500, but not in step with what else ends after 500 ms.
const HOLD: [u64; 2] = [475, 525];

impl<'b> OneWaiter<'b> {
    pub fn new(bench: &'b Bench, server: &'b Server) -> Self {
        let (told, stepped) = (Latencies::default(), Latencies::default());
        Self { bench, server, pauses: Pauses::new(), samples: bench.times(6, 1), told, stepped }
    }

    fn block(&mut self, way: Way) -> Result<Vec<u64>, String> {
        let (bench, server) = (self.bench, self.server);
        let [low, high] = HOLD.map(Duration::from_millis);
        let hold = || self.pauses.between(low, high);
        // Opened by the process that uses it.
        let open = || Ok(way.lock(bench.api.open(&server.url, &[])?, KEY));
        let cpu = bench.quiet_cpu();
        relay(cpu, self.samples, hold, open, || pin(cpu).and_then(|()| open()))
    }
}

impl Measure for OneWaiter<'_> {
    fn title(&self) -> &'static str {
        "Redis: hand-off to one waiter"
    }

    fn how(&self) -> String {
        let [low, high] = HOLD;
        format!(
            "Two processes with a connection each, both pinned to CPU {}; a hold lasts {low} to {high} ms at random. \
             From a stamp before the releasing call until the waiter owns the lock; {} of each way per round.",
            self.bench.quiet_cpu(),
            self.samples
        )
    }

    fn round(&mut self) -> Result<(), String> {
        let told = self.block(Way::Told)?;
        self.told.add(&told);
        let stepped = self.block(Way::Stepped)?;
        self.stepped.add(&stepped);
        Ok(())
    }

    fn rows(&self) -> Vec<Row> {
        let bar = Row::new("Redis, 500 ms hold: hand-off p50", &self.told.p50.scaled(1e-3), Unit::Milliseconds);
        let mut rows = vec![bar.bar(Bar::AtMost(1.0))];
        rows.extend(self.told.rows(Way::Told.name()));
        rows.extend(self.stepped.rows(Way::Stepped.name()));
        rows
    }
}

const WAITERS: usize = 100;
const CROWD_HOLD: Duration = Duration::from_millis(50);

/// Words count shots from 1, or run on over all shots.
struct Board {
    connected: AtomicU32,
    turn: AtomicU32,
    waiting: AtomicU32,
    done: AtomicU32,
    owned_at: [AtomicU64; WAITERS],
    released_at: [AtomicU64; WAITERS],
}

// SAFETY: atomics only.
unsafe impl Zeroed for Board {}

/// One figure per round.
struct Line {
    way: Way,
    shots: u32,
    /// Milliseconds after the first release.
    half: Series,
    last: Series,
    worst: f64,
    tries: Series,
    /// Microseconds.
    server_cpu: Series,
}

/// What one release leads to.
struct Shot {
    half: f64,
    last: f64,
    tries: f64,
    server_cpu: f64,
}

pub struct Crowd<'b> {
    bench: &'b Bench,
    server: &'b Server,
    control: Control,
    lines: [Line; 2],
}

impl<'b> Crowd<'b> {
    pub fn new(bench: &'b Bench, server: &'b Server) -> Result<Self, String> {
        let lines = [line(Way::Told, bench.times(5, 1)), line(Way::Stepped, 1)];
        Ok(Self { bench, server, control: server.control()?, lines })
    }

    fn shots(&mut self, way: Way, shots: u32) -> Result<Vec<Shot>, String> {
        let (bench, server) = (self.bench, self.server);
        let memory: Shared<Board> = Shared::new()?;
        let board = &*memory;
        let mut team = Team::start(WAITERS, |index| {
            let handle = bench.api.open(&server.url, &[])?;
            connect(&handle, &format!("of waiter {index}"))?;
            waiter(board, index, &mut *way.lock(handle, KEY), shots)
        })?;
        let handle = bench.api.open(&server.url, &[])?;
        connect(&handle, "of the holder")?;
        let mut holder = Buflock::trying(handle, KEY);
        team.wait_for(&board.connected, all(1))?;
        let made = (1..=shots).map(|shot| self.shot(way, board, &mut holder, &mut team, shot));
        let made = made.collect::<Result<_, _>>()?;
        team.join()?;
        Ok(made)
    }

    fn shot(
        &mut self,
        way: Way,
        board: &Board,
        holder: &mut dyn Lock,
        team: &mut Team,
        shot: u32,
    ) -> Result<Shot, String> {
        holder.lock()?;
        let before = self.control.counts()?;
        post(&board.turn, shot);
        team.wait_for(&board.waiting, all(shot))?;
        std::thread::sleep(CROWD_HOLD);
        let released = now_ns();
        holder.unlock()?;
        team.wait_for(&board.done, all(shot))?;
        let done = self.control.counts()?.since(before);
        let since = |times: &[AtomicU64]| -> Result<Vec<f64>, String> {
            let mut passed = Vec::with_capacity(times.len());
            for time in times {
                let time = time.load(SeqCst).checked_sub(released);
                passed.push(time.ok_or("a waiter owned the lock before the release")? as f64 / 1e6);
            }
            passed.sort_by(f64::total_cmp);
            Ok(passed)
        };
        Ok(Shot {
            half: since(&board.owned_at)?[WAITERS / 2 - 1],
            last: since(&board.released_at)?[WAITERS - 1],
            tries: tries(way, done) / WAITERS as f64,
            server_cpu: done.cpu * 1e6 / WAITERS as f64,
        })
    }
}

/// Uses another key first, so that the handle has its connection.
fn connect(handle: &Handle<'_>, key: &str) -> Result<(), String> {
    let mut token: Token = [0; 64];
    for (call, status) in [
        ("buflock_acquire", handle.acquire(key.as_bytes(), 0, &mut token, None)),
        ("buflock_release", handle.release(key.as_bytes(), &token)),
    ] {
        if status != OK {
            return Err(handle.failure(call, status));
        }
    }
    Ok(())
}

/// How often the waiters have asked for the lock, with the first time.
fn tries(way: Way, done: Counts) -> f64 {
    match way {
        // The scripts but for the releases, one by each waiter and the holder's.
        Way::Told => done.scripts - (WAITERS + 1) as f64,
        // A try without wait is a SET, and releases have none.
        Way::Stepped => done.sets,
    }
}

fn line(way: Way, shots: u32) -> Line {
    let new = Series::default;
    Line { way, shots, half: new(), last: new(), worst: 0.0, tries: new(), server_cpu: new() }
}

/// What a word that counts all waiters shows at the end of a shot.
fn all(shot: u32) -> u32 {
    shot * u32::try_from(WAITERS).unwrap_or(u32::MAX)
}

fn waiter(board: &Board, index: usize, lock: &mut dyn Lock, shots: u32) -> Result<(), String> {
    count(&board.connected, all(1));
    for shot in 1..=shots {
        wait_for(&board.turn, shot, || Ok(()))?;
        count(&board.waiting, all(shot));
        lock.lock()?;
        board.owned_at[index].store(now_ns(), SeqCst);
        lock.unlock()?;
        board.released_at[index].store(now_ns(), SeqCst);
        count(&board.done, all(shot));
    }
    Ok(())
}

impl Line {
    fn add(&mut self, shots: &[Shot]) {
        let of = |what: fn(&Shot) -> f64| median(&shots.iter().map(what).collect::<Vec<_>>());
        self.half.push(of(|shot| shot.half));
        self.last.push(of(|shot| shot.last));
        self.tries.push(of(|shot| shot.tries));
        self.server_cpu.push(of(|shot| shot.server_cpu));
        self.worst = shots.iter().map(|shot| shot.last).fold(self.worst, f64::max);
    }

    fn rows(&self) -> [Row; 2] {
        let name = self.way.name();
        let cost = format!(
            "worst {:.1} ms; {:.1} tries and {:.0} µs of the server's CPU for each waiter",
            self.worst,
            self.tries.median(),
            self.server_cpu.median()
        );
        let row = |what, series| Row::new(format!("{name}, {what}"), series, Unit::Milliseconds).plotted();
        [row("half served", &self.half), row("all served", &self.last).note(cost)]
    }
}

impl Measure for Crowd<'_> {
    fn title(&self) -> &'static str {
        "Redis: a crowd behind one holder"
    }

    fn how(&self) -> String {
        let [told, stepped] = &self.lines;
        format!(
            "{WAITERS} processes with a connection each, not pinned, {} CPUs with the server, wait for a holder of \
             {} ms; then each acquires and releases at once. From a stamp before the holder's release until half of \
             them own the lock, and until all have released it; {} holds per round, {} of steps. Tries are counted \
             by the server (`commandstats`): scripts without the releases, or SET, with each waiter's first.",
            self.bench.cpus.len(),
            CROWD_HOLD.as_millis(),
            told.shots,
            stepped.shots
        )
    }

    fn round(&mut self) -> Result<(), String> {
        for place in 0..self.lines.len() {
            let (way, shots) = (self.lines[place].way, self.lines[place].shots);
            let made = self.shots(way, shots)?;
            self.lines[place].add(&made);
        }
        Ok(())
    }

    fn rows(&self) -> Vec<Row> {
        let [told, _] = &self.lines;
        let drained = Row::new(format!("Redis, {WAITERS} waiters: all served"), &told.last, Unit::Milliseconds);
        let tries = Row::new(format!("Redis, {WAITERS} waiters: tries for each"), &told.tries, Unit::Count);
        let mut rows = vec![drained.bar(Bar::AtMost(25.0)), tries.bar(Bar::AtMost(3.0))];
        rows.extend(self.lines.iter().flat_map(Line::rows));
        rows
    }
}
