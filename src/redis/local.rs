//! What a lock service has in one process: connections, orphans, what its user may do.

use super::orphans::Orphans;
use super::resolver::Resolver;
use super::tls::Trust;
use super::transport::Connection;
use crate::policy::NS_PER_MS;
use crate::sys::{monotonic, wait_for};
use std::sync::atomic::AtomicBool;
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};

/// One process's part.
pub struct Local {
    pid: u32,
    /// That of the process which forked this one.
    pub earlier: *mut Local,
    pub pool: Pool,
    pub orphans: Orphans,
    pub resolver: Arc<Resolver>,
    pub trust: Trust,
    pub no_hashes: AtomicBool,
    pub one_key: AtomicBool,
    pub no_signals: AtomicBool,
    last_failure: Mutex<Box<str>>,
}

impl Local {
    pub fn new(earlier: *mut Local) -> Self {
        Self {
            pid: std::process::id(),
            earlier,
            pool: Pool::default(),
            orphans: Orphans::default(),
            resolver: Arc::default(),
            trust: Trust::default(),
            no_hashes: AtomicBool::new(false),
            one_key: AtomicBool::new(false),
            no_signals: AtomicBool::new(false),
            last_failure: Mutex::default(),
        }
    }

    /// Why the last call failed that counted for the breaker.
    pub fn last_failure(&self) -> MutexGuard<'_, Box<str>> {
        self.last_failure.lock().unwrap_or_else(PoisonError::into_inner)
    }

    pub fn is_of_another_process(&self) -> bool {
        self.pid != std::process::id()
    }

    /// Closes the sockets of the process that forked this one, as far as none of its threads had them in hand.
    pub fn close(&self) {
        if let Ok(state) = self.pool.state.try_lock() {
            state.idle.iter().for_each(|idle| idle.connection.close());
        }
    }
}

/// How many connections are kept for later.
const IDLE_MOST: usize = 8;
/// How many there are at most. What keeps a lock or gives it back gets one beyond that.
const OPEN_MOST: usize = 64;
/// After so long a connection is closed.
const TOO_OLD: u64 = 60_000 * NS_PER_MS;

/// Connections that nobody uses, the last one used first.
#[derive(Default)]
pub struct Pool {
    state: Mutex<State>,
    changed: Condvar,
}

#[derive(Default)]
struct State {
    idle: Vec<Idle>,
    open: usize,
    /// Threads in `reserve`.
    waiting: usize,
}

struct Idle {
    connection: Connection,
    since: u64,
}

impl Pool {
    fn state(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// A connection that was kept. One that the server has closed since would leave the next call in doubt, and one
    /// over which a reply too many has come would answer it.
    pub fn take(&self, now: u64) -> Option<Connection> {
        let mut state = self.state();
        while let Some(Idle { mut connection, since }) = state.idle.pop() {
            let age = now.saturating_sub(since);
            if age < TOO_OLD && connection.is_quiet() {
                return Some(connection);
            }
            state.open -= 1;
        }
        None
    }

    /// Leave to open one more; waits for it until `until`, or does not ask where `must` says so.
    pub fn reserve(&self, must: bool, until: u64) -> bool {
        let mut state = self.state();
        while state.open >= OPEN_MOST && !must {
            let left = until.saturating_sub(monotonic());
            if left == 0 {
                return false;
            }
            if state.idle.pop().is_some() {
                state.open -= 1;
                continue;
            }
            state.waiting += 1;
            state = wait_for(&self.changed, state, left);
            state.waiting -= 1;
        }
        state.open += 1;
        true
    }

    /// Keeps a connection for the next.
    pub fn keep(&self, connection: Connection, now: u64) {
        let mut state = self.state();
        if state.idle.len() < IDLE_MOST {
            state.idle.push(Idle { connection, since: now });
            self.tell(state);
        } else {
            drop(state);
            drop(connection);
            self.closed();
        }
    }

    /// Ends a connection that is of no use any more.
    pub fn abort(&self, connection: Connection) {
        connection.abort();
        self.closed();
    }

    /// A connection is closed, or one that was to be opened is not.
    pub fn closed(&self) {
        let mut state = self.state();
        state.open -= 1;
        self.tell(state);
    }

    /// Wakes one that waits in `reserve`, if any: that is a call of the system.
    fn tell(&self, state: MutexGuard<'_, State>) {
        let waiting = state.waiting > 0;
        drop(state);
        if waiting {
            self.changed.notify_one();
        }
    }

    /// How many are kept, and how many are open.
    pub fn counts(&self) -> (usize, usize) {
        let state = self.state();
        (state.idle.len(), state.open)
    }
}
