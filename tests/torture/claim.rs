//! The scene of a claim whose time is older than the word that it replaces. It needs clock readings that are the same to
//! the unit, so it has a clock of its own, which stands still, and a table of one bucket with two slots.

use super::scenes::{Wrong, ensure};
use super::stage::{Actor, Stage};
use buflock::hooks::Point;
use buflock::key::KeyHash;
use buflock::shm::atomics::{Atomics, Native};
use buflock::shm::slot::{Attempt, Bucket, Event, Hold, Host, Slots, UNIT_SHIFT, Wish};
use std::sync::Arc;
use std::sync::atomic::AtomicU64;
use std::sync::atomic::Ordering::SeqCst;

/// Longer than the scene: 18 minutes.
const TTL: u64 = 1 << 40;

struct Little {
    buckets: [Bucket<Native, 2>; 1],
    units: AtomicU64,
}

impl Host for Little {
    type Atomics = Native;

    fn now(&self) -> u64 {
        self.units.load(SeqCst) << UNIT_SHIFT
    }

    fn wake(&self, _: &<Native as Atomics>::U32, _: u32) -> u32 {
        0
    }

    fn ring(&self, _: u64) {}

    fn count(&self, _: Event) {}
}

fn key(number: u32) -> KeyHash {
    KeyHash { first: 0, second: 0, tags: [number, number + 100, number + 200] }
}

impl Little {
    fn slots(&self) -> Slots<'_, Self, 2> {
        Slots::new(&self.buckets, self)
    }

    fn take(&self, number: u32) -> Option<Hold> {
        match self.slots().acquire(&key(number), &Wish { ttl: TTL, member: 1, slept: false }, None) {
            Attempt::Held(hold) => Some(hold),
            _ => None,
        }
    }

    fn take_and_release(&self, number: u32) {
        let hold = self.take(number).expect("a slot");
        self.slots().release(&key(number), hold.slot, hold.owner);
    }
}

/// Of five who bind keys to one slot, the first has read the clock before all others, and comes last.
pub fn late_claim(stage: &Stage) -> Result<(), Wrong> {
    // SAFETY: a bucket is atomics, for which zero is a value.
    let buckets = unsafe { std::mem::zeroed() };
    let table = Arc::new(Little { buckets, units: AtomicU64::new(100) });
    let acts = |stop_at, number| -> Actor<Option<Hold>> {
        let table = table.clone();
        stage.act(Some(stop_at), move |_, _| table.take(number))
    };
    let neighbour = table.take(9).expect("the first slot"); // so that the others meet in the second
    table.units.store(1000, SeqCst);
    let late = acts(Point::BeforeVictim, 1);
    late.arrives();
    table.take_and_release(1); // the same key at the same time: the same tags
    table.units.store(1001, SeqCst);
    let torn = acts(Point::KeyRead, 2);
    torn.arrives();
    table.units.store(1020, SeqCst); // the claim of that one is overdue
    table.take_and_release(3);
    let late = late.result();
    ensure(late.is_some(), "a slot that is free was not to be had")?;
    let _ = torn.result(); // finds the words that it read, if tags repeat
    table.slots().release(&key(9), neighbour.slot, neighbour.owner);
    ensure(table.take(1).is_none(), "two hold one key")
}
