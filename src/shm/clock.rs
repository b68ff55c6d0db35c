//! The clock of a table: CLOCK_MONOTONIC of the initial time namespace, so that processes of all namespaces agree.

use crate::error::SegmentFault;
use crate::hooks::{Mutant, mutant};
use crate::sys::{Slept, errno, monotonic, sleep, timespec, wall};
use std::fs;
use std::sync::atomic::Ordering::Relaxed;
use std::sync::atomic::{AtomicBool, AtomicU32};

/// How far this process's CLOCK_MONOTONIC is ahead of the initial namespace's.
#[derive(Clone, Copy, Debug)]
pub struct Clock {
    ahead: i64,
    start_times_are_shifted: bool,
}

impl Clock {
    /// Finds out, from `/proc`. Without it, or on a kernel without time namespaces, there is nothing to correct.
    ///
    /// # Errors
    /// When this process has unshared its time namespace: `/proc` then says its children's offset, not its own.
    pub fn of_this_process() -> Result<Self, SegmentFault> {
        let (own, children) = (fs::read_link("/proc/self/ns/time"), fs::read_link("/proc/self/ns/time_for_children"));
        if let (Ok(own), Ok(children)) = (own, children)
            && own != children
        {
            return Err(SegmentFault::TimeNamespace);
        }
        let offsets = proc_text("/proc/self/timens_offsets")?;
        let offset = |clock| offset_of(clock, &offsets).unwrap_or(0);
        Ok(Self { ahead: offset("monotonic"), start_times_are_shifted: offset("boottime") != 0 })
    }

    /// Whether `/proc` says other start times of processes than it says elsewhere.
    pub fn start_times_are_shifted(self) -> bool {
        self.start_times_are_shifted
    }

    /// Nanoseconds since the machine started, suspends not counted.
    #[inline]
    pub fn now(self) -> u64 {
        monotonic().wrapping_add_signed(-self.ahead)
    }

    /// The clock that waits are measured with: never the wall clock, which jumps.
    pub fn waiting(self) -> u64 {
        if mutant(Mutant::WallClock) { wall() } else { self.now() }
    }

    /// A time of this clock as a futex of this process wants it.
    pub fn for_futex(self, time: u64) -> libc::timespec {
        timespec(time.saturating_add_signed(self.ahead))
    }
}

/// The text of a file below `/proc`; empty where there is none. That this process may open no more files, or gets no
/// memory, is no such answer: another clock or another boot would be believed.
pub fn proc_text(path: &str) -> Result<String, SegmentFault> {
    match fs::read_to_string(path) {
        Ok(text) => Ok(text),
        Err(error) => match error.raw_os_error() {
            Some(errno @ (libc::EMFILE | libc::ENFILE | libc::ENOMEM)) => {
                Err(SegmentFault::System { doing: "reading /proc", errno })
            }
            _ => Ok(String::new()),
        },
    }
}

/// The offset in nanoseconds, from a line like `monotonic  -86400  500000000`.
fn offset_of(clock: &str, offsets: &str) -> Option<i64> {
    let line = offsets.lines().find_map(|line| line.strip_prefix(clock))?;
    let mut numbers = line.split_whitespace().map(str::parse::<i64>);
    let (seconds, nanoseconds) = (numbers.next()?.ok()?, numbers.next()?.ok()?);
    seconds.checked_mul(1_000_000_000)?.checked_add(nanoseconds)
}

/// The pause where the kernel has no futexes for us: a filter of system calls may refuse them.
const WITHOUT_FUTEX: u64 = 1_000_000;
static FUTEX_REFUSED: AtomicBool = AtomicBool::new(false);

/// Whether the kernel refused a futex to this process.
pub fn futex_is_refused() -> bool {
    FUTEX_REFUSED.load(Relaxed)
}

/// Sleeps on a futex until it is woken, or its value is no longer `value`, or the time `until` has come.
pub fn futex_wait(futex: &AtomicU32, value: u32, clock: Clock, until: u64) -> Slept {
    let time = clock.for_futex(until);
    // SAFETY: the futex lives as long as the call; no pointer but the timespec is read.
    let answer = unsafe {
        libc::syscall(
            libc::SYS_futex,
            futex.as_ptr(),
            libc::FUTEX_WAIT_BITSET, // shared, and the time is absolute CLOCK_MONOTONIC
            value,
            &raw const time,
            0usize,
            u32::MAX,
        )
    };
    if answer == 0 {
        return Slept::Woken;
    }
    match errno() {
        libc::EAGAIN => Slept::Changed,
        libc::ETIMEDOUT => Slept::Elapsed,
        libc::EINTR => Slept::Interrupted,
        _ => {
            FUTEX_REFUSED.store(true, Relaxed);
            sleep(until.saturating_sub(clock.now()).min(WITHOUT_FUTEX))
        }
    }
}

/// Wakes at most `most` sleepers; says how many there were.
pub fn futex_wake(futex: &AtomicU32, most: u32) -> u32 {
    let most = i32::try_from(most).unwrap_or(i32::MAX);
    // SAFETY: the futex lives as long as the call.
    let woken = unsafe { libc::syscall(libc::SYS_futex, futex.as_ptr(), libc::FUTEX_WAKE, most) };
    u32::try_from(woken).unwrap_or(0)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn reads_the_kernels_table() {
        assert_eq!(offset_of("monotonic", "monotonic           0         0\nboottime  0 0\n"), Some(0));
        assert_eq!(offset_of("monotonic", "monotonic   -5  700000000\n"), Some(-4_300_000_000));
        assert_eq!(offset_of("monotonic", "monotonic    100000         0\n"), Some(100_000_000_000_000));
        assert_eq!(offset_of("monotonic", ""), None);
        assert_eq!(offset_of("monotonic", "monotonic x y"), None);
    }
}
