//! Calls that a caller's own client carries, and what such a client may do to them.

use super::play::{RIVAL, TOKEN, TTL};
use super::server::Server;
use buflock::answer::{Acquire, Answer};
use buflock::config::{Settings, Target, parse_url};
use buflock::error::{Error, ServerFault};
use buflock::policy::NS_PER_MS;
use buflock::redis::Redis;
use buflock::redis::machine::{Machine, Want};
use buflock::redis::names::Names;
use buflock::redis::wire::Reply;
use buflock::step::Step;

const BEGIN: u64 = 1000 * NS_PER_MS;

/// What becomes of one call.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Fault {
    /// It does not arrive, and the client says so.
    Lost,
    /// It is done, and the client says that it failed.
    Failed,
    /// It is done, and the client returns nothing.
    Nil,
    /// It is done, and what the client returns was another call's.
    Stale,
    /// It is done, and the client returns what a server says that does not know the script's form.
    Bare(i64),
    /// It is refused.
    Error(&'static str),
    /// The caller cancels before the client has answered.
    Cancel,
    /// The caller cancels when it is done.
    CancelLate,
}

const FAULTS: [Fault; 9] = [
    Fault::Lost,
    Fault::Failed,
    Fault::Nil,
    Fault::Stale,
    Fault::Bare(0),
    Fault::Bare(1),
    Fault::Error("NOPERM no such right"),
    Fault::Cancel,
    Fault::CancelLate,
];

struct Play {
    redis: Redis,
    names: Names,
    server: Server,
    now: u64,
}

impl Play {
    fn new(rival: bool, own: bool) -> Self {
        let mut settings = Settings::default();
        let Ok(Target::Redis(None)) = parse_url("redis:", &mut settings) else { panic!("a URL") };
        let names = Names::new(&settings, b"key");
        let mut server = Server::default();
        let until = BEGIN + 60_000 * NS_PER_MS;
        if rival {
            server.set(&names.lock, RIVAL, until);
        } else if own {
            server.set(&names.lock, TOKEN, until);
        }
        Self { redis: Redis::new(None, settings).expect("memory"), names, server, now: BEGIN }
    }

    fn is_ours(&self) -> bool {
        self.server.get(&self.names.lock, self.now) == Some(TOKEN)
    }

    /// The answer, and whether it was cancelled.
    fn play(&mut self, want: Want, wait_ms: u32, schedule: &[(usize, Fault)]) -> (Result<Answer, Error>, bool) {
        let (mut calls, mut cancelled) = (0, false);
        // Of the call before this one, which has done what was wanted.
        let done = if matches!(want, Want::Acquire { .. }) { 0 } else { 1 };
        let mut stale = Reply::Text(format!("0123456789abcdef0123456789abcdef:{done}").into());
        let mut machine = Machine::new(&self.redis, want, b"key", TOKEN, wait_ms, self.now);
        loop {
            match machine.next(&self.redis, self.now) {
                Step::Call { ms, count } => {
                    assert!(ms > 0);
                    let fault = schedule.iter().find(|(at, _)| *at == calls).map(|(_, fault)| *fault);
                    calls += 1;
                    cancelled |= fault == Some(Fault::Cancel);
                    let count = usize::try_from(count).expect("a few");
                    let command = (0..count).map(|at| machine.argument(at).expect("one of these").to_vec()).collect();
                    self.now += NS_PER_MS;
                    self.call(&mut machine, command, fault, &mut stale);
                }
                Step::Sleep { ms } => self.now += u64::from(ms) * NS_PER_MS,
                Step::Done { keep } => {
                    assert!(!keep);
                    if cancelled || !schedule.contains(&(calls, Fault::CancelLate)) {
                        return (machine.answer().expect("done").clone(), cancelled);
                    }
                    cancelled = true;
                    machine.cancel(&self.redis, self.now);
                }
                other => panic!("{other:?}"),
            }
        }
    }

    fn call(&mut self, machine: &mut Machine, command: Vec<Vec<u8>>, fault: Option<Fault>, stale: &mut Reply) {
        let (redis, now) = (&self.redis, self.now);
        match fault {
            Some(Fault::Lost) => {
                machine.fail(redis, "it is lost", now);
                return;
            }
            Some(Fault::Error(text)) => {
                machine.reply(redis, &Reply::Error(text.into()), now);
                return;
            }
            Some(Fault::Cancel) => machine.cancel(redis, now),
            _ => {}
        }
        let reply = self.server.carry(&command, now);
        match fault {
            Some(Fault::Failed) => machine.fail(redis, "it failed", now),
            Some(Fault::Nil) => machine.reply(redis, &Reply::Nil, now),
            Some(Fault::Stale) => machine.reply(redis, stale, now),
            Some(Fault::Bare(number)) => machine.reply(redis, &Reply::Integer(number), now),
            _ => machine.reply(redis, &Reply::Text(reply.clone()), now),
        };
        *stale = Reply::Text(reply);
    }
}

fn judge(play: &Play, answer: &Result<Answer, Error>, cancelled: bool) -> Result<(), &'static str> {
    let ours = play.is_ours();
    match answer {
        Ok(Answer::Acquire(Acquire::Held(_))) if !ours => Err("HELD, and not ours"),
        Ok(Answer::Acquire(Acquire::Held(_))) if cancelled => Err("HELD after it was cancelled"),
        Ok(Answer::Acquire(Acquire::Busy(_))) if ours => Err("BUSY for a lock of our own"),
        Err(Error::Server { fault: ServerFault::Uncertain(Some(_)), .. }) => Ok(()),
        Err(_) if ours => Err("an error that says that nothing is held, and it is ours"),
        _ => Ok(()),
    }
}

#[test]
pub fn what_a_callers_client_may_do() {
    for (rival, wait_ms) in [(false, 0), (true, 0), (true, 30)] {
        for first in 0..4 {
            for second in first..5 {
                for (one, two) in FAULTS.iter().flat_map(|one| FAULTS.map(|two| (*one, two))) {
                    let mut play = Play::new(rival, false);
                    let schedule = [(first, one), (second, two)];
                    let (answer, cancelled) =
                        play.play(Want::Acquire { ttl_ms: TTL, tell_left: true }, wait_ms, &schedule);
                    let wrong = judge(&play, &answer, cancelled);
                    assert_eq!(wrong, Ok(()), "rival {rival}, wait {wait_ms}, {schedule:?}: {answer:?}");
                }
            }
        }
    }
}

#[test]
pub fn no_stale_answer_releases_anything() {
    for fault in FAULTS {
        let mut play = Play::new(false, true);
        let (answer, _) = play.play(Want::Release, 0, &[(0, fault)]);
        assert_eq!(answer.is_ok(), matches!(fault, Fault::Cancel | Fault::CancelLate), "{fault:?}: {answer:?}");
        assert!(answer.is_err() || !play.is_ours(), "{fault:?}");
    }
}
