//! The C API: pointers in, statuses out. It decides nothing.
//!
//! The names here are the names in `include/buflock.h`, which `build.rs` makes of these files, as it makes the Lua
//! cdef. One file per C type.
#![allow(non_camel_case_types)]

pub mod bell;
pub mod config;
pub mod lock;
pub mod op;
pub mod words;

use crate::answer::{Await, Verdict};
use crate::error::{ArgumentFault, BellFault, Error, ServerFault};
use std::ffi::{CStr, c_char, c_int};
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::slice;
use words::buflock_status;

/// Runs the body of an entry point: lets no panic out, turns its error into a status and a text, and keeps errno.
#[inline]
fn boundary(body: impl FnOnce() -> Result<buflock_status, Error>) -> c_int {
    guarded(buflock_status::BUFLOCK_PANIC as c_int, || match body() {
        Ok(status) => status as c_int,
        Err(error) => {
            words::remember(&error);
            status_of(&error) as c_int
        }
    })
}

/// Runs `body` for an entry point that answers no status: `otherwise` after a panic.
#[inline]
fn guarded<T>(otherwise: T, body: impl FnOnce() -> T) -> T {
    // SAFETY: errno of this thread.
    let errno = unsafe { libc::__errno_location() };
    // SAFETY: as above.
    let before = unsafe { *errno };
    // A caught panic leaves a handle usable: its state is atomics, each step of which leaves it valid.
    let answer = catch_unwind(AssertUnwindSafe(|| {
        crate::hooks::entry();
        body()
    }));
    // SAFETY: as above.
    unsafe { *errno = before };
    answer.unwrap_or_else(|_| {
        words::remember(&"a bug in buflock: it panicked, and said where on standard error");
        otherwise
    })
}

fn status_of(error: &Error) -> buflock_status {
    match error {
        Error::Argument(_) => buflock_status::BUFLOCK_ARGUMENT,
        Error::Config(_) | Error::NoServer => buflock_status::BUFLOCK_CONFIG,
        Error::Server { fault, .. } => match fault {
            ServerFault::Unreachable => buflock_status::BUFLOCK_UNREACHABLE,
            ServerFault::Uncertain(_) => buflock_status::BUFLOCK_UNCERTAIN,
            ServerFault::Refused => buflock_status::BUFLOCK_REFUSED,
            ServerFault::Unavailable => buflock_status::BUFLOCK_UNAVAILABLE,
        },
        Error::Full { .. } | Error::NoMemory | Error::NoRandom => buflock_status::BUFLOCK_NO_MEMORY,
        Error::Segment { .. } | Error::Bell(BellFault::System { .. }) => buflock_status::BUFLOCK_SEGMENT,
        Error::Bell(_) => buflock_status::BUFLOCK_ARGUMENT,
    }
}

impl From<Verdict> for buflock_status {
    fn from(verdict: Verdict) -> Self {
        match verdict {
            Verdict::Ok => Self::BUFLOCK_OK,
            Verdict::Expired => Self::BUFLOCK_EXPIRED,
            Verdict::Taken => Self::BUFLOCK_TAKEN,
        }
    }
}

impl From<Await> for buflock_status {
    fn from(answer: Await) -> Self {
        match answer {
            Await::Over => Self::BUFLOCK_OK,
            Await::Busy => Self::BUFLOCK_BUSY,
        }
    }
}

/// The argument, or the error that it is NULL.
#[inline]
fn given<T>(argument: Option<T>, name: &'static str) -> Result<T, ArgumentFault> {
    argument.ok_or(ArgumentFault::Null(name))
}

/// The bytes at `at`. NULL with no length is an empty slice.
///
/// # Safety
/// `at` holds `length` bytes for `'a`.
#[inline]
unsafe fn bytes<'a>(at: *const c_char, length: usize, name: &'static str) -> Result<&'a [u8], ArgumentFault> {
    if length == 0 {
        return Ok(&[]);
    }
    if at.is_null() {
        return Err(ArgumentFault::Null(name));
    }
    // SAFETY: not NULL, and the caller's promise.
    Ok(unsafe { slice::from_raw_parts(at.cast(), length) })
}

/// The bytes before the NUL of the text at `at`.
///
/// # Safety
/// `at` is NULL, or ends in NUL and lives for `'a`.
#[inline]
unsafe fn text_bytes<'a>(at: *const c_char, name: &'static str) -> Result<&'a [u8], ArgumentFault> {
    if at.is_null() {
        return Err(ArgumentFault::Null(name));
    }
    // SAFETY: not NULL, and the caller's promise.
    Ok(unsafe { CStr::from_ptr(at) }.to_bytes())
}

/// The text at `at`.
///
/// # Safety
/// As of [`text_bytes`].
unsafe fn text<'a>(at: *const c_char, name: &'static str) -> Result<&'a str, ArgumentFault> {
    // SAFETY: the caller's promise.
    let bytes = unsafe { text_bytes(at, name) }?;
    std::str::from_utf8(bytes).map_err(|_| ArgumentFault::NotUtf8(name))
}
