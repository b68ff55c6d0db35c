//! A process that takes locks, gives them back, and says what it believes.

use super::board::{Board, Count, Hold};
use super::random::Random;
use super::{KEYS, key_name, ttl_ms};
use buflock::answer::{Acquire, Answer, Await, Held, Verdict};
use buflock::client::Client;
use buflock::config::Settings;
use buflock::error::{Error, ServerFault};
use buflock::op::{Op, Run};
use buflock::sys::monotonic;
use std::cell::Cell;
use std::sync::atomic::Ordering::SeqCst;
use std::time::Duration;

const MS: u64 = 1_000_000;
/// The option `budget` of all, in ms.
const BUDGET: u64 = 250;
/// What a busy machine may add. What hangs takes longer.
const SLACK: u64 = 300;

/// What each worker asks for beside the rest.
const OPTIONS: [&str; 4] = ["breaker=off", "breaker=off&nudge=off", "breaker=off&fencing=on", "breaker=3&label=me"];

struct Worker {
    board: &'static Board,
    number: usize,
    client: Client,
    random: Random,
    /// A hold of ours that is over.
    stale: Cell<Option<(usize, [u8; 32])>>,
}

/// What is held.
struct Mine {
    key: usize,
    held: Held,
    epoch: u64,
    until: u64,
    written: Option<&'static Hold>,
}

/// Works until all are to end.
pub fn work(board: &'static Board, number: usize, port: u16, seed: u64) {
    let user = if number.is_multiple_of(2) { "" } else { "user:secret@" };
    let options = OPTIONS[number / 2 % OPTIONS.len()];
    let url = format!("redis://{user}127.0.0.1:{port}?budget=0.25&connect_timeout=0.1&command_timeout=0.1&{options}");
    let client = Client::new(&url, Settings::default()).expect("a URL");
    let worker = Worker { board, number, client, random: Random::new(seed), stale: Cell::new(None) };
    while board.stop.load(SeqCst) == 0 {
        worker.act();
    }
}

impl Worker {
    fn act(&self) {
        let key = self.random.index(KEYS);
        match self.random.below(20) {
            0..7 => self.acquire(key, 0),
            7..12 => self.acquire(key, 20 + self.random.below(500)),
            12..16 => self.acquire_by_op(key),
            16..18 => self.await_end(key),
            18 => {
                let _ = self.timed("inspect", 0, || self.client.inspect(&key_name(key)));
                self.board.count(Count::Inspected);
            }
            _ => self.use_stale(),
        }
    }

    /// A token whose hold is over moves nobody else's. Whether it releases one, that one's holder sees.
    fn use_stale(&self) {
        let Some((key, token)) = self.stale.get() else { return self.nap(10) };
        let (name, guard) = (key_name(key), &self.board.guards[key]);
        if self.random.one_in(2) {
            return drop(self.timed("a stale release", 0, || self.client.release(&name, &token)));
        }
        let before = guard.load(SeqCst);
        let answer = self.timed("a stale extend", 0, || self.client.extend(&name, &token, ttl_ms(key)));
        if matches!(answer, Ok(Verdict::Ok)) && guard.load(SeqCst) == before && before & !0xff > monotonic() {
            self.board.wrong(&format!("key {key}: a token whose hold is over extended another's"));
        }
    }

    fn nap(&self, most_ms: u64) {
        std::thread::sleep(Duration::from_micros(self.random.below(1000 * most_ms)));
    }

    /// Calls that take longer than they may are wrong, unless this process was stopped meanwhile.
    fn timed<T>(&self, what: &str, wait_ms: u64, call: impl FnOnce() -> T) -> T {
        let stops = self.board.stops[self.number].load(SeqCst);
        let begun = monotonic();
        let answer = call();
        let over = ((monotonic() - begun) / MS).saturating_sub(wait_ms + BUDGET);
        if self.board.stops[self.number].load(SeqCst) == stops {
            self.board.longest_over.fetch_max(over, SeqCst);
            if over > SLACK {
                self.board.wrong(&format!("{what}, waiting {wait_ms} ms, took {over} ms more than its budget"));
            }
        }
        answer
    }

