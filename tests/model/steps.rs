//! What a process of the binding model does, step by step.

use crate::bind::{At, Bind, Call, Mutant, NO_KEY, Process, Stage, State};
use crate::slot::{Cell, Content, NO_NAME, Owner, Phase, Place, Seen, Token, Word};

/// Appends every state that one step of process `who` leads to.
pub fn of_process(model: &Bind, state: &State, who: usize, next: &mut Vec<State>) {
    Turn { model, state, who, next }.step();
}

/// A process's turn, in one state.
struct Turn<'a> {
    model: &'a Bind,
    state: &'a State,
    who: usize,
    next: &'a mut Vec<State>,
}

impl Turn<'_> {
    fn step(&mut self) {
        match self.me().at {
            At::FindWord(place) => self.find_word(place),
            At::FindKey(seen, part) => self.find_key(seen, part),
            At::Take(seen) => self.take(seen),
            At::Choose => self.choose(),
            At::Claim(seen) => self.claim(seen),
            At::Write(mine, cell, stage) => self.write(mine, cell, stage),
            At::Publish(mine) => self.publish(mine),
            At::RescanWord(mine, place) => self.rescan_word(mine, place),
            At::RescanKey(mine, other, part) => self.rescan_key(mine, other, part),
            At::RescanCheck(mine, other, same_key) => self.rescan_check(mine, other, same_key),
            At::Settle(mine, other) => self.settle(mine, other),
            At::Finish(mine) => self.finish(mine),
            At::Hold(token) => self.hold(token),
            At::JudgeWord(token, call) => self.judge_word(token, call),
            At::JudgeOwner(token, call, word) => self.judge_owner(token, call, word),
            At::Apply(token, call, word) => self.apply(token, call, word),
            At::Watch => self.watch(),
            At::Absent => {}
        }
    }

    fn me(&self) -> &Process {
        &self.state.processes[self.who]
    }

    fn is(&self, mutant: Mutant) -> bool {
        self.model.is(mutant)
    }

    /// The slot as it is now.
    fn see(&self, place: Place) -> Seen {
        Seen { place, word: self.state.slot(place).word }
    }

    /// One way in which the step may go. `change` is told whose step it is.
    fn change(&mut self, change: impl FnOnce(&mut State, usize)) {
        let mut state = self.state.clone();
        change(&mut state, self.who);
        self.next.push(state);
    }

    /// One way in which the step may go, without a write.
    fn go(&mut self, at: At) {
        self.change(|state, who| state.processes[who].at = at);
    }

    /// Swaps a slot's word if it is still the one that was seen. `then` is told what was written, or None.
    fn swap(&mut self, seen: Seen, phase: Phase, then: impl FnOnce(Option<Seen>) -> At) {
        let modulus = self.model.seq_modulus;
        let unchanged = self.see(seen.place) == seen;
        self.change(|state, who| {
            let written = unchanged.then(|| Seen { word: state.transition(seen.place, phase, modulus), ..seen });
            state.processes[who].at = then(written);
        });
    }
}

// Looking for the slot of the key.
impl Turn<'_> {
    fn find_next(&self, place: Place) -> At {
        if place + 1 < self.model.slots { At::FindWord(place + 1) } else { At::Choose }
    }

    fn find_word(&mut self, place: Place) {
        let seen = self.see(place);
        self.go(if seen.word.is_member() { At::FindKey(seen, 0) } else { self.find_next(place) });
    }

    /// A key word that differs ends the look at this slot. Should the slot get the key just now: the rescan will see.
    fn find_key(&mut self, seen: Seen, part: u8) {
        let at = if self.state.slot(seen.place).key(part) != self.me().key {
            self.find_next(seen.place)
        } else if part + 1 < self.model.key_words {
            At::FindKey(seen, part + 1)
        } else {
            At::Take(seen)
        };
        self.go(at);
    }

    /// Takes a FREE slot, or a HELD one whose lease is judged to have run out. That the word is unchanged proves that
    /// the key was read while it stood.
    fn take(&mut self, seen: Seen) {
        let now = self.see(seen.place);
        let rereads = self.is(Mutant::TakeRereadsWord) && now.word.phase == seen.word.phase;
        if seen.word.phase == Phase::Free || self.may_run_out(seen) {
            self.become_holder(if rereads { now } else { seen });
        }
        if seen.word.phase == Phase::Held {
            self.go(At::START); // busy: it waits, and looks again
        }
    }

    fn may_run_out(&self, seen: Seen) -> bool {
        self.model.leases_end && !(self.model.leases_last_until_owner && self.state.lacks_owner(seen))
    }

    fn become_holder(&mut self, seen: Seen) {
        let model = self.model;
        self.swap(seen, Phase::Held, |held| held.map_or(At::START, |mine| begin_write(model, mine, Cell::Owner)));
    }
}

