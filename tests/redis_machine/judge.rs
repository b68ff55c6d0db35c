//! What must hold of every call, whatever went wrong on its way.

use super::play::{Fault, Kind, LAST_FENCE, Outcome, Pieces, Rival, Scene, Schedule, TOKEN, World, held};
use buflock::answer::{Acquire, Answer, Await, Verdict};
use buflock::error::{Error, ServerFault};
use buflock::policy::NS_PER_MS;
use buflock::redis::machine::Want;

/// The option `budget`, in ns.
const BUDGET: u64 = 500 * NS_PER_MS;
/// What a wait for a signal may add: the nudge, and the journey.
const SLACK: u64 = 5 * NS_PER_MS;
/// The same where the server is not nudged: it may be late, and then silent.
const UNNUDGED: u64 = 400 * NS_PER_MS;
/// By then all that arrives late has arrived.
const SETTLED: u64 = 5_000 * NS_PER_MS;

/// Plays a scene; the outcome, and what is wrong about it.
pub fn play(scene: Scene, schedule: &Schedule, pieces: Pieces) -> (Outcome, Option<String>) {
    let mut world = World::new(scene, pieces);
    let outcome = world.play(schedule);
    let busy = matches!(outcome.answer, Some(Ok(Answer::Await(Await::Busy))));
    let told = !(busy && matches!(scene.rival, Rival::Releases(_) | Rival::Followed(_)));
    let wrong = if schedule.is_empty() {
        wrong(!told, "the end of the hold was not told")
            .or_else(|| wrong(world.connections > 1, "a connection was lost, and nothing went wrong"))
    } else {
        None
    };
    let wrong = wrong.or_else(|| judge(&mut world, scene, &outcome));
    (outcome, wrong)
}

fn judge(world: &mut World, scene: Scene, outcome: &Outcome) -> Option<String> {
    on_the_way(world, outcome)
        .or_else(|| in_time(scene, outcome))
        .or_else(|| the_answer(world, scene, outcome))
        .or_else(|| {
            let held = held(outcome.answer.as_ref()).is_some();
            later(world, scene, outcome, held)
        })
}

fn wrong(is_so: bool, text: &str) -> Option<String> {
    is_so.then(|| text.to_owned())
}

fn on_the_way(world: &World, outcome: &Outcome) -> Option<String> {
    outcome.wrong.first().cloned().or_else(|| world.server.strange.first().map(|name| format!("sent {name}")))
}

fn in_time(scene: Scene, outcome: &Outcome) -> Option<String> {
    let unnudged = if scene.options.contains("nudge=off") && scene.wait_ms > 0 { UNNUDGED } else { 0 };
    let limit = u64::from(scene.wait_ms) * NS_PER_MS + BUDGET + unnudged + SLACK;
    let limit = limit.max(outcome.left_at.map_or(0, |at| at + BUDGET + SLACK));
    wrong(outcome.took > limit, &format!("it took {} ms", outcome.took / NS_PER_MS))
}

fn the_answer(world: &World, scene: Scene, outcome: &Outcome) -> Option<String> {
    let cancelled = outcome.left_at.is_some();
    let ours = world.is_ours();
    let rivals = wrong(world.should_be_rivals() && !world.is_rivals(), "another's lock is gone")
        .or_else(|| wrong(world.followed && !world.is_nexts(), "the next holder's lock is gone"));
    let waited = outcome.took >= u64::from(scene.wait_ms) * NS_PER_MS;
    let answer = match outcome.answer.as_ref() {
        None if outcome.abandoned => None,
        None => Some("no answer".to_owned()),
        Some(Ok(Answer::Acquire(Acquire::Held(held)))) => {
            let until = world.now + u64::from(held.left_ms) * NS_PER_MS;
            let short = held.left_ms > 0 && world.server.until(&world.names.lock) < until;
            wrong(!ours && held.left_ms > 0, "HELD, and the server does not know of it")
                .or_else(|| wrong(short, "HELD for longer than the lease"))
                .or_else(|| wrong(cancelled, "HELD after it was cancelled"))
                .or_else(|| wrong(held.token.0 != *TOKEN, "HELD with another token"))
                .or_else(|| wrong(world.holder() != Some(&world.value()) && ours, "HELD without the label"))
                .or_else(|| wrong(held.fence != world.fence(), "another fence than the server's"))
                .or_else(|| wrong(world.fence() != 0 && held.fence <= LAST_FENCE, "a fence that does not grow"))
        }
        Some(Ok(Answer::Acquire(Acquire::Busy(_)))) => wrong(ours && !cancelled, "BUSY for a lock of our own")
            .or_else(|| wrong(matches!(scene.rival, Rival::Nobody) && !cancelled, "BUSY, and nobody else is there"))
            .or_else(|| wrong(!waited && !cancelled, "BUSY before the wait is over")),
        Some(Ok(Answer::Verdict(verdict))) if matches!((scene.want)(), Want::Break) => {
            wrong(*verdict == Verdict::Ok && world.is_rivals(), "broken, and still held")
                .or_else(|| wrong(*verdict != Verdict::Ok && world.holder().is_some(), "not broken, and held"))
        }
        Some(Ok(Answer::Verdict(verdict))) => verdict_is_wrong(scene, *verdict, ours),
        Some(Ok(Answer::Await(Await::Over))) => wrong(world.is_rivals(), "OVER, and the same hold goes on"),
        Some(Ok(Answer::Await(Await::Busy))) => wrong(!waited && !cancelled, "BUSY before the wait is over"),
        Some(Ok(Answer::Hold(hold))) => {
            let label = if ours { world.label() } else { None };
            wrong(hold.is_some() != world.holder().is_some(), "who holds it is not what was answered")
                .or_else(|| wrong(hold.as_ref().is_some_and(|hold| hold.left_ms == 0), "a hold without a time"))
                .or_else(|| wrong(hold.as_ref().and_then(|hold| hold.label.as_deref()) != label, "another label"))
        }
        Some(Err(error)) => error_is_wrong(scene, error, ours),
    };
    rivals.or(answer)
}

