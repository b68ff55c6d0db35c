//! What all processes of a run share: what they found wrong, what they counted, and the data that the locks guard.

use buflock::hooks::Point;
use std::sync::atomic::{AtomicU64, Ordering::Relaxed, Ordering::SeqCst};

/// Keys in use: more than the table has slots, so that slots change hands all the time.
pub const KEYS: usize = 200;
/// The most worker processes.
pub const WORKERS: usize = 32;
/// Acquisitions that a worker may write down in one round. A calm one came to 140,000, others to a tenth of that.
pub const EVENTS: usize = 200_000;

/// Something that must never happen.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(usize)]
pub enum Wrong {
    TwoHolders,
    FenceTooLow,
    GuardLost,
    ReleaseRefused,
    ExtendRefused,
    StaleExtended,
    StaleReleased,
    GivenExtendRefused,
    GivenReleaseRefused,
    LateRelease,
    LateExtend,
    OtherKeysToken,
    BadOwnerWord,
    DeadTokenHolds,
    BadAwait,
    GaveUpEarly,
    LongSleep,
    LostWakeUp,
    OpLate,
    OpKept,
    OpNotCancelled,
    NeverIdle,
    Twins,
    TornKey,
    BadWord,
    LongLease,
    Stuck,
    LeftOver,
    EqualFences,
    HoldsOverlap,
    FencesAgainstTime,
    CountsDiffer,
    Crashed,
    Failed,
}

impl Wrong {
    /// All of them, in their order.
    pub const ALL: [Self; 34] = [
        Self::TwoHolders,
        Self::FenceTooLow,
        Self::GuardLost,
        Self::ReleaseRefused,
        Self::ExtendRefused,
        Self::StaleExtended,
        Self::StaleReleased,
        Self::GivenExtendRefused,
        Self::GivenReleaseRefused,
        Self::LateRelease,
        Self::LateExtend,
        Self::OtherKeysToken,
        Self::BadOwnerWord,
        Self::DeadTokenHolds,
        Self::BadAwait,
        Self::GaveUpEarly,
        Self::LongSleep,
        Self::LostWakeUp,
        Self::OpLate,
        Self::OpKept,
        Self::OpNotCancelled,
        Self::NeverIdle,
        Self::Twins,
        Self::TornKey,
        Self::BadWord,
        Self::LongLease,
        Self::Stuck,
        Self::LeftOver,
        Self::EqualFences,
        Self::HoldsOverlap,
        Self::FencesAgainstTime,
        Self::CountsDiffer,
        Self::Crashed,
        Self::Failed,
    ];

    /// What it is, and in parentheses what its numbers are. Times are in the table's units.
    pub fn text(self) -> &'static str {
        match self {
            Self::TwoHolders => "acquired while another's lease ran (key, its end, now)",
            Self::FenceTooLow => "a fence number not above an earlier one (key, earlier, own)",
            Self::GuardLost => "another's fence number came in during a lease (key, own, other)",
            Self::ReleaseRefused => "release refused during the lease (key, owner word, end)",
            Self::ExtendRefused => "extend refused during the lease (key, owner word, end)",
            Self::StaleExtended => "a token whose hold was over extended one (key, owner word)",
            Self::StaleReleased => "a token whose hold was over released one (key, owner word)",
            Self::GivenExtendRefused => "extend by a new owner refused during the lease (key, owner word, end)",
            Self::GivenReleaseRefused => "release by a new owner refused during the lease (key, owner word, end)",
            Self::LateRelease => "release said OK after the lease's end (key, end, now)",
            Self::LateExtend => "extend said OK after the lease's end (key, end, now)",
            Self::OtherKeysToken => "a token counted for another key (other key, owner word)",
            Self::BadOwnerWord => "the owner word is not its holder's (key, holder's, found)",
            Self::DeadTokenHolds => "a token counts after its release (key, owner word)",
            Self::BadAwait => "await said over, but the hold goes on (key, owner word)",
            Self::GaveUpEarly => "busy was answered before the wait was over (key, wait ms, waited us)",
            Self::LongSleep => "a sleep went on beyond its slice (key, ms of running time)",
            Self::LostWakeUp => "asleep, but nobody holds the key (key, ms of running time)",
            Self::OpLate => "an op was not over at its end, or to be left alone beyond it (ms, end, now in ns)",
            Self::OpKept => "the lock of an op whose success nobody fetched is still held (owner word)",
            Self::OpNotCancelled => "an op that was cancelled did not end as it should (1: it ended)",
            Self::NeverIdle => "with no new work the workers did not come to an end (how many)",
            Self::Twins => "two slots of one key (key, slot, slot)",
            Self::TornKey => "a slot whose key words do not belong together or there (slot, word)",
            Self::BadWord => "a slot whose word cannot be (slot, word)",
            Self::LongLease => "a lease longer than anyone asked for (slot, end, now)",
            Self::Stuck => "a key that cannot be locked at the end (key)",
            Self::LeftOver => "a slot left in the middle of binding at the end (slot, word)",
            Self::EqualFences => "two holds of one fence number (key, fence)",
            Self::HoldsOverlap => "a hold began before its predecessor's could have ended (key, fence, its fence)",
            Self::FencesAgainstTime => "fence numbers against the order in time (key, fence, later fence)",
            Self::CountsDiffer => "guarded counts do not add up (done, sum, attempted)",
            Self::Crashed => "a process ended by itself (worker, code, signal)",
            Self::Failed => "a call failed: its text is above (worker)",
        }
    }
}

