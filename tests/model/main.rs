//! Model checker of the protocol on shared-memory slots.
//!
//! It visits every state that a few processes can bring a few slots into, whatever the order of their steps, and
//! checks in each of them the rules that a lock must keep. A process may be stopped or killed between any two
//! steps: then it just takes no more of them. `bind` models binding, taking, releasing and extending; `wake` models
//! sleeping and waking; `recovery` that whoever is left can go on. Each says what it leaves out.
//!
//! A checker that finds nothing proves little, unless it finds what is there: so every rule of the protocol is
//! also broken on purpose once, and the run fails if that goes unnoticed.
//!
//! `cargo test --release --test model` runs all planted bugs and the smaller models in some seconds. Arguments, after
//! `--`: `full` runs the larger models as well, which takes a minute or two and 500 MB; `traces` prints for each
//! planted bug the shortest way to the damage.

mod bind;
mod names;
mod recovery;
mod search;
mod slot;
mod steps;
mod wake;

use bind::Bind;
use recovery::Recovery;
use search::{End, Explain, reduction_is_sound, search};
use std::process::ExitCode;
use std::time::Instant;
use wake::Role::{Acquirer, Awaiter, Bell, Binder};
use wake::Wake;

/// States after which a search gives up. No model here has as many.
const CAP: usize = 30_000_000;

/// The walks on which a reduction is checked.
const WALKS: usize = 1000;
const WALK_LENGTH: usize = 200;

fn main() -> ExitCode {
    let mut report = Report::from_arguments();
    bind_holds(&mut report);
    bind_wraps(&mut report);
    bind_recovers(&mut report);
    bind_mutants(&mut report);
    wake_holds(&mut report);
    wake_mutants(&mut report);
    println!("{} passed, {} failed", report.passed, report.failed);
    if report.failed == 0 { ExitCode::SUCCESS } else { ExitCode::FAILURE }
}

/// Runs models, says what came out, and counts.
struct Report {
    full: bool,
    traces: bool,
    passed: u32,
    failed: u32,
}

impl Report {
    fn from_arguments() -> Self {
        let mut report = Self { full: false, traces: false, passed: 0, failed: 0 };
        for argument in std::env::args().skip(1) {
            match argument.as_str() {
                "full" => report.full = true,
                "traces" => report.traces = true,
                flag if flag.starts_with("--") => {} // meant for other test programs
                other => println!("unknown argument '{other}' ignored"),
            }
        }
        report
    }

    fn only_if_full<'a, T>(&self, large: &'a [T]) -> &'a [T] {
        if self.full { large } else { &[] }
    }

    /// No rule is ever broken.
    fn holds<M: Explain>(&mut self, name: &str, model: &M) {
        self.holds_noting(name, model, |_| String::new());
    }

    /// Nor is anybody ever blocked by the dead.
    fn recovers(&mut self, name: &str, bind: Bind) {
        self.holds_noting(&format!("recovery: {name}"), &Recovery::new(bind), |model| format!(", {}", model.summary()));
    }

    fn holds_noting<M: Explain>(&mut self, name: &str, model: &M, note: impl Fn(&M) -> String) {
        let start = Instant::now();
        let outcome = search(model, CAP);
        let effort = format!("{} states{}, {:.1} s", outcome.states, note(model), start.elapsed().as_secs_f64());
        match outcome.end {
            End::Complete => self.count(true, &format!("{name}: complete, {effort}")),
            End::Capped => self.count(false, &format!("{name}: not complete, {effort}")),
            End::Found(rule, path) => {
                self.count(false, &format!("{name}: {rule}; {effort}"));
                print_path(model, &path);
            }
        }
    }

    /// What a search leaves out makes no difference.
    fn reduces<M: Explain>(&mut self, name: &str, model: &M) {
        let sound = reduction_is_sound(model, WALKS, WALK_LENGTH);
        let verdict = if sound { "sound" } else { "NOT sound" };
        self.count(sound, &format!("{name}: reduction {verdict} on {WALKS} random walks of {WALK_LENGTH} steps"));
    }

    /// Some rule is broken sooner or later.
    fn is_caught<M: Explain>(&mut self, name: &str, model: &M) {
        let start = Instant::now();
        let outcome = search(model, CAP);
        let effort = format!("{} states, {:.1} s", outcome.states, start.elapsed().as_secs_f64());
        match outcome.end {
            End::Found(rule, path) => {
                self.count(true, &format!("{name}: caught, {rule}; {} steps, {effort}", path.len() - 1));
                if self.traces {
                    print_path(model, &path);
                }
            }
            End::Complete | End::Capped => self.count(false, &format!("{name}: NOT caught, {effort}")),
        }
    }

    fn count(&mut self, passed: bool, line: &str) {
        if passed {
            self.passed += 1;
        } else {
            self.failed += 1;
        }
        println!("{:6} {line}", if passed { "ok" } else { "FAILED" });
    }
}

