//! What the server itself wrote down: its append-only file has each write that was done, with the time at which each
//! lease ends, and none that was refused.

use super::board::{Board, Hold};
use super::redis::resp::{self, Reply};
use super::{KEYS, key_name, ttl_ms};
use buflock::policy::NS_PER_MS;
use std::collections::{HashMap, HashSet};
use std::fs;
use std::path::Path;
use std::sync::atomic::Ordering::SeqCst;

/// Shorter leases often end before it is known that a reply is lost. In ns.
const LONG: u64 = 300 * NS_PER_MS;

/// A lock was given to somebody.
#[derive(Clone, Debug)]
struct Given {
    token: String,
    /// When, on the monotonic clock: the server knows it to the millisecond.
    at: u64,
}

/// What happened to each key, in order.
#[derive(Debug, Default)]
pub struct History {
    keys: [Vec<Given>; KEYS],
    /// How many writes it has.
    pub writes: usize,
}

/// Reads all of it. `offset`: what the time of day is ahead of the monotonic clock, in ns.
pub fn read(dir: &Path, stored: impl Fn(&[u8]) -> Vec<u8>, offset: u64) -> History {
    let names: HashMap<Vec<u8>, usize> = (0..KEYS).map(|key| (stored(&key_name(key)), key)).collect();
    let mut history = History::default();
    for file in fs::read_dir(dir).into_iter().flatten().flatten() {
        let path = file.path();
        if path.to_string_lossy().ends_with(".incr.aof") {
            let bytes = fs::read(&path).expect("a file");
            history.read(&bytes, &names, offset);
        }
    }
    history
}

impl History {
    fn read(&mut self, mut bytes: &[u8], names: &HashMap<Vec<u8>, usize>, offset: u64) {
        while let Some((Reply::List(parts), length)) = (!bytes.is_empty()).then(|| resp::parse(bytes)).flatten() {
            bytes = &bytes[length..];
            let parts: Vec<Vec<u8>> =
                parts.into_iter().map(|part| if let Reply::Bulk(part) = part { part } else { Vec::new() }).collect();
            self.writes += 1;
            if parts[0].eq_ignore_ascii_case(b"SET")
                && let Some(key) = names.get(&parts[1])
                && !parts.iter().any(|part| part.eq_ignore_ascii_case(b"XX"))
            {
                self.given(*key, &parts, offset);
            }
        }
    }

    fn given(&mut self, key: usize, parts: &[Vec<u8>], offset: u64) {
        let place = parts.iter().position(|part| part.eq_ignore_ascii_case(b"PXAT")).expect("a lease");
        let until: u64 = String::from_utf8_lossy(&parts[place + 1]).parse().expect("ms");
        let at = (until - u64::from(ttl_ms(key))) * NS_PER_MS - offset;
        let token = String::from_utf8_lossy(&parts[2][..32]).into_owned();
        self.keys[key].push(Given { token, at });
    }

    /// Whether each hold that somebody believed in was theirs alone. `end`: of the server. How many were checked.
    pub fn check(&self, board: &Board, epoch: u64, end: u64) -> usize {
        let holds = board.holds().filter(|hold| hold.epoch.load(SeqCst) == epoch);
        holds.map(|hold| self.check_hold(board, hold, end)).count()
    }

    /// How many long leases that began after `since` nobody believed in, and how many of these lasted to their end: nobody gave them back.
    pub fn orphans(&self, board: &Board, since: u64) -> [usize; 2] {
        let believed: HashSet<String> = board.holds().map(Hold::token).collect();
        let mut counts = [0; 2];
        for (key, given) in self.keys.iter().enumerate() {
            let lease = u64::from(ttl_ms(key)) * NS_PER_MS;
            if lease < LONG {
                continue;
            }
            for pair in given.windows(2).filter(|pair| pair[0].at > since && !believed.contains(&pair[0].token)) {
                counts[0] += 1;
                counts[1] += usize::from(pair[1].at + NS_PER_MS >= pair[0].at + lease);
            }
        }
        counts
    }

    fn check_hold(&self, board: &Board, hold: &Hold, end: u64) {
        let key = usize::try_from(hold.key.load(SeqCst) - 1).expect("a key");
        let (token, from) = (hold.token(), hold.from.load(SeqCst));
        let given = &self.keys[key];
        let Some(place) = given.iter().rposition(|given| given.token == token && given.at <= from) else {
            return board.wrong(&format!("key {key}: HELD, and the server has never given it to {token}"));
        };
        let ended = hold.ended.load(SeqCst);
        let ended = if ended == 0 { u64::MAX } else { ended };
        let until = hold.until.load(SeqCst).min(ended).min(end);
        let next = given[place + 1..].iter().find(|next| next.token != token);
        if let Some(next) = next.filter(|next| next.at + NS_PER_MS < until) {
            let ms = (until - next.at) / NS_PER_MS;
            board.wrong(&format!("key {key}: the server gave it to another {ms} ms before the end of {token}"));
        }
    }
}
