//! One acquire, extend, release or await in shared memory, as looks with pauses between them.
//!
//! It never sleeps by itself, so that a blocking call, a call that signals may interrupt and an event loop all go this
//! way; they differ only in how they pause.

use super::Shm;
use super::slot::{Attempt, Seen, UNIT_SHIFT};
use super::table::Table;
use super::wait::{First, Wait};
use crate::answer::{Acquire, Answer, Await, Busy};
use crate::error::Error;
use crate::hooks::{Mutant, mutant};
use crate::policy::{self, NS_PER_MS};
use crate::sys::Slept;

/// What is wanted.
#[derive(Clone, Copy, Debug)]
pub enum Want {
    /// The lock.
    Acquire {
        /// For how long.
        ttl_ms: u32,
    },
    /// A new lease.
    Extend {
        /// Whose; None: a text that is no token.
        token: Option<(u64, u64)>,
        /// From now on.
        ttl_ms: u32,
    },
    /// That it be free.
    Release {
        /// Whose; None: a text that is no token.
        token: Option<(u64, u64)>,
    },
    /// To know when the present hold ends.
    Await,
}

/// The state of one call.
#[derive(Clone, Copy, Debug)]
pub struct Machine {
    want: Want,
    wait: Wait,
    first: Option<First>,
    pauses: u32,
}

/// What a look came to.
pub enum Look<'a> {
    /// This is the answer.
    Over(Result<Answer, Error>),
    /// Not yet: pause, then look again.
    Busy(Pause<'a>),
}

/// Something to wait for.
#[derive(Clone, Copy)]
pub struct Pause<'a> {
    /// Where.
    pub table: &'a Table,
    /// The hold that is in the way; None: others bind keys at the same place, for a moment.
    pub seen: Option<Seen>,
    /// What is left of the wait, in ns.
    pub left: u64,
}

impl Machine {
    /// A call that waits at most `wait_ms`.
    #[inline]
    pub fn new(want: Want, wait_ms: u32) -> Self {
        Self { want, wait: Wait::new(wait_ms), first: None, pauses: 0 }
    }

    /// Whether an acquire is wanted.
    pub fn is_acquire(&self) -> bool {
        matches!(self.want, Want::Acquire { .. })
    }

    /// The caller goes before it looked: a release is done all the same.
    pub fn drop_hold(&self, shm: &Shm, key: &[u8]) {
        let token = match self.want {
            Want::Release { token } => token,
            Want::Extend { token, .. } if mutant(Mutant::FreedExtendReleases) => token,
            _ => return,
        };
        if let Ok(table) = shm.table() {
            table.release(key, token);
        }
    }

    /// Whether only the end of a hold is waited for.
    pub fn is_await(&self) -> bool {
        matches!(self.want, Want::Await)
    }

