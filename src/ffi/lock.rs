//! `buflock_t`: the lock service, blocking.

use super::config::buflock_config;
use super::words::{BUFLOCK_TOKEN_SIZE, Cut, buflock_status};
use super::{boundary, bytes, given, guarded, text, text_bytes};
use crate::answer::{Acquire, Busy, Held, Hold};
use crate::client::Client;
use crate::config::Settings;
use crate::error::{ArgumentFault, Error};
use crate::token::Token;
use std::ffi::{c_char, c_int};
use std::mem::MaybeUninit;
use std::ptr;
use std::slice;

/// A lock service: one URL and its options. Many threads may use it at once, and both sides of a fork.
/// Its functions: buflock_new, buflock_acquire, buflock_extend, buflock_release, buflock_drop, buflock_await,
/// buflock_inspect, buflock_break, buflock_stats, buflock_free.
pub struct buflock_t(pub(super) Client);

/// What there is to know about a hold.
#[repr(C)]
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct buflock_info {
    /// In: sizeof(buflock_info). No byte beyond it is written; what this library does not know of it is set to 0.
    pub size: u32,
    /// OK: what is left of the lease, in ms. BUSY: of the holder's lease, 0 unknown.
    pub left_ms: u32,
    /// How long was waited, in ms.
    pub waited_ms: u32,
    /// BUSY in shared memory: the holder's process id, 0 unknown.
    pub holder: u32,
    /// OK: grows with every holder of a key, so that a resource can refuse older ones. 0 none; always < 2^53.
    pub fence: u64,
}

/// What a struct may have as its size: more than this is not a size but a forgotten one.
const STRUCT_MAX: usize = 4096;

/// A struct that begins with its size, into which the caller wants to be told something.
pub(super) struct StructOut<T> {
    at: *mut T,
    size: usize,
}

/// The same for an info, which may be NULL.
pub(super) type InfoOut = StructOut<buflock_info>;

impl StructOut<buflock_info> {
    /// Checks `at`.
    ///
    /// # Safety
    /// `at` is NULL or a struct that begins with `size` and has that many bytes.
    pub(super) unsafe fn or_none(at: *mut buflock_info) -> Result<Self, ArgumentFault> {
        if at.is_null() {
            return Ok(Self { at, size: 0 });
        }
        // SAFETY: the caller's promise.
        unsafe { Self::new(at, "info") }
    }
}

impl<T> StructOut<T> {
    /// Checks `at`.
    ///
    /// # Safety
    /// `at` is NULL or a struct that begins with `size` and has that many bytes.
    pub(super) unsafe fn new(at: *mut T, name: &'static str) -> Result<Self, ArgumentFault> {
        if at.is_null() {
            return Err(ArgumentFault::Null(name));
        }
        // SAFETY: the caller's promise.
        let size = unsafe { at.cast::<u32>().read() };
        let size = usize::try_from(size).unwrap_or(usize::MAX);
        const LEAST: usize = 2 * size_of::<u32>(); // its size and something to tell
        if !(LEAST..=STRUCT_MAX).contains(&size) {
            return Err(ArgumentFault::StructSize { name, size, ours: size_of::<T>() });
        }
        Ok(Self { at, size })
    }

    /// Whether the caller wants to be told.
    pub(super) fn is_asked_for(&self) -> bool {
        !self.at.is_null()
    }

    /// Writes as much of `told` as the caller's struct has, and zeros to the rest.
    pub(super) fn write(&self, told: &T) {
        if self.at.is_null() {
            return;
        }
        let known = self.size.min(size_of::<T>());
        let head = size_of::<u32>(); // the caller's size stays as it is
        // SAFETY: the caller's struct has `size` bytes, as `new` was promised; it is written from behind its size on.
        unsafe {
            let (from, to) = (ptr::from_ref(told).cast::<u8>(), self.at.cast::<u8>());
            ptr::copy_nonoverlapping(from.add(head), to.add(head), known - head);
            ptr::write_bytes(to.add(known), 0, self.size - known);
        }
    }
}

