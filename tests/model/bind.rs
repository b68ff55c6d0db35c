//! Binding a key to a slot, taking it, and using the token: release and extend.
//!
//! Each step of a process is one access to shared memory. A process acquires its key, may extend its hold, releases
//! it, and begins again; or it is the second process, which copies tokens of holders and uses them at any time, also
//! long after. Nobody has to end: runs of every length are covered.
//!
//! What is abstracted:
//!
//! * **Time.** Any CLAIM, PENDING or HELD word may be judged overdue by anybody at any moment. This covers every clock
//!   and every delay; a process that stops for good is one that is never chosen to step again.
//! * **Words.** Each word written gets a name of its own: time and sequence number together never repeat. So do the
//!   tags of key words, and member and time of a take in the owner word. This is what the order "read the word, then
//!   the clock, then swap the word" is for; here it is taken for granted.
//! * **Sequence numbers.** Without a modulus they never repeat, so that "the same number" is "the same hold". With a
//!   modulus they wrap after so many transitions of the slot, as 16 bits do after 65,536; then only the owner word
//!   tells such holds apart. Names of words stay unique: a wrapped number comes with another time.
//! * **Choice of a slot.** A new key may go to any slot that may be had, in any order of preference.
//! * **Key.** One or two words stand for the three; with one it cannot be torn, and there are fewer states.
//!
//! Symmetry: processes are interchangeable but for what they remember, so they are sorted; words are interchangeable
//! but for where they are remembered, so they are named anew in each state (see `names`).
//!
//! Not modelled: weak memory (each access takes effect at once, for all), the waiters bit (see the waking model), fence
//! numbers, the answers that depend on the clock, members, an operator's forced release, 32-bit times that wrap.

use crate::names::Renaming;
use crate::search::{Explain, Model};
use crate::slot::{Cell, Content, Key, MAX_SLOTS, NO_NAME, Name, Phase, Place, Seen, Slot, Slots, Token, Word};
use crate::steps;
use std::fmt::Write;

const MAX_PROCESSES: usize = 4;

/// The key of the second process, which acquires nothing.
pub const NO_KEY: Key = 0;

/// A planted bug.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Mutant {
    /// Who binds a key does not look whether another slot has it.
    NoRescan,
    /// Who binds a key does not see others that are about to.
    RescanIgnoresPending,
    /// Of two that bind one key the winner goes on without stopping the loser.
    LoserNotStopped,
    /// Key words are stored, whatever they were.
    KeysStored,
    /// The claim is not seen standing between the load and the swap of a key word.
    ClaimNotRechecked,
    /// Two claims for one key write the same tag; as they may when the clock is read before the word to be replaced.
    ClaimTagRepeats,
    /// Binding leaves the owner word as it was.
    OwnerNotReset,
    /// The swap that takes a slot expects the word of now, not the one that was judged.
    TakeRereadsWord,
    /// The owner word is stored, whatever it was.
    OwnerStored,
    /// The hold is not seen standing between the load and the swap of the owner word.
    OwnerNotRechecked,
    /// Release and extend look at nothing but whether the slot is held.
    TokenIgnored,
    /// Release and extend do not compare the sequence number.
    SeqIgnored,
    /// Release and extend do not compare the owner word.
    OwnerIgnored,
}

/// The model, with everything that makes it smaller or larger.
#[derive(Clone, Copy, Debug)]
pub struct Bind {
    /// How many slots there are, all within the window of every key.
    pub slots: Place,
    /// One process for each, which acquires this key.
    pub keys: &'static [Key],
    /// How many words a key has.
    pub key_words: u8,
    /// Whether there is a second process, which copies tokens.
    pub second_process: bool,
    /// Whether the lease of a HELD slot may run out.
    pub leases_end: bool,
    /// Where sequence numbers wrap.
    pub seq_modulus: Option<u8>,
    /// Whether no lease runs out before its owner word is written.
    pub leases_last_until_owner: bool,
    /// The planted bug.
    pub mutant: Option<Mutant>,
}

impl Bind {
    /// The smallest model of interest: two processes bind one key, two slots.
    pub const SMALL: Self = Self {
        slots: 2,
        keys: &[1, 1],
        key_words: 2,
        second_process: false,
        leases_end: true,
        seq_modulus: None,
        leases_last_until_owner: false,
        mutant: None,
    };

    /// Whether this bug is planted.
    pub fn is(&self, mutant: Mutant) -> bool {
        self.mutant == Some(mutant)
    }
}

