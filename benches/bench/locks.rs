//! The locks that are compared: buflock through its C ABI, and its rivals.

use std::cell::UnsafeCell;
use std::fs::{File, OpenOptions};
use std::os::fd::AsRawFd;
use std::os::unix::fs::OpenOptionsExt;
use std::path::Path;
use std::sync::atomic::{AtomicU64, Ordering::AcqRel, Ordering::Relaxed};
use std::time::Duration;

use crate::abi::{BUSY, Handle, Info, OK, Token};
use crate::shared::{Line, Zeroed, now_ns, system_error};

/// Longer than any hold in the bench.
pub const PATIENCE_MS: u32 = 20_000;

pub trait Lock {
    fn lock(&mut self) -> Result<(), String>;
    fn unlock(&mut self) -> Result<(), String>;
}

/// Locks that can be waited for, as a choice.
#[derive(Clone, Copy, PartialEq)]
pub enum Kind {
    Buflock,
    Polling,
    Robust,
    Flock,
}

impl Kind {
    pub fn name(self) -> &'static str {
        match self {
            Self::Buflock => "buflock",
            Self::Polling => "buflock polled every 1 ms",
            Self::Robust => "robust shared mutex",
            Self::Flock => "flock",
        }
    }
}

/// The rivals that live in memory.
pub struct Rivals {
    word: Line<AtomicU64>,
    mutex: Line<UnsafeCell<libc::pthread_mutex_t>>,
}

// SAFETY: zero is a free word; the mutex is initialised before use and touched by pthread only.
unsafe impl Zeroed for Rivals {}

impl Rivals {
    pub fn word(&self) -> &AtomicU64 {
        &self.word.0
    }

    /// Makes the mutex; once, before anybody uses it.
    pub fn init(&self) -> Result<(), String> {
        // SAFETY: attr is initialised before use; the mutex is ours alone until this returns.
        let status = unsafe {
            let mut attr: libc::pthread_mutexattr_t = std::mem::zeroed();
            libc::pthread_mutexattr_init(&raw mut attr);
            libc::pthread_mutexattr_setpshared(&raw mut attr, libc::PTHREAD_PROCESS_SHARED);
            libc::pthread_mutexattr_setrobust(&raw mut attr, libc::PTHREAD_MUTEX_ROBUST);
            libc::pthread_mutex_init(self.mutex.0.get(), &raw const attr)
        };
        answer("pthread_mutex_init", status)
    }
}

/// One compare-and-swap to take, one to give back: what no lock can beat.
pub struct RawCas<'b>(pub &'b AtomicU64);

impl Lock for RawCas<'_> {
    #[inline]
    fn lock(&mut self) -> Result<(), String> {
        swap(self.0, 0, 1)
    }
    #[inline]
    fn unlock(&mut self) -> Result<(), String> {
        swap(self.0, 1, 0)
    }
}

/// The same with one look at the clock: the least that a lock with a lease does.
pub struct CasClock<'b>(pub &'b AtomicU64, pub u64);

impl Lock for CasClock<'_> {
    #[inline]
    fn lock(&mut self) -> Result<(), String> {
        self.1 = now_ns() | 1;
        swap(self.0, 0, self.1)
    }
    #[inline]
    fn unlock(&mut self) -> Result<(), String> {
        swap(self.0, self.1, 0)
    }
}

#[inline]
fn swap(word: &AtomicU64, from: u64, to: u64) -> Result<(), String> {
    match word.compare_exchange(from, to, AcqRel, Relaxed) {
        Ok(_) => Ok(()),
        Err(seen) => Err(format!("the word of the bench was changed by somebody else: {seen}")),
    }
}

pub struct Robust<'b>(pub &'b Rivals);

impl Lock for Robust<'_> {
    #[inline]
    fn lock(&mut self) -> Result<(), String> {
        // SAFETY: initialised by Rivals::init, mapped as long as the borrow lives.
        answer("pthread_mutex_lock", unsafe { libc::pthread_mutex_lock(self.0.mutex.0.get()) })
    }
    #[inline]
    fn unlock(&mut self) -> Result<(), String> {
        // SAFETY: as in lock.
        answer("pthread_mutex_unlock", unsafe { libc::pthread_mutex_unlock(self.0.mutex.0.get()) })
    }
}

/// pthread returns its error instead of setting errno.
#[inline]
fn answer(call: &str, status: libc::c_int) -> Result<(), String> {
    if status == 0 { Ok(()) } else { Err(format!("{call}: {}", std::io::Error::from_raw_os_error(status))) }
}

pub struct Flock(File);

impl Flock {
    pub fn open(dir: &Path) -> Result<Self, String> {
        own_descriptor(&dir.join("flock")).map(Self)
    }

    #[inline]
    fn call(&self, operation: libc::c_int) -> Result<(), String> {
        // SAFETY: the descriptor is open.
        let status = unsafe { libc::flock(self.0.as_raw_fd(), operation) };
        if status == 0 { Ok(()) } else { Err(system_error("flock")) }
    }
}

