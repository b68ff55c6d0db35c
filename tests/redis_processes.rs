//! Processes and signals: forked handles, one breaker for a family, and calls that no signal ends.

mod common;
#[path = "common/process.rs"]
mod process;
#[path = "common/redis/mod.rs"]
mod redis;

use buflock::answer::{Acquire, Answer, Verdict};
use buflock::client::Client;
use buflock::op::{Op, Run};
use process::{
    Child, Shared, fork, in_child, may_unshare, mount, own_mounts, root, sleep_forever, storm, ticks, unshare,
    wait_for_all,
};
use redis::{
    BUDGET, BUSY, Fake, OK, SLACK, Server, UNAVAILABLE, UNREACHABLE, client, failed, held, hold, ms, number, pair,
    release, stored, timed, until, verdict,
};
use std::io::{self, Read, Write};
use std::net::{TcpListener, TcpStream};
use std::os::fd::AsRawFd;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering::SeqCst};
use std::thread::sleep;
use std::time::{Duration, Instant};

const LEASE: u32 = 20_000;

fn run(op: &mut Op) -> Run {
    op.run(u64::MAX).unwrap_or_else(|error| panic!("{error}"))
}

// Forks.

#[test]
fn children_share_a_used_handle() {
    const CHILDREN: usize = 8;
    let Some(server) = Server::start(&[]) else { return };
    let client = client(&server.url(""));
    pair(&client, "first");
    let theirs = hold(&client, "theirs", LEASE);
    let pairs = |name: &str| {
        for round in 0..1000 {
            pair(&client, name);
            if round % 100 == 0 {
                assert_eq!(number(&client.acquire(b"theirs", LEASE, 0)), BUSY);
            }
        }
    };
    let children: Vec<_> = (0..CHILDREN).map(|number| fork(|| pairs(&format!("child {number}")))).collect();
    pairs("parent");
    children.into_iter().for_each(Child::join);
    release(&client, "theirs", &theirs);
    assert!(server.is_empty());
    until("the children's connections are closed", || server.clients() <= 2);
}

#[test]
fn a_child_that_ends_releases_nothing() {
    let Some(server) = Server::start(&[]) else { return };
    let parents = client(&server.url(""));
    let held = hold(&parents, "k", LEASE);
    let mut op = parents.op_acquire(b"op", LEASE, 0).unwrap();
    while run(&mut op) != Run::Done {}
    let waiting = parents.op_acquire(b"k", LEASE, 5000).unwrap();
    let (mut ops, mut parents) = (Some([op, waiting]), Some(parents));
    in_child(|| {
        drop(ops.take());
        drop(parents.take());
    });
    assert_eq!(server.get(&stored("k")).unwrap(), held.token.0);
    assert!(server.get(&stored("op")).is_some());
    assert_eq!(server.clients(), 1, "and the parent's connection is still open");
}

#[test]
fn one_lock_excludes_all_processes() {
    const CHILDREN: usize = 6;
    const ROUNDS: u64 = 60;
    let Some(server) = Server::start(&[]) else { return };
    let client = client(&server.url("timeout=25"));
    pair(&client, "k");
    let shared = Shared::new();
    let children: Vec<_> = (0..CHILDREN)
        .map(|_| {
            fork(|| {
                for _ in 0..ROUNDS {
                    let held = held(client.acquire(b"k", LEASE, 20_000));
                    assert_eq!(shared[0].fetch_add(1, SeqCst), 0, "two holders");
                    let count = shared[1].load(SeqCst);
                    std::thread::yield_now();
                    shared.set(1, count + 1);
                    shared[0].fetch_sub(1, SeqCst);
                    release(&client, "k", &held);
                }
            })
        })
        .collect();
    children.into_iter().for_each(Child::join);
    assert_eq!(shared[1].load(SeqCst), CHILDREN as u64 * ROUNDS);
}

#[test]
fn a_killed_holder_is_taken_over_when_its_lease_ends() {
    let Some(server) = Server::start(&[]) else { return };
    let client = client(&server.url(""));
    pair(&client, "k");
    let shared = Shared::new();
    let child = fork(|| {
        hold(&client, "k", 400);
        shared.set(0, 1);
        sleep_forever();
    });
    child.wait_for(&shared, 0, 1);
    child.kill();
    let left = Duration::from_millis(server.pttl(&stored("k")).try_into().unwrap());
    let (answer, took) = timed(|| client.acquire(b"k", LEASE, 5000));
    held(answer);
    assert!(took + ms(5) >= left && took <= left + SLACK, "{took:?}, and {left:?} were left");
}

