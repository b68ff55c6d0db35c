//! What may go wrong between a client and a Redis server: nothing takes longer than its budget, and no answer is a lie.

mod common;
#[path = "common/process.rs"]
mod process;
#[path = "common/redis/mod.rs"]
mod redis;

use buflock::answer::{Acquire, Verdict};
use buflock::client::Client;
use buflock::error::Error;
use redis::server::free_port;
use redis::{
    Answer, BUDGET, BUSY, Blackhole, EXPIRED, Fake, Fault, OK, Proxy, REFUSED, SLACK, STRICT, Server, UNAVAILABLE,
    UNCERTAIN, UNREACHABLE, client, failed, hold, ms, number, once_within, pair, release, status, stored, timed, until,
    url, verdict, within,
};
use std::cell::Cell;
use std::fmt::Debug;
use std::sync::atomic::{AtomicBool, Ordering::SeqCst};
use std::thread::sleep;
use std::time::{Duration, Instant};

const MOST: Duration = BUDGET.saturating_add(SLACK);
const LEASE: u32 = 20_000;

/// A server, what stands before it, and a client that has used it already.
fn scene(options: &str) -> Option<(Server, Proxy, Client)> {
    let server = Server::start(&[])?;
    let proxy = Proxy::new(server.port());
    let client = client(&proxy.url(options));
    pair(&client, "first");
    Some((server, proxy, client))
}

/// A try, within its budget, by a plain SET.
fn acquire(client: &Client, key: &str) -> Result<Acquire, Error> {
    acquire_by(client, key, false)
}

/// The same; with `script` it is the one that says how long another holds it.
fn acquire_by(client: &Client, key: &str, script: bool) -> Result<Acquire, Error> {
    within(MOST, || client.acquire_telling(key.as_bytes(), LEASE, 0, script))
}

/// Nobody else is there: the lock is ours, and the server says so; or the call has failed, and nothing is left of it.
fn is_true(server: &Server, key: &str, answer: &Result<Acquire, Error>, what: &str) {
    match answer {
        Ok(Acquire::Held(held)) => {
            assert_eq!(server.get(&stored(key)).as_deref(), Some(&held.token.0[..]), "{what}");
        }
        Ok(Acquire::Busy(busy)) => panic!("{what}: busy with our own lock: {busy:?}"),
        Err(error) => assert_eq!(server.get(&stored(key)), None, "{what}: {error}"),
    }
}

fn is_one_of<A: Answer + Debug>(result: &Result<A, Error>, numbers: &[i32], what: &str) {
    assert!(numbers.contains(&number(result)), "{what}: {result:?}");
}

/// What may happen to a reply.
fn lost_replies() -> [Fault; 7] {
    [
        Fault::Swallow,
        Fault::Close,
        Fault::Cut(0),
        Fault::Cut(1),
        Fault::Cut(3),
        Fault::Delay(ms(600)),
        Fault::Trickle(ms(120)),
    ]
}

/// By SET and by script.
fn both<T: Clone>(item: T) -> [(T, bool); 2] {
    [(item.clone(), false), (item, true)]
}

/// Replies that are none.
fn garbage() -> Vec<Vec<u8>> {
    let text = |text: &str| text.as_bytes().to_vec();
    vec![
        text("\r\n"),
        text("garbage\r\n"),
        text("HTTP/1.1 400 Bad Request\r\n\r\n"),
        text("$-5\r\n"),
        text("$x\r\n"),
        text(":\r\n"),
        text(":99999999999999999999\r\n"),
        text("$2\r\nOK++"),
        text("+QUEUED\r\n"),
        text("*-7\r\n"),
        text("*2\r\n+OK\r\n+OK\r\n"),
        text("%1\r\n+a\r\n+b\r\n"),
        vec![0; 64],
        vec![0xff; 64],
    ]
}

/// Replies that would fill the memory.
fn oversized() -> Vec<Vec<u8>> {
    let long = |begin: &str, part: &str, count: usize| [begin.as_bytes(), part.repeat(count).as_bytes()].concat();
    vec![
        long("$536870912\r\n", "x", 1 << 20),
        long("*1000000000\r\n", ":1\r\n", 1 << 18),
        long("", "*1\r\n", 1 << 16),
        long("+", "x", 1 << 20),
        long(":", "1", 1 << 20),
    ]
}

