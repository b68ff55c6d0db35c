//! Short forms of what tests do with a table.

#![allow(dead_code)] // no test uses all of it

use buflock::answer::{Acquire, Busy, Held};
use buflock::client::Client;
use buflock::config::Settings;
use buflock::error::Error;
use buflock::shm::segment::{BUCKET, HEAD};
use std::fs;
use std::path::{Path, PathBuf};

use crate::common::Dir;

/// Buckets of the smallest table.
pub const FEW: usize = 8;
/// Bytes of the smallest table.
pub const SMALL: usize = HEAD + FEW * BUCKET;

/// The URL of a small table in `dir`.
pub fn small(dir: &Dir) -> String {
    format!("{}&size=16k", dir.url("t"))
}

/// Where that is.
pub fn file(dir: &Dir) -> PathBuf {
    dir.path().join("t")
}

/// A client of `url`, not attached yet.
pub fn client(url: &str) -> Client {
    Client::new(url, Settings::default()).unwrap_or_else(|error| panic!("{url}: {error}"))
}

/// Takes a lock that is free.
pub fn hold(client: &Client, key: &str, ttl_ms: u32) -> Held {
    match client.acquire(key.as_bytes(), ttl_ms, 0) {
        Ok(Acquire::Held(held)) => held,
        Ok(Acquire::Busy(busy)) => panic!("{key} is busy: {busy:?}"),
        Err(error) => panic!("{key}: {error}"),
    }
}

/// Looks at a lock that is held.
pub fn busy(client: &Client, key: &str) -> Busy {
    match client.acquire(key.as_bytes(), 1000, 0) {
        Ok(Acquire::Busy(busy)) => busy,
        Ok(Acquire::Held(_)) => panic!("{key} is free"),
        Err(error) => panic!("{key}: {error}"),
    }
}

/// Tries a lock; whether it was free.
pub fn take(client: &Client, key: &str, ttl_ms: u32) -> bool {
    match client.acquire(key.as_bytes(), ttl_ms, 0) {
        Ok(answer) => matches!(answer, Acquire::Held(_)),
        Err(error) => panic!("{key}: {error}"),
    }
}

/// The text of the failure to use a table.
pub fn refusal_of(client: &Client) -> String {
    match client.acquire(b"some key", 1000, 0) {
        Err(error @ Error::Segment { .. }) => error.to_string(),
        other => panic!("not refused: {other:?}"),
    }
}

/// The text of the failure to use the table at `url`.
pub fn refusal(url: &str) -> String {
    refusal_of(&client(url))
}

/// Fails unless `text` names `path` first, and says all of `parts`.
pub fn assert_says(text: &str, path: &Path, parts: &[&str]) {
    let fault = text.strip_prefix(path.to_str().expect("UTF-8")).and_then(|text| text.strip_prefix(": "));
    let fault = fault.unwrap_or_else(|| panic!("\"{text}\" does not begin with {}", path.display()));
    for part in parts {
        assert!(fault.contains(part), "\"{text}\" does not say \"{part}\"");
    }
}

/// What stats say.
pub fn stats(client: &Client) -> String {
    client.stats().unwrap_or_else(|error| panic!("stats: {error}"))
}

/// A number that stats say.
pub fn number(client: &Client, name: &str) -> u64 {
    let stats = stats(client);
    let (_, rest) = stats.split_once(&format!("\"{name}\":")).unwrap_or_else(|| panic!("no {name} in {stats}"));
    let digits = rest.split(|char: char| !char.is_ascii_digit()).next().unwrap_or_default();
    digits.parse().unwrap_or_else(|_| panic!("{name} is no number in {stats}"))
}

/// The names in a directory, hidden ones too.
pub fn names(dir: &Path) -> Vec<String> {
    let entries = fs::read_dir(dir).unwrap_or_else(|error| panic!("{}: {error}", dir.display()));
    let mut names: Vec<_> =
        entries.map(|entry| entry.expect("readable").file_name().to_string_lossy().into_owned()).collect();
    names.sort();
    names
}