#[test]
fn a_killed_waiter_delays_nobody() {
    let Some(server) = Server::start(&[]) else { return };
    let client = client(&server.url(""));
    let held = hold(&client, "k", LEASE);
    let shared = Shared::new();
    let children: Vec<_> = (0..3)
        .map(|_| {
            fork(|| {
                shared[0].fetch_add(1, SeqCst);
                redis::held(client.acquire(b"k", LEASE, 20_000));
            })
        })
        .collect();
    wait_for_all(&children, &shared, 0, 3);
    sleep(ms(100));
    children.into_iter().for_each(Child::kill);
    std::thread::scope(|scope| {
        let waits = scope.spawn(|| timed(|| client.acquire(b"k", LEASE, 5000)));
        sleep(ms(100));
        release(&client, "k", &held);
        let (answer, took) = waits.join().unwrap();
        redis::held(answer);
        assert!(took < ms(800), "{took:?}"); // at worst a slice of its wait
    });
}

// The breaker of a family.

const WORDS: usize = 60;

/// When calls were tried, in ms since `begin`.
struct Tries {
    shared: Shared,
    begin: Instant,
}

impl Tries {
    /// Calls again and again until `end`, and notes when that was not refused at once.
    fn call(&self, client: &Client, end: Duration) {
        while self.begin.elapsed() < end {
            let at = self.begin.elapsed();
            let (answer, took) = timed(|| client.acquire(b"k", LEASE, 0));
            match number(&answer) {
                UNAVAILABLE => assert!(took < SLACK, "refused after {took:?}"),
                _ => {
                    assert!(took <= BUDGET + 2 * SLACK, "{took:?}");
                    let next = usize::try_from(self.shared[0].fetch_add(1, SeqCst)).unwrap();
                    assert!(next < WORDS, "too many tries");
                    self.shared.set(1 + next, u64::try_from(at.as_millis()).unwrap());
                }
            }
            sleep(ms(5));
        }
    }

    fn times(&self) -> Vec<u64> {
        let count = usize::try_from(self.shared[0].load(SeqCst)).unwrap();
        let mut times: Vec<_> = (0..count).map(|next| self.shared[1 + next].load(SeqCst)).collect();
        times.sort_unstable();
        times
    }
}

#[test]
fn one_process_probes_for_all() {
    let fake = Fake::new(|_| Vec::new());
    let client = client(&fake.url(""));
    let tries = Tries { shared: Shared::new(), begin: Instant::now() };
    let end = Duration::from_secs(6);
    let children: Vec<_> = (0..8).map(|_| fork(|| tries.call(&client, end))).collect();
    children.into_iter().for_each(Child::join);
    let times = tries.times();
    let (first, probes) = times.split_at(times.partition_point(|at| *at < 700));
    assert!(first.len() >= 3 && first.len() <= 16, "{times:?}"); // all of them may be under way when it opens
    // Open for 1 s after the third failure at about 0.5 s, then a probe of 0.5 s, then for 2 s.
    assert!((1..=3).contains(&probes.len()), "{times:?}");
    assert!(probes.windows(2).all(|pair| pair[1] - pair[0] > 1500), "{times:?}");
    assert!(fake.connections() <= 3 * times.len(), "{} connections", fake.connections());
}

/// A server that is silent until it is told to answer.
fn mute() -> (Fake, Arc<AtomicBool>) {
    let speaks = Arc::new(AtomicBool::new(false));
    let told = speaks.clone();
    let fake = Fake::new(move |words| match words[0].as_str() {
        _ if !told.load(SeqCst) => Vec::new(),
        "SET" => b"+OK\r\n".to_vec(),
        _ => b":0\r\n".to_vec(), // to an acquire's script too this is the lock
    });
    (fake, speaks)
}

