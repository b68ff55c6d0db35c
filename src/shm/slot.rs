//! The slot protocol: how processes that share nothing but memory take, keep and hand on a lock.
//!
//! A table is an array of buckets of slots. Every shared datum is one atomic; there is no table lock and nothing to
//! repair, so a process that is killed or stopped between any two instructions blocks nobody beyond its lease, or
//! about a millisecond while it binds a key to a slot.
//!
//! ```text
//!             bind                                  publish            unique
//!  EMPTY, FREE (other key), HELD (run out) --> CLAIM -- key words --> PENDING -- fence, rescan --> HELD
//!       ^                                        | overdue: anyone       | loser gives up, is killed  |
//!       |                                        +------> EMPTY <--------+                            |
//!       |  bind                                                                                       |
//!     FREE <------------------------------ release: CAS on the judged word --------------------- HELD <-+
//!       +------------ acquire again: one CAS ------------------------------------------------------> ^  |
//!                    HELD, now >= until: steal = CAS on the exact word that was judged --------------+  |
//!                    HELD: extend = CAS on the word with a new `until` --------------------------------+
//! ```
//!
//! What holds at all times, with the reason:
//!
//! 1. For each key at most one slot is FREE or HELD with it. Who binds a key publishes PENDING, fences, and looks at
//!    the whole window: of two that bind the same key at least one sees the other; the lower slot kills the higher.
//! 2. A PENDING, FREE or HELD slot carries the key of whoever published that PENDING: key words change only by CAS from
//!    a value that was read *before* the claim was seen still standing, and their tags do not repeat.
//! 3. HELD with `now < until` ends only by a release that names the hold. So no two hold an unexpired lock.
//! 4. A word never comes back (no ABA), nor does the tag of a key word: each comes from a clock read after the word that
//!    it replaces and before the CAS, and 65,536 transitions cannot happen in one 131 us unit. So do not coarsen the
//!    unit or the clock, and do not read it earlier.
//! 5. A token names the *hold* by the owner word O, written before acquire returns; O counts only while its sequence
//!    number is the word's. Between a take and its O the slot still shows the last holder's O.
//! 6. Nobody sleeps on a key that nobody holds, but for a kill between a release and its wake-up: then until the slice
//!    ends, which bounds every sleep.
//!
//! Time is in nanoseconds of the initial time namespace's CLOCK_MONOTONIC; words keep it in units of 2^17 ns.

use super::atomics::{Atomic, Atomics};
use crate::answer::Verdict;
use crate::hooks::{self, Mutant, Point, mutant, point};
use crate::key::KeyHash;
use std::sync::atomic::Ordering::{AcqRel, Acquire, Relaxed, Release, SeqCst};

/// log2 of a time unit in nanoseconds: 131 us. Seconds would break invariant 4, and so would milliseconds.
pub const UNIT_SHIFT: u32 = 17;

/// Units until an unfinished CLAIM or PENDING may be taken over: about 1 ms.
const CLAIM_UNITS: u64 = 8;

/// The state of a slot.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum State {
    /// Bound to no key.
    Empty,
    /// Bound to a key that nobody holds.
    Free,
    /// Held until the word's time.
    Held,
    /// Bound, but perhaps not alone: the check for a twin is running.
    Pending,
    /// Its key words are being written.
    Claim,
    /// Not a state: the table is damaged here. Such a slot is left alone.
    Damaged,
}

/// A slot's word W: `until:43 | seq:16 | reserved:1 | waiters:1 | state:3`.
///
/// `until` is a time in units: of HELD when the lease ends; of FREE when it was released (so the oldest is replaced
/// first); of CLAIM and PENDING when others may take over. `seq` grows by one at each transition, but not when a hold
/// is extended or the waiters bit changes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Word(pub u64);

impl Word {
    const WAITERS: u64 = 1 << 3;
    const SEQ_SHIFT: u32 = 5;
    const UNTIL_SHIFT: u32 = 21;

    /// A word without waiters.
    #[inline]
    pub fn new(until: u64, seq: u16, state: State) -> Self {
        let state = match state {
            State::Empty => 0,
            State::Free => 1,
            State::Held => 2,
            State::Pending => 3,
            State::Claim => 4,
            State::Damaged => 7,
        };
        Self(until << Self::UNTIL_SHIFT | u64::from(seq) << Self::SEQ_SHIFT | state)
    }

