//! The bell: how soon an event loop has a lock that another process gives back, and what the bell costs beside that.
//!
//! A hand-off by each form of the bell, many ops at once, and releases that nobody waits for.

use std::cmp::Reverse;
use std::collections::{BinaryHeap, HashMap};
use std::io::Read;
use std::os::fd::{AsRawFd, FromRawFd, OwnedFd, RawFd};
use std::os::unix::net::UnixStream;
use std::sync::atomic::{AtomicU32, AtomicU64, Ordering::SeqCst};
use std::time::{Duration, Instant};

use crate::abi::{Handle, Next, OK, Op, Token};
use crate::bench::{Bench, Measure};
use crate::cpus::pin;
use crate::locks::{Kind, Lock, PATIENCE_MS};
use crate::relay::{Cpus, Latencies, relay};
use crate::report::{Bar, Row, Unit};
use crate::shared::{Shared, Zeroed, cpu_ns, now_ns, post, system_error, wait_for};
use crate::stats::{Pauses, Series, median};
use crate::team::Team;

/// Blocks of each hand-off per round, in turn.
const LAPS: usize = 3;
const KEY: &str = "bell";
const KEYS: usize = 1000;
/// How often the many ops are told per round.
const SHOTS: u32 = 5;
/// How often a block of releases takes and gives back all keys.
const PASSES: usize = 10;
/// Blocks of releases of each side per round.
const MOST_LAPS: usize = 31;

/// By what the waiter of a hand-off is woken.
#[derive(Clone, Copy)]
enum Way {
    Futex,
    Fd,
    Socket,
}

impl Way {
    const ALL: [Self; 3] = [Self::Futex, Self::Fd, Self::Socket];

    fn name(self) -> &'static str {
        match self {
            Self::Futex => "buflock, blocking (futex)",
            Self::Fd => "buflock op, bell's fd",
            Self::Socket => "buflock op, bell's socket",
        }
    }

    fn waiter(self, bench: &Bench) -> Result<Box<dyn Lock + '_>, String> {
        Ok(match self {
            Self::Futex => bench.lock(Kind::Buflock, KEY)?,
            Self::Fd => Box::new(Looping::new(Bell::with_fd(bench)?)),
            Self::Socket => Box::new(Looping::new(Bell::with_socket(bench)?)),
        })
    }
}

/// A handle whose bell an event loop watches.
struct Bell<'b> {
    epoll: OwnedFd,
    socket: Option<UnixStream>,
    handle: Handle<'b>,
}

impl<'b> Bell<'b> {
    fn with_fd(bench: &'b Bench) -> Result<Self, String> {
        let handle = bench.handle()?;
        let epoll = epoll_on(handle.bell_fd()?)?;
        Ok(Self { epoll, socket: None, handle })
    }

    fn with_socket(bench: &'b Bench) -> Result<Self, String> {
        let handle = bench.handle()?;
        let path = bench.dir.path().join("bell");
        handle.bell_listen(&path)?;
        let socket = UnixStream::connect(&path).map_err(|error| format!("{}: {error}", path.display()))?;
        Ok(Self { epoll: epoll_on(socket.as_raw_fd())?, socket: Some(socket), handle })
    }

    /// Sleeps until the bell has ids to say, but not beyond the limit; says how many it has put into `ids`.
    fn hear(&mut self, ids: &mut [u32], limit_ms: u32) -> Result<usize, String> {
        let mut event = libc::epoll_event { events: 0, u64: 0 };
        let limit = libc::c_int::try_from(limit_ms).unwrap_or(libc::c_int::MAX);
        // SAFETY: epoll is open, event is writable.
        match unsafe { libc::epoll_wait(self.epoll.as_raw_fd(), &raw mut event, 1, limit) } {
            -1 => return Err(system_error("epoll_wait")),
            0 => return Ok(0),
            _ => {}
        }
        let (Some(socket), Some(id)) = (&mut self.socket, ids.first_mut()) else { return self.handle.bell_read(ids) };
        let mut bytes = [0; 4];
        socket.read_exact(&mut bytes).map_err(|error| format!("the bell's socket: {error}"))?;
        *id = u32::from_ne_bytes(bytes);
        Ok(1)
    }
}

