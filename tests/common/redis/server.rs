//! A real server of a test's own.

use super::resp::{Raw, Reply};
use crate::common::Dir;
use crate::process::{not_applicable, skip};
use std::io;
use std::net::{TcpListener, TcpStream};
use std::os::unix::net::UnixStream;
use std::os::unix::process::CommandExt;
use std::path::PathBuf;
use std::process::{Child, Command, Stdio};
use std::sync::{Mutex, MutexGuard};
use std::time::{Duration, Instant};

/// How long a server may take to start.
const START: Duration = Duration::from_secs(10);

/// A server on a port of 127.0.0.1 and on a socket. Nothing of it is left after drop.
pub struct Server {
    port: u16,
    args: Vec<String>,
    child: Mutex<Child>,
    admin: Mutex<Raw>,
    dir: Dir,
}

/// A port that nobody listens on, for now.
pub fn free_port() -> u16 {
    let listener = TcpListener::bind("127.0.0.1:0").expect("a port");
    listener.local_addr().expect("bound").port()
}

fn program() -> String {
    std::env::var("BUFLOCK_REDIS_SERVER").unwrap_or_else(|_| "redis-server".into())
}

impl Server {
    /// Starts one with these arguments more. None: there is no such program here, and the test is to be skipped.
    pub fn start(args: &[&str]) -> Option<Self> {
        let args: Vec<_> = args.iter().map(ToString::to_string).collect();
        let dir = Dir::new("redis");
        for _ in 0..5 {
            let port = free_port();
            let mut child = match spawn(port, &dir, &args) {
                Ok(child) => child,
                Err(error) => {
                    skip(&format!("{}: {error} (package redis-server)", program()));
                    return None;
                }
            };
            // Somebody may have taken the port since: then it ends, and another is tried.
            if let Some(admin) = connect_admin(&mut child, &dir) {
                return Some(Self { port, args, child: Mutex::new(child), admin: Mutex::new(admin), dir });
            }
        }
        panic!("{} {args:?} does not start", program());
    }

    /// Its port.
    pub fn port(&self) -> u16 {
        self.port
    }

    /// Its socket.
    pub fn socket(&self) -> PathBuf {
        socket(&self.dir)
    }

    /// A directory of the test's own.
    pub fn dir(&self) -> &Dir {
        &self.dir
    }

    /// Its URL, with these options, as `ttl=1&budget=2`.
    pub fn url(&self, options: &str) -> String {
        url(self.port, options)
    }

    fn child(&self) -> MutexGuard<'_, Child> {
        self.child.lock().expect("no test has failed with it")
    }

    /// Its process.
    pub fn pid(&self) -> i32 {
        i32::try_from(self.child().id()).expect("a pid")
    }

    fn signal(&self, signal: i32) {
        // SAFETY: a child that was not waited for, so the number is still its own.
        assert_eq!(unsafe { libc::kill(self.pid(), signal) }, 0, "{}", io::Error::last_os_error());
    }

    /// It answers nothing, and its kernel goes on taking connections and bytes for it.
    pub fn pause(&self) {
        self.signal(libc::SIGSTOP);
        let stat = format!("/proc/{}/stat", self.pid());
        let is_stopped = || std::fs::read_to_string(&stat).expect("/proc").contains(") T ");
        while !is_stopped() {
            std::thread::sleep(Duration::from_millis(1));
        }
    }

    /// It goes on.
    pub fn resume(&self) {
        self.signal(libc::SIGCONT);
    }

    /// kill -9.
    pub fn kill(&self) {
        let mut child = self.child();
        child.kill().expect("killed");
        child.wait().expect("gone");
    }

    /// Starts it again at the same place, after [`Self::kill`].
    pub fn start_again(&self) {
        let _ = std::fs::remove_file(self.socket());
        let mut child = spawn(self.port, &self.dir, &self.args).expect("it was there before");
        *self.admin.lock().expect("no test has failed with it") =
            connect_admin(&mut child, &self.dir).expect("it starts again");
        *self.child() = child;
    }

    /// kill -9, and started again: empty, if nothing else was asked for.
    pub fn restart(&self) {
        self.kill();
        self.start_again();
    }

    /// A connection to look at it, which may do all.
    pub fn raw(&self) -> Raw {
        Raw::new(UnixStream::connect(self.socket()).expect("it listens"))
    }

    /// The same over TCP.
    pub fn raw_tcp(&self) -> Raw {
        Raw::new(TcpStream::connect(("127.0.0.1", self.port)).expect("it listens"))
    }

    /// Asks it, over a connection that was there before any rights were changed.
    pub fn ask<P: AsRef<[u8]>>(&self, parts: &[P]) -> Reply {
        self.admin.lock().expect("no test has failed with it").ask(parts)
    }

    /// Tells it something in words without blanks; it has to agree.
    pub fn tell(&self, words: &str) -> Reply {
        self.ask(&words.split(' ').collect::<Vec<_>>()).ok()
    }

    /// The value of a key; None: not there.
    pub fn get(&self, key: &[u8]) -> Option<Vec<u8>> {
        match self.ask(&[b"GET", key]).ok() {
            Reply::Bulk(value) => Some(value),
            Reply::Nil => None,
            other => panic!("GET: {other:?}"),
        }
    }

    /// What is left of a key's time in ms; -1 has none, -2 is not there.
    pub fn pttl(&self, key: &[u8]) -> i64 {
        self.ask(&[b"PTTL", key]).int()
    }

    /// All keys, sorted.
    pub fn keys(&self) -> Vec<Vec<u8>> {
        let list = self.ask(&["KEYS", "*"]).list();
        let mut keys: Vec<_> = list
            .into_iter()
            .map(|key| match key {
                Reply::Bulk(key) => key,
                other => panic!("KEYS: {other:?}"),
            })
            .collect();
        keys.sort();
        keys
    }

    /// Whether nobody holds anything.
    pub fn is_empty(&self) -> bool {
        self.ask(&["DBSIZE"]).int() == 0
    }

    /// How often a command was called, as `eval`.
    pub fn calls(&self, command: &str) -> u64 {
        let text = self.ask(&["INFO", "commandstats"]).text();
        let Some((_, rest)) = text.split_once(&format!("cmdstat_{command}:calls=")) else { return 0 };
        rest.split(',').next().and_then(|digits| digits.parse().ok()).expect("a number")
    }

    /// A number that INFO says.
    pub fn info(&self, name: &str) -> u64 {
        let text = self.ask(&["INFO"]).text();
        let line = text.lines().find_map(|line| line.strip_prefix(name)?.strip_prefix(':'));
        line.and_then(|digits| digits.parse().ok()).unwrap_or_else(|| panic!("no {name} in INFO"))
    }

    /// Its version, as that of the Redis that it is like.
    pub fn version(&self) -> (u32, u32) {
        let text = self.ask(&["INFO", "server"]).text();
        let line = text.lines().find_map(|line| line.strip_prefix("redis_version:")).expect("a version");
        let mut numbers = line.split('.').map(|number| number.parse().expect("a number"));
        (numbers.next().expect("one"), numbers.next().expect("two"))
    }

    /// Whether it is too old for a test, which says why it leaves something out.
    pub fn is_before(&self, major: u32, minor: u32, why: &str) -> bool {
        let is_before = self.version() < (major, minor);
        if is_before {
            not_applicable(&format!("before {major}.{minor} {why}"));
        }
        is_before
    }

    /// What it calls a replica.
    pub fn replica(&self) -> &'static str {
        if self.version() < (5, 0) { "slave" } else { "replica" }
    }

    /// Makes it a replica of nobody who is there, and master again.
    pub fn follow(&self, follows: bool) {
        let master = if follows { format!("127.0.0.1 {}", free_port()) } else { "NO ONE".into() };
        self.tell(&format!("{}OF {master}", self.replica().to_uppercase()));
    }

    /// How many clients are connected over TCP.
    pub fn clients(&self) -> usize {
        self.ask(&["CLIENT", "LIST"]).text().lines().filter(|line| line.contains(" addr=127.0.0.1:")).count()
    }

    /// Listens to all that it is told from now on.
    pub fn monitor(&self) -> Monitor {
        let mut raw = self.raw();
        raw.ask(&["MONITOR"]).ok();
        Monitor(raw)
    }
}

