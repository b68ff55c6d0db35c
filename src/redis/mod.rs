//! The Redis backend: one lock across machines.
//!
//! `machine` decides, `driver` and `transport` do what it says; event loops and a caller's own client do the same in
//! their own way. What all calls of a process share, `local`: connections, orphans, what this user may do.

mod breaker;
mod driver;
mod local;
pub mod machine;
pub mod names;
mod orphans;
mod resolver;
pub mod scripts;
mod server;
mod socket;
#[cfg_attr(not(feature = "tls"), path = "no_tls.rs")]
pub(crate) mod tls;
mod transport;
pub mod wire;

use crate::answer::Answer;
use crate::config::{Address, Secret, Settings};
use crate::error::{ConfigFault, Error, ServerFault};
use crate::fork::PerProcess;
use crate::hooks::{Mutant, mutant};
use crate::policy::NS_PER_MS;
use crate::stats::Object;
use crate::sys::monotonic;
use breaker::{Breaker, Pass};
pub use driver::{Link, drive, put_back};
use local::Local;
use machine::{Machine, Want};
pub use server::Server;

use std::sync::atomic::{AtomicPtr, AtomicU64, Ordering::AcqRel, Ordering::Acquire, Ordering::Relaxed};

/// A lock service over Redis.
pub struct Redis {
    settings: Settings,
    /// None: the caller's own client carries the commands.
    server: Option<Server>,
    breaker: Breaker,
    mine: PerProcess,
    local: AtomicPtr<Local>,
    counts: Counts,
}

/// What a handle counts in this process and, from before a fork, in its parents.
#[derive(Debug, Default)]
pub(crate) struct Counts {
    busy: AtomicU64,
    waits: AtomicU64,
    steps: AtomicU64,
    lost_connections: AtomicU64,
    failures: AtomicU64,
}

impl Counts {
    fn busy(&self) {
        self.busy.fetch_add(1, Relaxed);
    }

    fn waits(&self) {
        self.waits.fetch_add(1, Relaxed);
    }

    fn steps(&self) {
        self.steps.fetch_add(1, Relaxed);
    }

    fn lost_connection(&self) {
        self.lost_connections.fetch_add(1, Relaxed);
    }
}

impl Redis {
    /// The server at `address`; None: the caller's own client. Nothing is connected yet.
    ///
    /// # Errors
    /// A host that TLS cannot name, or the process gets no memory.
    pub fn new(address: Option<Address>, settings: Settings) -> Result<Self, Error> {
        scripts::prepare(); // not when a fork may find it half done
        if let Some(Address::Tcp { host, tls: true, .. }) = &address
            && !tls::can_be_named(host)
        {
            return Err(ConfigFault::Server.into()); // no certificate is for that
        }
        let server = address.map(|address| Server::new(address, &settings));
        let threshold = settings.breaker.filter(|_| server.is_some());
        let breaker = Breaker::new(threshold, ns(settings.budget_ms)).map_err(|_| Error::NoMemory)?;
        let mine = PerProcess::new().map_err(|_| Error::NoMemory)?;
        let local = AtomicPtr::default();
        Ok(Self { settings, server, breaker, mine, local, counts: Counts::default() })
    }

    /// What belongs to this process. A forked child gets one of its own, and never waits for what a thread of its
    /// parent has locked.
    fn local(&self) -> &Local {
        // In this order: `mine` is set behind it, so what is read then is not that of a process that forked this one.
        let is_known = mutant(Mutant::ChildKeepsConnections) && !self.local.load(Acquire).is_null();
        if self.mine.get() != 0 || is_known {
            // SAFETY: published before `mine` was set, and published ones live until this handle is dropped.
            return unsafe { &*self.local.load(Acquire) };
        }
        self.make_local(self.local.load(Acquire))
    }

