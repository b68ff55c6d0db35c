//! Calls in steps, as event loops make them, and as those drop them: cancelled or freed in every state.

use super::board::{Board, Count, Wrong};
use super::random::Random;
use super::sys;
use super::worker::parts;
use buflock::answer::{Acquire, Answer, Await, Verdict};
use buflock::client::Client;
use buflock::error::Error;
use buflock::key::KeyHash;
use buflock::op::{Op, Run};
use buflock::policy::NS_PER_MS;
use buflock::shm::table::Table;
use buflock::step::Step;
use buflock::token::Token;

/// One step in so many is the last that a loop wants of an op.
const LEAVES: u64 = 12;
/// One success in so many is not fetched.
const FORGETS: u64 = 12;

/// An event loop of one op at a time.
pub struct Steps<'a> {
    pub board: &'a Board,
    pub me: usize,
    pub client: &'a Client,
    pub table: &'a Table,
    pub random: &'a Random,
}

/// Acquires by the bell, to the end.
pub fn acquire_by_bell(client: &Client, key: &[u8], ttl_ms: u32, wait_ms: u32) -> Result<Acquire, Error> {
    let fd = client.bell()?.bell_fd()?;
    let mut op = client.op_acquire(key, ttl_ms, wait_ms)?;
    loop {
        match op.next() {
            Step::Done { .. } => return op.finish()?.map(Answer::into_acquire),
            step => pause(client, fd, step)?,
        }
    }
}

/// Waits as a step says.
fn pause(client: &Client, fd: i32, step: Step) -> Result<(), Error> {
    match step {
        Step::Done { .. } => {}
        Step::Sleep { ms } => sys::nap(u64::from(ms) * 1000),
        Step::Bell { ms, .. } => {
            sys::wait_for_input(fd, ms);
            client.bell()?.bell_read(&mut [0; 8])?;
        }
        step => unreachable!("no step of a lock in shared memory: {step:?}"),
    }
    Ok(())
}

impl Steps<'_> {
    /// Acquires. None: lost interest on the way, and holds nothing.
    pub fn acquire(&self, key: (&[u8], &KeyHash), ttl_ms: u32, wait_ms: u32) -> Option<Result<Acquire, Error>> {
        let mut op = match self.client.op_acquire(key.0, ttl_ms, wait_ms) {
            Ok(op) => op,
            Err(error) => return Some(Err(error)),
        };
        let done = match self.drive(&mut op, wait_ms) {
            Ok(done) => done,
            Err(error) => return Some(Err(error)),
        };
        if done && !self.random.one_in(FORGETS) {
            return Some(self.finish(&mut op).map(Answer::into_acquire));
        }
        self.count(if done { Count::Unfetched } else { Count::Dropped });
        let held = op.held();
        if self.random.one_in(2) {
            op.cancel();
            self.check_cancelled(&mut op, |answer| matches!(answer, Answer::Acquire(Acquire::Busy(_))));
        } else {
            drop(op);
        }
        if let Some((slot, owner)) = held.map(|held| parts(&held.token))
            && self.table.slots().holds(key.1, slot, owner)
        {
            self.board.report(Wrong::OpKept, [owner.0, 0, 0]);
        }
        None
    }

    /// Awaits. None: lost interest on the way.
    pub fn await_end(&self, key: &[u8], wait_ms: u32) -> Option<Result<Await, Error>> {
        let mut op = self.client.op_await(key, wait_ms);
        match self.drive(&mut op, wait_ms) {
            Ok(true) => Some(self.finish(&mut op).map(Answer::into_await)),
            Ok(false) => {
                self.count(Count::Dropped);
                if self.random.one_in(2) {
                    op.cancel();
                    self.check_cancelled(&mut op, |answer| matches!(answer, Answer::Await(Await::Busy)));
                }
                None
            }
            Err(error) => Some(Err(error)),
        }
    }

    /// Extends. A cancel changes nothing about it.
    pub fn extend(&self, key: &[u8], token: &Token, ttl_ms: u32) -> Result<Verdict, Error> {
        self.judge(self.client.op_extend(key, &token.0, ttl_ms)?)
    }

    /// Begins to extend and does not go on.
    pub fn forget_extend(&self, key: &[u8], token: &Token, ttl_ms: u32) {
        self.count(Count::Dropped);
        drop(self.client.op_extend(key, &token.0, ttl_ms));
    }

    /// Releases. A cancel changes nothing about it.
    pub fn release(&self, key: &[u8], token: &Token) -> Result<Verdict, Error> {
        self.judge(self.client.op_release(key, &token.0))
    }

    /// Begins to release and does not go on: it is released all the same.
    pub fn forget_release(&self, key: &[u8], token: &Token) {
        self.count(Count::Dropped);
        drop(self.client.op_release(key, &token.0));
    }

    fn judge(&self, mut op: Op) -> Result<Verdict, Error> {
        if self.random.one_in(4) {
            op.cancel();
        }
        self.drive(&mut op, 0)?;
        self.finish(&mut op).map(Answer::into_verdict)
    }

    /// Drives an op to its end, in one of the two ways; false: the loop has lost interest.
    fn drive(&self, op: &mut Op, wait_ms: u32) -> Result<bool, Error> {
        let by_run = self.random.one_in(3);
        let fd = self.client.bell()?.bell_fd()?;
        let mut end = None;
        loop {
            let asked = self.now();
            if by_run && op.run(self.random.below(5) * NS_PER_MS)? == Run::Interrupted {
                // Its pause was in there.
            } else {
                let step = op.next();
                if matches!(step, Step::Done { .. }) {
                    return Ok(true);
                }
                // Its wait began with the first question. The clock is read around it, so a process that stood still
                // blames nobody.
                let end = *end.get_or_insert_with(|| self.now() + u64::from(wait_ms) * NS_PER_MS);
                self.check_in_time(step, asked, end);
                pause(self.client, fd, step)?;
            }
            if self.random.one_in(LEAVES) {
                return Ok(false);
            }
        }
    }

    /// Asked at the end of its wait an op is done; before, it is not left alone beyond that.
    fn check_in_time(&self, step: Step, asked: u64, end: u64) {
        let (Step::Sleep { ms } | Step::Bell { ms, .. }) = step else { return };
        if asked >= end || u64::from(ms) * NS_PER_MS > end - asked + NS_PER_MS {
            self.board.report(Wrong::OpLate, [u64::from(ms), end, asked]);
        }
    }

    fn check_cancelled(&self, op: &mut Op, is_right: impl FnOnce(Answer) -> bool) {
        let done = matches!(op.next(), Step::Done { .. });
        if !(done && op.finish().is_ok_and(|answer| answer.is_ok_and(is_right))) {
            self.board.report(Wrong::OpNotCancelled, [u64::from(done), 0, 0]);
        }
    }

    fn finish(&self, op: &mut Op) -> Result<Answer, Error> {
        self.count(Count::InSteps);
        op.finish()?
    }

    fn now(&self) -> u64 {
        self.table.clock().now()
    }

    fn count(&self, count: Count) {
        self.board.add(self.me, count, 1);
    }
}