/// Writes a token's text and its NUL.
///
/// # Safety
/// `at` has BUFLOCK_TOKEN_SIZE bytes.
pub(super) unsafe fn write_token(token: &Token, at: *mut c_char) {
    const { assert!(size_of::<Token>() < BUFLOCK_TOKEN_SIZE) };
    // SAFETY: the caller's promise; the text and its NUL are 33 bytes.
    unsafe {
        ptr::copy_nonoverlapping(token.0.as_ptr(), at.cast::<u8>(), token.0.len());
        at.add(token.0.len()).write(0);
    }
}

impl From<Held> for buflock_info {
    fn from(held: Held) -> Self {
        Self { size: 0, left_ms: held.left_ms, waited_ms: held.waited_ms, holder: 0, fence: held.fence }
    }
}

/// Writes the token of an acquire of which it is not known what it did.
///
/// # Safety
/// `at` is NULL or has BUFLOCK_TOKEN_SIZE bytes.
pub(super) unsafe fn or_uncertain<T>(answer: Result<T, Error>, at: *mut c_char) -> Result<T, Error> {
    if let Err(error) = &answer
        && let Some(token) = error.token()
        && !at.is_null()
    {
        // SAFETY: not NULL, and the caller's promise.
        unsafe { write_token(token, at) };
    }
    answer
}

impl From<Hold> for buflock_info {
    fn from(hold: Hold) -> Self {
        Self { size: 0, left_ms: hold.left_ms, waited_ms: 0, holder: hold.holder.pid(), fence: 0 }
    }
}

impl From<Busy> for buflock_info {
    fn from(busy: Busy) -> Self {
        Self { size: 0, left_ms: busy.left_ms, waited_ms: busy.waited_ms, holder: busy.holder.pid(), fence: 0 }
    }
}

/// Makes a lock service at `url` and writes it to `*lock`, to be freed by buflock_free. `config` may be NULL; what the
/// URL says wins. Nothing is opened or connected before the first use.
/// BUFLOCK_CONFIG: the URL or an option in it cannot be used.
///
/// # Safety
/// `url` is NULL or ends in NUL; `lock` is NULL or a place for a pointer.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn buflock_new(
    url: *const c_char,
    config: Option<&buflock_config>,
    lock: Option<&mut MaybeUninit<*mut buflock_t>>,
) -> c_int {
    boundary(|| {
        let lock = given(lock, "lock")?;
        // SAFETY: the caller's promise.
        let url = unsafe { text(url, "url") }?;
        let settings = config.map_or_else(Settings::default, |config| config.0.clone());
        lock.write(Box::into_raw(Box::new(buflock_t(Client::new(url, settings)?))));
        Ok(buflock_status::BUFLOCK_OK)
    })
}

/// Frees a lock service; NULL is allowed. Locks that are held stay held until their leases end. No network I/O.
#[unsafe(no_mangle)]
pub extern "C" fn buflock_free(lock: Option<Box<buflock_t>>) {
    guarded((), || drop(lock));
}

