//! Redis servers of a test's own, and faults between them and their clients.

#![allow(dead_code, unused_imports)] // no test uses all of it

pub mod proxy;
pub mod resp;
pub mod server;

pub use proxy::{Blackhole, Fake, Fault, Proxy};
pub use resp::{Raw, Reply};
pub use server::{Server, url};

use buflock::answer::{Acquire, Await, Held, Verdict};
use buflock::client::Client;
use buflock::config::Settings;
use buflock::error::{Error, ServerFault};
use md5::{Digest, Md5};
use std::time::{Duration, Instant};

/// What a call came to, as the number that C has for it.
pub const OK: i32 = 0;
/// Another holds it.
pub const BUSY: i32 = 1;
/// Nobody holds it.
pub const EXPIRED: i32 = 2;
/// Another holds it now.
pub const TAKEN: i32 = 3;
/// What an option or a right has to say about it.
pub const CONFIG: i32 = -2;
/// Nothing was sent.
pub const UNREACHABLE: i32 = -3;
/// Sent, not answered.
pub const UNCERTAIN: i32 = -4;
/// Answered with an error.
pub const REFUSED: i32 = -5;
/// Not tried.
pub const UNAVAILABLE: i32 = -6;

/// What a call may take more than its budget, on a machine that others use too.
pub const SLACK: Duration = Duration::from_millis(150);
/// The same in one of three tries: for the machine's sake, not for the library's.
pub const STRICT: Duration = Duration::from_millis(50);
/// The budget where no option says another.
pub const BUDGET: Duration = Duration::from_millis(500);

/// The number of an error.
pub fn status(error: &Error) -> i32 {
    match error {
        Error::Argument(_) => -1,
        Error::Config(_) => CONFIG,
        Error::Server { fault: ServerFault::Unreachable, .. } => UNREACHABLE,
        Error::Server { fault: ServerFault::Uncertain(_), .. } => UNCERTAIN,
        Error::Server { fault: ServerFault::Refused, .. } => REFUSED,
        Error::Server { fault: ServerFault::Unavailable, .. } => UNAVAILABLE,
        other => panic!("no error of a server: {other}"),
    }
}

/// What calls answer.
pub trait Answer {
    /// The number of it.
    fn number(&self) -> i32;
}

impl Answer for Acquire {
    fn number(&self) -> i32 {
        if matches!(self, Self::Held(_)) { OK } else { BUSY }
    }
}

impl Answer for Verdict {
    fn number(&self) -> i32 {
        match self {
            Self::Ok => OK,
            Self::Expired => EXPIRED,
            Self::Taken => TAKEN,
        }
    }
}

impl Answer for Await {
    fn number(&self) -> i32 {
        if *self == Self::Over { OK } else { BUSY }
    }
}

/// The number of whatever a call came to.
pub fn number<A: Answer>(result: &Result<A, Error>) -> i32 {
    result.as_ref().map_or_else(status, Answer::number)
}

/// Fails unless a call failed so. Its text.
pub fn failed<A: Answer + std::fmt::Debug>(result: Result<A, Error>, number: i32) -> String {
    match result {
        Err(error) => {
            assert_eq!(status(&error), number, "{error}");
            error.to_string()
        }
        Ok(answer) => panic!("not failed: {answer:?}"),
    }
}

/// A client.
pub fn client(url: &str) -> Client {
    Client::new(url, Settings::default()).unwrap_or_else(|error| panic!("{url}: {error}"))
}

/// Takes a lock that is free.
pub fn hold(client: &Client, key: &str, ttl_ms: u32) -> Held {
    held(client.acquire(key.as_bytes(), ttl_ms, 0))
}

/// The lock that was acquired.
pub fn held(result: Result<Acquire, Error>) -> Held {
    match result {
        Ok(Acquire::Held(held)) => held,
        Ok(Acquire::Busy(busy)) => panic!("busy: {busy:?}"),
        Err(error) => panic!("{error}"),
    }
}

/// Gives back what is held.
pub fn release(client: &Client, key: &str, held: &Held) {
    verdict(client.release(key.as_bytes(), &held.token.0), Verdict::Ok);
}

/// Fails unless a call came to this.
pub fn verdict(result: Result<Verdict, Error>, want: Verdict) {
    match result {
        Ok(verdict) => assert_eq!(verdict, want),
        Err(error) => panic!("{error}"),
    }
}

/// One acquire and one release.
pub fn pair(client: &Client, key: &str) {
    release(client, key, &hold(client, key, 10_000));
}

/// Runs it, and says how long it took.
pub fn timed<T>(body: impl FnOnce() -> T) -> (T, Duration) {
    let begin = Instant::now();
    (body(), begin.elapsed())
}

/// Runs it, and fails if it took longer.
pub fn within<T>(most: Duration, body: impl FnOnce() -> T) -> T {
    let (answer, took) = timed(body);
    assert!(took <= most, "it took {took:?}, more than {most:?}");
    answer
}

/// Fails if it is later than that three times.
pub fn once_within(most: Duration, late: impl Fn() -> Duration) {
    let tries: Vec<_> = (0..3).map(|_| late()).collect();
    assert!(tries.iter().any(|late| *late <= most), "{tries:?}, and never within {most:?}");
}

/// Milliseconds.
pub const fn ms(count: u64) -> Duration {
    Duration::from_millis(count)
}

/// Waits until it is so.
pub fn until(what: &str, is_so: impl Fn() -> bool) {
    let begin = Instant::now();
    while !is_so() {
        assert!(begin.elapsed() < Duration::from_secs(10), "never: {what}");
        std::thread::sleep(ms(1));
    }
}

/// What a key is called in the server, in this namespace.
pub fn stored_in(namespace: &str, key: &[u8]) -> Vec<u8> {
    let hex: String = Md5::digest(key).iter().map(|byte| format!("{byte:02x}")).collect();
    format!("{namespace}{hex}").into_bytes()
}

/// What a key is called in the server.
pub fn stored(key: &str) -> Vec<u8> {
    stored_in("buflock:", key.as_bytes())
}