fn verdict_is_wrong(scene: Scene, verdict: Verdict, ours: bool) -> Option<String> {
    match ((scene.want)(), verdict) {
        (Want::Extend { .. }, Verdict::Ok) => wrong(!ours, "extended, and not ours"),
        (Want::Extend { .. }, _) => wrong(scene.own, "not extended, and ours"),
        (_, Verdict::Ok) => wrong(ours, "released, and still ours"),
        (_, _) => wrong(scene.own && ours, "EXPIRED or TAKEN, and ours"),
    }
}

fn error_is_wrong(scene: Scene, error: &Error, ours: bool) -> Option<String> {
    let acquires = matches!((scene.want)(), Want::Acquire { .. });
    match error {
        Error::Server { fault: ServerFault::Uncertain(token), .. } => {
            wrong(acquires && token.is_none_or(|token| token.0 != *TOKEN), "UNCERTAIN without the token")
        }
        Error::Server { .. } => wrong(acquires && ours, "an error that says that nothing is held, and it is ours"),
        other => Some(format!("{other}")),
    }
}

/// What becomes of the lock when all that was on its way has arrived, and the next calls have been made.
fn later(world: &mut World, scene: Scene, outcome: &Outcome, held: bool) -> Option<String> {
    let (want, refused) = ((scene.want)(), was_refused(outcome));
    let ends_free = match want {
        Want::Acquire { .. } => !held,
        Want::Release => !refused,
        _ => false,
    };
    world.heal();
    if held {
        world.look(); // what is remembered by mistake is released at once
    }
    world.advance(world.now + SETTLED);
    world.look();
    let ours = world.is_ours();
    wrong(world.followed && !world.is_nexts(), "the next holder's lock is gone later")
        .or_else(|| wrong(held && !ours, "HELD, and then lost to a release of our own"))
        .or_else(|| wrong(ends_free && ours, "it is held, and nobody will release it"))
        .or_else(|| wrong(world.is_left(), "what an earlier call has left is forgotten"))
}

/// Whether it ended with an error of the server's that says more than that it can't work now.
fn was_refused(outcome: &Outcome) -> bool {
    match outcome.answer.as_ref().or(outcome.before.as_ref()) {
        Some(Err(Error::Server { fault: ServerFault::Refused, why, .. })) => !why.starts_with("LOADING"),
        _ => false,
    }
}

/// All that can go wrong at a step of this kind.
pub fn faults(kind: Kind, all: bool) -> Vec<Fault> {
    if kind == Kind::Done {
        return vec![Fault::Cancel, Fault::Abandon];
    }
    let anywhere = [
        Fault::Cancel,
        Fault::Abandon,
        Fault::OtherLost,
        Fault::OtherLate(2),
        Fault::Stops(300),
        Fault::Stops(30_000),
        Fault::Gone(300),
    ];
    let own: &[Fault] = match kind {
        Kind::Done => &[],
        Kind::Connect => &[Fault::Refused, Fault::Silent],
        Kind::Receive => &[Fault::Silent, Fault::Ends],
        Kind::Sleep => &[Fault::Ends],
        Kind::Send if all => &[
            Fault::LostBefore,
            Fault::LostAfter,
            Fault::Late(1),
            Fault::Late(300),
            Fault::Late(3000),
            Fault::Swallowed,
            Fault::Stalled(100),
            Fault::Stalled(300),
            Fault::Stalled(2000),
            Fault::Error("-NOSCRIPT No matching script.\r\n"),
            Fault::Error("-NOPERM no such right\r\n"),
            Fault::Error("-LOADING Redis is loading the dataset in memory\r\n"),
            Fault::Error("-OOM command not allowed\r\n"),
            Fault::Error("-NOAUTH Authentication required.\r\n"),
            Fault::Error("-WRONGTYPE Operation against a key\r\n"),
            Fault::Error("-UNBLOCKED client unblocked via CLIENT UNBLOCK\r\n"),
            Fault::SlowError("-LOADING Redis is loading the dataset in memory\r\n", 100),
            Fault::SlowError("-READONLY You can't write against a read only replica.\r\n", 502),
            Fault::FirstError("-NOPERM no such right\r\n"),
            Fault::Instead("HTTP/1.1 400 Bad Request\r\n"),
            Fault::Instead("+hello\r\n"),
            Fault::Surplus(":0\r\n"),
            Fault::Surplus("$-1\r\n"),
            Fault::Surplus("+O"),
            Fault::Cut(0),
            Fault::Cut(2),
            Fault::Slow(100),
            Fault::Slow(260),
            Fault::Slow(700),
        ],
        Kind::Send => &[
            Fault::LostBefore,
            Fault::LostAfter,
            Fault::Late(300),
            Fault::Late(3000),
            Fault::Swallowed,
            Fault::Stalled(2000),
            Fault::Error("-NOSCRIPT No matching script.\r\n"),
            Fault::Error("-LOADING Redis is loading the dataset in memory\r\n"),
            Fault::SlowError("-READONLY You can't write against a read only replica.\r\n", 502),
            Fault::Surplus(":0\r\n"),
            Fault::Slow(260),
        ],
    };
    own.iter().copied().chain(anywhere).collect()
}