    /// The state.
    #[inline]
    pub fn state(self) -> State {
        match self.0 & 7 {
            0 => State::Empty,
            1 => State::Free,
            2 => State::Held,
            3 => State::Pending,
            4 => State::Claim,
            _ => State::Damaged,
        }
    }

    /// The time, in units.
    #[inline]
    pub fn until(self) -> u64 {
        self.0 >> Self::UNTIL_SHIFT
    }

    /// The sequence number.
    #[inline]
    #[allow(clippy::cast_possible_truncation)] // 16 bits are what it has
    pub fn seq(self) -> u16 {
        (self.0 >> Self::SEQ_SHIFT) as u16
    }

    /// Whether somebody may sleep on this slot.
    #[inline]
    pub fn waiters(self) -> bool {
        self.0 & Self::WAITERS != 0
    }

    /// The word that follows this one: the next sequence number, and the waiters bit kept.
    #[inline]
    fn next(self, until: u64, state: State) -> Self {
        Self::new(until, self.seq().wrapping_add(1), state).with_waiters(self.waiters())
    }

    #[inline]
    fn with_waiters(self, waiters: bool) -> Self {
        if waiters { Self(self.0 | Self::WAITERS) } else { Self(self.0 & !Self::WAITERS) }
    }

    /// The same hold with another end.
    #[inline]
    fn extended(self, until: u64) -> Self {
        Self(self.0 & ((1 << Self::UNTIL_SHIFT) - 1) | until << Self::UNTIL_SHIFT)
    }
}

/// The owner word O: `member:16 | since:32 | seq:16`.
///
/// It names one hold of a slot: `since` is the low half of the time unit of the take, and `(since, seq)` repeats in a
/// slot only after 6.5 days to the unit. A fence number would not do: counters belong to keys, and two keys that use
/// one slot in turn can show the same one.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Owner(pub u64);

impl Owner {
    /// A holder without a member record: its process is not known.
    pub const NO_RECORD: u16 = u16::MAX;

    /// The owner word of a hold taken in time unit `since` with sequence number `seq`.
    #[inline]
    pub fn new(member: u16, since: u64, seq: u16) -> Self {
        Self(u64::from(member) << 48 | (since & 0xffff_ffff) << 16 | u64::from(seq))
    }

    /// The holder's member record, counted from 1; 0 is no holder, [`Self::NO_RECORD`] an unknown one.
    #[inline]
    pub fn member(self) -> u16 {
        (self.0 >> 48) as u16
    }

    /// The low half of the time unit of the take.
    #[inline]
    #[allow(clippy::cast_possible_truncation)] // 32 bits are what it has
    pub fn since(self) -> u32 {
        (self.0 >> 16) as u32
    }

    #[inline]
    #[allow(clippy::cast_possible_truncation)] // 16 bits are what it has
    fn seq(self) -> u16 {
        self.0 as u16
    }
}

/// One slot: 64 bytes, a cache line.
#[repr(C, align(64))]
pub struct Slot<A: Atomics> {
    /// W, a [`Word`].
    pub word: A::U64,
    /// `tag of the key:32 | time unit of the claim:32`.
    pub key: [A::U64; 3],
    /// O, an [`Owner`].
    pub owner: A::U64,
    /// Futex of blocking acquirers: counts rings.
    pub acquirers: A::U32,
    /// Futex of blocking awaiters: counts rings.
    pub awaiters: A::U32,
    /// One bit per member whose event loop waits for this slot.
    pub bells: A::U64,
    /// For later use; zero.
    pub reserved: A::U64,
}

/// A bucket: 64 bytes, then `N` slots.
#[repr(C, align(64))]
pub struct Bucket<A: Atomics, const N: usize> {
    /// The last fence number given to a key whose first bucket this is.
    pub fence: A::U64,
    /// For later use; zero.
    pub reserved: [A::U64; 7],
    /// The slots.
    pub slots: [Slot<A>; N],
}

/// What the protocol asks of the process it runs in.
pub trait Host {
    /// The atomics of the table.
    type Atomics: Atomics;
    /// How often binding starts over before an acquire answers [`Attempt::Contended`].
    const RESTARTS: u32 = 64;
    /// The time, in nanoseconds.
    fn now(&self) -> u64;
    /// Wakes at most `most` sleepers of a futex and says how many there were.
    fn wake(&self, futex: &<Self::Atomics as Atomics>::U32, most: u32) -> u32;
    /// Raises the mailboxes of the members whose bits are set.
    fn ring(&self, bells: u64);
    /// Counts something that seldom happens.
    fn count(&self, event: Event);
}

