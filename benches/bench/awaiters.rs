//! Many that wait for a key to be free without wanting it: how soon the last one knows.

use std::sync::atomic::{AtomicU32, AtomicU64, Ordering::SeqCst};
use std::time::Duration;

use crate::abi::{Handle, OK};
use crate::bench::{Bench, Measure};
use crate::locks::{Buflock, Lock};
use crate::report::{Bar, Row, Unit};
use crate::shared::{Shared, Zeroed, count, futex_wait, futex_wake_all, now_ns, post, wait_for};
use crate::stats::{Pauses, Series, median};
use crate::team::Team;

const PROCESSES: usize = 8;
const THREADS: usize = 25;
const AWAITERS: usize = PROCESSES * THREADS;
const KEY: &str = "awaited";
const PATIENCE_MS: u32 = 20_000;

/// `turn` and `bare` count shots from 1, `waiting` and `told` run on over all shots.
struct Board {
    turn: AtomicU32,
    waiting: AtomicU32,
    told: AtomicU32,
    /// What those wait for who use no lock at all.
    bare: AtomicU32,
    told_at: [AtomicU64; AWAITERS],
}

// SAFETY: atomics only.
unsafe impl Zeroed for Board {}

/// By what the awaiters are told.
#[derive(Clone, Copy)]
enum Way {
    Buflock,
    BareFutex,
}

/// Milliseconds after the release, one figure per round.
#[derive(Default)]
struct Told {
    half: Series,
    last: Series,
    worst: f64,
    shots: usize,
}

pub struct Awaiters<'b> {
    bench: &'b Bench,
    shots: u32,
    pauses: Pauses,
    buflock: Told,
    bare: Told,
}

impl<'b> Awaiters<'b> {
    pub fn new(bench: &'b Bench) -> Self {
        let (buflock, bare) = (Told::default(), Told::default());
        Self { bench, shots: bench.times(9, 1), pauses: Pauses::new(), buflock, bare }
    }

    /// Each shot's times in order.
    fn shots(&mut self, way: Way) -> Result<Vec<Vec<f64>>, String> {
        let (bench, shots) = (self.bench, self.shots);
        let memory: Shared<Board> = Shared::new()?;
        let board = &*memory;
        let mut team = Team::start(PROCESSES, |process| {
            let told_at = &board.told_at[process * THREADS..][..THREADS];
            match way {
                Way::BareFutex => crowd(board, told_at, shots, |shot| by_futex(board, shot)),
                Way::Buflock => {
                    let handle = bench.handle()?;
                    crowd(board, told_at, shots, |_| by_buflock(&handle))
                }
            }
        })?;
        let mut signal: Box<dyn Lock + '_> = match way {
            Way::Buflock => Box::new(Buflock::waiting(bench.handle()?, KEY)),
            Way::BareFutex => Box::new(Bare(&board.bare)),
        };
        let times = (1..=shots).map(|shot| self.shot(board, &mut *signal, &mut team, shot));
        let times = times.collect::<Result<_, _>>()?;
        team.join()?;
        Ok(times)
    }

    fn shot(&mut self, board: &Board, signal: &mut dyn Lock, team: &mut Team, shot: u32) -> Result<Vec<f64>, String> {
        signal.lock()?;
        post(&board.turn, shot);
        team.wait_for(&board.waiting, all(shot))?;
        // Time for the last ones to fall asleep.
        std::thread::sleep(self.pauses.between(Duration::from_millis(20), Duration::from_millis(40)));
        let released = now_ns();
        signal.unlock()?;
        team.wait_for(&board.told, all(shot))?;
        let mut times = Vec::with_capacity(AWAITERS);
        for told_at in &board.told_at {
            let time = told_at.load(SeqCst).checked_sub(released);
            times.push(time.ok_or("an awaiter was told before the release")? as f64 / 1e6);
        }
        times.sort_by(f64::total_cmp);
        Ok(times)
    }
}