fn epoll_on(fd: RawFd) -> Result<OwnedFd, String> {
    // SAFETY: takes a number.
    let epoll = unsafe { libc::epoll_create1(libc::EPOLL_CLOEXEC) };
    if epoll < 0 {
        return Err(system_error("epoll_create1"));
    }
    // SAFETY: just made, and nobody else's.
    let epoll = unsafe { OwnedFd::from_raw_fd(epoll) };
    let mut event = libc::epoll_event { events: libc::EPOLLIN.cast_unsigned(), u64: 0 };
    // SAFETY: both fds are open, event is readable.
    let status = unsafe { libc::epoll_ctl(epoll.as_raw_fd(), libc::EPOLL_CTL_ADD, fd, &raw mut event) };
    if status == 0 { Ok(epoll) } else { Err(system_error("epoll_ctl")) }
}

/// An event loop with one op, as a lock.
struct Looping<'b> {
    bell: Bell<'b>,
    token: Token,
}

impl<'b> Looping<'b> {
    fn new(bell: Bell<'b>) -> Self {
        Self { bell, token: [0; 64] }
    }
}

impl Lock for Looping<'_> {
    fn lock(&mut self) -> Result<(), String> {
        let mut op = self.bell.handle.op(KEY.as_bytes(), PATIENCE_MS)?;
        let mut ids = [0; 16];
        while let Some((_, ms)) = bell_step(&mut op)? {
            self.bell.hear(&mut ids, ms)?;
        }
        op.finish(&mut self.token)
    }

    fn unlock(&mut self) -> Result<(), String> {
        release(&self.bell.handle, KEY, &self.token)
    }
}

/// Id and time of the wait that an op asks for; nothing when it is done.
fn bell_step(op: &mut Op<'_>) -> Result<Option<(u32, u32)>, String> {
    match op.next()? {
        Next::Done => Ok(None),
        Next::Bell { id, ms } => Ok(Some((id, ms))),
        Next::Sleep => Err("an op got no bell".to_owned()),
    }
}

fn acquire(handle: &Handle<'_>, key: &str, token: &mut Token) -> Result<(), String> {
    match handle.acquire(key.as_bytes(), 0, token, None) {
        OK => Ok(()),
        status => Err(handle.failure("buflock_acquire", status)),
    }
}

fn release(handle: &Handle<'_>, key: &str, token: &Token) -> Result<(), String> {
    match handle.release(key.as_bytes(), token) {
        OK => Ok(()),
        status => Err(handle.failure("buflock_release", status)),
    }
}

struct Subject {
    way: Way,
    /// Where the waiter is pinned; None: like most event loops, nowhere.
    cpu: Option<usize>,
    samples: usize,
    latencies: Latencies,
}

impl Subject {
    fn waiter<'b>(&self, bench: &'b Bench) -> Result<Box<dyn Lock + 'b>, String> {
        // Before the bell's thread starts: it goes with the loop's.
        self.cpu.map_or(Ok(()), pin)?;
        self.way.waiter(bench)
    }

    fn rows(&self) -> [Row; 2] {
        let place = if self.cpu.is_some() { "" } else { ", not pinned" };
        self.latencies.rows(&format!("{}{place}", self.way.name()))
    }
}

pub struct BellHandoff<'b> {
    bench: &'b Bench,
    cpus: Cpus,
    pauses: Pauses,
    subjects: Vec<Subject>,
}

impl<'b> BellHandoff<'b> {
    pub fn new(bench: &'b Bench) -> Self {
        let cpus = Cpus::apart(bench);
        let subjects =
            |cpu, samples| Way::ALL.map(|way| Subject { way, cpu, samples, latencies: Latencies::default() });
        let pinned = subjects(Some(cpus.waiter), bench.times(120, 5));
        let free = subjects(None, bench.times(40, 5));
        Self { bench, cpus, pauses: Pauses::new(), subjects: pinned.into_iter().chain(free).collect() }
    }

    fn block(&mut self, number: usize) -> Result<Vec<u64>, String> {
        let (bench, subject) = (self.bench, &self.subjects[number]);
        let releasers = || bench.lock(Kind::Buflock, KEY);
        relay(self.cpus.releaser, subject.samples, || self.pauses.hold(), releasers, || subject.waiter(bench))
    }
}