// Replies that do not arrive.

#[test]
fn a_lost_reply_to_an_acquire_is_settled() {
    let Some((server, proxy, client)) = scene("breaker=off") else { return };
    for (fault, script) in lost_replies().into_iter().flat_map(both) {
        let (key, what) = (format!("key {fault:?}"), format!("{fault:?}, script: {script}"));
        proxy.next(fault);
        let answer = acquire_by(&client, &key, script);
        is_true(&server, &key, &answer, &what);
        if let Ok(Acquire::Held(held)) = answer {
            release(&client, &key, &held);
        }
        pair(&client, &key);
        assert!(proxy.heal(), "{what} did not happen");
        assert!(server.get(&stored(&key)).is_none());
    }
}

#[test]
fn a_connection_that_breaks_at_once_leaves_time_for_another_try() {
    let Some((server, proxy, client)) = scene("breaker=off") else { return };
    let faults = [Fault::Cut(0), Fault::Cut(4), Fault::Close, Fault::CutRequest(0), Fault::CutRequest(20)];
    for (fault, script) in faults.into_iter().flat_map(both) {
        let what = format!("{fault:?}, script: {script}");
        proxy.next(fault);
        let answer = acquire_by(&client, "key", script);
        is_one_of(&answer, &[OK], &what);
        is_true(&server, "key", &answer, &what);
        let Ok(Acquire::Held(held)) = answer else { unreachable!() };
        release(&client, "key", &held);
    }
}

#[test]
fn an_acquire_is_cut_at_every_byte() {
    let Some((server, proxy, client)) = scene("breaker=off") else { return };
    let faults = (0..420).step_by(3).map(Fault::CutRequest).chain((0..8).map(Fault::Cut));
    for (fault, script) in faults.flat_map(both) {
        let what = format!("{fault:?}, script: {script}");
        proxy.next(fault);
        let answer = acquire_by(&client, "key", script);
        is_true(&server, "key", &answer, &what);
        if let Ok(Acquire::Held(held)) = answer {
            release(&client, "key", &held);
        }
        assert!(server.get(&stored("key")).is_none(), "{what}");
    }
}

#[test]
fn a_lost_request_takes_no_lock_unnoticed() {
    let Some((server, proxy, client)) = scene("breaker=off") else { return };
    proxy.next(Fault::LoseRequest);
    let answer = acquire(&client, "key");
    is_true(&server, "key", &answer, "a lost request");
    if let Ok(Acquire::Held(held)) = answer {
        release(&client, "key", &held);
    }
}

#[test]
fn an_orphan_never_makes_its_maker_wait() {
    let Some((server, proxy, client)) = scene("breaker=off") else { return };
    for fault in [Fault::Cut(0), Fault::Close, Fault::Swallow] {
        let what = format!("{fault:?}");
        proxy.always(fault);
        is_one_of(&acquire(&client, "key"), &[UNCERTAIN], &what);
        proxy.heal();
        proxy.reset_all();
        pair(&client, "key"); // the same key is not busy with what nobody holds
        assert!(server.get(&stored("key")).is_none(), "{what}");
        proxy.always(Fault::Cut(0));
        is_one_of(&acquire(&client, "key"), &[UNCERTAIN], &what);
        proxy.heal();
        pair(&client, "another"); // and any call takes along what is left
        assert!(server.get(&stored("key")).is_none(), "{what}");
    }
}

#[test]
fn a_lost_reply_to_a_release_is_settled() {
    let Some((server, proxy, client)) = scene("breaker=off") else { return };
    for fault in lost_replies() {
        let what = format!("{fault:?}");
        let held = hold(&client, "key", LEASE);
        proxy.next(fault);
        let answer = within(MOST, || client.release(b"key", &held.token.0));
        // EXPIRED would be a lie: it was held until this very call.
        is_one_of(&answer, &[OK, UNCERTAIN], &what);
        assert!(server.get(&stored("key")).is_none(), "{what}");
        assert!(proxy.heal(), "{what} did not happen");
    }
}

