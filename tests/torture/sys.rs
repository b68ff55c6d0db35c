//! What the torture asks of the system: processes, signals, shared memory, the clock, and whether a thread sleeps.

use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicBool, AtomicU32, Ordering::Relaxed};
use std::time::Duration;
use std::{fs, io, ptr};

/// Memory that this process shares with the children it forks later, zeroed. It stays mapped until the process ends.
///
/// # Safety
/// Zero bytes must be a value of `T`, and all in it atomic.
pub unsafe fn shared<T>() -> &'static T {
    let (access, kind) = (libc::PROT_READ | libc::PROT_WRITE, libc::MAP_SHARED | libc::MAP_ANONYMOUS);
    // SAFETY: a fresh mapping; the kernel chooses its place. Pages come only when they are touched.
    let memory = unsafe { libc::mmap(ptr::null_mut(), size_of::<T>(), access, kind | libc::MAP_NORESERVE, -1, 0) };
    assert_ne!(memory, libc::MAP_FAILED, "mmap: {}", io::Error::last_os_error());
    // SAFETY: mapped for good, aligned to a page, and the caller says that zeros are a T.
    unsafe { &*memory.cast::<T>() }
}

/// A forked process. It is killed when this is dropped, and when its parent dies in whatever way.
#[derive(Debug)]
pub struct Child {
    pid: libc::pid_t,
    ended: Option<Ended>,
}

/// How a process ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Ended {
    /// It left with this code.
    Left(i32),
    /// This signal ended it.
    Killed(i32),
}

/// The code of a child that panicked.
pub const PANICKED: i32 = 101;

impl Child {
    /// Forks. The child runs `body` and leaves with its answer. The caller must be the only thread.
    pub fn fork(body: impl FnOnce() -> i32) -> Self {
        let parent = std::process::id();
        // SAFETY: there is one thread, so the child may do what it likes.
        let pid = unsafe { libc::fork() };
        assert!(pid >= 0, "fork: {}", io::Error::last_os_error());
        if pid == 0 {
            die_with(parent);
            let code = std::panic::catch_unwind(std::panic::AssertUnwindSafe(body)).unwrap_or(PANICKED);
            exit(code);
        }
        Self { pid, ended: None }
    }

    /// Sends a signal. Until the child is waited for, its number is nobody else's.
    pub fn signal(&self, signal: i32) {
        if self.ended.is_none() {
            // SAFETY: our own child, not yet waited for.
            unsafe { libc::kill(self.pid, signal) };
        }
    }

    /// How it ended, if it has.
    pub fn ended(&mut self) -> Option<Ended> {
        self.wait(libc::WNOHANG);
        self.ended
    }

    /// Stops it, and returns when it stands still or has ended.
    pub fn freeze(&mut self) {
        self.signal(libc::SIGSTOP);
        self.wait(libc::WUNTRACED);
    }

    /// Kills it, and returns when it is gone.
    pub fn kill(&mut self) {
        self.signal(libc::SIGKILL);
        self.wait(0);
    }

    /// Waits for its end.
    pub fn end(&mut self) -> Ended {
        loop {
            self.wait(0);
            if let Some(ended) = self.ended {
                return ended;
            }
        }
    }

    fn wait(&mut self, options: i32) {
        if self.ended.is_some() {
            return;
        }
        let mut status = 0;
        // SAFETY: our own child, not yet waited for.
        let pid = unsafe { libc::waitpid(self.pid, &raw mut status, options) };
        if pid == self.pid && libc::WIFEXITED(status) {
            self.ended = Some(Ended::Left(libc::WEXITSTATUS(status)));
        } else if pid == self.pid && libc::WIFSIGNALED(status) {
            self.ended = Some(Ended::Killed(libc::WTERMSIG(status)));
        }
    }
}

impl Drop for Child {
    fn drop(&mut self) {
        while self.ended.is_none() {
            self.kill();
        }
    }
}

fn die_with(parent: u32) {
    // SAFETY: plain calls on this process itself.
    let orphan = unsafe {
        libc::prctl(libc::PR_SET_PDEATHSIG, libc::SIGKILL);
        libc::getppid().unsigned_abs() != parent
    };
    if orphan {
        exit(PANICKED);
    }
}

