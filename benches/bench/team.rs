//! Child processes that cannot outlive the bench, and the signals that end it in good order.

use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::atomic::{AtomicBool, AtomicU32, Ordering::SeqCst};
use std::time::{Duration, Instant};

use crate::shared::{system_error, wait_for};

/// Nothing in the bench takes nearly as long.
const LIMIT: Duration = Duration::from_secs(30);

static INTERRUPTED: AtomicBool = AtomicBool::new(false);

extern "C" fn interrupt(_signal: libc::c_int) {
    INTERRUPTED.store(true, SeqCst);
}

/// From now on these signals let the bench clean up before it ends.
pub fn catch_signals() {
    set_signals(interrupt as *const () as libc::sighandler_t);
}

fn set_signals(handler: libc::sighandler_t) {
    for signal in [libc::SIGINT, libc::SIGTERM, libc::SIGHUP] {
        // SAFETY: the handler only stores to an atomic, or is the default one.
        unsafe { libc::signal(signal, handler) };
    }
}

pub fn check_signals() -> Result<(), String> {
    if INTERRUPTED.load(SeqCst) { Err("interrupted".to_owned()) } else { Ok(()) }
}

/// Forked children; dropping the team kills and reaps those that are left.
pub struct Team {
    members: Vec<libc::pid_t>,
}

impl Team {
    /// Starts `size` children; each runs `work(index)` and ends.
    pub fn start(size: usize, work: impl Fn(usize) -> Result<(), String>) -> Result<Self, String> {
        let mut team = Self { members: Vec::with_capacity(size) };
        for index in 0..size {
            team.members.push(start_one(index, &work)?);
        }
        Ok(team)
    }

    /// Waits for a word that the children move; ends early when one of them has failed.
    pub fn wait_for(&mut self, word: &AtomicU32, value: u32) -> Result<(), String> {
        let end = Instant::now() + LIMIT;
        wait_for(word, value, || self.check(end))
    }

    /// Waits until all children have ended well.
    pub fn join(mut self) -> Result<(), String> {
        let end = Instant::now() + LIMIT;
        while !self.members.is_empty() {
            self.check(end)?;
            std::thread::sleep(Duration::from_micros(200));
        }
        Ok(())
    }

    fn check(&mut self, end: Instant) -> Result<(), String> {
        check_signals()?;
        if Instant::now() > end {
            return Err(format!("a child process did not answer in {} s", LIMIT.as_secs()));
        }
        let mut failed = None;
        self.members.retain(|&member| match reap(member, libc::WNOHANG) {
            None => true,
            Some(status) => {
                if status != 0 {
                    failed = Some(status);
                }
                false
            }
        });
        match failed {
            None => Ok(()),
            Some(status) => Err(format!("a child process failed ({})", describe(status))),
        }
    }
}

impl Drop for Team {
    fn drop(&mut self) {
        for &member in &self.members {
            // SAFETY: our own child, not reaped yet, so the number is still its own.
            unsafe { libc::kill(member, libc::SIGKILL) };
            reap(member, 0);
        }
    }
}

fn start_one(index: usize, work: &impl Fn(usize) -> Result<(), String>) -> Result<libc::pid_t, String> {
    let parent = libc::pid_t::try_from(std::process::id()).unwrap_or(-1);
    // SAFETY: the bench has one thread whenever it forks, so the child may run any code.
    match unsafe { libc::fork() } {
        -1 => Err(system_error("fork")),
        0 => run_child(parent, || work(index)),
        child => Ok(child),
    }
}

/// Never returns into the parent's frames: their values are not the child's to drop.
fn run_child(parent: libc::pid_t, work: impl FnOnce() -> Result<(), String>) -> ! {
    set_signals(libc::SIG_DFL);
    // SAFETY: plain calls on our own process. Asking for the parent closes the race with its end.
    let orphan = unsafe {
        libc::prctl(libc::PR_SET_PDEATHSIG, libc::SIGKILL);
        libc::getppid() != parent
    };
    let code = match catch_unwind(AssertUnwindSafe(|| if orphan { Ok(()) } else { work() })) {
        Ok(Ok(())) => 0,
        Ok(Err(text)) => {
            eprintln!("bench: child: {text}");
            1
        }
        Err(_) => 101,
    };
    // SAFETY: ends the process without the parent's exit handlers.
    unsafe { libc::_exit(code) }
}

/// The wait status, or nothing when the child still runs.
fn reap(child: libc::pid_t, flags: libc::c_int) -> Option<libc::c_int> {
    let mut status = 0;
    loop {
        // SAFETY: status is writable.
        let answer = unsafe { libc::waitpid(child, &raw mut status, flags) };
        if answer >= 0 {
            return (answer == child).then_some(status);
        }
        if std::io::Error::last_os_error().raw_os_error() != Some(libc::EINTR) {
            return Some(status);
        }
    }
}

fn describe(status: libc::c_int) -> String {
    if libc::WIFSIGNALED(status) {
        format!("signal {}", libc::WTERMSIG(status))
    } else {
        format!("exit {}", libc::WEXITSTATUS(status))
    }
}
