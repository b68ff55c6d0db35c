//! The shared memory of the binding model: slots, and the words in them.

use std::fmt;

/// A name that no two words, claims or holds share.
pub type Name = u8;

/// The name in memory that nobody has written yet.
pub const NO_NAME: Name = 0;

/// What is locked. 0 is no key.
pub type Key = u8;

/// The number of a slot.
pub type Place = u8;

pub const MAX_SLOTS: usize = 3;

/// The slots.
pub type Slots = [Slot; MAX_SLOTS];

/// The state of a slot.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug)]
pub enum Phase {
    /// Bound to no key.
    Empty,
    /// Bound to a key that nobody holds.
    Free,
    /// Held.
    Held,
    /// Bound, but perhaps not alone.
    Pending,
    /// Its key words are being written.
    Claim,
}

/// The word that all transitions of a slot go through.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Word {
    pub phase: Phase,
    /// Stands for the time in the word.
    pub name: Name,
    /// The sequence number, where it is modelled as one that wraps; else 0.
    pub seq: u8,
    /// Which hold this is. No such field exists in memory: the rules are checked with it.
    pub hold: Name,
}

impl Word {
    /// Whether the slot belongs to its key: free or held.
    pub fn is_member(self) -> bool {
        matches!(self.phase, Phase::Free | Phase::Held)
    }

    /// What names this hold.
    pub fn owner(self) -> Owner {
        Owner { hold: self.hold, seq: self.seq }
    }
}

impl fmt::Debug for Word {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{:?}#{}", self.phase, self.name)?;
        if self.phase == Phase::Held {
            write!(f, "(hold {}, seq {})", self.hold, self.seq)?;
        }
        Ok(())
    }
}

/// What names a hold. `hold` stands for member and time of the take, which do not repeat.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug)]
pub struct Owner {
    pub hold: Name,
    pub seq: u8,
}

/// What a holder keeps, and may hand to others.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug)]
pub struct Token {
    pub place: Place,
    pub owner: Owner,
}

/// The content of a cell.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Content {
    /// A part of the key, with the tag of the claim that wrote it.
    Key { key: Key, tag: Name },
    /// The name of a hold; after binding one that no hold has.
    Owner(Owner),
}

impl Content {
    pub const NOTHING: Self = Self::Key { key: 0, tag: NO_NAME };

    pub fn name_mut(&mut self) -> &mut Name {
        match self {
            Self::Key { tag: name, .. } | Self::Owner(Owner { hold: name, .. }) => name,
        }
    }
}

impl fmt::Debug for Content {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Key { key, tag } => write!(f, "key {key} tag {tag}"),
            Self::Owner(Owner { hold, seq }) => write!(f, "hold {hold} seq {seq}"),
        }
    }
}

/// Which of the words of a slot that belong to its lock word.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug)]
pub enum Cell {
    Key(u8),
    Owner,
}

/// A slot.
#[derive(Clone, Copy, PartialEq, Eq, Hash)]
pub struct Slot {
    pub word: Word,
    keys: [Content; 2],
    owner: Content,
}

impl Slot {
    pub const UNUSED: Self = Self {
        word: Word { phase: Phase::Empty, name: NO_NAME, seq: 0, hold: NO_NAME },
        keys: [Content::NOTHING; 2],
        owner: Content::Owner(Owner { hold: NO_NAME, seq: 0 }),
    };

    pub fn cell(&self, cell: Cell) -> Content {
        match cell {
            Cell::Key(part) => self.keys[usize::from(part)],
            Cell::Owner => self.owner,
        }
    }

    pub fn set(&mut self, cell: Cell, content: Content) {
        match cell {
            Cell::Key(part) => self.keys[usize::from(part)] = content,
            Cell::Owner => self.owner = content,
        }
    }

    pub fn key(&self, part: u8) -> Key {
        match self.cell(Cell::Key(part)) {
            Content::Key { key, .. } => key,
            Content::Owner(_) => unreachable!("a key word shows a key"),
        }
    }

    /// All names that the slot shows.
    pub fn names_mut(&mut self) -> impl Iterator<Item = &mut Name> {
        let contents = self.keys.iter_mut().chain([&mut self.owner]);
        [&mut self.word.name, &mut self.word.hold].into_iter().chain(contents.map(Content::name_mut))
    }
}

impl fmt::Debug for Slot {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { word, keys: [first, second], owner } = self;
        write!(f, "{word:?} | {first:?} | {second:?} | {owner:?}")
    }
}

/// A slot with the word that a process read or wrote there.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Seen {
    pub place: Place,
    pub word: Word,
}

impl fmt::Debug for Seen {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "slot {} {:?}", self.place, self.word)
    }
}