impl Measure for BellHandoff<'_> {
    fn title(&self) -> &'static str {
        "Hand-off to an event loop"
    }

    fn how(&self) -> String {
        let Cpus { releaser, waiter } = self.cpus;
        format!(
            "As the hand-off above; releaser pinned to CPU {releaser}, waiter and its bell's thread to CPU {waiter}: \
             the bars are about these. \"Not pinned\": the waiter and its bell's thread. Until a blocking acquire is \
             back, or a loop that slept in epoll has an op done and its lock fetched. All take turns in blocks, {LAPS} \
             per round."
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
        for (subject, latencies) in self.subjects.iter_mut().zip(&latencies) {
            subject.latencies.add(latencies);
        }
        Ok(())
    }

    fn rows(&self) -> Vec<Row> {
        let mut rows: Vec<_> = self.subjects.iter().flat_map(Subject::rows).collect();
        if let [futex, fd, socket, free_futex, free_fd, free_socket] = &self.subjects[..] {
            let over = |name, own: &Subject, base: &Subject| {
                Row::new(name, &own.latencies.p50.over(&base.latencies.p50), Unit::Times)
            };
            rows.extend([
                over("hand-off p50, bell's fd / futex", fd, futex).bar(Bar::AtMost(4.0)),
                over("hand-off p50, bell's socket / futex", socket, futex).bar(Bar::AtMost(6.0)),
                over("not pinned, p50, bell's fd / futex", free_fd, free_futex),
                over("not pinned, p50, bell's socket / futex", free_socket, free_futex),
            ]);
        }
        rows
    }
}

/// What the holder and the process with the many ops share. Words count shots, from 1.
struct Board {
    turn: AtomicU32,
    waiting: AtomicU32,
    told: AtomicU32,
    done: AtomicU32,
    told_at: AtomicU64,
    /// CPU time that the waiting process used while nothing happened, in ns, and how long that was.
    idle_cpu: AtomicU64,
    idle_time: AtomicU64,
}

// SAFETY: atomics only.
unsafe impl Zeroed for Board {}

struct Pending<'b> {
    op: Op<'b>,
    /// When it is to be looked at; nothing once it is done.
    due: Option<u64>,
    token: Token,
}

/// An event loop with many ops: those that the bell names are looked at, and those whose time has come.
struct Server<'b> {
    bell: Bell<'b>,
    waits: Vec<Pending<'b>>,
    places: HashMap<u32, usize>,
    times: BinaryHeap<Reverse<(u64, usize)>>,
    done: usize,
}

impl<'b> Server<'b> {
    fn new(bell: Bell<'b>) -> Self {
        Self { bell, waits: Vec::new(), places: HashMap::new(), times: BinaryHeap::new(), done: 0 }
    }

    fn begin(&mut self, keys: &[String]) -> Result<(), String> {
        for key in keys {
            let mut op = self.bell.handle.op(key.as_bytes(), PATIENCE_MS)?;
            let (id, ms) = bell_step(&mut op)?.ok_or("a key was free that should be held")?;
            let (place, due) = (self.waits.len(), now_ns() + ms_to_ns(ms));
            self.waits.push(Pending { op, due: Some(due), token: [0; 64] });
            self.places.insert(id, place);
            self.times.push(Reverse((due, place)));
        }
        Ok(())
    }

    /// Until all ops are done, or the time is over.
    fn serve(&mut self, until: u64) -> Result<(), String> {
        let mut ids = [0; 64];
        while self.done < self.waits.len() {
            let now = now_ns();
            if now >= until {
                break;
            }
            while let Some(&Reverse((due, place))) = self.times.peek()
                && due <= now
            {
                self.times.pop();
                // Else it was looked at since, and has another time.
                if self.waits[place].due == Some(due) {
                    self.look(place)?;
                }
            }
            let next = self.times.peek().map_or(until, |&Reverse((due, _))| due.min(until));
            let rest = next.saturating_sub(now).div_ceil(1_000_000);
            let count = self.bell.hear(&mut ids, u32::try_from(rest).unwrap_or(u32::MAX))?;
            for id in &ids[..count] {
                if let Some(&place) = self.places.get(id) {
                    self.look(place)?;
                }
            }
        }
        Ok(())
    }

    fn look(&mut self, place: usize) -> Result<(), String> {
        let wait = &mut self.waits[place];
        if wait.due.is_none() {
            return Ok(());
        }
        wait.due = bell_step(&mut wait.op)?.map(|(_, ms)| now_ns() + ms_to_ns(ms));
        match wait.due {
            Some(due) => self.times.push(Reverse((due, place))),
            None => {
                wait.op.finish(&mut wait.token)?;
                self.done += 1;
            }
        }
        Ok(())
    }

