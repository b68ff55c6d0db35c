//! `rediss://`: who is trusted, what is refused, and that no time limit, signal or fork fares worse than without TLS.

mod common;
#[path = "common/process.rs"]
mod process;
#[path = "common/redis/mod.rs"]
mod redis;

use buflock::answer::{Acquire, Answer, Await, Verdict};
use buflock::client::Client;
use buflock::op::Run;
use common::Dir;
use process::{Shared, fork, in_child, skip, storm, ticks};
use redis::resp::Messages;
use redis::server::free_port;
use redis::{
    BUDGET, BUSY, CONFIG, REFUSED, SLACK, Server, UNCERTAIN, UNREACHABLE, client, failed, held, hold, ms, number, pair,
    release, stored, timed, until, verdict,
};
use rustls::pki_types::pem::PemObject;
use rustls::pki_types::{CertificateDer, PrivateKeyDer};
use rustls::{ServerConfig, ServerConnection};
use std::fs;
use std::io::{self, Read, Write};
use std::net::{Ipv4Addr, TcpListener, TcpStream};
use std::path::PathBuf;
use std::process::{Command, Stdio};
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering::SeqCst};
use std::thread::sleep;
use std::time::Duration;

const LEASE: u32 = 20_000;

// Certificates of a test's own.

struct Issuer(Dir);

impl Issuer {
    /// None: there is no openssl, and the test is to be skipped.
    fn new() -> Option<Self> {
        if Command::new("openssl").arg("version").stdout(Stdio::null()).status().is_err() {
            skip("there is no openssl (package openssl)");
            return None;
        }
        let issuer = Self(Dir::new("tls"));
        issuer.make_ca("ca");
        Some(issuer)
    }

    fn path(&self, name: &str) -> PathBuf {
        self.0.path().join(name)
    }

    fn text(&self, name: &str) -> String {
        self.path(name).to_str().expect("UTF-8").to_owned()
    }

    fn openssl(&self, line: &str) {
        let output = Command::new("openssl").args(line.split(' ')).current_dir(self.0.path()).output().expect("a tool");
        assert!(output.status.success(), "openssl {line}: {}", String::from_utf8_lossy(&output.stderr));
    }

    /// An issuer's certificate, which may sign others.
    fn make_ca(&self, name: &str) {
        let key = "-newkey ec -pkeyopt ec_paramgen_curve:P-256 -nodes";
        self.openssl(&format!("req -x509 {key} -keyout {name}.key -out {name}.pem -days 2 -subj /CN={name}"));
    }

    /// A server's certificate for these names, as `DNS:localhost,IP:127.0.0.1`.
    fn make(&self, name: &str, names: &str, days: i32) {
        let key = "-newkey ec -pkeyopt ec_paramgen_curve:P-256 -nodes";
        self.openssl(&format!("req {key} -keyout {name}.key -out {name}.csr -subj /CN=server"));
        fs::write(self.path("extensions"), format!("subjectAltName={names}\n")).expect("written");
        let sign = "-CA ca.pem -CAkey ca.key -CAcreateserial -extfile extensions";
        self.openssl(&format!("x509 -req -in {name}.csr {sign} -days {days} -out {name}.pem"));
    }
}

/// A server that speaks TLS and nothing else over TCP.
struct Tls {
    server: Server,
    port: u16,
    issuer: Issuer,
}

impl Tls {
    /// With the usual certificate.
    fn start() -> Option<Self> {
        Self::with("IP:127.0.0.1,DNS:localhost", 2, &[])
    }

    fn with(names: &str, days: i32, args: &[&str]) -> Option<Self> {
        let issuer = Issuer::new()?;
        issuer.make("server", names, days);
        let (server, port) = serve(&issuer, "server", args)?;
        Some(Self { server, port, issuer })
    }

    fn url(&self, options: &str) -> String {
        url(self.port, &self.issuer, options)
    }

    fn client(&self, options: &str) -> Client {
        client(&self.url(options))
    }

    fn connections(&self) -> u64 {
        self.server.info("total_connections_received")
    }
}

fn serve(issuer: &Issuer, name: &str, args: &[&str]) -> Option<(Server, u16)> {
    let port = free_port();
    let (tls_port, certificate, key) =
        (port.to_string(), issuer.text(&format!("{name}.pem")), issuer.text(&format!("{name}.key")));
    let ca = issuer.text("ca.pem");
    let mut all = vec!["--port", "0", "--tls-port", &tls_port, "--tls-cert-file", &certificate, "--tls-key-file", &key];
    all.extend(["--tls-ca-cert-file", &ca, "--tls-auth-clients", "no"]);
    all.extend(args);
    Some((Server::start(&all)?, port))
}

