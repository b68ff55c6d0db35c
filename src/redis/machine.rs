//! One call as steps: what to send, what a reply means, and what to do when none comes.
//!
//! No I/O and no clock: a driver says what time it is and what it received. So blocking calls, event loops and a
//! caller's own client all go this way.
//!
//! A lost reply is settled before the caller is answered: the same command goes again over another connection, with the
//! same token, by which the script knows what is ours. Where that fails too, what may be held is given back; and where
//! even that is not known to have worked, it is remembered and goes ahead of a later command.

use super::Redis;
use super::names::{ACQUIRERS, AWAITERS, Names};
use super::orphans::Orphan;
use super::scripts::Script;
use super::wire::{Replies, Reply, write_command};
use crate::answer::{Acquire, Answer, Await, Busy, Held, Hold, Holder, Verdict};
use crate::error::{Error, ServerFault};
use crate::hooks::{Mutant, mutant};
use crate::policy::{NS_PER_MS, ms_left, ms_passed};
use crate::step::Step;
use crate::token::Token;
use std::collections::VecDeque;

/// What is wanted.
#[derive(Clone, Debug)]
pub enum Want {
    /// The lock.
    Acquire {
        /// For how long.
        ttl_ms: u32,
        /// Whether it matters how long another holds it.
        tell_left: bool,
    },
    /// A new lease.
    Extend {
        /// From now on.
        ttl_ms: u32,
    },
    /// That it be free.
    Release,
    /// To know when the present hold ends.
    Await,
    /// To know who holds it.
    Inspect,
    /// That it be free, whoever holds it.
    Break,
}

/// What the scripts say of a lock whose end is not known: it has none, or this user may not ask for it.
const UNKNOWN_LEFT: i64 = 2_147_483_647;
/// The longest wait for a signal, in ms: a signal is lost when the waiter that it woke dies.
const SLICE: u64 = 500;
/// The shortest, in ms: to Redis 6 a wait of 0.001 s is one of 0, which is for ever.
const SHORTEST: u64 = 2;
/// How much later than its time a server ends a wait by itself: it looks ten times a second.
const LATE: u64 = 150 * NS_PER_MS;
/// How long behind the end of a slice the next command is sent, which makes the server look at once.
const NUDGE: u64 = NS_PER_MS * 3 / 2;
/// How many connections a command is tried on.
const TRIES: u32 = 3;
/// What a server that speaks TLS says first to one who does not.
const TLS_ALERT: u8 = 0x15;
/// A token that no value begins with: values are compared by 32 bytes.
const NOBODY: &[u8] = b"a token of another form is nobody's";

/// A reply that is still to come.
#[derive(Debug)]
enum Expected {
    /// Of AUTH or SELECT.
    Setup,
    /// Of a release that went ahead.
    Orphan(Orphan),
    /// Of a wait for a signal.
    Signal,
    /// Of the command.
    Command,
}

/// Where the driver is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum At {
    Begin,
    Connect { until: u64 },
    Send { until: u64 },
    Receive { until: u64 },
    Sleep { until: u64 },
    Call { until: u64 },
    Done,
}

/// What the command is for.
#[derive(Debug)]
enum Aim {
    /// What is wanted.
    Wanted,
    /// To give back what may be held; then the first is the answer, and the second where that is not known to have
    /// worked.
    GiveBack(Box<[Result<Answer, Error>; 2]>),
}

/// The state of one call.
#[derive(Debug)]
pub struct Machine {
    want: Want,
    aim: Aim,
    names: Names,
    token: Vec<u8>,
    begun: u64,
    /// When the wait ends.
    deadline: u64,
    /// When a round of tries ends.
    limit: u64,
    at: At,
    linked: bool,
    fresh: bool,
    expected: VecDeque<Expected>,
    replies: Replies,
    outgoing: Vec<u8>,
    /// Of a command that the caller's client carries.
    arguments: Vec<Vec<u8>>,
    /// When the command was last sent.
    sent: u64,
    /// Connections that this round has lost.
    losses: u32,
    /// Whether the command was sent and its reply lost.
    doubtful: bool,
    /// Whether such a try of an acquire may still be under way, whatever later ones were answered.
    strays: bool,
    /// Whether the script goes as text.
    as_text: bool,
    /// The last error that came before the command's own reply. A server that is full says so and closes, and that
    /// looks like the reply to a release that went ahead.
    said: String,
    /// Whether the command was last sent with the lock's own key alone, and with the script's hash.
    one_key: bool,
    by_hash: bool,
    /// Whether it was a plain SET.
    by_set: bool,
    pauses: u32,
    /// Whether any was lost: a kept connection may be as dead as that.
    wants_fresh: bool,
    /// Whether a wait for a signal has cost a connection.
    by_steps: bool,
    /// Whether the driver was told to keep its connection.
    kept: bool,
    waited: bool,
    cancelled: bool,
    /// An await's: whose end is waited for.
    seen: Vec<u8>,
    answer: Option<Result<Answer, Error>>,
}

