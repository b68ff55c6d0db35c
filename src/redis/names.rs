//! The keys that a lock has in Redis.

use crate::config::Settings;
use crate::key::stored_key;

/// The keys of one lock.
#[derive(Clone, Debug)]
pub struct Names {
    /// The lock's own.
    pub lock: Vec<u8>,
    /// The waiters' flag, the signals of acquirers and of awaiters and, with fences, the last of them; None: the lock
    /// goes without.
    pub others: Option<Vec<Vec<u8>>>,
}

/// Places in [`Names::others`].
pub const ACQUIRERS: usize = 1;
/// As above.
pub const AWAITERS: usize = 2;

impl Names {
    /// Those of a caller's key.
    pub fn new(settings: &Settings, key: &[u8]) -> Self {
        let lock = if settings.raw_keys { key.to_vec() } else { stored_key(&settings.namespace, key) };
        // `L{L}:x` is below what an ACL says of the namespace, and in the slot of L.
        let ends: &[&str] = if settings.fencing { &["w", "s", "a", "f"] } else { &["w", "s", "a"] };
        let other = |end: &&str| [&lock[..], b"{", &lock, b"}:", end.as_bytes()].concat();
        let others = (settings.fencing || tagging_keeps_the_slot(&lock)).then(|| ends.iter().map(other).collect());
        Self { lock, others }
    }

    /// All of them, or the lock's alone.
    pub fn keys(&self, alone: bool) -> Vec<&[u8]> {
        let others = self.others.iter().filter(|_| !alone).flatten().map(Vec::as_slice);
        std::iter::once(&self.lock[..]).chain(others).collect()
    }
}

/// Whether `L{L}` is in the slot of `L`. A slot is that of what is between the first `{` and the next `}`, if that is
/// something, else of the whole key (https://redis.io/docs/latest/operate/oss_and_stack/reference/cluster-spec/).
fn tagging_keeps_the_slot(lock: &[u8]) -> bool {
    let tag = |key: &[u8]| -> Option<Vec<u8>> {
        let begin = key.iter().position(|byte| *byte == b'{')? + 1;
        let length = key[begin..].iter().position(|byte| *byte == b'}')?;
        (length > 0).then(|| key[begin..begin + length].to_vec())
    };
    let tagged = [lock, b"{", lock, b"}"].concat();
    tag(&tagged).as_deref() == Some(&tag(lock).unwrap_or_else(|| lock.to_vec()))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn all_keys_of_a_lock_are_in_one_slot() {
        for lock in ["a", "buflock:0123", "{a}b", "a{b}c{d}", "}{x}", "a{b{c}"] {
            assert!(tagging_keeps_the_slot(lock.as_bytes()), "{lock}");
        }
        for lock in ["", "{}", "{}a", "a{", "a}b", "a{b", "}"] {
            assert!(!tagging_keeps_the_slot(lock.as_bytes()), "{lock}");
        }
    }

    #[test]
    fn names_begin_with_the_locks() {
        let settings = Settings { raw_keys: true, ..Settings::default() };
        let names = Names::new(&settings, b"k");
        assert_eq!(names.keys(false), [&b"k"[..], b"k{k}:w", b"k{k}:s", b"k{k}:a"]);
        assert_eq!(names.keys(true), [b"k"]);
        assert_eq!(Names::new(&settings, b"{}").keys(false), [b"{}"]);
        let fenced = Settings { fencing: true, ..settings };
        assert_eq!(Names::new(&fenced, b"{}").keys(false).len(), 5);
    }
}
