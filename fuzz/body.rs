//! What must hold whatever a server sends: no panic, no lock that was not granted, and the same answer wherever replies
//! are cut.

use buflock::answer::{Acquire, Answer};
use buflock::config::{Settings, Target, parse_url};
use buflock::error::Error;
use buflock::policy::NS_PER_MS;
use buflock::redis::Redis;
use buflock::redis::machine::{Machine, Want};
use buflock::redis::wire::{Garbage, Replies, Reply};
use buflock::step::Step;

const TOKEN: &[u8; 32] = b"0123456789abcdef0123456789abcdef";
/// Longer ones are refused, and how soon depends on where they are cut.
const LONGEST: usize = 60_000;
/// A call that takes more steps than that runs in a circle.
const MOST_STEPS: usize = 20_000;

/// All replies, and whether garbage follows.
fn parse<'a>(pieces: impl Iterator<Item = &'a [u8]>) -> (Vec<Reply>, bool) {
    let (mut replies, mut all) = (Replies::default(), Vec::new());
    for piece in pieces {
        replies.feed(piece);
        loop {
            match replies.next() {
                Ok(Some(reply)) => all.push(reply),
                Ok(None) => break,
                Err(Garbage) => return (all, true),
            }
        }
    }
    (all, false)
}

/// The parser of replies. The first byte says where they are cut.
pub fn wire(bytes: &[u8]) {
    let Some((size, bytes)) = bytes.split_first().filter(|(_, bytes)| bytes.len() <= LONGEST) else { return };
    let whole = parse([bytes].into_iter());
    assert_eq!(parse(bytes.chunks(usize::from(*size).max(1))), whole);
    assert_eq!(parse(bytes.chunks(1)), whole);
}

/// What is decided, byte by byte; nothing but 0 when they are used up.
struct Choices<'a>(&'a [u8]);

impl Choices<'_> {
    fn below(&mut self, count: usize) -> usize {
        let Some((first, rest)) = self.0.split_first() else { return 0 };
        self.0 = rest;
        usize::from(*first) % count
    }

    fn bytes(&mut self) -> Vec<u8> {
        let count = self.below(40).min(self.0.len());
        let (bytes, rest) = self.0.split_at(count);
        self.0 = rest;
        bytes.to_vec()
    }
}

/// What a server may say, and whether it grants a SET or a script's acquire.
pub const REPLIES: [(&[u8], bool); 20] = [
    (b"+OK\r\n", true),
    (b":0\r\n", true),
    (b":-9007199254740991\r\n", true),
    (b"$2\r\nOK\r\n", true),
    (b"$-1\r\n", false),
    (b"*-1\r\n", false),
    (b":1\r\n", false),
    (b":300\r\n", false),
    (b":2147483647\r\n", false),
    (b"$1\r\n0\r\n", false),
    (b"$1\r\n1\r\n", false),
    (b"$36\r\n200 fedcba9876543210fedcba9876543210\r\n", false),
    (b"*2\r\n$1\r\nk\r\n$1\r\n1\r\n", false),
    (b"+QUEUED\r\n", false),
    (b"-NOSCRIPT No matching script.\r\n", false),
    (b"-NOPERM this user has no permissions to run the 'evalsha' command\r\n", false),
    (b"-NOPERM no key\r\n", false),
    (b"-READONLY You can't write\r\n", false),
    (b"-ERR timeout is not a float\r\n", false),
    (b"-NOAUTH Authentication required.\r\n", false),
];

/// A call, and what is known of it.
struct Play {
    redis: Redis,
    machine: Machine,
    now: u64,
    /// Commands on this connection whose replies are still to come.
    owed: usize,
    /// Whether the last reply was a grant, and nothing else came with it.
    granted: bool,
    /// Bytes came that are made up: anything may be in them.
    made_up: bool,
    /// Replies came together: cut, the first would be answered alone.
    glued: bool,
}

fn wanted(choices: &mut Choices<'_>) -> (Want, u32) {
    let wait_ms = [0, 1, 700][choices.below(3)];
    match choices.below(7) {
        0 => (Want::Acquire { ttl_ms: 60_000, tell_left: false }, wait_ms),
        1 => (Want::Acquire { ttl_ms: 60_000, tell_left: true }, wait_ms),
        2 => (Want::Acquire { ttl_ms: 1, tell_left: true }, wait_ms),
        3 => (Want::Extend { ttl_ms: 60_000 }, 0),
        4 => (Want::Release, 0),
        5 => (Want::Await, wait_ms),
        _ => ([Want::Inspect, Want::Break][choices.below(2)].clone(), 0),
    }
}

