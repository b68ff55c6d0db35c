//! The shared-memory backend: attaches on first use, acquires, waits, and notices a deleted table.

pub mod atomics;
mod bell;
pub mod clock;
pub mod machine;
pub mod member;
pub mod place;
pub mod segment;
pub mod slot;
pub mod table;
mod wait;

use crate::answer::{Acquire, Answer, Await, Busy, Verdict};
use crate::cancel::Uncancelled;
use crate::config::Settings;
use crate::error::{BellFault, Error};
use crate::policy::NS_PER_MS;
use crate::step::Step;
use crate::token::Token;
use bell::Bell;
use machine::{Look, Machine, Pause, Want};
use slot::Attempt;
use std::path::Path;
use std::ptr::null_mut;
use std::sync::atomic::{AtomicBool, AtomicPtr, AtomicU32, AtomicU64, Ordering};
use table::Table;

/// A lock service in shared memory.
///
/// Nothing here is a lock of this process: a thread that is stopped in the middle, or missing in a forked child,
/// keeps nobody.
pub struct Shm {
    name: String,
    settings: Settings,
    current: AtomicPtr<Table>,
    bell: AtomicPtr<Bell>,
    /// Ids of waits, which the bell says.
    last_id: AtomicU32,
    /// Whether the handle is freed: ops may still be there, but get no bell any more.
    closed: AtomicBool,
    counts: Counts,
}

/// What this handle counts. Only what is slow anyway.
#[derive(Debug, Default)]
pub(crate) struct Counts {
    busy: AtomicU64,
    waits: AtomicU64,
    reattached: AtomicU64,
    /// Waits of event loops that got no bell and were told to sleep.
    slept: AtomicU64,
}

impl Counts {
    /// A try that did not wait found it busy.
    fn busy(&self, first: bool) {
        self.busy.fetch_add(u64::from(first), Ordering::Relaxed);
    }

    /// A wait began.
    fn wait(&self, first: bool) {
        self.waits.fetch_add(u64::from(first), Ordering::Relaxed);
    }
}

impl Shm {
    /// The table `name`. Nothing is attached yet: a master process may make handles for its workers.
    pub fn new(name: String, settings: Settings) -> Self {
        Self {
            name,
            settings,
            current: AtomicPtr::new(null_mut()),
            bell: AtomicPtr::new(null_mut()),
            last_id: AtomicU32::new(0),
            closed: AtomicBool::new(false),
            counts: Counts::default(),
        }
    }

    /// The table in use.
    #[inline]
    fn table(&self) -> Result<&Table, Error> {
        // SAFETY: once published a table lives until this handle is dropped.
        match unsafe { self.current.load(Ordering::Acquire).as_ref() } {
            Some(table) => Ok(table),
            None => self.attach(null_mut()),
        }
    }

    /// Attaches, in place of `earlier`. Of several threads one prevails.
    #[cold]
    fn attach(&self, earlier: *mut Table) -> Result<&Table, Error> {
        let _uncancelled = Uncancelled::new();
        // SAFETY: once published a table lives until this handle is dropped.
        let mut table = match unsafe { earlier.as_ref() } {
            None => Table::attach(&self.name, &self.settings)?,
            Some(earlier) => {
                // In the same directory, whoever this process has become since. One of its own may have to be made.
                let dir = earlier.segment.path.parent().filter(|dir| *dir != place::private_path());
                let dir = dir.map(Path::to_path_buf).or(self.settings.dir.clone());
                let table = Table::attach(&self.name, &Settings { dir, ..self.settings.clone() })?;
                table.follow(earlier);
                table
            }
        };
        table.earlier = earlier;
        let table = Box::into_raw(table);
        let current = match self.current.compare_exchange(earlier, table, Ordering::AcqRel, Ordering::Acquire) {
            Ok(_) => {
                self.counts.reattached.fetch_add(u64::from(!earlier.is_null()), Ordering::Relaxed);
                table
            }
            Err(other) => {
                // SAFETY: just made, and nobody else has seen it.
                drop(unsafe { Box::from_raw(table) });
                other
            }
        };
        // SAFETY: published tables live until this handle is dropped.
        Ok(unsafe { &*current })
    }

