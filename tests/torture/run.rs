//! One run: keeps the workers alive, or kills and stops them, looks at the frozen table, and judges the end.

use super::board::{Board, Count, KEYS, Wrong};
use super::history::{self, Checked};
use super::plan::{Plan, TABLE, access};
use super::random::Random;
use super::scan::Scanner;
use super::sys::{self, Child, Dir, Ended};
use super::worker::{self, key_name, longest_ms};
use buflock::key::KeyHash;
use buflock::shm::slot::{Attempt, State};
use buflock::shm::table::Table;
use std::sync::atomic::Ordering::SeqCst;
use std::time::{Duration, Instant};

/// Histories are checked, and the table brought to rest, at least this often.
const ROUND: Duration = Duration::from_secs(10);
/// Between two looks at the frozen table.
const SCAN_EVERY: Duration = Duration::from_millis(50);
/// A stop from outside is at most so long: longer than the longest lease of a worker's own.
const STOP_MS: u64 = 40;
/// Calm runs alternate between work and rest, in which a lost wake-up shows.
const CALM_WORK: Duration = Duration::from_millis(150);
/// For a rest to begin all must finish what they do. The longest that a worker may sleep over that is 20 s, when its
/// wake-up is lost; the watch reports that before.
const REST_LIMIT: Duration = Duration::from_secs(60);
/// By now all leases have ended: the longest is 45 ms, and this process may be late.
const LEASES_LIMIT: Duration = Duration::from_secs(2);

/// What was done to the workers from outside.
#[derive(Clone, Copy, Debug, Default)]
pub struct Outside {
    pub kills: u64,
    pub stops: u64,
    /// Workers that were killed, from outside or inside, and started anew.
    pub replaced: u64,
}

/// What a run came to.
pub struct Outcome {
    pub board: &'static Board,
    /// What was wrong; empty if all is well.
    pub wrong: Vec<String>,
    pub seconds: f64,
    pub outside: Outside,
    pub scans: u64,
    pub checked: Checked,
    pub slots: u32,
    pub buckets: u32,
    /// The table's own counts: steals, takeovers, full, lost before the owner word.
    pub counters: [u64; 4],
}

/// Runs a plan to its end.
///
/// # Errors
/// The table cannot be made.
pub fn run(plan: &Plan) -> Result<Outcome, String> {
    let dir = Dir::new(&plan.parent).map_err(|error| format!("{}: {error}", plan.parent.display()))?;
    let table = Table::attach(TABLE, &access(dir.path(), plan.buckets).1).map_err(|error| error.to_string())?;
    let board = Board::new();
    let hashes: Vec<_> = (0..KEYS).map(|key| table.hash(&key_name(key))).collect();
    let scanner = Scanner::new(board, &table, &hashes, longest_ms(plan.calm));
    let random = Random::new(plan.seed);
    let (outside, checked) = (Outside::default(), Checked::default());
    let mut run = Run { plan, board, dir: &dir, table: &table, hashes: &hashes, scanner, random, outside, checked };
    let begin = Instant::now();
    let length = Duration::from_secs(plan.seconds);
    while begin.elapsed() < length && !run.is_over() {
        run.round(Instant::now() + ROUND.min(length.saturating_sub(begin.elapsed())));
    }
    run.check_counts();
    let (outside, checked, scans) = (run.outside, run.checked, run.scanner.scans);
    let counters = &table.segment.head().counters;
    let counters = [&counters.steals, &counters.takeovers, &counters.full, &counters.lost];
    Ok(Outcome {
        board,
        wrong: board.findings(),
        seconds: begin.elapsed().as_secs_f64(),
        outside,
        scans,
        checked,
        slots: table.slots().count(),
        buckets: table.segment.header.buckets,
        counters: counters.map(|counter| counter.load(SeqCst)),
    })
}

struct Run<'a> {
    plan: &'a Plan,
    board: &'static Board,
    dir: &'a Dir,
    table: &'a Table,
    hashes: &'a [KeyHash],
    scanner: Scanner<'a>,
    random: Random,
    outside: Outside,
    checked: Checked,
}

/// A worker's process, and until when it is stopped.
struct Player {
    child: Child,
    stopped: Option<Instant>,
}

