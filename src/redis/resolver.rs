//! Resolves a host name in a thread of its own, since that may take long and cannot be ended.

use crate::policy::{NS_PER_MS, ms_passed};
use crate::sys::{monotonic, wait_for, without_signals};
use std::net::{SocketAddr, ToSocketAddrs};
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::thread;

/// How long what a name was resolved to is used without asking again.
const FRESH: u64 = 30_000 * NS_PER_MS;

/// The last names and addresses of one process.
#[derive(Default)]
pub struct Resolver {
    state: Mutex<Names>,
    changed: Condvar,
}

#[derive(Default)]
struct Names {
    addresses: Vec<SocketAddr>,
    /// When they were found.
    at: u64,
    asks: bool,
    why: String,
}

impl Resolver {
    /// Has the name asked for again at the next connection: a fail-over may have changed what it means.
    pub fn expire(&self) {
        self.state().at = 0;
    }

    fn state(&self) -> MutexGuard<'_, Names> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// The addresses of `host`. Old ones are good until new ones are found, which nobody waits for.
    pub fn resolve(self: &Arc<Self>, host: &str, port: u16, until: u64) -> Result<Vec<SocketAddr>, String> {
        let begun = monotonic();
        let mut state = self.state();
        if !state.addresses.is_empty() && state.at != 0 && begun < state.at + FRESH {
            return Ok(state.addresses.clone());
        }
        let has_old = !state.addresses.is_empty();
        if !state.asks {
            state.asks = true;
            let (resolver, host) = (self.clone(), host.to_owned());
            let name = "buflock-resolve".to_owned();
            let thread = without_signals(|| {
                thread::Builder::new()
                    .name(name)
                    .spawn(move || resolver.ask(&host, port))
                    .map_err(|error| error.to_string())
            });
            if let Err(why) = thread {
                state.asks = false;
                return Err(format!("starting a thread to resolve the host's name failed: {why}"));
            }
        }
        while state.asks && !has_old {
            let left = until.saturating_sub(monotonic());
            if left == 0 {
                break;
            }
            state = wait_for(&self.changed, state, left);
        }
        match (state.addresses.is_empty(), state.asks) {
            (false, _) => Ok(state.addresses.clone()),
            (true, false) => Err(format!("resolving {host} failed: {}", state.why)),
            (true, true) => Err(format!("resolving {host} took more than {} ms", ms_passed(monotonic() - begun))),
        }
    }

    fn ask(&self, host: &str, port: u16) {
        let found = (host, port).to_socket_addrs();
        let mut state = self.state();
        match found {
            Ok(addresses) => (state.addresses, state.at) = (addresses.collect(), monotonic()),
            Err(error) => state.why = error.to_string(),
        }
        state.asks = false;
        self.changed.notify_all();
    }
}
