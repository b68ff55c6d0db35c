//! Acquire and release in Perl: buflock beside a lock backend in Perl alone; and what loading it takes.

use std::process::{Command, Stdio};
use std::time::Instant;

use crate::bench::{Bench, Measure};
use crate::cpus::Pinned;
use crate::redis_peers::{self, Figures, Kind, PERL, PERL_FAST, Peer};
use crate::redis_server::Server;
use crate::report::{Bar, Row, Unit};
use crate::stats::{Series, median};

const PREPARED: &str = "make test-perl, which builds the Perl module";
const LIB: &str = "-Itarget/perl/blib/lib";
const ARCH: &str = "-Itarget/perl/blib/arch";

const KINDS: [Kind; 6] = [
    PERL,
    PERL_FAST,
    Kind { name: XS, command: &["perl", LIB, ARCH, "benches/peers/perl.pl", "xs", "none"], needs: PREPARED },
    Kind { name: FFI, command: &["perl", LIB, ARCH, "benches/peers/perl.pl", "ffi", "none"], needs: PREPARED },
    Kind { name: PLUGIN, command: &["perl", LIB, ARCH, "benches/peers/perl.pl", "plugin", "Redis"], needs: PREPARED },
    Kind {
        name: FAST_PLUGIN,
        command: &["perl", LIB, ARCH, "benches/peers/perl.pl", "plugin", "Redis::Fast"],
        needs: PREPARED,
    },
];

const XS: &str = "Buflock by XS";
const FFI: &str = "Buflock by FFI::Platypus";
const PLUGIN: &str = "the plugin's backend, carried by Redis";
const FAST_PLUGIN: &str = "the plugin's backend, carried by Redis::Fast";

/// What is compared, and its bars: at least so many times as fast; at most so much of the client's CPU.
type Ratio = (&'static str, &'static str, f64, Option<f64>);
const RATIOS: [Ratio; 6] = [
    (XS, PERL.name, 1.9, Some(0.40)),
    (XS, PERL_FAST.name, 1.35, Some(0.65)),
    (FFI, PERL.name, 1.75, None),
    (FFI, PERL_FAST.name, 1.25, None),
    (PLUGIN, PERL.name, 1.0, None),
    (FAST_PLUGIN, PERL_FAST.name, 1.0, None),
];

struct Subject {
    peer: Peer,
    figures: Figures,
}

pub struct Perl<'b> {
    bench: &'b Bench,
    server: &'b Server,
    laps: usize,
    subjects: Vec<Subject>,
    left_out: Vec<String>,
    /// What the start of a Perl takes, in ms: with the module, and bare.
    starts: [Series; 2],
}

impl<'b> Perl<'b> {
    pub fn new(bench: &'b Bench, server: &'b Server) -> Result<Self, String> {
        // What is started inherits the CPU.
        let _pinned = Pinned::to(bench.quiet_cpu())?;
        let (peers, left_out) = redis_peers::start(&KINDS, server);
        left_out.iter().for_each(|peer| eprintln!("left out: {peer}"));
        let subject = |peer| Subject { peer, figures: Figures::default() };
        let mut subjects: Vec<_> = peers.into_iter().map(subject).collect();
        for subject in &mut subjects {
            subject.peer.run(bench.times(500, 20))?;
        }
        Ok(Self { bench, server, laps: bench.times(31, 3), subjects, left_out, starts: Default::default() })
    }

    fn named(&self, name: &str) -> Option<&Subject> {
        self.subjects.iter().find(|subject| subject.peer.name == name)
    }
}

impl Measure for Perl<'_> {
    fn title(&self) -> &'static str {
        "Redis: uncontended acquire and release in Perl"
    }

    fn how(&self) -> String {
        let left_out = match &self.left_out[..] {
            [] => String::new(),
            names => format!(" Left out: {}.", names.join("; ")),
        };
        format!(
            "A process each with one connection, and the server, all pinned to CPU {}; {} blocks of 50 pairs of each in \
             turn per round. The backend in Perl makes a key by MD5 and a random token, and runs two scripts by EVAL; \
             the plugin's backend takes its place and has the same client. CPU is user and system time of the client's \
             process. A start is that of `perl -MBuflock -e1`, and of `perl -e1`, 15 of each in turn.{left_out}",
            self.bench.quiet_cpu(),
            self.laps
        )
    }

    fn round(&mut self) -> Result<(), String> {
        let _pinned = Pinned::to(self.bench.quiet_cpu())?;
        self.server.pin(self.bench.quiet_cpu())?;
        let subjects = &mut self.subjects;
        let blocks = redis_peers::in_turn(self.laps, subjects.len(), |number| subjects[number].peer.run(50))?;
        subjects.iter_mut().zip(&blocks).for_each(|(subject, blocks)| subject.figures.add(blocks));
        self.server.pin(self.bench.cpu(0))?;
        if self.named(XS).is_some() {
            let mut took = [Vec::new(), Vec::new()];
            for _ in 0..self.bench.times(15, 2) {
                took[0].push(start(&[LIB, ARCH, "-MBuflock", "-e1"])?);
                took[1].push(start(&["-e1"])?);
            }
            self.starts.iter_mut().zip(&took).for_each(|(series, took)| series.push(median(took)));
        }
        Ok(())
    }

    fn rows(&self) -> Vec<Row> {
        let mut rows = Vec::new();
        for subject in &self.subjects {
            let note = format!("client CPU {:.1} µs", subject.figures.cpu.median());
            rows.push(Row::new(subject.peer.name, &subject.figures.wall, Unit::Microseconds).plotted().note(note));
        }
        for (own, other, speed, cpu) in RATIOS {
            let (Some(own), Some(other)) = (self.named(own), self.named(other)) else { continue };
            let names = format!("{} / {}", own.peer.name, other.peer.name);
            let faster = other.figures.wall.over(&own.figures.wall);
            rows.push(Row::new(format!("speed of {names}"), &faster, Unit::Times).bar(Bar::AtLeast(speed)));
            let share = own.figures.cpu.over(&other.figures.cpu);
            let row = Row::new(format!("client CPU of {names}"), &share, Unit::Times);
            rows.push(match cpu {
                Some(limit) => row.bar(Bar::AtMost(limit)),
                None => row,
            });
        }
        let [with, bare] = &self.starts;
        if !with.rounds().is_empty() {
            let note = format!("a bare one takes {:.1} ms", bare.median());
            let row = Row::new("start of a Perl with Buflock, over a bare one", &with.less(bare), Unit::Milliseconds);
            rows.push(row.bar(Bar::AtMost(20.0)).note(note));
        }
        rows
    }
}

/// How long a Perl with these arguments runs, in ms.
fn start(arguments: &[&str]) -> Result<f64, String> {
    let begin = Instant::now();
    let status = Command::new("perl").args(arguments).stdin(Stdio::null()).status();
    match status {
        Ok(status) if status.success() => Ok(begin.elapsed().as_secs_f64() * 1e3),
        other => Err(format!("perl {arguments:?}: {other:?}")),
    }
}
