//! The machine of the Redis backend without any network: every call is driven before a model of a server, by a clock
//! of the test's own, and each thing that can go wrong goes wrong at each of its steps, alone and with another.

#[path = "../common/redis/resp.rs"]
#[allow(dead_code)]
mod resp;

mod breaker;
mod carried;
mod fuzz;
mod judge;
#[cfg(buflock_test)]
mod mutants;
mod play;
mod server;

use buflock::redis::machine::Want;
use judge::{faults, play as run};
use play::{Fault, Kind, Pieces, Rival, Scene, TTL};
use std::thread;

fn acquire() -> Want {
    Want::Acquire { ttl_ms: TTL, tell_left: true }
}

fn plain_acquire() -> Want {
    Want::Acquire { ttl_ms: TTL, tell_left: false }
}

fn extend() -> Want {
    Want::Extend { ttl_ms: TTL }
}

fn release() -> Want {
    Want::Release
}

fn look_for_end() -> Want {
    Want::Await
}

fn inspect() -> Want {
    Want::Inspect
}

fn end_any() -> Want {
    Want::Break
}

const fn scene(name: &'static str, want: fn() -> Want) -> Scene {
    Scene { name, want, wait_ms: 0, options: "", rival: Rival::Nobody, own: false, pooled: false, orphan: false }
}

const SCENES: [Scene; 28] = [
    scene("acquire", acquire),
    scene("acquire by SET", plain_acquire),
    Scene { pooled: true, ..scene("acquire over a used connection", plain_acquire) },
    Scene { options: "password=secret&db=1", ..scene("acquire with a password", acquire) },
    Scene { rival: Rival::Dies(9000), ..scene("busy", acquire) },
    Scene { rival: Rival::Dies(9000), ..scene("busy by SET", plain_acquire) },
    Scene { rival: Rival::Releases(300), wait_ms: 1200, ..scene("wait for a release", acquire) },
    Scene { rival: Rival::Dies(700), wait_ms: 1500, ..scene("wait for a dead holder", acquire) },
    Scene { rival: Rival::Dies(9000), wait_ms: 800, ..scene("wait in vain", acquire) },
    Scene { rival: Rival::Dies(9000), wait_ms: 1, ..scene("wait for a millisecond", acquire) },
    Scene { rival: Rival::Dies(9000), wait_ms: 800, options: "nudge=off", ..scene("wait in vain, no nudge", acquire) },
    Scene {
        rival: Rival::Releases(300),
        wait_ms: 1200,
        options: "password=secret",
        ..scene("wait with a password", acquire)
    },
    Scene { orphan: true, ..scene("acquire with an orphan", plain_acquire) },
    Scene { orphan: true, rival: Rival::Releases(300), wait_ms: 900, ..scene("await with an orphan", look_for_end) },
    Scene { own: true, ..scene("extend", extend) },
    Scene { rival: Rival::Dies(9000), ..scene("extend another's", extend) },
    Scene { own: true, ..scene("release", release) },
    Scene { own: true, pooled: true, options: "password=secret", ..scene("release over a used connection", release) },
    Scene { rival: Rival::Dies(9000), ..scene("release another's", release) },
    Scene { rival: Rival::Releases(300), wait_ms: 900, ..scene("await", look_for_end) },
    Scene { rival: Rival::Dies(9000), wait_ms: 700, ..scene("await in vain", look_for_end) },
    Scene { rival: Rival::Followed(200), wait_ms: 1200, ..scene("await where another follows", look_for_end) },
    Scene { rival: Rival::Awaited, ..scene("break where another follows", end_any) },
    Scene { rival: Rival::Awaited, pooled: true, ..scene("break over a used connection", end_any) },
    Scene { rival: Rival::Dies(9000), ..scene("inspect", inspect) },
    Scene { own: true, options: "label=host:42", ..scene("inspect our own", inspect) },
    Scene { options: "fencing=on&label=host:42", ..scene("acquire with a fence", plain_acquire) },
    Scene {
        rival: Rival::Releases(300),
        wait_ms: 1200,
        options: "fencing=on&label=host:42",
        ..scene("wait with a fence", acquire)
    },
];

