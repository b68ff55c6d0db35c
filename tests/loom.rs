//! The slot protocol under the C11 memory model. `shm::slot` itself runs here, on loom's atomics: loom tries every
//! order of steps that matters and every value that a load may return, within the bounds said below.
//!
//! ```text
//! RUSTFLAGS="--cfg buflock_loom" cargo test --release --test loom
//! ```
//!
//! What is bounded: two or three threads; one or two buckets of one slot; two attempts to bind per acquire; a clock
//! that each thread is given. How often a thread may be interrupted where it could go on is said at each test
//! (`Some(n)`); `None` is all there is. Sleeps never time out: a lost wake-up is a deadlock, which loom reports.
//!
//! Each property has a twin that must fail: the same code on atomics with one flaw, or with a step in the wrong order.
#![cfg(buflock_loom)]

use buflock::answer::Verdict;
use buflock::key::KeyHash;
use buflock::shm::atomics::{Atomic, Atomics};
use buflock::shm::slot::{Attempt, Bucket, Event, Hold, Host, Owner, Seen, Slot, Slots, State, UNIT_SHIFT, Wish};
use loom::cell::UnsafeCell;
use loom::sync::atomic::{AtomicU32, AtomicU64};
use loom::sync::{Condvar, Mutex};
use loom::thread;
use std::cell::Cell;
use std::collections::VecDeque;
use std::marker::PhantomData;
use std::mem::ManuallyDrop;
use std::ops::Deref;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::atomic::Ordering::{self, AcqRel, Acquire, Relaxed, SeqCst};
use std::sync::{Arc, Once};

/// What is wrong with a family of atomics.
trait Flaw: Send + Sync + 'static {
    /// Whether a sequentially consistent fence does anything.
    const FENCES: bool = true;
    /// Whether a compare-exchange orders what it is told to.
    const EXCHANGES_ORDER: bool = true;
    /// Whether a load orders what it is told to.
    const LOADS_ORDER: bool = true;
    /// The numbers whose compare-exchange does not compare.
    const BLIND: Option<Role> = None;
    /// Whether a ring raises the count of the futex.
    const RINGS_COUNT: bool = true;
    /// Whether setting and taking the bits of bells orders anything.
    const BITS_ORDER: bool = true;
}

/// Nothing.
struct Sound;
impl Flaw for Sound {}

struct NoFence;
impl Flaw for NoFence {
    const FENCES: bool = false;
}

struct RelaxedExchange;
impl Flaw for RelaxedExchange {
    const EXCHANGES_ORDER: bool = false;
}

/// Key and owner words are written as if by a plain store.
struct PlainStore;
impl Flaw for PlainStore {
    const BLIND: Option<Role> = Some(Role::Written);
}

/// Slots change hands without a look at who has them.
struct BlindWord;
impl Flaw for BlindWord {
    const BLIND: Option<Role> = Some(Role::Word);
}

/// No load orders anything.
struct RelaxedLoad;
impl Flaw for RelaxedLoad {
    const LOADS_ORDER: bool = false;
}

struct UncountedRing;
impl Flaw for UncountedRing {
    const RINGS_COUNT: bool = false;
}

struct RelaxedBits;
impl Flaw for RelaxedBits {
    const BITS_ORDER: bool = false;
}

/// loom's atomics, with a flaw.
struct Modelled<F>(PhantomData<F>);

impl<F: Flaw> Atomics for Modelled<F> {
    type U32 = Futex<F>;
    type U64 = Number<F>;

    fn fence(order: Ordering) {
        if order != SeqCst || F::FENCES {
            loom::sync::atomic::fence(order);
        }
    }

    fn pause(_: u32) {
        thread::yield_now();
    }
}

/// What a number is for.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Role {
    /// A slot's word, or a counter.
    Word,
    /// A key word or an owner word: written by who has claimed or taken the slot.
    Written,
}

/// A 64-bit atomic. None: reserved, so nothing may touch it; loom would count it as state.
struct Number<F> {
    cell: Option<AtomicU64>,
    role: Role,
    flaw: PhantomData<fn() -> F>,
}

