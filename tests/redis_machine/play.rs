//! One call, driven step by step before the model server, and what goes wrong on the way.

use super::server::{Command, Server, commands};
use buflock::answer::{Acquire, Answer};
use buflock::config::{Settings, Target, parse_url};
use buflock::error::Error;
use buflock::policy::NS_PER_MS;
use buflock::redis::Redis;
use buflock::redis::machine::{Machine, Want};
use buflock::redis::names::Names;
use buflock::step::Step;

/// Ours.
pub const TOKEN: &[u8; 32] = b"0123456789abcdef0123456789abcdef";
/// Another's.
pub const RIVAL: &[u8; 32] = b"fedcba9876543210fedcba9876543210";
/// Of who comes after that one.
pub const NEXT: &[u8; 32] = b"nextnextnextnextnextnextnextnext";
/// The last fence, where there are any: later than the server's clock, as after a fail-over.
pub const LAST_FENCE: u64 = 1 << 50;
/// Of what an earlier call has left, under the key `left`.
pub const LEFT: &[u8; 32] = b"leftleftleftleftleftleftleftleft";
/// The lease of ours, in ms: it outlives every play.
pub const TTL: u32 = 60_000;
/// From a client to the server or back, in ns.
const LATENCY: u64 = 50_000;
/// A machine that takes more steps than that runs in a circle.
const MOST_STEPS: usize = 2000;
/// When a play begins, on the clock.
const BEGIN: u64 = 1_000_000 * NS_PER_MS;