/// Ends this process at once: nothing of its parent's is cleaned up or written twice.
pub fn exit(code: i32) -> ! {
    // SAFETY: it does not return.
    unsafe { libc::_exit(code) }
}

/// Ends this process as `kill -9` does.
pub fn die() -> ! {
    // SAFETY: this process itself; the signal can't be caught.
    unsafe { libc::kill(libc::getpid(), libc::SIGKILL) };
    exit(PANICKED)
}

static INTERRUPTED: AtomicBool = AtomicBool::new(false);

extern "C" fn note_signal(_: i32) {
    INTERRUPTED.store(true, Relaxed);
}

/// From now on an interrupt from the keyboard ends the run in good order: its directory must go.
pub fn catch_interrupts() {
    let handler = note_signal as extern "C" fn(i32);
    for signal in [libc::SIGINT, libc::SIGTERM, libc::SIGHUP] {
        // SAFETY: the handler only stores to an atomic.
        unsafe { libc::signal(signal, handler as libc::sighandler_t) };
    }
}

/// Whether somebody wants the run to end.
pub fn interrupted() -> bool {
    INTERRUPTED.load(Relaxed)
}

/// Waits until an fd is readable, at most for `ms`.
pub fn wait_for_input(fd: i32, ms: u32) {
    let mut entry = libc::pollfd { fd, events: libc::POLLIN, revents: 0 };
    // SAFETY: one entry.
    unsafe { libc::poll(&raw mut entry, 1, i32::try_from(ms).unwrap_or(i32::MAX)) };
}

/// Sleeps, or less when a signal comes.
pub fn nap(us: u64) {
    let time = Duration::from_micros(us);
    let left = libc::timespec {
        tv_sec: i64::try_from(time.as_secs()).unwrap_or(i64::MAX),
        tv_nsec: i64::from(time.subsec_nanos()),
    };
    // SAFETY: a timespec; what is left is not asked for.
    unsafe { libc::nanosleep(&raw const left, ptr::null_mut()) };
}

/// The calling thread's number. A process's first thread has the process's.
pub fn thread_id() -> u64 {
    // SAFETY: it can't fail.
    u64::from(unsafe { libc::gettid() }.unsigned_abs())
}

/// Whether a thread is asleep, by what the kernel says: neither running, nor waiting for a processor, nor stopped. So a
/// busy machine is never taken for a sleeping thread.
pub fn is_asleep(thread: u64) -> bool {
    let stat = fs::read_to_string(format!("/proc/{thread}/stat")).unwrap_or_default();
    stat.rsplit_once(") ").is_some_and(|(_, rest)| rest.starts_with('S'))
}

/// The threads of this process that have this name.
pub fn threads_named(name: &str) -> Vec<u64> {
    let tasks = fs::read_dir("/proc/self/task").into_iter().flatten().flatten();
    let numbers = tasks.filter_map(|task| task.file_name().to_str()?.parse().ok());
    let has_name =
        |thread: &u64| fs::read_to_string(format!("/proc/self/task/{thread}/comm")).is_ok_and(|own| own.trim() == name);
    numbers.filter(has_name).collect()
}

/// A fresh directory, gone with the guard.
#[derive(Debug)]
pub struct Dir {
    path: PathBuf,
    maker: u32,
}

impl Dir {
    /// Makes one in `parent`.
    pub fn new(parent: &Path) -> io::Result<Self> {
        static COUNT: AtomicU32 = AtomicU32::new(0);
        let (maker, number) = (std::process::id(), COUNT.fetch_add(1, Relaxed));
        let path = parent.join(format!("buflock-torture-{maker}-{number}"));
        fs::create_dir(&path)?;
        Ok(Self { path, maker })
    }

    /// Where it is.
    pub fn path(&self) -> &Path {
        &self.path
    }
}

impl Drop for Dir {
    fn drop(&mut self) {
        if self.maker == std::process::id() {
            let _ = fs::remove_dir_all(&self.path);
        }
    }
}
