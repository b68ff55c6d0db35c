//! Looks after the sleeps of a worker: a second thread of the process sees when the first sleeps too long.
//!
//! Time is counted in looks of that thread, and only in those that find the first thread asleep by what the kernel
//! says. A process that is stopped, and one that gets no processor on a busy machine, makes no looks or is not asleep
//! in them. So the limits below are in the process's own running time, and a slow machine is no false alarm.

use super::board::{Board, Doing, Wrong};
use super::sys;
use buflock::key::KeyHash;
use buflock::shm::table::Table;
use std::sync::atomic::Ordering::SeqCst;

/// Between two looks.
const LOOK_MS: u64 = 5;
/// The library's slice: no sleep is longer.
const SLICE_MS: u64 = 50;
/// What a sleep may be longer than it should. A wake-up takes microseconds; this is far from anything that a kernel
/// does, and far below the leases and slices of a calm run.
const GRACE_MS: u64 = 250;

/// One sleep, in looks.
#[derive(Default)]
struct Sleep {
    number: u64,
    asleep: u64,
    forgotten: u64,
}

/// Who looks.
pub struct Watch {
    pub board: &'static Board,
    pub me: usize,
    pub workers: usize,
    pub table: &'static Table,
    pub hashes: Vec<KeyHash>,
    pub calm: bool,
}

impl Watch {
    /// Watches the main thread's sleeps from another.
    pub fn begin(self) {
        std::thread::spawn(move || {
            let mut sleep = Sleep::default();
            loop {
                sys::nap(LOOK_MS * 1000);
                self.look(&mut sleep);
            }
        });
    }

    fn look(&self, sleep: &mut Sleep) {
        let doing = &self.board.doing[self.me];
        let number = doing.sleeps.load(SeqCst);
        if number != sleep.number {
            *sleep = Sleep { number, ..Sleep::default() };
            return;
        }
        if !is_asleep(doing) {
            return;
        }
        sleep.asleep += 1;
        // With kills a wake-up may be lost, and the slice bounds what that costs. Without kills none may be.
        let key = doing.key.load(SeqCst);
        if self.calm {
            sleep.forgotten += u64::from(self.is_forgotten(key) && doing.sleeps.load(SeqCst) == number);
            self.judge(key, Wrong::LostWakeUp, &mut sleep.forgotten, GRACE_MS);
        } else {
            self.judge(key, Wrong::LongSleep, &mut sleep.asleep, SLICE_MS + GRACE_MS);
        }
    }

    /// Whether a sleep goes on though nobody holds the key, and nobody is awake who might be about to wake the sleeper.
    fn is_forgotten(&self, key: u64) -> bool {
        let hash = &self.hashes[usize::try_from(key).unwrap_or(0)];
        let rests = |doing: &Doing| doing.idle.load(SeqCst) == 1 || is_asleep(doing);
        self.table.slots().holding(hash).is_none() && self.board.doing[..self.workers].iter().all(rests)
    }

    fn judge(&self, key: u64, wrong: Wrong, looks: &mut u64, limit_ms: u64) {
        let ms = *looks * LOOK_MS;
        if ms > limit_ms {
            self.board.report(wrong, [key, ms, 0]);
            *looks = 0; // and count again
        }
    }
}

fn is_asleep(doing: &Doing) -> bool {
    doing.sleeps.load(SeqCst) & 1 == 1 && sys::is_asleep(doing.process.load(SeqCst))
}