impl Play {
    fn new(choices: &mut Choices<'_>) -> Self {
        let options = ["", "password=secret&db=1", "nudge=off", "fencing=on&label=host:1"][choices.below(4)];
        let mut settings = Settings::default();
        let url = format!("redis://127.0.0.1?breaker=off&{options}");
        let Ok(Target::Redis(address)) = parse_url(&url, &mut settings) else { unreachable!("a URL") };
        let redis = Redis::new(address, settings).expect("memory");
        let (now, (want, wait_ms)) = (1000 * NS_PER_MS, wanted(choices));
        if choices.below(4) == 1 {
            Machine::new(&redis, Want::Release, b"left", &[b'f'; 32], 0, now).abandon(&redis, false, now);
        }
        let machine = Machine::new(&redis, want, b"key", TOKEN, wait_ms, now);
        Self { redis, machine, now, owed: 0, granted: false, made_up: false, glued: false }
    }

    fn receive(&mut self, choices: &mut Choices<'_>, ms: u32, cut: bool) {
        let mut bytes = Vec::new();
        self.granted = false;
        match choices.below(16) {
            0 => self.now += u64::from(ms) * NS_PER_MS,
            1 => drop(self.machine.fail(&self.redis, "it ended", self.now)),
            2 => {
                bytes = choices.bytes();
                self.made_up |= !bytes.is_empty();
            }
            how => {
                let (reply, grants) = REPLIES[choices.below(REPLIES.len())];
                bytes.extend_from_slice(reply);
                self.granted = grants && self.owed == 1;
                self.owed = self.owed.saturating_sub(1);
                if how == 3 {
                    bytes.extend_from_slice(REPLIES[choices.below(REPLIES.len())].0);
                    (self.glued, self.granted) = (true, false);
                    self.owed = self.owed.saturating_sub(1);
                }
            }
        }
        if cut {
            for byte in &bytes {
                self.machine.feed(&self.redis, &[*byte], self.now);
            }
        } else if !bytes.is_empty() {
            self.machine.feed(&self.redis, &bytes, self.now);
        }
    }

    fn run(&mut self, choices: &mut Choices<'_>, cut: bool) -> Result<Answer, Error> {
        for _ in 0..MOST_STEPS {
            self.now += NS_PER_MS / 10;
            match self.machine.next(&self.redis, self.now) {
                Step::Connect { .. } if choices.below(8) == 1 => {
                    self.machine.fail(&self.redis, "refused", self.now);
                }
                Step::Connect { .. } => {
                    self.owed = 0;
                    self.machine.connected(&self.redis, choices.below(2) == 0, self.now);
                }
                Step::Send { .. } => self.owed += commands(self.machine.outgoing()),
                Step::Receive { ms } => self.receive(choices, ms, cut),
                Step::Sleep { ms } => self.now += u64::from(ms) * NS_PER_MS,
                Step::Done { .. } => {
                    let answer = self.machine.answer().expect("done").clone();
                    let held = matches!(answer, Ok(Answer::Acquire(Acquire::Held(_))));
                    assert!(!held || self.granted || self.made_up || self.glued, "held, and not granted");
                    return answer;
                }
                other => panic!("{other:?}"),
            }
        }
        panic!("it runs in a circle");
    }
}

/// How many commands these bytes are.
fn commands(mut bytes: &[u8]) -> usize {
    let mut count = 0;
    while !bytes.is_empty() {
        let parts = number(&mut bytes, b'*');
        for _ in 0..parts {
            let length = number(&mut bytes, b'$');
            bytes = &bytes[length + 2..];
        }
        count += 1;
    }
    count
}

fn number(bytes: &mut &[u8], kind: u8) -> usize {
    assert_eq!(bytes[0], kind, "no command");
    let end = bytes.iter().position(|byte| *byte == b'\r').expect("a line");
    let number = std::str::from_utf8(&bytes[1..end]).expect("digits").parse().expect("a number");
    *bytes = &bytes[end + 2..];
    number
}

/// A call, and whatever a server and a network may do to it.
pub fn machine(bytes: &[u8]) {
    let play = |cut| {
        let mut choices = Choices(bytes);
        let mut play = Play::new(&mut choices);
        let answer = play.run(&mut choices, cut);
        (format!("{answer:?}"), play.glued || play.made_up)
    };
    let (whole, differs) = play(false);
    let (cut, _) = play(true);
    assert!(differs || whole == cut, "{whole}, and cut: {cut}");
}
