//! A worker: takes, uses, extends, gives away, loses and forgets locks, and checks every answer it gets.

use super::board::{Board, Count, Doing, KEYS, OFFER_GIVEN, OFFER_NONE, OFFER_SHOWN, Offer, Wrong};
use super::plan::{Plan, TABLE, access};
use super::random::Random;
use super::sleep::Watch;
use super::steps::Steps;
use super::{chaos, sys};
use buflock::answer::{Acquire, Await, Held, Verdict};
use buflock::client::Client;
use buflock::error::Error;
use buflock::hooks;
use buflock::key::KeyHash;
use buflock::policy::NS_PER_MS;
use buflock::shm::clock::futex_wait;
use buflock::shm::slot::{Attempt, Owner, State, UNIT_SHIFT};
use buflock::shm::table::Table;
use buflock::sys::Slept;
use buflock::token::Token;
use std::fmt::Display;
use std::path::Path;
use std::sync::atomic::Ordering::{Relaxed, SeqCst};

/// Half of the work is on so many keys.
const HOT: usize = 6;
/// Leases, in ms: some run out in use, most do not.
const LEASES: [u32; 3] = [1, 5, 30];
/// What a holder adds to its lease when it extends it.
const MORE_MS: u32 = 10;
/// The lease that others give a hold: longer than what its holder may believe to have, so it never ends before that.
const LONGEST_MS: u32 = 45;
/// How long is waited. Longer than the slice, so that sleeps of several slices occur.
const WAIT_MS: u32 = 60;
const AWAIT_MS: u32 = 30;
/// In a calm run neither leases nor waits nor slices end anything: only wake-ups do.
const CALM_MS: u32 = 20_000;
/// Locks that are taken at once and forgotten, so that the table fills up: then slots with waiters and slots that were
/// held are bound anew, and sometimes there is none.
const FLOOD: usize = 40;
/// Tokens of former holds that are kept.
const STALE: usize = 32;

/// The longest lease that anybody asks for in a run.
pub fn longest_ms(calm: bool) -> u32 {
    if calm { 2 * CALM_MS } else { LONGEST_MS }
}

/// The name of key number `key`.
pub fn key_name(key: usize) -> Vec<u8> {
    format!("key-{key}").into_bytes()
}

/// A lease's end in units: between the two.
#[derive(Clone, Copy)]
struct Lease {
    least: u64,
    most: u64,
}

impl Lease {
    /// Of a lease of `ttl_ms` that began between two times in ns.
    fn of(ttl_ms: u32, from: u64, to: u64) -> Self {
        let end = |begin: u64| (begin + u64::from(ttl_ms) * NS_PER_MS).div_ceil(1 << UNIT_SHIFT);
        Self { least: end(from), most: end(to) }
    }
}

/// A lock that this worker has.
struct Hold {
    key: usize,
    token: Token,
    slot: u32,
    owner: Owner,
    ttl_ms: u32,
    lease: Lease,
    /// Counted from the table's first.
    fence: u64,
    /// Number of its event.
    event: u64,
    /// Others may have extended it.
    shown: bool,
}

struct Worker {
    board: &'static Board,
    me: usize,
    workers: usize,
    calm: bool,
    aim: bool,
    client: Client,
    table: &'static Table,
    keys: Vec<Vec<u8>>,
    hashes: Vec<KeyHash>,
    random: Random,
    /// Tokens whose holds are over for certain.
    stale: Vec<(usize, Token)>,
}

