//! Locking in shared memory takes no memory of the process: an event loop, a child that was forked from a process with
//! threads, and a host at its memory limit rely on that. Only attaching a table does, in a handle's first call.

mod common;
#[path = "common/process.rs"]
mod process;

use buflock::ffi::lock::{
    buflock_acquire, buflock_await, buflock_break, buflock_drop, buflock_extend, buflock_free, buflock_info,
    buflock_inspect, buflock_new, buflock_release, buflock_stats, buflock_t,
};
use buflock::ffi::words::{BUFLOCK_TOKEN_SIZE, buflock_last_error, buflock_status, buflock_status_name};
use common::Dir;
use process::in_child;
use std::alloc::{GlobalAlloc, Layout, System};
use std::cell::Cell;
use std::ffi::{CStr, CString, c_char, c_int};
use std::mem::MaybeUninit;
use std::ptr::null_mut;
use std::thread;
use std::time::Duration;

/// The system's allocator, counting.
struct Counting;

thread_local! {
    // Of this thread alone: those of the test harness do as they like.
    static CALLS: Cell<u64> = const { Cell::new(0) };
}

fn count() {
    CALLS.set(CALLS.get() + 1);
}

// SAFETY: all is done by the system's allocator; counting takes no memory.
unsafe impl GlobalAlloc for Counting {
    unsafe fn alloc(&self, layout: Layout) -> *mut u8 {
        count();
        // SAFETY: the caller's promise.
        unsafe { System.alloc(layout) }
    }

    unsafe fn dealloc(&self, at: *mut u8, layout: Layout) {
        count();
        // SAFETY: the caller's promise.
        unsafe { System.dealloc(at, layout) }
    }

    unsafe fn alloc_zeroed(&self, layout: Layout) -> *mut u8 {
        count();
        // SAFETY: the caller's promise.
        unsafe { System.alloc_zeroed(layout) }
    }

    unsafe fn realloc(&self, at: *mut u8, layout: Layout, size: usize) -> *mut u8 {
        count();
        // SAFETY: the caller's promise.
        unsafe { System.realloc(at, layout, size) }
    }
}

#[global_allocator]
static ALLOCATOR: Counting = Counting;

/// What `call` answers, and how often it took or gave back memory.
fn counted<T>(call: impl FnOnce() -> T) -> (T, u64) {
    let before = CALLS.get();
    let answer = call();
    (answer, CALLS.get() - before)
}

/// What `call` answers, having left memory alone.
#[track_caller]
fn free_of_memory<T>(call: impl FnOnce() -> T) -> T {
    let (answer, calls) = counted(call);
    assert_eq!(calls, 0, "calls of the allocator");
    answer
}

const OK: c_int = buflock_status::BUFLOCK_OK as c_int;
const BUSY: c_int = buflock_status::BUFLOCK_BUSY as c_int;
const EXPIRED: c_int = buflock_status::BUFLOCK_EXPIRED as c_int;
const TAKEN: c_int = buflock_status::BUFLOCK_TAKEN as c_int;
const ARGUMENT: c_int = buflock_status::BUFLOCK_ARGUMENT as c_int;
const NO_MEMORY: c_int = buflock_status::BUFLOCK_NO_MEMORY as c_int;

type Token = [c_char; BUFLOCK_TOKEN_SIZE];

/// A lock service by the C functions. None of these may take memory itself.
struct Lock(*mut buflock_t);

// SAFETY: many threads may use a lock service at once.
unsafe impl Sync for Lock {}

impl Lock {
    /// Attached: the first call is over.
    fn new(url: &str) -> Self {
        let url = CString::new(url).unwrap();
        let mut lock = MaybeUninit::uninit();
        // SAFETY: a C string, and a place for a pointer.
        assert_eq!(unsafe { buflock_new(url.as_ptr(), None, Some(&mut lock)) }, OK);
        // SAFETY: written with OK.
        let lock = Self(unsafe { lock.assume_init() });
        let (status, token) = lock.acquire(b"first", 60_000, 0);
        assert_eq!((status, lock.release(b"first", &token)), (OK, OK));
        lock
    }

    fn get(&self) -> Option<&buflock_t> {
        // SAFETY: made by buflock_new, and freed by drop.
        unsafe { self.0.as_ref() }
    }

    fn acquire(&self, key: &[u8], ttl_ms: u32, wait_ms: u32) -> (c_int, Token) {
        let mut token = [0; BUFLOCK_TOKEN_SIZE];
        let mut info = info();
        let (at, len, place) = (key.as_ptr().cast(), key.len(), token.as_mut_ptr());
        // SAFETY: a slice's pointer and length; a token's place; an info that says its size.
        (unsafe { buflock_acquire(self.get(), at, len, ttl_ms, wait_ms, place, &raw mut info) }, token)
    }