impl Machine {
    /// A call for a caller's key at `now`, that waits at most `wait_ms`. `token`: the new one of an acquire, or the
    /// one of the hold that is meant.
    pub fn new(redis: &Redis, want: Want, key: &[u8], token: &[u8], wait_ms: u32, now: u64) -> Self {
        let token = if token.len() == Token::LENGTH { token } else { NOBODY };
        Self {
            want,
            aim: Aim::Wanted,
            names: Names::new(&redis.settings, key),
            token: token.to_vec(),
            begun: now,
            deadline: now + u64::from(wait_ms) * NS_PER_MS,
            limit: now,
            at: At::Begin,
            linked: false,
            fresh: false,
            expected: VecDeque::new(),
            replies: Replies::default(),
            outgoing: Vec::new(),
            arguments: Vec::new(),
            sent: now,
            losses: 0,
            doubtful: false,
            strays: false,
            as_text: false,
            said: String::new(),
            one_key: false,
            by_hash: false,
            by_set: false,
            pauses: 0,
            wants_fresh: false,
            by_steps: false,
            kept: false,
            waited: false,
            cancelled: false,
            seen: Vec::new(),
            answer: None,
        }
    }

    /// What is to be sent.
    pub fn outgoing(&self) -> &[u8] {
        &self.outgoing
    }

    /// An argument of the command that the caller's client is to carry.
    pub fn argument(&self, index: usize) -> Option<&[u8]> {
        match self.at {
            At::Call { .. } => self.arguments.get(index).map(Vec::as_slice),
            _ => None,
        }
    }

    /// The answer, once it is done.
    pub fn answer(&self) -> Option<&Result<Answer, Error>> {
        self.answer.as_ref()
    }

    /// Whether it may wait long, so that its connection is best not shared with calls that don't.
    pub fn may_wait(&self) -> bool {
        self.deadline > self.begun
    }

    /// Whether it may be told that there is no connection for it. What gives a lock back, or keeps it, may not.
    pub fn may_be_refused(&self) -> bool {
        matches!(self.aim, Aim::Wanted) && !matches!(self.want, Want::Release | Want::Extend { .. })
    }

    /// Whether a connection that was kept will not do.
    pub fn wants_fresh(&self) -> bool {
        self.wants_fresh
    }

    /// What to do next, at `now`.
    pub fn next(&mut self, redis: &Redis, now: u64) -> Step {
        loop {
            match self.at {
                At::Begin => self.begin(redis, now),
                At::Connect { until } if now < until => return Step::Connect { ms: left(until, now) },
                At::Connect { .. } => self.lost(redis, now, &timed_out("connecting", redis.connect_time())),
                At::Send { until } => {
                    self.at = At::Receive { until };
                    return Step::Send { ms: left(until, now) };
                }
                At::Receive { until } if now < until => return Step::Receive { ms: left(until, now) },
                At::Receive { .. } if self.may_nudge(redis) => self.ask(redis, now),
                At::Receive { .. } => self.lost(redis, now, &timed_out("the reply", now.saturating_sub(self.sent))),
                At::Sleep { until } if now < until => return Step::Sleep { ms: left(until, now) },
                At::Sleep { .. } => self.ask(redis, now),
                At::Call { until } if now < until => return Step::Call { ms: left(until, now), count: self.count() },
                At::Call { .. } => self.carried_badly(redis, &timed_out("the call", redis.command_time())),
                At::Done => {
                    // The driver has it back, and may ask again; what a cancel sends asks for another.
                    self.kept |= self.is_clean();
                    self.linked = false;
                    return Step::Done { keep: self.kept };
                }
            }
        }
    }

    fn count(&self) -> u32 {
        u32::try_from(self.arguments.len()).unwrap_or(0)
    }

    fn is_clean(&self) -> bool {
        self.linked
            && (self.expected.is_empty() || mutant(Mutant::KeepsWhatIsOwed))
            && (self.replies.is_empty() || mutant(Mutant::SurplusBelieved))
    }

    fn begin(&mut self, redis: &Redis, now: u64) {
        if redis.server.is_some()
            && let Some(error) = redis.refusal(now, !self.may_be_refused())
        {
            return self.end_in_doubt(redis, now, error);
        }
        self.ask(redis, now);
    }

    /// Begins a round: the command goes over the connection in use, or another is asked for.
    fn ask(&mut self, redis: &Redis, now: u64) {
        (self.limit, self.losses) = (now + redis.budget(), 0);
        if redis.server.is_none() {
            self.call(redis, now);
        } else if self.linked {
            self.send(redis, now);
        } else {
            self.connect(redis, now);
        }
    }

    fn connect(&mut self, redis: &Redis, now: u64) {
        self.at = At::Connect { until: self.limit.min(now + redis.connect_time()) };
    }

    /// The connection stands. `fresh`: nobody has used it before.
    pub fn connected(&mut self, redis: &Redis, fresh: bool, now: u64) -> bool {
        let At::Connect { until } = self.at else { return false };
        (self.linked, self.fresh) = (true, fresh);
        if fresh {
            redis.forget_rights();
            self.outgoing.clear();
            match redis.write_setup(&mut self.outgoing) {
                Ok(0) => {}
                Ok(count) => {
                    self.expected.extend((0..count).map(|_| Expected::Setup));
                    self.sent = now;
                    self.at = At::Send { until }; // AUTH and SELECT belong to connecting
                    return true;
                }
                Err(error) => {
                    self.linked = false;
                    self.give_up(redis, error, now);
                    return true;
                }
            }
        }
        self.send(redis, now);
        true
    }

