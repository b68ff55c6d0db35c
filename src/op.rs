//! One call as steps, for programs that must never block: a thin enum over the backends' machines.
//!
//! An op says what to do next and never does it: no sleep, no socket. It may outlive the lock it was made from. Where
//! it is dropped before its end, or before a success was fetched, an acquire gives the lock back and a release is done
//! all the same; but never in another process than its maker's.

use crate::answer::{Acquire, Answer, Await, Busy, Held, Hold, Verdict};
use crate::error::{ArgumentFault, Error};
use crate::hooks::{Mutant, mutant};
use crate::redis::machine::{Machine as RedisMachine, Want as RedisWant};
use crate::redis::wire::Reply;
use crate::redis::{Link, Redis, Server, drive, put_back};
use crate::shm::Shm;
use crate::shm::machine::{Look, Machine, Want};
use crate::step::Step;
use crate::sys::{Slept, monotonic};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering::Relaxed};

/// How a call of `run` ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Run {
    /// Fetch the result.
    Done,
    /// A signal came, or the slice is over. Nothing is lost: run it again.
    Interrupted,
}

/// How ops of a lock ended.
#[derive(Debug, Default)]
pub struct Ends {
    /// With OK.
    pub ok: AtomicU64,
    /// With BUSY.
    pub busy: AtomicU64,
    /// With EXPIRED or TAKEN.
    pub lost: AtomicU64,
    /// With an error.
    pub failed: AtomicU64,
    /// Cancelled, or freed before their end.
    pub cancelled: AtomicU64,
}

/// One operation.
pub struct Op {
    machine: OpMachine,
    maker: u32,
    result: Option<Result<Answer, Error>>,
    /// Whether the caller knows of a success: then the lock is its own.
    fetched: bool,
    ends: Arc<Ends>,
}

/// The backend's machine, with what it needs.
enum OpMachine {
    Shm { shm: Arc<Shm>, machine: Machine, key: Box<[u8]>, id: u32 },
    Redis { redis: Arc<Redis>, machine: Box<RedisMachine>, link: Link },
    Off { answer: Result<Answer, Error> },
}

impl Op {
    /// An op in shared memory.
    pub fn shm(shm: &Arc<Shm>, key: &[u8], want: Want, wait_ms: u32, ends: &Arc<Ends>) -> Self {
        let (machine, id) = (Machine::new(want, wait_ms), shm.next_id());
        Self::new(OpMachine::Shm { shm: shm.clone(), machine, key: key.into(), id }, ends)
    }

    /// An op over Redis.
    pub fn redis(
        redis: &Arc<Redis>,
        want: RedisWant,
        key: &[u8],
        token: &[u8],
        wait_ms: u32,
        ends: &Arc<Ends>,
    ) -> Self {
        let machine = Box::new(redis.machine(want, key, token, wait_ms));
        Self::new(OpMachine::Redis { redis: redis.clone(), machine, link: Link::default() }, ends)
    }

    /// An op whose answer stands already.
    pub fn answered(answer: Result<Answer, Error>, ends: &Arc<Ends>) -> Self {
        Self::new(OpMachine::Off { answer }, ends)
    }

    fn new(machine: OpMachine, ends: &Arc<Ends>) -> Self {
        Self { machine, maker: std::process::id(), result: None, fetched: false, ends: ends.clone() }
    }

    /// That this process made it.
    ///
    /// # Errors
    /// It was another: there it can only be freed.
    pub fn check_process(&self) -> Result<(), ArgumentFault> {
        if self.is_ours() { Ok(()) } else { Err(ArgumentFault::OtherProcess { maker: self.maker }) }
    }

    fn is_ours(&self) -> bool {
        self.maker == std::process::id()
    }

    /// What to do next.
    #[allow(clippy::should_implement_trait)] // it never ends with None
    pub fn next(&mut self) -> Step {
        if let OpMachine::Redis { redis, machine, .. } = &mut self.machine {
            let step = machine.next(redis, monotonic());
            self.note_end();
            return step;
        }
        while self.result.is_none() {
            let answer = match &mut self.machine {
                OpMachine::Off { answer } => answer.clone(),
                OpMachine::Redis { .. } => unreachable!("it has its own steps"),
                OpMachine::Shm { shm, machine, key, id } => match machine.look(shm, key) {
                    Look::Over(answer) => answer,
                    Look::Busy(pause) => match shm.wait_step(machine, &pause, *id) {
                        Some(step) => return step,
                        None => continue, // it changed while it was armed: look again
                    },
                },
            };
            self.end(answer);
        }
        Step::Done { keep: false }
    }