impl Lock for Flock {
    #[inline]
    fn lock(&mut self) -> Result<(), String> {
        self.call(libc::LOCK_EX)
    }
    #[inline]
    fn unlock(&mut self) -> Result<(), String> {
        self.call(libc::LOCK_UN)
    }
}

/// One byte of a file, locked by open file description.
pub struct OfdByte(File);

impl OfdByte {
    pub fn open(dir: &Path) -> Result<Self, String> {
        own_descriptor(&dir.join("ofd")).map(Self)
    }

    #[inline]
    fn call(&self, kind: libc::c_int) -> Result<(), String> {
        // SAFETY: all-zero bytes are a valid struct flock.
        let mut range: libc::flock = unsafe { std::mem::zeroed() };
        range.l_type = libc::c_short::try_from(kind).unwrap_or(-1);
        range.l_start = 12_345;
        range.l_len = 1;
        // SAFETY: the descriptor is open, range outlives the call.
        let status = unsafe { libc::fcntl(self.0.as_raw_fd(), libc::F_OFD_SETLKW, &raw const range) };
        if status == 0 { Ok(()) } else { Err(system_error("fcntl(F_OFD_SETLKW)")) }
    }
}

impl Lock for OfdByte {
    #[inline]
    fn lock(&mut self) -> Result<(), String> {
        self.call(libc::F_WRLCK)
    }
    #[inline]
    fn unlock(&mut self) -> Result<(), String> {
        self.call(libc::F_UNLCK)
    }
}

/// Not inherited by fork: both lock forms belong to the open file, and must exclude each other.
fn own_descriptor(path: &Path) -> Result<File, String> {
    OpenOptions::new()
        .read(true)
        .write(true)
        .create(true)
        .truncate(false)
        .mode(0o600)
        .open(path)
        .map_err(|error| format!("{}: {error}", path.display()))
}

/// The lock that the bench is about. With several keys each pair uses the next one.
pub struct Buflock<'b> {
    handle: Handle<'b>,
    keys: Vec<Vec<u8>>,
    next: usize,
    wait_ms: u32,
    ask_info: bool,
    token: Token,
}

impl<'b> Buflock<'b> {
    pub fn trying(handle: Handle<'b>, key: &str) -> Self {
        Self::rotating(handle, vec![key.as_bytes().to_vec()])
    }

    pub fn waiting(handle: Handle<'b>, key: &str) -> Self {
        Self { wait_ms: PATIENCE_MS, ..Self::trying(handle, key) }
    }

    pub fn rotating(handle: Handle<'b>, keys: Vec<Vec<u8>>) -> Self {
        Self { handle, keys, next: 0, wait_ms: 0, ask_info: false, token: [0; 64] }
    }

    pub fn asking_info(self) -> Self {
        Self { ask_info: true, ..self }
    }

    #[inline]
    fn acquire(&mut self) -> libc::c_int {
        let key = &self.keys[self.next];
        if self.ask_info {
            let mut info = Info::new();
            self.handle.acquire(key, self.wait_ms, &mut self.token, Some(&mut info))
        } else {
            self.handle.acquire(key, self.wait_ms, &mut self.token, None)
        }
    }
}

impl Lock for Buflock<'_> {
    #[inline]
    fn lock(&mut self) -> Result<(), String> {
        match self.acquire() {
            OK => Ok(()),
            status => Err(self.handle.failure("buflock_acquire", status)),
        }
    }

    #[inline]
    fn unlock(&mut self) -> Result<(), String> {
        let status = self.handle.release(&self.keys[self.next], &self.token);
        self.next += 1;
        if self.next == self.keys.len() {
            self.next = 0;
        }
        if status == OK { Ok(()) } else { Err(self.handle.failure("buflock_release", status)) }
    }
}

/// Waiting without a signal, as lock libraries do that can only try again.
pub struct Polling<'b> {
    lock: Buflock<'b>,
    /// The first pause, and how many times longer each one is than the one before, up to the longest.
    step: Duration,
    ratio: u32,
    longest: Duration,
}

impl<'b> Polling<'b> {
    pub fn steadily(lock: Buflock<'b>) -> Self {
        Self { ratio: 1, ..Self::growing(lock) }
    }

    /// In the steps of lua-resty-lock.
    pub fn growing(lock: Buflock<'b>) -> Self {
        Self { lock, step: Duration::from_millis(1), ratio: 2, longest: Duration::from_millis(500) }
    }
}

impl Lock for Polling<'_> {
    fn lock(&mut self) -> Result<(), String> {
        let mut pause = self.step;
        loop {
            match self.lock.acquire() {
                OK => return Ok(()),
                BUSY => std::thread::sleep(pause),
                status => return Err(self.lock.handle.failure("buflock_acquire", status)),
            }
            pause = self.longest.min(pause * self.ratio);
        }
    }
    fn unlock(&mut self) -> Result<(), String> {
        self.lock.unlock()
    }
}
