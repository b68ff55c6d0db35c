//! Children of a test: what changes a whole process, or may kill it, happens in one of them.

#![allow(dead_code)] // no test uses all of it

use std::ffi::CString;
use std::io::{self, Write};
use std::ops::Deref;
use std::path::Path;
use std::ptr::{NonNull, null, null_mut};
use std::sync::Once;
use std::sync::atomic::Ordering::{Acquire, Relaxed, Release, SeqCst};
use std::sync::atomic::{AtomicPtr, AtomicU64, AtomicUsize};
use std::time::{Duration, Instant};

/// A child that runs longer hangs, and is ended. Long enough for a slow, busy machine, since it is seldom waited for.
const LIMIT_S: u32 = 30;
const WORDS: usize = 64;
const TEXT: usize = 2048;
/// As `assert!` and friends end a test program.
const FAILED: i32 = 101;

struct Page {
    words: [AtomicU64; WORDS],
    length: AtomicUsize,
    text: [AtomicU64; TEXT / 8],
}

/// Numbers that a process shares with the children it forks later.
pub struct Shared(NonNull<Page>);

// SAFETY: all in it are atomics.
unsafe impl Sync for Shared {}
// SAFETY: all in it are atomics.
unsafe impl Send for Shared {}

impl Shared {
    /// Zeros.
    pub fn new() -> Self {
        let (access, kind) = (libc::PROT_READ | libc::PROT_WRITE, libc::MAP_SHARED | libc::MAP_ANONYMOUS);
        // SAFETY: a fresh mapping; the kernel chooses its place.
        let page = unsafe { libc::mmap(null_mut(), size_of::<Page>(), access, kind, -1, 0) };
        assert_ne!(page, libc::MAP_FAILED, "mmap: {}", io::Error::last_os_error());
        Self(NonNull::new(page.cast()).expect("mapped"))
    }

    fn page(&self) -> &Page {
        // SAFETY: mapped until drop, and zero is a value of all in it.
        unsafe { self.0.as_ref() }
    }

    /// Sets a number for others to see.
    pub fn set(&self, word: usize, value: u64) {
        self[word].store(value, Release);
    }

    /// Waits until a number is at least `value`.
    pub fn wait(&self, word: usize, value: u64) {
        let begin = Instant::now();
        while self[word].load(Acquire) < value {
            assert!(begin.elapsed().as_secs() < u64::from(LIMIT_S) / 2, "word {word} never became {value}");
            std::thread::sleep(Duration::from_micros(200));
        }
    }
}

impl Deref for Shared {
    type Target = [AtomicU64; WORDS];

    fn deref(&self) -> &Self::Target {
        &self.page().words
    }
}

impl Drop for Shared {
    fn drop(&mut self) {
        // SAFETY: mapped by new, and nobody has it any more.
        unsafe { libc::munmap(self.0.as_ptr().cast(), size_of::<Page>()) };
    }
}

impl Page {
    fn write(&self, text: &str) {
        let bytes = &text.as_bytes()[..text.len().min(TEXT)];
        for (cell, chunk) in self.text.iter().zip(bytes.chunks(8)) {
            let mut word = [0; 8];
            word[..chunk.len()].copy_from_slice(chunk);
            cell.store(u64::from_ne_bytes(word), Relaxed);
        }
        self.length.store(bytes.len(), Release);
    }

    fn read(&self) -> String {
        let length = self.length.load(Acquire);
        let bytes = self.text.iter().flat_map(|cell| cell.load(Relaxed).to_ne_bytes()).take(length);
        String::from_utf8_lossy(&bytes.collect::<Vec<u8>>()).into_owned()
    }
}

/// Where this process, being a child, says how it failed.
static REPORT: AtomicPtr<Page> = AtomicPtr::new(null_mut());

/// From now on a failure in a child ends the child, and is told to its parent.
fn report_failures() {
    static ONCE: Once = Once::new();
    ONCE.call_once(|| {
        let before = std::panic::take_hook();
        std::panic::set_hook(Box::new(move |info| {
            // SAFETY: the page of a child's parent stays mapped in the child.
            match unsafe { REPORT.load(Acquire).as_ref() } {
                Some(page) => {
                    page.write(&info.to_string());
                    exit(FAILED);
                }
                None => before(info),
            }
        }));
    });
}

fn exit(code: i32) -> ! {
    // SAFETY: ends this process, without what its parent has registered for its own end.
    unsafe { libc::_exit(code) }
}

/// A forked process. Ended with its guard.
pub struct Child {
    pid: i32,
    report: Shared,
}

