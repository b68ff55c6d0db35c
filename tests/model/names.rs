//! Makes states equal that differ in nothing that matters: the names of words, and what can't be met again.
//!
//! Names are numbered in the order in which the slots show them. What a process remembers it only compares with the
//! place where it was read, and what has gone from there never comes back; so all such memories become one.

use crate::slot::{Cell, Content, NO_NAME, Name, Place, Seen, Slot, Slots, Token, Word};

/// The name of everything remembered that its place does not show any more.
const STALE: Name = Name::MAX;

/// The name, while a state is being reduced, that no slot shows but that its process may still write.
const LOST: Name = Name::MAX - 1;

/// How the names in a state are replaced.
pub struct Renaming {
    numbers: [Name; 256],
    next: Name,
    before: Slots,
    after: Slots,
}

impl Renaming {
    /// Renames what the slots show.
    pub fn of(slots: &mut Slots) -> Self {
        let before = *slots;
        let mut numbers = [LOST; 256];
        numbers[usize::from(NO_NAME)] = NO_NAME;
        let mut next = NO_NAME + 1;
        for name in slots.iter_mut().flat_map(Slot::names_mut) {
            let number = &mut numbers[usize::from(*name)];
            if *number == LOST {
                *number = next;
                next += 1;
            }
            *name = *number;
        }
        Self { numbers, next, before, after: *slots }
    }

    fn number(&self, name: Name) -> Name {
        self.numbers[usize::from(name)]
    }

    /// A word, to be compared with what is in its place.
    pub fn word(&self, place: Place, word: &mut Word) {
        let place = usize::from(place);
        *word = if *word == self.before[place].word {
            self.after[place].word
        } else {
            Word { name: STALE, seq: 0, hold: STALE, ..*word }
        };
    }

    /// The same.
    pub fn seen(&self, seen: &mut Seen) {
        self.word(seen.place, &mut seen.word);
    }

    /// What was read from a cell, to be compared with what is there.
    pub fn content(&self, place: Place, cell: Cell, content: &mut Content) {
        let place = usize::from(place);
        if *content == self.before[place].cell(cell) {
            *content = self.after[place].cell(cell);
        } else {
            *content = Content::NOTHING;
            *content.name_mut() = STALE;
        }
    }

    /// A token. Its slot shows the name of the hold in the word or the owner word, or never again.
    pub fn token(&self, token: &mut Token) {
        let hold = &mut token.owner.hold;
        *hold = match self.number(*hold) {
            LOST => STALE,
            number => number,
        };
    }

    /// A word whose names its process will write to cells, even if the slot shows another word by now.
    pub fn names_to_write(&self, mine: &mut Seen) {
        mine.word.name = self.number(mine.word.name);
        mine.word.hold = self.number(mine.word.hold);
    }

    /// Numbers the lost names of such a word.
    pub fn number_lost(&mut self, mine: &mut Seen) {
        for name in [&mut mine.word.name, &mut mine.word.hold] {
            if *name == LOST {
                *name = self.next;
                self.next += 1;
            }
        }
    }

    /// The first name that is not in use.
    pub fn next(&self) -> Name {
        self.next
    }
}