    /// Gives back what the ops have got.
    fn end(&mut self, keys: &[String]) -> Result<(), String> {
        for (key, wait) in keys.iter().zip(self.waits.drain(..)) {
            release(&self.bell.handle, key, &wait.token)?;
        }
        self.places.clear();
        self.times.clear();
        self.done = 0;
        Ok(())
    }
}

fn ms_to_ns(ms: u32) -> u64 {
    u64::from(ms) * 1_000_000
}

/// The process with the many ops.
fn serve(bench: &Bench, board: &Board, keys: &[String], idle: Duration) -> Result<(), String> {
    let mut server = Server::new(Bell::with_fd(bench)?);
    for shot in 1..=SHOTS {
        wait_for(&board.turn, shot, || Ok(()))?;
        server.begin(keys)?;
        if shot == 1 {
            let (cpu, start) = (cpu_ns(), Instant::now());
            server.serve(now_ns() + nanoseconds(idle))?;
            board.idle_cpu.store(cpu_ns() - cpu, SeqCst);
            board.idle_time.store(nanoseconds(start.elapsed()), SeqCst);
        }
        post(&board.waiting, shot);
        server.serve(u64::MAX)?;
        board.told_at.store(now_ns(), SeqCst);
        post(&board.told, shot);
        server.end(keys)?;
        post(&board.done, shot);
    }
    Ok(())
}

fn nanoseconds(time: Duration) -> u64 {
    u64::try_from(time.as_nanos()).unwrap_or(u64::MAX)
}

pub struct PendingOps<'b> {
    bench: &'b Bench,
    keys: Vec<String>,
    idle: Duration,
    pauses: Pauses,
    /// Percent of one CPU.
    cpu: Series,
    /// Milliseconds from the first release on.
    told: Series,
    released: Series,
    worst: f64,
}

impl<'b> PendingOps<'b> {
    pub fn new(bench: &'b Bench) -> Self {
        let idle = Duration::from_millis(bench.times(3000, 300));
        let (cpu, told, released) = (Series::default(), Series::default(), Series::default());
        Self { bench, keys: keys(), idle, pauses: Pauses::new(), cpu, told, released, worst: 0.0 }
    }
}

fn keys() -> Vec<String> {
    (0..KEYS).map(|key| format!("{KEY}:{key}")).collect()
}

impl Measure for PendingOps<'_> {
    fn title(&self) -> &'static str {
        "Many ops in one event loop"
    }

    fn how(&self) -> String {
        format!(
            "One process holds {KEYS} keys, the loop of another has an op for each and sleeps in epoll on the bell's \
             fd; not pinned, {} CPUs. Idle CPU: what the loop's process uses, its bell's thread too, in {:.1} s \
             without a release. All told: from a stamp before the first of {KEYS} releases in a row until the last \
             op is done and its lock fetched; the median of {SHOTS} times per round.",
            self.bench.cpus.len(),
            self.idle.as_secs_f64()
        )
    }

    fn round(&mut self) -> Result<(), String> {
        let (bench, keys) = (self.bench, &self.keys);
        let board: Shared<Board> = Shared::new()?;
        let mut team = Team::start(1, |_| serve(bench, &board, keys, self.idle))?;
        let handle = bench.handle()?;
        let mut tokens = vec![[0; 64]; KEYS];
        let (mut told, mut released) = (Vec::new(), Vec::new());
        for shot in 1..=SHOTS {
            for (key, token) in keys.iter().zip(&mut tokens) {
                acquire(&handle, key, token)?;
            }
            post(&board.turn, shot);
            team.wait_for(&board.waiting, shot)?;
            std::thread::sleep(self.pauses.between(Duration::from_millis(20), Duration::from_millis(40)));
            let start = now_ns();
            for (key, token) in keys.iter().zip(&tokens) {
                release(&handle, key, token)?;
            }
            released.push((now_ns() - start) as f64 / 1e6);
            team.wait_for(&board.told, shot)?;
            let time = board.told_at.load(SeqCst).checked_sub(start);
            told.push(time.ok_or("all ops were done before the release")? as f64 / 1e6);
            team.wait_for(&board.done, shot)?;
        }
        team.join()?;
        self.cpu.push(100.0 * board.idle_cpu.load(SeqCst) as f64 / board.idle_time.load(SeqCst) as f64);
        self.worst = told.iter().copied().fold(self.worst, f64::max);
        self.told.push(median(&told));
        self.released.push(median(&released));
        Ok(())
    }

    fn rows(&self) -> Vec<Row> {
        let row = |what, series, unit| Row::new(format!("1,000 pending ops, {what}"), series, unit);
        let told = row("all told", &self.told, Unit::Milliseconds).plotted().bar(Bar::AtMost(20.0));
        vec![
            row("idle CPU", &self.cpu, Unit::Percent).bar(Bar::AtMost(1.0)),
            told.note(format!("worst {:.2} ms", self.worst)),
            row("the releasing calls alone", &self.released, Unit::Milliseconds).plotted(),
        ]
    }
}

