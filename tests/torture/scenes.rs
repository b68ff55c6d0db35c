//! Small scenes, each of one interleaving in which one mistake does harm. The library as it is must pass all of them,
//! and each planted bug must fail in its scene.

use super::claim::late_claim;
use super::stage::{LONG, Stage, take, until};
use super::steps::acquire_by_bell;
use super::sys::{self, Child, Ended};
use buflock::answer::{Await, Verdict};
use buflock::client::Client;
use buflock::hooks::{self, Mutant, Point};
use buflock::policy::NS_PER_MS;
use buflock::shm::clock::futex_wait;
use buflock::shm::slot::Attempt;
use buflock::shm::table::Table;
use buflock::step::Step;
use buflock::sys::Slept;

/// What was seen to be wrong.
pub type Wrong = &'static str;

/// A scene, and the bugs that it shows.
pub struct Scene {
    pub name: &'static str,
    /// Of its table.
    pub buckets: usize,
    pub play: fn(&Stage) -> Result<(), Wrong>,
    pub mutants: &'static [Mutant],
}

const fn scene(
    name: &'static str,
    buckets: usize,
    play: fn(&Stage) -> Result<(), Wrong>,
    mutants: &'static [Mutant],
) -> Scene {
    Scene { name, buckets, play, mutants }
}

/// All of them.
pub const SCENES: [Scene; 16] = [
    scene("two bind one key", 1, two_bind_one_key, &[Mutant::NoRescan, Mutant::RescanIgnoresPending]),
    scene("late release", 1, late_release, &[Mutant::BlindRelease]),
    scene("late key words", 1, late_key_words, &[Mutant::PlainKeys]),
    scene("late claim", 1, late_claim, &[Mutant::ClaimClockFirst]),
    scene("late steal", 1, late_steal, &[Mutant::StealRereads]),
    scene("late owner word", 1, late_owner_word, &[Mutant::OwnerPlainStore, Mutant::OwnerUnchecked]),
    scene("stale extend before the owner word", 1, stale_extend, &[Mutant::NoSeqCheck]),
    scene("stale token of a like sequence number", 1, like_sequence_number, &[Mutant::NoOwnerCheck]),
    scene("woken acquirer leaves", 1, woken_acquirer_leaves, &[Mutant::LeaverSilent]),
    scene("slot re-bound under a sleeper", 1, rebound_under_sleeper, &[Mutant::ClaimSilent]),
    scene("awaiter is told", 1, awaiter_is_told, &[Mutant::AwaitersNotWoken]),
    scene("bell is rung", 1, bell_is_rung, &[Mutant::BellsNotRung]),
    scene("freed extend", 1, freed_extend, &[Mutant::FreedExtendReleases]),
    scene("child frees its parent's ops", 1, child_frees, &[Mutant::ChildFreeReleases]),
    scene("late ring", 1, late_ring, &[Mutant::AwaitBelievesCount]),
    scene("fences grow across buckets", 2, fences_grow, &[Mutant::FenceOfSlotBucket]),
];

pub fn ensure(condition: bool, otherwise: Wrong) -> Result<(), Wrong> {
    if condition { Ok(()) } else { Err(otherwise) }
}

/// In scenes about wake-ups nothing else may end a sleep.
fn only_wake_ups_end_sleeps() {
    hooks::set_slice(u64::from(LONG) * NS_PER_MS);
}

/// The first has looked around and found itself alone when the second comes.
fn two_bind_one_key(stage: &Stage) -> Result<(), Wrong> {
    let first = stage.acquirer(Some(Point::Unique), "key", LONG, 0);
    first.arrives();
    let second = take(stage.client(), "key", LONG, LONG);
    ensure(second.is_some(), "a binding that never ends keeps the key")?;
    ensure(first.result().is_none(), "two hold one key")
}