impl<F> Number<F> {
    fn new(role: Role) -> Self {
        Self { cell: Some(AtomicU64::new(0)), role, flaw: PhantomData }
    }

    fn reserved() -> Self {
        Self { cell: None, role: Role::Word, flaw: PhantomData }
    }

    fn cell(&self) -> &AtomicU64 {
        self.cell.as_ref().expect("reserved")
    }
}

impl<F: Flaw> Atomic<u64> for Number<F> {
    fn load(&self, order: Ordering) -> u64 {
        self.cell().load(if F::LOADS_ORDER { order } else { Relaxed })
    }

    fn store(&self, value: u64, order: Ordering) {
        self.cell().store(value, order);
    }

    fn compare_exchange(&self, old: u64, new: u64, success: Ordering, failure: Ordering) -> Result<u64, u64> {
        if F::BLIND == Some(self.role) {
            return Ok(self.cell().swap(new, success));
        }
        let success = if F::EXCHANGES_ORDER { success } else { Relaxed };
        self.cell().compare_exchange(old, new, success, failure)
    }

    fn fetch_add(&self, value: u64, order: Ordering) -> u64 {
        self.cell().fetch_add(value, order)
    }

    fn fetch_or(&self, value: u64, order: Ordering) -> u64 {
        self.cell().fetch_or(value, if F::BITS_ORDER { order } else { Relaxed })
    }

    fn swap(&self, value: u64, order: Ordering) -> u64 {
        self.cell().swap(value, if F::BITS_ORDER { order } else { Relaxed })
    }
}

/// A futex as the kernel has it: whoever looks at its value before sleeping, and whoever wakes, has the lock of its
/// queue. Waking finds only those who sleep already. loom's mutex is a full barrier each time, as the kernel's is.
struct Futex<F> {
    count: AtomicU32,
    queue: Mutex<Queue>,
    changed: Condvar,
    flaw: PhantomData<fn() -> F>,
}

#[derive(Default)]
struct Queue {
    sleepers: VecDeque<u32>,
    tickets: u32,
}

impl<F: Flaw> Futex<F> {
    fn new() -> Self {
        let (count, queue) = (AtomicU32::new(0), Mutex::new(Queue::default()));
        Self { count, queue, changed: Condvar::new(), flaw: PhantomData }
    }

    fn wake(&self, most: u32) -> u32 {
        let mut queue = self.queue.lock().unwrap();
        let woken = queue.sleepers.len().min(most as usize);
        queue.sleepers.drain(..woken);
        self.changed.notify_all();
        u32::try_from(woken).unwrap()
    }

    /// True: a wake-up was consumed.
    fn wait(&self, count: u32) -> bool {
        let mut queue = self.queue.lock().unwrap();
        if self.count.load(Relaxed) != count {
            return false;
        }
        queue.tickets += 1;
        let ticket = queue.tickets;
        queue.sleepers.push_back(ticket);
        while queue.sleepers.contains(&ticket) {
            queue = self.changed.wait(queue).unwrap();
        }
        true
    }
}

impl<F: Flaw> Atomic<u32> for Futex<F> {
    fn load(&self, order: Ordering) -> u32 {
        self.count.load(order)
    }

    fn store(&self, value: u32, order: Ordering) {
        self.count.store(value, order);
    }

    fn compare_exchange(&self, old: u32, new: u32, success: Ordering, failure: Ordering) -> Result<u32, u32> {
        self.count.compare_exchange(old, new, success, failure)
    }

    fn fetch_add(&self, value: u32, order: Ordering) -> u32 {
        if F::RINGS_COUNT { self.count.fetch_add(value, order) } else { self.count.load(Acquire) }
    }

    fn fetch_or(&self, value: u32, order: Ordering) -> u32 {
        self.count.fetch_or(value, order)
    }

    fn swap(&self, value: u32, order: Ordering) -> u32 {
        self.count.swap(value, order)
    }
}

type Place<F> = Bucket<Modelled<F>, 1>;

/// A table, and what its locks protect.
struct Table<F: Flaw> {
    buckets: Vec<Place<F>>,
    /// Of member 1.
    mailbox: Futex<F>,
    /// By key: the fence number of the last holder.
    protected: [UnsafeCell<u64>; 2],
}