fn url(port: u16, issuer: &Issuer, options: &str) -> String {
    format!("rediss://127.0.0.1:{port}?ca_file={}&{options}", issuer.text("ca.pem"))
}

fn try_acquire(url: &str) -> Result<Acquire, buflock::error::Error> {
    client(url).acquire(b"k", LEASE, 0)
}

/// Fails unless connecting does, with this reason.
fn refused(url: &str, why: &str) {
    let (answer, took) = timed(|| try_acquire(url));
    let text = failed(answer, UNREACHABLE);
    assert!(text.starts_with("rediss://") && text.contains("connecting failed: ") && text.contains(why), "{text}");
    assert!(!text.contains("geheim"), "{text}");
    assert!(took <= BUDGET + SLACK, "{took:?}");
}

// What works.

#[test]
fn all_that_a_lock_can_do_is_done_over_tls() {
    let Some(tls) = Tls::start() else { return };
    tls.server.tell("ACL SETUSER locker on >geheim ~* +@all");
    tls.server.tell("ACL SETUSER default off");
    let ca = tls.issuer.text("ca.pem");
    for host in ["127.0.0.1", "localhost"] {
        let url = format!("rediss://locker:geheim@{host}:{}/3?ca_file={ca}&fencing=on", tls.port);
        let (first, second) = (client(&url), client(&url));
        let one = hold(&first, "k", LEASE);
        assert!(one.fence > 0);
        verdict(first.extend(b"k", &one.token.0, LEASE), Verdict::Ok);
        assert_eq!(number(&second.acquire(b"k", LEASE, 0)), BUSY);
        assert!(second.inspect(b"k").unwrap().is_some());
        std::thread::scope(|scope| {
            let awaits = scope.spawn(|| timed(|| second.wait_for_end(b"k", 5000)));
            let waits = scope.spawn(|| timed(|| second.acquire(b"k", LEASE, 5000)));
            sleep(ms(100));
            release(&first, "k", &one);
            let (answer, took) = awaits.join().unwrap();
            assert!(matches!(answer, Ok(Await::Over)) && took < ms(300), "{answer:?} after {took:?}");
            let (answer, took) = waits.join().unwrap();
            let two = held(answer);
            assert!(two.fence > one.fence && took < ms(300), "{took:?}");
            release(&second, "k", &two);
        });
        pair(&first, &"long key ".repeat(20_000));
    }
    let url = format!("rediss://locker:falsch@127.0.0.1:{}?ca_file={ca}", tls.port);
    assert!(failed(try_acquire(&url), REFUSED).contains("WRONGPASS"));
}

#[test]
fn an_older_tls_will_do() {
    let Some(tls) = Tls::with("IP:127.0.0.1", 2, &["--tls-protocols", "TLSv1.2"]) else { return };
    let client = tls.client("");
    pair(&client, "k");
    tls.server.tell("CLIENT KILL TYPE normal SKIPME yes");
    pair(&client, "k");
}

#[test]
fn a_session_is_resumed() {
    let Some(tls) = Tls::start() else { return };
    let relay = Relay::new(tls.port, usize::MAX);
    let client = client(&url(relay.port, &tls.issuer, ""));
    let mut came = Vec::new();
    for _ in 0..3 {
        let before = relay.came();
        pair(&client, "k");
        came.push(relay.came() - before);
        tls.server.tell("CLIENT KILL TYPE normal SKIPME yes");
        sleep(ms(20));
    }
    // The certificate is not sent again.
    assert!(came[1] + 300 < came[0] && came[2] + 300 < came[0], "bytes from the server: {came:?}");
}

// Who is trusted.

#[test]
fn certificates_that_prove_nothing_are_refused() {
    let Some(tls) = Tls::with("DNS:localhost,DNS:b.example", 2, &[]) else { return };
    refused(&tls.url("password=geheim"), "certificate not valid for name 127.0.0.1, but for localhost, b.example");
    tls.issuer.make_ca("other");
    let by_name = |ca: &str| format!("rediss://localhost:{}?ca_file={}", tls.port, tls.issuer.text(ca));
    refused(&by_name("other.pem"), "unknown issuer");
    pair(&client(&by_name("ca.pem")), "k");
    // One of several issuers is enough.
    let both = ["other.pem", "ca.pem"].map(|name| fs::read_to_string(tls.issuer.path(name)).unwrap()).concat();
    fs::write(tls.issuer.path("both.pem"), format!("some words\n{both}")).unwrap();
    pair(&client(&by_name("both.pem")), "k");
}