    fn extend(&self, key: &[u8], token: &Token, ttl_ms: u32) -> c_int {
        // SAFETY: a slice's pointer and length, and a token as acquire wrote it.
        unsafe { buflock_extend(self.get(), key.as_ptr().cast(), key.len(), token.as_ptr(), ttl_ms) }
    }

    fn release(&self, key: &[u8], token: &Token) -> c_int {
        // SAFETY: a slice's pointer and length, and a token as acquire wrote it.
        unsafe { buflock_release(self.get(), key.as_ptr().cast(), key.len(), token.as_ptr()) }
    }

    fn drop(&self, key: &[u8], token: &Token) -> c_int {
        // SAFETY: a slice's pointer and length, and a token as acquire wrote it.
        unsafe { buflock_drop(self.get(), key.as_ptr().cast(), key.len(), token.as_ptr()) }
    }

    fn wait_for_end(&self, key: &[u8], wait_ms: u32) -> c_int {
        // SAFETY: a slice's pointer and length.
        unsafe { buflock_await(self.get(), key.as_ptr().cast(), key.len(), wait_ms) }
    }

    /// The answer, and the holder's process.
    fn inspect(&self, key: &[u8]) -> (c_int, u32) {
        let (mut info, mut holder) = (info(), [0; 64]);
        let (at, len, room) = (key.as_ptr().cast(), key.len(), holder.len());
        // SAFETY: a slice's pointer and length; an info that says its size; a place of that room.
        let status = unsafe { buflock_inspect(self.get(), at, len, &raw mut info, holder.as_mut_ptr(), room) };
        (status, info.holder)
    }

    fn end_any(&self, key: &[u8]) -> c_int {
        // SAFETY: a slice's pointer and length.
        unsafe { buflock_break(self.get(), key.as_ptr().cast(), key.len()) }
    }
}

impl Drop for Lock {
    fn drop(&mut self) {
        // SAFETY: made by buflock_new, and not used again.
        buflock_free(Some(unsafe { Box::from_raw(self.0) }));
    }
}

fn info() -> buflock_info {
    buflock_info { size: u32::try_from(size_of::<buflock_info>()).unwrap(), ..buflock_info::default() }
}

fn last_error() -> &'static str {
    // SAFETY: a C string, good until this thread's next failure.
    unsafe { CStr::from_ptr(buflock_last_error()) }.to_str().unwrap()
}

/// A lock whose lease is over.
fn run_out(lock: &Lock, key: &[u8]) -> Token {
    let (status, token) = lock.acquire(key, 1, 0);
    assert_eq!(status, OK);
    thread::sleep(Duration::from_millis(5)); // a lease of 1 ms ends at most a unit of 0.13 ms later
    token
}

/// Were the counter deaf, all the other tests would pass.
#[test]
fn the_counter_counts() {
    assert_eq!(counted(|| 1 + 1), (2, 0));
    assert_eq!(counted(|| drop(std::hint::black_box(Box::new(1)))).1, 2);
    let mut vec = vec![1, 2];
    assert_eq!(counted(|| std::hint::black_box(&mut vec).reserve(100)).1, 1);
    let dir = Dir::new("alloc");
    let url = dir.url("t");
    let (lock, calls) = counted(|| Lock::new(&url));
    assert!(calls > 0, "attaching takes memory");
    let mut json: [c_char; 4096] = [0; 4096];
    // SAFETY: a place of that room.
    let (status, calls) = counted(|| unsafe { buflock_stats(lock.get(), json.as_mut_ptr(), json.len(), None) });
    assert_eq!(status, OK);
    assert!(calls > 0, "a JSON text takes memory: the library's calls are counted");
}

#[test]
fn acquire_and_release() {
    let dir = Dir::new("alloc");
    let lock = Lock::new(&dir.url("t"));
    let key = b"a key that was never seen";
    let (status, token) = free_of_memory(|| lock.acquire(key, 60_000, 0));
    assert_eq!(status, OK);
    assert_eq!(free_of_memory(|| lock.acquire(key, 60_000, 0)).0, BUSY);
    assert_eq!(free_of_memory(|| lock.acquire(key, 60_000, 20)).0, BUSY, "after a wait");
    assert_eq!(free_of_memory(|| lock.extend(key, &token, 60_000)), OK);
    assert_eq!(free_of_memory(|| lock.release(key, &token)), OK);
    assert_eq!(free_of_memory(|| lock.release(key, &token)), EXPIRED);
    assert_eq!(free_of_memory(|| lock.extend(key, &token, 60_000)), EXPIRED);
    let (status, next) = free_of_memory(|| lock.acquire(key, 60_000, 0));
    assert_eq!(status, OK);
    assert_eq!(free_of_memory(|| lock.release(key, &token)), TAKEN);
    assert_eq!(free_of_memory(|| lock.extend(key, &token, 60_000)), TAKEN);
    assert_eq!(free_of_memory(|| lock.drop(key, &token)), TAKEN);
    assert_eq!(free_of_memory(|| lock.drop(key, &next)), OK);
}