    /// Writes the command, and before it what must be released.
    fn send(&mut self, redis: &Redis, now: u64) {
        self.outgoing.clear();
        if self.expected.is_empty() {
            for orphan in redis.local().orphans.take(&self.token, now) {
                let keys: Vec<&[u8]> = orphan.keys.iter().map(Vec::as_slice).collect();
                let count = keys.len().to_string();
                let head = [b"EVAL", Script::Release.text().as_bytes(), count.as_bytes()];
                write_command(&mut self.outgoing, &[&head[..], &keys, &[&orphan.token]].concat());
                self.expected.push_back(Expected::Orphan(orphan));
            }
        }
        self.write_command(redis, now);
        self.expected.push_back(Expected::Command);
        self.sent = now;
        self.at = At::Send { until: self.reply_limit(redis, now) };
    }

    /// Until when a reply may come.
    fn reply_limit(&self, redis: &Redis, now: u64) -> u64 {
        if mutant(Mutant::IgnoresBudget) {
            return now + redis.budget() + redis.command_time();
        }
        (now + redis.command_time()).min(self.limit - self.reserve(redis))
    }

    /// Time that an acquire does not spend on tries, but keeps to give back what may be held.
    fn reserve(&self, redis: &Redis) -> u64 {
        if self.is_acquire() && matches!(self.aim, Aim::Wanted) { redis.budget() / 10 } else { 0 }
    }

    fn is_acquire(&self) -> bool {
        matches!(self.want, Want::Acquire { .. })
    }

    fn write_command(&mut self, redis: &Redis, now: u64) {
        if let (Want::Acquire { ttl_ms, tell_left: false }, Aim::Wanted) = (&self.want, &self.aim)
            && !self.may_wait()
            && (!self.doubtful || mutant(Mutant::RetriesBySet))
            && !redis.settings.fencing
        {
            let (ttl, value) = (ttl_ms.to_string(), self.value(redis));
            let command = [b"SET", &self.names.lock[..], &value, b"NX", b"PX", ttl.as_bytes()];
            let command = if mutant(Mutant::SetWithoutTime) { &command[..4] } else { &command };
            (self.by_set, self.one_key, self.by_hash) = (true, true, false); // there is no other form of it
            return write_command(&mut self.outgoing, command);
        }
        let (script, arguments) = self.script(redis, now);
        self.by_set = false;
        (self.one_key, self.by_hash) = (redis.has_one_key(), !self.as_text && !redis.has_no_hashes());
        let keys = self.names.keys(self.one_key);
        let count = keys.len().to_string();
        let head: [&[u8]; 2] =
            if self.by_hash { [b"EVALSHA", script.hash().as_bytes()] } else { [b"EVAL", script.text().as_bytes()] };
        let mut command = vec![head[0], head[1], count.as_bytes()];
        command.extend(keys);
        command.extend(arguments.iter().map(Vec::as_slice));
        write_command(&mut self.outgoing, &command);
    }

    fn value(&self, redis: &Redis) -> Vec<u8> {
        match &redis.settings.label {
            Some(label) if !mutant(Mutant::LabelForgotten) => [&self.token[..], b" ", label.as_bytes()].concat(),
            _ => self.token.clone(),
        }
    }

    /// The script that does what is to be done now, and its arguments.
    fn script(&self, redis: &Redis, now: u64) -> (Script, Vec<Vec<u8>>) {
        let number = |number: u64| number.to_string().into_bytes();
        let waits = || number(u64::from(now < self.deadline && self.can_be_told(redis)));
        match (&self.aim, &self.want) {
            (_, Want::Release) if mutant(Mutant::ReleasesAnybodys) => (Script::Release, vec![Vec::new()]),
            (Aim::GiveBack(_), _) | (_, Want::Release) => (Script::Release, vec![self.token.clone()]),
            (_, Want::Break) => (Script::Release, vec![Vec::new()]),
            (_, Want::Acquire { ttl_ms, .. }) => {
                const DAY: u64 = 24 * 60 * 60 * 1000;
                let ttl = u64::from(*ttl_ms);
                // No more than needed: before AUTH a server takes ten arguments, and only then says what is missing.
                let mut arguments = vec![self.value(redis), number(ttl), waits()];
                if redis.settings.fencing {
                    arguments.push(number(DAY.max(10 * ttl)));
                }
                (Script::Acquire, arguments)
            }
            (_, Want::Extend { ttl_ms }) => (Script::Extend, vec![self.token.clone(), number(u64::from(*ttl_ms))]),
            (_, Want::Await) if mutant(Mutant::AwaitsAnybody) => (Script::Look, vec![Vec::new(), waits()]),
            (_, Want::Await) => (Script::Look, vec![self.seen.clone(), waits()]),
            (_, Want::Inspect) => (Script::Look, vec![Vec::new(), number(0)]),
        }
    }

