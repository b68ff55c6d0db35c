//! The vectors that all languages run, through the Rust API.

mod common;

use buflock::answer::{Acquire, Await, Verdict};
use buflock::client::Client;
use buflock::config::Settings;
use buflock::error::Error;
use buflock::ffi::words::buflock_status_name;
use buflock::key::{KeyHash, KeyHasher, stored_key};
use buflock::policy::milliseconds;
use buflock::token::Token;
use common::Dir;
use std::collections::HashMap;
use std::ffi::CStr;
use std::time::Duration;

const VECTORS: &str = include_str!("vectors.txt");

/// The cases of a kind, each with its line's number. There is at least one.
fn cases(kind: &str) -> Vec<(usize, Vec<&'static str>)> {
    let lines = VECTORS.lines().enumerate().map(|(at, line)| (at + 1, line.split_whitespace().collect::<Vec<_>>()));
    let cases: Vec<_> = lines.filter(|(_, words)| words.first() == Some(&kind)).collect();
    assert!(!cases.is_empty(), "no case of {kind}");
    cases.into_iter().map(|(at, words)| (at, words[1..].to_vec())).collect()
}

fn bytes(text: &str) -> Vec<u8> {
    let (hex, times) = text.split_once('*').map_or((text, 1), |(hex, times)| (hex, times.parse().unwrap()));
    let hex = if hex == "-" { "" } else { hex };
    let one = (0..hex.len()).step_by(2).map(|at| u8::from_str_radix(&hex[at..at + 2], 16).unwrap());
    one.collect::<Vec<_>>().repeat(times)
}

#[test]
fn all_kinds_are_run() {
    for line in VECTORS.lines().filter(|line| !line.is_empty() && !line.starts_with('#')) {
        let kind = line.split_whitespace().next().unwrap();
        assert!(["stored", "hash", "ttl", "status", "token", "life"].contains(&kind), "{line}");
    }
}

#[test]
fn stored_keys() {
    for (at, words) in cases("stored") {
        assert_eq!(stored_key(&bytes(words[0]), &bytes(words[1])), bytes(words[2]), "line {at}");
    }
}

#[test]
fn hashes() {
    for (at, words) in cases("hash") {
        let number = |word: usize| words[word].parse().unwrap();
        let hasher = KeyHasher::new([number(0), number(1)], words[2].parse().unwrap(), &bytes(words[3]));
        let [first, second, a, b, c] = [5, 6, 7, 8, 9].map(|word: usize| words[word].parse().unwrap());
        assert_eq!(hasher.hash(&bytes(words[4])), KeyHash { first, second, tags: [a, b, c] }, "line {at}");
    }
}

#[test]
fn times() {
    for (at, words) in cases("ttl") {
        assert_eq!(milliseconds(words[0]), words[1].parse().ok(), "line {at}");
        assert!(words[1] == "bad" || words[1].parse::<u32>().is_ok(), "line {at}");
    }
}

#[test]
fn statuses() {
    for (at, words) in cases("status") {
        // SAFETY: names are C strings.
        let name = unsafe { CStr::from_ptr(buflock_status_name(words[0].parse().unwrap())) };
        assert_eq!(name.to_str(), Ok(words[1]), "line {at}");
    }
}

#[test]
fn tokens() {
    for (at, words) in cases("token") {
        let text = if words[0] == "-" { "" } else { words[0] };
        assert_eq!(Token::parse(text.as_bytes()).is_some(), words[1] == "good", "line {at}");
    }
}

fn name_of_verdict(answer: Result<Verdict, Error>) -> &'static str {
    match answer {
        Ok(Verdict::Ok) => "BUFLOCK_OK",
        Ok(Verdict::Expired) => "BUFLOCK_EXPIRED",
        Ok(Verdict::Taken) => "BUFLOCK_TAKEN",
        Err(Error::Argument(_)) => "BUFLOCK_ARGUMENT",
        Err(error) => panic!("{error}"),
    }
}

#[test]
fn lives() {
    let dir = Dir::new("vectors");
    let client = Client::new(&dir.url("t"), Settings::default()).unwrap();
    let mut tokens: HashMap<&str, Vec<u8>> = HashMap::new();
    for (at, words) in cases("life") {
        let key = words.get(1).unwrap_or(&"").as_bytes();
        let token = |name: &str| tokens.get(name).cloned().unwrap_or_else(|| name.as_bytes().to_vec());
        let ms = |word: usize| words[word].parse::<u32>().unwrap();
        let answer = match words[0] {
            "acquire" => match client.acquire(key, ms(3), 0) {
                Ok(Acquire::Held(held)) => {
                    tokens.insert(words[2], held.token.0.to_vec());
                    "BUFLOCK_OK"
                }
                Ok(Acquire::Busy(_)) => "BUFLOCK_BUSY",
                Err(Error::Argument(_)) => "BUFLOCK_ARGUMENT",
                Err(error) => panic!("line {at}: {error}"),
            },
            "extend" => name_of_verdict(client.extend(key, &token(words[2]), ms(3))),
            "release" => name_of_verdict(client.release(key, &token(words[2]))),
            "break" => name_of_verdict(client.end_any(key)),
            "await" if client.wait_for_end(key, 0).unwrap() == Await::Over => "BUFLOCK_OK",
            "inspect" if client.inspect(key).unwrap().is_none() => "BUFLOCK_OK",
            "await" | "inspect" => "BUFLOCK_BUSY",
            "pause" => {
                std::thread::sleep(Duration::from_millis(u64::from(ms(1))));
                continue;
            }
            other => panic!("line {at}: {other}"),
        };
        assert_eq!(Some(&answer), words.last(), "line {at}: {words:?}");
    }
}