#[test]
fn a_number_must_be_in_the_certificate() {
    let Some(tls) = Tls::with("IP:127.0.0.2,DNS:127.0.0.1", 2, &[]) else { return };
    refused(&tls.url(""), "certificate not valid for name 127.0.0.1");
}

#[test]
fn an_expired_certificate_is_refused() {
    let Some(tls) = Tls::with("IP:127.0.0.1", -1, &[]) else { return };
    refused(&tls.url(""), "certificate expired");
}

#[test]
fn the_certificate_of_an_issuer_is_no_servers() {
    let Some(issuer) = Issuer::new() else { return };
    let Some((_server, port)) = serve(&issuer, "ca", &[]) else { return };
    refused(&url(port, &issuer, ""), "certificate of an issuer (CA:TRUE), not of a server");
    // One that is nobody's issuer may be trusted by itself.
    let about = "-addext basicConstraints=critical,CA:FALSE -addext subjectAltName=IP:127.0.0.1";
    let key = "-newkey ec -pkeyopt ec_paramgen_curve:P-256 -nodes";
    issuer.openssl(&format!("req -x509 {key} -keyout own.key -out own.pem -days 2 -subj /CN=own {about}"));
    let Some((_server, port)) = serve(&issuer, "own", &[]) else { return };
    pair(&client(&url(port, &issuer, "").replace("ca.pem", "own.pem")), "k");
}

#[test]
fn a_server_that_wants_a_certificate_of_ours_says_so() {
    let Some(tls) = Tls::with("IP:127.0.0.1", 2, &["--tls-auth-clients", "yes"]) else { return };
    let (answer, took) = timed(|| try_acquire(&tls.url("")));
    // The handshake is over for us when that comes, and the command is sent.
    let text = failed(answer, UNCERTAIN);
    assert!(text.contains("tls-auth-clients no"), "{text}");
    assert!(took <= BUDGET + SLACK, "{took:?}");
}

#[test]
fn a_bad_ca_file_is_named() {
    let Some(tls) = Tls::start() else { return };
    let path = tls.issuer.path("bad.pem");
    let url = format!("rediss://127.0.0.1:{}?ca_file={}", tls.port, path.display());
    let client = client(&url);
    let says = |why: &str| {
        let text = failed(client.acquire(b"k", LEASE, 0), CONFIG);
        assert!(text.starts_with(&format!("ca_file {}: ", path.display())) && text.contains(why), "{text}");
    };
    says("No such file");
    fs::create_dir(&path).unwrap();
    says("must be a file");
    fs::remove_dir(&path).unwrap();
    for (content, why) in [
        ("", "there is no certificate in it"),
        ("no PEM\n", "there is no certificate in it"),
        ("-----BEGIN CERTIFICATE-----\n!\n-----END CERTIFICATE-----\n", "certificate 1 in it cannot be read"),
        ("-----BEGIN CERTIFICATE-----\nAAAA\n-----END CERTIFICATE-----\n", "certificate 1 in it cannot be read"),
        ("-----BEGIN CERTIFICATE-----\nAAAA\n", "certificate 1 in it cannot be read"),
    ] {
        fs::write(&path, content).unwrap();
        says(why);
    }
    assert_eq!(tls.connections(), 1, "none but this test's own: it is read before anything is connected");
    // Once it is right, the same handle works; and then it is not read again.
    fs::copy(tls.issuer.path("ca.pem"), &path).unwrap();
    pair(&client, "k");
    fs::remove_file(&path).unwrap();
    tls.server.tell("CLIENT KILL TYPE normal SKIPME yes");
    pair(&client, "k");
}

#[test]
fn with_a_ca_file_the_systems_certificates_are_not_read() {
    let Some(tls) = Tls::start() else { return };
    let variables = |value: &str| {
        for name in ["SSL_CERT_FILE", "SSL_CERT_DIR"] {
            // SAFETY: in children, which have one thread.
            unsafe { std::env::set_var(name, value) };
        }
    };
    let without = format!("rediss://127.0.0.1:{}", tls.port);
    in_child(|| {
        variables("/nowhere");
        pair(&tls.client(""), "k");
        let text = failed(try_acquire(&without), CONFIG);
        let want = "this system has no certificates to trust, and there is no option ca_file: ";
        assert!(text.starts_with(want) && text.contains("/nowhere"), "{text}");
    });
    in_child(|| {
        variables("/nowhere");
        // SAFETY: as above.
        unsafe { std::env::set_var("SSL_CERT_FILE", tls.issuer.path("ca.pem")) };
        pair(&client(&without), "k");
    });
}