/// The holder comes back after its lease, when another holds the lock.
fn late_release(stage: &Stage) -> Result<(), Wrong> {
    let late = stage.take("key", 1);
    stage.outlasts(&late);
    let holder = stage.take("key", LONG);
    let verdict = stage.client().release(b"key", &late.token.0);
    ensure(matches!(verdict, Ok(Verdict::Taken)), "a token whose lease ended released another's hold")?;
    let verdict = stage.client().release(b"key", &holder.token.0);
    ensure(matches!(verdict, Ok(Verdict::Ok)), "the holder lost its hold")?;
    let verdict = stage.client().release(b"key", &late.token.0);
    ensure(matches!(verdict, Ok(Verdict::Expired)), "nobody holds the key, but another answer was given")
}

/// One is stopped while it writes its key into the last slot; it is overdue, and another takes the slot over.
fn late_key_words(stage: &Stage) -> Result<(), Wrong> {
    stage.fill(14);
    let first = stage.acquirer(Some(Point::KeyRead), "key", LONG, 0);
    first.arrives();
    stage.outlasts_binding(14);
    let holder = stage.take("another", LONG);
    ensure(first.result().is_none(), "a lock in a table that is full")?;
    let verdict = stage.client().release(b"another", &holder.token.0);
    ensure(matches!(verdict, Ok(Verdict::Ok)), "the slot's key was overwritten under its holder")
}

/// Two find the same lease run out; the second takes the lock before the first does.
fn late_steal(stage: &Stage) -> Result<(), Wrong> {
    let gone = stage.take("key", 1);
    stage.outlasts(&gone);
    let first = stage.acquirer(Some(Point::BeforeTake), "key", LONG, 0);
    first.arrives();
    let _second = stage.take("key", LONG);
    ensure(first.result().is_none(), "a lease that runs was taken for the one that had run out")
}

/// One is stopped before it writes the owner word, until another has the lock.
fn late_owner_word(stage: &Stage) -> Result<(), Wrong> {
    let gone = stage.take("key", 1);
    stage.outlasts(&gone);
    let first = stage.acquirer(Some(Point::OwnerRead), "key", 1, 0);
    first.arrives();
    stage.outlasts(&gone); // it is the same slot
    let holder = stage.take("key", LONG);
    first.result();
    let verdict = stage.client().release(b"key", &holder.token.0);
    ensure(matches!(verdict, Ok(Verdict::Ok)), "the owner word was overwritten under its holder")
}

/// The next holder has the word, but not yet the owner word: the last one's still stands.
fn stale_extend(stage: &Stage) -> Result<(), Wrong> {
    let gone = stage.take("key", 1);
    stage.outlasts(&gone);
    let next = stage.acquirer(Some(Point::Taken), "key", LONG, 0);
    next.arrives();
    let verdict = stage.client().extend(b"key", &gone.token.0, LONG);
    ensure(matches!(verdict, Ok(Verdict::Taken)), "a token whose hold was over extended the next one")?;
    ensure(next.result().is_some(), "the next holder lost its hold")
}

/// The slot's sequence number has come round, as far as it is compared here.
fn like_sequence_number(stage: &Stage) -> Result<(), Wrong> {
    hooks::compare_seq(7);
    let gone = stage.take("key", LONG);
    let first = stage.word(&gone).seq();
    let mut held = gone;
    for _ in 0..4 {
        let _ = stage.client().release(b"key", &held.token.0);
        held = stage.take("key", LONG); // each round takes two numbers
    }
    assert_eq!((stage.word(&held).seq() ^ first) & 7, 0, "the scene's count of transitions");
    let verdict = stage.client().release(b"key", &gone.token.0);
    ensure(matches!(verdict, Ok(Verdict::Taken)), "a token released a later hold of its slot")?;
    let verdict = stage.client().release(b"key", &held.token.0);
    ensure(matches!(verdict, Ok(Verdict::Ok)), "the holder lost its hold")
}

