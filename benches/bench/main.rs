//! Measures the shipped library through its C ABI, beside what else could do its job.
//!
//! `make bench` builds the library and runs this. Each part is a `Measure`; to add one, write
//! it and name it in `run`.

mod abi;
mod awaiters;
mod bell;
mod bench;
mod contended;
mod cpus;
mod handoff;
mod library;
mod locks;
mod machine;
mod plot;
mod redis_pair;
mod redis_peers;
mod redis_perl;
mod redis_server;
mod redis_waits;
mod relay;
mod report;
mod shared;
mod stats;
mod team;
mod uncontended;

use std::fs;
use std::path::{Path, PathBuf};
use std::process::ExitCode;

use bench::{Bench, Measure};
use report::{Report, Section};

const USAGE: &str = "\
usage: bench [LIBRARY] [--quick] [--check] [--only TEXT] [--rounds N] [--out DIR]
  LIBRARY     the file to measure (else BUFLOCK_LIB, else target/dist/release/libbuflock.so)
  --quick     few iterations: shows that the bench works, not how fast anything is
  --check     exit code 1 when a bar is missed
  --only TEXT only parts with this in their title
  --rounds N  how often every part has its turn: 7, with --quick 2
  --out DIR   where bench.md, bench.json and bench.svg go: target/bench";

struct Options {
    library: PathBuf,
    out: PathBuf,
    quick: bool,
    check: bool,
    only: String,
    rounds: usize,
}

fn main() -> ExitCode {
    match start() {
        Ok(code) => code,
        Err(text) => {
            eprintln!("bench: {text}");
            ExitCode::from(2)
        }
    }
}

fn start() -> Result<ExitCode, String> {
    let arguments: Vec<String> = std::env::args().skip(1).collect();
    if let [flag, library] = &arguments[..]
        && flag == library::PROBE
    {
        return library::probe(Path::new(library)).map(|()| ExitCode::SUCCESS);
    }
    if arguments.iter().any(|argument| argument == "--help") {
        println!("{USAGE}");
        return Ok(ExitCode::SUCCESS);
    }
    let options = parse(arguments)?;
    let report = run(&options)?;
    publish(&report, &options.out)?;
    Ok(if options.check && report.missed() > 0 { ExitCode::from(1) } else { ExitCode::SUCCESS })
}

fn parse(arguments: Vec<String>) -> Result<Options, String> {
    let default = || "target/dist/release/libbuflock.so".into();
    let mut options = Options {
        library: std::env::var_os("BUFLOCK_LIB").unwrap_or_else(default).into(),
        out: "target/bench".into(),
        quick: false,
        check: false,
        only: String::new(),
        rounds: 0,
    };
    let mut arguments = arguments.into_iter();
    while let Some(argument) = arguments.next() {
        let mut value = || arguments.next().ok_or(format!("{argument} needs a value\n{USAGE}"));
        match &*argument {
            "--quick" => options.quick = true,
            "--check" => options.check = true,
            "--only" => options.only = value()?,
            "--rounds" => options.rounds = number(&value()?)?,
            "--out" => options.out = value()?.into(),
            // Cargo says it to every bench.
            "--bench" => {}
            flag if flag.starts_with('-') => return Err(format!("unknown option {flag}\n{USAGE}")),
            library => options.library = library.into(),
        }
    }
    if options.rounds == 0 {
        options.rounds = if options.quick { 2 } else { 7 };
    }
    if !options.library.is_file() {
        let library = options.library.display();
        return Err(format!("no library at {library}: run `make lib`, or say where it is\n{USAGE}"));
    }
    Ok(options)
}

fn number(text: &str) -> Result<usize, String> {
    match text.parse() {
        Ok(number) if number > 0 => Ok(number),
        _ => Err(format!("not a number of rounds: {text}\n{USAGE}")),
    }
}

fn run(options: &Options) -> Result<Report, String> {
    let load = machine::load();
    make_dir(&options.out)?;
    team::catch_signals();
    let bench = Bench::new(&options.library, options.quick)?;
    let redis = redis_server::Server::find(&bench);
    let mut parts: Vec<Box<dyn Measure + '_>> = vec![
        Box::new(uncontended::Uncontended::new(&bench)?),
        Box::new(handoff::Handoff::new(&bench)),
        Box::new(awaiters::Awaiters::new(&bench)),
        Box::new(bell::BellHandoff::new(&bench)),
        Box::new(bell::PendingOps::new(&bench)),
        Box::new(bell::Releases::new(&bench)),
        Box::new(contended::Contended::new(&bench)),
        Box::new(library::Library::new(&bench, &options.out)?),
    ];
    match &redis {
        Ok(server) => {
            parts.push(Box::new(redis_pair::Pairs::new(&bench, server)?));
            parts.push(Box::new(redis_perl::Perl::new(&bench, server)?));
            parts.push(Box::new(redis_waits::OneWaiter::new(&bench, server)));
            parts.push(Box::new(redis_waits::Crowd::new(&bench, server)?));
        }
        Err(reason) => eprintln!("left out: Redis: {reason}"),
    }
    parts.retain(|part| part.title().contains(&options.only));
    for round in 1..=options.rounds {
        for part in &mut parts {
            eprintln!("round {round} of {}: {}", options.rounds, part.title());
            part.round().map_err(|text| format!("{}: {text}", part.title()))?;
            team::check_signals()?;
        }
    }
    let sections = parts.iter().map(|part| section(&**part)).collect();
    let mut facts = machine::facts(&bench, options.rounds, &load);
    facts.push(("Redis", redis.as_ref().map_or_else(|reason| format!("left out: {reason}"), |it| it.about.clone())));
    Ok(Report { facts, quick: options.quick, sections })
}

fn section(part: &dyn Measure) -> Section {
    Section { title: part.title(), how: part.how(), rows: part.rows() }
}

fn publish(report: &Report, out: &Path) -> Result<(), String> {
    let markdown = report.markdown();
    print!("{markdown}");
    let files = [("bench.md", markdown), ("bench.json", report.json()), ("bench.svg", plot::svg(report))];
    for (name, text) in files {
        let path = out.join(name);
        fs::write(&path, text).map_err(|error| format!("{}: {error}", path.display()))?;
    }
    eprintln!("written: bench.md, bench.json and bench.svg in {}", out.display());
    Ok(())
}

fn make_dir(dir: &Path) -> Result<(), String> {
    fs::create_dir_all(dir).map_err(|error| format!("{}: {error}", dir.display()))
}
