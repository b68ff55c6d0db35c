//! Random numbers from a seed, the same everywhere: xorshift.

use std::sync::atomic::{AtomicU64, Ordering::Relaxed};

/// A source of random numbers for one thread.
#[derive(Debug)]
pub struct Random(AtomicU64);

impl Random {
    /// Different seeds give different numbers, also when they are neighbours.
    pub fn new(seed: u64) -> Self {
        let random = Self(AtomicU64::new(seed.wrapping_add(1).wrapping_mul(0x9e37_79b9_7f4a_7c15) | 1));
        for _ in 0..8 {
            random.next();
        }
        random
    }

    /// The next number.
    pub fn next(&self) -> u64 {
        let mut x = self.0.load(Relaxed);
        x ^= x << 13;
        x ^= x >> 7;
        x ^= x << 17;
        self.0.store(x, Relaxed);
        x.wrapping_mul(0x2545_f491_4f6c_dd1d) >> 16
    }

    /// Below `end`.
    pub fn below(&self, end: u64) -> u64 {
        self.next() % end
    }

    /// Below `end`.
    pub fn index(&self, end: usize) -> usize {
        usize::try_from(self.below(end as u64)).unwrap_or(0)
    }

    /// True once in `n` times.
    pub fn one_in(&self, n: u64) -> bool {
        self.below(n) == 0
    }
}