    /// Has the caller's client carry the command.
    fn call(&mut self, redis: &Redis, now: u64) {
        let Ok(number) = Token::random() else { return self.finish(Err(Error::NoRandom)) };
        let (script, arguments) = self.script(redis, now);
        self.arguments = vec![b"EVAL".to_vec(), script.carried().into(), b"1".to_vec(), self.names.lock.clone()];
        self.arguments.extend(arguments);
        self.arguments.push(number.0.to_vec());
        self.sent = now;
        self.at = At::Call { until: now + redis.command_time() };
    }

    /// What the caller's client got. Only a reply that carries this call's number is one.
    pub fn reply(&mut self, redis: &Redis, reply: &Reply, now: u64) -> bool {
        let At::Call { .. } = self.at else { return false };
        let number = self.arguments.last().map_or(&b""[..], Vec::as_slice);
        let answer = match reply {
            Reply::Text(text) if mutant(Mutant::NumberNotCompared) => text.get(number.len() + 1..),
            Reply::Text(text) => text.strip_prefix(number).and_then(|rest| rest.strip_prefix(b":")),
            _ => None,
        };
        match (answer, reply) {
            (Some(answer), _) => self.understand(redis, &Reply::Text(answer.to_vec()), now),
            (None, Reply::Error(text)) => self.refused(redis, now, text.clone()),
            (None, Reply::Nil) => self.carried_badly(redis, "the client returned no result"),
            (None, _) => self.carried_badly(redis, "out-of-step reply: it is not this call's"),
        }
        true
    }

    fn carried_badly(&mut self, redis: &Redis, why: &str) {
        self.finish(Err(self.uncertain(redis, why)));
    }

    /// The error that it is not known what the server did.
    fn uncertain(&self, redis: &Redis, why: &str) -> Error {
        let fault = match self.want {
            Want::Acquire { .. } => ServerFault::Uncertain(self.own_token()),
            Want::Extend { .. } | Want::Release | Want::Break => ServerFault::Uncertain(None),
            Want::Await | Want::Inspect => ServerFault::Unreachable, // nothing that could have been done
        };
        redis.fault(fault, why)
    }

    fn own_token(&self) -> Option<Token> {
        self.token.as_slice().try_into().ok().map(Token)
    }

    /// Bytes came.
    pub fn feed(&mut self, redis: &Redis, bytes: &[u8], now: u64) -> bool {
        if !matches!(self.at, At::Receive { .. }) {
            return false;
        }
        self.replies.feed(bytes);
        while matches!(self.at, At::Receive { .. }) {
            match self.replies.next() {
                Ok(Some(reply)) => self.take(redis, reply, now),
                Ok(None) => break,
                Err(_) if bytes.first() == Some(&TLS_ALERT) => {
                    self.lost(redis, now, "the server speaks TLS: use rediss://");
                }
                Err(_) => self.lost(redis, now, "what came is no reply of Redis"),
            }
        }
        true
    }

    /// Connecting, sending, receiving or the caller's client failed.
    pub fn fail(&mut self, redis: &Redis, why: &str, now: u64) -> bool {
        match self.at {
            At::Connect { .. } => self.lost(redis, now, &format!("connecting failed: {why}")),
            At::Send { .. } | At::Receive { .. } => self.lost(redis, now, why),
            At::Call { .. } => self.carried_badly(redis, why),
            At::Sleep { .. } => self.linked = false,
            _ => return false,
        }
        true
    }

    /// It cannot be connected, and to try again is of no use.
    pub fn give_up(&mut self, redis: &Redis, error: Error, now: u64) {
        if let Aim::GiveBack(_) = self.aim {
            return self.end_giving_back(redis, false, now);
        }
        self.end_in_doubt(redis, now, error);
    }

    fn take(&mut self, redis: &Redis, reply: Reply, now: u64) {
        if self.expected.len() <= 1 && !self.replies.is_empty() && !mutant(Mutant::SurplusBelieved) {
            return self.lost(redis, now, "a reply came that nothing was asked for"); // which of them it is, nobody knows
        }
        match (self.expected.pop_front(), reply) {
            (None, _) => self.lost(redis, now, "a reply came that nothing was asked for"),
            (Some(Expected::Setup), Reply::Error(text)) => {
                self.linked = false;
                self.refused(redis, now, text);
            }
            (Some(Expected::Setup), reply) if !reply.is_ok() => self.lost(redis, now, "the reply is not one of AUTH"),
            (Some(Expected::Setup), _) if self.expected.is_empty() => self.send(redis, now),
            (Some(Expected::Setup), _) => {}
            (Some(Expected::Orphan(orphan)), reply) => {
                if let Reply::Error(text) = &reply {
                    self.said = redis.without_password(text.clone());
                }
                still_orphan(redis, orphan, &reply, now);
            }
            (Some(Expected::Signal), reply) => self.take_signal(redis, &reply, now),
            (Some(Expected::Command), Reply::Error(text)) => self.take_refusal(redis, now, text),
            (Some(Expected::Command), reply) => self.understand(redis, &reply, now),
        }
    }

