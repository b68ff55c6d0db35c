//! A model of a server: a few commands on a few keys, by a clock of its own. It knows our scripts by what they mean.

use super::resp::{self, Reply};
use buflock::policy::{NS_PER_MS, milliseconds};
use buflock::redis::scripts::Script;
use std::collections::HashMap;

const SCRIPTS: [Script; 4] = [Script::Acquire, Script::Release, Script::Extend, Script::Look];
/// How often it looks whether a wait is over, in ns.
const TICK: u64 = 100 * NS_PER_MS;
/// How long signals live, in ms.
const SIGNAL_MS: u64 = 5000;

type Bytes = Vec<u8>;

/// A command that came.
pub type Command = Vec<Bytes>;

#[derive(Clone, Debug)]
struct Entry {
    value: Bytes,
    until: u64,
}

/// A connection that waits for a list.
#[derive(Clone, Debug)]
struct Blocked {
    connection: usize,
    list: Bytes,
    keeps: bool,
    until: u64,
}

/// What a client was told, and when.
#[derive(Clone, Debug)]
pub struct Told {
    pub connection: usize,
    pub at: u64,
    pub bytes: Bytes,
}

/// The keys, and who waits for one.
#[derive(Clone, Debug, Default)]
pub struct Server {
    keys: HashMap<Bytes, Entry>,
    blocked: Vec<Blocked>,
    /// Behind a wait, of the same connection.
    queued: Vec<(usize, Command)>,
    known: Vec<Bytes>,
    /// What clients are told, in its order.
    pub told: Vec<Told>,
    /// Commands that it did not understand.
    pub strange: Vec<String>,
    /// Whether AUTH is asked for, and of whom it came.
    pub password: Option<Bytes>,
    authenticated: Vec<usize>,
}

/// The commands in these bytes.
pub fn commands(mut bytes: &[u8]) -> Vec<Command> {
    let mut commands = Vec::new();
    while let Some((Reply::List(parts), length)) = (!bytes.is_empty()).then(|| resp::parse(bytes)).flatten() {
        let part = |part| if let Reply::Bulk(bytes) = part { bytes } else { panic!("no command: {part:?}") };
        commands.push(parts.into_iter().map(part).collect());
        bytes = &bytes[length..];
    }
    assert!(bytes.is_empty(), "half a command is sent");
    commands
}

fn number(bytes: &[u8]) -> u64 {
    let text = std::str::from_utf8(bytes).expect("ASCII");
    text.parse().unwrap_or_else(|_| panic!("no number: {text}"))
}

fn integer(number: i64) -> Bytes {
    format!(":{number}\r\n").into()
}

fn bulk(text: &[u8]) -> Bytes {
    [format!("${}\r\n", text.len()).as_bytes(), text, b"\r\n"].concat()
}

impl Server {
    /// The value of a key.
    pub fn get(&self, key: &[u8], now: u64) -> Option<&[u8]> {
        self.keys.get(key).filter(|entry| entry.until > now).map(|entry| &entry.value[..])
    }

    /// When a key ends.
    pub fn until(&self, key: &[u8]) -> u64 {
        self.keys.get(key).map_or(0, |entry| entry.until)
    }

    /// Sets a key.
    pub fn set(&mut self, key: &[u8], value: &[u8], until: u64) {
        self.keys.insert(key.to_vec(), Entry { value: value.to_vec(), until });
    }

    /// When the next wait ends by itself.
    pub fn next_tick(&self) -> Option<u64> {
        self.blocked.iter().map(|blocked| blocked.until.div_ceil(TICK) * TICK).min()
    }

    /// A command comes.
    pub fn receive(&mut self, connection: usize, command: Command, now: u64) {
        self.end_waits(now);
        if self.blocked.iter().any(|blocked| blocked.connection == connection) {
            return self.queued.push((connection, command));
        }
        self.execute(connection, &command, now);
    }

    /// A connection has ended.
    pub fn forget(&mut self, connection: usize) {
        self.blocked.retain(|blocked| blocked.connection != connection);
        self.queued.retain(|queued| queued.0 != connection);
    }