    /// The table that takes the place of a deleted one, once nobody holds a lock in that any more.
    #[cold]
    fn successor(&self, deleted: &Table) -> Result<&Table, Error> {
        if let Some(error) = deleted.mourning() {
            return Err(error);
        }
        self.attach(std::ptr::from_ref(deleted).cast_mut())
    }

    /// The table in which a key's holder is found: a deleted one while locks in it are held.
    fn table_to_look_at(&self) -> Result<&Table, Error> {
        let table = self.table()?;
        if table.is_deleted() { self.successor(table).or(Ok(table)) } else { Ok(table) }
    }

    /// Acquires a key for `ttl_ms`, waiting at most `wait_ms`.
    ///
    /// # Errors
    /// The table cannot be attached, is full, or was deleted while locks in it are held.
    #[inline]
    pub fn acquire(&self, key: &[u8], ttl_ms: u32, wait_ms: u32) -> Result<Acquire, Error> {
        let table = self.table()?;
        if table.is_known_deleted() {
            return self.acquire_slowly(None, key, ttl_ms, wait_ms);
        }
        match table.acquire(&table.hash(key), ttl_ms, false) {
            Attempt::Held(hold) if !table.should_look(hold.at) => Ok(Acquire::Held(table.held(hold, ttl_ms, 0))),
            first => self.acquire_slowly(Some((table, first)), key, ttl_ms, wait_ms),
        }
    }

    /// What is left to do when the first attempt, if there was one, was not simply a success.
    #[cold]
    fn acquire_slowly<'a>(
        &'a self,
        first: Option<(&'a Table, Attempt)>,
        key: &[u8],
        ttl_ms: u32,
        wait_ms: u32,
    ) -> Result<Acquire, Error> {
        let mut machine = Machine::new(Want::Acquire { ttl_ms }, wait_ms);
        let look = match first {
            Some((table, attempt)) => machine.judge(self, key, table, attempt),
            None => machine.look(self, key),
        };
        Ok(self.block(&mut machine, key, look)?.into_acquire())
    }

    /// What an event loop is told to do about a machine that is not done.
    pub fn wait_step(&self, machine: &mut Machine, pause: &Pause, id: u32) -> Option<Step> {
        // A loop looks by itself now and then, in case the host lost a ring.
        const LONGEST: u64 = 500 * NS_PER_MS;
        if let (Some(seen), Some(bell)) = (pause.seen, self.bell())
            && let Some(member) = pause.table.bell_member()
        {
            let armed = bell.arm(id, pause.table, seen, member);
            return armed.then(|| Step::Bell { id, ms: Machine::pause_ms(pause, LONGEST) });
        }
        self.counts.slept.fetch_add(1, Ordering::Relaxed);
        Some(Step::Sleep { ms: machine.step_ms(self, pause) })
    }

    /// An id for a wait: above 0, unique in this handle and process.
    pub fn next_id(&self) -> u32 {
        match self.last_id.fetch_add(1, Ordering::Relaxed).wrapping_add(1) {
            0 => self.next_id(),
            id => id,
        }
    }

    /// This process's bell, while it rings.
    fn bell(&self) -> Option<&Bell> {
        // SAFETY: once published a bell lives until this handle and its ops are gone.
        unsafe { self.bell.load(Ordering::Acquire).as_ref() }.filter(|bell| bell.is_ours() && bell.runs())
    }

    /// The wait is over: no ring for it any more.
    pub fn disarm(&self, id: u32) {
        if let Some(bell) = self.bell() {
            bell.disarm(id);
        }
    }