#[test]
fn a_release_that_did_not_arrive_is_no_success() {
    let Some((server, proxy, client)) = scene("breaker=off") else { return };
    for fault in [Fault::LoseRequest, Fault::CutRequest(0), Fault::CutRequest(40)] {
        let held = hold(&client, "key", LEASE);
        proxy.next(fault);
        let answer = within(MOST, || client.release(b"key", &held.token.0));
        if number(&answer) == OK {
            assert!(server.get(&stored("key")).is_none());
        } else {
            is_one_of(&answer, &[UNCERTAIN, UNREACHABLE], "lost");
            pair(&client, "another"); // takes it along
            assert!(server.get(&stored("key")).is_none());
        }
    }
}

#[test]
fn a_lost_reply_to_an_extend_is_settled() {
    let Some((server, proxy, client)) = scene("breaker=off") else { return };
    for fault in lost_replies() {
        let what = format!("{fault:?}");
        let held = hold(&client, "key", LEASE);
        proxy.next(fault);
        let answer = within(MOST, || client.extend(b"key", &held.token.0, 3 * LEASE));
        is_one_of(&answer, &[OK, UNCERTAIN], &what);
        assert!(number(&answer) != OK || server.pttl(&stored("key")) > i64::from(2 * LEASE), "{what}");
        release(&client, "key", &held);
    }
}

#[test]
fn a_stopped_server_leaves_no_orphan() {
    let Some((server, _proxy, client)) = scene("breaker=off") else { return };
    server.pause();
    is_one_of(&acquire(&client, "key"), &[UNCERTAIN], "stopped");
    server.resume();
    // The server serves what its kernel took for it: the lock is taken late, for nobody.
    sleep(ms(50));
    pair(&client, "another");
    assert!(server.is_empty() || server.get(&stored("key")).is_none(), "{:?}", server.keys());
    pair(&client, "key");
}

#[test]
fn a_drop_does_not_talk() {
    let Some((server, _proxy, client)) = scene("breaker=off") else { return };
    let held = hold(&client, "key", LEASE);
    server.pause();
    within(STRICT, || verdict(client.drop_hold(b"key", &held.token.0), Verdict::Ok));
    server.resume();
    pair(&client, "another");
    assert!(server.get(&stored("key")).is_none());
}

// Replies that are not what was asked for.

#[test]
fn garbage_is_no_answer() {
    let Some((server, proxy, client)) = scene("breaker=off") else { return };
    for (bytes, script) in garbage().into_iter().chain(oversized()).flat_map(both) {
        let what = format!("{:?}..., script: {script}", String::from_utf8_lossy(&bytes[..bytes.len().min(40)]));
        proxy.next(Fault::Instead(bytes));
        let answer = acquire_by(&client, "key", script);
        is_true(&server, "key", &answer, &what);
        if let Ok(Acquire::Held(held)) = answer {
            release(&client, "key", &held);
        }
        pair(&client, "key");
    }
}

#[test]
fn garbage_is_no_release() {
    let Some((server, proxy, client)) = scene("breaker=off") else { return };
    for bytes in garbage() {
        let what = format!("{:?}", String::from_utf8_lossy(&bytes));
        let held = hold(&client, "key", LEASE);
        proxy.next(Fault::Instead(bytes));
        let answer = within(MOST, || client.release(b"key", &held.token.0));
        is_one_of(&answer, &[OK, UNCERTAIN, REFUSED], &what);
        assert!(server.get(&stored("key")).is_none(), "{what}");
    }
}

#[test]
fn nothing_but_garbage() {
    for bytes in garbage().into_iter().chain(oversized()) {
        let what = format!("{:?}...", String::from_utf8_lossy(&bytes[..bytes.len().min(40)]));
        let fake = Fake::new(move |_| bytes.clone());
        let client = client(&fake.url("breaker=off"));
        is_one_of(&acquire(&client, "key"), &[UNCERTAIN, UNREACHABLE, REFUSED], &what);
        let token = [b'a'; 32];
        let answer = within(MOST, || client.release(b"key", &token));
        is_one_of(&answer, &[UNCERTAIN, UNREACHABLE, REFUSED], &what);
    }
}