impl Drop for Server {
    fn drop(&mut self) {
        if let Ok(child) = self.child.get_mut() {
            let _ = child.kill();
            let _ = child.wait();
        }
    }
}

/// The URL of what listens on this port.
pub fn url(port: u16, options: &str) -> String {
    let mark = if options.is_empty() { "" } else { "?" };
    format!("redis://127.0.0.1:{port}{mark}{options}")
}

fn socket(dir: &Dir) -> PathBuf {
    dir.path().join("socket")
}

fn spawn(port: u16, dir: &Dir, args: &[String]) -> io::Result<Child> {
    let mut command = Command::new(program());
    command.args(["--port", &port.to_string(), "--bind", "127.0.0.1", "--daemonize", "no"]);
    command.arg("--unixsocket").arg(socket(dir)).arg("--dir").arg(dir.path());
    command.args(["--save", "", "--appendonly", "no"]).args(args);
    command.stdin(Stdio::null()).stdout(Stdio::null()).stderr(Stdio::null());
    // SAFETY: one plain call. What is left of a test that is ended is ended too.
    unsafe {
        command.pre_exec(|| {
            libc::prctl(libc::PR_SET_PDEATHSIG, libc::SIGKILL);
            Ok(())
        });
    }
    command.spawn()
}

/// Waits until it answers, with whatever; None: it has ended.
fn connect_admin(child: &mut Child, dir: &Dir) -> Option<Raw> {
    let begin = Instant::now();
    while begin.elapsed() < START {
        if child.try_wait().expect("a child").is_some() {
            return None;
        }
        if let Ok(stream) = UnixStream::connect(socket(dir)) {
            let mut raw = Raw::new(stream);
            if raw.try_ask(&["PING"]).is_ok() {
                return Some(raw);
            }
        }
        std::thread::sleep(Duration::from_millis(3));
    }
    panic!("the server does not answer within {START:?}");
}

/// All that a server is told, in its own order.
pub struct Monitor(Raw);

impl Monitor {
    /// What it was told since the last time, each as `"set" "key" "value"`, the calls of scripts among them.
    pub fn lines(&mut self, server: &Server) -> Vec<String> {
        server.ask(&["ECHO", "end of lines"]);
        let mut lines = Vec::new();
        loop {
            let line = self.0.receive().expect("a line").text();
            if line.contains("\"end of lines\"") {
                return lines;
            }
            lines.push(line.split_once("] ").map_or(line.clone(), |(_, command)| command.into()));
        }
    }
}