    /// A reply that the command does not have: what it did is not known.
    fn misunderstood(&mut self, redis: &Redis, now: u64) {
        const WHY: &str = "the reply is not one of this command";
        if redis.server.is_none() {
            return self.carried_badly(redis, WHY);
        }
        self.expected.push_front(Expected::Command);
        self.lost(redis, now, WHY);
    }

    /// An error reply to the command: another form of it may do.
    fn take_refusal(&mut self, redis: &Redis, now: u64, text: String) {
        let kind = text.split(' ').next().unwrap_or_default();
        match kind {
            "NOAUTH" if !self.fresh => return self.lost(redis, now, &text), // its rights were taken away
            "NOSCRIPT" if !self.as_text => self.as_text = true,
            // Judged by the form that was sent: another thread may have learnt of the rights meanwhile.
            "NOPERM" if self.by_hash && text.contains("evalsha") => redis.note_no_hashes(),
            // A fence needs its key.
            "NOPERM" | "CROSSSLOT" | "TRYAGAIN" if !self.one_key && !redis.settings.fencing => redis.note_one_key(),
            _ => return self.refused(redis, now, text),
        }
        self.send(redis, now);
    }

    fn refused(&mut self, redis: &Redis, now: u64, text: String) {
        if let Aim::GiveBack(_) = self.aim {
            return self.end_giving_back(redis, false, now);
        }
        let text = redis.without_password(text);
        if is_state_of_the_server(&text) {
            redis.note_failure(now, self.random(), &text, true);
            // It may be master no more, and its name another's.
            self.linked = false;
            redis.local().resolver.expire();
        } else {
            redis.note_answer();
        }
        self.end_in_doubt(redis, now, redis.fault(ServerFault::Refused, &text));
    }

    /// Ends with an error; what may be held, or was to be released, is remembered.
    fn end_in_doubt(&mut self, redis: &Redis, now: u64, error: Error) {
        if matches!(self.want, Want::Release) {
            self.leave_orphan(redis, now);
        }
        if self.strays {
            self.leave_orphan(redis, now);
            return self.finish(Err(self.uncertain(redis, &format!("a reply was lost, and then: {error}"))));
        }
        self.finish(Err(error));
    }

    /// What the command's reply means.
    fn understand(&mut self, redis: &Redis, reply: &Reply, now: u64) {
        let number = match reply {
            Reply::Integer(number) => Some(*number),
            Reply::Text(_) if redis.server.is_none() => reply.integer(), // it came with the number of its call
            _ => None,
        };
        if let Aim::GiveBack(_) = self.aim {
            return match number {
                Some(-1..=1) => self.end_giving_back(redis, true, now),
                _ => self.misunderstood(redis, now),
            };
        }
        match (&self.want, number) {
            (Want::Acquire { .. }, _) if self.by_set => match reply {
                Reply::Nil if mutant(Mutant::NilIsHeld) => self.acquired_or_not(redis, 0, now),
                Reply::Nil => self.acquired_or_not(redis, UNKNOWN_LEFT, now),
                reply if reply.is_ok() => self.acquired_or_not(redis, 0, now),
                _ => self.misunderstood(redis, now),
            },
            (Want::Acquire { .. }, Some(number)) => self.acquired_or_not(redis, number, now),
            (Want::Extend { .. } | Want::Release | Want::Break, Some(number @ -1..=1)) => {
                let verdict = match number {
                    1 => Verdict::Ok,
                    -1 if mutant(Mutant::TakenIsOk) => Verdict::Ok,
                    // The release whose reply was lost has done it.
                    _ if self.doubtful && !matches!(self.want, Want::Extend { .. }) => Verdict::Ok,
                    0 => Verdict::Expired,
                    _ => Verdict::Taken,
                };
                redis.note_answer();
                self.finish(Ok(Answer::Verdict(verdict)));
            }
            (Want::Await | Want::Inspect, _) => self.looked(redis, reply, now),
            _ => self.misunderstood(redis, now),
        }
    }

    /// An acquire's reply: above 0 the lock is another's for so many ms, else it is ours.
    fn acquired_or_not(&mut self, redis: &Redis, number: i64, now: u64) {
        redis.note_answer();
        self.doubtful = false;
        if number <= 0 {
            if self.cancelled {
                return self.cancel_hold(redis, now);
            }
            return self.finish(Ok(Answer::Acquire(Acquire::Held(self.held(number.unsigned_abs(), now)))));
        }
        let left_ms = left_ms(number);
        if self.cancelled || now >= self.deadline {
            if !self.waited {
                redis.counts.busy();
            }
            let busy = Busy { left_ms, waited_ms: self.waited_ms(now), holder: Holder::Unknown };
            self.leave_strays(redis, now);
            return self.finish(Ok(Answer::Acquire(Acquire::Busy(busy))));
        }
        self.wait(redis, number, ACQUIRERS, now);
    }