// The wrong protocol.

#[test]
fn a_server_without_tls_is_not_one_with_it() {
    let Some(issuer) = Issuer::new() else { return };
    let Some(server) = Server::start(&[]) else { return };
    let (answer, took) = timed(|| try_acquire(&url(server.port(), &issuer, "")));
    let text = failed(answer, UNREACHABLE);
    let said = ["what came is no TLS", "is it TLS that is spoken there?", "the server closed the connection"];
    assert!(said.iter().any(|part| text.contains(part)), "{text}");
    assert!(took <= BUDGET + SLACK, "{took:?}");
    // And one that speaks first.
    let fake = redis::Fake::greeting(b"-ERR max number of clients reached\r\n", |_| Vec::new());
    let options = format!("connect_timeout=5&ca_file={}", issuer.text("ca.pem"));
    refused(&fake.url(&options).replace("redis:", "rediss:"), "what came is no TLS");
}

#[test]
fn a_server_with_tls_is_not_one_without_it() {
    let Some(tls) = Tls::start() else { return };
    let (answer, took) = timed(|| try_acquire(&redis::url(tls.port, "")));
    let text = failed(answer, UNCERTAIN);
    // Its alert, unless the reset that follows has overtaken it.
    let said = ["the server speaks TLS: use rediss://", "reset", "closed"];
    assert!(said.iter().any(|part| text.contains(part)), "{text}");
    assert!(took <= BUDGET + SLACK, "{took:?}");
}

// Time limits.

#[test]
fn a_handshake_that_is_not_answered_ends_in_time() {
    let Some(issuer) = Issuer::new() else { return };
    let listener = TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).unwrap();
    let port = listener.local_addr().unwrap().port();
    for (options, most) in [("", 250), ("connect_timeout=0.1", 100), ("connect_timeout=5", 500)] {
        let (answer, took) = timed(|| try_acquire(&url(port, &issuer, options)));
        let text = failed(answer, UNREACHABLE);
        assert!(text.contains("is it TLS that is spoken there?"), "{text}");
        assert!(took + ms(5) >= ms(most) && took <= ms(most) + SLACK, "{options}: {took:?}");
    }
}

#[test]
fn a_handshake_that_trickles_ends_in_time() {
    let Some(tls) = Tls::start() else { return };
    let relay = Relay::slow(tls.port, ms(5));
    let (answer, took) = timed(|| try_acquire(&url(relay.port, &tls.issuer, "")));
    assert!(failed(answer, UNREACHABLE).contains("no TLS handshake within"));
    assert!(took + ms(5) >= ms(250) && took <= ms(250) + SLACK, "{took:?}");
}

#[test]
fn a_server_that_is_stopped_is_given_up_in_time() {
    let Some(tls) = Tls::start() else { return };
    let client = tls.client("breaker=off");
    let fresh = tls.client("breaker=off");
    let other = hold(&client, "other", LEASE);
    tls.server.pause();
    // In the handshake, and where a reply should come.
    let (answer, took) = timed(|| fresh.acquire(b"k", LEASE, 0));
    failed(answer, UNREACHABLE);
    assert!(took <= ms(250) + SLACK, "{took:?}");
    let (answer, took) = timed(|| client.acquire(b"k", LEASE, 0));
    failed(answer, UNCERTAIN);
    assert!(took <= BUDGET + SLACK, "{took:?}");
    tls.server.resume();
    pair(&fresh, "another");
    release(&client, "other", &other);
    until("what may have been taken is given back", || tls.server.is_empty());
}

#[test]
fn a_handshake_that_is_cut_anywhere_is_one_that_failed() {
    let Some(tls) = Tls::start() else { return };
    let whole = {
        let relay = Relay::new(tls.port, usize::MAX);
        refused(&url(relay.port, &tls.issuer, "").replace("ca.pem", "server.pem"), "unknown issuer");
        relay.came()
    };
    assert!(whole > 500, "{whole}");
    for cut in (0..whole).step_by(whole / 24) {
        let relay = Relay::new(tls.port, cut);
        let (answer, took) = timed(|| try_acquire(&url(relay.port, &tls.issuer, "")));
        let text = failed(answer, UNREACHABLE);
        assert!(text.contains("connecting failed: TLS handshake: "), "after {cut} bytes: {text}");
        assert!(took < ms(250), "{took:?}");
    }
    assert!(tls.server.is_empty());
}