// Binding the key to another slot.
impl Turn<'_> {
    fn choose(&mut self) {
        for place in 0..self.model.slots {
            let seen = self.see(place);
            if seen.word.phase != Phase::Held || self.may_run_out(seen) {
                self.go(At::Claim(seen));
            }
        }
        self.go(At::START); // no slot is to be had: it tries again
    }

    fn claim(&mut self, seen: Seen) {
        let model = self.model;
        self.swap(seen, Phase::Claim, |claim| claim.map_or(At::START, |mine| begin_write(model, mine, Cell::Key(0))));
    }

    /// The guarded write of a cell: load, check, swap. Who was overtaken finds another word at the check; or, being
    /// past that, another value at the swap, for the successor writes every cell.
    fn write(&mut self, mine: Seen, cell: Cell, stage: Stage) {
        let content = self.state.slot(mine.place).cell(cell);
        let at = |stage| At::Write(mine, cell, stage);
        match stage {
            Stage::Load if self.is_unchecked(mine, cell) => self.go(at(Stage::Swap { old: content })),
            Stage::Load => self.go(at(Stage::Check { old: content })),
            Stage::Check { old } if self.see(mine.place) == mine => self.go(at(Stage::Swap { old })),
            Stage::Check { .. } => self.go(At::START),
            Stage::Swap { old } if content != old && !is_stored(self.model, mine, cell) => self.go(at(Stage::Load)),
            Stage::Swap { .. } => {
                let (new, then) = (self.new_content(mine, cell), self.after_write(mine, cell));
                self.change(|state, who| {
                    state.slot_mut(mine.place).set(cell, new);
                    state.processes[who].at = then;
                });
            }
        }
    }

    fn is_unchecked(&self, mine: Seen, cell: Cell) -> bool {
        match cell {
            Cell::Key(_) => self.is(Mutant::ClaimNotRechecked),
            Cell::Owner => mine.word.phase == Phase::Held && self.is(Mutant::OwnerNotRechecked),
        }
    }

    fn new_content(&self, mine: Seen, cell: Cell) -> Content {
        let Word { phase, name, seq, .. } = mine.word;
        match cell {
            Cell::Key(_) if self.is(Mutant::ClaimTagRepeats) => Content::Key { key: self.me().key, tag: NO_NAME },
            Cell::Key(_) => Content::Key { key: self.me().key, tag: name },
            Cell::Owner if phase == Phase::Held => Content::Owner(mine.word.owner()),
            Cell::Owner => Content::Owner(Owner { hold: name, seq }), // no hold has this name
        }
    }

    fn after_write(&self, mine: Seen, cell: Cell) -> At {
        match cell {
            Cell::Key(part) if part + 1 < self.model.key_words => begin_write(self.model, mine, Cell::Key(part + 1)),
            Cell::Key(_) if self.is(Mutant::OwnerNotReset) => At::Publish(mine),
            Cell::Key(_) => begin_write(self.model, mine, Cell::Owner),
            Cell::Owner if mine.word.phase == Phase::Held => {
                At::Hold(Token { place: mine.place, owner: mine.word.owner() })
            }
            Cell::Owner => At::Publish(mine),
        }
    }

    fn publish(&mut self, mine: Seen) {
        let model = self.model;
        self.swap(mine, Phase::Pending, |pending| match pending {
            None => At::START,
            Some(mine) if model.is(Mutant::NoRescan) => At::Finish(mine),
            Some(mine) => rescan(model, mine, 0),
        });
    }

    fn rescan_word(&mut self, mine: Seen, place: Place) {
        let other = self.see(place);
        let may_be_key = other.word.is_member() || other.word.phase == Phase::Pending;
        self.go(if may_be_key { At::RescanKey(mine, other, 0) } else { rescan(self.model, mine, place + 1) });
    }

    fn rescan_key(&mut self, mine: Seen, other: Seen, part: u8) {
        let same_key = self.state.slot(other.place).key(part) == self.me().key;
        let more = same_key && part + 1 < self.model.key_words;
        self.go(if more { At::RescanKey(mine, other, part + 1) } else { At::RescanCheck(mine, other, same_key) });
    }

    /// The key that was read belongs to the word only if that stands still.
    fn rescan_check(&mut self, mine: Seen, other: Seen, same_key: bool) {
        let at = if self.see(other.place) != other {
            At::RescanWord(mine, other.place)
        } else if same_key {
            At::Settle(mine, other)
        } else {
            rescan(self.model, mine, other.place + 1)
        };
        self.go(at);
    }

    /// Another slot has the key. A member stays; of two that are about to become members the lower stays, unless it is
    /// judged overdue.
    fn settle(&mut self, mine: Seen, other: Seen) {
        let wins = mine.place < other.place;
        let ignores = self.is(Mutant::RescanIgnoresPending) || wins && self.is(Mutant::LoserNotStopped);
        if other.word.is_member() {
            self.give_up(mine);
        } else if ignores {
            self.go(rescan(self.model, mine, other.place + 1));
        } else {
            self.swap(other, Phase::Empty, |_| At::RescanWord(mine, other.place));
            if !wins {
                self.give_up(mine);
            }
        }
    }

    fn give_up(&mut self, mine: Seen) {
        self.swap(mine, Phase::Empty, |_| At::START);
    }

    fn finish(&mut self, mine: Seen) {
        self.become_holder(mine);
    }
}