/// A table that threads share. An `Arc` of std, so that the counting is not part of the model: the thread that made it
/// joins the others and drops it last.
struct Shared<F: Flaw>(ManuallyDrop<Arc<Table<F>>>);

impl<F: Flaw> Shared<F> {
    fn new(table: Table<F>) -> Self {
        Self(ManuallyDrop::new(Arc::new(table)))
    }
}

impl<F: Flaw> Clone for Shared<F> {
    fn clone(&self) -> Self {
        Self(self.0.clone())
    }
}

impl<F: Flaw> Deref for Shared<F> {
    type Target = Table<F>;

    fn deref(&self) -> &Table<F> {
        &self.0
    }
}

impl<F: Flaw> Drop for Shared<F> {
    /// After a failure loom has stopped, and its atomics would panic again when they are dropped.
    fn drop(&mut self) {
        if !std::thread::panicking() {
            // SAFETY: not used again.
            unsafe { ManuallyDrop::drop(&mut self.0) };
        }
    }
}

// SAFETY: the cells are only touched by who holds the lock; that this is enough is what loom checks.
unsafe impl<F: Flaw> Sync for Table<F> {}
// SAFETY: nothing in it belongs to a thread.
unsafe impl<F: Flaw> Send for Table<F> {}

fn slot<F: Flaw>() -> Slot<Modelled<F>> {
    Slot {
        word: Number::new(Role::Word),
        key: std::array::from_fn(|_| Number::new(Role::Written)),
        owner: Number::new(Role::Written),
        acquirers: Futex::new(),
        awaiters: Futex::new(),
        bells: Number::new(Role::Word),
        reserved: Number::reserved(),
    }
}

impl<F: Flaw> Table<F> {
    fn share(buckets: usize) -> Shared<F> {
        let bucket = || Bucket {
            fence: Number::new(Role::Word),
            reserved: std::array::from_fn(|_| Number::reserved()),
            slots: [slot()],
        };
        let buckets = std::iter::repeat_with(bucket).take(buckets).collect();
        Shared::new(Self { buckets, mailbox: Futex::new(), protected: std::array::from_fn(|_| UnsafeCell::new(0)) })
    }

    /// In how many slots a key is bound to stay.
    fn homes(&self, key: Key) -> usize {
        let process = Process::new(self, 0);
        let slots = process.slots();
        let is_home = |number: &u32| {
            let has_key = slots.slot(*number).key.iter().all(|word| word.load(Relaxed) >> 32 == u64::from(key.tag()));
            matches!(slots.word(*number).state(), State::Free | State::Held) && has_key
        };
        (0..slots.count()).filter(is_home).count()
    }
}

/// A key, and the slots it prefers.
#[derive(Clone, Copy)]
struct Key {
    name: usize,
    first: u32,
    second: u32,
}

impl Key {
    fn tag(self) -> u32 {
        u32::try_from(self.name).unwrap() + 1
    }

    fn hash(self) -> KeyHash {
        KeyHash { first: self.first, second: self.second, tags: [self.tag(); 3] }
    }
}

const A: Key = Key { name: 0, first: 0, second: 1 };
/// The same key, but looked for in the other slot first: binders then meet only in the window, as when one of them
/// found its first choice in use.
const A_SWAPPED: Key = Key { first: 1, second: 0, ..A };
/// Keys with one slot only.
const A_HERE: Key = Key { second: 0, ..A };
const B_HERE: Key = Key { name: 1, ..A_HERE };

/// A process's clock and its calls to the kernel.
struct Process<'a, F: Flaw> {
    table: &'a Table<F>,
    clock: Cell<u64>,
}

impl<F: Flaw> Host for Process<'_, F> {
    type Atomics = Modelled<F>;
    const RESTARTS: u32 = 2;

    fn now(&self) -> u64 {
        self.clock.get() << UNIT_SHIFT
    }

    fn wake(&self, futex: &Futex<F>, most: u32) -> u32 {
        futex.wake(most)
    }

    fn ring(&self, bells: u64) {
        assert_eq!(bells, 1, "a bell that nobody has");
        self.table.mailbox.fetch_add(1, AcqRel);
        self.table.mailbox.wake(u32::MAX);
    }

    fn count(&self, _: Event) {}
}

