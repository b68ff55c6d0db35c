//! Plants one bug after the other, and sees that each is found, and that each scene finds one.

use super::breaker::it_opens_lets_one_through_and_closes;
use super::carried::{no_stale_answer_releases_anything, what_a_callers_client_may_do};
use super::fuzz::{any_bytes_as_a_call, any_bytes_as_replies};
use super::play::Scene;
use super::{SCENES, explore, replies_may_be_cut_anywhere_and_glued};
use buflock::hooks::{Mutant, plant};
use std::panic::catch_unwind;

/// Those that a scene finds, with no fault or one at any step; the second is the name of one such scene.
const IN_SCENES: [(Mutant, &str); 19] = [
    (Mutant::ReleasesAnybodys, "release another's"),
    (Mutant::SetWithoutTime, "acquire by SET"),
    (Mutant::RetriesBySet, "acquire by SET"),
    (Mutant::LossIsBusy, "acquire"),
    (Mutant::OrphansForgotten, "acquire with an orphan"),
    (Mutant::OrphansTriedOnce, "acquire with an orphan"),
    (Mutant::CancelForgets, "acquire"),
    (Mutant::SurplusBelieved, "acquire"),
    (Mutant::KeepsWhatIsOwed, "await"),
    (Mutant::TakenIsOk, "extend another's"),
    (Mutant::BreaksTwice, "break where another follows"),
    (Mutant::AwaitsAnybody, "await where another follows"),
    (Mutant::LeaseFromReply, "acquire"),
    (Mutant::FenceForgotten, "acquire with a fence"),
    (Mutant::LabelForgotten, "wait with a fence"),
    (Mutant::NeverNudges, "wait in vain"),
    (Mutant::IgnoresBudget, "inspect"),
    (Mutant::NilIsHeld, "busy by SET"),
    (Mutant::None, ""),
];

/// Those that a test finds.
const IN_TESTS: [(Mutant, fn()); 7] = [
    (Mutant::NumberNotCompared, stale),
    (Mutant::NeverOpens, it_opens_lets_one_through_and_closes),
    (Mutant::NeverCloses, it_opens_lets_one_through_and_closes),
    (Mutant::ManyProbes, it_opens_lets_one_through_and_closes),
    (Mutant::TailMayBeMissing, replies_may_be_cut_anywhere_and_glued),
    (Mutant::TailMayBeMissing, any_bytes_as_replies),
    (Mutant::NilIsHeld, any_bytes_as_a_call),
];

fn stale() {
    what_a_callers_client_may_do();
    no_stale_answer_releases_anything();
}

/// What the scene finds first.
fn found(scene: Scene) -> Option<String> {
    let mut found = Vec::new();
    match catch_unwind(move || {
        explore(scene, &mut Vec::new(), 1, &mut found);
        found
    }) {
        Ok(found) => found.into_iter().next(),
        Err(_) => Some("a panic".to_owned()),
    }
}

/// Alone in its process: a bug is planted for all threads.
#[test]
fn planted_bugs_are_found() {
    std::panic::set_hook(Box::new(|_| {})); // failures are what is wanted
    let (mut wrong, mut blind) = (Vec::new(), SCENES.map(|scene| scene.name).to_vec());
    for (mutant, name) in IN_SCENES {
        plant(mutant);
        let all: Vec<_> = SCENES.iter().filter_map(|scene| Some((scene.name, found(*scene)?))).collect();
        let is_everywhere = all.len() == SCENES.len(); // that says nothing of any
        blind.retain(|blind| is_everywhere || !all.iter().any(|(name, _)| name == blind));
        let want = all.iter().find(|(found, _)| *found == name);
        println!("{mutant:?}: {} scenes; {}", all.len(), want.map_or("", |(_, text)| text));
        if want.is_none() && (mutant != Mutant::None || !all.is_empty()) {
            wrong.push(format!("{mutant:?} by {name:?}, only by {all:?}"));
        }
    }
    for (mutant, test) in IN_TESTS {
        plant(mutant);
        if catch_unwind(test).is_ok() {
            wrong.push(format!("{mutant:?}"));
        }
        plant(Mutant::None);
        if catch_unwind(test).is_err() {
            wrong.push(format!("the test of {mutant:?} fails without it"));
        }
    }
    let _ = std::panic::take_hook();
    assert!(wrong.is_empty(), "not found:\n{}", wrong.join("\n"));
    assert!(blind.is_empty(), "scenes that find nothing: {blind:?}");
}