#[test]
fn a_reply_too_many_answers_nobody() {
    let Some((server, proxy, client)) = scene("breaker=off") else { return };
    let other = redis::client(&server.url(""));
    hold(&other, "theirs", LEASE);
    for reply in [&b"+OK\r\n"[..], b":0\r\n", b":1\r\n", b"*2\r\n:0\r\n:1\r\n"] {
        for pause in [None, Some(ms(0)), Some(ms(20))] {
            let reply = reply.to_vec();
            proxy.next(pause.map_or_else(|| Fault::Surplus(reply.clone()), |pause| Fault::Later(pause, reply.clone())));
            let mine = hold(&client, "mine", LEASE);
            sleep(ms(40));
            let text = String::from_utf8_lossy(&reply).into_owned();
            assert_eq!(number(&acquire(&client, "theirs")), BUSY, "{text:?} after {pause:?}");
            release(&client, "mine", &mine);
            let answer = client.release(b"mine", &mine.token.0);
            assert_eq!(number(&answer), EXPIRED, "{text:?} after {pause:?}: {answer:?}");
        }
    }
}

#[test]
fn a_late_reply_answers_nobody() {
    let Some((server, proxy, client)) = scene("breaker=off") else { return };
    let other = redis::client(&server.url(""));
    hold(&other, "theirs", LEASE);
    for delay in [260, 300, 480, 700] {
        proxy.next(Fault::Delay(ms(delay)));
        let answer = acquire(&client, "mine");
        for _ in 0..20 {
            assert_eq!(number(&acquire(&client, "theirs")), BUSY);
            sleep(ms(20));
        }
        is_true(&server, "mine", &answer, "late");
        if let Ok(Acquire::Held(held)) = answer {
            release(&client, "mine", &held);
        }
    }
}

// Nobody there, or nobody who speaks.

#[test]
fn a_closed_port_is_told_at_once() {
    let client = client(&url(free_port(), "breaker=off"));
    for _ in 0..5 {
        let text = failed(within(SLACK, || client.acquire(b"key", LEASE, 0)), UNREACHABLE);
        assert!(text.contains("127.0.0.1"), "\"{text}\" does not say where");
    }
    failed(within(SLACK, || client.release(b"key", &[b'a'; 32])), UNREACHABLE);
}

#[test]
fn who_takes_no_connections_is_not_waited_for() {
    let hole = Blackhole::new();
    let client = client(&hole.url("breaker=off"));
    for _ in 0..2 {
        failed(within(MOST, || client.acquire(b"key", LEASE, 0)), UNREACHABLE);
    }
}

#[test]
fn who_says_nothing_is_not_waited_for() {
    let fake = Fake::new(|_| Vec::new());
    for (options, most) in [("", 500), ("command_timeout=0.05&budget=0.1", 100), ("budget=0.05", 50)] {
        let client = client(&fake.url(&format!("breaker=off&{options}")));
        let most = ms(most) + SLACK;
        failed(within(most, || client.acquire(b"key", LEASE, 0)), UNCERTAIN);
        failed(within(most, || client.release(b"key", &[b'a'; 32])), UNCERTAIN);
        failed(within(most, || client.extend(b"key", &[b'a'; 32], LEASE)), UNCERTAIN);
        let answer = within(most, || client.inspect(b"key"));
        assert_eq!(answer.map_err(|error| status(&error)).unwrap_err(), UNREACHABLE); // it would have changed nothing
    }
}

#[test]
fn a_password_that_nobody_answers_is_not_waited_for() {
    let fake = Fake::new(|_| Vec::new());
    let client = client(&fake.url("breaker=off&password=secret"));
    let answer = acquire(&client, "key");
    is_one_of(&answer, &[UNREACHABLE, UNCERTAIN], "AUTH");
    let text = answer.unwrap_err().to_string();
    assert!(!text.contains("secret"), "{text}");
}

#[test]
fn a_wait_ends_in_time_whatever_happens() {
    let Some((server, proxy, client)) = scene("breaker=off") else { return };
    let other = redis::client(&server.url(""));
    let held = hold(&other, "key", LEASE);
    let wait = |most: u64| {
        let most = ms(most) + MOST;
        is_one_of(&within(most, || client.acquire(b"key", LEASE, 300)), &[BUSY, UNCERTAIN, UNREACHABLE], "wait");
        is_one_of(&within(most, || client.wait_for_end(b"key", 300)), &[BUSY, UNCERTAIN, UNREACHABLE], "await");
    };
    wait(300);
    for fault in lost_replies() {
        proxy.always(fault);
        wait(300);
        proxy.heal();
        proxy.reset_all();
    }
    assert_eq!(server.get(&stored("key")).unwrap(), held.token.0);
    release(&other, "key", &held);
    pair(&client, "key");
}

