//! Acquire and release over Redis by one process that nobody disturbs.

use std::io::{Read, Write};
use std::net::TcpStream;
use std::time::Instant;

use crate::bench::{Bench, Measure};
use crate::cpus::Pinned;
use crate::locks::{Buflock, Lock};
use crate::redis_peers::{self, Cost, Figures};
use crate::redis_server::{Control, Server, command, connect};
use crate::report::{Bar, Row, Unit};
use crate::shared::cpu_ns;
use crate::stats::Series;

const KEY: &str = "cache:my_key:42";
/// As long as buflock's in Redis.
const RAW_KEY: &str = "buflock:0123456789abcdef0123456789abcdef";
const TOKEN: &str = "fedcba9876543210fedcba9876543210";
const COMPARE_AND_DELETE: &str =
    "if redis.call('GET',KEYS[1])==ARGV[1] then return redis.call('DEL',KEYS[1]) end return 0";

struct Subject<'b> {
    name: &'static str,
    /// Pairs in one block: a few milliseconds' worth.
    pairs: u32,
    run: Box<dyn FnMut(u32) -> Result<Cost, String> + 'b>,
    figures: Figures,
}

fn row(name: impl Into<String>, own: &Figures, raw: &Figures) -> Row {
    let (wall, cpu) = (own.wall.over(&raw.wall).median(), own.cpu.over(&raw.cpu).median());
    let note = format!("{wall:.2} × raw; client CPU {:.1} µs, {cpu:.2} × raw", own.cpu.median());
    Row::new(name, &own.wall, Unit::Microseconds).plotted().note(note)
}

pub struct Pairs<'b> {
    bench: &'b Bench,
    server: &'b Server,
    control: Control,
    laps: usize,
    subjects: Vec<Subject<'b>>,
    /// The raw loop and buflock again, while the server has a CPU of its own.
    apart: [Figures; 2],
    left_out: Vec<String>,
    round_trips: Series,
}

// Places in `subjects` that ratios are taken of.
const RAW: usize = 0;
const BUFLOCK: usize = 2;

impl<'b> Pairs<'b> {
    pub fn new(bench: &'b Bench, server: &'b Server) -> Result<Self, String> {
        let mut control = server.control()?;
        // What is started inherits the CPU.
        let _pinned = Pinned::to(bench.quiet_cpu())?;
        let own_script = include_str!("../../src/redis/scripts/release.lua");
        let own_keys = ["", ":w", ":s", ":a", ":f"].map(|end| match end {
            "" => RAW_KEY.to_owned(),
            end => format!("{RAW_KEY}{{{RAW_KEY}}}{end}"),
        });
        let plain = Raw::new(server, &mut control, COMPARE_AND_DELETE, &[RAW_KEY])?;
        let same = Raw::new(server, &mut control, own_script, &own_keys.each_ref().map(String::as_str))?;
        let mut subjects = vec![
            subject("raw socket loop", 200, plain),
            subject("raw socket loop, buflock's release script", 200, same),
            subject("buflock", 200, Buflock::trying(bench.api.open(&server.url, &[])?, KEY)),
        ];
        let (peers, left_out) = redis_peers::start(&redis_peers::FOREIGN, server);
        subjects.extend(peers.into_iter().map(|mut peer| Subject {
            name: peer.name,
            pairs: 50,
            run: Box::new(move |pairs| peer.run(pairs)),
            figures: Figures::default(),
        }));
        for subject in &mut subjects {
            (subject.run)(bench.times(1000, 50))?;
        }
        left_out.iter().for_each(|peer| eprintln!("left out: {peer}"));
        let (laps, apart, round_trips) = (bench.times(31, 3), <[Figures; 2]>::default(), Series::default());
        Ok(Self { bench, server, control, laps, subjects, apart, left_out, round_trips })
    }

    /// Blocks of these subjects in turn.
    fn blocks(&mut self, places: &[usize]) -> Result<Vec<Vec<Cost>>, String> {
        redis_peers::in_turn(self.laps, places.len(), |number| {
            let subject = &mut self.subjects[places[number]];
            (subject.run)(subject.pairs)
        })
    }

    /// Has the server count what buflock asks of it, in a block beside those that are timed.
    fn count_round_trips(&mut self) -> Result<(), String> {
        const PAIRS: u32 = 500;
        let before = self.control.counts()?;
        (self.subjects[BUFLOCK].run)(PAIRS)?;
        let done = self.control.counts()?.since(before);
        self.round_trips.push(done.reads / f64::from(PAIRS));
        Ok(())
    }
}