    /// Publishes a bell, unless this process has one that rings. The one before it stays where it is, for those who are
    /// still in it; of a parent's the fds are closed.
    fn start_bell(&self, start: impl FnOnce(&Table) -> Result<Bell, Error>) -> Result<&Bell, Error> {
        if self.closed.load(Ordering::Acquire) {
            return Err(BellFault::Closed.into());
        }
        let earlier = self.bell.load(Ordering::Acquire);
        let mut bell = Box::new(start(self.table()?)?);
        bell.earlier = earlier;
        let bell = Box::into_raw(bell);
        match self.bell.compare_exchange(earlier, bell, Ordering::AcqRel, Ordering::Acquire) {
            Ok(_) => {
                // SAFETY: published bells live as long as this.
                if let Some(earlier) = unsafe { earlier.as_ref() }.filter(|earlier| !earlier.is_ours()) {
                    earlier.close(); // another thread may still look whose it is
                }
            }
            Err(other) => {
                // SAFETY: just made, and nobody else has seen it.
                drop(unsafe { Box::from_raw(bell) });
                // SAFETY: as of earlier.
                return Ok(unsafe { &*other });
            }
        }
        // SAFETY: as of earlier.
        Ok(unsafe { &*bell })
    }

    /// The fd that becomes readable when there are ids to read.
    ///
    /// # Errors
    /// It can't be had, or the bell writes to a socket.
    pub fn bell_fd(&self) -> Result<i32, Error> {
        let bell = match self.bell() {
            Some(bell) => bell,
            None => self.start_bell(Bell::with_pipe)?,
        };
        bell.fd().ok_or_else(|| BellFault::OtherForm.into())
    }

    /// Lets the bell write ids to the one connection that is made to `path`.
    ///
    /// # Errors
    /// It can't be had, or there is a bell already.
    pub fn bell_listen(&self, path: &Path) -> Result<(), Error> {
        if self.bell().is_some() {
            return Err(BellFault::OtherForm.into());
        }
        self.start_bell(|table| Bell::with_socket(table, path)).map(drop)
    }

    /// Takes ids of waits to look at.
    ///
    /// # Errors
    /// They go to a socket.
    pub fn bell_read(&self, ids: &mut [u32]) -> Result<usize, Error> {
        self.bell().map_or(Ok(0), |bell| bell.read(ids))
    }

    /// Rings id 0.
    pub fn bell_quit(&self) {
        if let Some(bell) = self.bell() {
            bell.tell_to_quit();
        }
    }

    /// The handle is freed: ends the bell's thread. Ops that are left go on by sleeps.
    pub fn close(&self) {
        self.closed.store(true, Ordering::Release);
        if let Some(bell) = self.bell() {
            bell.stop();
        }
    }