/// What a word that counts all awaiters shows at the end of a shot.
fn all(shot: u32) -> u32 {
    shot * u32::try_from(AWAITERS).unwrap_or(u32::MAX)
}

/// One process: a thread for each awaiter.
fn crowd(
    board: &Board,
    told_at: &[AtomicU64],
    shots: u32,
    wait: impl Fn(u32) -> Result<(), String> + Sync,
) -> Result<(), String> {
    let awaiter = |told_at: &AtomicU64| {
        for shot in 1..=shots {
            wait_for(&board.turn, shot, || Ok(()))?;
            count(&board.waiting, all(shot));
            wait(shot)?;
            told_at.store(now_ns(), SeqCst);
            count(&board.told, all(shot));
        }
        Ok(())
    };
    std::thread::scope(|scope| {
        let threads: Vec<_> = told_at.iter().map(|own| scope.spawn(|| awaiter(own))).collect();
        let mut ends = threads.into_iter().map(std::thread::ScopedJoinHandle::join);
        ends.try_for_each(|end| end.unwrap_or(Err("an awaiter panicked".to_owned())))
    })
}

fn by_buflock(handle: &Handle<'_>) -> Result<(), String> {
    match handle.await_free(KEY.as_bytes(), PATIENCE_MS) {
        OK => Ok(()),
        status => Err(handle.failure("buflock_await", status)),
    }
}

fn by_futex(board: &Board, shot: u32) -> Result<(), String> {
    while board.bare.load(SeqCst) < shot {
        futex_wait(&board.bare, shot - 1, Duration::from_millis(PATIENCE_MS.into()));
    }
    Ok(())
}

/// Nothing to hold; the release wakes everybody who sleeps on the word.
struct Bare<'b>(&'b AtomicU32);

impl Lock for Bare<'_> {
    fn lock(&mut self) -> Result<(), String> {
        Ok(())
    }
    fn unlock(&mut self) -> Result<(), String> {
        self.0.fetch_add(1, SeqCst);
        futex_wake_all(self.0);
        Ok(())
    }
}

impl Measure for Awaiters<'_> {
    fn title(&self) -> &'static str {
        "Awaiters told of a release"
    }

    fn how(&self) -> String {
        format!(
            "{PROCESSES} processes with {THREADS} threads each wait in buflock_await for one key; not pinned, \
             {} CPUs. From a stamp before the releasing call until half of them and the last one are back; the \
             median of {} releases per round. Beside it the same with one bare futex.",
            self.bench.cpus.len(),
            self.shots
        )
    }

    fn round(&mut self) -> Result<(), String> {
        let buflock = self.shots(Way::Buflock)?;
        self.buflock.add(&buflock);
        let bare = self.shots(Way::BareFutex)?;
        self.bare.add(&bare);
        Ok(())
    }

    fn rows(&self) -> Vec<Row> {
        let bar = Row::new(format!("{AWAITERS} awaiters, last one told"), &self.buflock.last, Unit::Milliseconds);
        let mut rows = vec![bar.bar(Bar::AtMost(5.0))];
        rows.extend(self.buflock.rows("buflock"));
        rows.extend(self.bare.rows("bare futex"));
        rows
    }
}

impl Told {
    /// One round's shots.
    fn add(&mut self, shots: &[Vec<f64>]) {
        let at = |rank: usize| shots.iter().map(|times| times[rank]).collect::<Vec<_>>();
        let last = at(AWAITERS - 1);
        self.half.push(median(&at(AWAITERS / 2 - 1)));
        self.last.push(median(&last));
        self.worst = last.into_iter().fold(self.worst, f64::max);
        self.shots += shots.len();
    }

    fn rows(&self, name: &str) -> [Row; 2] {
        let note = format!("worst of {} releases {:.2} ms", self.shots, self.worst);
        let row = |what, series| Row::new(format!("{name}, {what}"), series, Unit::Milliseconds).plotted();
        [row("half told", &self.half), row("last told", &self.last).note(note)]
    }
}