/// Runs `body` in a child.
pub fn fork(body: impl FnOnce()) -> Child {
    report_failures();
    let report = Shared::new();
    // SAFETY: the child runs `body` and leaves. Other threads of this process may hold locks of theirs at this moment,
    // but none that `body` needs: it prints nothing, and glibc's malloc is usable after a fork.
    let pid = unsafe { libc::fork() };
    assert!(pid >= 0, "fork: {}", io::Error::last_os_error());
    if pid == 0 {
        REPORT.store(report.0.as_ptr(), Release);
        // SAFETY: plain calls. The second ends what is left when a parent is ended.
        unsafe {
            libc::alarm(LIMIT_S);
            libc::prctl(libc::PR_SET_PDEATHSIG, libc::SIGKILL);
        }
        body();
        exit(0);
    }
    Child { pid, report }
}

impl Child {
    /// Its number.
    pub fn pid(&self) -> i32 {
        self.pid
    }

    /// Waits until the child has made a number at least `value`; fails as the child does.
    pub fn wait_for(&self, shared: &Shared, word: usize, value: u64) {
        wait_for_all(std::slice::from_ref(self), shared, word, value);
    }

    fn has_ended(&self) -> bool {
        // SAFETY: zero is a value of this plain struct.
        let mut info: libc::siginfo_t = unsafe { std::mem::zeroed() };
        let (pid, how) = (self.pid.unsigned_abs(), libc::WEXITED | libc::WNOHANG | libc::WNOWAIT);
        // SAFETY: a struct to fill, then read as the kernel filled it.
        unsafe { libc::waitid(libc::P_PID, pid, &raw mut info, how) == 0 && info.si_pid() != 0 }
    }

    fn reap(&mut self) -> i32 {
        let mut status = 0;
        // SAFETY: a child of this process and an int to fill.
        while unsafe { libc::waitpid(self.pid, &raw mut status, 0) } < 0 {
            assert_eq!(io::Error::last_os_error().raw_os_error(), Some(libc::EINTR), "waitpid");
        }
        self.pid = 0;
        status
    }

    /// Waits for its end, and fails as it did.
    pub fn join(mut self) {
        let status = self.reap();
        if libc::WIFSIGNALED(status) {
            let signal = libc::WTERMSIG(status);
            let why = if signal == libc::SIGALRM { "it hung" } else { "it crashed" };
            panic!("a child was ended by signal {signal}: {why}");
        }
        assert_eq!(libc::WEXITSTATUS(status), 0, "in a child: {}", self.report.page().read());
    }

    /// kill -9.
    pub fn kill(mut self) {
        self.end();
    }

    fn end(&mut self) {
        if self.pid > 0 {
            // SAFETY: a child that was not waited for, so the number is still its own.
            unsafe { libc::kill(self.pid, libc::SIGKILL) };
            self.reap();
        }
    }
}

impl Drop for Child {
    fn drop(&mut self) {
        self.end();
    }
}

/// Waits until children have made a number at least `value`; fails as the first of them does.
pub fn wait_for_all(children: &[Child], shared: &Shared, word: usize, value: u64) {
    while shared[word].load(Acquire) < value {
        if let Some(ended) = children.iter().find(|child| child.has_ended())
            && shared[word].load(Acquire) < value
        {
            panic!("a child ended too early: {}", ended.report.page().read());
        }
        std::thread::sleep(Duration::from_micros(200));
    }
}

/// Runs `body` in a child and fails as it does.
pub fn in_child(body: impl FnOnce()) {
    fork(body).join();
}

/// Sleeps until it is killed.
pub fn sleep_forever() -> ! {
    loop {
        std::thread::sleep(Duration::from_secs(1));
    }
}

/// A test that cannot run here says so. Where CI=true nothing may be left out.
pub fn skip(reason: &str) {
    assert_ne!(std::env::var("CI").as_deref(), Ok("true"), "cannot be skipped in CI: {reason}");
    // Not eprintln!, which is shown of failed tests only.
    let _ = writeln!(io::stderr(), "skipped: {reason}");
}

/// A test, or a part of it, is not for what it is run with.
pub fn not_applicable(why: &str) {
    let _ = writeln!(io::stderr(), "not applicable: {}: {why}", std::thread::current().name().unwrap_or_default());
}

/// Whether this is root; else the test is to be skipped.
pub fn root() -> bool {
    // SAFETY: it can't fail.
    let root = unsafe { libc::geteuid() } == 0;
    if !root {
        skip("needs root");
    }
    root
}

/// Whether a child may leave these namespaces; else the test is to be skipped.
pub fn may_unshare(flags: i32, what: &str) -> bool {
    let refused = Shared::new();
    in_child(|| {
        // SAFETY: changes this child only.
        if unsafe { libc::unshare(flags) } != 0 {
            refused.set(0, 1);
        }
    });
    let may = refused[0].load(Acquire) == 0;
    if !may {
        skip(&format!("may not unshare the {what} namespace"));
    }
    may
}

fn check(answer: i32, what: &str) {
    assert_eq!(answer, 0, "{what}: {}", io::Error::last_os_error());
}