impl<'a, F: Flaw> Process<'a, F> {
    fn new(table: &'a Table<F>, units: u64) -> Self {
        Self { table, clock: Cell::new(units) }
    }

    fn slots(&self) -> Slots<'_, Self, 1> {
        Slots::new(&self.table.buckets, self)
    }

    /// One try to take a key for `units`.
    fn acquire(&self, key: Key, units: u64, slept: bool) -> Attempt {
        let wish = Wish { ttl: units << UNIT_SHIFT, member: Owner::NO_RECORD, slept };
        self.slots().acquire(&key.hash(), &wish, None)
    }

    fn take(&self, key: Key, units: u64) -> Option<Hold> {
        match self.acquire(key, units, false) {
            Attempt::Held(hold) => Some(hold),
            _ => None,
        }
    }

    fn release(&self, key: Key, hold: Hold) -> Verdict {
        self.slots().release(&key.hash(), hold.slot, hold.owner)
    }

    fn extend(&self, key: Key, hold: Hold, units: u64) -> bool {
        self.slots().extend(&key.hash(), hold.slot, hold.owner, units << UNIT_SHIFT).is_ok()
    }

    /// What only a holder may do. loom reports a race if two do it at a time, or if one does not see the other's work.
    fn use_lock(&self, key: Key, hold: Hold) {
        // SAFETY: under the lock of this key.
        self.table.protected[key.name].with_mut(|last| unsafe {
            let counted_elsewhere = key.first != A.first;
            assert!(counted_elsewhere || *last < hold.fence, "fence numbers do not grow");
            *last = if counted_elsewhere { *last } else { hold.fence };
        });
    }

    /// False: there was no lock to be had.
    fn take_and_release(&self, key: Key) -> bool {
        self.take(key, LONG).inspect(|hold| self.use_and_release(key, *hold)).is_some()
    }

    fn use_and_release(&self, key: Key, hold: Hold) {
        self.use_lock(key, hold);
        assert_eq!(self.release(key, hold), Verdict::Ok, "an unexpired lock was lost");
    }
}

/// A lease that never runs out here, in units.
const LONG: u64 = 1000;

fn explore(preemptions: Option<usize>, model: impl Fn() + Sync + Send + 'static) {
    let mut builder = loom::model::Builder::new();
    builder.preemption_bound = preemptions;
    builder.max_branches = 20_000;
    builder.check(model);
}

thread_local! {
    static FAILURE_IS_EXPECTED: Cell<bool> = const { Cell::new(false) };
}

/// Runs a model that must fail, and not for any reason: with one of these texts.
fn must_fail(reasons: &[&str], preemptions: Option<usize>, model: impl Fn() + Sync + Send + 'static) {
    static HOOK: Once = Once::new();
    HOOK.call_once(|| {
        let loud = std::panic::take_hook();
        std::panic::set_hook(Box::new(move |info| {
            if !FAILURE_IS_EXPECTED.get() {
                loud(info);
            }
        }));
    });
    FAILURE_IS_EXPECTED.set(true);
    let failure = catch_unwind(AssertUnwindSafe(|| explore(preemptions, model)));
    FAILURE_IS_EXPECTED.set(false);
    let failure = failure.expect_err("the flaw was not found");
    let text = failure.downcast_ref::<String>().cloned();
    let text = text.or_else(|| failure.downcast_ref::<&str>().map(ToString::to_string)).unwrap_or_default();
    assert!(reasons.iter().any(|reason| text.contains(reason)), "failed for another reason: {text}");
}

/// Two bind one key at once.
fn bind_bind<F: Flaw>(keys: [Key; 2]) {
    let table = Table::<F>::share(2);
    let threads = keys.map(|key| {
        let table = table.clone();
        thread::spawn(move || Process::new(&table, 10).take_and_release(key))
    });
    let held = threads.map(|thread| thread.join().unwrap());
    assert!(held[0] || held[1], "both gave way");
    assert!(table.homes(A) <= 1, "two slots have one key");
}