    /// Those whose time is over are told so.
    pub fn end_waits(&mut self, now: u64) {
        while let Some(place) = self.blocked.iter().position(|blocked| blocked.until <= now) {
            let blocked = self.blocked.remove(place);
            self.tell(blocked.connection, b"*-1\r\n".to_vec(), now);
            self.go_on(blocked.connection, now);
        }
    }

    fn go_on(&mut self, connection: usize, now: u64) {
        while let Some(place) = self.queued.iter().position(|queued| queued.0 == connection) {
            let command = self.queued.remove(place).1;
            self.execute(connection, &command, now);
        }
    }

    fn tell(&mut self, connection: usize, bytes: Bytes, at: u64) {
        self.told.push(Told { connection, at, bytes });
    }

    fn execute(&mut self, connection: usize, command: &Command, now: u64) {
        let name = String::from_utf8_lossy(&command[0]).to_uppercase();
        if name == "AUTH" && self.password.as_ref() == command.last() {
            self.authenticated.push(connection);
            return self.tell(connection, b"+OK\r\n".to_vec(), now);
        }
        if self.password.is_some() && !self.authenticated.contains(&connection) {
            return self.tell(connection, b"-NOAUTH Authentication required.\r\n".to_vec(), now);
        }
        match name.as_str() {
            "BLPOP" | "BRPOPLPUSH" => return self.wait(connection, command, name == "BRPOPLPUSH", now),
            _ => {}
        }
        let reply = match name.as_str() {
            "SELECT" => b"+OK\r\n".to_vec(),
            "SET" => self.set_command(command, now),
            "EVAL" | "EVALSHA" => self.eval(command, name == "EVAL", now),
            _ => {
                self.strange.push(name);
                b"-ERR unknown command\r\n".to_vec()
            }
        };
        self.tell(connection, reply, now);
        self.serve_waits(now);
    }

    fn set_command(&mut self, command: &Command, now: u64) -> Bytes {
        if command.len() != 6 || command[3..5] != [&b"NX"[..], b"PX"] {
            self.strange.push("a SET of another form".to_owned());
            return b"-ERR syntax error\r\n".to_vec();
        }
        if self.get(&command[1], now).is_some() {
            return b"$-1\r\n".to_vec();
        }
        self.set(&command[1], &command[2], now + number(&command[5]) * NS_PER_MS);
        b"+OK\r\n".to_vec()
    }

    fn wait(&mut self, connection: usize, command: &Command, keeps: bool, now: u64) {
        let text = String::from_utf8_lossy(command.last().expect("a time")).into_owned();
        let ms = u64::from(milliseconds(&text).expect("seconds"));
        assert!(ms > 1, "a wait for ever"); // 0.001 s is none to Redis 6
        let until = now + ms * NS_PER_MS;
        self.blocked.push(Blocked { connection, list: command[1].clone(), keeps, until });
        self.serve_waits(now);
    }

    fn serve_waits(&mut self, now: u64) {
        while let Some(place) = self.blocked.iter().position(|blocked| self.get(&blocked.list, now).is_some()) {
            let Blocked { connection, list, keeps, .. } = self.blocked.remove(place);
            if keeps {
                self.tell(connection, bulk(b"1"), now);
            } else {
                self.keys.remove(&list);
                self.tell(connection, [&b"*2\r\n"[..], &bulk(&list), &bulk(b"1")].concat(), now);
            }
            self.go_on(connection, now);
        }
    }

    fn eval(&mut self, command: &Command, as_text: bool, now: u64) -> Bytes {
        let known = |script: &&Script| {
            if as_text { command[1] == script.text().as_bytes() } else { command[1] == script.hash().as_bytes() }
        };
        let script = *SCRIPTS.iter().find(known).expect("a script of ours");
        if as_text {
            self.known.push(script.hash().into());
        } else if !self.known.contains(&command[1]) {
            return b"-NOSCRIPT No matching script.\r\n".to_vec();
        }
        self.run(script, command, now)
    }