    fn held(&self, fence: u64, now: u64) -> Held {
        let (Want::Acquire { ttl_ms, .. }, Some(token)) = (&self.want, self.own_token()) else {
            unreachable!("only an acquire holds, with a token of ours")
        };
        // The lease began between sending and receiving; and clocks differ by up to 1 %.
        let passed = ms_left(now.saturating_sub(self.sent)).saturating_add(ttl_ms / 100 + 2);
        let passed = if mutant(Mutant::LeaseFromReply) { 0 } else { passed };
        let fence = if mutant(Mutant::FenceForgotten) { 0 } else { fence };
        Held { token, fence, left_ms: ttl_ms.saturating_sub(passed), waited_ms: self.waited_ms(now) }
    }

    fn waited_ms(&self, now: u64) -> u32 {
        if self.waited { ms_passed(now - self.begun) } else { 0 }
    }

    /// The reply of a look: `0`, or what is left and the value.
    fn looked(&mut self, redis: &Redis, reply: &Reply, now: u64) {
        let parts = match reply {
            Reply::Text(text) => text.iter().position(|byte| *byte == b' ').map(|at| (&text[..at], &text[at + 1..])),
            _ => None,
        };
        let parts = parts.and_then(|(left, value)| Some((std::str::from_utf8(left).ok()?.parse().ok()?, value)));
        if parts.is_none() && reply.integer() != Some(0) {
            return self.misunderstood(redis, now);
        }
        redis.note_answer();
        match (&self.want, parts) {
            (Want::Inspect, parts) => {
                let hold = parts.map(|(left, value)| Hold {
                    left_ms: left_ms(left),
                    holder: Holder::Unknown,
                    label: label(value),
                });
                self.finish(Ok(Answer::Hold(hold)));
            }
            (_, None) => self.finish(Ok(Answer::Await(Await::Over))),
            _ if self.cancelled || now >= self.deadline => self.finish(Ok(Answer::Await(Await::Busy))),
            (_, Some((left, value))) => {
                self.seen = value[..value.len().min(Token::LENGTH)].to_vec();
                self.wait(redis, left, AWAITERS, now);
            }
        }
    }

    /// Waits for a signal in list number `list`, or by steps, while another holds the lock for `number` ms.
    fn wait(&mut self, redis: &Redis, number: i64, list: usize, now: u64) {
        if !std::mem::replace(&mut self.waited, true) {
            redis.counts.waits();
        }
        // A random millisecond more, so that those who wait for a dead holder's end don't all come at once.
        let holder = u64::try_from(number).unwrap_or(0).saturating_add(1 + u64::from(self.random() % 8));
        let remaining = u64::from(ms_left(self.deadline.saturating_sub(now)));
        let slice = holder.min(SLICE).min(remaining).max(SHORTEST);
        if !self.can_be_told(redis) {
            let step = redis.settings.steps().pause_ns(self.pauses);
            let step = step * 3 / 4 + step / 2 * u64::from(self.random() % 1024) / 1023; // 25 % either way
            self.pauses = self.pauses.saturating_add(1);
            redis.counts.steps();
            self.at = At::Sleep { until: now + step.min(slice * NS_PER_MS).max(NS_PER_MS) };
            return;
        }
        let time = format!("{}.{:03}", slice / 1000, slice % 1000); // in seconds, and never 0, which is for ever
        self.outgoing.clear();
        if let Some(others) = &self.names.others {
            let from = &others[list][..];
            match list {
                ACQUIRERS => write_command(&mut self.outgoing, &[b"BLPOP", from, time.as_bytes()]),
                // From the list to itself: it wakes one after the other, and is still there for the next.
                _ => write_command(&mut self.outgoing, &[b"BRPOPLPUSH", from, from, time.as_bytes()]),
            }
        }
        self.expected.push_back(Expected::Signal);
        self.sent = now;
        let late = if redis.settings.nudge { NUDGE } else { LATE + redis.command_time() };
        self.at = At::Send { until: now + slice * NS_PER_MS + late };
    }

    /// Whether a release can tell it.
    fn can_be_told(&self, redis: &Redis) -> bool {
        redis.server.is_some() && !self.by_steps && self.names.others.is_some() && redis.has_signals()
    }

    /// Bits that differ between calls and tries. What is random in a token is not told to anybody by this.
    fn random(&self) -> u32 {
        let mix = |sum: u32, byte: &u8| (sum ^ u32::from(*byte)).wrapping_mul(0x0100_0193);
        let begun = self.begun.to_le_bytes();
        let pauses = self.pauses.to_le_bytes();
        self.token.iter().chain(&begun).chain(&pauses).fold(0x811c_9dc5, mix) >> 7
    }

    /// Whether the time that is over is that of a wait for a signal: then the next command makes the server look.
    fn may_nudge(&self, redis: &Redis) -> bool {
        redis.settings.nudge && !mutant(Mutant::NeverNudges) && matches!(self.expected.back(), Some(Expected::Signal))
    }