#[test]
fn binders_of_one_key_who_prefer_the_same_slot() {
    explore(Some(4), || bind_bind::<Sound>([A, A]));
}

#[test]
fn binders_of_one_key_who_prefer_different_slots() {
    explore(Some(4), || bind_bind::<Sound>([A, A_SWAPPED]));
}

#[test]
fn binders_need_the_fence() {
    must_fail(&["Causality violation"], Some(3), || bind_bind::<NoFence>([A, A_SWAPPED]));
}

#[test]
fn binders_need_ordered_exchanges() {
    must_fail(&["Causality violation"], Some(3), || bind_bind::<RelaxedExchange>([A, A]));
}

/// The slot of a key that is free is taken, and bound to another key, at once.
fn bind_rebind<F: Flaw>() {
    let table = Table::<F>::share(1);
    Process::new(&table, 10).take_and_release(A_HERE);
    let threads = [A_HERE, B_HERE].map(|key| {
        let table = table.clone();
        thread::spawn(move || Process::new(&table, 10).take_and_release(key))
    });
    let held = threads.map(|thread| thread.join().unwrap());
    assert!(held[0] || held[1], "both gave way");
    assert_eq!(table.homes(A_HERE) + table.homes(B_HERE), 1, "the slot's key is torn");
}

#[test]
fn a_slot_is_taken_and_bound_to_another_key() {
    explore(None, bind_rebind::<Sound>);
}

#[test]
fn rebinding_needs_ordered_loads() {
    must_fail(&["an unexpired lock was lost"], Some(3), bind_rebind::<RelaxedLoad>);
}

/// One takes a key; the other binds the key's slot to another key, and then wants the first key too. They may meet in
/// two slots.
fn bind_moved<F: Flaw>() {
    let table = Table::<F>::share(2);
    Process::new(&table, 10).take_and_release(A);
    let stayer = thread::spawn({
        let table = table.clone();
        move || Process::new(&table, 10).take_and_release(A)
    });
    let mover = Process::new(&table, 10);
    let other = mover.take(B_HERE, LONG);
    mover.take_and_release(A);
    other.inspect(|hold| mover.use_and_release(B_HERE, *hold));
    stayer.join().unwrap();
    assert!(table.homes(A) <= 1, "two slots have one key");
}

#[test]
fn a_key_moves_to_another_slot_while_it_is_taken() {
    explore(Some(3), bind_moved::<Sound>);
}

#[test]
fn a_key_that_moves_needs_ordered_loads() {
    must_fail(&["an unexpired lock was lost"], Some(3), bind_moved::<RelaxedLoad>);
}

/// A binder is so slow that another, whose clock says so, takes its slot over.
fn bind_takeover<F: Flaw>() {
    let table = Table::<F>::share(1);
    let threads = [(A_HERE, 0), (B_HERE, 100)].map(|(key, clock)| {
        let table = table.clone();
        thread::spawn(move || Process::new(&table, clock).take_and_release(key))
    });
    let held = threads.map(|thread| thread.join().unwrap());
    assert!(held[0] || held[1], "both gave way");
    assert_eq!(table.homes(A_HERE) + table.homes(B_HERE), 1, "the slot's key is torn");
}

#[test]
fn a_slow_binder_is_overtaken() {
    explore(Some(3), bind_takeover::<Sound>);
}

#[test]
fn a_slow_binder_must_compare() {
    must_fail(&["an unexpired lock was lost", "torn"], Some(3), bind_takeover::<PlainStore>);
}

/// One takes a free lock for a moment and extends its lease in time; another finds the lease over and steals.
fn take_steal_extend<F: Flaw>() {
    let table = Table::<F>::share(1);
    Process::new(&table, 0).take_and_release(A_HERE);
    let short = thread::spawn({
        let table = table.clone();
        move || {
            let process = Process::new(&table, 10);
            let Some(hold) = process.take(A_HERE, 2) else { return };
            process.clock.set(11);
            // A lease that may be over proves nothing. Once it is extended, the other's clock is within it.
            if process.extend(A_HERE, hold, LONG) {
                process.use_and_release(A_HERE, hold);
            }
        }
    });
    let stealer = thread::spawn({
        let table = table.clone();
        move || Process::new(&table, 20).take_and_release(A_HERE)
    });
    short.join().unwrap();
    stealer.join().unwrap();
}

