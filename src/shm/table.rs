//! An attached table: the protocol over a mapped segment, with this process's clock, hash, hints and member record.

use super::clock::{Clock, futex_wait, futex_wake};
use super::member::{self, MEMBERS};
use super::place::Place;
use super::segment::{Head, LAYOUT, SLOTS, Segment};
use super::slot::{Attempt, Event, Hold, Host, Owner, Seen, Slots, UNIT_SHIFT, Wish};
use crate::answer::{Busy, Held, Holder, Verdict};
use crate::cancel::Uncancelled;
use crate::config::Settings;
use crate::error::{Error, SegmentFault};
use crate::fork::PerProcess;
use crate::key::{KeyHash, KeyHasher};
use crate::policy::{NS_PER_MS, ms_left};
use crate::sys::Slept;
use crate::token::Token;
use std::sync::atomic::Ordering::{AcqRel, Relaxed, SeqCst};
use std::sync::atomic::{AtomicU32, AtomicU64, fence};

/// How often an acquire looks whether the file is still there: once in this many ns.
const LOOK_EVERY: u64 = 1_000_000_000;
/// Fence numbers are below 2^53: scripting languages keep numbers as floating point.
const FENCES: u64 = (1 << 53) - 1;
/// Slot numbers that are remembered, by hash: 32 KiB, of which only what is used is touched.
const HINTS: usize = 8192;

/// A table in use by this process.
pub struct Table {
    /// The file.
    pub segment: Segment,
    host: TableHost,
    hasher: KeyHasher,
    /// Where keys were last found. Never trusted: the slot is looked at as any other.
    hints: Box<[AtomicU32]>,
    looked_at: AtomicU64,
    /// The table before this one, deleted; other threads may still be in it.
    pub(super) earlier: *mut Table,
}

// SAFETY: `earlier` is only followed when nobody uses the tables any more.
unsafe impl Send for Table {}
// SAFETY: `earlier` is only followed when nobody uses the tables any more.
unsafe impl Sync for Table {}

/// What the protocol asks of this process.
pub struct TableHost {
    clock: Clock,
    /// This process's member record, or [`Owner::NO_RECORD`].
    member: PerProcess,
    head: *const Head,
}

impl TableHost {
    #[inline]
    fn head(&self) -> &Head {
        // SAFETY: points into the segment, which lives as long as this.
        unsafe { &*self.head }
    }
}

impl Host for TableHost {
    type Atomics = super::atomics::Native;

    #[inline]
    fn now(&self) -> u64 {
        self.clock.now()
    }

    fn wake(&self, futex: &AtomicU32, most: u32) -> u32 {
        futex_wake(futex, most)
    }

    fn ring(&self, bells: u64) {
        let rung = |place: &usize| bells & 1 << place != 0;
        for mailbox in (0..MEMBERS).filter(rung).map(|place| self.head().members[place].mailbox()) {
            mailbox.fetch_add(1, AcqRel);
            // All: two processes that share a record by mistake are both told.
            futex_wake(mailbox, u32::MAX);
        }
    }

    #[cold]
    fn count(&self, event: Event) {
        let counters = &self.head().counters;
        let counter = match event {
            Event::Steal => &counters.steals,
            Event::Takeover => &counters.takeovers,
            Event::Full => &counters.full,
            Event::LostBeforeOwner => &counters.lost,
        };
        counter.fetch_add(1, Relaxed);
    }
}

/// A token of this table, taken apart.
#[derive(Clone, Copy)]
struct Ticket {
    slot: u32,
    owner: Owner,
}

impl Table {
    /// Attaches the table `name` as `settings` say.
    ///
    /// # Errors
    /// The segment cannot be made, opened or trusted, or the process gets no memory.
    pub fn attach(name: &str, settings: &Settings) -> Result<Box<Self>, Error> {
        let place = Place::find(settings.dir.as_deref())?;
        let segment = Segment::attach(&place, name, settings.size, settings.mode)?;
        let clock = Clock::of_this_process().map_err(|fault| Error::Segment { path: segment.path.clone(), fault })?;
        let member = PerProcess::new().map_err(|_| Error::NoMemory)?;
        let namespace = if settings.raw_keys { &[][..] } else { &settings.namespace };
        let hasher = KeyHasher::new(segment.header.secret, segment.header.buckets, namespace);
        let head = &raw const *segment.head();
        Ok(Box::new(Self {
            segment,
            host: TableHost { clock, member, head },
            hasher,
            // Not as an array: that would be made on the stack, and threads may have little of it.
            hints: (0..HINTS).map(|_| AtomicU32::new(u32::MAX)).collect(),
            looked_at: AtomicU64::new(clock.now()),
            earlier: std::ptr::null_mut(),
        }))
    }