#[test]
fn leases_that_are_over() {
    let dir = Dir::new("alloc");
    let lock = Lock::new(&dir.url("t"));
    let token = run_out(&lock, b"k");
    assert_eq!(free_of_memory(|| lock.extend(b"k", &token, 60_000)), EXPIRED);
    assert_eq!(free_of_memory(|| lock.release(b"k", &token)), EXPIRED);
    run_out(&lock, b"k");
    assert_eq!(free_of_memory(|| lock.acquire(b"k", 60_000, 0)).0, OK, "stolen");
}

#[test]
fn a_wait_that_ends_well() {
    let dir = Dir::new("alloc");
    let lock = Lock::new(&dir.url("t"));
    let (_, held) = lock.acquire(b"k", 60_000, 0);
    thread::scope(|scope| {
        scope.spawn(|| {
            // So that the other sleeps by then. Should it not yet, it acquires without, and nothing fails.
            thread::sleep(Duration::from_millis(100));
            assert_eq!(free_of_memory(|| lock.release(b"k", &held)), OK);
        });
        // Of any length: it ends with the release.
        let (status, token) = free_of_memory(|| lock.acquire(b"k", 60_000, 60_000));
        assert_eq!((status, lock.release(b"k", &token)), (OK, OK));
    });
}

#[test]
fn await_inspect_break() {
    let dir = Dir::new("alloc");
    let lock = Lock::new(&dir.url("t"));
    assert_eq!(free_of_memory(|| lock.wait_for_end(b"k", 20)), OK);
    assert_eq!(free_of_memory(|| lock.inspect(b"k")), (OK, 0));
    assert_eq!(free_of_memory(|| lock.end_any(b"k")), EXPIRED);
    lock.acquire(b"k", 60_000, 0);
    assert_eq!(free_of_memory(|| lock.wait_for_end(b"k", 20)), BUSY);
    assert_eq!(free_of_memory(|| lock.inspect(b"k")), (BUSY, std::process::id()));
    assert_eq!(free_of_memory(|| lock.end_any(b"k")), OK);
}

#[test]
fn failures_and_their_texts() {
    let dir = Dir::new("alloc");
    let lock = Lock::new(&format!("{}&size=16k", dir.url("t"))); // the smallest: 120 slots
    // A thread of its own, so that its first failure is here.
    thread::scope(|scope| {
        scope.spawn(|| {
            let filled = (0u32..1000).find(|number| {
                let (status, _) = free_of_memory(|| lock.acquire(&number.to_ne_bytes(), 60_000, 0));
                assert!([OK, NO_MEMORY].contains(&status));
                status == NO_MEMORY
            });
            assert!(filled.is_some(), "1000 locks in 120 slots");
            let text = free_of_memory(last_error);
            assert!(text.contains("full"), "{text}");
            assert_eq!(free_of_memory(|| lock.acquire(&filled.unwrap().to_ne_bytes(), 60_000, 20)).0, NO_MEMORY);
            assert_eq!(free_of_memory(|| lock.acquire(b"k", 0, 0)).0, ARGUMENT);
            let text = free_of_memory(last_error);
            assert!(text.contains("ttl_ms"), "{text}");
            free_of_memory(|| buflock_status_name(ARGUMENT));
            // SAFETY: NULL is an error.
            let status =
                free_of_memory(|| unsafe { buflock_acquire(None, null_mut(), 0, 1, 0, null_mut(), null_mut()) });
            assert_eq!(status, ARGUMENT);
        });
    });
}

#[test]
fn the_look_for_the_file() {
    let dir = Dir::new("alloc");
    let lock = Lock::new(&dir.url("t"));
    thread::sleep(Duration::from_millis(1050)); // it looks once in a second
    let (status, token) = free_of_memory(|| lock.acquire(b"k", 60_000, 0));
    assert_eq!((status, lock.release(b"k", &token)), (OK, OK));
}

/// A child's first acquire takes a member record, which reads `/proc`.
#[test]
fn a_childs_first_acquire() {
    let dir = Dir::new("alloc");
    let lock = Lock::new(&dir.url("t"));
    let (_, held) = lock.acquire(b"held", 60_000, 0);
    in_child(|| {
        let (status, token) = free_of_memory(|| lock.acquire(b"k", 60_000, 0));
        assert_eq!((status, lock.inspect(b"k")), (OK, (BUSY, std::process::id())));
        assert_eq!(free_of_memory(|| lock.acquire(b"held", 60_000, 20)).0, BUSY);
        assert_eq!(free_of_memory(|| lock.release(b"held", &held)), OK);
        assert_eq!(free_of_memory(|| lock.release(b"k", &token)), OK);
    });
}
