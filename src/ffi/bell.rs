//! The bell: tells an event loop which waits in shared memory to look at again.

use super::lock::buflock_t;
use super::words::buflock_status;
use super::{boundary, given, guarded, text_bytes};
use crate::cancel::Uncancelled;
use crate::error::ArgumentFault;
use std::ffi::{OsStr, c_char, c_int};
use std::mem::MaybeUninit;
use std::os::unix::ffi::OsStrExt;
use std::slice;

/// Writes to `*fd` an fd that is readable while there are ids to read. It is the library's: do not read or close it,
/// dup it where an event loop wants one of its own; ask again after a fork. The first call starts a thread, which
/// buflock_free ends. Without a bell buflock_op_next says SLEEP.
#[unsafe(no_mangle)]
pub extern "C" fn buflock_bell_fd(lock: Option<&buflock_t>, fd: Option<&mut MaybeUninit<c_int>>) -> c_int {
    boundary(|| {
        let _uncancelled = Uncancelled::new();
        let lock = given(lock, "lock")?;
        let fd = given(fd, "fd")?;
        fd.write(lock.0.bell()?.bell_fd()?);
        Ok(buflock_status::BUFLOCK_OK)
    })
}

/// Instead of an fd: a Unix socket is made at `path` (at most 107 bytes, mode 0600) and takes one connection, of this
/// process, after which its name is removed. Ids are written to it, 4 bytes each in the machine's byte order; 0 says
/// that the reader is to leave. For hosts that can't watch a foreign fd, such as nginx.
///
/// # Safety
/// `path` is NULL or ends in NUL.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn buflock_bell_listen(lock: Option<&buflock_t>, path: *const c_char) -> c_int {
    boundary(|| {
        let _uncancelled = Uncancelled::new();
        let lock = given(lock, "lock")?;
        // SAFETY: the caller's promise.
        let path = unsafe { text_bytes(path, "path") }?;
        lock.0.bell()?.bell_listen(OsStr::from_bytes(path).as_ref())?;
        Ok(buflock_status::BUFLOCK_OK)
    })
}

/// Takes up to `room` ids of waits to look at with buflock_op_next and writes how many to `*count`. It never blocks.
///
/// # Safety
/// `ids` has room for `room` numbers; `count` is NULL or a place for a size_t.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn buflock_bell_read(
    lock: Option<&buflock_t>,
    ids: *mut u32,
    room: usize,
    count: Option<&mut MaybeUninit<usize>>,
) -> c_int {
    boundary(|| {
        let _uncancelled = Uncancelled::new();
        let lock = given(lock, "lock")?;
        if ids.is_null() {
            return Err(ArgumentFault::Null("ids").into());
        }
        let count = given(count, "count")?;
        // SAFETY: not NULL, and the caller's promise; numbers are written, none is read.
        let ids = unsafe { slice::from_raw_parts_mut(ids, room) };
        count.write(lock.0.bell()?.bell_read(ids)?);
        Ok(buflock_status::BUFLOCK_OK)
    })
}

/// Rings id 0, which no wait has: the reader leaves.
#[unsafe(no_mangle)]
pub extern "C" fn buflock_bell_quit(lock: Option<&buflock_t>) {
    guarded((), || {
        let _uncancelled = Uncancelled::new();
        if let Some(shm) = lock.and_then(|lock| lock.0.bell().ok()) {
            shm.bell_quit();
        }
    });
}
