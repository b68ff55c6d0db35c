//! The shipped library through its C ABI: opened with dlopen, called by typed function pointers.

use std::ffi::{CStr, CString, c_char, c_int, c_void};
use std::marker::PhantomData;
use std::os::fd::RawFd;
use std::os::unix::ffi::OsStrExt;
use std::path::Path;
use std::ptr;

pub const OK: c_int = 0;
pub const BUSY: c_int = 1;
/// As ttl or wait: the handle's own option.
pub const DEFAULT: u32 = u32::MAX;

pub type Token = [c_char; 64];

#[repr(C)]
pub struct RawLock {
    opaque: [u8; 0],
}

#[repr(C)]
pub struct RawConfig {
    opaque: [u8; 0],
}

#[repr(C)]
#[derive(Default)]
pub struct Info {
    size: u32,
    left_ms: u32,
    waited_ms: u32,
    holder: u32,
    fence: u64,
}

impl Info {
    /// As a caller has it ready: all zero, but for its size.
    pub fn new() -> Self {
        let size = u32::try_from(size_of::<Self>()).unwrap_or(0);
        Self { size, ..Self::default() }
    }
}

/// What to do next about an op.
#[derive(Clone, Copy, Debug)]
pub enum Next {
    Done,
    Sleep,
    Bell { id: u32, ms: u32 },
}

#[repr(C)]
pub struct RawOp {
    opaque: [u8; 0],
}

#[repr(C)]
struct RawStep {
    size: u32,
    kind: i32,
    ms: u32,
    id: u32,
    keep: i32,
    tls: i32,
    port: u32,
    count: u32,
    host: *const c_char,
    pool: *const c_char,
    data: *const c_char,
    data_len: usize,
}

type ConfigNew = unsafe extern "C" fn() -> *mut RawConfig;
type ConfigSet = unsafe extern "C" fn(*mut RawConfig, *const c_char, *const c_char) -> c_int;
type ConfigFree = unsafe extern "C" fn(*mut RawConfig);
type New = unsafe extern "C" fn(*const c_char, *const RawConfig, *mut *mut RawLock) -> c_int;
type Free = unsafe extern "C" fn(*mut RawLock);
type Acquire = unsafe extern "C" fn(*const RawLock, *const c_char, usize, u32, u32, *mut c_char, *mut Info) -> c_int;
type Release = unsafe extern "C" fn(*const RawLock, *const c_char, usize, *const c_char) -> c_int;
type Await = unsafe extern "C" fn(*const RawLock, *const c_char, usize, u32) -> c_int;
type BellFd = unsafe extern "C" fn(*const RawLock, *mut c_int) -> c_int;
type BellListen = unsafe extern "C" fn(*const RawLock, *const c_char) -> c_int;
type BellRead = unsafe extern "C" fn(*const RawLock, *mut u32, usize, *mut usize) -> c_int;
type OpAcquire = unsafe extern "C" fn(*const RawLock, *const c_char, usize, u32, u32, *mut *mut RawOp) -> c_int;
type OpNext = unsafe extern "C" fn(*mut RawOp, *mut RawStep) -> c_int;
type OpFinish = unsafe extern "C" fn(*mut RawOp, *mut c_char, *mut Info) -> c_int;
type OpFree = unsafe extern "C" fn(*mut RawOp);
type Text = unsafe extern "C" fn() -> *const c_char;
type StatusName = unsafe extern "C" fn(c_int) -> *const c_char;
type Abi = unsafe extern "C" fn() -> c_int;

/// The functions of one library file. It stays loaded until the process ends.
pub struct Api {
    config_new: ConfigNew,
    config_set: ConfigSet,
    config_free: ConfigFree,
    new: New,
    free: Free,
    acquire: Acquire,
    release: Release,
    await_: Await,
    bell_fd: BellFd,
    bell_listen: BellListen,
    bell_read: BellRead,
    op_acquire: OpAcquire,
    op_next: OpNext,
    op_finish: OpFinish,
    op_free: OpFree,
    last_error: Text,
    status_name: StatusName,
    version: Text,
    abi: Abi,
}

impl Api {
    pub fn load(path: &Path) -> Result<Self, String> {
        let library = open(path)?;
        // SAFETY: each type is the one buflock.h declares for that name.
        unsafe {
            Ok(Self {
                config_new: symbol(library, c"buflock_config_new")?,
                config_set: symbol(library, c"buflock_config_set")?,
                config_free: symbol(library, c"buflock_config_free")?,
                new: symbol(library, c"buflock_new")?,
                free: symbol(library, c"buflock_free")?,
                acquire: symbol(library, c"buflock_acquire")?,
                release: symbol(library, c"buflock_release")?,
                await_: symbol(library, c"buflock_await")?,
                bell_fd: symbol(library, c"buflock_bell_fd")?,
                bell_listen: symbol(library, c"buflock_bell_listen")?,
                bell_read: symbol(library, c"buflock_bell_read")?,
                op_acquire: symbol(library, c"buflock_op_acquire")?,
                op_next: symbol(library, c"buflock_op_next")?,
                op_finish: symbol(library, c"buflock_op_finish")?,
                op_free: symbol(library, c"buflock_op_free")?,
                last_error: symbol(library, c"buflock_last_error")?,
                status_name: symbol(library, c"buflock_status_name")?,
                version: symbol(library, c"buflock_version")?,
                abi: symbol(library, c"buflock_abi")?,
            })
        }
    }