// Using a token.
impl Turn<'_> {
    fn hold(&mut self, token: Token) {
        self.go(At::JudgeWord(token, Call::Release));
        self.go(At::JudgeWord(token, Call::Extend));
    }

    /// The second process copies a token, to use it now or much later.
    fn watch(&mut self) {
        let state = self.state;
        for token in state.tokens() {
            self.hold(token);
        }
    }

    fn judge_word(&mut self, token: Token, call: Call) {
        let word = self.see(token.place).word;
        let same_seq = match self.model.seq_modulus {
            None => word.hold == token.owner.hold,
            Some(_) => word.seq == token.owner.seq,
        };
        let blind = self.is(Mutant::TokenIgnored);
        if word.phase != Phase::Held || !(same_seq || blind || self.is(Mutant::SeqIgnored)) {
            self.refuse(token);
        } else if blind {
            self.go(At::Apply(token, call, word));
        } else {
            self.go(At::JudgeOwner(token, call, word));
        }
    }

    fn judge_owner(&mut self, token: Token, call: Call, word: Word) {
        let same_owner = self.state.slot(token.place).cell(Cell::Owner) == Content::Owner(token.owner);
        if same_owner || self.is(Mutant::OwnerIgnored) {
            self.go(At::Apply(token, call, word));
        } else {
            self.refuse(token);
        }
    }

    /// The token names no hold that lasts.
    fn refuse(&mut self, token: Token) {
        let then = self.after_use();
        self.change(|state, who| {
            state.broken = state.lasts(token).then_some("a token was refused while its hold lasts");
            state.processes[who].at = then;
        });
    }

    /// Swaps exactly the word that was judged.
    fn apply(&mut self, token: Token, call: Call, word: Word) {
        if self.see(token.place).word != word {
            self.go(At::JudgeWord(token, call)); // extended, or over: it judges again
            return;
        }
        let wrong_hold = word.hold != token.owner.hold;
        match call {
            Call::Release => {
                let (modulus, then) = (self.model.seq_modulus, self.after_use());
                self.change(|state, who| {
                    state.transition(token.place, Phase::Free, modulus);
                    state.broken = wrong_hold.then_some("a token released another hold");
                    state.processes[who].at = then;
                });
            }
            Call::Extend => {
                let then = if self.me().key == NO_KEY { At::Watch } else { At::Hold(token) };
                self.change(|state, who| {
                    state.extend(token.place);
                    state.broken = wrong_hold.then_some("a token extended another hold");
                    state.processes[who].at = then;
                });
            }
        }
    }

    /// What the process does when its token is used up.
    fn after_use(&self) -> At {
        if self.me().key == NO_KEY { At::Watch } else { At::START }
    }
}

fn begin_write(model: &Bind, mine: Seen, cell: Cell) -> At {
    let stage = if is_stored(model, mine, cell) { Stage::Swap { old: Content::NOTHING } } else { Stage::Load };
    At::Write(mine, cell, stage)
}

/// Whether a planted bug stores this cell instead of swapping it.
fn is_stored(model: &Bind, mine: Seen, cell: Cell) -> bool {
    match cell {
        Cell::Key(_) => model.is(Mutant::KeysStored),
        Cell::Owner => mine.word.phase == Phase::Held && model.is(Mutant::OwnerStored),
    }
}

/// Goes on with the rescan at `place`. It looks at every slot but one's own.
fn rescan(model: &Bind, mine: Seen, place: Place) -> At {
    let place = if place == mine.place { place + 1 } else { place };
    if place < model.slots { At::RescanWord(mine, place) } else { At::Finish(mine) }
}
