//! What all processes of a run share: what they found wrong, what they counted, who believes to hold what.

use super::KEYS;
use std::io::{self, Write};
use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering::SeqCst};

/// Worker processes at once.
pub const WORKERS: usize = 8;
/// Holds that are written down in one round.
pub const HOLDS: usize = 100_000;
/// The longest text of what is wrong.
const TEXT: usize = 400;

/// What is counted.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(usize)]
pub enum Count {
    Held,
    Busy,
    Failed,
    Uncertain,
    Released,
    ReleasedLate,
    Extended,
    ExtendedLate,
    Dropped,
    Forgotten,
    Over,
    StillBusy,
    Cancelled,
    Freed,
    Inspected,
    Kills,
    Stops,
    Restarts,
    Connections,
    Resets,
    Delays,
    Swallowed,
    Late,
    Storms,
}

impl Count {
    /// All of them, in their order.
    pub const ALL: [Self; 24] = [
        Self::Held,
        Self::Busy,
        Self::Failed,
        Self::Uncertain,
        Self::Released,
        Self::ReleasedLate,
        Self::Extended,
        Self::ExtendedLate,
        Self::Dropped,
        Self::Forgotten,
        Self::Over,
        Self::StillBusy,
        Self::Cancelled,
        Self::Freed,
        Self::Inspected,
        Self::Kills,
        Self::Stops,
        Self::Restarts,
        Self::Connections,
        Self::Resets,
        Self::Delays,
        Self::Swallowed,
        Self::Late,
        Self::Storms,
    ];
}

/// A hold as its holder believes in it. Times are in ns, on the monotonic clock.
pub struct Hold {
    /// 0: not written yet; else one more than the key.
    pub key: AtomicU64,
    pub token: [AtomicU64; 4],
    pub epoch: AtomicU64,
    pub from: AtomicU64,
    /// When the lease ends at the earliest.
    pub until: AtomicU64,
    /// When it was given back; 0: never.
    pub ended: AtomicU64,
}

/// Shared by all processes; all zero at the beginning.
pub struct Board {
    /// All are to end.
    pub stop: AtomicU64,
    /// Grows before the server is ended, and when another has begun. Even: one runs.
    pub epoch: AtomicU64,
    /// Of each key: until when its holder believes to have it, and in the last 8 bits the epoch.
    pub guards: [AtomicU64; KEYS],
    /// How often a worker was stopped, or went on.
    pub stops: [AtomicU64; WORKERS],
    counts: [AtomicU64; Count::ALL.len()],
    pub longest_over: AtomicU64,
    next: AtomicUsize,
    holds: [Hold; HOLDS],
    wrongs: AtomicU64,
}

impl Board {
    /// One that processes which are forked later share.
    pub fn new() -> &'static Self {
        let (access, kind) = (libc::PROT_READ | libc::PROT_WRITE, libc::MAP_SHARED | libc::MAP_ANONYMOUS);
        // SAFETY: a fresh mapping; the kernel chooses its place.
        let page = unsafe { libc::mmap(std::ptr::null_mut(), size_of::<Self>(), access, kind, -1, 0) };
        assert_ne!(page, libc::MAP_FAILED, "mmap: {}", io::Error::last_os_error());
        // SAFETY: mapped for good, zeroed, and all of it is atomics.
        unsafe { &*page.cast::<Self>() }
    }

    /// Counts one.
    pub fn count(&self, what: Count) {
        self.counts[what as usize].fetch_add(1, SeqCst);
    }

    /// How many there were.
    pub fn counted(&self, what: Count) -> u64 {
        self.counts[what as usize].load(SeqCst)
    }

    /// Something that must never happen. Told at once: whoever found it may be killed.
    pub fn wrong(&self, text: &str) {
        if self.wrongs.fetch_add(1, SeqCst) < 20 {
            let text: String = text.chars().take(TEXT).collect();
            let _ = io::stdout().write_all(format!("WRONG  {text}\n").as_bytes());
        }
    }

    /// How often something was wrong.
    pub fn wrongs(&self) -> u64 {
        self.wrongs.load(SeqCst)
    }

    /// A place for a hold; None: all are in use.
    pub fn new_hold(&self) -> Option<&Hold> {
        self.holds.get(self.next.fetch_add(1, SeqCst))
    }

    /// Those that were written.
    pub fn holds(&self) -> impl Iterator<Item = &Hold> {
        let count = self.next.load(SeqCst).min(HOLDS);
        self.holds[..count].iter().filter(|hold| hold.key.load(SeqCst) != 0)
    }

    /// Forgets the holds of a round that is over.
    pub fn forget_holds(&self) {
        self.holds().for_each(|hold| hold.key.store(0, SeqCst));
        self.next.store(0, SeqCst);
    }
}

impl Hold {
    /// Its token, as text.
    pub fn token(&self) -> String {
        let bytes = self.token.iter().flat_map(|word| word.load(SeqCst).to_ne_bytes());
        String::from_utf8_lossy(&bytes.collect::<Vec<u8>>()).into_owned()
    }

    /// Writes it down.
    pub fn write(&self, key: usize, token: &[u8; 32], epoch: u64, from: u64, until: u64) {
        for (word, bytes) in self.token.iter().zip(token.chunks(8)) {
            word.store(u64::from_ne_bytes(bytes.try_into().expect("8")), SeqCst);
        }
        self.epoch.store(epoch, SeqCst);
        self.from.store(from, SeqCst);
        self.until.store(until, SeqCst);
        self.ended.store(0, SeqCst);
        self.key.store(key as u64 + 1, SeqCst);
    }
}
