//! Recovery: from every state that can be reached, every process that acquires can do so with all others dead.

use crate::bind::{Bind, State};
use crate::search::{End, Explain, Model, search};
use crate::steps;
use std::cell::Cell;

/// More states than one process on its own ever goes through.
const CAP: usize = 100_000;

/// The binding model, with this rule besides its own.
pub struct Recovery {
    bind: Bind,
    tried: Cell<usize>,
    longest: Cell<usize>,
}

impl Recovery {
    pub fn new(bind: Bind) -> Self {
        Self { bind, tried: Cell::new(0), longest: Cell::new(0) }
    }

    /// What was tried: how often a process went on alone, and the most steps it needed.
    pub fn summary(&self) -> String {
        format!("{} recoveries of at most {} steps", self.tried.get(), self.longest.get())
    }

    /// The steps that `who` needs at least to acquire when nobody else moves any more.
    fn steps_alone(&self, state: &State, who: usize) -> Option<usize> {
        match search(&Alone { bind: &self.bind, start: state, who }, CAP).end {
            End::Found(_, path) => Some(path.len() - 1),
            End::Complete | End::Capped => None,
        }
    }
}

impl Model for Recovery {
    type State = State;

    fn start(&self) -> State {
        self.bind.start()
    }

    fn steps(&self, state: &State, next: &mut Vec<State>) {
        self.bind.steps(state, next);
    }

    fn reduce(&self, state: &mut State) {
        self.bind.reduce(state);
    }

    fn found(&self, state: &State) -> Option<&'static str> {
        for who in state.acquiring() {
            let Some(steps) = self.steps_alone(state, who) else {
                return Some("a process cannot acquire when all others are dead");
            };
            self.tried.set(self.tried.get() + 1);
            self.longest.set(self.longest.get().max(steps));
        }
        self.bind.found(state)
    }
}

impl Explain for Recovery {
    fn explain(&self, before: &State, after: &State) -> String {
        self.bind.explain(before, after)
    }
}

/// The binding model from some state on, in which one process is left. It finds the state in which that has acquired.
struct Alone<'a> {
    bind: &'a Bind,
    start: &'a State,
    who: usize,
}

impl Model for Alone<'_> {
    type State = State;

    fn start(&self) -> State {
        self.start.clone()
    }

    fn steps(&self, state: &State, next: &mut Vec<State>) {
        steps::of_process(self.bind, state, self.who, next);
    }

    fn reduce(&self, state: &mut State) {
        state.rename();
    }

    fn found(&self, state: &State) -> Option<&'static str> {
        state.has_acquired(self.who).then_some("acquired")
    }
}