#[test]
fn a_wait_goes_on_over_a_new_connection() {
    let Some((server, proxy, client)) = scene("breaker=off") else { return };
    let other = redis::client(&server.url(""));
    let held = hold(&other, "key", LEASE);
    std::thread::scope(|scope| {
        let waiter = scope.spawn(|| timed(|| client.acquire(b"key", LEASE, 5000)));
        sleep(ms(200));
        proxy.reset_all();
        sleep(ms(200));
        release(&other, "key", &held);
        let (answer, took) = waiter.join().unwrap();
        is_true(&server, "key", &answer, "reset");
        assert_eq!(number(&answer), OK, "{answer:?}");
        assert!(took < ms(1000), "{took:?}");
    });
}

// The breaker.

/// Three calls that fail.
fn open(client: &Client) {
    for _ in 0..3 {
        let answer = acquire(client, "key");
        is_one_of(&answer, &[UNCERTAIN, UNREACHABLE], "before the breaker opens");
    }
}

#[test]
fn after_three_failures_calls_fail_at_once() {
    let Some((server, _proxy, client)) = scene("") else { return };
    let held = hold(&client, "held", LEASE);
    server.pause();
    open(&client);
    let begin = Instant::now();
    while begin.elapsed() < ms(600) {
        failed(within(STRICT, || client.acquire(b"key", LEASE, 0)), UNAVAILABLE);
        failed(within(STRICT, || client.acquire(b"key", LEASE, 5000)), UNAVAILABLE);
        failed(within(STRICT, || client.extend(b"held", &held.token.0, LEASE)), UNAVAILABLE);
        failed(within(STRICT, || client.release(b"held", &held.token.0)), UNAVAILABLE);
        failed(within(STRICT, || client.wait_for_end(b"held", 5000)), UNAVAILABLE);
        sleep(ms(5));
    }
    server.resume();
    until("it is tried again", || number(&acquire(&client, "key")) != UNAVAILABLE);
    assert!(begin.elapsed() < ms(1300), "{:?}", begin.elapsed());
    pair(&client, "other");
    assert!(server.keys().len() <= 2, "{:?}", server.keys());
}

#[test]
fn a_budget_is_kept_to() {
    let Some((server, _proxy, _)) = scene("") else { return };
    let round = Cell::new(0);
    once_within(STRICT, || {
        let client = client(&server.url(""));
        let key = format!("key {}", round.replace(round.get() + 1)); // for a lock may be taken late
        pair(&client, &key);
        server.pause();
        let calls = (0..3).map(|_| {
            let (answer, took) = timed(|| client.acquire(key.as_bytes(), LEASE, 0));
            is_one_of(&answer, &[UNCERTAIN, UNREACHABLE], "stopped");
            took
        });
        let longest = calls.max().expect("three");
        failed(client.acquire(key.as_bytes(), LEASE, 0), UNAVAILABLE);
        server.resume();
        longest.saturating_sub(BUDGET)
    });
}

#[test]
fn a_closed_port_opens_the_breaker() {
    let client = client(&url(free_port(), ""));
    for _ in 0..3 {
        failed(client.acquire(b"key", LEASE, 0), UNREACHABLE);
    }
    failed(client.acquire(b"key", LEASE, 0), UNAVAILABLE);
}

#[test]
fn what_old_servers_say_opens_the_breaker() {
    let readonly =
        "ERR Error running script (call to f_0): @user_script:7: @user_script: 7: -READONLY You can't write.";
    for text in [readonly, "ERR invalid password"] {
        let fake = Fake::new(move |_| format!("-{text}\r\n").into());
        let client = client(&fake.url(""));
        for _ in 0..3 {
            failed(acquire(&client, "key"), REFUSED);
        }
        failed(acquire(&client, "key"), UNAVAILABLE);
    }
}