    /// After a step of a Redis machine: whether it is done.
    fn note_end(&mut self) {
        if let OpMachine::Redis { machine, .. } = &self.machine
            && self.result.is_none()
            && let Some(answer) = machine.answer().cloned()
        {
            self.end(answer);
        }
    }

    /// Has a Redis machine do something that its driver reports.
    fn report(
        &mut self,
        what: &'static str,
        tell: impl FnOnce(&mut RedisMachine, &Redis) -> bool,
    ) -> Result<(), Error> {
        let told = match &mut self.machine {
            OpMachine::Redis { redis, machine, .. } => tell(machine, redis),
            _ => false,
        };
        self.note_end();
        if told { Ok(()) } else { Err(ArgumentFault::NotAsked(what).into()) }
    }

    /// The connection that it asked for stands. `fresh`: nobody has used it before.
    ///
    /// # Errors
    /// It did not ask for one. So for what else its driver reports.
    pub fn connected(&mut self, fresh: bool) -> Result<(), Error> {
        self.report("a connection", |machine, redis| machine.connected(redis, fresh, monotonic()))
    }

    /// Bytes came.
    ///
    /// # Errors
    /// As of [`Self::connected`].
    pub fn feed(&mut self, bytes: &[u8]) -> Result<(), Error> {
        self.report("bytes", |machine, redis| machine.feed(redis, bytes, monotonic()))
    }

    /// Connecting, sending, receiving or the caller's client failed.
    ///
    /// # Errors
    /// As of [`Self::connected`].
    pub fn fail(&mut self, why: &str) -> Result<(), Error> {
        self.report("a connection or a call", |machine, redis| machine.fail(redis, why, monotonic()))
    }

    /// What the caller's client got.
    ///
    /// # Errors
    /// As of [`Self::connected`].
    pub fn reply(&mut self, reply: &Reply) -> Result<(), Error> {
        self.report("a call", |machine, redis| machine.reply(redis, reply, monotonic()))
    }

    /// Argument number `index`, from 0, of the command that the caller's client is to carry.
    pub fn argument(&self, index: usize) -> Option<&[u8]> {
        match &self.machine {
            OpMachine::Redis { machine, .. } => machine.argument(index),
            _ => None,
        }
    }

    /// What is to be sent, after that step.
    pub fn outgoing(&self) -> &[u8] {
        match &self.machine {
            OpMachine::Redis { machine, .. } => machine.outgoing(),
            _ => &[],
        }
    }

    /// Where to connect to, and whether that connection may be one that waits long.
    pub fn server(&self) -> Option<(&Server, bool)> {
        match &self.machine {
            OpMachine::Redis { redis, machine, .. } => redis.server().map(|server| (server, machine.may_wait())),
            _ => None,
        }
    }

    /// Whether a caller's own client carries its commands.
    fn is_carried(&self) -> bool {
        matches!(&self.machine, OpMachine::Redis { redis, .. } if redis.server().is_none())
    }

    /// Drives it here, for at most `slice` ns, and comes back when a signal does.
    ///
    /// # Errors
    /// A caller's own client carries its commands: they can't be sent here.
    pub fn run(&mut self, slice: u64) -> Result<Run, Error> {
        if self.is_carried() {
            return Err(Error::NoServer);
        }
        if let OpMachine::Redis { redis, machine, link } = &mut self.machine {
            let done = drive(redis, machine, link, Some(slice));
            self.note_end();
            return Ok(if done { Run::Done } else { Run::Interrupted });
        }
        Ok(self.run_in_shm(slice))
    }

    fn run_in_shm(&mut self, slice: u64) -> Run {
        let mut left = slice;
        while self.result.is_none() {
            let answer = match &mut self.machine {
                OpMachine::Off { answer } => answer.clone(),
                OpMachine::Redis { .. } => unreachable!("it is driven elsewhere"),
                OpMachine::Shm { shm, machine, key, .. } => match machine.look(shm, key) {
                    Look::Over(answer) => answer,
                    Look::Busy(_) if left == 0 => return Run::Interrupted,
                    Look::Busy(pause) => {
                        let clock = pause.table.clock();
                        let before = clock.now();
                        let slept = machine.sleep(&pause, left);
                        left = left.saturating_sub(clock.now().saturating_sub(before));
                        if slept == Slept::Interrupted {
                            return Run::Interrupted;
                        }
                        continue;
                    }
                },
            };
            self.end(answer);
        }
        Run::Done
    }

