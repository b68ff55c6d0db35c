//! Beside a Perl program that has its own lock on the same keys, with each of Perl's two clients.

#[path = "../common/mod.rs"]
mod common;
#[path = "../common/process.rs"]
mod process;
#[path = "../common/redis/mod.rs"]
mod redis;

use buflock::answer::{Acquire, Answer, Verdict};
use buflock::client::Client;
use buflock::error::Error;
use buflock::op::Op;
use buflock::redis::wire::Reply;
use buflock::step::Step;
use process::skip;
use redis::{Fault, Proxy, SLACK, Server, UNCERTAIN, client, hold, ms, pair, release, status, verdict};
use std::io::{BufRead, BufReader, Write};
use std::process::{Child, ChildStdin, ChildStdout, Command, Stdio};
use std::time::{Duration, Instant};

const CLASSES: [&str; 2] = ["Redis", "Redis::Fast"];
const LEASE: u32 = 20_000;

/// A Perl program.
struct Peer {
    child: Child,
    input: ChildStdin,
    output: BufReader<ChildStdout>,
}

impl Peer {
    /// With this client, on this port. `format`: of stored keys, with `%s` for the digest.
    fn new(class: &str, port: u16, format: &str, credentials: &[&str]) -> Self {
        let script = concat!(env!("CARGO_MANIFEST_DIR"), "/tests/interop/peer.pl");
        let mut command = Command::new("perl");
        command.args([script, class, &port.to_string(), format]).args(credentials);
        let mut child = command.stdin(Stdio::piped()).stdout(Stdio::piped()).spawn().expect("perl");
        let (input, output) = (child.stdin.take().expect("piped"), child.stdout.take().expect("piped"));
        Self { child, input, output: BufReader::new(output) }
    }

    fn ask(&mut self, line: &str) -> String {
        writeln!(self.input, "{line}").expect("it reads");
        let mut answer = String::new();
        self.output.read_line(&mut answer).expect("it answers");
        assert!(answer.ends_with('\n'), "the peer has ended: see its words above");
        answer.trim_end().into()
    }

    /// A try. The token, if it was free.
    fn acquire(&mut self, key: &[u8], ttl_ms: u32) -> Option<String> {
        let answer = self.ask(&format!("acquire {} {ttl_ms}", hex(key)));
        match answer.split_once(' ') {
            Some(("held", token)) => Some(token.into()),
            None if answer == "busy" => None,
            _ => panic!("{answer}"),
        }
    }

    fn hold(&mut self, key: &[u8], ttl_ms: u32) -> String {
        self.acquire(key, ttl_ms).expect("it is free")
    }

    fn release(&mut self, key: &[u8], token: &str) {
        assert_eq!(self.ask(&format!("release {} {token}", hex(key))), "ok");
    }

    /// Carries a command of an op's, as its Step says.
    fn carry(&mut self, op: &mut Op, count: u32) -> Result<(), Error> {
        let arguments: Vec<_> =
            (0..count as usize).map(|index| hex(op.argument(index).expect("one of them"))).collect();
        let answer = self.ask(&format!("call {}", arguments.join(" ")));
        match answer.split_once(' ').unwrap_or((&answer, "")) {
            ("text", text) => op.reply(&Reply::Text(unhex(text))),
            ("error", why) => op.fail(why),
            ("nil", _) => op.reply(&Reply::Nil),
            _ => panic!("{answer}"),
        }
    }
}