    fn take_signal(&mut self, redis: &Redis, reply: &Reply, now: u64) {
        let goes_on = self.expected.is_empty(); // else the next command was sent already
        match reply {
            // Else the command that was sent behind it may have been done: its own reply says so.
            Reply::Error(text) if is_state_of_the_server(text) => {
                if goes_on {
                    self.refused(redis, now, text.clone());
                }
                return;
            }
            Reply::Error(_) => redis.note_no_signals(),
            Reply::Nil => {}
            Reply::Text(text) if matches!(self.want, Want::Await) && text == b"1" => {
                // It was sent behind our look, so the hold that we saw is over.
                return self.finish(Ok(Answer::Await(Await::Over)));
            }
            Reply::List(_) if self.is_acquire() => {}
            _ => return self.lost(redis, now, "the reply is not that of a wait"),
        }
        if goes_on {
            self.ask(redis, now);
        }
    }

    /// The connection is lost, or of no use any more.
    fn lost(&mut self, redis: &Redis, now: u64, why: &str) {
        let said = std::mem::take(&mut self.said);
        let why = &if said.is_empty() { why.to_owned() } else { format!("{said}; {why}") };
        let connecting = matches!(self.at, At::Connect { .. });
        let stale = self.linked && !self.fresh;
        let (mut asked, mut waited) = (false, false);
        for expected in self.expected.drain(..) {
            match expected {
                Expected::Orphan(orphan) => redis.local().orphans.add(orphan),
                Expected::Command => asked = true,
                Expected::Signal => waited = true,
                Expected::Setup => {}
            }
        }
        self.by_steps |= waited;
        if waited && !asked {
            (self.limit, self.losses) = (now + redis.budget(), 0); // it was not the command that took so long
        }
        (self.linked, self.wants_fresh) = (false, true);
        self.replies.clear();
        self.doubtful |= asked && matches!(self.aim, Aim::Wanted);
        self.strays |= self.doubtful && self.is_acquire();
        self.losses += u32::from(!stale); // one that lay in a pool may have died there
        redis.counts.lost_connection();
        let reserve = if self.doubtful { self.reserve(redis) } else { 0 };
        let has_time = now + NS_PER_MS < self.limit.saturating_sub(reserve);
        let giving_back = matches!(self.aim, Aim::GiveBack(_));
        // A second break might free the next holder.
        let ends_here =
            asked && matches!(self.want, Want::Break) && !mutant(Mutant::BreaksTwice) || self.cancelled_before_asking();
        if !connecting && self.losses < TRIES && has_time && !ends_here {
            return self.connect(redis, now);
        }
        if giving_back {
            return self.end_giving_back(redis, false, now);
        }
        redis.note_failure(now, self.random(), why, false);
        let unreachable = |why: &str| redis.fault(ServerFault::Unreachable, why);
        if !self.doubtful && !self.strays {
            return self.end_in_doubt(redis, now, unreachable(why));
        }
        let uncertain = if mutant(Mutant::LossIsBusy) { busy() } else { Err(self.uncertain(redis, why)) };
        if self.is_acquire() && !connecting && now + NS_PER_MS < self.limit {
            let taken_back = format!("{why}; what may have been done was taken back");
            return self.give_back(redis, now, [Err(unreachable(&taken_back)), uncertain]);
        }
        if self.is_acquire() || matches!(self.want, Want::Release) {
            self.leave_orphan(redis, now);
        }
        self.finish(uncertain);
    }

    fn cancelled_before_asking(&self) -> bool {
        self.cancelled && !self.doubtful
    }

    /// Releases what is or may be held, then ends with one of `answers`.
    fn give_back(&mut self, redis: &Redis, now: u64, answers: [Result<Answer, Error>; 2]) {
        self.aim = Aim::GiveBack(Box::new(answers));
        (self.answer, self.kept) = (None, false);
        if matches!(self.at, At::Receive { .. }) && !self.linked {
            self.losses = TRIES; // its connection was lost: one try, in the time that was kept for it
            self.connect(redis, now);
        } else {
            self.ask(redis, now);
        }
    }

    /// Ends BUSY. Where what is held can neither be given back nor remembered, it says so.
    fn cancel_hold(&mut self, redis: &Redis, now: u64) {
        let failed = match redis.server {
            Some(_) => busy(),
            None => Err(self.uncertain(redis, "it was cancelled, and giving it back failed")),
        };
        self.give_back(redis, now, [busy(), failed]);
    }

    fn end_giving_back(&mut self, redis: &Redis, worked: bool, now: u64) {
        if !worked || self.strays {
            self.leave_orphan(redis, now); // once more: what was sent first may come last
        }
        if let Aim::GiveBack(answers) = std::mem::replace(&mut self.aim, Aim::Wanted) {
            let [after_success, after_failure] = *answers;
            self.finish(if worked { after_success } else { after_failure });
        }
    }

    /// At the end of an acquire that holds nothing. Not before: its token would be released, by whoever sends the next
    /// command, while it still tries with it.
    fn leave_strays(&self, redis: &Redis, now: u64) {
        if self.strays {
            self.leave_orphan(redis, now);
        }
    }