#[test]
fn the_breaker_opens_as_late_as_it_is_told() {
    let port = free_port();
    let patient = client(&url(port, "breaker=5"));
    for _ in 0..5 {
        failed(patient.acquire(b"key", LEASE, 0), UNREACHABLE);
    }
    failed(patient.acquire(b"key", LEASE, 0), UNAVAILABLE);
    let never = client(&url(port, "breaker=off"));
    for _ in 0..20 {
        failed(never.acquire(b"key", LEASE, 0), UNREACHABLE);
    }
}

#[test]
fn a_busy_lock_is_a_success() {
    let Some((server, proxy, client)) = scene("command_timeout=0.1&budget=0.2") else { return };
    hold(&redis::client(&server.url("")), "theirs", LEASE);
    for _ in 0..5 {
        for _ in 0..2 {
            proxy.always(Fault::Swallow);
            is_one_of(&acquire(&client, "key"), &[UNCERTAIN], "swallowed");
            proxy.heal();
        }
        let answer = client.acquire(b"theirs", LEASE, 0);
        assert_eq!(number(&answer), BUSY, "{answer:?}");
    }
}

#[test]
fn the_breaker_stays_open_longer_each_time() {
    let fake = Fake::new(|_| Vec::new());
    let client = client(&fake.url("command_timeout=0.02&budget=0.04"));
    open(&client);
    let (begin, mut tries) = (Instant::now(), Vec::new());
    while begin.elapsed() < ms(4500) {
        if number(&client.acquire(b"key", LEASE, 0)) != UNAVAILABLE {
            tries.push(begin.elapsed());
        }
        sleep(ms(5));
    }
    // After 1 s, 2 s more and 4 s more, and a fifth of it sooner or later.
    assert_eq!(tries.len(), 2, "{tries:?}");
    assert!((ms(780)..=ms(1300)).contains(&tries[0]), "{tries:?}");
    assert!((ms(1580)..=ms(2500)).contains(&(tries[1] - tries[0])), "{tries:?}");
    assert!(fake.connections() <= 5 * 3, "each with a second try and a release, at most");
}

// What a healthy connection is like.

#[test]
fn two_round_trips_are_all() {
    let Some((_server, proxy, client)) = scene("") else { return };
    proxy.seen();
    for _ in 0..10 {
        release(&client, "key", &redis::held(acquire(&client, "key")));
        assert_eq!(proxy.seen(), ["SET", "EVALSHA"]);
        pair(&client, "key");
        assert_eq!(proxy.seen(), ["EVALSHA", "EVALSHA"]);
    }
    assert_eq!(proxy.connections(), 1);
}

#[test]
fn a_connection_that_was_closed_while_idle_costs_no_error() {
    let Some((server, proxy, client)) = scene("") else { return };
    for round in 0..3 {
        proxy.reset_all();
        pair(&client, "key");
        server.tell("CLIENT KILL TYPE normal SKIPME yes");
        pair(&client, "key");
        server.restart();
        pair(&client, "key");
        assert_eq!(proxy.seen().iter().filter(|command| *command == "QUIT").count(), 0, "{round}");
    }
}

#[test]
fn threads_get_answers_of_their_own() {
    let Some((server, proxy, client)) = scene("breaker=off") else { return };
    hold(&redis::client(&server.url("")), "theirs", LEASE);
    let done = AtomicBool::new(false);
    std::thread::scope(|scope| {
        for number in 0..8 {
            let (client, done) = (&client, &done);
            scope.spawn(move || {
                let key = format!("key {number}");
                for _ in 0..150 {
                    if let Ok(Acquire::Held(held)) = acquire(client, &key) {
                        let answer = client.release(key.as_bytes(), &held.token.0);
                        is_one_of(&answer, &[OK, UNCERTAIN, UNREACHABLE], "release");
                    }
                    let answer = acquire(client, "theirs");
                    is_one_of(&answer, &[BUSY, UNCERTAIN, UNREACHABLE], "theirs");
                }
                done.store(true, SeqCst);
            });
        }
        while !done.load(SeqCst) {
            proxy.next(Fault::Delay(ms(30)));
            sleep(ms(10));
            proxy.reset_all();
            proxy.next(Fault::Cut(2));
            sleep(ms(10));
        }
    });
    proxy.heal();
    pair(&client, "last");
    let left: Vec<_> = server.keys().into_iter().filter(|key| *key != stored("theirs")).collect();
    assert!(left.is_empty(), "{} orphans", left.len());
}