    #[cold]
    fn make_local(&self, earlier: *mut Local) -> &Local {
        // SAFETY: published ones live until this handle is dropped.
        if let Some(earlier) = unsafe { earlier.as_ref() }
            && earlier.is_of_another_process()
        {
            earlier.close();
        } else if !earlier.is_null() {
            self.mine.set(1);
            // SAFETY: as above.
            return unsafe { &*earlier };
        }
        let made = Box::into_raw(Box::new(Local::new(earlier)));
        let local = match self.local.compare_exchange(earlier, made, AcqRel, Acquire) {
            Ok(_) => made,
            Err(other) => {
                // SAFETY: just made, and nobody else has seen it.
                drop(unsafe { Box::from_raw(made) });
                other
            }
        };
        self.mine.set(1);
        // SAFETY: as above.
        unsafe { &*local }
    }

    fn connect_time(&self) -> u64 {
        ns(self.settings.connect_timeout_ms)
    }

    fn command_time(&self) -> u64 {
        ns(self.settings.command_timeout_ms)
    }

    fn budget(&self) -> u64 {
        ns(self.settings.budget_ms)
    }

    /// Writes AUTH and SELECT, as far as they are needed; says how many commands these are.
    fn write_setup(&self, to: &mut Vec<u8>) -> Result<usize, Error> {
        let Settings { user, password, db, .. } = &self.settings;
        let password = match password {
            Some(Secret::Text(text)) => Some(text.clone().into_bytes()),
            Some(Secret::File(path)) => Some(server::read_password(path)?),
            None => user.as_ref().map(|_| Vec::new()), // a user without password
        };
        let mut count = 0;
        if let Some(password) = password {
            let user = user.as_deref().map(str::as_bytes);
            let command: Vec<&[u8]> = [Some(&b"AUTH"[..]), user, Some(&password)].into_iter().flatten().collect();
            wire::write_command(to, &command);
            count += 1;
        }
        if let Some(db) = db.filter(|db| *db != 0) {
            wire::write_command(to, &[b"SELECT", db.to_string().as_bytes()]);
            count += 1;
        }
        Ok(count)
    }

    /// What a server says, without the password: some quote the command that they refuse.
    fn without_password(&self, text: String) -> String {
        let password = match &self.settings.password {
            Some(Secret::Text(text)) => text.clone(),
            Some(Secret::File(path)) => server::read_password(path)
                .map(|password| String::from_utf8_lossy(&password).into_owned())
                .unwrap_or_default(),
            None => String::new(),
        };
        let text = text.split(", with args").next().unwrap_or_default().to_owned();
        if password.is_empty() { text } else { text.replace(&password, "[password]") }
    }

    /// An error that names the server.
    fn fault(&self, fault: ServerFault, why: &str) -> Error {
        let server = self.server.as_ref().map_or_else(|| "the caller's client".into(), |server| server.shown.clone());
        Error::Server { server, fault, why: why.into() }
    }

    /// The error that calls fail at once, while they do.
    fn refusal(&self, now: u64, keeps: bool) -> Option<Error> {
        match self.breaker.pass(now, keeps) {
            Pass::Free => None,
            Pass::Refused(left) => {
                let ms = left.div_ceil(NS_PER_MS);
                let last = self.local().last_failure().clone();
                let last = if last.is_empty() { "seen by another process" } else { &last };
                let why = format!("it failed several times in a row ({last}): not asked again for {ms} ms");
                Some(self.fault(ServerFault::Unavailable, &why))
            }
        }
    }

    fn note_answer(&self) {
        self.breaker.succeeded();
    }

    fn note_failure(&self, now: u64, random: u32, why: &str, answers: bool) {
        self.counts.failures.fetch_add(1, Relaxed);
        *self.local().last_failure() = why.into();
        self.breaker.failed(now, random, answers);
    }

    /// Whether scripts must go as text: this user may not use EVALSHA.
    fn has_no_hashes(&self) -> bool {
        self.local().no_hashes.load(Relaxed)
    }

    fn note_no_hashes(&self) {
        self.local().no_hashes.store(true, Relaxed);
    }

    /// Whether a lock has to do with its own key: this user may not use its others, or a cluster has them elsewhere.
    fn has_one_key(&self) -> bool {
        self.local().one_key.load(Relaxed)
    }

    fn note_one_key(&self) {
        self.local().one_key.store(true, Relaxed);
        self.local().no_signals.store(true, Relaxed);
    }