#[test]
fn a_lock_is_taken_and_stolen_and_extended() {
    explore(Some(4), take_steal_extend::<Sound>);
}

#[test]
fn owners_must_compare() {
    must_fail(&["an unexpired lock was lost"], Some(3), take_steal_extend::<PlainStore>);
}

#[test]
fn owners_need_ordered_loads() {
    must_fail(&["an unexpired lock was lost"], Some(3), take_steal_extend::<RelaxedLoad>);
}

/// A hold whose lease is over is released while another takes its slot, for the same key or for another one.
fn stale_release<F: Flaw>(next: Key) {
    let table = Table::<F>::share(1);
    let old = Process::new(&table, 0).take(A_HERE, 5).unwrap();
    let releaser = thread::spawn({
        let table = table.clone();
        move || assert_ne!(Process::new(&table, 10).release(A_HERE, old), Verdict::Ok, "the lease was over")
    });
    let taker = thread::spawn({
        let table = table.clone();
        move || assert!(Process::new(&table, 10).take_and_release(next), "nobody else wants it")
    });
    releaser.join().unwrap();
    taker.join().unwrap();
}

#[test]
fn a_stale_release_spares_the_next_holder() {
    explore(None, || stale_release::<Sound>(A_HERE));
}

#[test]
fn a_stale_release_spares_the_next_key() {
    explore(None, || stale_release::<Sound>(B_HERE));
}

#[test]
fn a_release_must_compare() {
    for next in [A_HERE, B_HERE] {
        must_fail(&["an unexpired lock was lost"], None, move || stale_release::<BlindWord>(next));
    }
}

/// The last step before a sleep.
type Arm<F> = fn(&Process<F>, Seen, &Futex<F>) -> Option<u32>;

fn arm<F: Flaw>(process: &Process<F>, seen: Seen, futex: &Futex<F>) -> Option<u32> {
    process.slots().arm(seen, futex)
}

/// Wrong: a release between the two is missed.
fn arm_and_count_then<F: Flaw>(process: &Process<F>, seen: Seen, futex: &Futex<F>) -> Option<u32> {
    arm(process, seen, futex)?;
    Some(futex.load(Acquire))
}

/// Wrong: that there were waiters does not say that the hold still stands.
fn arm_without_a_look<F: Flaw>(process: &Process<F>, seen: Seen, futex: &Futex<F>) -> Option<u32> {
    if seen.word.waiters() { Some(futex.load(Acquire)) } else { arm(process, seen, futex) }
}

/// Acquires, waiting as long as it takes. None: another key has the only slot.
fn wait<F: Flaw>(process: &Process<F>, key: Key, arm: Arm<F>) -> Option<Hold> {
    let mut slept = false;
    loop {
        match process.acquire(key, LONG, slept) {
            Attempt::Held(hold) => return Some(hold),
            Attempt::Busy(seen) => {
                sleep(process, seen, arm);
            }
            Attempt::Contended => thread::yield_now(),
            Attempt::Full => return None,
        }
        slept = true;
    }
}

/// True: a wake-up was consumed.
fn sleep<F: Flaw>(process: &Process<F>, seen: Seen, arm: Arm<F>) -> bool {
    let futex = &process.slots().slot(seen.slot).acquirers;
    arm(process, seen, futex).is_some_and(|count| futex.wait(count))
}

/// `waiters` wait for a lock while its holder extends and releases it.
fn wait_wake<F: Flaw>(waiters: usize, arm: Arm<F>) {
    let table = Table::<F>::share(1);
    let holder = Process::new(&table, 0);
    let hold = holder.take(A_HERE, LONG).unwrap();
    let threads = Vec::from_iter((0..waiters).map(|_| {
        let table = table.clone();
        thread::spawn(move || {
            let process = Process::new(&table, 0);
            let hold = wait(&process, A_HERE, arm).unwrap();
            process.use_and_release(A_HERE, hold);
        })
    }));
    if waiters == 1 {
        assert!(holder.extend(A_HERE, hold, LONG + 1)); // with two it would take ten times as long
    }
    holder.use_and_release(A_HERE, hold);
    for thread in threads {
        thread.join().unwrap();
    }
}