/// Plays worker `me` on the table in `dir` until it is killed.
pub fn play(board: &'static Board, plan: &Plan, dir: &Path, me: usize, seed: u64) -> i32 {
    plan.plant();
    if plan.calm {
        hooks::set_slice(u64::from(CALM_MS) * NS_PER_MS);
    }
    let (url, settings) = access(dir, plan.buckets);
    let opened = Client::new(&url, settings.clone()).and_then(|client| Ok((client, Table::attach(TABLE, &settings)?)));
    let (client, table) = match opened {
        Ok((client, table)) => (client, &*Box::leak(table)),
        Err(error) => {
            fail(board, me, &error);
            return 0;
        }
    };
    let keys: Vec<_> = (0..KEYS).map(key_name).collect();
    let hashes: Vec<_> = keys.iter().map(|key| table.hash(key)).collect();
    board.doing[me].process.store(sys::thread_id(), SeqCst);
    board.doing[me].sleep_ends(); // its former process may have been killed in one
    Watch { board, me, workers: plan.workers, table, hashes: hashes.clone(), calm: plan.calm }.begin();
    chaos::begin(board, plan, me, table.clock(), seed ^ 1);
    let (workers, calm, aim, random) = (plan.workers, plan.calm, plan.aim, Random::new(seed));
    let stale = Vec::new();
    let mut worker = Worker { board, me, workers, calm, aim, client, table, keys, hashes, random, stale };
    loop {
        worker.step();
    }
}

/// A call failed that may not.
fn fail(board: &Board, me: usize, error: &dyn Display) {
    eprintln!("worker {me}: {error}");
    board.report(Wrong::Failed, [me as u64, 0, 0]);
}

/// Slot and owner word.
pub fn parts(token: &Token) -> (u32, Owner) {
    let (high, low) = Token::parse(&token.0).expect("a token of the library's making");
    (u32::try_from(high >> 32).expect("a half"), Owner(low))
}

impl Worker {
    fn step(&mut self) {
        self.pause();
        if self.random.one_in(4) {
            self.try_stale_token();
        }
        if self.random.one_in(8) {
            self.take_offer();
        }
        let key = self.pick_key();
        self.doing().key.store(key as u64, SeqCst);
        if !self.calm && self.random.one_in(400) {
            self.flood();
        } else if self.random.one_in(12) {
            self.await_end(key);
        } else if self.random.one_in(if self.calm { 4 } else { 24 }) {
            self.wait_and_leave(key);
        } else if let Some(hold) = self.acquire(key, if self.calm { CALM_MS } else { WAIT_MS }) {
            self.use_hold(hold);
        }
    }

    fn flood(&self) {
        self.count(Count::Floods);
        for _ in 0..FLOOD {
            if let Some(hold) = self.acquire(self.random.index(KEYS), 0) {
                self.record_lease(&hold);
                self.raise_fence(&hold);
            }
        }
    }

