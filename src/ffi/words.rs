//! What calls say: statuses, their names, the last error, the version.

use super::guarded;
use crate::ABI;
use std::cell::RefCell;
use std::ffi::{CStr, c_char, c_int};
use std::fmt::{self, Display, Write};

/// Room for a token: it is text, today 32 hex digits, and never has more than 63 characters.
pub const BUFLOCK_TOKEN_SIZE: usize = 64;

/// As ttl_ms or wait_ms: what the lock's options say.
pub const BUFLOCK_DEFAULT: u32 = 4_294_967_295;

/// What calls answer, as int. Numbers are never reused.
#[repr(C)]
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum buflock_status {
    /// Done.
    BUFLOCK_OK = 0,
    /// Another owner holds it, and the wait (if any) is over.
    BUFLOCK_BUSY = 1,
    /// release, extend: this token does not hold it, nor does anybody: it ran out or was released before.
    BUFLOCK_EXPIRED = 2,
    /// release, extend: another owner holds it now. Untouched.
    BUFLOCK_TAKEN = 3,
    /// buflock_op_run only: a signal, or the slice's end. Nothing is lost: call it again.
    BUFLOCK_INTERRUPTED = 4,
    /// NULL, or a value it cannot have.
    BUFLOCK_ARGUMENT = -1,
    /// Unknown option (the nearest is named), bad value, bad URL.
    BUFLOCK_CONFIG = -2,
    /// The server cannot be reached, and nothing was done there: the lock was not taken.
    BUFLOCK_UNREACHABLE = -3,
    /// Sent, no answer, and it could not be settled: act as not holding it.
    BUFLOCK_UNCERTAIN = -4,
    /// The server answered with an error.
    BUFLOCK_REFUSED = -5,
    /// The circuit breaker is open: failed at once, nothing sent.
    BUFLOCK_UNAVAILABLE = -6,
    /// The lock table is full (held locks are never evicted), or the process gets no memory.
    BUFLOCK_NO_MEMORY = -7,
    /// The shared segment is missing, foreign, damaged, deleted or of another layout.
    BUFLOCK_SEGMENT = -8,
    /// A bug in buflock; the handle may still be used or freed.
    BUFLOCK_PANIC = -9,
}

/// Room for the text of a failure.
pub(super) const TEXT: usize = 512;

thread_local! {
    // A plain array: no allocation that could fail, no destructor to run when a thread ends.
    static LAST_ERROR: RefCell<[u8; TEXT]> = const { RefCell::new([0; TEXT]) };
}

/// A text cut at a character boundary to what fits in `room`, NUL included.
pub(super) struct Cut<'a> {
    room: &'a mut [u8],
    used: usize,
}

impl<'a> Cut<'a> {
    /// Writes `text` and its NUL to `room`.
    pub(super) fn write(room: &'a mut [u8], text: &dyn Display) {
        if room.is_empty() {
            return;
        }
        let mut cut = Self { room, used: 0 };
        let _ = write!(cut, "{text}"); // an error says that the rest does not fit
        let used = cut.used;
        cut.room[used] = 0;
    }
}

impl Write for Cut<'_> {
    fn write_str(&mut self, text: &str) -> fmt::Result {
        let left = self.room.len() - 1 - self.used;
        let fits = text.floor_char_boundary(left);
        self.room[self.used..self.used + fits].copy_from_slice(&text.as_bytes()[..fits]);
        self.used += fits;
        if fits == text.len() { Ok(()) } else { Err(fmt::Error) }
    }
}

/// Keeps the text of this thread's last failure.
pub(super) fn remember(failure: &dyn Display) {
    // A text whose making fails in its turn is not worth a panic.
    LAST_ERROR.with(|text| {
        if let Ok(mut text) = text.try_borrow_mut() {
            Cut::write(&mut text[..], failure);
        }
    });
}

/// What this thread's last failure (a result < 0) was, in words: which value or file, what is wrong, what would be
/// right. Good until the thread's next failure; empty before its first; never NULL.
#[unsafe(no_mangle)]
pub extern "C" fn buflock_last_error() -> *const c_char {
    guarded(c"".as_ptr(), || LAST_ERROR.with(|text| text.as_ptr() as *const c_char))
}

/// The name of a status, such as "BUFLOCK_BUSY"; never NULL.
#[unsafe(no_mangle)]
pub extern "C" fn buflock_status_name(status: c_int) -> *const c_char {
    let name = match status {
        0 => c"BUFLOCK_OK",
        1 => c"BUFLOCK_BUSY",
        2 => c"BUFLOCK_EXPIRED",
        3 => c"BUFLOCK_TAKEN",
        4 => c"BUFLOCK_INTERRUPTED",
        -1 => c"BUFLOCK_ARGUMENT",
        -2 => c"BUFLOCK_CONFIG",
        -3 => c"BUFLOCK_UNREACHABLE",
        -4 => c"BUFLOCK_UNCERTAIN",
        -5 => c"BUFLOCK_REFUSED",
        -6 => c"BUFLOCK_UNAVAILABLE",
        -7 => c"BUFLOCK_NO_MEMORY",
        -8 => c"BUFLOCK_SEGMENT",
        -9 => c"BUFLOCK_PANIC",
        _ => c"unknown status",
    };
    name.as_ptr()
}

const VERSION: &CStr = match CStr::from_bytes_with_nul(concat!(env!("CARGO_PKG_VERSION"), "\0").as_bytes()) {
    Ok(version) => version,
    Err(_) => c"",
};

/// The library's version, such as "0.1.0"; compare with BUFLOCK_VERSION.
#[unsafe(no_mangle)]
pub extern "C" fn buflock_version() -> *const c_char {
    VERSION.as_ptr()
}

/// The number of the ABI: bindings refuse another than the one they were made for.
#[unsafe(no_mangle)]
pub extern "C" fn buflock_abi() -> c_int {
    ABI.cast_signed()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn cut(text: &str, room: usize) -> Vec<u8> {
        let mut buffer = vec![b'#'; room + 1];
        Cut::write(&mut buffer[..room], &text);
        assert_eq!(buffer[room], b'#', "wrote beyond");
        buffer.truncate(room);
        buffer
    }

    #[test]
    fn texts_are_cut_at_a_character_and_end_in_nul() {
        assert_eq!(cut("abc", 0), b"");
        assert_eq!(cut("abc", 1), b"\0");
        assert_eq!(cut("abc", 3), b"ab\0");
        assert_eq!(cut("abc", 4), b"abc\0");
        assert_eq!(cut("a\u{e9}", 3), b"a\0#");
        assert_eq!(cut("a\u{e9}", 4), b"a\xc3\xa9\0");
    }

    #[test]
    fn every_status_has_its_name() {
        for status in -9..=4 {
            // SAFETY: names are C strings.
            let name = unsafe { CStr::from_ptr(buflock_status_name(status)) };
            assert!(name.to_bytes().starts_with(b"BUFLOCK_"), "{status}");
        }
        // SAFETY: as above.
        assert_eq!(unsafe { CStr::from_ptr(buflock_status_name(5)) }, c"unknown status");
        assert_eq!(BUFLOCK_DEFAULT, crate::policy::DEFAULT);
    }
}