impl Measure for Pairs<'_> {
    fn title(&self) -> &'static str {
        "Redis: uncontended acquire and release"
    }

    fn how(&self) -> String {
        let cpu = self.bench.quiet_cpu();
        let left_out = match &self.left_out[..] {
            [] => String::new(),
            names => format!(" Left out: {}.", names.join("; ")),
        };
        format!(
            "One client at a time with one connection, all pinned to CPU {cpu}, and so is a server of the bench's own, \
             but for the lines that say otherwise: so the time that waking across CPUs takes, which differs much, is \
             not in the ratios. No wait. Wall time for the pair of calls, and the CPU time, user and system, of the client's process; {} short blocks of each in turn per \
             round. The raw loop writes commands that are ready beforehand, `SET NX PX` and `EVALSHA` of a \
             compare-and-delete, to a socket without delay, and reads the replies. Round trips: how often the server \
             has read from its connections (`total_reads_processed`).{left_out}",
            self.laps
        )
    }

    fn round(&mut self) -> Result<(), String> {
        let _pinned = Pinned::to(self.bench.quiet_cpu())?;
        let (here, elsewhere) = (self.bench.quiet_cpu(), self.bench.cpu(0));
        let is_own = self.server.pin(here)?;
        let all: Vec<_> = (0..self.subjects.len()).collect();
        let blocks = self.blocks(&all)?;
        self.subjects.iter_mut().zip(&blocks).for_each(|(subject, blocks)| subject.figures.add(blocks));
        if is_own && here != elsewhere {
            self.server.pin(elsewhere)?;
            let blocks = self.blocks(&[RAW, BUFLOCK])?;
            self.apart.iter_mut().zip(&blocks).for_each(|(figures, blocks)| figures.add(blocks));
        }
        self.count_round_trips()
    }

    fn rows(&self) -> Vec<Row> {
        let raw = &self.subjects[RAW].figures;
        let mut rows: Vec<_> = self.subjects.iter().map(|subject| row(subject.name, &subject.figures, raw)).collect();
        let [raw_apart, own_apart] = &self.apart;
        if !raw_apart.wall.rounds().is_empty() {
            let name = |place: usize| format!("{}, server on another CPU", self.subjects[place].name);
            rows.extend([row(name(RAW), raw_apart, raw_apart), row(name(BUFLOCK), own_apart, raw_apart)]);
        }
        let own = &self.subjects[BUFLOCK].figures;
        let bar =
            |name, own: &Series, base, limit| Row::new(name, &own.over(base), Unit::Times).bar(Bar::AtMost(limit));
        rows.push(bar("Redis: pair / raw socket loop", &own.wall, &raw.wall, 1.2));
        rows.push(bar("Redis: client CPU of a pair / raw socket loop", &own.cpu, &raw.cpu, 1.3));
        rows.push(Row::new("Redis: round trips of a pair", &self.round_trips, Unit::Count).bar(Bar::AtMost(2.0)));
        rows
    }
}

/// What a client in C does at the least: write, read, write, read.
struct Raw {
    stream: TcpStream,
    acquire: Vec<u8>,
    release: Vec<u8>,
}

impl Raw {
    fn new(server: &Server, control: &mut Control, script: &str, keys: &[&str]) -> Result<Self, String> {
        let hash = control.ask(&["SCRIPT", "LOAD", script])?;
        let count = keys.len().to_string();
        Ok(Self {
            stream: connect(&server.address)?,
            acquire: command(&["SET", RAW_KEY, TOKEN, "NX", "PX", "60000"]),
            release: command(&[&["EVALSHA", &hash, &count], keys, &[TOKEN]].concat()),
        })
    }
}

impl Lock for Raw {
    #[inline]
    fn lock(&mut self) -> Result<(), String> {
        exchange(&mut self.stream, &self.acquire, b"+OK\r\n")
    }
    #[inline]
    fn unlock(&mut self) -> Result<(), String> {
        exchange(&mut self.stream, &self.release, b":1\r\n")
    }
}

#[inline]
fn exchange(stream: &mut TcpStream, command: &[u8], want: &[u8]) -> Result<(), String> {
    let mut reply = [0; 64];
    let answer = stream.write_all(command).and_then(|()| stream.read(&mut reply));
    match answer {
        Ok(length) if reply[..length] == *want => Ok(()),
        Ok(length) => Err(format!("the raw loop got {}", String::from_utf8_lossy(&reply[..length]))),
        Err(error) => Err(format!("the raw loop: {error}")),
    }
}

/// Boxed around the loop, not inside it: the calls of a pair are direct.
fn subject<'b>(name: &'static str, pairs: u32, mut lock: impl Lock + 'b) -> Subject<'b> {
    let run = Box::new(move |pairs| run_pairs(&mut lock, pairs));
    Subject { name, pairs, run, figures: Figures::default() }
}

fn run_pairs(lock: &mut impl Lock, pairs: u32) -> Result<Cost, String> {
    let (start, cpu) = (Instant::now(), cpu_ns());
    for _ in 0..pairs {
        lock.lock()?;
        lock.unlock()?;
    }
    let cpu = (cpu_ns() - cpu) as f64 / f64::from(pairs);
    Ok(Cost { wall: start.elapsed().as_secs_f64() * 1e9 / f64::from(pairs), cpu })
}