/// Something worth counting.
#[derive(Clone, Copy, Debug)]
#[repr(usize)]
pub enum Count {
    Acquired,
    Busy,
    Full,
    Attempted,
    Done,
    Fenced,
    Extended,
    ReleaseExpired,
    ReleaseTaken,
    Abandoned,
    Floods,
    Overstayed,
    StaleTried,
    ExtendedByOther,
    OtherTooLate,
    Given,
    GivenExtended,
    GivenTooLate,
    GivenReleased,
    AwaitOver,
    AwaitBusy,
    Left,
    PassedOn,
    InSteps,
    Dropped,
    Unfetched,
    LongestWaitUs,
}

impl Count {
    /// How many there are.
    const COUNT: usize = Self::LongestWaitUs as usize + 1;
}

/// How often something was found wrong, and the numbers of the first time.
#[derive(Debug)]
pub struct Finding {
    count: AtomicU64,
    facts: [AtomicU64; 3],
}

/// What happened at one point.
#[derive(Debug)]
#[repr(align(64))]
pub struct PointRow {
    pub hits: AtomicU64,
    pub kills: AtomicU64,
    pub stalls: AtomicU64,
    /// When the next visitor is killed, in ns.
    pub next_kill: AtomicU64,
    /// When the next visitor is stalled, in ns.
    pub next_stall: AtomicU64,
}

/// What one key's lock guards.
#[derive(Debug)]
#[repr(align(64))]
pub struct Cell {
    /// When the holder's lease ends, in units; 0: nobody says that he holds it.
    pub end: AtomicU64,
    /// `fence number:32 | count:32`.
    pub guarded: AtomicU64,
}

/// A hold that a worker shows to others, or gives away.
#[derive(Debug)]
#[repr(align(64))]
pub struct Offer {
    /// A version in steps of 4, and in the low two bits what it is: an `OFFER_` number.
    pub state: AtomicU64,
    pub key: AtomicU64,
    /// The least end of the lease, in units.
    pub end: AtomicU64,
    pub token: [AtomicU64; 2],
    /// The number of its event, from 1.
    pub event: AtomicU64,
}

/// Nothing is offered, or it is just being written.
pub const OFFER_NONE: u64 = 0;
/// Its holder goes on; others may extend it.
pub const OFFER_SHOWN: u64 = 1;
/// Its holder has left; who takes the offer owns the hold.
pub const OFFER_GIVEN: u64 = 2;

/// One acquisition, for the check of the whole history. Times are in ns.
#[derive(Debug)]
pub struct Event {
    pub key: AtomicU64,
    pub fence: AtomicU64,
    pub called: AtomicU64,
    /// 0: it is not complete.
    pub returned: AtomicU64,
    /// The hold lasts until then at least, unless it is released.
    pub end: AtomicU64,
    /// 0: never, as far as is known.
    pub release_called: AtomicU64,
}

/// One worker's acquisitions.
#[derive(Debug)]
pub struct Log {
    pub length: AtomicU64,
    pub events: [Event; EVENTS],
}

/// What a worker does at this moment, as far as others need to know.
#[derive(Debug)]
#[repr(align(64))]
pub struct Doing {
    /// Its process.
    pub process: AtomicU64,
    /// Odd while it sleeps on a futex; it grows with every beginning and end.
    pub sleeps: AtomicU64,
    /// The key that it works on.
    pub key: AtomicU64,
    /// 1: it stands still because of the pause.
    pub idle: AtomicU64,
}