#[test]
fn a_killed_prober_does_not_keep_it_open() {
    let (fake, speaks) = mute();
    let client = client(&fake.url(""));
    for _ in 0..3 {
        assert_ne!(number(&client.acquire(b"k", LEASE, 0)), UNAVAILABLE);
    }
    failed(client.acquire(b"k", LEASE, 0), UNAVAILABLE);
    let shared = Shared::new();
    let prober = fork(|| {
        loop {
            shared.set(0, u64::from(number(&client.acquire(b"k", LEASE, 0)) != UNAVAILABLE) + 1);
            sleep(ms(2));
        }
    });
    prober.wait_for(&shared, 0, 1);
    let connections = fake.connections();
    until("it probes", || fake.connections() > connections);
    sleep(ms(50)); // it waits for an answer
    assert_eq!(shared[0].load(SeqCst), 1);
    prober.kill();
    speaks.store(true, SeqCst);
    let begin = Instant::now();
    while number(&client.acquire(b"k", LEASE, 0)) == UNAVAILABLE {
        assert!(begin.elapsed() < Duration::from_secs(5), "still open");
        sleep(ms(5));
    }
    assert_eq!(number(&client.acquire(b"k", LEASE, 0)), OK);
}

#[test]
fn what_one_process_learns_all_know() {
    let (fake, speaks) = mute();
    let client = client(&fake.url(""));
    in_child(|| {
        for _ in 0..3 {
            assert_ne!(number(&client.acquire(b"k", LEASE, 0)), UNAVAILABLE);
        }
    });
    failed(client.acquire(b"k", LEASE, 0), UNAVAILABLE);
    in_child(|| drop(failed(client.acquire(b"k", LEASE, 0), UNAVAILABLE)));
    speaks.store(true, SeqCst);
    sleep(ms(1300));
    in_child(|| assert_eq!(number(&client.acquire(b"k", LEASE, 0)), OK));
    assert_eq!(number(&client.acquire(b"k", LEASE, 0)), OK);
}

// Signals.

#[test]
fn no_call_fails_for_a_signal() {
    let Some(server) = Server::start(&[]) else { return };
    let client = client(&server.url(""));
    in_child(|| {
        storm(Duration::from_micros(300));
        for _ in 0..3000 {
            pair(&client, "k");
        }
        assert!(ticks() > 100, "{} signals", ticks());
    });
    assert!(server.is_empty());
}

#[test]
fn no_wait_ends_for_a_signal() {
    let Some(server) = Server::start(&[]) else { return };
    let client = client(&server.url(""));
    let other = redis::client(&server.url(""));
    let held = hold(&other, "k", LEASE);
    let shared = Shared::new();
    let child = fork(|| {
        storm(ms(1));
        let (answer, took) = timed(|| client.acquire(b"k", LEASE, 300));
        assert!(number(&answer) == BUSY && took >= ms(300) && took < ms(300) + SLACK, "{answer:?} after {took:?}");
        shared.set(0, 1);
        release(&client, "k", &redis::held(client.acquire(b"k", LEASE, 5000)));
        assert!(ticks() > 100, "{} signals", ticks());
    });
    child.wait_for(&shared, 0, 1);
    sleep(ms(200));
    release(&other, "k", &held);
    child.join();
}

#[test]
fn a_stopped_server_is_given_up_in_time_under_signals() {
    let Some(server) = Server::start(&[]) else { return };
    let client = client(&server.url("breaker=off"));
    pair(&client, "k");
    server.pause();
    in_child(|| {
        storm(ms(1));
        for _ in 0..3 {
            let (answer, took) = timed(|| client.acquire(b"k", LEASE, 0));
            assert!(number(&answer) < 0 && took <= BUDGET + SLACK, "{answer:?} after {took:?}");
        }
    });
}

#[test]
fn a_run_that_is_interrupted_loses_nothing() {
    let Some(server) = Server::start(&[]) else { return };
    let client = client(&server.url(""));
    let other = redis::client(&server.url(""));
    let shared = Shared::new();
    let child = fork(|| {
        storm(ms(1));
        let (mut interruptions, mut round) = (0, 0);
        while interruptions < 1000 {
            round += 1;
            shared.set(0, round); // now the other takes it for a while
            shared.wait(1, round);
            let mut op = client.op_acquire(b"k", LEASE, 10_000).unwrap();
            while run(&mut op) == Run::Interrupted {
                interruptions += 1;
            }
            let held = match op.finish().unwrap() {
                Ok(Answer::Acquire(Acquire::Held(held))) => held,
                other => panic!("{other:?}"),
            };
            let mut op = client.op_release(b"k", &held.token.0);
            while run(&mut op) == Run::Interrupted {
                interruptions += 1;
            }
            assert!(matches!(op.finish().unwrap(), Ok(Answer::Verdict(Verdict::Ok))));
        }
        shared.set(2, 1);
    });
    let mut round = 0;
    while shared[2].load(SeqCst) == 0 {
        round += 1;
        while shared[0].load(SeqCst) < round && shared[2].load(SeqCst) == 0 {
            sleep(ms(1));
        }
        let held = hold(&other, "k", LEASE);
        shared.set(1, round);
        sleep(ms(100));
        release(&other, "k", &held);
    }
    child.join();
    assert!(server.get(&stored("k")).is_none());
}