    pub fn version(&self) -> String {
        // SAFETY: takes nothing, returns a static text.
        text(unsafe { (self.version)() })
    }

    pub fn abi(&self) -> c_int {
        // SAFETY: takes nothing, returns a number.
        unsafe { (self.abi)() }
    }

    /// Says which call failed and how, with the library's own words.
    #[cold]
    pub fn failure(&self, call: &str, status: c_int) -> String {
        // SAFETY: any number is a legal argument; the result is a static text.
        let name = text(unsafe { (self.status_name)(status) });
        if status >= 0 {
            return format!("{call} answered {name}");
        }
        // SAFETY: takes nothing, returns this thread's text, read before its next call.
        let cause = text(unsafe { (self.last_error)() });
        format!("{call} failed with {name}: {cause}")
    }

    /// A handle of its own for `url`, with one option set for each pair.
    pub fn open(&self, url: &str, options: &[(&str, &str)]) -> Result<Handle<'_>, String> {
        let config = Config::new(self)?;
        for (option, value) in options {
            config.set(option, value)?;
        }
        let url = c_text(url)?;
        let mut raw = ptr::null_mut();
        // SAFETY: url ends in NUL, config is alive, raw is writable.
        let status = unsafe { (self.new)(url.as_ptr(), config.raw, &raw mut raw) };
        if status != OK || raw.is_null() {
            return Err(self.failure("buflock_new", status));
        }
        Ok(Handle { api: self, raw })
    }
}

struct Config<'a> {
    api: &'a Api,
    raw: *mut RawConfig,
}

impl<'a> Config<'a> {
    fn new(api: &'a Api) -> Result<Self, String> {
        // SAFETY: takes nothing.
        let raw = unsafe { (api.config_new)() };
        if raw.is_null() {
            return Err("buflock_config_new returned NULL".to_owned());
        }
        Ok(Self { api, raw })
    }

    fn set(&self, option: &str, value: &str) -> Result<(), String> {
        let (name, value) = (c_text(option)?, c_text(value)?);
        // SAFETY: the config is alive, both texts end in NUL.
        let status = unsafe { (self.api.config_set)(self.raw, name.as_ptr(), value.as_ptr()) };
        if status == OK { Ok(()) } else { Err(self.api.failure("buflock_config_set", status)) }
    }
}

impl Drop for Config<'_> {
    fn drop(&mut self) {
        // SAFETY: made by config_new, freed only here.
        unsafe { (self.api.config_free)(self.raw) };
    }
}

pub struct Handle<'a> {
    api: &'a Api,
    raw: *mut RawLock,
}

// SAFETY: the API lets many threads use one handle at once.
unsafe impl Sync for Handle<'_> {}

impl<'a> Handle<'a> {
    /// One acquire with the default ttl; the answer is the status.
    #[inline]
    pub fn acquire(&self, key: &[u8], wait_ms: u32, token: &mut Token, info: Option<&mut Info>) -> c_int {
        let info = info.map_or(ptr::null_mut(), ptr::from_mut);
        // SAFETY: handle alive, key has its length, token has its 64 bytes, info is NULL or ours.
        unsafe {
            (self.api.acquire)(self.raw, key.as_ptr().cast(), key.len(), DEFAULT, wait_ms, token.as_mut_ptr(), info)
        }
    }

    #[inline]
    pub fn release(&self, key: &[u8], token: &Token) -> c_int {
        // SAFETY: handle alive, key has its length, token was zeroed and filled by acquire.
        unsafe { (self.api.release)(self.raw, key.as_ptr().cast(), key.len(), token.as_ptr()) }
    }

    pub fn await_free(&self, key: &[u8], wait_ms: u32) -> c_int {
        // SAFETY: handle alive, key has its length.
        unsafe { (self.api.await_)(self.raw, key.as_ptr().cast(), key.len(), wait_ms) }
    }