/// Two sleep for one lock. The one that is woken is cancelled, and goes without the lock.
fn woken_acquirer_leaves(stage: &Stage) -> Result<(), Wrong> {
    only_wake_ups_end_sleeps();
    let held = stage.take("key", LONG);
    let leaver = stage.act(None, |_, table| sleep_and_leave(table, b"key"));
    leaver.falls_asleep(); // first in the kernel's queue
    let waiter = stage.acquirer(None, "key", LONG, LONG);
    waiter.falls_asleep();
    let _ = stage.client().release(b"key", &held.token.0);
    assert!(leaver.result(), "the first sleeper is woken first");
    ensure(waiter.wakes(), "a waiter sleeps on: who left kept the wake-up")?;
    ensure(waiter.result().is_some(), "the waiter got no lock")
}

/// What an acquirer does that is cancelled in its sleep. True: it was woken.
fn sleep_and_leave(table: &Table, key: &[u8]) -> bool {
    let Attempt::Busy(seen) = table.acquire(&table.hash(key), LONG, false) else { return false };
    let futex = &table.slots().slot(seen.slot).acquirers;
    let Some(rings) = table.slots().arm(seen, futex) else { return false };
    let until = table.clock().now() + u64::from(LONG) * NS_PER_MS;
    let woken = futex_wait(futex, rings, table.clock(), until) == Slept::Woken;
    if woken {
        table.slots().pass_on(seen.slot);
    }
    woken
}

/// Two sleep for one lock. Before the one that is woken comes to take it, another key gets the slot.
fn rebound_under_sleeper(stage: &Stage) -> Result<(), Wrong> {
    only_wake_ups_end_sleeps();
    hooks::set_prefer_waiters(true); // otherwise only when no other slot is left
    let held = stage.take("key", LONG);
    let woken = stage.act(Some(Point::Slept), |client, _| take_and_release(client, "key"));
    woken.falls_asleep();
    let sleeper = stage.act(None, |client, _| take_and_release(client, "key"));
    sleeper.falls_asleep();
    let _ = stage.client().release(b"key", &held.token.0);
    woken.arrives();
    let other = stage.take("another", LONG);
    assert_eq!(other.token.0[..8], held.token.0[..8], "another key got the slot");
    ensure(sleeper.wakes(), "a waiter sleeps on at a slot that is another key's")?;
    ensure(sleeper.result() && woken.result(), "a waiter got no lock")
}

fn take_and_release(client: &Client, key: &str) -> bool {
    let held = take(client, key, LONG, LONG);
    held.is_some_and(|held| matches!(client.release(key.as_bytes(), &held.token.0), Ok(Verdict::Ok)))
}

/// The plain case.
fn awaiter_is_told(stage: &Stage) -> Result<(), Wrong> {
    only_wake_ups_end_sleeps();
    let held = stage.take("key", LONG);
    let awaiter = stage.act(None, |client, _| client.wait_for_end(b"key", LONG).ok());
    awaiter.falls_asleep();
    let _ = stage.client().release(b"key", &held.token.0);
    ensure(awaiter.wakes(), "an awaiter sleeps on after the release")?;
    ensure(awaiter.result() == Some(Await::Over), "an awaiter was told another thing than the release")
}

/// An event loop waits for its bell when the lock is released. It would look by itself, but later than is asked here.
fn bell_is_rung(stage: &Stage) -> Result<(), Wrong> {
    only_wake_ups_end_sleeps();
    let holder = stage.take("key", LONG);
    let waiter = stage.act(None, |client, _| acquire_by_bell(client, b"key", LONG, LONG).is_ok());
    waiter.passes(Point::BellSet, 1);
    waiter.falls_asleep();
    // Else its first look, if that is late, sees the release by itself.
    until("the bell did not fall asleep", || {
        let bells = sys::threads_named("buflock-bell");
        !bells.is_empty() && bells.into_iter().all(sys::is_asleep)
    });
    ensure(stage.client().release(b"key", &holder.token.0).is_ok(), "a release failed")?;
    ensure(waiter.wakes(), "an event loop was not told of the release")?;
    ensure(waiter.result(), "an event loop did not get the lock")
}

/// An event loop forgets an extend that it has not begun. The hold stays as it was.
fn freed_extend(stage: &Stage) -> Result<(), Wrong> {
    let held = stage.take("key", LONG);
    let op = stage.client().op_extend(b"key", &held.token.0, 1).expect("an op");
    drop(op);
    let verdict = stage.client().release(b"key", &held.token.0);
    ensure(matches!(verdict, Ok(Verdict::Ok)), "an extend that was freed ended the hold")
}