impl Doing {
    /// It is about to sleep.
    pub fn sleep_begins(&self) {
        self.sleeps.fetch_or(1, SeqCst);
    }

    /// It has slept.
    pub fn sleep_ends(&self) {
        self.sleeps.fetch_add(self.sleeps.load(SeqCst) & 1, SeqCst);
    }
}

/// What one worker counted. It outlives the processes that play the worker.
#[derive(Debug)]
#[repr(align(64))]
struct Tally([AtomicU64; Count::COUNT]);

/// All that is shared. Zeros are its beginning.
#[derive(Debug)]
pub struct Board {
    findings: [Finding; Wrong::ALL.len()],
    tallies: [Tally; WORKERS],
    /// 1: begin nothing new.
    pub pause: AtomicU64,
    pub doing: [Doing; WORKERS],
    pub points: [PointRow; Point::COUNT],
    pub cells: [Cell; KEYS],
    pub offers: [Offer; WORKERS],
    pub logs: [Log; WORKERS],
}

impl Board {
    /// A new one, shared with the children to come.
    pub fn new() -> &'static Self {
        // SAFETY: nothing but atomics.
        unsafe { super::sys::shared() }
    }

    /// Notes that something is wrong.
    pub fn report(&self, wrong: Wrong, facts: [u64; 3]) {
        let finding = &self.findings[wrong as usize];
        if finding.count.fetch_add(1, SeqCst) == 0 {
            for (place, fact) in finding.facts.iter().zip(facts) {
                place.store(fact, SeqCst);
            }
        }
    }

    /// Whether anything is wrong.
    pub fn is_wrong(&self) -> bool {
        self.findings.iter().any(|finding| finding.count.load(Relaxed) > 0)
    }

    /// What was found wrong, as text.
    pub fn findings(&self) -> Vec<String> {
        let found = Wrong::ALL.into_iter().map(|wrong| (wrong, &self.findings[wrong as usize]));
        let found = found.filter(|(_, finding)| finding.count.load(SeqCst) > 0);
        let line = |(wrong, finding): (Wrong, &Finding)| {
            let facts = finding.facts.each_ref().map(|fact| fact.load(SeqCst));
            format!("{} x {}: {facts:?}", finding.count.load(SeqCst), wrong.text())
        };
        found.map(line).collect()
    }

    /// Adds to what worker `worker` counts.
    pub fn add(&self, worker: usize, count: Count, more: u64) {
        self.tallies[worker].0[count as usize].fetch_add(more, SeqCst);
    }

    /// Takes back what was added in advance.
    pub fn take_back(&self, worker: usize, count: Count) {
        self.tallies[worker].0[count as usize].fetch_sub(1, SeqCst);
    }

    /// Keeps the largest value.
    pub fn raise(&self, worker: usize, count: Count, value: u64) {
        self.tallies[worker].0[count as usize].fetch_max(value, Relaxed);
    }

    /// The sum over all workers.
    pub fn sum(&self, count: Count) -> u64 {
        self.tallies.iter().map(|tally| tally.0[count as usize].load(SeqCst)).sum()
    }

    /// What all locks together guard.
    pub fn guarded_sum(&self) -> u64 {
        self.cells.iter().map(|cell| cell.guarded.load(SeqCst) & 0xffff_ffff).sum()
    }

    /// The largest of all workers.
    pub fn most(&self, count: Count) -> u64 {
        self.tallies.iter().map(|tally| tally.0[count as usize].load(SeqCst)).max().unwrap_or(0)
    }

    /// The event of this number, counted from 1 through all logs; 0 is none.
    pub fn event(&self, number: u64) -> Option<&Event> {
        let index = usize::try_from(number.checked_sub(1)?).ok()?;
        self.logs.get(index / EVENTS).map(|log| &log.events[index % EVENTS])
    }

    /// A new event in a worker's log, and its number. None: the log is full.
    pub fn new_event(&self, worker: usize) -> Option<(u64, &Event)> {
        let index = usize::try_from(self.logs[worker].length.fetch_add(1, SeqCst)).ok().filter(|i| *i < EVENTS)?;
        Some(((worker * EVENTS + index) as u64 + 1, &self.logs[worker].events[index]))
    }
}