// Signals and forks.

#[test]
fn no_call_fails_for_a_signal() {
    let Some(tls) = Tls::start() else { return };
    let relay = Relay::slow(tls.port, Duration::ZERO);
    in_child(|| {
        storm(Duration::from_micros(300));
        for port in [tls.port, relay.port] {
            for _ in 0..20 {
                let client = client(&url(port, &tls.issuer, "connect_timeout=2&command_timeout=2&budget=4"));
                (0..20).for_each(|_| pair(&client, "k"));
            }
        }
        assert!(ticks() > 100, "{} signals", ticks());
    });
    assert!(tls.server.is_empty());
}

#[test]
fn a_run_that_is_interrupted_loses_nothing() {
    let Some(tls) = Tls::start() else { return };
    let other = tls.client("");
    // Records that come byte by byte are interrupted in their midst.
    let relay = Relay::slow(tls.port, Duration::from_micros(200));
    let client = client(&url(relay.port, &tls.issuer, "connect_timeout=2&command_timeout=2&budget=4"));
    let begin = hold(&other, "k", LEASE);
    let shared = Shared::new();
    let child = fork(|| {
        storm(ms(1));
        let mut interruptions = 0;
        for round in 1..=5 {
            let mut op = client.op_acquire(b"k", LEASE, 10_000).unwrap();
            shared.set(0, round);
            while op.run(u64::MAX).unwrap() == Run::Interrupted {
                interruptions += 1;
            }
            let Ok(Answer::Acquire(Acquire::Held(held))) = op.finish().unwrap() else { panic!("not held") };
            shared.set(1, round);
            release(&client, "k", &held);
        }
        assert!(interruptions > 100, "{interruptions}");
        assert!(client.stats().unwrap().contains("\"connections_lost\":0,"));
    });
    let mut held = begin;
    for round in 1..=5 {
        child.wait_for(&shared, 0, round);
        sleep(ms(50));
        release(&other, "k", &held);
        child.wait_for(&shared, 1, round);
        held = redis::held(other.acquire(b"k", LEASE, 10_000));
        if round < 5 {
            continue;
        }
        release(&other, "k", &held);
    }
    child.join();
    assert_eq!(tls.server.get(&stored("k")), None);
}

#[test]
fn a_child_makes_a_connection_of_its_own() {
    let Some(tls) = Tls::start() else { return };
    let client = tls.client("");
    pair(&client, "k");
    let before = tls.connections();
    for round in 1..=5 {
        in_child(|| {
            for _ in 0..20 {
                pair(&client, "child's");
            }
        });
        // Neither has spoken on the other's, nor ended it.
        pair(&client, "k");
        assert_eq!(tls.connections(), before + round);
    }
    let op = client.op_acquire(b"k", LEASE, 0).unwrap();
    in_child(|| drop(op));
    pair(&client, "k");
    assert!(client.stats().unwrap().contains("\"connections_lost\":0,"));
    until("the children's connections are closed", || tls.server.info("connected_clients") == 2);
}

// What comes over a connection that nobody uses.

#[test]
fn tls_may_speak_on_an_idle_connection() {
    let Some(issuer) = Issuer::new() else { return };
    issuer.make("server", "IP:127.0.0.1", 2);
    for (late, connections) in [(Late::Keys, 1), (Late::Surplus, 2), (Late::Goodbye, 2), (Late::Nothing, 1)] {
        let fake = TlsFake::new(&issuer, late);
        let client = client(&url(fake.port, &issuer, ""));
        let pair = || release(&client, "k", &held(client.acquire_telling(b"k", LEASE, 0, false)));
        pair();
        sleep(ms(600));
        for _ in 0..3 {
            pair();
        }
        assert_eq!(fake.connections.load(SeqCst), connections, "{late:?}");
        assert!(client.stats().unwrap().contains("\"failures\":0,"));
    }
}

#[derive(Clone, Copy, Debug, PartialEq)]
enum Late {
    Nothing,
    /// New keys, which is no data.
    Keys,
    /// A reply that nothing was asked for.
    Surplus,
    Goodbye,
}

/// Grants everything, and says something else 300 ms after it was asked the last time; only once.
struct TlsFake {
    port: u16,
    connections: Arc<AtomicUsize>,
}