    fn note_error(&self, error: &Error) {
        self.board.count(match error {
            Error::Server { fault: ServerFault::Uncertain(_), .. } => Count::Uncertain,
            Error::Server { .. } => Count::Failed,
            other => return self.board.wrong(&format!("{other}")),
        });
        self.nap(10);
    }

    fn acquire(&self, key: usize, wait_ms: u64) {
        let (epoch, begun) = (self.board.epoch.load(SeqCst), monotonic());
        let tell = self.random.one_in(2);
        let wait = u32::try_from(wait_ms).expect("ms");
        let name = key_name(key);
        let call = || self.client.acquire_telling(&name, ttl_ms(key), wait, tell);
        let answer = self.timed("acquire", wait_ms, call);
        self.take(key, answer, epoch, begun);
    }

    fn take(&self, key: usize, answer: Result<Acquire, Error>, epoch: u64, begun: u64) {
        match answer {
            Ok(Acquire::Held(held)) => {
                self.board.count(Count::Held);
                self.hold(key, held, epoch, begun);
            }
            Ok(Acquire::Busy(_)) => self.board.count(Count::Busy),
            Err(error) => self.note_error(&error),
        }
    }

    fn acquire_by_op(&self, key: usize) {
        let (epoch, begun) = (self.board.epoch.load(SeqCst), monotonic());
        let wait_ms = self.random.below(300);
        let wait = u32::try_from(wait_ms).expect("ms");
        let mut op = self.client.op_acquire(&key_name(key), ttl_ms(key), wait).expect("times that can be");
        let slices = self.random.below(12);
        let end = self.random.below(3);
        for _ in 0..slices {
            if op.run(self.random.below(30) * MS).expect("a server") == Run::Done {
                break;
            }
        }
        match end {
            0 => return self.board.count(Count::Freed), // whatever it came to
            1 => self.cancel(&mut op),
            _ => self.timed("op", wait_ms, || while op.run(50 * MS).is_ok_and(|run| run != Run::Done) {}),
        }
        if let Answer::Acquire(acquire) = match op.finish().expect("done") {
            Ok(answer) => answer,
            Err(error) => return self.note_error(&error),
        } {
            if end == 1 && matches!(acquire, Acquire::Held(_)) {
                self.board.wrong("an op that was cancelled holds");
            }
            self.take(key, Ok(acquire), epoch, begun);
        }
    }

    fn cancel(&self, op: &mut Op) {
        self.board.count(Count::Cancelled);
        op.cancel();
        self.timed("a cancelled op", 0, || while op.run(50 * MS).is_ok_and(|run| run != Run::Done) {});
    }

    fn await_end(&self, key: usize) {
        let wait_ms = self.random.below(400);
        let wait = u32::try_from(wait_ms).expect("ms");
        match self.timed("await", wait_ms, || self.client.wait_for_end(&key_name(key), wait)) {
            Ok(Await::Over) => self.board.count(Count::Over),
            Ok(Await::Busy) => self.board.count(Count::StillBusy),
            Err(error) => self.note_error(&error),
        }
    }