    /// Drives a machine to its end, whatever signals come.
    fn block<'a>(&'a self, machine: &mut Machine, key: &[u8], mut look: Look<'a>) -> Result<Answer, Error> {
        loop {
            match look {
                Look::Over(answer) => return answer,
                Look::Busy(pause) => machine.sleep(&pause, u64::MAX),
            };
            look = machine.look(self, key);
        }
    }

    /// Gives a key back.
    ///
    /// # Errors
    /// The table cannot be attached.
    #[inline]
    pub fn release(&self, key: &[u8], token: &[u8]) -> Result<Verdict, Error> {
        Ok(self.table()?.release(key, Token::parse(token)))
    }

    /// Gives a hold a lease of `ttl_ms` from now on.
    ///
    /// # Errors
    /// The table cannot be attached.
    #[inline]
    pub fn extend(&self, key: &[u8], token: &[u8], ttl_ms: u32) -> Result<Verdict, Error> {
        Ok(self.table()?.extend(key, Token::parse(token), ttl_ms))
    }

    /// Waits at most `wait_ms` until a key is free, was released or has changed hands.
    ///
    /// # Errors
    /// The table cannot be attached.
    pub fn wait_for_end(&self, key: &[u8], wait_ms: u32) -> Result<Await, Error> {
        let mut machine = Machine::new(Want::Await, wait_ms);
        let look = machine.look(self, key);
        Ok(self.block(&mut machine, key, look)?.into_await())
    }

    /// Who holds a key; None: nobody.
    ///
    /// # Errors
    /// The table cannot be attached.
    pub fn inspect(&self, key: &[u8]) -> Result<Option<Busy>, Error> {
        let table = self.table_to_look_at()?;
        Ok(table.slots().holding(&table.hash(key)).map(|seen| table.busy(seen, 0)))
    }

    /// An operator's act: frees a key, whoever holds it. EXPIRED: nobody did.
    ///
    /// # Errors
    /// The table cannot be attached.
    pub fn end_any(&self, key: &[u8]) -> Result<Verdict, Error> {
        let table = self.table_to_look_at()?;
        Ok(table.slots().end_any(&table.hash(key)))
    }

    /// Writes what is worth knowing as members of a JSON object.
    ///
    /// # Errors
    /// The table cannot be attached.
    pub fn stats(&self, json: &mut crate::stats::Object) -> Result<(), Error> {
        let table = self.table_to_look_at()?;
        let (segment, counters) = (&table.segment, &table.segment.head().counters);
        let (held, slots) = table.load();
        json.text("backend", "shm");
        json.text("path", &segment.path.to_string_lossy());
        json.flag("private_to_this_user", segment.private);
        json.number("segment_id", u64::from(segment.header.id));
        json.number("size", segment.header.size);
        json.number("slots", u64::from(slots));
        json.number("held", held as u64);
        json.number("members", table.members() as u64);
        json.number("fences", table.fences());
        for (name, counter) in [
            ("full", &counters.full),
            ("steals", &counters.steals),
            ("takeovers", &counters.takeovers),
            ("lost_before_return", &counters.lost),
            ("busy", &self.counts.busy),
            ("waits", &self.counts.waits),
            ("reattached", &self.counts.reattached),
            ("bell_sleeps", &self.counts.slept),
        ] {
            json.number(name, counter.load(Ordering::Relaxed));
        }
        let bell = self.bell();
        json.number("bell_waits", bell.map_or(0, Bell::waits) as u64);
        json.number("bell_rings", bell.map_or(0, Bell::rings));
        self.notices(table, json);
        Ok(())
    }

    fn notices(&self, table: &Table, json: &mut crate::stats::Object) {
        let segment = &table.segment;
        let path = segment.path.display();
        if segment.private {
            json.notice(&format!("{path} is private to this user: make /run/buflock to share locks among users"));
        }
        if segment.header.size.abs_diff(self.settings.size) >= segment::BUCKET as u64 {
            let (is, wish) = (segment.header.size, self.settings.size);
            json.notice(&format!("{path} has {is} bytes: it was there already, so the size {wish} was ignored"));
        }
        if clock::futex_is_refused() {
            json.notice("the kernel refuses futexes to this process: waits look every ms instead of being woken");
        }
        if table.has_no_record() {
            json.notice("no member record: inspect does not know this process, and its bells are sleeps");
        }
        if table.is_deleted() {
            json.notice(&format!("{path} was deleted while locks in it are held: no new ones until their leases end"));
        }
        if self.counts.reattached.load(Ordering::Relaxed) > 0 {
            json.notice(&format!("{path} was deleted while in use, and a new table was attached"));
        }
    }
}

impl Drop for Shm {
    fn drop(&mut self) {
        let _uncancelled = Uncancelled::new();
        // Before the tables, which its thread uses.
        let mut bell = *self.bell.get_mut();
        while !bell.is_null() {
            // SAFETY: made by start_bell, published once, and nobody uses this handle any more.
            let owned = unsafe { Box::from_raw(bell) };
            bell = owned.earlier;
            if owned.is_ours() {
                drop(owned);
            } else {
                owned.forget();
            }
        }
        let mut table = *self.current.get_mut();
        while !table.is_null() {
            // SAFETY: made by attach, published once, and nobody uses this handle any more.
            let owned = unsafe { Box::from_raw(table) };
            table = owned.earlier;
        }
    }
}
