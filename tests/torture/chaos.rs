//! What happens to a process inside the protocol's steps: it is killed, stalled, or loses the processor.

use super::board::{Board, Doing};
use super::plan::Plan;
use super::random::Random;
use super::sys;
use buflock::hooks::Point;
use buflock::shm::clock::Clock;
use std::sync::OnceLock;
use std::sync::atomic::AtomicU64;
use std::sync::atomic::Ordering::{Relaxed, SeqCst};

/// All points, in their order.
pub const POINTS: [Point; Point::COUNT] = [
    Point::BeforeVictim,
    Point::Claimed,
    Point::KeyRead,
    Point::OwnerResetRead,
    Point::Published,
    Point::Unique,
    Point::BeforeTake,
    Point::Taken,
    Point::OwnerRead,
    Point::OwnerChecked,
    Point::OwnerWritten,
    Point::Judged,
    Point::BeforeRelease,
    Point::Released,
    Point::CountRaised,
    Point::AcquirerWoken,
    Point::AwaitersWoken,
    Point::BeforeExtend,
    Point::CountLoaded,
    Point::Armed,
    Point::Slept,
    Point::AwaitArmed,
    Point::AwaitSlept,
    Point::BellsTaken,
    Point::BellSet,
];

/// Between the look at what is to be written over and the write: `--aim` stalls here all the time.
const AIMED: [Point; 5] = [Point::KeyRead, Point::OwnerResetRead, Point::Taken, Point::OwnerRead, Point::OwnerChecked];

/// The longest stall: longer than any lease, so that all that can run out does.
const STALL_US: u64 = 50_000;
/// Half of the stalls are no longer: a few times of what a binding may take.
const SHORT_STALL_US: u64 = 4000;

// Frequent points are struck by the dice, rare ones by the clock, so that every point is struck many times in 20 s
// and the frequent ones not at the same moments always.
const SIDES: u64 = 100_000;
const KILLS: u64 = 20;
const STALLS: u64 = 100;
/// Mean time between kills by the clock at one point, in ns.
const KILL_EVERY: u64 = 1_000_000_000;
/// Mean time between stalls by the clock at one point, in ns.
const STALL_EVERY: u64 = 300_000_000;

static CHAOS: OnceLock<Chaos> = OnceLock::new();

struct Chaos {
    board: &'static Board,
    doing: &'static Doing,
    calm: bool,
    aim: bool,
    mortal: bool,
    clock: Clock,
    random: Random,
}

/// Lets chaos loose on this process, which plays worker `me`. The first worker is stalled, but never killed: somebody
/// must live to see a sleep that lasts too long.
pub fn begin(board: &'static Board, plan: &Plan, me: usize, clock: Clock, seed: u64) {
    let random = Random::new(seed);
    let chaos = Chaos { board, doing: &board.doing[me], calm: plan.calm, aim: plan.aim, mortal: me > 0, clock, random };
    assert!(CHAOS.set(chaos).is_ok(), "once in a process");
    buflock::hooks::visit_points(visit);
}

fn visit(point: Point) {
    let Some(chaos) = CHAOS.get() else { return };
    if matches!(point, Point::Slept | Point::AwaitSlept) {
        chaos.doing.sleep_ends();
    }
    chaos.strike(point);
    if matches!(point, Point::Armed | Point::AwaitArmed) {
        chaos.doing.sleep_begins();
    }
}

impl Chaos {
    fn strike(&self, point: Point) {
        let row = &self.board.points[point as usize];
        row.hits.fetch_add(1, Relaxed);
        if self.calm {
            return self.delay();
        }
        if self.aim && AIMED.contains(&point) && self.random.one_in(12) {
            row.stalls.fetch_add(1, Relaxed);
            sys::nap(1000 + self.random.below(9000));
            return;
        }
        let dice = self.random.below(SIDES);
        if self.mortal && (dice < KILLS || self.is_due(&row.next_kill, KILL_EVERY)) {
            row.kills.fetch_add(1, SeqCst);
            sys::die();
        } else if dice < KILLS + STALLS || self.is_due(&row.next_stall, STALL_EVERY) {
            row.stalls.fetch_add(1, Relaxed);
            sys::nap(self.random.below(if self.random.one_in(2) { STALL_US } else { SHORT_STALL_US }));
        } else if dice.is_multiple_of(8) {
            std::thread::yield_now();
        }
    }

    /// What a busy machine does to a process at any time.
    fn delay(&self) {
        match self.random.below(64) {
            0 => sys::nap(self.random.below(500)),
            1..8 => std::thread::yield_now(),
            _ => {}
        }
    }

    /// Whether the time of `next` has come, for the first process that asks. Then it is set anew.
    fn is_due(&self, next: &AtomicU64, mean: u64) -> bool {
        let (now, due) = (self.clock.now(), next.load(Relaxed));
        let later = now + self.random.below(2 * mean);
        now >= due && next.compare_exchange(due, later, Relaxed, Relaxed).is_ok()
    }
}