/// A child has its parent's ops: one that acquired, and a release that has not begun. It frees them.
fn child_frees(stage: &Stage) -> Result<(), Wrong> {
    let mut acquire = stage.client().op_acquire(b"key", LONG, 0).expect("an op");
    assert!(matches!(acquire.next(), Step::Done { .. }), "it is free");
    let other = stage.take("another", LONG);
    let release = stage.client().op_release(b"another", &other.token.0);
    let mut child = Child::fork(|| {
        // SAFETY: in this process nobody drops them again.
        unsafe { (std::ptr::read(&acquire), std::ptr::read(&release)) };
        0
    });
    assert_eq!(child.end(), Ended::Left(0), "the child");
    let held = acquire.held().expect("it has acquired");
    let verdict = stage.client().release(b"key", &held.token.0);
    ensure(matches!(verdict, Ok(Verdict::Ok)), "a child's free gave back what its parent had acquired")?;
    let standing = stage.client().inspect(b"another");
    ensure(matches!(standing, Ok(Some(_))), "a child's free did its parent's release")?;
    drop(release);
    let standing = stage.client().inspect(b"another");
    ensure(matches!(standing, Ok(None)), "a release that was freed was not done")
}

/// A releaser is stopped before it rings. It rings when the next holder is long there, and somebody waits for its end.
fn late_ring(stage: &Stage) -> Result<(), Wrong> {
    only_wake_ups_end_sleeps();
    let held = stage.take("key", LONG);
    let seen = stage.table.slots().holding(&stage.table.hash(b"key")).expect("it is held");
    stage.table.slots().arm(seen, &stage.table.slots().slot(seen.slot).awaiters).expect("nobody else is here");
    let releaser = stage.act(Some(Point::Released), move |client, _| client.release(b"key", &held.token.0).ok());
    releaser.arrives();
    let next = stage.take("key", LONG);
    let awaiter = stage.act(None, |client, _| client.wait_for_end(b"key", LONG).ok());
    awaiter.falls_asleep();
    assert_eq!(releaser.result(), Some(Verdict::Ok), "the release before");
    awaiter.passes(Point::AwaitArmed, 2); // it has looked again
    ensure(!awaiter.is_done(), "an awaiter was told of the end of a hold that goes on")?;
    let _ = stage.client().release(b"key", &next.token.0);
    ensure(awaiter.wakes(), "an awaiter sleeps on after the release")
}

/// A key moves from a bucket in which much was locked to one in which little was.
fn fences_grow(stage: &Stage) -> Result<(), Wrong> {
    let (beside, key) = two_keys_of_the_first_bucket(stage);
    let beside_held = stage.take(&beside, LONG);
    assert_eq!(stage.bucket(&beside_held), 0, "its first bucket");
    let mut last = 0;
    for _ in 0..100 {
        let held = stage.take(&key, LONG);
        assert_eq!(stage.bucket(&held), 1, "the emptier bucket");
        ensure(held.fence > last, "a fence number did not grow")?;
        last = held.fence;
        let _ = stage.client().release(key.as_bytes(), &held.token.0);
    }
    stage.fill(28);
    let evictor = stage.take("evictor", LONG);
    assert_eq!(stage.bucket(&evictor), 1, "the only free slot");
    let _ = stage.client().release(beside.as_bytes(), &beside_held.token.0);
    let held = stage.take(&key, LONG);
    assert_eq!(stage.bucket(&held), 0, "the only free slot");
    ensure(held.fence > last, "a fence number went back when the key moved")
}

fn two_keys_of_the_first_bucket(stage: &Stage) -> (String, String) {
    let names = (0..).map(|number| format!("key-{number}"));
    let mut names = names.filter(|name| stage.table.hash(name.as_bytes()).first == 0);
    let mut name = || names.next().expect("half of all keys");
    (name(), name())
}
