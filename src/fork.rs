//! A number that a process has for itself: a forked child starts without it.

use crate::sys::map;
use std::io;
use std::ptr::NonNull;
use std::sync::atomic::{AtomicU64, Ordering::AcqRel, Ordering::Acquire};

/// A non-zero number per process, zero again in a forked child.
///
/// The kernel wipes the page it lives on in the child, so reading it costs one load. Where the kernel can't
/// (before Linux 4.14) the process id is compared. No atfork handler: those can't be removed when a library goes.
#[derive(Debug)]
pub struct PerProcess {
    page: NonNull<AtomicU64>, // pid:32 | value:32
    wiped: bool,
}

// SAFETY: all that is shared is an atomic.
unsafe impl Send for PerProcess {}
// SAFETY: all that is shared is an atomic.
unsafe impl Sync for PerProcess {}

const PAGE: usize = 4096;

impl PerProcess {
    /// Nothing set.
    ///
    /// # Errors
    /// When the process gets no memory.
    pub fn new() -> io::Result<Self> {
        let page: NonNull<AtomicU64> = map(libc::MAP_PRIVATE)?;
        // SAFETY: the page was just mapped.
        let wiped = unsafe { libc::madvise(page.as_ptr().cast(), PAGE, libc::MADV_WIPEONFORK) } == 0;
        Ok(Self { page, wiped })
    }

    fn cell(&self) -> &AtomicU64 {
        // SAFETY: mapped until drop, aligned to a page, zeroed by the kernel.
        unsafe { self.page.as_ref() }
    }

    /// This process's number, or 0.
    #[inline]
    #[allow(clippy::cast_possible_truncation)] // the low half is the value
    pub fn get(&self) -> u32 {
        let cell = self.cell().load(Acquire);
        if self.wiped || cell == 0 || cell >> 32 == u64::from(std::process::id()) { cell as u32 } else { 0 }
    }

    /// Sets this process's number, unless another thread did; says whether it was this one.
    pub fn set(&self, value: u32) -> bool {
        if self.get() != 0 {
            return false;
        }
        let old = self.cell().load(Acquire);
        let new = u64::from(std::process::id()) << 32 | u64::from(value);
        let inherited = old >> 32 != u64::from(std::process::id());
        (old == 0 || inherited) && self.cell().compare_exchange(old, new, AcqRel, Acquire).is_ok()
    }
}

impl Drop for PerProcess {
    fn drop(&mut self) {
        // SAFETY: mapped by new, and nobody has it any more.
        unsafe { libc::munmap(self.page.as_ptr().cast(), PAGE) };
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn child_sees(number: &PerProcess) -> i32 {
        // SAFETY: the child only reads and leaves.
        unsafe {
            let child = libc::fork();
            if child == 0 {
                libc::_exit(i32::try_from(number.get()).unwrap_or(-1));
            }
            let mut status = 0;
            libc::waitpid(child, &raw mut status, 0);
            libc::WEXITSTATUS(status)
        }
    }

    #[test]
    fn a_child_starts_without_it() {
        let mut number = PerProcess::new().unwrap();
        assert_eq!(number.get(), 0);
        assert!(number.set(7));
        assert!(!number.set(8), "set once");
        assert_eq!((number.get(), child_sees(&number)), (7, 0));
        if number.wiped {
            // As on a kernel that does not wipe: the page is inherited, and the process id tells.
            // SAFETY: the page is mapped.
            unsafe { libc::madvise(number.page.as_ptr().cast(), PAGE, libc::MADV_KEEPONFORK) };
            number.wiped = false;
            assert_eq!((number.get(), child_sees(&number)), (7, 0));
        }
    }
}