const LOST: &[&str] = &["deadlock"];

#[test]
fn a_waiter_is_woken() {
    explore(Some(4), || wait_wake::<Sound>(1, arm));
}

#[test]
fn two_waiters_are_woken() {
    explore(Some(2), || wait_wake::<Sound>(2, arm));
}

#[test]
fn the_count_must_come_first() {
    must_fail(LOST, Some(3), || wait_wake::<Sound>(1, arm_and_count_then));
}

#[test]
fn the_word_must_be_looked_at_again() {
    must_fail(LOST, Some(3), || wait_wake::<Sound>(2, arm_without_a_look));
}

#[test]
fn a_ring_must_be_counted() {
    must_fail(LOST, Some(3), || wait_wake::<UncountedRing>(1, arm));
}

/// Of two waiters one leaves, perhaps with the only wake-up.
fn wait_leave<F: Flaw>(leave: fn(&Process<F>, u32)) {
    let table = Table::<F>::share(1);
    let holder = Process::new(&table, 0);
    let hold = holder.take(A_HERE, LONG).unwrap();
    let leaver = thread::spawn({
        let table = table.clone();
        move || {
            let process = Process::new(&table, 0);
            match process.acquire(A_HERE, LONG, false) {
                Attempt::Held(hold) => process.use_and_release(A_HERE, hold),
                Attempt::Busy(seen) if sleep(&process, seen, arm) => leave(&process, seen.slot),
                _ => {}
            }
        }
    });
    let stayer = thread::spawn({
        let table = table.clone();
        move || {
            let process = Process::new(&table, 0);
            let hold = wait(&process, A_HERE, arm).unwrap();
            process.use_and_release(A_HERE, hold);
        }
    });
    holder.use_and_release(A_HERE, hold);
    leaver.join().unwrap();
    stayer.join().unwrap();
}

#[test]
fn a_leaver_passes_its_wake_up_on() {
    explore(Some(2), || wait_leave::<Sound>(|process, slot| process.slots().pass_on(slot)));
}

#[test]
fn a_leaver_must_pass_its_wake_up_on() {
    must_fail(LOST, Some(3), || wait_leave::<Sound>(|_, _| {}));
}

/// One waits to have the lock, another only for the end of the hold it sees.
fn wait_await<F: Flaw>() {
    let table = Table::<F>::share(1);
    let holder = Process::new(&table, 0);
    let hold = holder.take(A_HERE, LONG).unwrap();
    let first = holder.slots().word(hold.slot).seq();
    let waiter = thread::spawn({
        let table = table.clone();
        move || {
            let process = Process::new(&table, 0);
            let hold = wait(&process, A_HERE, arm).unwrap();
            process.use_and_release(A_HERE, hold);
        }
    });
    let awaiter = thread::spawn({
        let table = table.clone();
        move || {
            let process = Process::new(&table, 0);
            let slots = process.slots();
            while let Some(seen) = slots.holding(&A_HERE.hash()).filter(|seen| seen.word.seq() == first) {
                let futex = &slots.slot(seen.slot).awaiters;
                if let Some(count) = arm(&process, seen, futex) {
                    futex.wait(count);
                }
            }
        }
    });
    holder.use_and_release(A_HERE, hold);
    waiter.join().unwrap();
    awaiter.join().unwrap();
}

#[test]
fn awaiters_are_told() {
    explore(Some(2), wait_await::<Sound>);
}

#[test]
fn the_ring_for_awaiters_must_be_counted() {
    must_fail(LOST, Some(2), wait_await::<UncountedRing>);
}