impl Drop for Peer {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

fn hex(bytes: &[u8]) -> String {
    if bytes.is_empty() { "-".into() } else { bytes.iter().map(|byte| format!("{byte:02x}")).collect() }
}

fn unhex(text: &str) -> Vec<u8> {
    let digit = |digit: u8| u8::try_from((digit as char).to_digit(16).expect("hex")).expect("below 16");
    text.as_bytes().chunks_exact(2).map(|pair| digit(pair[0]) << 4 | digit(pair[1])).collect()
}

/// A server, if there are all that speak to it.
fn start() -> Option<Server> {
    let modules = Command::new("perl").args(["-MRedis", "-MRedis::Fast", "-e", "1"]).stderr(Stdio::null()).status();
    if !modules.is_ok_and(|status| status.success()) {
        skip("no Perl with Redis and Redis::Fast (packages libredis-perl, libredis-fast-perl)");
        return None;
    }
    Server::start(&[])
}

fn is_busy(client: &Client, key: &[u8]) -> bool {
    match client.acquire(key, LEASE, 0) {
        Ok(Acquire::Busy(_)) => true,
        Ok(Acquire::Held(held)) => {
            verdict(client.release(key, &held.token.0), Verdict::Ok);
            false
        }
        Err(error) => panic!("{error}"),
    }
}

fn keys() -> Vec<Vec<u8>> {
    let texts = ["", "page 42", "naïve Überschrift", "ключ", "🔒 emoji 👩‍👩‍👧", "{braces}", "line\r\nbreak\0"];
    let mut keys: Vec<_> = texts.map(|text| text.as_bytes().to_vec()).into();
    keys.push("é".repeat(1 << 19).into_bytes());
    keys
}

/// All that the two have to agree about.
fn live_together(server: &Server, peer: &mut Peer, ours: &Client, late: Duration, name: impl Fn(&[u8]) -> Vec<u8>) {
    for key in keys() {
        let token = peer.hold(&key, LEASE);
        let theirs = server.keys();
        assert_eq!(server.get(&theirs[0]).unwrap(), token.as_bytes());
        let name = name(&key);
        assert!(is_busy(ours, &name));
        verdict(ours.release(&name, &[b'a'; 32]), Verdict::Taken);
        verdict(ours.extend(&name, &[b'a'; 32], LEASE), Verdict::Taken);
        peer.release(&key, &token);
        let held = redis::held(ours.acquire(&name, LEASE, 0));
        assert_eq!(server.keys(), theirs, "not stored under the same key");
        assert_eq!(server.get(&theirs[0]).unwrap(), held.token.0);
        assert_eq!(peer.acquire(&key, LEASE), None);
        peer.release(&key, &token); // late, and it touches nothing
        assert_eq!(server.get(&theirs[0]).unwrap(), held.token.0);
        verdict(ours.release(&name, &held.token.0), Verdict::Ok);
        assert!(server.is_empty());
    }
    leases(peer, ours, late, &name(b"k"));
}

/// `late`: how long after its end a dead holder may be taken over.
fn leases(peer: &mut Peer, ours: &Client, late: Duration, name: &[u8]) {
    let dead = peer.hold(b"k", 150);
    let begin = Instant::now();
    let held = redis::held(ours.acquire(name, LEASE, 5000)); // who is dead sends no signal
    assert!(begin.elapsed() < ms(150) + late, "{:?}", begin.elapsed());
    peer.release(b"k", &dead);
    verdict(ours.extend(name, &held.token.0, LEASE), Verdict::Ok);
    verdict(ours.release(name, &held.token.0), Verdict::Ok);
    let late = redis::held(ours.acquire(name, 20, 0));
    redis::until("it ends", || !is_busy(ours, name));
    let token = peer.hold(b"k", LEASE);
    verdict(ours.release(name, &late.token.0), Verdict::Taken);
    verdict(ours.extend(name, &late.token.0, LEASE), Verdict::Taken);
    assert!(is_busy(ours, name));
    std::thread::scope(|scope| {
        let waits = scope.spawn(|| redis::held(ours.acquire(name, LEASE, 5000)));
        std::thread::sleep(ms(60));
        peer.release(b"k", &token);
        let held = waits.join().unwrap();
        assert!(held.waited_ms < 700, "{held:?}"); // a release of theirs wakes nobody
        verdict(ours.release(name, &held.token.0), Verdict::Ok);
    });
}

#[test]
fn each_excludes_the_other() {
    let Some(server) = start() else { return };
    let with_fences = !server.is_before(3, 2, "there are no fences");
    for class in CLASSES {
        let mut peer = Peer::new(class, server.port(), "app:%s", &[]);
        let options = ["namespace=app:", "namespace=app:&label=host:1", "namespace=app:&fencing=on"];
        for options in &options[..if with_fences { 3 } else { 2 }] {
            server.tell("FLUSHALL");
            if options.len() > "namespace=app:".len() {
                leases(&mut peer, &client(&server.url(options)), SLACK, b"k");
            } else {
                live_together(&server, &mut peer, &client(&server.url(options)), SLACK, <[u8]>::to_vec);
            }
        }
    }
}

#[test]
fn stored_keys_with_a_hash_tag() {
    let Some(server) = start() else { return };
    for class in CLASSES {
        server.tell("FLUSHALL");
        let mut peer = Peer::new(class, server.port(), "{app:}%s", &[]);
        let ours = client(&server.url("key=raw"));
        live_together(&server, &mut peer, &ours, SLACK, |key| redis::stored_in("{app:}", key));
    }
}

#[test]
fn under_the_few_rights_that_the_peer_needs() {
    let Some(server) = start() else { return };
    if server.is_before(6, 0, "there are no users") {
        return;
    }
    server.tell("ACL SETUSER bob on >secret ~app:* -@all +set +get +del +eval");
    for class in CLASSES {
        server.tell("FLUSHALL");
        let mut peer = Peer::new(class, server.port(), "app:%s", &["bob", "secret"]);
        let ours = client(&server.url("namespace=app:&user=bob&password=secret"));
        // When the holder's lease ends cannot be asked: the longest step, and a quarter of it.
        let late = ms(125) + SLACK;
        live_together(&server, &mut peer, &ours, late, <[u8]>::to_vec);
    }
}

/// Lets the peer carry an op to its end.
fn carried(peer: &mut Peer, mut op: Op) -> Result<Answer, Error> {
    loop {
        match op.next() {
            Step::Call { count, .. } => peer.carry(&mut op, count).expect("it was asked for"),
            Step::Sleep { ms } => std::thread::sleep(redis::ms(ms.into())),
            Step::Done { .. } => return op.finish().expect("it is done"),
            other => panic!("{other:?}"),
        }
    }
}

fn take(peer: &mut Peer, ours: &Client, key: &[u8]) -> Result<Answer, Error> {
    carried(peer, ours.op_acquire(key, LEASE, 0).unwrap())
}

#[test]
fn a_peer_carries_our_commands() {
    let Some(server) = start() else { return };
    let direct = client(&server.url(""));
    for class in CLASSES {
        let mut peer = Peer::new(class, server.port(), "%s", &[]);
        let ours = client("redis:");
        let Ok(Answer::Acquire(Acquire::Held(held))) = take(&mut peer, &ours, b"k") else { panic!("it is free") };
        assert!(is_busy(&direct, b"k"));
        assert!(matches!(take(&mut peer, &ours, b"k"), Ok(Answer::Acquire(Acquire::Busy(_)))));
        let answer = carried(&mut peer, ours.op_extend(b"k", &held.token.0, 2 * LEASE).unwrap());
        assert!(matches!(answer, Ok(Answer::Verdict(Verdict::Ok))), "{answer:?}");
        for want in [Verdict::Ok, Verdict::Expired] {
            let answer = carried(&mut peer, ours.op_release(b"k", &held.token.0));
            assert!(matches!(answer, Ok(Answer::Verdict(verdict)) if verdict == want), "{answer:?}");
        }
        pair(&direct, "k");
    }
}

/// The peer gives up what it asks next, and its client's reply comes later.
fn give_up(proxy: &Proxy, peer: &mut Peer, ask: impl FnOnce(&mut Peer)) {
    proxy.at("EVAL", Fault::Delay(ms(600)));
    assert_eq!(peer.ask("hurry 150"), "ok");
    ask(peer);
    assert_eq!(peer.ask("hurry 0"), "ok");
    std::thread::sleep(ms(700));
}

#[test]
fn a_stale_reply_is_taken_for_a_lock_by_the_peer_and_not_by_us() {
    let Some(server) = start() else { return };
    let direct = client(&server.url(""));
    let theirs = hold(&direct, "theirs", LEASE);
    let proxy = Proxy::new(server.port());

    // The peer believes that it holds what another holds.
    let mut peer = Peer::new("Redis", proxy.port(), "buflock:%s", &[]);
    give_up(&proxy, &mut peer, |peer| {
        assert!(peer.ask(&format!("acquire {} 300", hex(b"slow"))).contains("too slow"));
    });
    assert!(peer.acquire(b"theirs", LEASE).is_some(), "Redis.pm has learnt to drop what is stale");
    assert_eq!(server.get(&redis::stored("theirs")).unwrap(), theirs.token.0);

    // Carried by the same client in the same way, ours never do.
    let ours = client("redis:");
    let mut peer = Peer::new("Redis", proxy.port(), "buflock:%s", &[]);
    give_up(&proxy, &mut peer, |peer| {
        assert_eq!(take(peer, &ours, b"slow").map_err(|error| status(&error)).unwrap_err(), UNCERTAIN);
    });
    for _ in 0..3 {
        // The client is one reply behind, for ever.
        let answer = take(&mut peer, &ours, b"theirs");
        assert_eq!(answer.map_err(|error| status(&error)).unwrap_err(), UNCERTAIN);
    }
    let answer = carried(&mut peer, ours.op_release(b"theirs", &theirs.token.0));
    assert_eq!(answer.map_err(|error| status(&error)).unwrap_err(), UNCERTAIN);
    let answer = carried(&mut peer, ours.op_extend(b"theirs", &theirs.token.0, LEASE).unwrap());
    assert_eq!(answer.map_err(|error| status(&error)).unwrap_err(), UNCERTAIN);
}

#[test]
fn a_stale_reply_releases_nothing_and_extends_nothing() {
    let Some(server) = start() else { return };
    let direct = client(&server.url(""));
    let proxy = Proxy::new(server.port());
    let ours = client("redis:");
    let mut peer = Peer::new("Redis", proxy.port(), "%s", &[]);
    let mine = hold(&direct, "mine", LEASE);
    // Late is the OK to an extend; what follows is the same extend, after the lock was lost.
    give_up(&proxy, &mut peer, |peer| {
        carried(peer, ours.op_extend(b"mine", &mine.token.0, LEASE).unwrap()).expect_err("too slow");
    });
    release(&direct, "mine", &mine);
    let answer = carried(&mut peer, ours.op_extend(b"mine", &mine.token.0, LEASE).unwrap());
    assert_eq!(answer.map_err(|error| status(&error)).unwrap_err(), UNCERTAIN);
    let mut peer = Peer::new("Redis", proxy.port(), "%s", &[]);
    let mine = hold(&direct, "mine", LEASE);
    give_up(&proxy, &mut peer, |peer| {
        carried(peer, ours.op_release(b"mine", &mine.token.0)).expect_err("too slow");
    });
    let mine = hold(&direct, "mine", LEASE);
    let answer = carried(&mut peer, ours.op_release(b"mine", &mine.token.0));
    assert_eq!(answer.map_err(|error| status(&error)).unwrap_err(), UNCERTAIN);
    redis::until("it is released: it was sent all the same", || server.get(&redis::stored("mine")).is_none());
}