/// Plays a schedule, and with `more` also each that has one or more faults behind it. How many were played.
fn explore(scene: Scene, schedule: &mut Vec<(usize, Fault)>, more: u32, found: &mut Vec<String>) -> u32 {
    let (outcome, wrong) = run(scene, schedule, Pieces::AsSent);
    if let Some(wrong) = wrong {
        found.push(format!("{}, {schedule:?}: {wrong}: {:?}", scene.name, outcome.answer));
        return 1; // what is wrong with less is not told again
    }
    let mut count = 1;
    if more == 0 {
        return count;
    }
    let first = schedule.last().map_or(0, |(place, _)| place + 1);
    for place in first..=outcome.steps.len() {
        let kind = outcome.steps.get(place).copied().unwrap_or(Kind::Done);
        for fault in faults(kind, schedule.is_empty() && more == 1) {
            schedule.push((place, fault));
            count += explore(scene, schedule, more - 1, found);
            schedule.pop();
        }
    }
    count
}

/// Nothing may be found. The first lines are enough to begin with.
fn nothing(found: &[String], count: u32) {
    println!("{count} schedules");
    assert!(found.is_empty(), "{} of {count} are wrong\n{}", found.len(), found[..found.len().min(40)].join("\n"));
}

fn explore_all(faults: u32) {
    let one = |scene| {
        let mut found = Vec::new();
        (explore(scene, &mut Vec::new(), faults, &mut found), found)
    };
    let explored: Vec<_> = thread::scope(|scope| {
        let threads = SCENES.map(|scene| scope.spawn(move || one(scene)));
        threads.into_iter().map(|thread| thread.join().expect("no panic")).collect()
    });
    let count = explored.iter().map(|(count, _)| count).sum();
    let found: Vec<_> = explored.into_iter().flat_map(|(_, found)| found).collect();
    nothing(&found, count);
}

/// An answer without its times.
fn name(outcome: &play::Outcome) -> String {
    let text = format!("{:?}", outcome.answer);
    text.split(|c: char| c.is_ascii_digit()).collect()
}

fn without_receives(outcome: &play::Outcome) -> Vec<Kind> {
    outcome.steps.iter().copied().filter(|kind| *kind != Kind::Receive).collect()
}

#[test]
fn replies_may_be_cut_anywhere_and_glued() {
    for scene in SCENES {
        let (want, wrong) = run(scene, &[], Pieces::AsSent);
        assert_eq!(wrong, None, "{}", scene.name);
        let cuts = (1..want.bytes).map(Pieces::CutAt);
        for pieces in cuts.chain([Pieces::Bytes, Pieces::Glued]) {
            let (outcome, wrong) = run(scene, &[], pieces);
            assert_eq!(wrong, None, "{}, {pieces:?}", scene.name);
            assert_eq!(name(&outcome), name(&want), "{}, {pieces:?}", scene.name);
            assert_eq!(without_receives(&outcome), without_receives(&want), "{}, {pieces:?}", scene.name);
        }
    }
}

#[test]
fn many_faults_at_random() {
    arbtest::arbtest(|u| {
        let scene = *u.choose(&SCENES)?;
        let pieces = *u.choose(&[Pieces::AsSent, Pieces::Bytes, Pieces::Glued])?;
        let mut schedule = Vec::new();
        for _ in 0..u.int_in_range(0..=6)? {
            let kind = *u.choose(&[Kind::Connect, Kind::Send, Kind::Receive, Kind::Sleep])?;
            schedule.push((u.int_in_range(0..=30)?, *u.choose(&faults(kind, true))?));
        }
        if pieces == Pieces::Bytes {
            // A reply too many that comes by itself looks like the next one: only numbers in replies could tell.
            schedule.retain(|(_, fault)| !matches!(fault, Fault::Surplus(_)));
        }
        let (outcome, wrong) = run(scene, &schedule, pieces);
        assert_eq!(wrong, None, "{}, {schedule:?}, {pieces:?}: {:?}", scene.name, outcome.answer);
        Ok(())
    })
    .budget_ms(2000);
}

#[test]
fn any_fault_at_any_step() {
    explore_all(1);
}

#[test]
fn any_two_faults() {
    explore_all(2);
}
