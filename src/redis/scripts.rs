//! The scripts that run inside the server. Each is one step there: nobody sees the middle of it.
//!
//! All take their keys and arguments as their files say, with the lock's key alone or with those for signals and fences
//! too. They run on Redis 2.6.12 and later; fences need 3.2.

use crate::hooks::{Mutant, mutant};
use std::sync::LazyLock;

/// A script of ours.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Script {
    /// Takes a lock.
    Acquire,
    /// Gives it back.
    Release,
    /// Lengthens its lease.
    Extend,
    /// Says who holds it.
    Look,
}

struct Texts {
    plain: String,
    hash: String,
    carried: String,
}

static TEXTS: LazyLock<[Texts; 4]> = LazyLock::new(|| {
    [
        include_str!("scripts/acquire.lua"),
        include_str!("scripts/release.lua"),
        include_str!("scripts/extend.lua"),
        include_str!("scripts/look.lua"),
    ]
    .map(|source| {
        let plain = with_bug(without_comments(source));
        let hash = redis::Script::new(&plain).get_hash().to_owned();
        // A reply that carries the number of its call can't be taken for another's.
        let one_key = with_bug(without_comments(&for_one_key(source)));
        let carried = format!(
            "local function run()\n{one_key}end\nlocal answer = run()\nif type(answer) == 'table' then return answer end\n\
             return ARGV[#ARGV] .. ':' .. answer\n"
        );
        Texts { plain, hash, carried }
    })
});

/// Makes the texts, once.
pub fn prepare() {
    LazyLock::force(&TEXTS);
}

impl Script {
    fn texts(self) -> &'static Texts {
        &TEXTS[self as usize]
    }

    /// What EVAL takes.
    pub fn text(self) -> &'static str {
        &self.texts().plain
    }

    /// What EVALSHA takes.
    pub fn hash(self) -> &'static str {
        &self.texts().hash
    }

    /// The text for a caller's own client: its last argument, a colon, and then the answer is what it answers.
    pub fn carried(self) -> &'static str {
        &self.texts().carried
    }
}

/// The same text, but for the tests' planted bugs.
fn with_bug(text: String) -> String {
    const BUGS: [(Mutant, &str, &str); 4] = [
        (Mutant::ScriptsCompareNothing, "string.sub(value, 1, 32) ~= ARGV[1]", "false"),
        (Mutant::ScriptsWakeNobody, "redis.pcall('RPUSH', KEYS[list], '1')", ""),
        (Mutant::SignalsStay, "redis.pcall('DEL', KEYS[4])", ""),
        (Mutant::FenceFollowsClock, "tonumber(redis.pcall('GET', KEYS[5])) or 0", "0"),
    ];
    match BUGS.iter().find(|(bug, ..)| mutant(*bug)) {
        Some((_, part, other)) => text.replace(part, other),
        None => text,
    }
}

/// Callers' clients get the lock's key alone, and send the text each time: what is for more keys is left out.
fn for_one_key(source: &str) -> String {
    let mut parts = source.split("-- more keys than one:\n");
    let first = parts.next().unwrap_or_default();
    let rests = parts.map(|part| part.split_once("-- any keys:\n").map_or("", |(_, rest)| rest));
    std::iter::once(first).chain(rests).collect()
}

fn without_comments(source: &str) -> String {
    let lines = source.lines().map(|line| line.split("--").next().unwrap_or_default().trim_end());
    lines.filter(|line| !line.is_empty()).flat_map(|line| [line, "\n"]).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_for_more_keys_is_left_out() {
        let source = "a\n-- more keys than one:\nb\n-- any keys:\nc\n-- more keys than one:\nd\n-- any keys:\n";
        assert_eq!(for_one_key(source), "a\nc\n");
    }

    #[test]
    fn comments_are_not_sent() {
        assert_eq!(without_comments("-- a\nx = 1 -- b\n\n  y()\n"), "x = 1\n  y()\n");
        for script in [Script::Acquire, Script::Release, Script::Extend, Script::Look] {
            assert!(script.text().contains("redis.call('GET', KEYS[1])") && !script.text().contains("--"));
            assert!(script.text().contains("KEYS[2]") || script == Script::Extend);
            assert!(!script.carried().contains("KEYS[2]") && script.hash().len() == 40);
        }
    }
}
