//! Places where a test may stop, kill or corrupt the library, and the planted bugs that the tests must find.
//!
//! Everything here does nothing, and is compiled to nothing, unless the crate is built with `--cfg buflock_test`.
//! The shipped library is not.

/// A place inside a protocol step. The torture kills and stalls processes here, since kills from outside never hit them.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u8)]
#[allow(missing_docs)]
pub enum Point {
    BeforeVictim,
    Claimed,
    KeyRead,
    OwnerResetRead,
    Published,
    Unique,
    BeforeTake,
    Taken,
    OwnerRead,
    OwnerChecked,
    OwnerWritten,
    Judged,
    BeforeRelease,
    Released,
    CountRaised,
    AcquirerWoken,
    AwaitersWoken,
    BeforeExtend,
    CountLoaded,
    Armed,
    Slept,
    AwaitArmed,
    AwaitSlept,
    BellsTaken,
    BellSet,
}

impl Point {
    /// How many there are.
    pub const COUNT: usize = Self::BellSet as usize + 1;
}

/// A planted bug. Each is a mistake that a reader of the protocol might make.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u8)]
#[allow(missing_docs)]
pub enum Mutant {
    None,
    ClaimClockFirst,
    NoRescan,
    RescanIgnoresPending,
    BlindRelease,
    PlainKeys,
    StealRereads,
    OwnerPlainStore,
    OwnerUnchecked,
    NoSeqCheck,
    NoOwnerCheck,
    LeaverSilent,
    ClaimSilent,
    AwaitersNotWoken,
    AwaitBelievesCount,
    FenceOfSlotBucket,
    BellsNotRung,
    FreedExtendReleases,
    ChildFreeReleases,
    WallClock,
    // Over Redis.
    ReleasesAnybodys,
    SetWithoutTime,
    RetriesBySet,
    LossIsBusy,
    OrphansForgotten,
    OrphansTriedOnce,
    CancelForgets,
    NumberNotCompared,
    SurplusBelieved,
    KeepsWhatIsOwed,
    TakenIsOk,
    BreaksTwice,
    AwaitsAnybody,
    LeaseFromReply,
    FenceForgotten,
    LabelForgotten,
    NeverNudges,
    IgnoresBudget,
    NilIsHeld,
    TailMayBeMissing,
    NeverOpens,
    NeverCloses,
    ManyProbes,
    OwnLimitsOpen,
    ChildKeepsConnections,
    // In its scripts: to be planted before the first client.
    ScriptsCompareNothing,
    ScriptsWakeNobody,
    SignalsStay,
    FenceFollowsClock,
}

#[cfg(buflock_test)]
mod on {
    use super::{Mutant, Point};
    use std::sync::OnceLock;
    use std::sync::atomic::{AtomicBool, AtomicPtr, AtomicU8, AtomicU16, AtomicU64, Ordering::Relaxed};

    static MUTANT: AtomicU8 = AtomicU8::new(Mutant::None as u8);
    static SEQ_MASK: AtomicU16 = AtomicU16::new(u16::MAX);
    static PREFER_WAITERS: AtomicBool = AtomicBool::new(false);
    static SLICE: AtomicU64 = AtomicU64::new(0);
    static AT_POINT: AtomicPtr<()> = AtomicPtr::new(std::ptr::null_mut());

    /// Plants a bug in this process.
    pub fn plant(mutant: Mutant) {
        MUTANT.store(mutant as u8, Relaxed);
    }

    /// Calls `visit` at every point from now on.
    pub fn visit_points(visit: fn(Point)) {
        AT_POINT.store(visit as *mut (), Relaxed);
    }

    /// Compares only the bits of `mask` of a sequence number, so that it wraps soon.
    pub fn compare_seq(mask: u16) {
        SEQ_MASK.store(mask, Relaxed);
    }

    /// Binds new keys to slots with waiters first, a case that is rare otherwise.
    pub fn set_prefer_waiters(prefer: bool) {
        PREFER_WAITERS.store(prefer, Relaxed);
    }

    /// Lets sleeps last up to `ns`, so that a lost wake-up is not mended by the next look.
    pub fn set_slice(ns: u64) {
        SLICE.store(ns, Relaxed);
    }

    #[inline]
    pub(crate) fn point(point: Point) {
        let visit = AT_POINT.load(Relaxed);
        if !visit.is_null() {
            // SAFETY: only visit_points stores here, and it stores a fn(Point).
            unsafe { std::mem::transmute::<*mut (), fn(Point)>(visit)(point) }
        }
    }

    #[inline]
    pub(crate) fn mutant(mutant: Mutant) -> bool {
        MUTANT.load(Relaxed) == mutant as u8
    }

    #[inline]
    pub(crate) fn seq_mask() -> u16 {
        SEQ_MASK.load(Relaxed)
    }

    #[inline]
    pub(crate) fn prefer_waiters() -> bool {
        PREFER_WAITERS.load(Relaxed)
    }

    #[inline]
    pub(crate) fn slice(default: u64) -> u64 {
        match SLICE.load(Relaxed) {
            0 => default,
            ns => ns,
        }
    }

    /// What the environment asks of a program that can't call the functions above: BUFLOCK_TEST=panic makes every
    /// entry of the C API panic, the name of a bug plants it.
    pub(crate) fn entry() {
        static ASKED: OnceLock<String> = OnceLock::new();
        match ASKED.get_or_init(|| std::env::var("BUFLOCK_TEST").unwrap_or_default()).as_str() {
            "panic" => panic!("asked for by BUFLOCK_TEST"),
            "wall-clock" => plant(Mutant::WallClock),
            "freed-extend-releases" => plant(Mutant::FreedExtendReleases),
            "child-free-releases" => plant(Mutant::ChildFreeReleases),
            _ => {}
        }
    }
}

#[cfg(buflock_test)]
pub use on::*;

#[cfg(not(buflock_test))]
mod off {
    use super::{Mutant, Point};

    #[inline(always)]
    pub(crate) fn point(_: Point) {}

    #[inline(always)]
    pub(crate) const fn mutant(_: Mutant) -> bool {
        false
    }

    #[inline(always)]
    pub(crate) const fn seq_mask() -> u16 {
        u16::MAX
    }

    #[inline(always)]
    pub(crate) const fn prefer_waiters() -> bool {
        false
    }

    #[inline(always)]
    pub(crate) const fn slice(default: u64) -> u64 {
        default
    }

    #[inline(always)]
    pub(crate) fn entry() {}
}

#[cfg(not(buflock_test))]
pub(crate) use off::*;