/// What a process does next.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug)]
pub enum At {
    // Looking for the slot of the key.
    FindWord(Place),
    FindKey(Seen, u8),
    Take(Seen),
    // Binding the key to another slot.
    Choose,
    Claim(Seen),
    Write(Seen, Cell, Stage),
    Publish(Seen),
    RescanWord(Seen, Place),
    RescanKey(Seen, Seen, u8),
    RescanCheck(Seen, Seen, bool),
    Settle(Seen, Seen),
    Finish(Seen),
    // Having acquired.
    Hold(Token),
    JudgeWord(Token, Call),
    JudgeOwner(Token, Call, Word),
    Apply(Token, Call, Word),
    /// The second process, waiting for a token.
    Watch,
    /// There is no such process.
    Absent,
}

/// How far the guarded write of a cell is: its old value is loaded, the lock word is seen unchanged, the cell is
/// swapped.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug)]
pub enum Stage {
    Load,
    Check { old: Content },
    Swap { old: Content },
}

/// What a token is used for.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug)]
pub enum Call {
    Release,
    Extend,
}

impl At {
    /// The beginning of an acquire.
    pub const START: Self = Self::FindWord(0);

    fn token(self) -> Option<Token> {
        match self {
            Self::Hold(token) | Self::JudgeWord(token, _) | Self::JudgeOwner(token, ..) | Self::Apply(token, ..) => {
                Some(token)
            }
            _ => None,
        }
    }

    /// The slot that the process has taken without having written its owner word yet.
    fn taken(self) -> Option<Seen> {
        match self {
            Self::Write(mine, Cell::Owner, _) if mine.word.phase == Phase::Held => Some(mine),
            _ => None,
        }
    }

    fn rename(&mut self, names: &Renaming) {
        match self {
            Self::FindWord(_) | Self::Choose | Self::Watch | Self::Absent => {}
            Self::FindKey(seen, _) | Self::Take(seen) | Self::Claim(seen) => names.seen(seen),
            Self::Write(mine, cell, stage) => {
                names.names_to_write(mine);
                if let Stage::Check { old } | Stage::Swap { old } = stage {
                    names.content(mine.place, *cell, old);
                }
            }
            Self::Publish(mine) | Self::RescanWord(mine, _) | Self::Finish(mine) => names.seen(mine),
            Self::RescanKey(mine, other, _) | Self::RescanCheck(mine, other, _) | Self::Settle(mine, other) => {
                names.seen(mine);
                names.seen(other);
            }
            Self::Hold(token) | Self::JudgeWord(token, _) => names.token(token),
            Self::JudgeOwner(token, _, word) | Self::Apply(token, _, word) => {
                names.word(token.place, word);
                names.token(token);
            }
        }
    }
}

/// One process.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Process {
    pub key: Key,
    pub at: At,
}

impl Process {
    /// The token of a process whose acquire has returned, and which has not released.
    fn held(&self) -> Option<Token> {
        self.at.token().filter(|_| self.key != NO_KEY)
    }
}

/// The slots, and what each process does next.
#[derive(Clone, Hash)]
pub struct State {
    slots: Slots,
    pub processes: [Process; MAX_PROCESSES],
    /// The first name that is not in use.
    next: Name,
    /// The rule that the last step broke.
    pub broken: Option<&'static str>,
}

impl State {
    pub fn slot(&self, place: Place) -> &Slot {
        &self.slots[usize::from(place)]
    }

    pub fn slot_mut(&mut self, place: Place) -> &mut Slot {
        &mut self.slots[usize::from(place)]
    }

    fn fresh(&mut self) -> Name {
        let name = self.next;
        self.next = name.checked_add(1).expect("few names are in use at a time");
        name
    }

    /// Gives a slot the word that follows its present one.
    pub fn transition(&mut self, place: Place, phase: Phase, seq_modulus: Option<u8>) -> Word {
        let name = self.fresh();
        let slot = self.slot_mut(place);
        let seq = seq_modulus.map_or(0, |modulus| (slot.word.seq + 1) % modulus);
        let hold = if phase == Phase::Held { name } else { NO_NAME };
        slot.word = Word { phase, name, seq, hold };
        slot.word
    }

    /// Gives the hold in a slot another end.
    pub fn extend(&mut self, place: Place) {
        self.slot_mut(place).word.name = self.fresh();
    }

    /// Whether the hold that a token names lasts.
    pub fn lasts(&self, token: Token) -> bool {
        let word = self.slot(token.place).word;
        word.phase == Phase::Held && word.hold == token.owner.hold
    }

    /// Whether somebody has taken the slot with this word, and has not written the owner word yet.
    pub fn lacks_owner(&self, seen: Seen) -> bool {
        self.processes.iter().any(|process| process.at.taken() == Some(seen))
    }

    fn holders(&self) -> impl Iterator<Item = (Key, Token)> {
        self.processes.iter().filter_map(|process| Some((process.key, process.held()?)))
    }

    /// The tokens that can be copied.
    pub fn tokens(&self) -> impl Iterator<Item = Token> {
        self.holders().map(|(_, token)| token)
    }