    /// The server refuses waits for signals, or does not know fractions of a second: before Redis 6.
    fn note_no_signals(&self) {
        self.local().no_signals.store(true, Relaxed);
    }

    /// Whether waits can be told of a release.
    fn has_signals(&self) -> bool {
        !self.local().no_signals.load(Relaxed)
    }

    /// On a new connection all is tried again: rights may have been given.
    fn forget_rights(&self) {
        let local = self.local();
        for flag in [&local.no_hashes, &local.one_key, &local.no_signals] {
            if flag.load(Relaxed) {
                flag.store(false, Relaxed);
            }
        }
    }

    /// A new call for `key`; `token` as in [`Machine::new`].
    pub fn machine(&self, want: Want, key: &[u8], token: &[u8], wait_ms: u32) -> Machine {
        Machine::new(self, want, key, token, wait_ms, monotonic())
    }

    /// Drives a call to its end, whatever signals come.
    ///
    /// # Errors
    /// Whatever else than an answer.
    pub fn block(&self, want: Want, key: &[u8], token: &[u8], wait_ms: u32) -> Result<Answer, Error> {
        if self.server.is_none() {
            return Err(Error::NoServer);
        }
        let mut machine = self.machine(want, key, token, wait_ms);
        let mut link = Link::default();
        driver::drive(self, &mut machine, &mut link, None);
        machine.answer().cloned().unwrap_or_else(|| unreachable!("it is driven to its end"))
    }

    /// Leaves a release to the next command.
    ///
    /// # Errors
    /// There is no server, so there are no commands of ours.
    pub fn drop_hold(&self, key: &[u8], token: &[u8]) -> Result<(), Error> {
        if self.server.is_none() {
            return Err(Error::NoServer);
        }
        self.machine(Want::Release, key, token, 0).abandon(self, false, monotonic());
        Ok(())
    }

    /// The server that ops connect to.
    pub fn server(&self) -> Option<&Server> {
        self.server.as_ref()
    }

    /// Writes what is worth knowing as members of a JSON object.
    pub fn stats(&self, json: &mut Object) {
        let local = self.local();
        json.text("backend", "redis");
        json.text("server", self.server.as_ref().map_or("", |server| &server.shown));
        let (orphans, forgotten) = local.orphans.counts();
        let (idle, open) = local.pool.counts();
        let (breaker_ms, opened, refused) = self.breaker.state(monotonic());
        for (name, number) in [
            ("connections_idle", idle as u64),
            ("connections_open", open as u64),
            ("connections_lost", self.counts.lost_connections.load(Relaxed)),
            ("failures", self.counts.failures.load(Relaxed)),
            ("orphans", orphans as u64),
            ("orphans_forgotten", forgotten),
            ("breaker_open_ms", breaker_ms.div_ceil(NS_PER_MS)),
            ("breaker_opened", opened),
            ("breaker_refused", refused),
            ("busy", self.counts.busy.load(Relaxed)),
            ("waits", self.counts.waits.load(Relaxed)),
            ("wait_steps", self.counts.steps.load(Relaxed)),
        ] {
            json.number(name, number);
        }
        if local.no_hashes.load(Relaxed) {
            json.notice("few rights: this user may not use EVALSHA, so scripts go as text");
        }
        if local.one_key.load(Relaxed) {
            json.notice("few rights: this user may use no key but the lock's own, so waits are steps");
        } else if local.no_signals.load(Relaxed) {
            json.notice("this user or server has no blocking list commands: waits are steps");
        }
    }
}

impl Drop for Redis {
    fn drop(&mut self) {
        let mut local = *self.local.get_mut();
        while !local.is_null() {
            // SAFETY: made by make_local, published once, and nobody uses this handle any more.
            let owned = unsafe { Box::from_raw(local) };
            local = owned.earlier;
            if owned.is_of_another_process() {
                owned.close();
                std::mem::forget(owned); // what its threads had locked stays locked; its sockets are closed
            }
        }
    }
}

fn ns(ms: u32) -> u64 {
    u64::from(ms) * NS_PER_MS
}
