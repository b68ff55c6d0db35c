//! What the tests of the Redis backend stand on: servers of their own, and faults made to order.

mod common;
#[path = "common/process.rs"]
mod process;
#[path = "common/redis/mod.rs"]
mod redis;

use redis::resp::{Messages, command, parse};
use redis::{Blackhole, Fake, Fault, Proxy, Raw, Reply, Server, ms, timed, within};
use std::io;
use std::net::{Ipv4Addr, TcpStream};
use std::time::Duration;

fn connect(port: u16) -> Raw {
    Raw::new(TcpStream::connect((Ipv4Addr::LOCALHOST, port)).unwrap())
}

fn kind(result: io::Result<Reply>) -> io::ErrorKind {
    result.expect_err("no reply").kind()
}

#[test]
fn messages_come_whole_wherever_they_are_cut() {
    let all = [b"+OK\r\n:-3\r\n$-1\r\n".to_vec(), command(&["SET", "", "a\r\nb"]), b"-OOM no\r\n".to_vec()].concat();
    for cut in 0..=all.len() {
        let mut messages = Messages::default();
        let mut got = Vec::new();
        for mut part in [&all[..cut], &all[cut..]] {
            let _ = messages.read(&mut part);
            while let Some((message, bytes)) = messages.next() {
                assert_eq!(parse(&bytes), Some((message.clone(), bytes.len())));
                got.push(message);
            }
        }
        let bulk = |text: &str| Reply::Bulk(text.into());
        assert_eq!(got[..3], [Reply::Simple("OK".into()), Reply::Int(-3), Reply::Nil]);
        assert_eq!(got[3], Reply::List(vec![bulk("SET"), bulk(""), bulk("a\r\nb")]));
        assert_eq!(got[4], Reply::Error("OOM no".into()));
    }
}

#[test]
fn a_server_starts_stops_and_starts_again() {
    let Some(server) = Server::start(&[]) else { return };
    server.tell("SET k v PX 10000");
    assert_eq!(server.get(b"k").as_deref(), Some(&b"v"[..]));
    assert!((9000..=10_000).contains(&server.pttl(b"k")));
    assert_eq!(server.keys(), [b"k"]);
    server.pause();
    let mut raw = server.raw_tcp();
    raw.send(&["PING"]);
    std::thread::sleep(ms(50));
    server.resume();
    assert_eq!(raw.receive().unwrap().text(), "PONG");
    assert_eq!(server.clients(), 1);
    assert_eq!(server.calls("ping"), 2, "one when it was started");
    server.restart();
    assert!(server.is_empty());
    assert_eq!(server.pttl(b"k"), -2);
}

#[test]
fn a_monitor_sees_all() {
    let Some(server) = Server::start(&[]) else { return };
    let mut monitor = server.monitor();
    server.tell("SET k v");
    server.ask(&["EVAL", "return redis.call('GET', KEYS[1])", "1", "k"]);
    let lines = monitor.lines(&server);
    assert_eq!(lines[0], r#""SET" "k" "v""#);
    assert_eq!(lines[2], r#""GET" "k""#);
    assert!(monitor.lines(&server).is_empty());
}

#[test]
fn a_proxy_passes_everything() {
    let Some(server) = Server::start(&[]) else { return };
    let proxy = Proxy::new(server.port());
    let mut raw = connect(proxy.port());
    let long = "x".repeat(1 << 20);
    assert_eq!(raw.ask(&["ECHO", &long]), Reply::Bulk(long.into()));
    for _ in 0..3 {
        raw.send(&["PING"]);
    }
    for _ in 0..3 {
        assert_eq!(raw.receive().unwrap().text(), "PONG");
    }
    assert_eq!(proxy.seen(), ["ECHO", "PING", "PING", "PING"]);
    assert_eq!(proxy.connections(), 1);
}

#[test]
fn a_proxy_makes_each_fault() {
    let Some(server) = Server::start(&[]) else { return };
    let proxy = Proxy::new(server.port());
    let ask = |fault: Fault, raw: &mut Raw| {
        proxy.at("INCR", fault);
        let reply = raw.try_ask(&["INCR", "count"]);
        assert!(proxy.heal());
        reply
    };
    let fresh = || connect(proxy.port());
    let silent = |fault| {
        proxy.at("INCR", fault);
        let mut raw = fresh();
        raw.send(&["INCR", "count"]);
        raw.send(&["PING"]);
        raw
    };
    assert_eq!(kind(ask(Fault::Cut(2), &mut fresh())), io::ErrorKind::ConnectionReset);
    assert_eq!(kind(ask(Fault::CutRequest(9), &mut fresh())), io::ErrorKind::ConnectionReset);
    assert_eq!(kind(ask(Fault::Close, &mut fresh())), io::ErrorKind::UnexpectedEof);
    let (reply, took) = timed(|| ask(Fault::Delay(ms(60)), &mut fresh()));
    assert!(reply.unwrap() == Reply::Int(3) && took >= ms(60));
    let (reply, took) = timed(|| ask(Fault::Trickle(ms(20)), &mut fresh()));
    assert!(reply.unwrap() == Reply::Int(4) && took >= ms(60));
    assert_eq!(ask(Fault::Instead(b"+no\r\n".to_vec()), &mut fresh()).unwrap().text(), "no");
    let mut raw = fresh();
    assert_eq!(ask(Fault::Surplus(b":7\r\n".to_vec()), &mut raw).unwrap(), Reply::Int(6));
    assert_eq!(raw.receive().unwrap(), Reply::Int(7));
    let all_seen = || redis::until("all was seen", || proxy.seen().last().is_some_and(|last| last == "PING"));
    proxy.seen();
    let _swallowed = silent(Fault::Swallow);
    all_seen();
    redis::until("it was counted", || server.get(b"count").unwrap() == b"7");
    let _lost = silent(Fault::LoseRequest);
    all_seen();
    assert_eq!(server.get(b"count").unwrap(), b"7", "a request that is cut or lost is not served");
    assert!(proxy.heal());
}

#[test]
fn a_fake_answers_what_it_is_told() {
    let fake = Fake::scripted(&[b"+one\r\n", b"+two\r\n"]);
    let port = fake.url("").rsplit(':').next().unwrap().parse().unwrap();
    assert_eq!([connect(port).ask(&["A"]).text(), connect(port).ask(&["B"]).text()], ["one", "two"]);
    assert_eq!(connect(port).ask(&["C"]).text(), "two");
    assert_eq!(fake.connections(), 3);
}

#[test]
fn nothing_hangs_at_the_end() {
    let Some(server) = Server::start(&[]) else { return };
    within(Duration::from_secs(2), || {
        let proxy = Proxy::new(server.port());
        let mut raw = connect(proxy.port());
        raw.ask(&["PING"]);
        proxy.always(Fault::Delay(Duration::from_secs(60)));
        raw.send(&["PING"]);
        let _silent = connect(proxy.port());
    });
}

#[test]
fn a_blackhole_takes_nobody() {
    let hole = Blackhole::new();
    let port: u16 = hole.url("").rsplit(':').next().unwrap().parse().unwrap();
    let answer = TcpStream::connect_timeout(&(Ipv4Addr::LOCALHOST, port).into(), ms(100));
    assert_eq!(answer.unwrap_err().kind(), io::ErrorKind::TimedOut);
}
