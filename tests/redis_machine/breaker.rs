//! The breaker, as calls see it, by a clock of the test's own.

use super::play::TOKEN;
use buflock::config::{Settings, Target, parse_url};
use buflock::error::{Error, ServerFault};
use buflock::policy::NS_PER_MS;
use buflock::redis::Redis;
use buflock::redis::machine::{Machine, Want};
use buflock::step::Step;

const BEGIN: u64 = 1000 * NS_PER_MS;

fn call(redis: &Redis, now: u64) -> Machine {
    Machine::new(redis, Want::Acquire { ttl_ms: 1000, tell_left: false }, b"key", TOKEN, 0, now)
}

/// Whether the server is asked.
fn is_asked(redis: &Redis, machine: &mut Machine, now: u64) -> bool {
    match machine.next(redis, now) {
        Step::Connect { .. } => true,
        Step::Done { .. } => {
            let answer = machine.answer();
            let is_refused = matches!(answer, Some(Err(Error::Server { fault: ServerFault::Unavailable, .. })));
            assert!(is_refused, "{answer:?}");
            false
        }
        other => panic!("{other:?}"),
    }
}

/// A call that cannot connect.
fn fails(redis: &Redis, now: u64) {
    let mut machine = call(redis, now);
    assert!(is_asked(redis, &mut machine, now), "not asked");
    machine.fail(redis, "refused", now);
    assert!(matches!(machine.next(redis, now), Step::Done { .. }), "a refusal is not the end");
}

fn works(redis: &Redis, machine: &mut Machine, now: u64) {
    machine.connected(redis, true, now);
    assert!(matches!(machine.next(redis, now), Step::Send { .. }));
    assert!(matches!(machine.next(redis, now), Step::Receive { .. }));
    machine.feed(redis, b"+OK\r\n", now);
    assert!(matches!(machine.next(redis, now), Step::Done { .. }));
}

#[test]
pub fn it_opens_lets_one_through_and_closes() {
    let mut settings = Settings::default();
    let Ok(Target::Redis(address)) = parse_url("redis://127.0.0.1", &mut settings) else { panic!("a URL") };
    let redis = Redis::new(address, settings).expect("memory");
    let mut now = BEGIN;
    (0..3).for_each(|_| fails(&redis, now));
    assert!(!is_asked(&redis, &mut call(&redis, now), now), "it is not open");
    now += 1300 * NS_PER_MS;
    let mut probe = call(&redis, now);
    assert!(is_asked(&redis, &mut probe, now), "nobody is let through");
    assert!(!is_asked(&redis, &mut call(&redis, now), now), "two are let through");
    works(&redis, &mut probe, now);
    (0..2).for_each(|_| fails(&redis, now));
    let mut third = call(&redis, now);
    assert!(is_asked(&redis, &mut third, now), "it is not closed");
    works(&redis, &mut third, now);
}
