//! The atomic operations that the slot protocol is written in, so that a model checker can take their place.

use std::sync::atomic::{AtomicU32, AtomicU64, Ordering, fence};

/// An atomic number.
pub trait Atomic<T> {
    /// As of `std`.
    fn load(&self, order: Ordering) -> T;
    /// As of `std`.
    fn store(&self, value: T, order: Ordering);
    /// As of `std`.
    ///
    /// # Errors
    /// The value that was there, if it was not `old`.
    fn compare_exchange(&self, old: T, new: T, success: Ordering, failure: Ordering) -> Result<T, T>;
    /// As of `std`.
    fn fetch_add(&self, value: T, order: Ordering) -> T;
    /// As of `std`.
    fn fetch_or(&self, value: T, order: Ordering) -> T;
    /// As of `std`.
    fn swap(&self, value: T, order: Ordering) -> T;
}

/// A family of atomics.
pub trait Atomics {
    /// 32 bits, also a futex.
    type U32: Atomic<u32>;
    /// 64 bits.
    type U64: Atomic<u64>;
    /// As of `std`.
    fn fence(order: Ordering);
    /// Another process is in the way for the `round`-th time, from 0: gives it a chance to go on.
    fn pause(round: u32);
}

/// The atomics of the machine.
#[derive(Clone, Copy, Debug)]
pub struct Native;

impl Atomics for Native {
    type U32 = AtomicU32;
    type U64 = AtomicU64;

    #[inline]
    fn fence(order: Ordering) {
        fence(order);
    }

    #[inline]
    fn pause(round: u32) {
        if round < 4 {
            std::hint::spin_loop();
        } else {
            std::thread::yield_now();
        }
    }
}

impl Atomic<u32> for AtomicU32 {
    #[inline]
    fn load(&self, order: Ordering) -> u32 {
        self.load(order)
    }

    #[inline]
    fn store(&self, value: u32, order: Ordering) {
        self.store(value, order);
    }

    #[inline]
    fn compare_exchange(&self, old: u32, new: u32, success: Ordering, failure: Ordering) -> Result<u32, u32> {
        self.compare_exchange(old, new, success, failure)
    }

    #[inline]
    fn fetch_add(&self, value: u32, order: Ordering) -> u32 {
        self.fetch_add(value, order)
    }

    #[inline]
    fn fetch_or(&self, value: u32, order: Ordering) -> u32 {
        self.fetch_or(value, order)
    }

    #[inline]
    fn swap(&self, value: u32, order: Ordering) -> u32 {
        self.swap(value, order)
    }
}

impl Atomic<u64> for AtomicU64 {
    #[inline]
    fn load(&self, order: Ordering) -> u64 {
        self.load(order)
    }

    #[inline]
    fn store(&self, value: u64, order: Ordering) {
        self.store(value, order);
    }

    #[inline]
    fn compare_exchange(&self, old: u64, new: u64, success: Ordering, failure: Ordering) -> Result<u64, u64> {
        self.compare_exchange(old, new, success, failure)
    }

    #[inline]
    fn fetch_add(&self, value: u64, order: Ordering) -> u64 {
        self.fetch_add(value, order)
    }

    #[inline]
    fn fetch_or(&self, value: u64, order: Ordering) -> u64 {
        self.fetch_or(value, order)
    }

    #[inline]
    fn swap(&self, value: u64, order: Ordering) -> u64 {
        self.swap(value, order)
    }
}
