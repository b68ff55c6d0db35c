//! Breadth-first search through every state that a model can reach.

use std::collections::hash_map::Entry;
use std::collections::{BTreeSet, HashMap, VecDeque};
use std::hash::{Hash, Hasher};

/// Something that moves from state to state.
pub trait Model {
    /// A snapshot of everything: shared memory and what each process remembers.
    type State: Clone + Hash;

    /// Where it starts.
    fn start(&self) -> Self::State;

    /// Appends every state that is one step away. None: nothing can move.
    fn steps(&self, state: &Self::State, next: &mut Vec<Self::State>);

    /// Replaces a state by the one that stands for all that behave alike. Without it there may be no end of states.
    fn reduce(&self, state: &mut Self::State);

    /// What the search looks for. Models of a protocol answer with the rule that is broken in this state.
    fn found(&self, state: &Self::State) -> Option<&'static str>;
}

/// A model whose steps can be told.
pub trait Explain: Model {
    /// What happened between a state and the next.
    fn explain(&self, before: &Self::State, after: &Self::State) -> String;
}

/// How a search ended.
pub enum End<S> {
    /// There is such a state. The path leads from the start to it, and no path is shorter.
    Found(&'static str, Vec<S>),
    /// Every state was seen, and none is such.
    Complete,
    /// None of the states that were seen is such, but there are more.
    Capped,
}

/// How a search ended, and how many different states it saw.
pub struct Outcome<S> {
    pub end: End<S>,
    pub states: usize,
}

/// Searches a model, and gives up at `cap` states.
pub fn search<M: Model>(model: &M, cap: usize) -> Outcome<M::State> {
    let mut start = model.start();
    model.reduce(&mut start);
    let root = Fingerprint::of(&start);
    let mut parents = HashMap::from([(root, root)]);
    let mut queue = VecDeque::from([(root, start)]);
    let mut next = Vec::new();
    while let Some((parent, state)) = queue.pop_front() {
        if let Some(what) = model.found(&state) {
            return Outcome { end: End::Found(what, path_to(model, parent, &parents)), states: parents.len() };
        }
        if parents.len() > cap {
            return Outcome { end: End::Capped, states: parents.len() };
        }
        model.steps(&state, &mut next);
        for mut state in next.drain(..) {
            model.reduce(&mut state);
            let print = Fingerprint::of(&state);
            if let Entry::Vacant(place) = parents.entry(print) {
                place.insert(parent);
                queue.push_back((print, state));
            }
        }
    }
    Outcome { end: End::Complete, states: parents.len() }
}

/// Walks from the start to the state with fingerprint `last`. The states on the way are not reduced, so that
/// processes keep their places and numbers keep their meaning, for people to read.
fn path_to<M: Model>(model: &M, last: u128, parents: &HashMap<u128, u128>) -> Vec<M::State> {
    let mut prints = vec![last];
    let mut print = last;
    while parents[&print] != print {
        print = parents[&print];
        prints.push(print);
    }
    let mut path = vec![model.start()];
    for &wanted in prints.iter().rev().skip(1) {
        let mut next = Vec::new();
        model.steps(&path[path.len() - 1], &mut next);
        let step = next.into_iter().find(|state| reduced_print(model, state) == wanted);
        path.push(step.expect("a state has the steps of the one that stands for it: the reduction is sound"));
    }
    path
}

/// Whether states and those that stand for them look alike and have the same steps, all along random walks from the
/// start on which no state is reduced.
pub fn reduction_is_sound<M: Model>(model: &M, walks: usize, length: usize) -> bool {
    let mut random = Random(1);
    (0..walks).all(|_| {
        let mut state = model.start();
        (0..length).all(|_| {
            let mut next = Vec::new();
            model.steps(&state, &mut next);
            let sound = stands_for(model, &state, &next);
            if !next.is_empty() {
                state = next.swap_remove(random.below(next.len()));
            }
            sound
        })
    })
}

/// Whether the reduced state looks as the state does, and has the steps `next`, reduced.
fn stands_for<M: Model>(model: &M, state: &M::State, next: &[M::State]) -> bool {
    let mut reduced = state.clone();
    model.reduce(&mut reduced);
    let mut steps = Vec::new();
    model.steps(&reduced, &mut steps);
    let prints =
        |states: &[M::State]| -> BTreeSet<u128> { states.iter().map(|state| reduced_print(model, state)).collect() };
    model.found(state) == model.found(&reduced) && prints(next) == prints(&steps)
}

fn reduced_print<M: Model>(model: &M, state: &M::State) -> u128 {
    let mut reduced = state.clone();
    model.reduce(&mut reduced);
    Fingerprint::of(&reduced)
}

/// Marsaglia's xorshift: the same walks in each run.
struct Random(u64);

impl Random {
    fn below(&mut self, bound: usize) -> usize {
        self.0 ^= self.0 << 13;
        self.0 ^= self.0 >> 7;
        self.0 ^= self.0 << 17;
        usize::try_from(self.0 >> 33).map_or(0, |number| number % bound)
    }
}

/// 128 bits that stand for a state. The search remembers no more of those it has seen: among 100 million states the
/// chance that two share a fingerprint, so that one goes unseen, is below 1 in 10^22.
struct Fingerprint(u128);

impl Fingerprint {
    fn of(state: &impl Hash) -> u128 {
        let mut print = Self(0x6c62_272e_07bb_0142_62b8_2175_6295_c58d);
        state.hash(&mut print);
        print.0
    }

    fn mix(&mut self, value: u64) {
        const ODD: u128 = 0x9e37_79b9_7f4a_7c15_f39c_c060_5ced_c835;
        self.0 = (self.0 ^ u128::from(value)).wrapping_mul(ODD);
        self.0 ^= self.0 >> 59;
    }
}

impl Hasher for Fingerprint {
    fn write(&mut self, bytes: &[u8]) {
        for &byte in bytes {
            self.mix(u64::from(byte));
        }
    }

    // The numbers that a derived Hash writes, each mixed in at once instead of byte by byte.
    fn write_u8(&mut self, value: u8) {
        self.mix(u64::from(value));
    }

    fn write_isize(&mut self, value: isize) {
        self.mix(value.cast_unsigned() as u64);
    }

    fn write_usize(&mut self, value: usize) {
        self.mix(value as u64);
    }

    fn finish(&self) -> u64 {
        unreachable!("all 128 bits are used")
    }
}
