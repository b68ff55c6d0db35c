//! What the command line asks for.

use buflock::config::{Settings, parse_url};
use buflock::hooks::{self, Mutant};
use buflock::shm::segment::{BUCKET, HEAD};
use std::path::{Path, PathBuf};

/// The bugs that can be planted. That of the wall clock needs one that jumps: it has a test of its own.
pub const MUTANTS: [Mutant; 18] = [
    Mutant::BellsNotRung,
    Mutant::FreedExtendReleases,
    Mutant::ChildFreeReleases,
    Mutant::ClaimClockFirst,
    Mutant::NoRescan,
    Mutant::RescanIgnoresPending,
    Mutant::BlindRelease,
    Mutant::PlainKeys,
    Mutant::StealRereads,
    Mutant::OwnerPlainStore,
    Mutant::OwnerUnchecked,
    Mutant::NoSeqCheck,
    Mutant::NoOwnerCheck,
    Mutant::LeaverSilent,
    Mutant::ClaimSilent,
    Mutant::AwaitersNotWoken,
    Mutant::AwaitBelievesCount,
    Mutant::FenceOfSlotBucket,
];

/// One run of the torture.
#[derive(Clone, Debug)]
pub struct Plan {
    pub seconds: u64,
    pub workers: usize,
    /// Of the table.
    pub buckets: usize,
    pub mutant: Mutant,
    /// No kills, no stalls, and sleeps that only a wake-up ends: for lost wake-ups.
    pub calm: bool,
    /// Many stalls around the writes of key and owner words.
    pub aim: bool,
    pub seed: u64,
    /// Where the run's own directory is made.
    pub parent: PathBuf,
    /// End as soon as something is wrong.
    pub until_wrong: bool,
}

impl Plan {
    /// Plants this run's bug in the calling process, with what makes it show.
    pub fn plant(&self) {
        hooks::plant(self.mutant);
        if self.mutant == Mutant::NoOwnerCheck {
            hooks::compare_seq(7); // with all 16 bits it takes 65,536 transitions of one slot
        }
        if self.mutant == Mutant::ClaimSilent {
            hooks::set_prefer_waiters(true);
        }
    }
}

/// What to do.
#[derive(Clone, Debug)]
pub enum Task {
    Torture(Plan),
    Mutants(Plan),
    Help,
}

/// How to call it.
pub const USAGE: &str = "\
usage: torture [SECONDS] [--workers N] [--buckets N] [--mutant NAME] [--calm] [--aim] [--seed N] [--dir DIR]
       torture mutants [--seed N] [--dir DIR]

SECONDS      how long, 30 if not said
--workers N  processes, 2 to 32, 6 if not said
--buckets N  of the table, 4 if not said; a bucket has 15 slots
--mutant N   plants a bug, which must be found
--calm       no kills and no stalls: then no wake-up may be lost
--aim        many stalls around the writes of key and owner words
--seed N     of the random numbers; what the kernel schedules stays random
--dir DIR    where the table's directory is made, /dev/shm if not said
mutants      plants one bug after the other: each must be found, and nothing where none is planted";

/// Reads the arguments.
///
/// # Errors
/// The text says which argument is wrong.
pub fn parse(arguments: impl Iterator<Item = String>) -> Result<Task, String> {
    let mut plan = Plan {
        seconds: 30,
        workers: 6,
        buckets: 4,
        mutant: Mutant::None,
        calm: false,
        aim: false,
        seed: buflock::sys::wall(),
        parent: PathBuf::from("/dev/shm"),
        until_wrong: false,
    };
    let mut all_mutants = false;
    let mut arguments = arguments;
    while let Some(argument) = arguments.next() {
        let mut value = || arguments.next().ok_or(format!("{argument} needs a value"));
        match argument.as_str() {
            "--help" | "-h" => return Ok(Task::Help),
            "mutants" => all_mutants = true,
            "--calm" => plan.calm = true,
            "--aim" => plan.aim = true,
            "--workers" => plan.workers = number(&value()?, 2, super::board::WORKERS)?,
            "--buckets" => plan.buckets = number(&value()?, 1, 1000)?,
            "--seed" => plan.seed = number(&value()?, 0, u64::MAX)?,
            "--dir" => plan.parent = PathBuf::from(value()?),
            "--mutant" => plan.mutant = mutant(&value()?)?,
            option if option.starts_with('-') => return Err(format!("unknown option {option}")),
            seconds => plan.seconds = number(seconds, 1, 1_000_000)?,
        }
    }
    Ok(if all_mutants { Task::Mutants(plan) } else { Task::Torture(plan) })
}

fn number<T: std::str::FromStr + PartialOrd + std::fmt::Display>(text: &str, least: T, most: T) -> Result<T, String> {
    let number = text.parse().ok().filter(|number| (&least..=&most).contains(&number));
    number.ok_or(format!("\"{text}\": a number from {least} to {most} is needed"))
}

fn mutant(name: &str) -> Result<Mutant, String> {
    let known = MUTANTS.into_iter().find(|mutant| format!("{mutant:?}") == name);
    known.ok_or_else(|| format!("no mutant {name}: there are {MUTANTS:?}"))
}

/// The name of every table here.
pub const TABLE: &str = "torture";

/// How to attach a table of `buckets` buckets in `dir`: the URL for clients, and the settings for them and for the
/// table itself. Options do not allow tables as small as some here.
pub fn access(dir: &Path, buckets: usize) -> (String, Settings) {
    let url = format!("shm:{TABLE}?dir={}", dir.display());
    let mut settings = Settings::default();
    parse_url(&url, &mut settings).expect("our own URL");
    settings.size = (HEAD + buckets * BUCKET) as u64;
    (url, settings)
}