#[test]
fn an_op_that_is_dropped_or_cancelled_gives_its_lock_back() {
    let Some(server) = Server::start(&[]) else { return };
    let client = client(&server.url(""));
    for cancel in [false, true] {
        for fetched in [false, true] {
            let mut op = client.op_acquire(b"k", LEASE, 0).unwrap();
            while run(&mut op) != Run::Done {}
            assert!(server.get(&stored("k")).is_some());
            if fetched {
                op.finish().unwrap().unwrap();
            }
            if cancel {
                op.cancel();
            }
            drop(op);
            pair(&client, "another"); // what is to be given back goes along with the next call
            assert_eq!(server.get(&stored("k")).is_some(), fetched);
            let _ = client.end_any(b"k");
        }
    }
    let held = hold(&client, "k", LEASE);
    drop(client.op_release(b"k", &held.token.0));
    pair(&client, "another");
    assert!(server.get(&stored("k")).is_none(), "a release that is dropped is done all the same");
    verdict(client.release(b"k", &held.token.0), Verdict::Expired);
}

// Limits of this process, and what a child has of its parent.

/// Of a child: all fds are in use.
fn without_fds() {
    let limit = libc::rlimit { rlim_cur: 0, rlim_max: 4096 };
    // SAFETY: a struct to read.
    assert_eq!(unsafe { libc::setrlimit(libc::RLIMIT_NOFILE, &raw const limit) }, 0);
}

fn own_limits(server: &Server) {
    let client = client(&server.url(""));
    in_child(|| {
        plant();
        without_fds();
        for _ in 0..5 {
            let text = failed(client.acquire(b"k", LEASE, 0), UNREACHABLE);
            assert!(text.contains("Too many open files"), "{text}");
        }
    });
    pair(&client, "k");
}

#[test]
fn own_limits_do_not_open_the_breaker() {
    let Some(server) = Server::start(&[]) else { return };
    own_limits(&server);
}

fn childs_connection(server: &Server) {
    let client = client(&server.url(""));
    pair(&client, "k");
    in_child(|| {
        plant();
        pair(&client, "k");
        assert_eq!(server.clients(), 2, "the parent's and the child's");
    });
    until("the child's is closed", || server.clients() <= 1);
    pair(&client, "k");
}

#[test]
fn a_child_has_a_connection_of_its_own() {
    let Some(server) = Server::start(&[]) else { return };
    childs_connection(&server);
}

#[cfg(buflock_test)]
static PLANTED: std::sync::Mutex<buflock::hooks::Mutant> = std::sync::Mutex::new(buflock::hooks::Mutant::None);

/// Of a child: plants the bug that is looked for.
fn plant() {
    #[cfg(buflock_test)]
    buflock::hooks::plant(*PLANTED.lock().expect("nobody has failed with it"));
}

#[test]
#[cfg(buflock_test)]
fn planted_bugs_are_found() {
    use buflock::hooks::Mutant;
    type Test = fn(&Server);
    let tests: [(Mutant, Test); 2] =
        [(Mutant::OwnLimitsOpen, own_limits), (Mutant::ChildKeepsConnections, childs_connection)];
    let Some(server) = Server::start(&[]) else { return };
    for (mutant, test) in tests {
        *PLANTED.lock().expect("nobody has failed with it") = mutant;
        let found = std::panic::catch_unwind(std::panic::AssertUnwindSafe(|| test(&server)));
        assert!(found.is_err(), "{mutant:?} is not found");
    }
}

// Networks that fail.

/// Takes this process's network away, or gives it back. Its own machine is all that there is in it.
fn network(up: bool) {
    // SAFETY: zero is a value of this plain struct.
    let mut request: libc::ifreq = unsafe { std::mem::zeroed() };
    for (place, byte) in request.ifr_name.iter_mut().zip(b"lo") {
        *place = byte.cast_signed();
    }
    request.ifr_ifru.ifru_flags = if up { libc::c_short::try_from(libc::IFF_UP).expect("a flag") } else { 0 };
    // SAFETY: a socket, and a struct to read; called in children with a network of their own.
    let answer = unsafe {
        let socket = libc::socket(libc::AF_INET, libc::SOCK_DGRAM, 0);
        let answer = libc::ioctl(socket, libc::SIOCSIFFLAGS, &raw const request);
        libc::close(socket);
        answer
    };
    assert_eq!(answer, 0, "{}", io::Error::last_os_error());
}