fn print_path<M: Explain>(model: &M, path: &[M::State]) {
    for (number, step) in (1..).zip(path.windows(2)) {
        println!("    {number:3}  {}", model.explain(&step[0], &step[1]));
    }
}

const TWO: Bind = Bind::SMALL;
const THREE: Bind = Bind { keys: &[1, 1, 1], key_words: 1, ..TWO };
const THREE_TWO_KEYS: Bind = Bind { keys: &[1, 1, 2], ..THREE };

fn bind_holds(report: &mut Report) {
    let small = [
        ("2 processes, 2 slots, leases do not end", Bind { leases_end: false, ..TWO }),
        ("2 processes, 2 slots", TWO),
        ("2 processes, 2 slots, two keys", Bind { keys: &[1, 2], ..TWO }),
        ("2 processes, 3 slots", Bind { slots: 3, ..TWO }),
        ("3 processes, 1 slot, keys 1 1 2", Bind { slots: 1, ..THREE_TWO_KEYS }),
        ("3 processes, 2 slots", THREE),
        ("2 processes, 1 slot, two keys; tokens copied", with_copies(Bind { slots: 1, keys: &[1, 2], ..TWO })),
        ("2 processes, 2 slots; tokens copied", with_copies(Bind { key_words: 1, ..TWO })),
    ];
    let large = [
        ("3 processes, 1 slot, three keys", Bind { slots: 1, keys: &[1, 2, 3], key_words: 2, ..THREE }),
        ("3 processes, 2 slots, two key words", Bind { key_words: 2, ..THREE }),
        ("3 processes, 2 slots, keys 1 1 2", THREE_TWO_KEYS),
        ("3 processes, 3 slots", Bind { slots: 3, ..THREE }),
        ("4 processes, 1 slot", Bind { slots: 1, keys: &[1, 1, 1, 1], ..THREE }),
        ("2 processes, 2 slots, two keys; tokens copied", with_copies(Bind { keys: &[1, 2], ..TWO })),
        ("3 processes, 1 slot, keys 1 1 2; tokens copied", with_copies(Bind { slots: 1, ..THREE_TWO_KEYS })),
    ];
    for (name, model) in &small {
        report.holds(&format!("bind: {name}"), model);
    }
    for (name, model) in report.only_if_full(&large) {
        report.holds(&format!("bind: {name}"), model);
    }
    report.reduces("bind: 3 processes, 2 slots, keys 1 1 2; tokens copied", &with_copies(THREE_TWO_KEYS));
}

fn with_copies(model: Bind) -> Bind {
    Bind { second_process: true, ..model }
}

/// Where sequence numbers wrap, the owner word tells a token from later holds that have its number. For that somebody
/// must have written an owner word within one turn of the numbers: so here leases last until it is written.
const WRAPS_AT_TWO: Bind = Bind { slots: 1, seq_modulus: Some(2), leases_last_until_owner: true, ..THREE };
const WRAPS_AT_FOUR: Bind = Bind { seq_modulus: Some(4), ..WRAPS_AT_TWO };

fn bind_wraps(report: &mut Report) {
    let two = with_copies(Bind { keys: &[1, 1], ..WRAPS_AT_FOUR });
    let three = Bind { keys: &[1, 1, 2], ..WRAPS_AT_FOUR };
    report.holds("bind: seq modulo 2, 3 processes", &WRAPS_AT_TWO);
    report.holds("bind: seq modulo 4, 2 processes; tokens copied", &two);
    if report.full {
        report.holds("bind: seq modulo 4, 3 processes, keys 1 1 2", &three);
    }
    report.reduces("bind: seq modulo 4, 3 processes, keys 1 1 2; tokens copied", &with_copies(three));
    // The known limit: takes that never write their owner word, and nothing else, for a whole turn of the numbers.
    let limit = Bind { leases_last_until_owner: false, ..WRAPS_AT_TWO };
    report.is_caught("bind: seq modulo 2, leases end before the owner word is written", &limit);
}

fn bind_recovers(report: &mut Report) {
    report.recovers("2 processes, 2 slots, two keys", Bind { keys: &[1, 2], ..TWO });
    if report.full {
        report.recovers("3 processes, 1 slot, keys 1 1 2", Bind { slots: 1, ..THREE_TWO_KEYS });
        report.recovers("3 processes, 2 slots", THREE);
    }
}