    /// This process's clock.
    pub fn clock(&self) -> Clock {
        self.host.clock
    }

    /// The protocol on this table's slots.
    #[inline]
    pub fn slots(&self) -> Slots<'_, TableHost, SLOTS> {
        Slots::new(self.segment.buckets(), &self.host)
    }

    /// The hash of a key.
    #[inline]
    pub fn hash(&self, key: &[u8]) -> KeyHash {
        self.hasher.hash(key)
    }

    /// One try to acquire.
    #[inline]
    pub fn acquire(&self, key: &KeyHash, ttl_ms: u32, slept: bool) -> Attempt {
        let hint = &self.hints[key.tags[0] as usize % HINTS];
        let known = hint.load(Relaxed);
        let wish = Wish { ttl: u64::from(ttl_ms) * NS_PER_MS, member: self.member(), slept };
        let attempt = self.slots().acquire(key, &wish, Some(known));
        if let Attempt::Held(Hold { slot, .. }) | Attempt::Busy(Seen { slot, .. }) = attempt
            && slot != known
        {
            hint.store(slot, Relaxed);
        }
        attempt
    }

    /// What an acquire tells of a hold.
    #[inline]
    pub fn held(&self, hold: Hold, ttl_ms: u32, waited_ms: u32) -> Held {
        let high = u64::from(hold.slot) << 32 | u64::from(self.segment.header.id);
        Held {
            token: Token::from_halves(high, hold.owner.0),
            // Masked for the sake of a damaged counter.
            fence: self.segment.header.created.wrapping_add(hold.fence) & FENCES,
            left_ms: ttl_ms,
            waited_ms,
        }
    }

    /// What is told of somebody else's hold.
    pub fn busy(&self, seen: Seen, waited_ms: u32) -> Busy {
        let end = seen.word.until() << UNIT_SHIFT;
        let left_ms = ms_left(end.saturating_sub(self.host.now()));
        Busy { left_ms, waited_ms, holder: self.holder(seen) }
    }

    fn holder(&self, seen: Seen) -> Holder {
        let owner = self.slots().owner(seen);
        owner.map_or(Holder::Unknown, |owner| member::holder(&self.segment.head().members, owner))
    }

    /// Ends the hold that a token's bits name.
    #[inline]
    pub fn release(&self, key: &[u8], token: Option<(u64, u64)>) -> Verdict {
        let hash = self.hash(key);
        match self.ticket(token) {
            Some(Ticket { slot, owner }) => self.slots().release(&hash, slot, owner),
            None => self.slots().verdict(&hash),
        }
    }

    /// Gives the hold that a token's bits name a new lease.
    #[inline]
    pub fn extend(&self, key: &[u8], token: Option<(u64, u64)>, ttl_ms: u32) -> Verdict {
        let hash = self.hash(key);
        let Some(Ticket { slot, owner }) = self.ticket(token) else { return self.slots().verdict(&hash) };
        match self.slots().extend(&hash, slot, owner, u64::from(ttl_ms) * NS_PER_MS) {
            Ok(_) => Verdict::Ok,
            Err(verdict) => verdict,
        }
    }

    /// Gives a hold back that its caller will not hear of.
    pub fn undo(&self, key: &KeyHash, hold: Hold) {
        self.slots().release(key, hold.slot, hold.owner);
    }

    /// None: not a token of this table, so nobody's.
    #[inline]
    #[allow(clippy::cast_possible_truncation)] // two halves
    fn ticket(&self, token: Option<(u64, u64)>) -> Option<Ticket> {
        let (high, low) = token?;
        (high as u32 == self.segment.header.id).then_some(Ticket { slot: (high >> 32) as u32, owner: Owner(low) })
    }

    /// This process's member record, taken at the first need after a fork.
    #[inline]
    #[allow(clippy::cast_possible_truncation)] // it was a u16
    fn member(&self) -> u16 {
        match self.host.member.get() {
            0 => self.join(),
            member => member as u16,
        }
    }

    #[cold]
    fn join(&self) -> u16 {
        let _uncancelled = Uncancelled::new();
        let members = &self.segment.head().members;
        // There, the living look dead and the dead alive. Locking works without a record.
        let shifted = self.host.clock.start_times_are_shifted();
        let version = crate::ABI << 16 | LAYOUT;
        let number = if shifted { Owner::NO_RECORD } else { member::join(members, self.host.now(), version) };
        if self.host.member.set(u32::from(number)) {
            return number;
        }
        member::leave(members, number); // another thread was faster
        self.member()
    }

    /// This process's member number where it has a record, without which no bell can be rung.
    pub fn bell_member(&self) -> Option<u16> {
        Some(self.member()).filter(|member| *member != Owner::NO_RECORD)
    }

    /// Whether there was no record to be had when this process needed one.
    pub fn has_no_record(&self) -> bool {
        self.host.member.get() == u32::from(Owner::NO_RECORD)
    }

    /// The futex that is raised to ring this process.
    pub fn mailbox(&self) -> Option<&AtomicU32> {
        let place = usize::from(self.bell_member()?) - 1;
        Some(self.segment.head().members[place].mailbox())
    }

    /// Sleeps on a futex of this table for at most `longest` ns.
    pub fn sleep_on(&self, futex: &AtomicU32, value: u32, longest: u64) -> Slept {
        futex_wait(futex, value, self.host.clock, self.host.now() + longest)
    }

    /// Whether a process has seen that the file is deleted. It is said in the table itself, for all: a lease granted
    /// here would prolong its life, or be one too many after others found none and went on to the next table.
    #[inline]
    pub fn is_known_deleted(&self) -> bool {
        self.host.head().counters.deleted.load(SeqCst) != 0
    }

    /// Whether it is time to look at the file again, by a clock that was read anyway.
    #[inline]
    pub fn should_look(&self, now: u64) -> bool {
        now.saturating_sub(self.looked_at.load(SeqCst)) >= LOOK_EVERY || self.is_known_deleted()
    }

    /// Whether the file is deleted, or not to be found by its name. That is first said, for good, and then looked for
    /// leases: of who takes one and this, one sees the other. All processes are told only of what all see: where the
    /// file is merely hidden from us, by a mount or a change of root, we alone give it up.
    #[cold]
    pub fn is_deleted(&self) -> bool {
        if self.is_known_deleted() {
            return true;
        }
        let before = self.looked_at.load(SeqCst);
        let deleted = self.segment.is_deleted();
        if deleted {
            if self.segment.has_no_name() {
                self.host.head().counters.deleted.store(1, SeqCst);
            }
            self.looked_at.store(0, SeqCst);
            fence(SeqCst);
        } else {
            // Not over the 0 of another thread.
            let _ = self.looked_at.compare_exchange(before, self.host.now(), SeqCst, Relaxed);
        }
        deleted
    }

    /// Lets fence numbers go on where those of an earlier table ended, whichever file was made first.
    pub fn follow(&self, earlier: &Self) {
        let last = earlier.segment.buckets().iter().map(|bucket| bucket.fence.load(Relaxed)).max().unwrap_or(0);
        let least = earlier.segment.header.created.saturating_add(last).saturating_sub(self.segment.header.created);
        if least > 0 && least < FENCES / 2 {
            for bucket in self.segment.buckets() {
                bucket.fence.fetch_max(least, AcqRel);
            }
        }
    }

    /// What acquires are told while leases run in a deleted table: how long they do. None: they have all ended.
    pub fn mourning(&self) -> Option<Error> {
        let last = self.held_words().map(super::slot::Word::until).max().unwrap_or(0) << UNIT_SHIFT;
        let left = last.saturating_sub(self.host.now());
        let fault = SegmentFault::Deleted { left_ms: left.div_ceil(NS_PER_MS) };
        (left > 0).then(|| Error::Segment { path: self.segment.path.clone(), fault })
    }

    fn held_words(&self) -> impl Iterator<Item = super::slot::Word> {
        let words = (0..self.slots().count()).map(|slot| self.slots().word(slot));
        words.filter(|word| word.state() == super::slot::State::Held)
    }

    /// How many locks are held, and how many may be.
    pub fn load(&self) -> (usize, u32) {
        let now = self.host.now() >> UNIT_SHIFT;
        (self.held_words().filter(|word| word.until() > now).count(), self.slots().count())
    }

    /// How many fence numbers were given out: about one per acquire.
    pub fn fences(&self) -> u64 {
        self.segment.buckets().iter().map(|bucket| bucket.fence.load(Relaxed)).fold(0, u64::wrapping_add)
    }

    /// How many processes have a member record.
    pub fn members(&self) -> usize {
        member::count(&self.segment.head().members)
    }
}

impl Drop for Table {
    fn drop(&mut self) {
        let number = self.host.member.get(); // 0 in a forked child that has not used it: the record is its parent's
        member::leave(&self.segment.head().members, u16::try_from(number).unwrap_or(Owner::NO_RECORD));
    }
}