/// Acquires `key`, any `key_len` bytes, for `ttl_ms` (> 0, up to 30 days, or BUFLOCK_DEFAULT), waiting at most
/// `wait_ms` (0: one try; or BUFLOCK_DEFAULT).
/// OK: it is held, and `token`, a place for BUFLOCK_TOKEN_SIZE bytes, says by what; pass it to extend and release.
/// BUSY: somebody else holds it, and the wait is over. `info` may be NULL; it is written with OK and BUSY.
/// UNCERTAIN: act as not holding it. `token` is written: releasing it later does no harm.
///
/// # Safety
/// `key` holds `key_len` bytes; `token` is NULL or has BUFLOCK_TOKEN_SIZE bytes; `info` is NULL or has `info->size`.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn buflock_acquire(
    lock: Option<&buflock_t>,
    key: *const c_char,
    key_len: usize,
    ttl_ms: u32,
    wait_ms: u32,
    token: *mut c_char,
    info: *mut buflock_info,
) -> c_int {
    boundary(|| {
        let lock = given(lock, "lock")?;
        // SAFETY: the caller's promise.
        let key = unsafe { bytes(key, key_len, "key") }?;
        if token.is_null() {
            return Err(ArgumentFault::Null("token").into());
        }
        // SAFETY: the caller's promise.
        let info = unsafe { InfoOut::or_none(info) }?;
        let answer = lock.0.acquire_telling(key, ttl_ms, wait_ms, info.is_asked_for());
        // SAFETY: not NULL, and the caller's promise.
        match unsafe { or_uncertain(answer, token) }? {
            Acquire::Held(held) => {
                // SAFETY: not NULL, and the caller's promise.
                unsafe { write_token(&held.token, token) };
                info.write(&held.into());
                Ok(buflock_status::BUFLOCK_OK)
            }
            Acquire::Busy(busy) => {
                info.write(&busy.into());
                Ok(buflock_status::BUFLOCK_BUSY)
            }
        }
    })
}

/// Gives the hold that `token` names a lease of `ttl_ms` (as in buflock_acquire) from now on; the token stays good.
/// OK; or EXPIRED, TAKEN: it is not held by this token any more, and nothing is changed.
///
/// # Safety
/// `key` holds `key_len` bytes; `token` is NULL or ends in NUL.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn buflock_extend(
    lock: Option<&buflock_t>,
    key: *const c_char,
    key_len: usize,
    token: *const c_char,
    ttl_ms: u32,
) -> c_int {
    boundary(|| {
        let lock = given(lock, "lock")?;
        // SAFETY: the caller's promise.
        let (key, token) = unsafe { (bytes(key, key_len, "key")?, text_bytes(token, "token")?) };
        Ok(lock.0.extend(key, token, ttl_ms)?.into())
    })
}

/// Gives `key` back if `token` still holds it, and wakes who waits for it.
/// OK; or EXPIRED, TAKEN: it was not held by this token any more. Another's lock is never touched.
///
/// # Safety
/// `key` holds `key_len` bytes; `token` is NULL or ends in NUL.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn buflock_release(
    lock: Option<&buflock_t>,
    key: *const c_char,
    key_len: usize,
    token: *const c_char,
) -> c_int {
    boundary(|| {
        let lock = given(lock, "lock")?;
        // SAFETY: the caller's promise.
        let (key, token) = unsafe { (bytes(key, key_len, "key")?, text_bytes(token, "token")?) };
        Ok(lock.0.release(key, token)?.into())
    })
}

/// As buflock_release, but without network I/O, for finalizers: in shared memory at once; over Redis it goes ahead of
/// this process's next command, and OK says no more than that.
///
/// # Safety
/// `key` holds `key_len` bytes; `token` is NULL or ends in NUL.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn buflock_drop(
    lock: Option<&buflock_t>,
    key: *const c_char,
    key_len: usize,
    token: *const c_char,
) -> c_int {
    boundary(|| {
        let lock = given(lock, "lock")?;
        // SAFETY: the caller's promise.
        let (key, token) = unsafe { (bytes(key, key_len, "key")?, text_bytes(token, "token")?) };
        Ok(lock.0.drop_hold(key, token)?.into())
    })
}

/// Waits at most `wait_ms` (or BUFLOCK_DEFAULT) without taking the lock.
/// OK: free now, or released or in other hands since the call began. BUSY: the same hold still stands.
///
/// # Safety
/// `key` holds `key_len` bytes.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn buflock_await(
    lock: Option<&buflock_t>,
    key: *const c_char,
    key_len: usize,
    wait_ms: u32,
) -> c_int {
    boundary(|| {
        let lock = given(lock, "lock")?;
        // SAFETY: the caller's promise.
        let key = unsafe { bytes(key, key_len, "key") }?;
        Ok(lock.0.wait_for_end(key, wait_ms)?.into())
    })
}