/// Two processes that take turns in releasing what nobody waits for.
struct Lanes {
    turn: AtomicU32,
    done: AtomicU32,
    /// Of each block in turn, in ns.
    times: [AtomicU64; 2 * MOST_LAPS],
}

// SAFETY: atomics only.
unsafe impl Zeroed for Lanes {}

const WITHOUT: usize = 0;
const WITH: usize = 1;

/// What a bell costs those who release, where nobody waits.
pub struct Releases<'b> {
    bench: &'b Bench,
    keys: Vec<String>,
    laps: usize,
    /// Nanoseconds.
    sides: [Series; 2],
}

impl<'b> Releases<'b> {
    pub fn new(bench: &'b Bench) -> Self {
        Self { bench, keys: keys(), laps: bench.times(MOST_LAPS, 3), sides: Default::default() }
    }
}

impl Measure for Releases<'_> {
    fn title(&self) -> &'static str {
        "Release beside an idle bell"
    }

    fn how(&self) -> String {
        format!(
            "Two processes, one with a bell, take turns on CPU {}; nobody waits. Each block acquires and releases \
             {KEYS} keys {PASSES} times, and the time is that of the releases alone; {} blocks of each per round.",
            self.bench.quiet_cpu(),
            self.laps
        )
    }

    fn round(&mut self) -> Result<(), String> {
        let (bench, keys) = (self.bench, &self.keys);
        let lanes: Shared<Lanes> = Shared::new()?;
        let blocks = &lanes.times[..2 * self.laps];
        let mut team = Team::start(2, |side| {
            pin(bench.quiet_cpu())?;
            let handle = bench.handle()?;
            if side == WITH {
                handle.bell_fd()?;
            }
            for (turn, time) in (1..).zip(blocks).filter(|&(turn, _)| side_of(turn) == side) {
                wait_for(&lanes.turn, turn, || Ok(()))?;
                time.store(time_releases(&handle, keys)?, SeqCst);
                post(&lanes.done, turn);
            }
            Ok(())
        })?;
        let mut times = [Vec::new(), Vec::new()];
        for (turn, time) in (1..).zip(blocks) {
            post(&lanes.turn, turn);
            team.wait_for(&lanes.done, turn)?;
            times[side_of(turn)].push(time.load(SeqCst) as f64 / (PASSES * KEYS) as f64);
        }
        team.join()?;
        for (side, times) in self.sides.iter_mut().zip(&times) {
            side.push(median(times));
        }
        Ok(())
    }

    fn rows(&self) -> Vec<Row> {
        let row = |name, series| Row::new(name, series, Unit::Nanoseconds).plotted();
        let [without, with] = &self.sides;
        let ratio = Row::new("release, nobody waits: with a bell / without", &with.over(without), Unit::Times);
        vec![
            row("buflock release, no bell", without),
            row("buflock release, idle bell", with),
            ratio.bar(Bar::AtMost(1.05)),
        ]
    }
}

/// Each lap begins with the side that the last one ended with, so that nobody always follows the other.
fn side_of(turn: u32) -> usize {
    if (turn / 2).is_multiple_of(2) { WITHOUT } else { WITH }
}

fn time_releases(handle: &Handle<'_>, keys: &[String]) -> Result<u64, String> {
    let mut tokens = vec![[0; 64]; keys.len()];
    let mut sum = 0;
    // The first pass warms the caches up.
    for pass in 0..=PASSES {
        for (key, token) in keys.iter().zip(&mut tokens) {
            acquire(handle, key, token)?;
        }
        let start = Instant::now();
        for (key, token) in keys.iter().zip(&tokens) {
            release(handle, key, token)?;
        }
        if pass > 0 {
            sum += nanoseconds(start.elapsed());
        }
    }
    Ok(sum)
}
