//! Chaos before a real Redis server: processes that lock through a proxy which resets, delays and swallows, and that are
//! killed and stopped; and a check of what they believe against what the server wrote down.
//!
//! `make chaos SECONDS=60`, `make chaos RESTARTS=1`: there the server is killed, too, which ends all leases.

#![allow(missing_docs)] // a program, read from its source

#[path = "../common/mod.rs"]
mod common;
#[path = "../common/process.rs"]
mod process;
#[path = "../torture/random.rs"]
mod random;
#[path = "../common/redis/mod.rs"]
mod redis;

mod board;
mod history;
mod proxy;
mod worker;

use board::{Board, Count, WORKERS};
use buflock::policy::NS_PER_MS;
use buflock::sys::monotonic;
use history::History;
use process::{Child, fork};
use random::Random;
use redis::{Server, stored_in};
use std::net::TcpListener;
use std::sync::atomic::Ordering::SeqCst;
use std::time::{Duration, Instant, SystemTime};

/// Keys in use: few, so that they are fought for.
pub const KEYS: usize = 6;
/// Processes are started anew at least this often.
const ROUND: Duration = Duration::from_secs(10);
/// From this length on everything must have happened,
const COVERED_FROM: u64 = 10;
/// And from this on what is rare.
const ALL_COVERED_FROM: u64 = 60;
/// Without persistence a server that is ended forgets; so its file is taken away.
const FILE: &str = "appendonlydir";

/// The name of a key.
pub fn key_name(key: usize) -> Vec<u8> {
    format!("key {key}").into_bytes()
}

/// All holds of a key begin with this lease, so that the server's file says when they began.
pub fn ttl_ms(key: usize) -> u32 {
    [60, 120, 200, 300, 400, 400][key]
}

struct Plan {
    seconds: u64,
    restarts: bool,
    seed: u64,
}

fn main() {
    let arguments: Vec<String> = std::env::args().skip(1).collect();
    let number = |place: usize| arguments.iter().filter_map(|text| text.parse::<u64>().ok()).nth(place);
    let seed = number(1).unwrap_or_else(|| monotonic() % 1_000_000);
    let restarts = arguments.iter().any(|text| text == "restarts");
    let plan = Plan { seconds: number(0).unwrap_or(15), restarts, seed };
    let arguments = "--appendonly yes --appendfsync no --auto-aof-rewrite-percentage 0";
    let Some(server) = Server::start(&arguments.split(' ').collect::<Vec<_>>()) else { return };
    let mut run = Run {
        random: Random::new(seed),
        board: Board::new(),
        server,
        plan,
        offset: offset(),
        checked: 0,
        round_began: 0,
        orphans: [0; 2],
    };
    let wrongs = run.run();
    println!("{} passed, {} failed", u32::from(wrongs == 0), u32::from(wrongs > 0));
    drop(run);
    std::process::exit(i32::from(wrongs > 0));
}

/// What the time of day is ahead of the monotonic clock, in ns.
fn offset() -> u64 {
    let real = SystemTime::now().duration_since(SystemTime::UNIX_EPOCH).expect("after 1970").as_nanos();
    u64::try_from(real).expect("before 2500") - monotonic()
}

struct Run {
    plan: Plan,
    random: Random,
    board: &'static Board,
    server: Server,
    offset: u64,
    checked: usize,
    round_began: u64,
    /// Leases that nobody believed in, and those of them that nobody gave back.
    orphans: [usize; 2],
}

/// A worker's process, and until when it is stopped.
struct Player {
    child: Child,
    stopped: Option<Instant>,
}

impl Run {
    fn run(&mut self) -> u64 {
        self.begin();
        let end = Instant::now() + Duration::from_secs(self.plan.seconds);
        while Instant::now() < end && self.board.wrongs() == 0 {
            self.round(end.min(Instant::now() + ROUND));
        }
        if offset().abs_diff(self.offset) > 2 * NS_PER_MS {
            println!("the time of day was set: what the server wrote down proves nothing");
        }
        self.report();
        self.board.wrongs()
    }

    fn begin(&self) {
        self.server.tell("ACL SETUSER user on >secret ~* +@all");
    }

    fn round(&mut self, end: Instant) {
        self.round_began = monotonic();
        let listener = TcpListener::bind("127.0.0.1:0").expect("a port");
        let port = listener.local_addr().expect("bound").port();
        let (board, seed, server) = (self.board, self.random.next(), self.server.port());
        let proxy = fork(|| proxy::serve(board, &listener, server, seed));
        drop(listener);
        board.stop.store(0, SeqCst);
        let mut players: Vec<_> = (0..WORKERS).map(|number| self.player(number, port)).collect();
        let mut restart_at = Instant::now() + Duration::from_millis(700);
        while Instant::now() < end && board.wrongs() == 0 {
            std::thread::sleep(Duration::from_millis(5 + self.random.below(40)));
            self.wake_stopped(&mut players, false);
            self.strike(&mut players, port);
            if self.plan.restarts && Instant::now() > restart_at {
                self.restart();
                restart_at = Instant::now() + Duration::from_millis(300 + self.random.below(1500));
            }
        }
        board.stop.store(1, SeqCst);
        self.wake_stopped(&mut players, true);
        for player in players {
            player.child.join();
        }
        proxy.kill();
        self.check_end();
        self.check_history(u64::MAX);
        board.forget_holds();
    }

