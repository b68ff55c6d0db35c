//! What a run is told as.

use super::board::{Count, KEYS};
use super::chaos::POINTS;
use super::history::Checked;
use super::plan::Plan;
use super::run::Outcome;
use super::sys;
use buflock::hooks::Mutant;
use std::sync::atomic::Ordering::SeqCst;

/// From this length on a run must have struck every point: the rarest is struck by the clock each second or so.
const COVERED_FROM: u64 = 20;

/// Prints a run, and says whether it is passed.
pub fn print(plan: &Plan, outcome: &Outcome) -> bool {
    print_run(plan, outcome);
    print_holds(outcome);
    print_checks(outcome);
    if !plan.calm {
        print_points(outcome);
    }
    let mut wrong = outcome.wrong.clone();
    let whole = plan.seconds >= COVERED_FROM && !sys::interrupted();
    if whole && !plan.calm && plan.mutant == Mutant::None {
        wrong.extend(not_covered(outcome));
    }
    for line in &wrong {
        println!("WRONG      {line}");
    }
    verdict(plan.mutant, &wrong)
}

fn verdict(mutant: Mutant, wrong: &[String]) -> bool {
    match (mutant, wrong.len()) {
        (Mutant::None, 0) if sys::interrupted() => line("verdict", "interrupted; nothing was wrong so far"),
        (Mutant::None, 0) => line("verdict", "nothing is wrong"),
        (Mutant::None, ways) => line("verdict", &format!("wrong in {ways} ways")),
        (planted, 0) => line("verdict", &format!("{planted:?} was planted and not found")),
        (planted, _) => line("verdict", &format!("{planted:?} was planted and found")),
    }
    !sys::interrupted() && wrong.is_empty() == (mutant == Mutant::None)
}

fn line(name: &str, text: &str) {
    println!("{name:<10} {text}");
}

fn print_run(plan: &Plan, outcome: &Outcome) {
    let Outcome { seconds, slots, buckets, outside, counters, .. } = outcome;
    let (workers, seed) = (plan.workers, plan.seed);
    line(
        "run",
        &format!("{seconds:.1} s, {workers} workers, {KEYS} keys, {slots} slots in {buckets} buckets, seed {seed}"),
    );
    let points = &outcome.board.points;
    let kills: u64 = points.iter().map(|row| row.kills.load(SeqCst)).sum();
    let stalls: u64 = points.iter().map(|row| row.stalls.load(SeqCst)).sum();
    line("outside", &format!("kill -9 {}, SIGSTOP {}", outside.kills, outside.stops));
    line("inside", &format!("kill -9 {kills}, stalls {stalls}; workers replaced {}", outside.replaced));
    let [steals, takeovers, full, lost] = counters;
    line(
        "table",
        &format!("steals {steals}, bindings taken over {takeovers}, full {full}, lost before the owner word {lost}"),
    );
}

fn print_holds(outcome: &Outcome) {
    let board = outcome.board;
    let sum = |count| board.sum(count);
    let (acquired, busy, longest) =
        (sum(Count::Acquired), sum(Count::Busy), board.most(Count::LongestWaitUs).div_ceil(1000));
    line("acquired", &format!("{acquired}, busy to the end of the wait {busy}, longest wait {longest} ms"));
    let (abandoned, floods, overstayed) = (sum(Count::Abandoned), sum(Count::Floods), sum(Count::Overstayed));
    let extended = sum(Count::Extended);
    line(
        "holds",
        &format!("extended {extended}, abandoned {abandoned} and in {floods} floods, overstayed {overstayed}"),
    );
    let (expired, taken, fenced) = (sum(Count::ReleaseExpired), sum(Count::ReleaseTaken), sum(Count::Fenced));
    line("too late", &format!("releases: expired {expired}, taken {taken}; writes refused by fence {fenced}"));
    let (extended, late) = (sum(Count::ExtendedByOther), sum(Count::OtherTooLate));
    line("shown", &format!("extended by others {extended}, too late {late}"));
    let (given, extended, late, released) =
        (sum(Count::Given), sum(Count::GivenExtended), sum(Count::GivenTooLate), sum(Count::GivenReleased));
    line("given away", &format!("{given}; extended by the new owner {extended}, too late {late}, released {released}"));
    let (over, busy) = (sum(Count::AwaitOver), sum(Count::AwaitBusy));
    line("awaits", &format!("over {over}, still busy {busy}"));
    let (left, passed_on) = (sum(Count::Left), sum(Count::PassedOn));
    line("cancelled", &format!("{left} acquirers, of which {passed_on} had been woken"));
    let (done, dropped, unfetched) = (sum(Count::InSteps), sum(Count::Dropped), sum(Count::Unfetched));
    line("in steps", &format!("{done}; dropped on the way {dropped}, with a success nobody fetched {unfetched}"));
}

fn print_checks(outcome: &Outcome) {
    let Outcome { board, checked, scans, .. } = outcome;
    line("stale", &format!("tokens tried {}", board.sum(Count::StaleTried)));
    line("scans", &format!("{scans} of the table while nobody moved"));
    let Checked { acquisitions, pairs, missed } = checked;
    line("history", &format!("{acquisitions} acquisitions, {pairs} pairs compared, {missed} not written down"));
    let (done, attempted) = (board.sum(Count::Done), board.sum(Count::Attempted));
    line("counts", &format!("done {done} <= sum {} <= attempted {attempted}", board.guarded_sum()));
}

fn print_points(outcome: &Outcome) {
    println!("{:<16} {:>12} {:>8} {:>8}", "point", "hits", "kills", "stalls");
    for (point, row) in POINTS.iter().zip(&outcome.board.points) {
        let [hits, kills, stalls] = [&row.hits, &row.kills, &row.stalls].map(|count| count.load(SeqCst));
        println!("{:<16} {hits:>12} {kills:>8} {stalls:>8}", format!("{point:?}"));
    }
}

fn not_covered(outcome: &Outcome) -> Vec<String> {
    let mut lines = Vec::new();
    for (point, row) in POINTS.iter().zip(&outcome.board.points) {
        for (what, count) in [("hit", &row.hits), ("killed at", &row.kills), ("stalled at", &row.stalls)] {
            if count.load(SeqCst) == 0 {
                lines.push(format!("{point:?} was never {what}: the run proves nothing about it"));
            }
        }
    }
    lines
}