    fn leave_orphan(&self, redis: &Redis, now: u64) {
        if redis.server.is_none() {
            return; // a caller's own client gets no commands that it did not ask for
        }
        if mutant(Mutant::OrphansForgotten) {
            return;
        }
        let until = match self.want {
            Want::Acquire { ttl_ms, .. } => now + u64::from(ttl_ms) * NS_PER_MS,
            _ => u64::MAX, // who releases does not say how long the lease was
        };
        let keys = self.names.keys(redis.has_one_key()).into_iter().map(<[u8]>::to_vec).collect();
        let (token, may_be_late) = (self.token.clone(), self.is_acquire());
        redis.local().orphans.add(Orphan { keys, token, until, after: now, may_be_late });
    }

    fn finish(&mut self, answer: Result<Answer, Error>) {
        self.answer = Some(answer);
        self.at = At::Done;
    }

    /// The caller has lost interest. An acquire ends BUSY as soon as nothing is held, an await at once.
    pub fn cancel(&mut self, redis: &Redis, now: u64) {
        match self.want {
            Want::Await if self.answer.is_none() => self.finish(Ok(Answer::Await(Await::Busy))),
            Want::Acquire { .. } => {
                self.cancelled = true;
                match &self.answer {
                    Some(Ok(Answer::Acquire(Acquire::Held(_)))) => self.cancel_hold(redis, now),
                    Some(_) => {}
                    None if self.may_be_held() && !mutant(Mutant::CancelForgets) => {}
                    None => {
                        self.leave_strays(redis, now);
                        self.finish(busy());
                    }
                }
            }
            _ => {}
        }
    }

    /// Whether the server may have given the lock to us without our knowledge.
    fn may_be_held(&self) -> bool {
        self.doubtful
            || self.expected.iter().any(|expected| matches!(expected, Expected::Command))
            || matches!(self.at, At::Call { .. })
            || matches!(self.aim, Aim::GiveBack(_))
    }

    /// The caller has gone: what is or may be held is given back by a later command; so is what was to be released.
    /// `fetched`: it knows of a success, which is then its own.
    pub fn abandon(&mut self, redis: &Redis, fetched: bool, now: u64) {
        let owed = match (&self.want, &self.answer) {
            (Want::Acquire { .. }, Some(Ok(Answer::Acquire(Acquire::Held(_))))) => !fetched,
            (Want::Acquire { .. }, None) => self.may_be_held() || self.strays,
            (Want::Release, None) => true,
            _ => false,
        };
        for expected in self.expected.drain(..) {
            if let Expected::Orphan(orphan) = expected {
                redis.local().orphans.add(orphan);
            }
        }
        if owed {
            self.leave_orphan(redis, now);
        }
        if self.answer.is_none() {
            self.finish(Err(redis.fault(ServerFault::Unreachable, "it was freed before its end")));
        }
    }
}

/// How a cancelled acquire ends.
fn busy() -> Result<Answer, Error> {
    Ok(Answer::Acquire(Acquire::Busy(Busy::default())))
}

/// After the reply to an orphan's release: whether it is to be released again.
fn still_orphan(redis: &Redis, mut orphan: Orphan, reply: &Reply, now: u64) {
    match reply {
        _ if mutant(Mutant::OrphansTriedOnce) => {}
        Reply::Error(text) if is_state_of_the_server(text) => redis.local().orphans.add(orphan),
        Reply::Error(_) if orphan.keys.len() > 1 => {
            orphan.keys.truncate(1); // few rights
            redis.local().orphans.add(orphan);
        }
        Reply::Integer(1) | Reply::Error(_) => {} // released, or it never will be
        _ => orphan.found_nothing(now).into_iter().for_each(|orphan| redis.local().orphans.add(orphan)),
    }
}

/// Until then, in ms; never 0, so that a loop does not spin.
fn left(until: u64, now: u64) -> u32 {
    ms_left(until.saturating_sub(now)).max(1)
}

fn timed_out(what: &str, ns: u64) -> String {
    format!("{what} took more than {} ms", ms_passed(ns))
}

/// What is left of another's hold, as callers are told it.
fn left_ms(number: i64) -> u32 {
    if number == UNKNOWN_LEFT { 0 } else { u32::try_from(number).unwrap_or(0) }
}

/// What a value has behind the token.
fn label(value: &[u8]) -> Option<String> {
    let label = value.get(Token::LENGTH..)?.strip_prefix(b" ")?;
    Some(String::from_utf8_lossy(label).into_owned())
}

/// Whether an error says that the server can't work now, not that it won't do this.
fn is_state_of_the_server(text: &str) -> bool {
    const STATES: [&str; 11] = [
        "LOADING",
        "BUSY",
        "OOM",
        "MISCONF",
        "NOREPLICAS",
        "READONLY",
        "MASTERDOWN",
        "CLUSTERDOWN",
        "NOAUTH",
        "WRONGPASS",
        "UNKILLABLE",
    ];
    // Before Redis 7 what a command in a script says is at the end of the script's own error.
    let text = match text.split_once(": -") {
        Some((script, said)) if script.starts_with("ERR Error running script") => said,
        _ => text,
    };
    STATES.contains(&text.split(' ').next().unwrap_or_default())
        || text.starts_with("ERR max number of clients")
        || text.starts_with("ERR invalid password") // WRONGPASS, before Redis 6
}
