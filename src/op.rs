//! One acquire, extend, release or await as steps, for programs that must never block: a thin enum over the backends'
//! machines.
//!
//! An op says what to do next and never does it: no sleep, no socket. It may outlive the lock it was made from. Where
//! it is dropped before its end, or before a success was fetched, an acquire gives the lock back and a release is done
//! all the same; but never in another process than its maker's.

use crate::answer::{Acquire, Answer, Await, Busy, Held, Verdict};
use crate::error::{ArgumentFault, Error};
use crate::shm::Shm;
use crate::shm::clock::Slept;
use crate::shm::machine::{Look, Machine, Want};
use crate::step::Step;
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
    key: Box<[u8]>,
    id: u32,
    maker: u32,
    result: Option<Result<Answer, Error>>,
    /// Whether the caller knows of a success: then the lock is its own.
    fetched: bool,
    ends: Arc<Ends>,
}

/// The backend's machine, with what it needs.
enum OpMachine {
    Shm { shm: Arc<Shm>, machine: Machine },
    Off { answer: Result<Answer, Error> },
}

impl Op {
    /// An op in shared memory.
    pub fn shm(shm: &Arc<Shm>, key: &[u8], want: Want, wait_ms: u32, ends: &Arc<Ends>) -> Self {
        let machine = OpMachine::Shm { shm: shm.clone(), machine: Machine::new(want, wait_ms) };
        Self::new(machine, key, shm.next_id(), ends)
    }

    /// An op whose answer stands already.
    pub fn answered(answer: Result<Answer, Error>, key: &[u8], ends: &Arc<Ends>) -> Self {
        Self::new(OpMachine::Off { answer }, key, 1, ends)
    }

    fn new(machine: OpMachine, key: &[u8], id: u32, ends: &Arc<Ends>) -> Self {
        let (key, ends) = (key.into(), ends.clone());
        Self { machine, key, id, maker: std::process::id(), result: None, fetched: false, ends }
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
        while self.result.is_none() {
            let answer = match &mut self.machine {
                OpMachine::Off { answer } => answer.clone(),
                OpMachine::Shm { shm, machine } => match machine.look(shm, &self.key) {
                    Look::Over(answer) => answer,
                    Look::Busy(pause) => match shm.wait_step(machine, &pause, self.id) {
                        Some(step) => return step,
                        None => continue, // it changed while it was armed: look again
                    },
                },
            };
            self.end(answer);
        }
        Step::Done
    }

    /// Drives it here, for at most `slice` ns, and comes back when a signal does.
    pub fn run(&mut self, slice: u64) -> Run {
        let mut left = slice;
        while self.result.is_none() {
            let answer = match &mut self.machine {
                OpMachine::Off { answer } => answer.clone(),
                OpMachine::Shm { shm, machine } => match machine.look(shm, &self.key) {
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
            Ok(Answer::Acquire(Acquire::Held(_)) | Answer::Verdict(Verdict::Ok) | Answer::Await(Await::Over)) => {
                &ends.ok
            }
            Ok(Answer::Acquire(Acquire::Busy(_)) | Answer::Await(Await::Busy)) => &ends.busy,
            Ok(Answer::Verdict(_)) => &ends.lost,
            Err(_) => &ends.failed,
        };
        counter.fetch_add(1, Relaxed);
        self.result = Some(answer);
        if let OpMachine::Shm { shm, .. } = &self.machine {
            shm.disarm(self.id);
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

    /// The caller has lost interest. An acquire ends BUSY and holds nothing, an await ends BUSY; a release or an extend
    /// goes on. After a success was fetched this does nothing.
    pub fn cancel(&mut self) {
        let was_done = self.result.is_some();
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
        let OpMachine::Shm { shm, machine } = &mut self.machine else { return };
        shm.disarm(self.id);
        match held {
            Some(held) if !self.fetched => drop(shm.release(&self.key, &held.token.0)), // no answer is listened to
            Some(_) => {}
            None => machine.leave(shm),
        }
    }
}

impl Drop for Op {
    fn drop(&mut self) {
        if !self.is_ours() {
            return; // a forked child's exit releases nothing of its parent's
        }
        if self.result.is_none() {
            self.ends.cancelled.fetch_add(1, Relaxed);
            if let OpMachine::Shm { shm, machine } = &mut self.machine
                && machine.is_release()
            {
                let _ = machine.look(shm, &self.key); // a release becomes a drop
            }
        }
        self.abandon();
    }
}