    fn player(&self, number: usize, port: u16) -> Player {
        let (board, seed) = (self.board, self.random.next());
        Player { child: fork(|| worker::work(board, number, port, seed)), stopped: None }
    }

    fn signal(&self, player: &Player, signal: i32) {
        // SAFETY: a child that was not waited for, so the number is still its own.
        unsafe { libc::kill(player.child.pid(), signal) };
    }

    fn wake_stopped(&self, players: &mut [Player], all: bool) {
        for (number, player) in players.iter_mut().enumerate() {
            if player.stopped.is_some_and(|until| all || until <= Instant::now()) {
                self.signal(player, libc::SIGCONT);
                player.stopped = None;
                self.board.stops[number].fetch_add(1, SeqCst);
            }
        }
    }

    fn strike(&self, players: &mut [Player], port: u16) {
        let number = self.random.index(WORKERS);
        if self.random.one_in(12) {
            self.board.count(Count::Kills);
            self.board.stops[number].fetch_add(1, SeqCst);
            let old = std::mem::replace(&mut players[number], self.player(number, port));
            old.child.kill();
        } else if self.random.one_in(4) {
            self.board.count(Count::Stops);
            self.board.stops[number].fetch_add(1, SeqCst);
            self.signal(&players[number], libc::SIGSTOP);
            players[number].stopped = Some(Instant::now() + Duration::from_millis(1 + self.random.below(500)));
        }
    }

    /// The server is ended, with all leases, and another begins.
    fn restart(&mut self) {
        self.board.count(Count::Restarts);
        let end = monotonic();
        self.board.epoch.fetch_add(1, SeqCst);
        self.server.kill();
        self.check_epoch(self.board.epoch.load(SeqCst) - 1, end);
        std::fs::remove_dir_all(self.server.dir().path().join(FILE)).expect("its file");
        self.server.start_again();
        self.begin();
        self.board.epoch.fetch_add(1, SeqCst);
    }

    fn check_history(&mut self, end: u64) {
        self.check_epoch(self.board.epoch.load(SeqCst), end);
    }

    fn check_epoch(&mut self, epoch: u64, end: u64) {
        let stored = |key: &[u8]| stored_in("buflock:", key);
        let history = history::read(&self.server.dir().path().join(FILE), stored, self.offset);
        let checked = history.check(self.board, epoch, end);
        if checked > 0 && history.writes == 0 {
            self.board.wrong("the server wrote nothing down");
        }
        self.checked += checked;
        self.believed_by_nobody(&history);
    }

    /// When all have ended, and their leases too, nobody holds anything.
    fn check_end(&self) {
        std::thread::sleep(Duration::from_millis(500));
        for key in 0..KEYS {
            if self.server.get(&stored_in("buflock:", &key_name(key))).is_some() {
                self.board.wrong(&format!("key {key} is held at the end"));
            }
        }
    }

    fn believed_by_nobody(&mut self, history: &History) {
        let [all, lasted] = history.orphans(self.board, self.round_began);
        self.orphans[0] += all;
        self.orphans[1] += lasted;
    }

    fn report(&self) {
        let Plan { seconds, seed, restarts } = self.plan;
        println!("run        {seconds} s, {WORKERS} workers, {KEYS} keys, seed {seed}");
        for count in Count::ALL {
            println!("{:<12} {:>8}", format!("{count:?}"), self.board.counted(count));
            let rare = matches!(count, Count::ReleasedLate | Count::ExtendedLate | Count::StillBusy | Count::Storms);
            let asked = (count != Count::Restarts || restarts) && (!rare || seconds >= ALL_COVERED_FROM);
            if seconds >= COVERED_FROM && asked && self.board.counted(count) == 0 && self.board.wrongs() == 0 {
                self.board.wrong(&format!("{count:?} never happened: the run proves nothing about it"));
            }
        }
        let [all, lasted] = self.orphans;
        if all >= 50 && lasted * 5 > all && !restarts {
            self.board.wrong("too many leases that nobody believed in were not given back");
        }
        println!("{all} long leases that nobody believed in, of which {lasted} lasted to their end");
        let over = self.board.longest_over.load(SeqCst);
        println!(
            "{} holds compared with the server's file; no call took more than {over} ms beyond its budget",
            self.checked
        );
    }
}
