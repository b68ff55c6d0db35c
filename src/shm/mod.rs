//! The shared-memory backend: attaches on first use, acquires, waits, and notices a deleted table.

pub mod atomics;
pub mod clock;
pub mod member;
pub mod place;
pub mod segment;
pub mod slot;
pub mod table;
mod wait;

use crate::answer::{Acquire, Await, Busy, Verdict};
use crate::config::Settings;
use crate::error::Error;
use slot::Attempt;
use std::ptr::null_mut;
use std::sync::atomic::{AtomicPtr, AtomicU64, Ordering};
use table::Table;
use wait::{First, Wait};

/// A lock service in shared memory.
///
/// Nothing here is a lock of this process: a thread that is stopped in the middle, or missing in a forked child,
/// keeps nobody.
pub struct Shm {
    name: String,
    settings: Settings,
    current: AtomicPtr<Table>,
    counts: Counts,
}

/// What this handle counts. Only what is slow anyway.
#[derive(Debug, Default)]
struct Counts {
    busy: AtomicU64,
    waits: AtomicU64,
    reattached: AtomicU64,
}

impl Shm {
    /// The table `name`. Nothing is attached yet: a master process may make handles for its workers.
    pub fn new(name: String, settings: Settings) -> Self {
        Self { name, settings, current: AtomicPtr::new(null_mut()), counts: Counts::default() }
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
        let mut table = Table::attach(&self.name, &self.settings)?;
        table.earlier = earlier;
        // SAFETY: once published a table lives until this handle is dropped.
        if let Some(earlier) = unsafe { earlier.as_ref() } {
            table.follow(earlier);
        }
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
        match table.acquire(&table.hash(key), ttl_ms, false) {
            Attempt::Held(hold) if !table.should_look(hold.at) => Ok(Acquire::Held(table.held(hold, ttl_ms, 0))),
            first => self.acquire_slowly(table, first, key, ttl_ms, wait_ms),
        }
    }

    /// What is left to do when the first attempt was not simply a success.
    #[cold]
    fn acquire_slowly<'a>(
        &'a self,
        mut table: &'a Table,
        mut attempt: Attempt,
        key: &[u8],
        ttl_ms: u32,
        wait_ms: u32,
    ) -> Result<Acquire, Error> {
        let count = if wait_ms > 0 { &self.counts.waits } else { &self.counts.busy };
        let mut wait = Wait::new(wait_ms);
        loop {
            let seen = match attempt {
                // A lock in a deleted table protects nothing.
                Attempt::Held(hold) if table.should_look(hold.at) && table.is_deleted() => {
                    table.undo(&table.hash(key), hold);
                    table = self.successor(table)?;
                    attempt = table.acquire(&table.hash(key), ttl_ms, wait.has_begun());
                    continue;
                }
                Attempt::Held(hold) => return Ok(Acquire::Held(table.held(hold, ttl_ms, wait.waited_ms(table)))),
                Attempt::Full => {
                    wait.leave(table);
                    return Err(Error::Full { slots: table.slots().count() });
                }
                Attempt::Busy(seen) => {
                    wait.found_busy();
                    Some(seen)
                }
                Attempt::Contended => None,
            };
            if !wait.has_begun() {
                count.fetch_add(1, Ordering::Relaxed);
            }
            let left = wait.left(table);
            if (left.is_some() || table.should_look(table.clock().now())) && table.is_deleted() {
                wait.leave(table);
                table = self.successor(table)?;
                attempt = table.acquire(&table.hash(key), ttl_ms, wait.has_begun());
                continue;
            }
            let Some(left) = left else {
                wait.leave(table);
                let waited_ms = wait.waited_ms(table);
                let unknown = Busy { waited_ms, ..Busy::default() };
                return Ok(Acquire::Busy(seen.map_or(unknown, |seen| table.busy(seen, waited_ms))));
            };
            match seen {
                Some(seen) => wait.for_release(table, seen, left),
                None => Wait::for_others(left),
            }
            attempt = table.acquire(&table.hash(key), ttl_ms, wait.has_begun());
        }
    }

    /// Gives a key back.
    ///
    /// # Errors
    /// The table cannot be attached.
    #[inline]
    pub fn release(&self, key: &[u8], token: &[u8]) -> Result<Verdict, Error> {
        Ok(self.table()?.release(key, token))
    }

    /// Gives a hold a lease of `ttl_ms` from now on.
    ///
    /// # Errors
    /// The table cannot be attached.
    #[inline]
    pub fn extend(&self, key: &[u8], token: &[u8], ttl_ms: u32) -> Result<Verdict, Error> {
        Ok(self.table()?.extend(key, token, ttl_ms))
    }

    /// Waits at most `wait_ms` until a key is free, was released or has changed hands.
    ///
    /// # Errors
    /// The table cannot be attached.
    pub fn wait_for_end(&self, key: &[u8], wait_ms: u32) -> Result<Await, Error> {
        let table = self.table_to_look_at()?;
        let hash = table.hash(key);
        let mut wait = Wait::new(wait_ms);
        let mut first: Option<First> = None;
        loop {
            let Some(seen) = table.slots().holding(&hash) else { return Ok(Await::Over) };
            if !first.get_or_insert_with(|| First::of(table, seen)).is_still(table, seen) {
                return Ok(Await::Over);
            }
            let Some(left) = wait.left(table) else { return Ok(Await::Busy) };
            Wait::for_end(table, seen, left);
        }
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
        ] {
            json.number(name, counter.load(Ordering::Relaxed));
        }
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
        let mut table = *self.current.get_mut();
        while !table.is_null() {
            // SAFETY: made by attach, published once, and nobody uses this handle any more.
            let owned = unsafe { Box::from_raw(table) };
            table = owned.earlier;
        }
    }
}