impl Run<'_> {
    fn is_over(&self) -> bool {
        sys::interrupted() || self.plan.until_wrong && self.board.is_wrong()
    }

    fn round(&mut self, end: Instant) {
        let mut players: Vec<_> = (0..self.plan.workers).map(|worker| self.player(worker)).collect();
        if self.plan.calm {
            self.keep_calm(&mut players, end);
        } else {
            self.torture(&mut players, end);
        }
        drop(players);
        if !self.is_over() {
            self.check_end();
            let Checked { acquisitions, pairs, missed } = history::check(self.board);
            self.checked.acquisitions += acquisitions;
            self.checked.pairs += pairs;
            self.checked.missed += missed;
        }
        for offer in &self.board.offers {
            offer.state.store(0, SeqCst); // they name events of this round
        }
    }

    fn player(&self, worker: usize) -> Player {
        let seed = self.random.next();
        let child = Child::fork(|| worker::play(self.board, self.plan, self.dir.path(), worker, seed));
        Player { child, stopped: None }
    }

    fn torture(&mut self, players: &mut [Player], end: Instant) {
        let mut scan_at = Instant::now() + SCAN_EVERY;
        while Instant::now() < end && !self.is_over() {
            sys::nap(2000 + self.random.below(8000));
            self.wake_stopped(players);
            self.strike(players);
            self.replace_dead(players);
            if Instant::now() >= scan_at {
                self.scan_frozen(players);
                scan_at = Instant::now() + SCAN_EVERY;
            }
        }
    }

    fn wake_stopped(&self, players: &mut [Player]) {
        let now = Instant::now();
        for player in players.iter_mut().filter(|player| player.stopped.is_some_and(|until| until <= now)) {
            player.child.signal(libc::SIGCONT);
            player.stopped = None;
        }
    }

    /// Stops or kills one. The first worker is only stopped: see `chaos::begin`.
    fn strike(&mut self, players: &mut [Player]) {
        if self.random.one_in(4) {
            let player = &mut players[self.random.index(self.plan.workers)];
            self.outside.stops += 1;
            player.child.signal(libc::SIGSTOP);
            player.stopped = Some(Instant::now() + Duration::from_millis(1 + self.random.below(STOP_MS)));
        } else {
            let worker = 1 + self.random.index(self.plan.workers - 1);
            self.outside.kills += 1;
            players[worker].child.kill();
        }
    }

    fn replace_dead(&mut self, players: &mut [Player]) {
        for (worker, player) in players.iter_mut().enumerate() {
            let Some(ended) = player.child.ended() else { continue };
            match ended {
                Ended::Killed(libc::SIGKILL) => self.outside.replaced += 1,
                Ended::Killed(signal) => self.crashed(worker, 0, signal),
                Ended::Left(code) => self.crashed(worker, code, 0),
            }
            *player = self.player(worker);
        }
    }

    fn crashed(&self, worker: usize, code: i32, signal: i32) {
        let facts = [worker as u64, u64::from(code.unsigned_abs()), u64::from(signal.unsigned_abs())];
        self.board.report(Wrong::Crashed, facts);
    }

    fn scan_frozen(&mut self, players: &mut [Player]) {
        for player in &mut *players {
            player.child.freeze();
        }
        self.scanner.scan();
        for player in &mut *players {
            player.child.signal(libc::SIGCONT);
            player.stopped = None;
        }
        self.replace_dead(players);
    }

    fn keep_calm(&mut self, players: &mut [Player], end: Instant) {
        while Instant::now() < end && !self.is_over() {
            let rest_at = Instant::now() + CALM_WORK;
            while Instant::now() < rest_at && !self.is_over() {
                sys::nap(5000);
            }
            self.board.pause.store(1, SeqCst);
            let limit = Instant::now() + REST_LIMIT;
            while self.busy() > 0 && Instant::now() < limit && !self.is_over() {
                self.replace_dead(players);
                sys::nap(2000);
            }
            if Instant::now() >= limit {
                self.board.report(Wrong::NeverIdle, [self.busy() as u64, 0, 0]);
            }
            self.scanner.scan();
            if Instant::now() < end {
                self.board.pause.store(0, SeqCst);
            }
        }
    }

    fn busy(&self) -> usize {
        self.board.doing[..self.plan.workers].iter().filter(|doing| doing.idle.load(SeqCst) == 0).count()
    }

    /// When all are dead: leases end, every key can be locked and given back, and nothing stays half done.
    fn check_end(&mut self) {
        let begin = Instant::now();
        while self.table.load().0 > 0 && begin.elapsed() < LEASES_LIMIT {
            sys::nap(1000);
        }
        self.scanner.scan();
        for (key, hash) in self.hashes.iter().enumerate() {
            match self.table.acquire(hash, 1000, false) {
                Attempt::Held(hold) => self.table.undo(hash, hold),
                Attempt::Busy(_) | Attempt::Contended | Attempt::Full => {
                    self.board.report(Wrong::Stuck, [key as u64, 0, 0]);
                }
            }
        }
        // There are more keys than slots: in each window some key had to be bound, and takes what is left over first.
        for slot in 0..self.table.slots().count() {
            let word = self.table.slots().word(slot);
            if matches!(word.state(), State::Claim | State::Pending) {
                self.board.report(Wrong::LeftOver, [u64::from(slot), word.0, 0]);
            }
        }
    }

    /// Done is counted after the write, attempted before it, and a kill may come between.
    fn check_counts(&self) {
        let (done, attempted) = (self.board.sum(Count::Done), self.board.sum(Count::Attempted));
        let sum = self.board.guarded_sum();
        if !(done <= sum && sum <= attempted) {
            self.board.report(Wrong::CountsDiffer, [done, sum, attempted]);
        }
    }
}