/// Looks who holds `key`. OK: nobody, and all of `info` but its size is 0. BUSY: `info` says how long still, and
/// `holder` who, as text such as "pid 4711" or, over Redis, the holder's option label, cut to its `room` bytes and ended
/// by NUL. Both may be NULL.
///
/// # Safety
/// `key` holds `key_len` bytes; `info` is NULL or has `info->size`; `holder` is NULL or has `room` bytes.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn buflock_inspect(
    lock: Option<&buflock_t>,
    key: *const c_char,
    key_len: usize,
    info: *mut buflock_info,
    holder: *mut c_char,
    room: usize,
) -> c_int {
    boundary(|| {
        let lock = given(lock, "lock")?;
        // SAFETY: the caller's promise.
        let key = unsafe { bytes(key, key_len, "key") }?;
        // SAFETY: the caller's promise.
        let info = unsafe { InfoOut::or_none(info) }?;
        let held = lock.0.inspect(key)?;
        if !holder.is_null() {
            // SAFETY: the caller's promise.
            unsafe { write_holder(holder, room, held.as_ref()) };
        }
        Ok(write_hold(&info, held))
    })
}

/// Writes who holds a lock; nothing where nobody does.
///
/// # Safety
/// `holder` has `room` bytes.
pub(super) unsafe fn write_holder(holder: *mut c_char, room: usize, held: Option<&Hold>) {
    // SAFETY: the caller's promise; bytes are written, none is read.
    let holder = unsafe { slice::from_raw_parts_mut(holder.cast::<u8>(), room) };
    match held {
        Some(hold) => Cut::write(holder, hold),
        None => Cut::write(holder, &""),
    }
}

/// Writes what an inspect found, and says it as a status.
pub(super) fn write_hold(info: &InfoOut, held: Option<Hold>) -> buflock_status {
    let status = if held.is_some() { buflock_status::BUFLOCK_BUSY } else { buflock_status::BUFLOCK_OK };
    info.write(&held.map_or(buflock_info::default(), buflock_info::from));
    status
}

/// An operator's act: frees `key`, whoever holds it; the holder is not told. OK freed, EXPIRED nobody held it.
///
/// # Safety
/// `key` holds `key_len` bytes.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn buflock_break(lock: Option<&buflock_t>, key: *const c_char, key_len: usize) -> c_int {
    boundary(|| {
        let lock = given(lock, "lock")?;
        // SAFETY: the caller's promise.
        let key = unsafe { bytes(key, key_len, "key") }?;
        Ok(lock.0.end_any(key)?.into())
    })
}

/// Writes a JSON object in one line to `json`, which has `room` bytes, and its length without the NUL to `*len`, which
/// may be NULL. Its "notices" are things worth saying once. Where `room` is too small only `*len` is written, and the
/// answer is BUFLOCK_ARGUMENT; `json` may be NULL where `room` is 0.
///
/// # Safety
/// `json` is NULL or has `room` bytes; `len` is NULL or a place for a size_t.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn buflock_stats(
    lock: Option<&buflock_t>,
    json: *mut c_char,
    room: usize,
    len: Option<&mut MaybeUninit<usize>>,
) -> c_int {
    boundary(|| {
        let lock = given(lock, "lock")?;
        if json.is_null() && room > 0 {
            return Err(ArgumentFault::Null("json").into());
        }
        let text = lock.0.stats()?;
        if let Some(len) = len {
            len.write(text.len());
        }
        if room <= text.len() {
            return Err(Error::Argument(ArgumentFault::Room { name: "json", room, need: text.len() + 1 }));
        }
        // SAFETY: not NULL, since `room` is not 0, and the caller's promise.
        Cut::write(unsafe { slice::from_raw_parts_mut(json.cast::<u8>(), room) }, &text);
        Ok(buflock_status::BUFLOCK_OK)
    })
}