impl TlsFake {
    fn new(issuer: &Issuer, late: Late) -> Self {
        let chain = CertificateDer::pem_file_iter(issuer.path("server.pem")).unwrap().map(Result::unwrap).collect();
        let key = PrivateKeyDer::from_pem_file(issuer.path("server.key")).unwrap();
        let config = ServerConfig::builder_with_provider(Arc::new(rustls::crypto::ring::default_provider()))
            .with_safe_default_protocol_versions()
            .unwrap();
        let config = Arc::new(config.with_no_client_auth().with_single_cert(chain, key).unwrap());
        let listener = TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).unwrap();
        let port = listener.local_addr().unwrap().port();
        let connections = Arc::new(AtomicUsize::new(0));
        let count = connections.clone();
        std::thread::spawn(move || {
            while let Ok((stream, _)) = listener.accept() {
                let late = if count.fetch_add(1, SeqCst) == 0 { late } else { Late::Nothing };
                let config = config.clone();
                std::thread::spawn(move || grant(stream, ServerConnection::new(config).unwrap(), late));
            }
        });
        Self { port, connections }
    }
}

fn grant(stream: TcpStream, session: ServerConnection, late: Late) -> io::Result<()> {
    stream.set_read_timeout(Some(ms(300)))?;
    let mut tls = rustls::StreamOwned::new(session, stream);
    let (mut messages, mut was_late) = (Messages::default(), false);
    loop {
        match messages.read(&mut tls) {
            Ok(true) => {}
            Ok(false) => return Ok(()),
            Err(error) if error.kind() == io::ErrorKind::WouldBlock => {
                if !std::mem::replace(&mut was_late, true) {
                    match late {
                        Late::Nothing => {}
                        Late::Keys => tls.conn.refresh_traffic_keys().expect("TLS 1.3"),
                        Late::Surplus => tls.write_all(b":1\r\n")?,
                        Late::Goodbye => tls.conn.send_close_notify(),
                    }
                    tls.flush()?;
                }
                continue;
            }
            Err(error) => return Err(error),
        }
        while let Some((request, _)) = messages.next() {
            let command = request.list()[0].text();
            tls.write_all(if command == "SET" { b"+OK\r\n" } else { b":1\r\n" })?;
        }
    }
}

/// Stands between, and does not understand a word.
struct Relay {
    port: u16,
    came: Arc<AtomicUsize>,
}

impl Relay {
    /// Cuts a connection after so many bytes from the server.
    fn new(server: u16, cut: usize) -> Self {
        Self::start(server, cut, None)
    }

    /// Gives on each byte by itself, at this distance.
    fn slow(server: u16, pause: Duration) -> Self {
        Self::start(server, usize::MAX, Some(pause))
    }

    fn start(server: u16, cut: usize, pause: Option<Duration>) -> Self {
        let listener = TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).unwrap();
        let port = listener.local_addr().unwrap().port();
        let came = Arc::new(AtomicUsize::new(0));
        let count = came.clone();
        std::thread::spawn(move || {
            while let Ok((client, _)) = listener.accept() {
                let Ok(server) = TcpStream::connect((Ipv4Addr::LOCALHOST, server)) else { return };
                let (mut from, mut to) = (client.try_clone().unwrap(), server.try_clone().unwrap());
                client.set_nodelay(true).unwrap();
                std::thread::spawn(move || {
                    let _ = io::copy(&mut from, &mut to);
                    let _ = to.shutdown(std::net::Shutdown::Both);
                });
                let count = count.clone();
                std::thread::spawn(move || {
                    let _ = pass(&server, &client, cut, pause, &count);
                    let _ = client.shutdown(std::net::Shutdown::Both);
                    let _ = server.shutdown(std::net::Shutdown::Both);
                });
            }
        });
        Self { port, came }
    }

    /// How many bytes came from the server.
    fn came(&self) -> usize {
        self.came.load(SeqCst)
    }
}

fn pass(
    mut server: &TcpStream,
    mut client: &TcpStream,
    mut left: usize,
    pause: Option<Duration>,
    came: &AtomicUsize,
) -> io::Result<()> {
    let mut bytes = [0; 4096];
    while left > 0 {
        let count = server.read(&mut bytes)?.min(left);
        if count == 0 {
            break;
        }
        came.fetch_add(count, SeqCst);
        left -= count;
        match pause {
            None => client.write_all(&bytes[..count])?,
            Some(pause) => {
                for byte in &bytes[..count] {
                    client.write_all(&[*byte])?;
                    sleep(pause);
                }
            }
        }
    }
    Ok(())
}