    fn end(&mut self, answer: Result<Answer, Error>) {
        let ends = &self.ends;
        let counter = match &answer {
            Ok(
                Answer::Acquire(Acquire::Held(_))
                | Answer::Verdict(Verdict::Ok)
                | Answer::Await(Await::Over)
                | Answer::Hold(_),
            ) => &ends.ok,
            Ok(Answer::Acquire(Acquire::Busy(_)) | Answer::Await(Await::Busy)) => &ends.busy,
            Ok(Answer::Verdict(_)) => &ends.lost,
            Err(_) => &ends.failed,
        };
        counter.fetch_add(1, Relaxed);
        self.result = Some(answer);
        if let OpMachine::Shm { shm, id, .. } = &self.machine {
            shm.disarm(*id);
        }
    }

    /// The result, as often as it is asked for.
    ///
    /// # Errors
    /// It is not done.
    pub fn finish(&mut self) -> Result<Result<Answer, Error>, Error> {
        let result = self.result.clone().ok_or(ArgumentFault::NotDone)?;
        self.fetched = true;
        Ok(result)
    }

    /// The acquired lock, if the op is done and this is what it came to.
    pub fn held(&self) -> Option<Held> {
        match self.result {
            Some(Ok(Answer::Acquire(Acquire::Held(held)))) => Some(held),
            _ => None,
        }
    }

    /// Who holds the lock, if the op is done and this is what it was to find out.
    pub fn hold(&self) -> Option<&Hold> {
        match &self.result {
            Some(Ok(Answer::Hold(hold))) => hold.as_ref(),
            _ => None,
        }
    }

    /// The caller has lost interest. An acquire ends BUSY and holds nothing, an await ends BUSY; a release or an extend
    /// goes on. After a success was fetched this does nothing.
    pub fn cancel(&mut self) {
        let was_done = self.result.is_some();
        if let OpMachine::Redis { redis, machine, .. } = &mut self.machine {
            if !self.fetched {
                machine.cancel(redis, monotonic());
                self.result = machine.answer().cloned(); // none while something may still be held
                self.ends.cancelled.fetch_add(u64::from(!was_done && self.result.is_some()), Relaxed);
            }
            return;
        }
        let answer = match &self.machine {
            _ if self.fetched => return,
            OpMachine::Shm { machine, .. } if machine.is_acquire() => Answer::Acquire(Acquire::Busy(Busy::default())),
            OpMachine::Shm { machine, .. } if machine.is_await() && self.result.is_none() => Answer::Await(Await::Busy),
            OpMachine::Off { answer: Ok(Answer::Acquire(_)) } => Answer::Acquire(Acquire::Busy(Busy::default())),
            _ => return,
        };
        self.abandon();
        self.ends.cancelled.fetch_add(u64::from(!was_done), Relaxed); // else it is counted already
        self.result = Some(Ok(answer));
    }

    /// Gives back what nobody will use.
    fn abandon(&mut self) {
        let held = self.held();
        if let OpMachine::Redis { redis, machine, link } = &mut self.machine {
            machine.abandon(redis, self.fetched, monotonic());
            return put_back(redis, link, false, 0);
        }
        let OpMachine::Shm { shm, machine, key, id } = &mut self.machine else { return };
        shm.disarm(*id);
        match held {
            Some(held) if !self.fetched => drop(shm.release(key, &held.token.0)), // no answer is listened to
            Some(_) => {}
            None => machine.leave(shm),
        }
    }
}

impl Drop for Op {
    fn drop(&mut self) {
        if !self.is_ours() && !mutant(Mutant::ChildFreeReleases) {
            return; // a forked child's exit releases nothing of its parent's
        }
        if self.result.is_none() {
            self.ends.cancelled.fetch_add(1, Relaxed);
            if let OpMachine::Shm { shm, machine, key, .. } = &self.machine {
                machine.drop_hold(shm, key);
            }
        }
        self.abandon();
    }
}