    fn doing(&self) -> &'static Doing {
        &self.board.doing[self.me]
    }

    fn now(&self) -> u64 {
        self.table.clock().now()
    }

    /// Whether a call is made in steps. In calm runs none is: they are about futexes.
    fn in_steps(&self, one_in: u64) -> bool {
        !self.calm && self.random.one_in(one_in)
    }

    fn steps(&self) -> Steps<'_> {
        Steps { board: self.board, me: self.me, client: &self.client, table: self.table, random: &self.random }
    }

    fn units(&self) -> u64 {
        self.now() >> UNIT_SHIFT
    }

    fn count(&self, count: Count) {
        self.board.add(self.me, count, 1);
    }

    fn report(&self, wrong: Wrong, key: usize, more: [u64; 2]) {
        self.board.report(wrong, [key as u64, more[0], more[1]]);
    }

    /// The answer of a release or an extend.
    fn answered(&self, answer: Result<Verdict, Error>) -> Verdict {
        answer.unwrap_or_else(|error| {
            fail(self.board, self.me, &error);
            Verdict::Expired
        })
    }

    fn extend(&self, key: usize, token: &Token, ttl_ms: u32) -> Verdict {
        self.answered(if self.in_steps(4) {
            self.steps().extend(&self.keys[key], token, ttl_ms)
        } else {
            self.client.extend(&self.keys[key], &token.0, ttl_ms)
        })
    }

    fn release(&self, key: usize, token: &Token) -> Verdict {
        self.answered(if self.in_steps(4) {
            self.steps().release(&self.keys[key], token)
        } else {
            self.client.release(&self.keys[key], &token.0)
        })
    }

    fn pause(&self) {
        let idle = &self.doing().idle;
        idle.store(0, SeqCst); // before the look: who calls the pause sees that, or we see the pause
        while self.board.pause.load(SeqCst) != 0 {
            idle.store(1, SeqCst);
            sys::nap(1000);
            idle.store(0, SeqCst);
        }
    }

    /// Hot keys, cold keys, and keys that all workers turn to in the same millisecond: those are bound by several at
    /// once.
    fn pick_key(&self) -> usize {
        match self.random.below(4) {
            0 | 1 => self.random.index(HOT),
            2 => self.random.index(KEYS),
            _ => Random::new(self.now() >> 20).index(KEYS),
        }
    }

    /// A token whose hold is over neither extends nor releases anything, nor counts for another key.
    fn try_stale_token(&mut self) {
        if self.stale.is_empty() {
            return;
        }
        self.count(Count::StaleTried);
        let (key, token) = self.stale[self.random.index(self.stale.len())];
        let facts = [parts(&token).1.0, 0];
        if self.random.one_in(2) {
            if self.extend(key, &token, longest_ms(self.calm)) == Verdict::Ok {
                self.report(Wrong::StaleExtended, key, facts);
            }
        } else if self.release(key, &token) == Verdict::Ok {
            self.report(Wrong::StaleReleased, key, facts);
        }
        self.try_other_key(key, &token);
        if self.stale.len() > STALE {
            self.stale.clear();
        }
    }

    /// A token, be its hold over or not, does not count for another key.
    fn try_other_key(&self, key: usize, token: &Token) {
        let other = (key + 1 + self.random.index(KEYS - 1)) % KEYS;
        let (slot, owner) = parts(token);
        let counts = self.table.slots().holds(&self.hashes[other], slot, owner);
        if counts || self.random.one_in(4) && self.release(other, token) == Verdict::Ok {
            self.report(Wrong::OtherKeysToken, other, [owner.0, 0]);
        }
    }

    /// The hold of a key that runs at this moment: slot, owner word, end.
    fn standing(&self, key: usize) -> Option<(u32, Owner, u64)> {
        let seen = self.table.slots().holding(&self.hashes[key])?;
        let owner = self.table.slots().owner(seen)?;
        Some((seen.slot, owner, seen.word.until()))
    }

    fn await_end(&self, key: usize) {
        let wait_ms = if self.calm { CALM_MS } else { AWAIT_MS };
        let (before, called) = (self.standing(key), self.now());
        let answer = if self.in_steps(2) {
            self.steps().await_end(&self.keys[key], wait_ms)
        } else {
            Some(self.client.wait_for_end(&self.keys[key], wait_ms))
        };
        let Some(answer) = answer else { return };
        match answer {
            Ok(Await::Busy) => {
                self.count(Count::AwaitBusy);
                self.check_waited(key, wait_ms, called);
            }
            Ok(Await::Over) => {
                self.count(Count::AwaitOver);
                // One hold that stood before and stands after the call stood all the time.
                if let (Some((slot, owner, _)), Some((same_slot, same_owner, end))) = (before, self.standing(key))
                    && (slot, owner) == (same_slot, same_owner)
                    && self.units() < end
                {
                    self.report(Wrong::BadAwait, key, [owner.0, 0]);
                }
            }
            Err(error) => fail(self.board, self.me, &error),
        }
    }

    fn check_waited(&self, key: usize, wait_ms: u32, called: u64) {
        let waited = self.now() - called;
        if waited < u64::from(wait_ms) * NS_PER_MS {
            self.report(Wrong::GaveUpEarly, key, [u64::from(wait_ms), waited / 1000]);
        }
    }

    /// An acquirer that is cancelled in its sleep, as the host of an event loop may do: it leaves without another try.
    fn wait_and_leave(&self, key: usize) {
        let (slots, hash) = (self.table.slots(), &self.hashes[key]);
        let seen = match self.table.acquire(hash, LONGEST_MS, false) {
            Attempt::Busy(seen) => seen,
            Attempt::Held(hold) => return self.table.undo(hash, hold),
            Attempt::Contended | Attempt::Full => return,
        };
        let futex = &slots.slot(seen.slot).acquirers;
        let Some(rings) = slots.arm(seen, futex) else { return };
        self.count(Count::Left);
        let wait_ms = if self.calm { CALM_MS } else { AWAIT_MS };
        self.doing().sleep_begins();
        let woken =
            futex_wait(futex, rings, self.table.clock(), self.now() + u64::from(wait_ms) * NS_PER_MS) == Slept::Woken;
        self.doing().sleep_ends();
        if woken {
            self.count(Count::PassedOn);
            slots.pass_on(seen.slot);
        }
    }

    fn acquire(&self, key: usize, wait_ms: u32) -> Option<Hold> {
        let ttl_ms = if self.calm { CALM_MS } else { LEASES[self.random.index(LEASES.len())] };
        let called = self.now();
        let answer = if self.in_steps(4) {
            self.steps().acquire((&self.keys[key], &self.hashes[key]), ttl_ms, wait_ms)?
        } else {
            self.client.acquire(&self.keys[key], ttl_ms, wait_ms)
        };
        let held = match answer {
            Ok(Acquire::Held(held)) => held,
            Ok(Acquire::Busy(_)) => {
                self.count(Count::Busy);
                self.check_waited(key, wait_ms, called);
                return None;
            }
            Err(Error::Full { .. }) => {
                self.count(Count::Full);
                return None;
            }
            Err(error) => {
                fail(self.board, self.me, &error);
                return None;
            }
        };
        let returned = self.now();
        self.count(Count::Acquired);
        self.board.raise(self.me, Count::LongestWaitUs, (returned - called) / 1000);
        let (slot, owner) = parts(&held.token);
        let lease = self.lease(slot, owner, ttl_ms);
        let fence = held.fence - self.table.segment.header.created;
        let event = self.write_down(key, fence, lease, called, returned);
        self.check_owner(key, &held, lease);
        Some(Hold { key, token: held.token, slot, owner, ttl_ms, lease, fence, event, shown: false })
    }

    /// The lease that a fresh hold has: by its word, or, should that be gone, by the time unit in its owner word.
    fn lease(&self, slot: u32, owner: Owner, ttl_ms: u32) -> Lease {
        let word = self.table.slots().word(slot);
        if word.state() == State::Held && u64::from(word.seq()) == owner.0 & 0xffff {
            return Lease { least: word.until(), most: word.until() };
        }
        let now = self.units();
        let since = now - ((now & 0xffff_ffff).wrapping_sub(u64::from(owner.since())) & 0xffff_ffff);
        Lease::of(ttl_ms, since << UNIT_SHIFT, ((since + 1) << UNIT_SHIFT) - 1)
    }

    fn write_down(&self, key: usize, fence: u64, lease: Lease, called: u64, returned: u64) -> u64 {
        let Some((number, event)) = self.board.new_event(self.me) else { return 0 };
        event.key.store(key as u64, Relaxed);
        event.fence.store(fence, Relaxed);
        event.called.store(called, Relaxed);
        event.end.store(lease.least << UNIT_SHIFT, Relaxed);
        event.returned.store(returned, SeqCst);
        number
    }

    /// The owner word is right from the moment acquire returns.
    fn check_owner(&self, key: usize, held: &Held, lease: Lease) {
        let (slot, owner) = parts(&held.token);
        if !self.table.slots().holds(&self.hashes[key], slot, owner) && self.units() < lease.least {
            let found = self.table.slots().slot(slot).owner.load(SeqCst);
            self.report(Wrong::BadOwnerWord, key, [owner.0, found]);
        }
    }

    fn use_hold(&mut self, mut hold: Hold) {
        self.record_lease(&hold);
        let live = self.raise_fence(&hold);
        if self.random.one_in(4) {
            self.offer(&hold, OFFER_SHOWN);
            hold.shown = true;
        }
        if live {
            self.write_guarded(&hold);
        }
        if self.random.one_in(16) {
            self.try_other_key(hold.key, &hold.token);
        }
        if self.random.one_in(16) {
            self.extend_own(&mut hold);
        }
        if self.in_steps(32) {
            self.steps().forget_extend(&self.keys[hold.key], &hold.token, 1);
        }
        match self.random.below(400) {
            0 | 1 if !self.calm => {
                self.count(Count::Abandoned);
                self.withdraw_offer(&hold);
            }
            4..=9 if !self.calm => {
                self.count(Count::Given);
                self.offer(&hold, OFFER_GIVEN);
            }
            2 | 3 if !self.calm => {
                self.count(Count::Overstayed);
                sys::nap(u64::from(hold.ttl_ms) * 1000 + 500);
                self.release_own(&hold);
            }
            _ => self.release_own(&hold),
        }
    }

    /// Says that the lock is held until the lease's end; nobody else may say so still.
    fn record_lease(&self, hold: &Hold) {
        let earlier = self.board.cells[hold.key].end.swap(hold.lease.least, SeqCst);
        let now = self.units();
        if now < hold.lease.least && earlier > now {
            self.report(Wrong::TwoHolders, hold.key, [earlier, now]);
        }
    }

    /// A resource that knows fence numbers: it is raised first, and from then on no earlier holder can write. False:
    /// a later holder was here, since our lease is over.
    fn raise_fence(&self, hold: &Hold) -> bool {
        let guarded = &self.board.cells[hold.key].guarded;
        loop {
            let old = guarded.load(SeqCst);
            if old >> 32 >= hold.fence {
                if self.units() < hold.lease.least {
                    self.report(Wrong::FenceTooLow, hold.key, [old >> 32, hold.fence]);
                }
                self.count(Count::Fenced);
                return false;
            }
            let new = hold.fence << 32 | old & 0xffff_ffff;
            if guarded.compare_exchange(old, new, SeqCst, SeqCst).is_ok() {
                return true;
            }
        }
    }

    /// Adds one to what the lock guards, in two steps between which nobody may come.
    fn write_guarded(&self, hold: &Hold) {
        let guarded = &self.board.cells[hold.key].guarded;
        self.count(Count::Attempted);
        let old = guarded.load(SeqCst);
        if self.random.one_in(if self.aim { 4 } else { 64 }) {
            sys::nap(self.random.below(2000));
        } else if self.random.one_in(8) {
            std::thread::yield_now();
        }
        let own = old >> 32 == hold.fence;
        if own && guarded.compare_exchange(old, old + 1, SeqCst, SeqCst).is_ok() {
            self.count(Count::Done);
            return;
        }
        if self.units() < hold.lease.least {
            self.report(Wrong::GuardLost, hold.key, [hold.fence, guarded.load(SeqCst) >> 32]);
        }
        self.board.take_back(self.me, Count::Attempted);
        self.count(Count::Fenced);
    }

    fn extend_own(&self, hold: &mut Hold) {
        let ttl_ms = hold.ttl_ms + MORE_MS;
        let before = self.now();
        if self.extend(hold.key, &hold.token, ttl_ms) != Verdict::Ok {
            if self.units() < hold.lease.least {
                self.report(Wrong::ExtendRefused, hold.key, [hold.owner.0, hold.lease.least]);
            }
            return;
        }
        self.count(Count::Extended);
        if !hold.shown && before >> UNIT_SHIFT >= hold.lease.most {
            self.report(Wrong::LateExtend, hold.key, [hold.lease.most, before >> UNIT_SHIFT]);
        }
        let lease = Lease::of(ttl_ms, before, self.now());
        self.prolong(hold.key, hold.lease.least, lease.least, hold.event);
        hold.lease = lease;
    }

    /// Writes a new end where the old one stands.
    fn prolong(&self, key: usize, old: u64, new: u64, event: u64) {
        let _ = self.board.cells[key].end.compare_exchange(old, new, SeqCst, SeqCst);
        if let Some(event) = self.board.event(event) {
            event.end.store(new << UNIT_SHIFT, SeqCst);
        }
    }

    /// Says that the hold may end from now on.
    fn about_to_release(&self, key: usize, end: u64, event: u64) {
        let _ = self.board.cells[key].end.compare_exchange(end, 0, SeqCst, SeqCst);
        if let Some(event) = self.board.event(event) {
            event.release_called.store(self.now(), SeqCst);
        }
    }

    fn release_own(&mut self, hold: &Hold) {
        self.about_to_release(hold.key, hold.lease.least, hold.event);
        let before = self.units();
        let verdict = if self.in_steps(16) {
            self.steps().forget_release(&self.keys[hold.key], &hold.token);
            None
        } else {
            Some(self.release(hold.key, &hold.token))
        };
        self.withdraw_offer(hold);
        match verdict {
            Some(Verdict::Ok) if !hold.shown && before >= hold.lease.most => {
                self.report(Wrong::LateRelease, hold.key, [hold.lease.most, before]);
            }
            None | Some(Verdict::Ok) => {}
            _ if self.units() < hold.lease.least => {
                self.report(Wrong::ReleaseRefused, hold.key, [hold.owner.0, hold.lease.least]);
            }
            Some(Verdict::Expired) => self.count(Count::ReleaseExpired),
            Some(Verdict::Taken) => self.count(Count::ReleaseTaken),
        }
        if self.table.slots().holds(&self.hashes[hold.key], hold.slot, hold.owner) {
            self.report(Wrong::DeadTokenHolds, hold.key, [hold.owner.0, 0]);
        }
        self.stale.push((hold.key, hold.token));
    }

    /// Shows a hold to the others.
    fn offer(&self, hold: &Hold, kind: u64) {
        let offer = &self.board.offers[self.me];
        let version = next_version(offer.state.load(SeqCst));
        offer.state.store(version | OFFER_NONE, SeqCst);
        let (high, low) = Token::parse(&hold.token.0).expect("a token");
        offer.key.store(hold.key as u64, SeqCst);
        offer.end.store(hold.lease.least, SeqCst);
        offer.event.store(hold.event, SeqCst);
        offer.token[0].store(high, SeqCst);
        offer.token[1].store(low, SeqCst);
        offer.state.store(next_version(version) | kind, SeqCst);
    }

    fn withdraw_offer(&self, hold: &Hold) {
        if hold.shown {
            let state = &self.board.offers[self.me].state;
            state.store(next_version(state.load(SeqCst)), SeqCst);
        }
    }

    /// Somebody else's hold: extends it while he holds it, or takes over one that was given away.
    fn take_offer(&mut self) {
        let offer = &self.board.offers[self.random.index(self.workers)];
        let state = offer.state.load(SeqCst);
        let Some((key, token, end, event)) = read_offer(offer, state) else { return };
        match state & 3 {
            OFFER_SHOWN => {
                let verdict = self.extend(key, &token, longest_ms(self.calm));
                self.count(if verdict == Verdict::Ok { Count::ExtendedByOther } else { Count::OtherTooLate });
            }
            OFFER_GIVEN if offer.state.compare_exchange(state, next_version(state), SeqCst, SeqCst).is_ok() => {
                self.use_given(key, token, end, event);
            }
            _ => {}
        }
    }

    fn use_given(&mut self, key: usize, token: Token, mut end: u64, event: u64) {
        let owner = parts(&token).1;
        let before = self.now();
        if self.extend(key, &token, longest_ms(self.calm)) == Verdict::Ok {
            self.count(Count::GivenExtended);
            let longer = Lease::of(longest_ms(self.calm), before, before).least;
            self.prolong(key, end, longer, event);
            end = longer;
        } else {
            self.count(Count::GivenTooLate);
            if self.units() < end {
                self.report(Wrong::GivenExtendRefused, key, [owner.0, end]);
            }
        }
        if self.random.one_in(8) {
            return; // forgotten
        }
        self.about_to_release(key, end, event);
        let verdict = self.release(key, &token);
        if verdict != Verdict::Ok && self.units() < end {
            self.report(Wrong::GivenReleaseRefused, key, [owner.0, end]);
        }
        self.count(Count::GivenReleased);
        self.stale.push((key, token));
    }
}

/// The version after this one, with nothing offered.
fn next_version(state: u64) -> u64 {
    (state | 3) + 1
}

/// Key, token, end and event of an offer. None: it changed while it was read.
fn read_offer(offer: &Offer, state: u64) -> Option<(usize, Token, u64, u64)> {
    let key = usize::try_from(offer.key.load(SeqCst)).ok()?;
    let token = Token::from_halves(offer.token[0].load(SeqCst), offer.token[1].load(SeqCst));
    let (end, event) = (offer.end.load(SeqCst), offer.event.load(SeqCst));
    (key < KEYS && offer.state.load(SeqCst) == state).then_some((key, token, end, event))
}
