//! Plants one bug after the other, and sees that each is found: in its scene, which makes the one interleaving happen
//! that shows it, and by the torture at large. And sees that nothing is found where nothing is planted.

use super::plan::{MUTANTS, Plan};
use super::run;
use super::scenes::{SCENES, Scene};
use super::stage::Stage;
use super::sys::{self, Child, Dir, Ended};
use buflock::hooks::{self, Mutant};
use std::fs;
use std::time::{Duration, Instant};

/// A scene that takes longer hangs. It is 100 ms of work, with sleepers that are looked at for 250 ms.
const SCENE_LIMIT: Duration = Duration::from_secs(30);
/// A bug that the torture has not found by then it does not find. The slowest takes about a second on an idle machine
/// of two processors; with four times as many busy processes as processors none took more than ten.
const TORTURE_S: u64 = 45;
/// The torture without a bug; the long run of it is the torture itself.
const CONTROL_S: u64 = 4;

/// The code of a child that found something wrong.
const WRONG: i32 = 1;

/// Bugs that the torture finds in seconds, also on a busy machine, and how it has to be run for that. The others it
/// finds seldom (an await that believes the count) or never (a claim's clock read first): they are left to their scenes.
const MODES: [(Mutant, Mode); 14] = [
    (Mutant::NoRescan, Mode::Chaos),
    (Mutant::RescanIgnoresPending, Mode::Chaos),
    (Mutant::BlindRelease, Mode::Chaos),
    (Mutant::StealRereads, Mode::Chaos),
    (Mutant::NoSeqCheck, Mode::Chaos),
    (Mutant::FenceOfSlotBucket, Mode::Chaos),
    (Mutant::FreedExtendReleases, Mode::Chaos),
    (Mutant::PlainKeys, Mode::Aim),
    (Mutant::OwnerPlainStore, Mode::Aim),
    (Mutant::OwnerUnchecked, Mode::Aim),
    (Mutant::NoOwnerCheck, Mode::Calm),
    (Mutant::LeaverSilent, Mode::Calm),
    (Mutant::ClaimSilent, Mode::Calm),
    (Mutant::AwaitersNotWoken, Mode::Calm),
];

#[derive(Clone, Copy, PartialEq, Eq)]
enum Mode {
    Chaos,
    Aim,
    Calm,
}

/// What was seen to be wrong, or None. Err: the test itself failed.
type Seen = Result<Option<String>, String>;

/// Runs all. The numbers of passed and failed tests.
pub fn run(plan: &Plan) -> (u32, u32) {
    for mutant in MUTANTS {
        let in_scenes = SCENES.iter().any(|scene| scene.mutants.contains(&mutant));
        assert!(in_scenes, "{mutant:?} is in no scene");
    }
    let mut tally = Tally::default();
    for scene in &SCENES {
        tally.test(Mutant::None, &format!("scene: {}", scene.name), || in_scene(plan, scene, Mutant::None));
        for mutant in scene.mutants {
            tally.test(*mutant, &format!("scene: {}", scene.name), || in_scene(plan, scene, *mutant));
        }
    }
    for mode in [Mode::Chaos, Mode::Aim, Mode::Calm] {
        tally.test(Mutant::None, mode.name(), || by_torture(plan, mode, Mutant::None, CONTROL_S));
        for (mutant, _) in MODES.iter().filter(|row| row.1 == mode) {
            tally.test(*mutant, mode.name(), || by_torture(plan, mode, *mutant, TORTURE_S));
        }
    }
    (tally.passed, tally.failed + u32::from(sys::interrupted()))
}

#[derive(Default)]
struct Tally {
    passed: u32,
    failed: u32,
}

impl Tally {
    fn test(&mut self, mutant: Mutant, place: &str, test: impl FnOnce() -> Seen) {
        if sys::interrupted() {
            return;
        }
        let begin = Instant::now();
        let seen = test();
        let (passed, text) = match (mutant, seen) {
            (_, Err(failure)) => (false, format!("the test failed: {failure}")),
            (Mutant::None, Ok(None)) => (true, "nothing wrong".to_owned()),
            (Mutant::None, Ok(Some(wrong))) => (false, format!("WRONG: {wrong}")),
            (_, Ok(Some(wrong))) => (true, format!("found: {wrong}")),
            (_, Ok(None)) => (false, "NOT FOUND".to_owned()),
        };
        let planted = if mutant == Mutant::None { "(no bug)".to_owned() } else { format!("{mutant:?}") };
        let mark = if passed { "ok  " } else { "FAIL" };
        println!("{mark} {planted:<20} {:>6.2} s  {place}: {text}", begin.elapsed().as_secs_f64());
        if passed {
            self.passed += 1;
        } else {
            self.failed += 1;
        }
    }
}

impl Mode {
    fn name(self) -> &'static str {
        match self {
            Self::Chaos => "torture",
            Self::Aim => "torture --aim",
            Self::Calm => "torture --calm",
        }
    }
}

fn by_torture(plan: &Plan, mode: Mode, mutant: Mutant, seconds: u64) -> Seen {
    let (calm, aim) = (mode == Mode::Calm, mode == Mode::Aim);
    let outcome = run::run(&Plan { seconds, mutant, calm, aim, until_wrong: true, ..plan.clone() })?;
    Ok(outcome.wrong.into_iter().next())
}

/// Plays a scene in a process of its own, which is killed if it hangs.
fn in_scene(plan: &Plan, scene: &Scene, mutant: Mutant) -> Seen {
    let dir = Dir::new(&plan.parent).map_err(|error| format!("{}: {error}", plan.parent.display()))?;
    let answer = dir.path().join("answer");
    let mut child = Child::fork(|| {
        hooks::plant(mutant);
        let Err(wrong) = (scene.play)(&Stage::new(dir.path(), scene.buckets)) else { return 0 };
        fs::write(&answer, wrong).map_or(sys::PANICKED, |()| WRONG)
    });
    let begin = Instant::now();
    loop {
        match child.ended() {
            Some(Ended::Left(0)) => return Ok(None),
            Some(Ended::Left(WRONG)) => {
                return fs::read_to_string(&answer).map(Some).map_err(|error| error.to_string());
            }
            Some(other) => return Err(format!("its process ended: {other:?}")),
            None if begin.elapsed() > SCENE_LIMIT => return Err("it hangs".to_owned()),
            None => sys::nap(1000),
        }
    }
}