/// What is worth counting.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Event {
    /// A lock was taken over from a holder whose lease had run out.
    Steal,
    /// A slot was taken over from a process that did not finish binding a key.
    Takeover,
    /// A new key found no slot.
    Full,
    /// A lease ended before its acquire could return.
    LostBeforeOwner,
}

/// What an acquire wants.
#[derive(Clone, Copy, Debug)]
pub struct Wish {
    /// Length of the lease in nanoseconds.
    pub ttl: u64,
    /// The caller's member record, counted from 1, or [`Owner::NO_RECORD`].
    pub member: u16,
    /// Whether the caller has slept for this key: then others may sleep still.
    pub slept: bool,
}

/// A lock that was taken.
#[derive(Clone, Copy, Debug)]
pub struct Hold {
    /// The slot's number, counted through all buckets.
    pub slot: u32,
    /// What names this hold.
    pub owner: Owner,
    /// When the lease ends, in units.
    pub until: u64,
    /// When it was taken, in nanoseconds.
    pub at: u64,
    /// Grows with every holder of the key.
    pub fence: u64,
}

/// A slot as it was seen.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Seen {
    /// The slot's number.
    pub slot: u32,
    /// Its word.
    pub word: Word,
}

/// What one try to acquire came to.
#[derive(Clone, Copy, Debug)]
pub enum Attempt {
    /// Taken.
    Held(Hold),
    /// Another hold stands.
    Busy(Seen),
    /// Too many others bind keys in the same buckets at this moment.
    Contended,
    /// No slot is to be had.
    Full,
}

/// The slots of a table, seen by one process.
pub struct Slots<'a, H: Host, const N: usize> {
    buckets: &'a [Bucket<H::Atomics, N>],
    host: &'a H,
}

/// Why the slot found for a new key may be taken. Ordered: the least comes first.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
enum Rank {
    Empty,
    Overdue,
    Free(u64),
    /// Only when the window has nothing better: it was held, or somebody still looks at it.
    RunOut,
    FreeWithWaiters,
}

/// How binding a key to a slot ended.
enum Bound {
    Held(Hold),
    Again,
    Full,
}

impl<'a, H: Host, const N: usize> Slots<'a, H, N> {
    /// The view of `buckets`, of which there is at least one.
    #[inline]
    pub fn new(buckets: &'a [Bucket<H::Atomics, N>], host: &'a H) -> Self {
        Self { buckets, host }
    }

    /// The number of slots.
    #[inline]
    #[allow(clippy::cast_possible_truncation)] // a table has fewer than 2^32 slots: checked when it is attached
    pub fn count(&self) -> u32 {
        (self.buckets.len() * N) as u32
    }

