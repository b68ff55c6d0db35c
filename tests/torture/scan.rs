//! Looks at a whole table while nobody moves: before the next step of any process it must be in order.

use super::board::{Board, Wrong};
use buflock::key::KeyHash;
use buflock::policy::NS_PER_MS;
use buflock::shm::segment::SLOTS;
use buflock::shm::slot::{State, UNIT_SHIFT, Word};
use buflock::shm::table::Table;
use std::collections::HashMap;
use std::sync::atomic::Ordering::SeqCst;

/// The bit of a word that is not used.
const RESERVED: u64 = 1 << 4;

/// Who looks.
pub struct Scanner<'a> {
    board: &'a Board,
    table: &'a Table,
    /// By their tags, their numbers too.
    keys: HashMap<[u32; 3], (usize, KeyHash)>,
    /// The longest lease that anybody asks for, in ns.
    longest: u64,
    /// How often it has looked.
    pub scans: u64,
}

impl<'a> Scanner<'a> {
    /// Of a table in which only these keys are used, for `longest_ms` at a time.
    pub fn new(board: &'a Board, table: &'a Table, hashes: &[KeyHash], longest_ms: u32) -> Self {
        let keys = hashes.iter().enumerate().map(|(key, hash)| (hash.tags, (key, *hash))).collect();
        Self { board, table, keys, longest: u64::from(longest_ms) * NS_PER_MS, scans: 0 }
    }

    /// Looks at all slots.
    pub fn scan(&mut self) {
        self.scans += 1;
        let mut bound = HashMap::new();
        for slot in 0..self.table.slots().count() {
            let word = self.table.slots().word(slot);
            self.check_word(slot, word);
            if !matches!(word.state(), State::Free | State::Held | State::Pending) {
                continue;
            }
            let Some(key) = self.check_key(slot, word) else { continue };
            if word.state() != State::Pending
                && let Some(other) = bound.insert(key, slot)
            {
                self.board.report(Wrong::Twins, [key as u64, u64::from(other), u64::from(slot)]);
            }
        }
    }

    fn check_word(&self, slot: u32, word: Word) {
        if word.state() == State::Damaged || word.0 & RESERVED != 0 {
            self.board.report(Wrong::BadWord, [u64::from(slot), word.0, 0]);
        }
        let now = self.table.clock().now();
        let longest = (now + self.longest).div_ceil(1 << UNIT_SHIFT);
        if word.state() == State::Held && word.until() > longest {
            self.board.report(Wrong::LongLease, [u64::from(slot), word.until(), now >> UNIT_SHIFT]);
        }
    }

    /// The key of a bound slot, if it is one of ours, in a bucket of its own, and written in one go.
    fn check_key(&self, slot: u32, word: Word) -> Option<usize> {
        let words = self.table.slots().slot(slot).key.each_ref().map(|word| word.load(SeqCst));
        let tags = words.map(|word| u32::try_from(word >> 32).unwrap_or(0));
        let times = words.map(|word| word & 0xffff_ffff);
        let bucket = slot as usize / SLOTS;
        let at_home = |hash: &KeyHash| [hash.first as usize, hash.second as usize].contains(&bucket);
        let known = self.keys.get(&tags).filter(|(_, hash)| at_home(hash));
        let whole = times[0] == times[1] && times[1] == times[2];
        if known.is_none() || !whole {
            self.board.report(Wrong::TornKey, [u64::from(slot), word.0, 0]);
        }
        known.map(|(key, _)| *key)
    }
}
