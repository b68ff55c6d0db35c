//! What the kernel does for both backends: clocks, sleeps, signals, errno.

use crate::cancel::Uncancelled;
use std::ffi::c_int;
use std::io;
use std::ptr::{NonNull, null_mut};
use std::sync::{Condvar, MutexGuard, PoisonError};
use std::time::Duration;

const NS_PER_S: u64 = 1_000_000_000;

/// New memory, all zero and page-aligned, for a `T`: `sharing` is MAP_PRIVATE or MAP_SHARED, which forked processes share.
///
/// # Errors
/// The process gets no memory.
pub fn map<T>(sharing: c_int) -> io::Result<NonNull<T>> {
    let (rights, flags) = (libc::PROT_READ | libc::PROT_WRITE, sharing | libc::MAP_ANONYMOUS);
    // SAFETY: a fresh anonymous mapping; the kernel chooses its place.
    let at = unsafe { libc::mmap(null_mut(), size_of::<T>(), rights, flags, -1, 0) };
    if at == libc::MAP_FAILED {
        return Err(io::Error::last_os_error());
    }
    NonNull::new(at.cast()).ok_or_else(|| io::ErrorKind::OutOfMemory.into())
}

/// Waits for `changed`, for at most `ns` nanoseconds.
pub fn wait_for<'a, T>(changed: &Condvar, guard: MutexGuard<'a, T>, ns: u64) -> MutexGuard<'a, T> {
    changed.wait_timeout(guard, Duration::from_nanos(ns)).unwrap_or_else(PoisonError::into_inner).0
}

/// Nanoseconds of this process's CLOCK_MONOTONIC.
#[inline]
pub fn monotonic() -> u64 {
    read(libc::CLOCK_MONOTONIC)
}

/// Nanoseconds since 1970. Only the base of fence numbers is made of it.
pub fn wall() -> u64 {
    read(libc::CLOCK_REALTIME)
}

#[inline]
fn read(id: libc::clockid_t) -> u64 {
    let mut time = libc::timespec { tv_sec: 0, tv_nsec: 0 };
    // SAFETY: `time` is a timespec. The call can't fail for these two clocks.
    unsafe { libc::clock_gettime(id, &raw mut time) };
    time.tv_sec.unsigned_abs() * NS_PER_S + time.tv_nsec.unsigned_abs()
}

/// A time as the kernel wants it.
pub fn timespec(ns: u64) -> libc::timespec {
    libc::timespec { tv_sec: signed(ns / NS_PER_S), tv_nsec: signed(ns % NS_PER_S) }
}

fn signed(value: u64) -> i64 {
    i64::try_from(value).unwrap_or(i64::MAX)
}

/// How a sleep ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Slept {
    /// A wake-up was consumed.
    Woken,
    /// There was a reason to look again before the sleep began.
    Changed,
    /// Its time was over.
    Elapsed,
    /// A signal came.
    Interrupted,
}

/// Sleeps for `ns` nanoseconds, or less when a signal comes.
pub fn sleep(ns: u64) -> Slept {
    let _uncancelled = Uncancelled::new();
    let time = timespec(ns);
    // SAFETY: `time` is a timespec, and the rest is not asked for.
    let answer = unsafe { libc::clock_nanosleep(libc::CLOCK_MONOTONIC, 0, &raw const time, std::ptr::null_mut()) };
    if answer == libc::EINTR { Slept::Interrupted } else { Slept::Elapsed }
}

/// The last failure of a call of the C library.
pub fn errno() -> i32 {
    io::Error::last_os_error().raw_os_error().unwrap_or(0)
}

/// Runs `body` with all signals blocked, so that a thread it starts never runs a handler of the host's.
pub fn without_signals<T>(body: impl FnOnce() -> T) -> T {
    // SAFETY: sets to fill, and the mask of this thread, which is put back.
    unsafe {
        let (mut all, mut before): (libc::sigset_t, libc::sigset_t) = (std::mem::zeroed(), std::mem::zeroed());
        libc::sigfillset(&raw mut all);
        libc::pthread_sigmask(libc::SIG_SETMASK, &raw const all, &raw mut before);
        let answer = body();
        libc::pthread_sigmask(libc::SIG_SETMASK, &raw const before, std::ptr::null_mut());
        answer
    }
}