    /// What a caller's own client gets for a command of ours.
    pub fn carry(&mut self, command: &Command, now: u64) -> Bytes {
        assert_eq!(command[0], b"EVAL");
        let script =
            *SCRIPTS.iter().find(|script| command[1] == script.carried().as_bytes()).expect("a script of ours");
        let reply = self.run(script, command, now);
        let answer = match resp::parse(&reply).expect("a reply").0 {
            Reply::Int(number) => number.to_string().into_bytes(),
            Reply::Bulk(text) => text,
            other => panic!("{other:?}"),
        };
        [command.last().expect("its number"), &b":"[..], &answer].concat()
    }

    fn run(&mut self, script: Script, command: &Command, now: u64) -> Bytes {
        let count = usize::try_from(number(&command[2])).expect("a few");
        let (keys, arguments) = command[3..].split_at(count);
        match script {
            Script::Acquire => self.acquire(keys, arguments, now),
            Script::Release => integer(self.release(keys, &arguments[0], now)),
            Script::Extend => self.extend(keys, arguments, now),
            Script::Look => self.look(keys, arguments, now),
        }
    }

    fn holds(&self, key: &[u8], token: &[u8], now: u64) -> bool {
        self.get(key, now).is_some_and(|value| value.starts_with(token))
    }

    /// What is left of a hold in ms, and a waiter's flag is set.
    fn note_waiter(&mut self, keys: &[Bytes], list: usize, waits: &[u8], now: u64) -> u64 {
        let left = self.until(&keys[0]).saturating_sub(now).div_ceil(NS_PER_MS);
        if keys.len() > 1 && waits == b"1" {
            self.keys.remove(&keys[list]);
            self.set(&keys[1], b"1", now + (left.min(60_000) + 2000) * NS_PER_MS);
        }
        left.max(1)
    }

    fn acquire(&mut self, keys: &[Bytes], arguments: &[Bytes], now: u64) -> Bytes {
        let until = now + number(&arguments[1]) * NS_PER_MS;
        if self.holds(&keys[0], &arguments[0][..32], now) {
            self.keys.get_mut(&keys[0]).expect("held").until = until;
        } else if self.get(&keys[0], now).is_none() {
            self.set(&keys[0], &arguments[0], until);
            if let Some(fence) = keys.get(4) {
                let next = (now / 1000).max(self.fence(fence, now) + 1);
                self.set(fence, next.to_string().as_bytes(), now + number(&arguments[3]) * NS_PER_MS);
            }
        } else {
            let left = self.note_waiter(keys, 2, &arguments[2], now);
            return integer(i64::try_from(left).expect("ms"));
        }
        integer(-keys.get(4).map_or(0, |fence| i64::try_from(self.fence(fence, now)).expect("a fence")))
    }

    /// The last fence under this key.
    pub fn fence(&self, key: &[u8], now: u64) -> u64 {
        self.get(key, now).map_or(0, number)
    }

    /// What the script of that name does.
    pub fn release(&mut self, keys: &[Bytes], token: &[u8], now: u64) -> i64 {
        match self.get(&keys[0], now) {
            None => return 0,
            Some(value) if !value.starts_with(token) => return -1,
            Some(_) => {}
        }
        self.keys.remove(&keys[0]);
        if keys.len() > 1 && self.get(&keys[1], now) == Some(b"1") {
            for list in [&keys[2], &keys[3]] {
                self.set(list, b"1", now + SIGNAL_MS * NS_PER_MS);
            }
        }
        self.serve_waits(now);
        1
    }

    fn extend(&mut self, keys: &[Bytes], arguments: &[Bytes], now: u64) -> Bytes {
        let answer = match self.get(&keys[0], now) {
            None => 0,
            Some(value) if !value.starts_with(&arguments[0]) => -1,
            Some(_) => 1,
        };
        if answer == 1 {
            self.keys.get_mut(&keys[0]).expect("held").until = now + number(&arguments[1]) * NS_PER_MS;
        }
        integer(answer)
    }

    fn look(&mut self, keys: &[Bytes], arguments: &[Bytes], now: u64) -> Bytes {
        let Some(value) = self.get(&keys[0], now).map(<[u8]>::to_vec) else { return bulk(b"0") };
        if !arguments[0].is_empty() && !value.starts_with(&arguments[0]) {
            return bulk(b"0");
        }
        let left = self.note_waiter(keys, 3, &arguments[1], now);
        bulk(&[left.to_string().as_bytes(), b" ", &value].concat())
    }
}
