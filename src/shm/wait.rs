//! How a wait passes: its time, and sleeping on a slot's futexes, with a look at the end of every slice.

use super::clock::futex_wait;
use super::slot::{Seen, UNIT_SHIFT};
use super::table::Table;
use crate::hooks::{self, Mutant, Point, mutant, point};
use crate::policy::{NS_PER_MS, ms_passed};
use crate::sys::{Slept, sleep};
use std::sync::atomic::AtomicU32;
use std::sync::atomic::Ordering::Acquire;

/// The longest sleep, in ns. It bounds what a wake-up costs that was lost with a killed process.
pub const SLICE: u64 = 50 * NS_PER_MS;
/// The pause when too many others bind keys at the same place.
const PAUSE: u64 = 200_000;

/// A wait of one call. The clock is read only when there is something to wait for.
#[derive(Clone, Copy, Debug)]
pub struct Wait {
    length: u64,
    since: Option<u64>,
    /// Table and slot whose wake-up was consumed without a lock or a busy one being found since.
    owed: Option<(u32, u32)>,
}

impl Wait {
    /// A wait of at most `wait_ms`.
    #[inline]
    pub fn new(wait_ms: u32) -> Self {
        Self { length: u64::from(wait_ms) * NS_PER_MS, since: None, owed: None }
    }

    /// Whether there was anything to wait for yet: then others may sleep too.
    #[inline]
    pub fn has_begun(&self) -> bool {
        self.since.is_some()
    }

    /// How long it has lasted, in ms.
    pub fn waited_ms(&self, table: &Table) -> u32 {
        self.since.map_or(0, |since| ms_passed(table.clock().waiting().saturating_sub(since)))
    }

    /// What is left of it, in ns; None: it is over. It begins with the first question.
    pub fn left(&mut self, table: &Table) -> Option<u64> {
        if self.length == 0 {
            return None;
        }
        let now = table.clock().waiting();
        let passed = now.saturating_sub(*self.since.get_or_insert(now));
        self.length.checked_sub(passed).filter(|left| *left > 0)
    }

    /// Sleeps, no longer than `left`, until the hold that was seen may have ended.
    pub fn for_release(&mut self, table: &Table, seen: Seen, left: u64) -> Slept {
        let futex = &table.slots().slot(seen.slot).acquirers;
        let slept = sleep_on(futex, table, seen, left, [Point::Armed, Point::Slept]);
        self.owed = (slept == Slept::Woken).then_some((table.segment.header.id, seen.slot));
        slept
    }

    /// Sleeps, no longer than `left`, until the hold that was seen may have ended, without wanting the lock.
    pub fn for_end(table: &Table, seen: Seen, left: u64) -> Slept {
        let futex = &table.slots().slot(seen.slot).awaiters;
        sleep_on(futex, table, seen, left, [Point::AwaitArmed, Point::AwaitSlept])
    }

    /// Pauses for a moment in which others may finish binding keys.
    pub fn for_others(left: u64) -> Slept {
        sleep(left.min(PAUSE))
    }

    /// The lock is busy: its release wakes the next one, so no wake-up is owed.
    pub fn found_busy(&mut self) {
        self.owed = None;
    }

    /// Whether a wake-up was consumed that another may need.
    pub fn owes(&self) -> bool {
        self.owed.is_some()
    }

    /// The caller leaves without another try: the wake-up it consumed goes to the next one. In a table that was deleted
    /// nobody needs it.
    pub fn leave(&mut self, table: &Table) {
        if let Some((id, slot)) = self.owed.take()
            && id == table.segment.header.id
        {
            table.slots().pass_on(slot);
        }
    }
}

fn sleep_on(futex: &AtomicU32, table: &Table, seen: Seen, left: u64, [before, after]: [Point; 2]) -> Slept {
    let until = table.clock().now() + left.min(hooks::slice(SLICE));
    let Some(count) = table.slots().arm(seen, futex) else { return Slept::Changed };
    point(before);
    // A holder that died sends nothing: look when its lease ends.
    let slept = futex_wait(futex, count, table.clock(), until.min(seen.word.until() << UNIT_SHIFT));
    point(after);
    slept
}

/// What an awaiter saw when it began: it waits for the end of this hold.
#[derive(Clone, Copy, Debug)]
pub struct First {
    table: u32,
    slot: u32,
    seq: u16,
    rings: u32,
}

impl First {
    /// Of a hold.
    pub fn of(table: &Table, seen: Seen) -> Self {
        Self { table: table.segment.header.id, slot: seen.slot, seq: seen.word.seq(), rings: rings(table, seen) }
    }

    /// Whether `seen` is the same hold. That awaiters were rung proves nothing: a releaser that was stopped may ring
    /// late, when the next holder has long been there.
    pub fn is_still(self, table: &Table, seen: Seen) -> bool {
        let same_slot = self.table == table.segment.header.id && self.slot == seen.slot;
        let same = same_slot && self.seq == seen.word.seq();
        same && !(mutant(Mutant::AwaitBelievesCount) && self.rings != rings(table, seen))
    }
}

fn rings(table: &Table, seen: Seen) -> u32 {
    table.slots().slot(seen.slot).awaiters.load(Acquire)
}