fn bind_mutants(report: &mut Report) {
    use bind::Mutant;
    let two_keys = Bind { keys: &[1, 2], ..TWO };
    let leases_stay = Bind { leases_end: false, ..TWO };
    let mutants = [
        (Mutant::NoRescan, leases_stay),
        (Mutant::RescanIgnoresPending, leases_stay),
        (Mutant::LoserNotStopped, leases_stay),
        (Mutant::KeysStored, two_keys),
        (Mutant::ClaimNotRechecked, two_keys),
        (Mutant::ClaimTagRepeats, two_keys),
        (Mutant::OwnerNotReset, Bind { keys: &[1, 1, 2], ..WRAPS_AT_FOUR }),
        (Mutant::TakeRereadsWord, two_keys),
        (Mutant::OwnerStored, TWO),
        (Mutant::OwnerNotRechecked, TWO),
        (Mutant::TokenIgnored, TWO),
        (Mutant::SeqIgnored, TWO),
        (Mutant::OwnerIgnored, WRAPS_AT_TWO),
        (Mutant::OwnerIgnored, WRAPS_AT_FOUR),
    ];
    for (mutant, model) in mutants {
        let modulus = model.seq_modulus.map_or(String::new(), |modulus| format!(", seq modulo {modulus}"));
        report.is_caught(&format!("bind: {mutant:?}{modulus}"), &Bind { mutant: Some(mutant), ..model });
    }
}

const WAKE: Wake = Wake { roles: &[Acquirer, Acquirer, Acquirer], sleeper_keeps_flag: true, mutant: None };

fn wake_holds(report: &mut Report) {
    let small: [&[wake::Role]; 5] = [
        &[Acquirer, Acquirer, Acquirer],
        &[Acquirer, Acquirer, Acquirer, Acquirer],
        &[Acquirer, Acquirer, Acquirer, Binder],
        &[Acquirer, Acquirer, Bell, Awaiter],
        &[Acquirer, Bell, Awaiter, Binder],
    ];
    let large: [&[wake::Role]; 5] = [
        &[Acquirer, Acquirer, Acquirer, Acquirer, Acquirer],
        &[Acquirer, Acquirer, Acquirer, Acquirer, Binder],
        &[Acquirer, Acquirer, Bell, Awaiter, Binder],
        &[Acquirer, Bell, Bell, Awaiter],
        &[Bell, Bell, Binder],
    ];
    for roles in small {
        report.holds(&format!("wake: {roles:?}"), &Wake { roles, ..WAKE });
    }
    for roles in report.only_if_full(&large) {
        report.holds(&format!("wake: {roles:?}"), &Wake { roles, ..WAKE });
    }
    // That a sleeper sets the flag when it takes the key is one rule more than needed.
    let without = Wake { roles: &[Acquirer, Bell, Awaiter, Binder], sleeper_keeps_flag: false, ..WAKE };
    report.holds(&format!("wake: {:?}, sleepers take without the flag", without.roles), &without);
    report.reduces("wake: all roles", &Wake { roles: &[Acquirer, Acquirer, Bell, Awaiter, Binder], ..WAKE });
}

fn wake_mutants(report: &mut Report) {
    use wake::Mutant;
    let mutants: [(Mutant, &[wake::Role]); 10] = [
        (Mutant::LeaverWakesNobody, &[Acquirer, Acquirer, Acquirer]),
        (Mutant::FlagBeforeCount, &[Acquirer, Acquirer]),
        (Mutant::FlagTrusted, &[Acquirer, Acquirer, Acquirer]),
        (Mutant::FlagClearedAlways, &[Acquirer, Acquirer, Acquirer]),
        (Mutant::FlagClearedBlindly, &[Acquirer, Acquirer, Acquirer]),
        (Mutant::BitAfterLook, &[Acquirer, Bell]),
        (Mutant::ClaimRingsNobody, &[Acquirer, Acquirer, Acquirer, Binder]),
        (Mutant::AwaitersNotCounted, &[Acquirer, Awaiter]),
        (Mutant::BellsNotRung, &[Acquirer, Bell]),
        (Mutant::AwaiterBelievesCount, &[Acquirer, Acquirer, Awaiter]),
    ];
    for (mutant, roles) in mutants {
        let model = Wake { roles, mutant: Some(mutant), ..WAKE };
        report.is_caught(&format!("wake: {mutant:?}, {roles:?}"), &model);
    }
}