    /// An acquire in steps, with the default ttl.
    pub fn op(&self, key: &[u8], wait_ms: u32) -> Result<Op<'a>, String> {
        let mut raw = ptr::null_mut();
        // SAFETY: handle alive, key has its length, raw is writable.
        let status =
            unsafe { (self.api.op_acquire)(self.raw, key.as_ptr().cast(), key.len(), DEFAULT, wait_ms, &raw mut raw) };
        if status == OK { Ok(Op { api: self.api, raw }) } else { Err(self.failure("buflock_op_acquire", status)) }
    }

    /// Starts the bell's thread. The fd is the library's.
    pub fn bell_fd(&self) -> Result<RawFd, String> {
        let mut fd = -1;
        // SAFETY: handle alive, fd is writable.
        let status = unsafe { (self.api.bell_fd)(self.raw, &raw mut fd) };
        if status == OK { Ok(fd) } else { Err(self.failure("buflock_bell_fd", status)) }
    }

    pub fn bell_listen(&self, path: &Path) -> Result<(), String> {
        let path = c_text(&path.to_string_lossy())?;
        // SAFETY: handle alive, path ends in NUL.
        let status = unsafe { (self.api.bell_listen)(self.raw, path.as_ptr()) };
        if status == OK { Ok(()) } else { Err(self.failure("buflock_bell_listen", status)) }
    }

    /// How many ids were written to `ids`.
    pub fn bell_read(&self, ids: &mut [u32]) -> Result<usize, String> {
        let mut count = 0;
        // SAFETY: handle alive, ids has its length, count is writable.
        let status = unsafe { (self.api.bell_read)(self.raw, ids.as_mut_ptr(), ids.len(), &raw mut count) };
        if status == OK { Ok(count) } else { Err(self.failure("buflock_bell_read", status)) }
    }

    #[cold]
    pub fn failure(&self, call: &str, status: c_int) -> String {
        self.api.failure(call, status)
    }
}

impl Drop for Handle<'_> {
    fn drop(&mut self) {
        // SAFETY: made by buflock_new, freed only here.
        unsafe { (self.api.free)(self.raw) };
    }
}

/// One acquire in steps. It may outlive its handle.
pub struct Op<'a> {
    api: &'a Api,
    raw: *mut RawOp,
}

impl Op<'_> {
    pub fn next(&mut self) -> Result<Next, String> {
        // SAFETY: all-zero bytes are a valid step.
        let mut step: RawStep = unsafe { std::mem::zeroed() };
        step.size = u32::try_from(size_of::<RawStep>()).unwrap_or(0);
        // SAFETY: op alive and this thread's, step has its size.
        let status = unsafe { (self.api.op_next)(self.raw, &raw mut step) };
        match (status, step.kind) {
            (OK, 0) => Ok(Next::Done),
            (OK, 4) => Ok(Next::Sleep),
            (OK, 5) => Ok(Next::Bell { id: step.id, ms: step.ms }),
            (OK, kind) => Err(format!("buflock_op_next asked for step {kind}")),
            _ => Err(self.api.failure("buflock_op_next", status)),
        }
    }

    /// After `Next::Done`: the token of the lock that is held now.
    pub fn finish(&mut self, token: &mut Token) -> Result<(), String> {
        // SAFETY: op alive and this thread's, token has its 64 bytes, no info.
        let status = unsafe { (self.api.op_finish)(self.raw, token.as_mut_ptr(), ptr::null_mut()) };
        if status == OK { Ok(()) } else { Err(self.api.failure("buflock_op_finish", status)) }
    }
}

impl Drop for Op<'_> {
    fn drop(&mut self) {
        // SAFETY: made by op_acquire, freed only here.
        unsafe { (self.api.op_free)(self.raw) };
    }
}

/// An open library: proof for `symbol` that dlopen succeeded.
#[derive(Clone, Copy)]
pub struct Library<'a>(*mut c_void, PhantomData<&'a ()>);

pub fn open(path: &Path) -> Result<Library<'static>, String> {
    // A name without a slash would be looked for in the system's directories.
    let path = if path.components().count() == 1 { Path::new(".").join(path) } else { path.into() };
    let name = CString::new(path.as_os_str().as_bytes()).map_err(|_| format!("NUL inside {}", path.display()))?;
    // SAFETY: name ends in NUL; the library runs no code at load.
    let handle = unsafe { libc::dlopen(name.as_ptr(), libc::RTLD_NOW | libc::RTLD_LOCAL) };
    if handle.is_null() { Err(dl_error()) } else { Ok(Library(handle, PhantomData)) }
}

/// # Safety
/// `F` must be the C function's pointer type.
unsafe fn symbol<F: Copy>(library: Library<'_>, name: &CStr) -> Result<F, String> {
    assert_eq!(size_of::<F>(), size_of::<*mut c_void>());
    // SAFETY: the library is open, name ends in NUL.
    let found = unsafe { libc::dlsym(library.0, name.as_ptr()) };
    if found.is_null() {
        return Err(dl_error());
    }
    // SAFETY: same size (asserted); the caller vouches for the type.
    Ok(unsafe { std::mem::transmute_copy::<*mut c_void, F>(&found) })
}

fn dl_error() -> String {
    // SAFETY: dlerror returns NULL or a text good until the next dl call of this thread.
    text(unsafe { libc::dlerror() })
}

/// An owned copy of a C text, empty for NULL.
fn text(raw: *const c_char) -> String {
    if raw.is_null() {
        return String::new();
    }
    // SAFETY: not NULL; every text we are handed ends in NUL.
    unsafe { CStr::from_ptr(raw) }.to_string_lossy().into_owned()
}

fn c_text(text: &str) -> Result<CString, String> {
    CString::new(text).map_err(|_| format!("NUL inside {text:?}"))
}