/// A lock whose lease is over is waited for by one whose clock is behind, while its slot is bound to another key.
fn wait_rebind<F: Flaw>() {
    let table = Table::<F>::share(1);
    Process::new(&table, 0).take(A_HERE, 5).unwrap();
    let waiter = thread::spawn({
        let table = table.clone();
        move || {
            let process = Process::new(&table, 1);
            if let Some(hold) = wait(&process, A_HERE, arm) {
                process.use_and_release(A_HERE, hold);
            }
        }
    });
    let rebinder = thread::spawn({
        let table = table.clone();
        move || assert!(Process::new(&table, 10).take_and_release(B_HERE), "nobody holds it")
    });
    waiter.join().unwrap();
    rebinder.join().unwrap();
}

#[test]
fn waiters_are_told_that_their_slot_is_bound_to_another_key() {
    explore(None, wait_rebind::<Sound>);
}

#[test]
fn the_ring_of_a_binder_must_be_counted() {
    must_fail(LOST, Some(3), wait_rebind::<UncountedRing>);
}

/// How a bell is armed; false: look again.
type ArmBell<F> = fn(&Process<F>, Seen) -> bool;

fn arm_bell<F: Flaw>(process: &Process<F>, seen: Seen) -> bool {
    process.slots().arm_bell(seen, 1)
}

/// Wrong: a release between the two takes no bit.
fn arm_bell_then_bit<F: Flaw>(process: &Process<F>, seen: Seen) -> bool {
    let slot = process.slots().slot(seen.slot);
    let armed = process.slots().arm(seen, &slot.awaiters).is_some();
    slot.bells.fetch_or(1, AcqRel);
    armed
}

/// Acquires and releases, sleeping on the mailbox until the bell is rung. Another key may get the only slot.
fn use_by_bell<F: Flaw>(table: &Table<F>, units: u64, arm_bell: ArmBell<F>) {
    let process = Process::new(table, units);
    loop {
        let count = table.mailbox.load(Acquire);
        match process.acquire(A_HERE, LONG, false) {
            Attempt::Held(hold) => return process.use_and_release(A_HERE, hold),
            Attempt::Busy(seen) if arm_bell(&process, seen) => {
                table.mailbox.wait(count);
            }
            Attempt::Busy(_) | Attempt::Contended => thread::yield_now(),
            Attempt::Full => return,
        }
    }
}

/// A holder releases, while another process waits for its bell. With `flagged` the word says already that there are
/// waiters, so that arming only reads it.
fn wait_by_bell<F: Flaw>(flagged: bool, arm_bell: ArmBell<F>) {
    let table = Table::<F>::share(1);
    let holder = Process::new(&table, 0);
    let hold = holder.take(A_HERE, LONG).unwrap();
    if flagged {
        let seen = holder.slots().holding(&A_HERE.hash()).unwrap();
        assert!(arm(&holder, seen, &holder.slots().slot(seen.slot).awaiters).is_some());
    }
    let waiter = thread::spawn({
        let table = table.clone();
        move || use_by_bell(&table, 0, arm_bell)
    });
    holder.use_and_release(A_HERE, hold);
    waiter.join().unwrap();
}

#[test]
fn a_bell_is_rung() {
    explore(Some(4), || wait_by_bell::<Sound>(false, arm_bell));
    explore(Some(4), || wait_by_bell::<Sound>(true, arm_bell));
}

#[test]
fn the_bit_must_come_first() {
    must_fail(LOST, Some(3), || wait_by_bell::<Sound>(false, arm_bell_then_bit));
}

#[test]
fn bits_must_order() {
    must_fail(LOST, Some(3), || wait_by_bell::<RelaxedBits>(true, arm_bell));
}

/// The slot of a lock whose lease is over is bound to another key, while one whose clock is behind waits for its bell.
#[test]
fn a_bell_is_rung_when_its_slot_goes_to_another_key() {
    explore(Some(3), || {
        let table = Table::<Sound>::share(1);
        Process::new(&table, 0).take(A_HERE, 5).unwrap();
        let waiter = thread::spawn({
            let table = table.clone();
            move || use_by_bell(&table, 1, arm_bell)
        });
        assert!(Process::new(&table, 10).take_and_release(B_HERE), "nobody holds it");
        waiter.join().unwrap();
    });
}