    /// Slot `slot`, which is below [`Self::count`].
    #[inline]
    pub fn slot(&self, slot: u32) -> &'a Slot<H::Atomics> {
        &self.buckets[slot as usize / N].slots[slot as usize % N]
    }

    /// The word of a slot.
    #[inline]
    pub fn word(&self, slot: u32) -> Word {
        Word(self.slot(slot).word.load(Acquire))
    }

    #[inline]
    fn units(&self) -> u64 {
        self.host.now() >> UNIT_SHIFT
    }

    #[inline]
    fn cas(&self, slot: u32, old: Word, new: Word) -> bool {
        self.slot(slot).word.compare_exchange(old.0, new.0, AcqRel, Relaxed).is_ok()
    }

    /// The slots in which a key may live.
    #[inline]
    #[allow(clippy::cast_possible_truncation)] // N is small
    fn window(&self, key: &KeyHash) -> impl Iterator<Item = u32> + use<H, N> {
        let size = N as u32;
        let (first, second) = (key.first * size, key.second * size);
        let other = if key.first == key.second { 0 } else { size };
        (first..first + size).chain(second..second + other)
    }

    #[inline]
    fn matches(slot: &Slot<H::Atomics>, key: &KeyHash) -> bool {
        slot.key.iter().zip(key.tags).all(|(word, tag)| word.load(Relaxed) >> 32 == u64::from(tag))
    }

    /// A slot's word, and whether that word stood over `key`: a seqlock on the word itself.
    #[inline]
    fn peek(&self, slot: u32, key: &KeyHash) -> (Word, bool) {
        let cells = self.slot(slot);
        let mut round = 0;
        loop {
            let word = Word(cells.word.load(Acquire));
            if matches!(word.state(), State::Empty | State::Claim | State::Damaged) {
                return (word, false);
            }
            let matches = Self::matches(cells, key);
            H::Atomics::fence(Acquire);
            if cells.word.load(Relaxed) == word.0 {
                return (word, matches);
            }
            H::Atomics::pause(round);
            round += 1;
        }
    }

    /// The FREE or HELD slot of the key.
    #[inline]
    fn find(&self, key: &KeyHash) -> Option<Seen> {
        'again: for round in 0.. {
            for slot in self.window(key) {
                let cells = self.slot(slot);
                let word = Word(cells.word.load(Acquire));
                if !matches!(word.state(), State::Free | State::Held) || !Self::matches(cells, key) {
                    continue;
                }
                let (word, matches) = self.peek(slot, key);
                if !matches || word.state() == State::Pending {
                    H::Atomics::pause(round);
                    continue 'again;
                }
                return Some(Seen { slot, word });
            }
            break;
        }
        None
    }

    /// The slot in which the key is held, its lease running.
    pub fn holding(&self, key: &KeyHash) -> Option<Seen> {
        self.find(key).filter(|seen| seen.word.state() == State::Held && self.units() < seen.word.until())
    }

    /// One try to acquire. `hint` is where the key may be found; it is not trusted.
    #[inline]
    pub fn acquire(&self, key: &KeyHash, wish: &Wish, hint: Option<u32>) -> Attempt {
        if let Some(slot) = hint.filter(|slot| *slot < self.count()) {
            let (word, matches) = self.peek(slot, key);
            if matches && let Some(attempt) = self.take_or_busy(Seen { slot, word }, key, wish) {
                return attempt;
            }
        }
        self.acquire_anywhere(key, wish)
    }

    fn acquire_anywhere(&self, key: &KeyHash, wish: &Wish) -> Attempt {
        for round in 0..H::RESTARTS {
            match self.find(key) {
                Some(seen) => {
                    if let Some(attempt) = self.take_or_busy(seen, key, wish) {
                        return attempt;
                    }
                }
                None => match self.bind(key, wish) {
                    Bound::Held(hold) => return Attempt::Held(hold),
                    Bound::Full => {
                        self.host.count(Event::Full);
                        return Attempt::Full;
                    }
                    Bound::Again => H::Atomics::pause(round),
                },
            }
        }
        Attempt::Contended
    }

    /// Takes the slot of the key if it is free or its lease has run out. None: it changed meanwhile.
    #[inline]
    fn take_or_busy(&self, seen: Seen, key: &KeyHash, wish: &Wish) -> Option<Attempt> {
        match seen.word.state() {
            State::Free => self.take(seen, key, wish).map(Attempt::Held),
            State::Held if self.units() < seen.word.until() => Some(Attempt::Busy(seen)),
            State::Held => {
                let hold = self.take(seen, key, wish)?;
                self.host.count(Event::Steal);
                Some(Attempt::Held(hold))
            }
            _ => None,
        }
    }

    /// Makes a slot whose word was judged HELD by the caller.
    ///
    /// The order matters: word, fence number, clock, CAS, owner. That the CAS succeeds proves that nobody held it in
    /// between, so fence numbers and clocks are in the order of the holds.
    #[inline]
    fn take(&self, seen: Seen, key: &KeyHash, wish: &Wish) -> Option<Hold> {
        let Seen { slot, mut word } = seen;
        let of_slot = mutant(Mutant::FenceOfSlotBucket);
        let bucket = if of_slot { slot as usize / N } else { key.first as usize };
        let fence = self.buckets[bucket].fence.fetch_add(1, AcqRel).wrapping_add(1);
        let at = self.host.now();
        let until = (at + wish.ttl).div_ceil(1 << UNIT_SHIFT); // rounded up: a lease never ends early
        point(Point::BeforeTake);
        if mutant(Mutant::StealRereads) && word.state() != State::Pending {
            word = self.word(slot);
        }
        let held = word.next(until, State::Held).with_waiters(word.waiters() || wish.slept);
        if !self.cas(slot, word, held) {
            return None;
        }
        point(Point::Taken);
        let owner = Owner::new(wish.member, at >> UNIT_SHIFT, held.seq());
        self.write_owner(slot, held, owner).then_some(Hold { slot, owner, until, at, fence })
    }

    /// Writes the owner word of a hold. False: the hold is over already, as if it had never been.
    ///
    /// A former holder that was stopped in here may write late, so this is a CAS from a value that was read before the
    /// hold was seen standing; each such process can make it loop once.
    #[inline]
    fn write_owner(&self, slot: u32, held: Word, owner: Owner) -> bool {
        let cells = self.slot(slot);
        loop {
            let old = cells.owner.load(Acquire);
            point(Point::OwnerRead);
            if mutant(Mutant::OwnerPlainStore) {
                cells.owner.store(owner.0, Release);
                break;
            }
            // Others may only have set the waiters bit: nobody else has the token yet.
            let standing = Word(cells.word.load(Acquire)).with_waiters(false) == held.with_waiters(false);
            if !standing && !mutant(Mutant::OwnerUnchecked) {
                self.host.count(Event::LostBeforeOwner);
                return false;
            }
            point(Point::OwnerChecked);
            if cells.owner.compare_exchange(old, owner.0, AcqRel, Relaxed).is_ok() {
                break;
            }
        }
        point(Point::OwnerWritten);
        true
    }

    /// Binds the key to a slot and takes it.
    #[cold]
    fn bind(&self, key: &KeyHash, wish: &Wish) -> Bound {
        let before = self.units();
        point(Point::BeforeVictim);
        let Some((victim, rank)) = self.victim(key, before) else { return Bound::Full };
        let Seen { slot, word } = victim;
        // Behind the victim's word: else a binder that was stopped in between would write tags that were there before.
        let now = if mutant(Mutant::ClaimClockFirst) { before } else { self.units() };
        let claim = Word::new(now + CLAIM_UNITS, word.seq().wrapping_add(1), State::Claim);
        if !self.cas(slot, word, claim) {
            return Bound::Again;
        }
        if rank == Rank::Overdue {
            self.host.count(Event::Takeover);
        }
        point(Point::Claimed);
        if word.waiters() && !mutant(Mutant::ClaimSilent) {
            self.ring(slot, u32::MAX); // the key they wait for leaves this slot: all must look again
        }
        if !self.write_key(slot, claim, key, now) {
            return Bound::Again;
        }
        let pending = claim.next(self.units() + CLAIM_UNITS, State::Pending);
        if !self.cas(slot, claim, pending) {
            return Bound::Again;
        }
        point(Point::Published);
        // Publish before looking at the others. Without this both of two binders may miss the other.
        H::Atomics::fence(SeqCst);
        if !self.unique(slot, key) {
            self.cas(slot, pending, pending.next(pending.until(), State::Empty));
            return Bound::Again;
        }
        point(Point::Unique);
        match self.take(Seen { slot, word: pending }, key, wish) {
            Some(hold) => Bound::Held(hold),
            None => Bound::Again,
        }
    }

    /// The slot to bind a new key to: in the bucket with fewer slots in use, unless only last resorts are left there.
    fn victim(&self, key: &KeyHash, now: u64) -> Option<(Seen, Rank)> {
        let mut used = [0u32; 2];
        let mut best: [Option<(Rank, Seen)>; 2] = [None; 2];
        for (place, slot) in self.window(key).enumerate() {
            let bucket = place / N;
            let word = self.word(slot);
            let rank = match word.state() {
                State::Empty => Rank::Empty,
                State::Claim | State::Pending if now >= word.until() => Rank::Overdue,
                State::Free if hooks::prefer_waiters() && word.waiters() => Rank::Empty,
                State::Free if word.waiters() => Rank::FreeWithWaiters,
                State::Free => Rank::Free(word.until()),
                State::Held if now >= word.until() => Rank::RunOut,
                _ => {
                    used[bucket] += 1;
                    continue;
                }
            };
            if best[bucket].is_none_or(|(least, _)| rank < least) {
                best[bucket] = Some((rank, Seen { slot, word }));
            }
        }
        let candidates = best.into_iter().zip(used).filter_map(|(best, used)| Some((best?, used)));
        let (rank, seen) =
            candidates.min_by_key(|((rank, _), used)| (*rank >= Rank::RunOut, *used, *rank)).map(|(best, _)| best)?;
        Some((seen, rank))
    }

    /// Writes the key words of a claimed slot, and an owner word that names no hold, each by CAS from a value read
    /// before the claim was seen standing: a claimer that was overtaken never overwrites its successor's.
    fn write_key(&self, slot: u32, claim: Word, key: &KeyHash, now: u64) -> bool {
        let cells = self.slot(slot);
        for (cell, tag) in cells.key.iter().zip(key.tags) {
            let value = u64::from(tag) << 32 | now & 0xffff_ffff;
            if mutant(Mutant::PlainKeys) {
                point(Point::KeyRead);
                cell.store(value, Release);
            } else if !self.replace(slot, claim, cell, value, Point::KeyRead) {
                return false;
            }
        }
        let nobody = Owner::new(0, now, claim.seq());
        self.replace(slot, claim, &cells.owner, nobody.0, Point::OwnerResetRead)
    }

    fn replace(&self, slot: u32, claim: Word, cell: &<H::Atomics as Atomics>::U64, value: u64, here: Point) -> bool {
        loop {
            let old = cell.load(Acquire);
            if self.word(slot) != claim {
                return false;
            }
            point(here);
            if cell.compare_exchange(old, value, AcqRel, Relaxed).is_ok() {
                return true;
            }
        }
    }

    /// Whether a PENDING slot may become HELD: no other slot of the window has the key, or it was only about to.
    fn unique(&self, mine: u32, key: &KeyHash) -> bool {
        if mutant(Mutant::NoRescan) {
            return true;
        }
        for slot in self.window(key).filter(|slot| *slot != mine) {
            loop {
                let (word, matches) = self.peek(slot, key);
                if !matches {
                    break;
                }
                if word.state() != State::Pending {
                    return false;
                }
                if mutant(Mutant::RescanIgnoresPending) {
                    break;
                }
                if slot < mine && self.units() < word.until() {
                    return false; // the lower slot wins
                }
                self.cas(slot, word, word.next(word.until(), State::Empty)); // then look at it again
            }
        }
        true
    }

    /// The word of the hold that `owner` names, while that hold lasts.
    ///
    /// A CAS on exactly this word proves that owner and key were read during the hold.
    #[inline]
    fn judge(&self, key: &KeyHash, slot: u32, owner: Owner) -> Option<Word> {
        if slot >= self.count() {
            return None;
        }
        let cells = self.slot(slot);
        let word = Word(cells.word.load(Acquire));
        if mutant(Mutant::BlindRelease) {
            return (word.state() == State::Held && Self::matches(cells, key)).then_some(word);
        }
        let other_hold = (word.seq() ^ owner.seq()) & hooks::seq_mask() != 0 && !mutant(Mutant::NoSeqCheck);
        if word.state() != State::Held || other_hold {
            return None;
        }
        point(Point::Judged);
        if cells.owner.load(Acquire) != owner.0 && !mutant(Mutant::NoOwnerCheck) {
            return None;
        }
        let matches = Self::matches(cells, key);
        H::Atomics::fence(Acquire);
        matches.then_some(word)
    }

    /// Whether `owner` names a hold of the key that lasts, be its lease run out or not.
    pub fn holds(&self, key: &KeyHash, slot: u32, owner: Owner) -> bool {
        self.judge(key, slot, owner).is_some()
    }

    /// What a token that holds nothing is told. The key may live in another slot than the token's by now.
    #[cold]
    pub fn verdict(&self, key: &KeyHash) -> Verdict {
        if self.holding(key).is_some() { Verdict::Taken } else { Verdict::Expired }
    }

    /// Ends the hold that `owner` names. After its lease's end it is freed too, and the answer is EXPIRED.
    #[inline]
    pub fn release(&self, key: &KeyHash, slot: u32, owner: Owner) -> Verdict {
        loop {
            let Some(word) = self.judge(key, slot, owner) else { return self.verdict(key) };
            let now = self.units(); // after the word, before the CAS: the clock then belongs to this hold
            point(Point::BeforeRelease);
            if self.free(slot, word, now) {
                return if now < word.until() { Verdict::Ok } else { Verdict::Expired };
            }
            // Waiters came, it was extended, or stolen: look again.
        }
    }

    /// An operator's act: ends whatever hold of the key there is. EXPIRED: there was none.
    pub fn end_any(&self, key: &KeyHash) -> Verdict {
        loop {
            let Some(Seen { slot, word }) = self.holding(key) else { return Verdict::Expired };
            if self.free(slot, word, self.units()) {
                return Verdict::Ok;
            }
        }
    }

    #[inline]
    fn free(&self, slot: u32, word: Word, now: u64) -> bool {
        let free = word.next(now, State::Free);
        if !self.cas(slot, word, free) {
            return false;
        }
        point(Point::Released);
        if word.waiters() && self.ring(slot, 1) == 0 {
            self.cas(slot, free, free.with_waiters(false)); // no acquirer sleeps here any more
        }
        true
    }

    /// Gives the hold that `owner` names a lease of `ttl` nanoseconds from now on.
    #[inline]
    pub fn extend(&self, key: &KeyHash, slot: u32, owner: Owner, ttl: u64) -> Result<u64, Verdict> {
        loop {
            let Some(word) = self.judge(key, slot, owner) else { return Err(self.verdict(key)) };
            let now = self.host.now();
            if now >> UNIT_SHIFT >= word.until() {
                return Err(Verdict::Expired);
            }
            let until = (now + ttl).div_ceil(1 << UNIT_SHIFT);
            point(Point::BeforeExtend);
            if self.cas(slot, word, word.extended(until)) {
                return Ok(until);
            }
        }
    }

    /// The owner word of the hold that stands in a slot. None: not held, or not said (yet, or ever: it was killed).
    pub fn owner(&self, seen: Seen) -> Option<Owner> {
        let owner = Owner(self.slot(seen.slot).owner.load(Acquire));
        let standing = self.word(seen.slot).seq() == seen.word.seq();
        (standing && owner.seq() == seen.word.seq()).then_some(owner)
    }

    /// Wakes at most `most` acquirers, all awaiters and the bells of a slot; says how many acquirers were woken.
    #[cold]
    fn ring(&self, slot: u32, most: u32) -> u32 {
        let cells = self.slot(slot);
        cells.acquirers.fetch_add(1, AcqRel);
        point(Point::CountRaised);
        let woken = self.host.wake(&cells.acquirers, most);
        point(Point::AcquirerWoken);
        cells.awaiters.fetch_add(1, AcqRel);
        if !mutant(Mutant::AwaitersNotWoken) {
            self.host.wake(&cells.awaiters, u32::MAX);
        }
        point(Point::AwaitersWoken);
        // Against the bit set in arm_bell: two read-modify-writes on one word, so one of them sees the other.
        let bells = cells.bells.swap(0, AcqRel);
        point(Point::BellsTaken);
        if bells != 0 && !mutant(Mutant::BellsNotRung) {
            self.host.ring(bells);
        }
        woken
    }

    /// The last step before a sleep on `futex`, one of the slot's two: loads its count, then makes sure that the word
    /// still stands and says that there are waiters. The count to sleep on, or None: look again.
    ///
    /// The count comes first. A release between the two changes it, and the sleep ends at once.
    #[inline]
    pub fn arm(&self, seen: Seen, futex: &<H::Atomics as Atomics>::U32) -> Option<u32> {
        let count = futex.load(Acquire);
        point(Point::CountLoaded);
        self.flag(seen).then_some(count)
    }

    /// The last step before a wait for a ring of the member's bell; false: look again. Every ring takes the bit, so a
    /// bell that still waits arms again.
    ///
    /// The bit comes first: a release before it changes the word, one behind it takes the bit.
    pub fn arm_bell(&self, seen: Seen, member: u16) -> bool {
        let bells = &self.slot(seen.slot).bells;
        let bit = 1 << (member - 1);
        bells.fetch_or(bit, AcqRel);
        point(Point::BellSet);
        self.flag(seen)
    }

    /// Sets a bell's bit again where a ring took it; whether it had to.
    pub fn renew_bell(&self, slot: u32, member: u16) -> bool {
        let (bells, bit) = (&self.slot(slot).bells, 1 << (member - 1));
        bells.load(Acquire) & bit == 0 && bells.fetch_or(bit, AcqRel) & bit == 0
    }

    /// Makes sure that a word still stands and says that there are waiters.
    #[inline]
    fn flag(&self, seen: Seen) -> bool {
        if seen.word.waiters() {
            return self.word(seen.slot) == seen.word;
        }
        self.cas(seen.slot, seen.word, seen.word.with_waiters(true))
    }

    /// Hands a consumed wake-up on: for an acquirer that was woken and leaves without the lock.
    pub fn pass_on(&self, slot: u32) {
        if !mutant(Mutant::LeaverSilent) {
            self.host.wake(&self.slot(slot).acquirers, 1);
        }
    }
}