    /// Looks, and takes the lock where it can.
    pub fn look<'a>(&mut self, shm: &'a Shm, key: &[u8]) -> Look<'a> {
        match self.want {
            Want::Acquire { ttl_ms } => match shm.table() {
                // No lock is taken there, not even to be given back: others would wait for the end of that lease.
                Ok(table) if table.is_known_deleted() => self.go_on_in_successor(shm, key, table),
                Ok(table) => {
                    self.judge(shm, key, table, table.acquire(&table.hash(key), ttl_ms, self.wait.has_begun()))
                }
                Err(error) => Look::Over(Err(error)),
            },
            Want::Extend { token, ttl_ms } => {
                Look::Over(shm.table().map(|table| Answer::Verdict(table.extend(key, token, ttl_ms))))
            }
            Want::Release { token } => Look::Over(shm.table().map(|table| Answer::Verdict(table.release(key, token)))),
            Want::Await => self.look_on(shm, key),
        }
    }

    /// Says what an attempt to acquire means.
    pub fn judge<'a>(&mut self, shm: &'a Shm, key: &[u8], table: &'a Table, attempt: Attempt) -> Look<'a> {
        let Want::Acquire { ttl_ms } = self.want else { return self.look(shm, key) };
        let seen = match attempt {
            // A lock in a deleted table protects nothing.
            Attempt::Held(hold) if table.should_look(hold.at) && table.is_deleted() => {
                table.undo(&table.hash(key), hold);
                return self.go_on_in_successor(shm, key, table);
            }
            Attempt::Held(hold) => {
                let held = table.held(hold, ttl_ms, self.wait.waited_ms(table));
                return Look::Over(Ok(Answer::Acquire(Acquire::Held(held))));
            }
            Attempt::Full => {
                self.wait.leave(table);
                return Look::Over(Err(Error::Full { slots: table.slots().count() }));
            }
            Attempt::Busy(seen) => {
                self.wait.found_busy();
                Some(seen)
            }
            Attempt::Contended => None,
        };
        let begins = !self.wait.has_begun();
        let left = self.wait.left(table);
        // Also for a single try, or it would be told of an old hold for as long as that is extended.
        if (left.is_some() || table.should_look(table.clock().now())) && table.is_deleted() {
            self.wait.leave(table);
            return self.go_on_in_successor(shm, key, table);
        }
        let Some(left) = left else {
            shm.counts.busy(begins);
            self.wait.leave(table);
            return Look::Over(Ok(Answer::Acquire(Acquire::Busy(self.busy(table, seen)))));
        };
        shm.counts.wait(begins);
        Look::Busy(Pause { table, seen, left })
    }

    fn go_on_in_successor<'a>(&mut self, shm: &'a Shm, key: &[u8], deleted: &'a Table) -> Look<'a> {
        match shm.successor(deleted) {
            Ok(_) => self.look(shm, key),
            Err(error) => Look::Over(Err(error)),
        }
    }

    fn look_on<'a>(&mut self, shm: &'a Shm, key: &[u8]) -> Look<'a> {
        let table = match shm.table_to_look_at() {
            Ok(table) => table,
            Err(error) => return Look::Over(Err(error)),
        };
        let over = |answer| Look::Over(Ok(Answer::Await(answer)));
        let Some(seen) = table.slots().holding(&table.hash(key)) else { return over(Await::Over) };
        if !self.first.get_or_insert_with(|| First::of(table, seen)).is_still(table, seen) {
            return over(Await::Over);
        }
        match self.wait.left(table) {
            Some(left) => Look::Busy(Pause { table, seen: Some(seen), left }),
            None => over(Await::Busy),
        }
    }

    fn busy(&self, table: &Table, seen: Option<Seen>) -> Busy {
        let waited_ms = self.wait.waited_ms(table);
        seen.map_or(Busy { waited_ms, ..Busy::default() }, |seen| table.busy(seen, waited_ms))
    }

    /// Sleeps, no longer than `longest` ns, until it is worth another look.
    pub fn sleep(&mut self, pause: &Pause, longest: u64) -> Slept {
        let left = pause.left.min(longest);
        match pause.seen {
            Some(seen) if self.is_acquire() => self.wait.for_release(pause.table, seen, left),
            Some(seen) => Wait::for_end(pause.table, seen, left),
            None => Wait::for_others(left),
        }
    }

    /// How long an event loop may leave this alone, in ms: until the wait or the holder's lease ends, at most `longest`
    /// ns. Never 0, so that a loop does not spin.
    pub fn pause_ms(pause: &Pause, longest: u64) -> u32 {
        let lease = pause
            .seen
            .map_or(NS_PER_MS, |seen| (seen.word.until() << UNIT_SHIFT).saturating_sub(pause.table.clock().now()));
        policy::ms_left(pause.left.min(lease).min(longest)).max(1)
    }

    /// The same for a loop that nobody wakes: in steps that grow as the options say.
    pub fn step_ms(&mut self, shm: &Shm, pause: &Pause) -> u32 {
        let longest = shm.settings.steps().pause_ns(self.pauses);
        self.pauses = self.pauses.saturating_add(1);
        Self::pause_ms(pause, longest)
    }

    /// The caller has lost interest: a wake-up that it may have consumed goes to the next one.
    pub fn leave(&mut self, shm: &Shm) {
        // Else nothing is attached for one who never began.
        if self.wait.owes()
            && let Ok(table) = shm.table()
        {
            self.wait.leave(table);
        }
    }
}