    /// The lease ends at `until` at the earliest: counted from before the call, since this process may have been
    /// stopped behind it.
    fn hold(&self, key: usize, held: Held, epoch: u64, begun: u64) {
        let until = begun + (u64::from(held.waited_ms) + u64::from(held.left_ms)) * MS;
        let now = monotonic();
        let mut mine = Mine { key, held, epoch, until, written: None };
        if !self.has_epoch(&mine) {
            return self.release(&mine); // the server was ended meanwhile
        }
        if now < until {
            let before = self.board.guards[key].swap(word(until, epoch), SeqCst);
            if before & 0xff == epoch & 0xff && before & !0xff > now && monotonic() < until {
                let ms = ((before & !0xff) - now) / MS;
                self.board.wrong(&format!("key {key} was acquired {ms} ms before its holder's lease ends"));
            }
            mine.written = self.board.new_hold();
            if let Some(hold) = mine.written {
                hold.write(key, &held.token.0, epoch, now, until);
            }
        }
        self.nap(u64::from(ttl_ms(key)) / if self.random.one_in(20) { 1 } else { 30 });
        if self.random.one_in(3) {
            let other = key_name(self.random.index(KEYS)); // its command carries what is remembered
            let _ = self.timed("inspect", 0, || self.client.inspect(&other));
            self.board.count(Count::Inspected);
        }
        if self.random.one_in(3) {
            self.extend(&mut mine);
        }
        match self.random.below(30) {
            0 => self.board.count(Count::Forgotten),
            1..3 => {
                self.end(&mine);
                let _ = self.client.drop_hold(&key_name(key), &held.token.0);
                self.board.count(Count::Dropped);
            }
            _ => self.release(&mine),
        }
    }

    fn has_epoch(&self, mine: &Mine) -> bool {
        mine.epoch.is_multiple_of(2) && self.board.epoch.load(SeqCst) == mine.epoch
    }

    /// From now on it is not believed to be held.
    fn end(&self, mine: &Mine) {
        if let Some(hold) = mine.written {
            hold.ended.store(monotonic(), SeqCst);
        }
        let word = word(mine.until, mine.epoch);
        let _ = self.board.guards[mine.key].compare_exchange(word, 0, SeqCst, SeqCst);
    }

    fn extend(&self, mine: &mut Mine) {
        let (begun, ttl) = (monotonic(), ttl_ms(mine.key));
        let name = key_name(mine.key);
        match self.timed("extend", 0, || self.client.extend(&name, &mine.held.token.0, ttl)) {
            Ok(Verdict::Ok) => {
                self.board.count(Count::Extended);
                let until = begun + u64::from(ttl - ttl / 100 - 2) * MS;
                if until > mine.until && begun < mine.until && self.has_epoch(mine) {
                    self.lengthen(mine, until);
                }
            }
            Ok(_) if monotonic() < mine.until && self.has_epoch(mine) => {
                self.board.wrong(&format!("key {}: extend was refused during the lease", mine.key));
            }
            Ok(_) => self.board.count(Count::ExtendedLate),
            Err(error) => self.note_error(&error),
        }
    }

    fn lengthen(&self, mine: &mut Mine, until: u64) {
        let (old, new) = (word(mine.until, mine.epoch), word(until, mine.epoch));
        if self.board.guards[mine.key].compare_exchange(old, new, SeqCst, SeqCst).is_ok() {
            mine.until = until;
            if let Some(hold) = mine.written {
                hold.until.store(until, SeqCst);
            }
        } else if monotonic() < until && self.has_epoch(mine) && mine.written.is_some() {
            self.board.wrong(&format!("key {}: extended, and another came in between", mine.key));
        }
    }

    fn release(&self, mine: &Mine) {
        self.end(mine);
        self.stale.set(Some((mine.key, mine.held.token.0)));
        let name = key_name(mine.key);
        match self.timed("release", 0, || self.client.release(&name, &mine.held.token.0)) {
            Ok(Verdict::Ok) => self.board.count(Count::Released),
            Ok(verdict) if monotonic() < mine.until && self.has_epoch(mine) => {
                self.board.wrong(&format!("key {}: release said {verdict:?} during the lease", mine.key));
            }
            Ok(_) => self.board.count(Count::ReleasedLate),
            Err(error) => self.note_error(&error),
        }
    }
}

fn word(until: u64, epoch: u64) -> u64 {
    until & !0xff | epoch & 0xff
}