/// Leaves these namespaces.
pub fn unshare(flags: i32) {
    // SAFETY: called in children only.
    check(unsafe { libc::unshare(flags) }, "unshare");
}

/// Runs `body` in a child whose mounts are its own.
pub fn with_own_mounts(body: impl FnOnce()) {
    in_child(|| {
        own_mounts();
        body();
    });
}

/// Leaves the mount namespace: what is mounted from now on, others do not see.
pub fn own_mounts() {
    unshare(libc::CLONE_NEWNS);
    mount(None, Path::new("/"), None, libc::MS_REC | libc::MS_PRIVATE, "");
}

/// mount(2).
pub fn mount(source: Option<&Path>, target: &Path, kind: Option<&str>, flags: libc::c_ulong, options: &str) {
    let c = |text: &str| CString::new(text).expect("no NUL");
    let source = source.map(|path| c(path.to_str().expect("UTF-8")));
    let (target, kind, options) = (c(target.to_str().expect("UTF-8")), kind.map(c), c(options));
    let pointer = |text: &Option<CString>| text.as_ref().map_or(null(), |text| text.as_ptr());
    let answer =
        // SAFETY: C strings or NULL.
        unsafe { libc::mount(pointer(&source), target.as_ptr(), pointer(&kind), flags, options.as_ptr().cast()) };
    check(answer, "mount");
}

/// Mounts a tmpfs.
pub fn mount_tmpfs(target: &Path, options: &str) {
    mount(Some(Path::new("tmpfs")), target, Some("tmpfs"), 0, options);
}

/// Takes `/proc` away.
pub fn unmount_proc() {
    // SAFETY: a C string.
    while unsafe { libc::umount2(c"/proc".as_ptr(), libc::MNT_DETACH) } == 0 {}
    assert!(!Path::new("/proc/self").exists(), "/proc is still there");
}

/// Runs `body` in a child that works as another user and has no rights but that user's.
pub fn fork_as(uid: u32, groups: &[u32], body: impl FnOnce()) -> Child {
    fork(|| {
        let gid = groups.first().copied().unwrap_or(uid);
        // SAFETY: a slice's pointer and length; changes this child only.
        unsafe {
            check(libc::setgroups(groups.len(), groups.as_ptr()), "setgroups");
            check(libc::setresgid(gid, gid, gid), "setresgid");
            check(libc::setresuid(uid, uid, uid), "setresuid");
        }
        body();
    })
}

/// As [`fork_as`], to its end.
pub fn as_user(uid: u32, groups: &[u32], body: impl FnOnce()) {
    fork_as(uid, groups, body).join();
}

/// Sets permission bits.
pub fn chmod(path: &Path, mode: u32) {
    let mode = std::os::unix::fs::PermissionsExt::from_mode(mode);
    std::fs::set_permissions(path, mode).expect("chmod");
}

/// Gives a file away.
pub fn chown(path: &Path, uid: u32, gid: u32) {
    std::os::unix::fs::chown(path, Some(uid), Some(gid)).expect("chown");
}

/// Limits what this process may use, softly.
pub fn limit(resource: libc::__rlimit_resource_t, most: u64) {
    let mut limit = libc::rlimit { rlim_cur: 0, rlim_max: 0 };
    // SAFETY: a struct to fill, and the same changed.
    unsafe {
        check(libc::getrlimit(resource, &raw mut limit), "getrlimit");
        limit.rlim_cur = most;
        check(libc::setrlimit(resource, &raw const limit), "setrlimit");
    }
}

/// umask(2).
pub fn umask(mask: u32) {
    // SAFETY: it can't fail; called in children only.
    unsafe { libc::umask(mask) };
}

static TICKS: AtomicU64 = AtomicU64::new(0);

extern "C" fn tick(_: i32) {
    // In place of the alarm of children, which has the same signal.
    if TICKS.fetch_add(1, SeqCst) > 60_000 {
        // SAFETY: made for signal handlers.
        unsafe { libc::_exit(3) };
    }
}

/// Signals that end system calls, as often as this.
pub fn storm(every: Duration) {
    // SAFETY: zero is a value of this plain struct: no SA_RESTART, and no signal blocked meanwhile.
    let mut action: libc::sigaction = unsafe { std::mem::zeroed() };
    action.sa_sigaction = tick as *const () as usize;
    let every = libc::timeval { tv_sec: 0, tv_usec: every.subsec_micros().into() };
    let timer = libc::itimerval { it_interval: every, it_value: every };
    // SAFETY: structs to read; called in children only.
    let answers = unsafe {
        [
            libc::sigaction(libc::SIGALRM, &raw const action, null_mut()),
            libc::setitimer(libc::ITIMER_REAL, &raw const timer, null_mut()),
        ]
    };
    assert_eq!(answers, [0, 0], "{}", io::Error::last_os_error());
}

/// How many came so far.
pub fn ticks() -> u64 {
    TICKS.load(SeqCst)
}