    /// Renames everything, and puts processes into the order that `arrange` makes.
    fn rename_arranged(&mut self, arrange: impl FnOnce(&mut [Process])) {
        let mut names = Renaming::of(&mut self.slots);
        for process in &mut self.processes {
            process.at.rename(&names);
        }
        arrange(&mut self.processes);
        for process in &mut self.processes {
            if let At::Write(mine, ..) = &mut process.at {
                names.number_lost(mine);
            }
        }
        self.next = names.next();
    }
}

impl Model for Bind {
    type State = State;

    fn start(&self) -> State {
        let mut processes = [Process { key: NO_KEY, at: At::Absent }; MAX_PROCESSES];
        for (process, &key) in processes.iter_mut().zip(self.keys) {
            *process = Process { key, at: At::START };
        }
        if self.second_process {
            processes[self.keys.len()].at = At::Watch;
        }
        State { slots: [Slot::UNUSED; MAX_SLOTS], processes, next: NO_NAME + 1, broken: None }
    }

    fn steps(&self, state: &State, next: &mut Vec<State>) {
        for who in 0..MAX_PROCESSES {
            steps::of_process(self, state, who, next);
        }
    }

    fn reduce(&self, state: &mut State) {
        state.rename_arranged(<[Process]>::sort_unstable);
    }

    fn found(&self, state: &State) -> Option<&'static str> {
        state.broken.or_else(|| self.broken_rule(state))
    }
}

// What must hold in every state. Some rules are about a step: it sets `broken`.
impl Bind {
    fn broken_rule(&self, state: &State) -> Option<&'static str> {
        let slots = &state.slots[..usize::from(self.slots)];
        if slots.iter().any(|slot| self.is_torn(slot)) {
            Some("a published slot shows parts of two keys")
        } else if any_pair(slots, |a, b| a.word.is_member() && b.word.is_member() && a.key(0) == b.key(0)) {
            Some("two slots are bound to one key")
        } else if two_holders(state) {
            Some("two processes hold one key")
        } else {
            state.holders().find_map(|(key, token)| self.wrong_for_holder(state, key, token))
        }
    }

    fn is_torn(&self, slot: &Slot) -> bool {
        let published = slot.word.is_member() || slot.word.phase == Phase::Pending;
        published && self.key_words == 2 && slot.cell(Cell::Key(0)) != slot.cell(Cell::Key(1))
    }

    fn wrong_for_holder(&self, state: &State, key: Key, token: Token) -> Option<&'static str> {
        let slot = state.slot(token.place);
        let lasts = state.lasts(token);
        if !lasts && !self.leases_end && !self.second_process {
            Some("a lock was lost before its lease ran out")
        } else if lasts && (0..self.key_words).any(|part| slot.key(part) != key) {
            Some("the slot of a holder shows another key")
        } else if lasts && slot.cell(Cell::Owner) != Content::Owner(token.owner) {
            Some("the owner word does not name the holder")
        } else {
            None
        }
    }
}

fn two_holders(state: &State) -> bool {
    let holders: Vec<_> = state.holders().filter(|(_, token)| state.lasts(*token)).collect();
    any_pair(&holders, |(key, _), (other, _)| key == other)
}

fn any_pair<T>(items: &[T], is_such: impl Fn(&T, &T) -> bool) -> bool {
    items.iter().enumerate().any(|(n, a)| items[..n].iter().any(|b| is_such(a, b)))
}

impl Explain for Bind {
    fn explain(&self, before: &State, after: &State) -> String {
        let mut text = String::new();
        for ((name, old), new) in ('A'..).zip(&before.processes).zip(&after.processes) {
            if old != new {
                let _ = write!(text, "{name}: {:?}", old.at);
            }
        }
        for (place, (old, new)) in before.slots.iter().zip(&after.slots).enumerate() {
            if old != new {
                let _ = write!(text, "\n             slot {place} becomes {new:?}");
            }
        }
        text
    }
}

// What recovery asks.
impl State {
    /// The processes that are about to acquire: they neither hold, nor have a lease that ran out just before their
    /// acquire returns.
    pub fn acquiring(&self) -> impl Iterator<Item = usize> {
        (0..MAX_PROCESSES).filter(|&who| {
            let process = &self.processes[who];
            process.key != NO_KEY && process.held().is_none() && !self.is_too_late(process.at)
        })
    }

    fn is_too_late(&self, at: At) -> bool {
        matches!(at, At::Write(_, _, Stage::Swap { .. }))
            && at.taken().is_some_and(|mine| self.slot(mine.place).word != mine.word)
    }

    /// Whether the process has acquired, and its hold lasts.
    pub fn has_acquired(&self, who: usize) -> bool {
        matches!(self.processes[who].at, At::Hold(token) if self.lasts(token))
    }

    /// Renames everything, and keeps each process in its place.
    pub fn rename(&mut self) {
        self.rename_arranged(|_| {});
    }
}