/// Something that goes wrong, at one step.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Fault {
    /// CONNECT: refused at once.
    Refused,
    /// CONNECT, RECEIVE: nothing comes, whatever the server does, until the step's time is over.
    Silent,
    /// SEND: nothing arrives, and the connection is reset.
    LostBefore,
    /// SEND: it is done, and the connection is reset without a reply.
    LostAfter,
    /// SEND: the connection is reset, and all is done so many ms later.
    Late(u64),
    /// SEND: it is done, and no reply ever comes.
    Swallowed,
    /// SEND: nothing happens for so many ms; then it is done.
    Stalled(u64),
    /// SEND: its last command is refused, with these words.
    Error(&'static str),
    /// SEND: the same, so many ms later.
    SlowError(&'static str, u64),
    /// SEND: its first command is refused.
    FirstError(&'static str),
    /// SEND: this comes in place of the last reply.
    Instead(&'static str),
    /// SEND: this comes together with the last reply, behind it.
    Surplus(&'static str),
    /// SEND: so many bytes of the replies come, and the connection ends.
    Cut(usize),
    /// SEND: the replies come so many ms later.
    Slow(u64),
    /// RECEIVE, SLEEP: the connection ends.
    Ends,
    /// Any: the server does nothing for so many ms. Its kernel goes on taking connections and bytes for it.
    Stops(u64),
    /// Any: it is gone for so many ms, and so are all connections.
    Gone(u64),
    /// Any: another call of this process goes ahead, and its connection is lost before anything arrives.
    OtherLost,
    /// Any: the same, but what it sent is done so many ms later.
    OtherLate(u64),
    /// Any: the caller cancels.
    Cancel,
    /// Any: the caller frees it.
    Abandon,
}

/// Which fault at which step.
pub type Schedule = [(usize, Fault)];

/// Who else has the lock.
#[derive(Clone, Copy, Debug)]
pub enum Rival {
    Nobody,
    /// Until its lease ends, after so many ms.
    Dies(u64),
    /// It gives it back after so many ms.
    Releases(u64),
    /// It ends after so many ms, and another takes it at once, and wakes nobody.
    Followed(u64),
    /// It would hold it for long. When it is freed, by whomever, another takes it at once.
    Awaited,
}

/// What is played.
#[derive(Clone, Copy, Debug)]
pub struct Scene {
    pub name: &'static str,
    pub want: fn() -> Want,
    pub wait_ms: u32,
    /// Of the URL.
    pub options: &'static str,
    pub rival: Rival,
    /// Whether the lock is ours at the beginning.
    pub own: bool,
    /// Whether the first connection was used before.
    pub pooled: bool,
    /// Whether an earlier call has left something to be released.
    pub orphan: bool,
}

/// How replies arrive.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Pieces {
    /// Each as the server sent it.
    AsSent,
    /// All that was sent is cut in two, at this byte.
    CutAt(usize),
    /// Byte by byte.
    Bytes,
    /// All that has come in the last few ms at once.
    Glued,
}

/// A kind of step.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Kind {
    Connect,
    Send,
    Receive,
    Sleep,
    Done,
}

/// How it ended.
#[derive(Debug)]
pub struct Outcome {
    pub answer: Option<Result<Answer, Error>>,
    /// What it was when the caller freed it.
    pub before: Option<Result<Answer, Error>>,
    /// After how many ns.
    pub took: u64,
    /// What was done in its steps, in order.
    pub steps: Vec<Kind>,
    /// What may not be, seen on the way.
    pub wrong: Vec<String>,
    /// When it was cancelled or freed.
    pub left_at: Option<u64>,
    pub abandoned: bool,
    /// Replies that came, in bytes.
    pub bytes: usize,
}

/// The world of one play.
pub struct World {
    pub redis: Redis,
    /// Keeps what the URL said.
    pub names: Names,
    /// What an earlier call has left.
    left: Names,
    pub server: Server,
    pub now: u64,
    pub began: u64,
    /// Whether the next one has taken the lock.
    pub followed: bool,
    scene: Scene,
    pieces: Pieces,
    /// What happens by itself: a rival's release, or commands that arrive late on a connection.
    later: Vec<(u64, Event)>,
    /// What is on its way to the client.
    incoming: Vec<(u64, Vec<u8>)>,
    ends_at: Option<u64>,
    connection: usize,
    pub connections: usize,
    linked: bool,
    /// Replies of this connection that the client has not seen.
    owed: usize,
    muted: bool,
    /// Until when nothing on this connection gets on.
    stalled: u64,
    /// Until when the server does nothing.
    stopped: u64,
    /// Until when it is not there.
    gone: u64,
    slow: u64,
    cut: Option<usize>,
    /// Whether a reply too many has come.
    surplus: bool,
    bytes: usize,
    wrong: Vec<String>,
}

#[derive(Clone, Debug)]
enum Event {
    RivalReleases,
    NextTakes,
    Arrives(usize, Vec<Command>),
}

fn settings(options: &str) -> (Redis, [Names; 2]) {
    let mut settings = Settings::default();
    let url = format!("redis://127.0.0.1?breaker=off&{options}");
    let Ok(Target::Redis(address)) = parse_url(&url, &mut settings) else { panic!("{url}") };
    let names = [&b"key"[..], b"left"].map(|key| Names::new(&settings, key));
    (Redis::new(address, settings).expect("memory"), names)
}

impl World {
    pub fn new(scene: Scene, pieces: Pieces) -> Self {
        let (redis, [names, left]) = settings(scene.options);
        let mut world = Self {
            redis,
            names,
            left,
            server: Server::default(),
            now: BEGIN,
            began: BEGIN,
            followed: false,
            scene,
            pieces,
            later: Vec::new(),
            incoming: Vec::new(),
            ends_at: None,
            connection: 0,
            connections: 0,
            linked: false,
            owed: 0,
            muted: false,
            stalled: 0,
            stopped: 0,
            gone: 0,
            slow: 0,
            cut: None,
            surplus: false,
            bytes: 0,
            wrong: Vec::new(),
        };
        world.begin();
        world
    }

    fn begin(&mut self) {
        if self.scene.options.contains("password=") {
            self.server.password = Some(b"secret".to_vec());
        }
        if self.scene.orphan {
            self.server.set(&self.left.lock, LEFT, BEGIN + u64::from(TTL) * NS_PER_MS);
            Machine::new(&self.redis, Want::Release, b"left", LEFT, 0, BEGIN).abandon(&self.redis, false, BEGIN);
        }
        if let Some(fence) = self.fence_key() {
            self.server.set(&fence, LAST_FENCE.to_string().as_bytes(), BEGIN + 60_000 * NS_PER_MS);
        }
        let lock = self.names.lock.clone();
        match self.scene.rival {
            Rival::Nobody if self.scene.own => {
                let value = self.value();
                self.server.set(&lock, &value, BEGIN + u64::from(TTL) * NS_PER_MS);
            }
            Rival::Nobody => {}
            Rival::Awaited => self.server.set(&lock, RIVAL, BEGIN + 60_000 * NS_PER_MS),
            Rival::Followed(ms) => {
                self.server.set(&lock, RIVAL, BEGIN + 60_000 * NS_PER_MS);
                self.later.push((BEGIN + ms * NS_PER_MS, Event::NextTakes));
            }
            Rival::Dies(ms) => self.server.set(&lock, RIVAL, BEGIN + ms * NS_PER_MS),
            Rival::Releases(ms) => {
                self.server.set(&lock, RIVAL, BEGIN + 60_000 * NS_PER_MS);
                self.later.push((BEGIN + ms * NS_PER_MS, Event::RivalReleases));
            }
        }
    }

    /// Whether the server has the lock for us.
    pub fn is_ours(&self) -> bool {
        self.server.get(&self.names.lock, self.now).is_some_and(|value| value.starts_with(TOKEN))
    }

    /// What the lock's value is.
    pub fn holder(&self) -> Option<&[u8]> {
        self.server.get(&self.names.lock, self.now)
    }

    /// What ours is stored as.
    pub fn value(&self) -> Vec<u8> {
        let label = self.label().map_or(String::new(), |label| format!(" {label}"));
        [&TOKEN[..], label.as_bytes()].concat()
    }

    /// The option.
    pub fn label(&self) -> Option<&'static str> {
        self.scene.options.split('&').find_map(|option| option.strip_prefix("label="))
    }

    fn fence_key(&self) -> Option<Vec<u8>> {
        self.names.keys(false).get(4).map(|key| key.to_vec())
    }

    /// The last fence; 0: there are none.
    pub fn fence(&self) -> u64 {
        self.fence_key().map_or(0, |key| self.server.fence(&key, self.now))
    }

    /// Whether the next one has it.
    pub fn is_nexts(&self) -> bool {
        self.server.get(&self.names.lock, self.now) == Some(NEXT)
    }

    /// Whether what an earlier call has left is still there.
    pub fn is_left(&self) -> bool {
        self.server.get(&self.left.lock, self.now).is_some()
    }

    /// Whether the rival has it.
    pub fn is_rivals(&self) -> bool {
        self.server.get(&self.names.lock, self.now) == Some(RIVAL)
    }

    /// Whether the rival should have it.
    pub fn should_be_rivals(&self) -> bool {
        let passed = self.now - self.began;
        match self.scene.rival {
            Rival::Nobody => false,
            _ if matches!((self.scene.want)(), Want::Break) => false,
            Rival::Awaited => true,
            Rival::Dies(ms) | Rival::Releases(ms) | Rival::Followed(ms) => passed < ms * NS_PER_MS,
        }
    }

    /// Time passes.
    pub fn advance(&mut self, to: u64) {
        while let Some(at) = self.next_event().filter(|at| *at <= to) {
            self.now = self.now.max(at);
            self.happen();
        }
        self.now = self.now.max(to);
    }

    fn next_event(&self) -> Option<u64> {
        let later = self.later.iter().map(|(at, _)| *at).min();
        later.into_iter().chain(self.server.next_tick()).min().map(|at| at.max(self.stopped))
    }

    fn happen(&mut self) {
        let now = self.now;
        self.server.end_waits(now);
        while let Some(place) = self.later.iter().position(|(at, _)| *at <= now) {
            let event = self.later.remove(place).1;
            match event {
                Event::RivalReleases => {
                    let keys: Vec<_> = self.names.keys(false).into_iter().map(<[u8]>::to_vec).collect();
                    self.server.release(&keys, RIVAL, now);
                }
                Event::NextTakes => self.next_takes(),
                Event::Arrives(connection, commands) => {
                    commands.into_iter().for_each(|command| self.server.receive(connection, command, now));
                }
            }
        }
        self.collect();
    }

    fn next_takes(&mut self) {
        self.server.set(&self.names.lock, NEXT, self.now + 60_000 * NS_PER_MS);
        self.followed = true;
    }

    /// What the server said is on its way.
    fn collect(&mut self) {
        let is_free = self.server.get(&self.names.lock, self.now).is_none();
        if matches!(self.scene.rival, Rival::Awaited) && is_free && !self.followed {
            self.next_takes();
        }
        for told in std::mem::take(&mut self.server.told) {
            if told.connection == self.connection && self.linked && !self.muted {
                self.reply(told.bytes, told.at, self.slow);
            }
        }
    }

    fn disconnect(&mut self) {
        self.server.forget(self.connection);
        (self.linked, self.muted, self.owed, self.slow, self.stalled) = (false, false, 0, 0, 0);
        self.incoming.clear();
        (self.ends_at, self.cut, self.surplus) = (None, None, false);
    }

    fn wrong(&mut self, text: impl Into<String>) {
        self.wrong.push(text.into());
    }

    /// Plays the scene's call to its end.
    pub fn play(&mut self, schedule: &Schedule) -> Outcome {
        let want = (self.scene.want)();
        let mut machine = Machine::new(&self.redis, want, b"key", TOKEN, self.scene.wait_ms, self.now);
        self.drive(&mut machine, schedule)
    }

    /// The server is there again, and does what it was asked for.
    pub fn heal(&mut self) {
        (self.stopped, self.gone) = (0, 0);
        for (at, _) in &mut self.later {
            *at = (*at).min(self.now + 3000 * NS_PER_MS);
        }
    }

    /// A call of the same process that only looks, without faults.
    pub fn look(&mut self) {
        let mut machine = Machine::new(&self.redis, Want::Inspect, b"key", b"", 0, self.now);
        let outcome = self.drive(&mut machine, &[]);
        assert!(matches!(outcome.answer, Some(Ok(Answer::Hold(_)))), "{outcome:?}");
    }

    fn drive(&mut self, machine: &mut Machine, schedule: &Schedule) -> Outcome {
        let begun = self.now;
        let mut outcome = Outcome {
            answer: None,
            before: None,
            took: 0,
            steps: Vec::new(),
            wrong: Vec::new(),
            left_at: None,
            abandoned: false,
            bytes: 0,
        };
        loop {
            let place = outcome.steps.len();
            if place > MOST_STEPS {
                self.wrong("it runs in a circle");
                break;
            }
            if outcome.steps.last() == Some(&Kind::Done) && !schedule.iter().any(|(at, _)| *at == place) {
                break;
            }
            let faults: Vec<_> = schedule.iter().filter(|(at, _)| *at == place).map(|(_, fault)| *fault).collect();
            if faults.contains(&Fault::Abandon) {
                (outcome.left_at, outcome.abandoned) = (Some(self.now - begun), true);
                outcome.before = machine.answer().cloned();
                machine.abandon(&self.redis, false, self.now);
                break;
            }
            if faults.contains(&Fault::Cancel) {
                outcome.left_at = Some(self.now - begun);
                machine.cancel(&self.redis, self.now);
            }
            for fault in &faults {
                self.another(*fault);
            }
            let fault = faults.into_iter().next();
            outcome.steps.push(self.step(machine, fault));
        }
        self.disconnect();
        outcome.answer = machine.answer().cloned().filter(|_| !outcome.abandoned);
        if !outcome.abandoned {
            machine.abandon(&self.redis, true, self.now); // as an op does that is freed in the end
        }
        (outcome.took, outcome.bytes) = (self.now - begun, std::mem::take(&mut self.bytes));
        outcome.wrong = std::mem::take(&mut self.wrong);
        outcome
    }

    /// Another call of this process, whose connection is lost.
    fn another(&mut self, fault: Fault) {
        let late = match fault {
            Fault::Stops(ms) => {
                self.stopped = self.now + ms * NS_PER_MS;
                return;
            }
            Fault::Gone(ms) => {
                self.gone = self.now + ms * NS_PER_MS;
                return self.reset();
            }
            Fault::OtherLost => None,
            Fault::OtherLate(ms) => Some(ms),
            _ => return,
        };
        let mut machine = Machine::new(&self.redis, Want::Inspect, b"other", b"", 0, self.now);
        assert!(matches!(machine.next(&self.redis, self.now), Step::Connect { .. }));
        machine.connected(&self.redis, false, self.now);
        assert!(matches!(machine.next(&self.redis, self.now), Step::Send { .. }));
        if let Some(ms) = late {
            self.connections += 1;
            self.arrive_later(self.connections, machine.outgoing().to_vec(), ms);
        }
        machine.abandon(&self.redis, false, self.now);
    }

    fn arrive_later(&mut self, connection: usize, bytes: Vec<u8>, ms: u64) {
        self.later.push((self.now + ms * NS_PER_MS, Event::Arrives(connection, commands(&bytes))));
    }

    fn step(&mut self, machine: &mut Machine, fault: Option<Fault>) -> Kind {
        let step = machine.next(&self.redis, self.now);
        if let Step::Connect { ms: 0, .. } | Step::Send { ms: 0 } | Step::Receive { ms: 0 } | Step::Sleep { ms: 0 } =
            step
        {
            self.wrong("a step of no time");
        }
        let until = |ms: u32| self.now + u64::from(ms) * NS_PER_MS;
        match step {
            Step::Done { keep } => {
                // Asked again it says the same, of a connection that is its driver's already.
                if keep && self.linked && (self.owed > 0 || !self.incoming.is_empty()) {
                    self.wrong("a connection is kept on which replies are still to come");
                }
                if keep && self.surplus && self.incoming.is_empty() {
                    self.wrong("a connection is kept over which a reply too many has come");
                }
                self.disconnect();
                Kind::Done
            }
            Step::Connect { ms } => {
                let until = until(ms);
                self.connect(machine, fault, until);
                Kind::Connect
            }
            Step::Send { .. } => {
                self.send(machine, fault);
                Kind::Send
            }
            Step::Receive { ms } => {
                let until = until(ms);
                self.receive(machine, fault, until);
                Kind::Receive
            }
            Step::Sleep { ms } => {
                let until = until(ms);
                if fault == Some(Fault::Ends) {
                    self.disconnect();
                    machine.fail(&self.redis, "it ended", self.now);
                }
                self.advance(until);
                Kind::Sleep
            }
            Step::Bell { .. } | Step::Call { .. } => panic!("{step:?}"),
        }
    }

    fn connect(&mut self, machine: &mut Machine, fault: Option<Fault>, until: u64) {
        self.disconnect();
        match fault {
            Some(Fault::Refused) => {
                machine.fail(&self.redis, "refused", self.now);
            }
            _ if self.now < self.gone => {
                machine.fail(&self.redis, "refused", self.now);
            }
            Some(Fault::Silent) => self.advance(until),
            _ => {
                self.connections += 1;
                (self.connection, self.linked) = (self.connections, true);
                let fresh = !self.scene.pooled || machine.wants_fresh();
                if !fresh && let Some(password) = self.server.password.clone() {
                    self.server.receive(self.connection, vec![b"AUTH".to_vec(), password], self.now);
                    self.server.told.clear();
                }
                self.advance(self.now + LATENCY);
                machine.connected(&self.redis, fresh, self.now);
            }
        }
    }

    fn send(&mut self, machine: &mut Machine, fault: Option<Fault>) {
        if !self.linked {
            self.wrong("SEND without a connection");
            {
                let _ = machine.fail(&self.redis, "there is none", self.now);
                return;
            }
        }
        let bytes = machine.outgoing().to_vec();
        if bytes.is_empty() {
            self.wrong("SEND of nothing");
        }
        let mut commands = commands(&bytes);
        self.owed += commands.len();
        self.advance(self.now + LATENCY);
        match fault {
            _ if self.ends_at.is_some() => {}
            Some(Fault::LostBefore) => self.reset(),
            Some(Fault::LostAfter) => {
                self.muted = true;
                self.execute(commands);
                self.reset();
            }
            Some(Fault::Late(ms)) => {
                self.reset();
                self.connections += 1;
                self.arrive_later(self.connections, bytes, ms);
            }
            Some(Fault::Swallowed) => {
                self.muted = true;
                self.execute(commands);
            }
            Some(Fault::Stalled(ms)) => {
                self.stalled = self.now + ms * NS_PER_MS;
                self.arrive_later(self.connection, bytes, ms);
            }
            _ if self.now < self.stalled.max(self.stopped) => {
                let at = self.stalled.max(self.stopped);
                self.later.push((at, Event::Arrives(self.connection, commands)));
            }
            Some(Fault::Error(text)) => {
                commands.pop();
                self.execute(commands);
                self.say(text, 0);
            }
            Some(Fault::SlowError(text, ms)) => {
                commands.pop();
                self.execute(commands);
                self.say(text, ms * NS_PER_MS);
            }
            Some(Fault::FirstError(text)) => {
                commands.remove(0);
                self.say(text, 0);
                self.execute(commands);
            }
            Some(Fault::Instead(text)) => {
                let last = commands.pop().expect("some command");
                self.execute(commands);
                self.muted = true;
                self.execute(vec![last]);
                self.muted = false;
                self.say(text, 0);
            }
            Some(Fault::Surplus(text)) => {
                self.execute(commands);
                if let Some(last) = self.incoming.last_mut() {
                    last.1.extend_from_slice(text.as_bytes());
                    self.surplus = true;
                }
            }
            Some(Fault::Cut(count)) => {
                self.execute(commands);
                self.cut = Some(count);
            }
            Some(Fault::Slow(ms)) => {
                self.slow = ms * NS_PER_MS;
                self.execute(commands);
                self.slow = 0;
            }
            _ => self.execute(commands),
        }
    }

    fn say(&mut self, text: &str, later: u64) {
        self.reply(text.as_bytes().to_vec(), self.now, later);
    }

    /// None overtakes another.
    fn reply(&mut self, bytes: Vec<u8>, at: u64, later: u64) {
        let last = self.incoming.last().map_or(0, |(at, _)| *at);
        self.incoming.push((last.max(at + LATENCY + later), bytes));
    }

    fn execute(&mut self, commands: Vec<Command>) {
        for command in commands {
            self.server.receive(self.connection, command, self.now);
        }
        self.collect();
    }

    /// The connection ends, behind what is on its way.
    fn reset(&mut self) {
        self.muted = true;
        self.ends_at = Some(self.now + LATENCY);
        self.server.forget(self.connection);
    }

    fn receive(&mut self, machine: &mut Machine, fault: Option<Fault>, until: u64) {
        match fault {
            Some(Fault::Silent) => return self.advance(until),
            Some(Fault::Ends) => {
                self.disconnect();
                {
                    let _ = machine.fail(&self.redis, "it ended", self.now);
                    return;
                }
            }
            _ => {}
        }
        loop {
            let reply = self.incoming.first().map(|(at, _)| *at);
            let first = reply.into_iter().chain(self.ends_at).min();
            let Some(at) = first.filter(|at| *at <= until) else {
                match self.next_event().filter(|at| *at <= until) {
                    Some(at) => self.advance(at),
                    None => return self.advance(until),
                }
                continue;
            };
            if self.next_event().is_some_and(|event| event < at) {
                let event = self.next_event().expect("just seen");
                self.advance(event);
                continue;
            }
            self.now = self.now.max(at);
            if reply == Some(at) {
                self.deliver(machine);
            } else {
                self.disconnect();
                machine.fail(&self.redis, "the server closed the connection", self.now);
            }
            return;
        }
    }

    fn deliver(&mut self, machine: &mut Machine) {
        if self.pieces == Pieces::Glued {
            self.advance(self.now + 2 * LATENCY);
        }
        let now = self.now;
        let mut bytes = Vec::new();
        while self.incoming.first().is_some_and(|(at, _)| *at <= now) {
            bytes.extend(self.incoming.remove(0).1);
            self.owed = self.owed.saturating_sub(1);
            if self.pieces != Pieces::Glued {
                break;
            }
        }
        let before = self.bytes;
        self.bytes += bytes.len();
        if let Some(count) = self.cut.take() {
            bytes.truncate(count);
            machine.feed(&self.redis, &bytes, now);
            self.incoming.clear();
            self.reset();
            return;
        }
        match self.pieces {
            Pieces::AsSent | Pieces::Glued => drop(machine.feed(&self.redis, &bytes, now)),
            Pieces::Bytes => self.feed_bytes(machine, &bytes),
            Pieces::CutAt(at) if at > before && at < self.bytes => {
                let (first, second) = bytes.split_at(at - before);
                machine.feed(&self.redis, first, now);
                assert!(matches!(machine.next(&self.redis, now), Step::Receive { .. }));
                machine.feed(&self.redis, second, now);
            }
            Pieces::CutAt(_) => drop(machine.feed(&self.redis, &bytes, now)),
        }
    }

    fn feed_bytes(&self, machine: &mut Machine, bytes: &[u8]) {
        for (place, byte) in bytes.iter().enumerate() {
            machine.feed(&self.redis, &[*byte], self.now);
            if place + 1 < bytes.len() {
                machine.next(&self.redis, self.now);
            }
        }
    }
}

/// The lock, if that is the answer.
pub fn held(answer: Option<&Result<Answer, Error>>) -> Option<buflock::answer::Held> {
    match answer {
        Some(Ok(Answer::Acquire(Acquire::Held(held)))) => Some(*held),
        _ => None,
    }
}
