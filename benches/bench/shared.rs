//! What processes share: zeroed memory, words to wait on, a clock.

use std::ops::Deref;
use std::ptr::{self, NonNull};
use std::sync::atomic::{AtomicU32, Ordering::SeqCst};
use std::time::Duration;

/// # Safety
/// All-zero bytes must be a value of the type, and it must bear changes by other processes
/// (atomics, or memory that is only touched through raw pointers).
pub unsafe trait Zeroed {}

/// A `T` in memory that forked children see too.
pub struct Shared<T: Zeroed>(NonNull<T>);

impl<T: Zeroed> Shared<T> {
    pub fn new() -> Result<Self, String> {
        let access = libc::PROT_READ | libc::PROT_WRITE;
        let kind = libc::MAP_SHARED | libc::MAP_ANONYMOUS;
        // SAFETY: a fresh mapping of our own choice of size; a page is aligned enough for T.
        let memory = unsafe { libc::mmap(ptr::null_mut(), size_of::<T>(), access, kind, -1, 0) };
        if memory == libc::MAP_FAILED {
            return Err(system_error("mmap"));
        }
        NonNull::new(memory.cast()).map(Self).ok_or_else(|| "mmap returned NULL".to_owned())
    }
}

impl<T: Zeroed> Deref for Shared<T> {
    type Target = T;
    fn deref(&self) -> &T {
        // SAFETY: mapped until drop, zero-initialised, and T bears that (Zeroed).
        unsafe { self.0.as_ref() }
    }
}

impl<T: Zeroed> Drop for Shared<T> {
    fn drop(&mut self) {
        // SAFETY: the mapping made in new, of that size, not used any more.
        unsafe { libc::munmap(self.0.as_ptr().cast(), size_of::<T>()) };
    }
}

/// Keeps its content on cache lines of its own.
#[repr(align(128))]
pub struct Line<T>(pub T);

#[inline]
pub fn now_ns() -> u64 {
    clock_ns(libc::CLOCK_MONOTONIC)
}

/// CPU time that this process has used, with all its threads.
pub fn cpu_ns() -> u64 {
    clock_ns(libc::CLOCK_PROCESS_CPUTIME_ID)
}

#[inline]
fn clock_ns(clock: libc::clockid_t) -> u64 {
    let mut time = libc::timespec { tv_sec: 0, tv_nsec: 0 };
    // SAFETY: time is writable; the clocks that are asked for always exist.
    unsafe { libc::clock_gettime(clock, &raw mut time) };
    time.tv_sec.cast_unsigned() * 1_000_000_000 + time.tv_nsec.cast_unsigned()
}

/// Sleeps while the word has this value, until woken or the limit is over.
pub fn futex_wait(word: &AtomicU32, value: u32, limit: Duration) {
    let time = libc::timespec { tv_sec: limit.as_secs().cast_signed(), tv_nsec: i64::from(limit.subsec_nanos()) };
    // SAFETY: the word is mapped and aligned, the time outlives the call.
    unsafe { libc::syscall(libc::SYS_futex, word.as_ptr(), libc::FUTEX_WAIT, value, &raw const time) };
}

pub fn futex_wake_all(word: &AtomicU32) {
    // SAFETY: the word is mapped and aligned.
    unsafe { libc::syscall(libc::SYS_futex, word.as_ptr(), libc::FUTEX_WAKE, i32::MAX) };
}

/// Sets a word and wakes who waits for it.
pub fn post(word: &AtomicU32, value: u32) {
    word.store(value, SeqCst);
    futex_wake_all(word);
}

/// Counts up; only the last one wakes, so that counting does not disturb what is measured.
pub fn count(word: &AtomicU32, last: u32) {
    if word.fetch_add(1, SeqCst) + 1 == last {
        futex_wake_all(word);
    }
}

/// Sleeps until the word reaches the value; `check` may end it at any time.
pub fn wait_for(word: &AtomicU32, value: u32, mut check: impl FnMut() -> Result<(), String>) -> Result<(), String> {
    loop {
        let seen = word.load(SeqCst);
        if seen >= value {
            return Ok(());
        }
        futex_wait(word, seen, Duration::from_millis(100));
        check()?;
    }
}

/// How often this thread has gone to sleep of its own will.
pub fn times_slept() -> i64 {
    // SAFETY: all-zero bytes are a valid rusage.
    let mut usage: libc::rusage = unsafe { std::mem::zeroed() };
    // SAFETY: usage is writable.
    unsafe { libc::getrusage(libc::RUSAGE_THREAD, &raw mut usage) };
    usage.ru_nvcsw
}

pub fn system_error(call: &str) -> String {
    format!("{call}: {}", std::io::Error::last_os_error())
}