#[test]
fn a_network_that_is_gone_takes_no_lock_when_it_is_back() {
    if !root() || !may_unshare(libc::CLONE_NEWNET, "network") || Server::start(&[]).is_none() {
        return;
    }
    in_child(|| {
        unshare(libc::CLONE_NEWNET);
        network(true);
        let server = Server::start(&[]).expect("there is one");
        let client = client(&server.url("breaker=off"));
        pair(&client, "k");
        let held = hold(&client, "held", LEASE);
        network(false);
        for _ in 0..2 {
            let (answer, took) = timed(|| client.acquire(b"k", LEASE, 0));
            assert!(number(&answer) < 0 && took <= BUDGET + SLACK, "{answer:?} after {took:?}");
            let (answer, took) = timed(|| client.extend(b"held", &held.token.0, LEASE));
            assert!(number(&answer) < 0 && took <= BUDGET + SLACK, "{answer:?} after {took:?}");
        }
        network(true);
        // What the kernel had still to send would arrive within seconds.
        for _ in 0..25 {
            assert!(server.get(&stored("k")).is_none(), "a lock that nobody holds");
            sleep(ms(100));
        }
        release(&client, "held", &held);
        pair(&client, "k");
    });
}

/// Ends a connection here alone: the other end is told nothing.
fn forget(stream: TcpStream) {
    let on = 1i32;
    let size = libc::socklen_t::try_from(size_of_val(&on)).expect("4");
    // SAFETY: a socket, and a number to read.
    let answer =
        unsafe { libc::setsockopt(stream.as_raw_fd(), libc::SOL_TCP, libc::TCP_REPAIR, (&raw const on).cast(), size) };
    assert_eq!(answer, 0, "{}", io::Error::last_os_error());
    drop(stream);
}

#[test]
fn a_half_open_connection_costs_no_error() {
    if !root() || !may_unshare(libc::CLONE_NEWNET, "network") {
        return;
    }
    in_child(|| {
        unshare(libc::CLONE_NEWNET);
        network(true);
        let listener = TcpListener::bind("127.0.0.1:0").expect("a port");
        let client = client(&redis::url(listener.local_addr().expect("bound").port(), ""));
        std::thread::scope(|scope| {
            let serve = || {
                let (mut stream, _) = listener.accept().expect("a client");
                for reply in [":0\r\n", ":1\r\n"] {
                    assert!(stream.read(&mut [0; 4096]).expect("a command") > 0);
                    stream.write_all(reply.as_bytes()).expect("sent");
                }
                stream
            };
            let first = scope.spawn(serve);
            pair(&client, "k");
            forget(first.join().expect("served"));
            let second = scope.spawn(serve);
            let ((), took) = timed(|| pair(&client, "k"));
            assert!(took < SLACK, "{took:?}");
            second.join().expect("served over a new connection");
        });
    });
}

#[test]
fn a_name_that_is_not_resolved_is_not_waited_for() {
    if !root() || !may_unshare(libc::CLONE_NEWNS | libc::CLONE_NEWNET, "network") {
        return;
    }
    let dir = common::Dir::new("dns");
    let conf = dir.path().join("resolv.conf");
    std::fs::write(&conf, "nameserver 127.0.0.1\noptions timeout:5 attempts:2\n").unwrap();
    in_child(|| {
        own_mounts();
        unshare(libc::CLONE_NEWNET);
        network(true);
        mount(Some(&conf), std::path::Path::new("/etc/resolv.conf"), None, libc::MS_BIND, "");
        let _mute = std::net::UdpSocket::bind("127.0.0.1:53").expect("a port");
        let client = client("redis://redis.example.org:6379?breaker=off");
        for _ in 0..3 {
            let (answer, took) = timed(|| client.acquire(b"k", LEASE, 0));
            let text = failed(answer, UNREACHABLE);
            assert!(took <= BUDGET + SLACK, "{took:?}");
            assert!(text.contains("redis.example.org"), "{text}");
        }
    });
}
