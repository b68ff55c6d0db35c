//! Other lock libraries for Redis: programs in benches/peers, each with one connection of its own.

use std::io::{BufRead, BufReader, Write};
use std::process::{Child, ChildStdin, ChildStdout, Command, Stdio};

use crate::redis_server::Server;
use crate::stats::{Series, median};

pub struct Kind {
    pub name: &'static str,
    /// What starts it; the server's host and port are put behind.
    pub command: &'static [&'static str],
    pub needs: &'static str,
}

const PREPARED: &str = "make bench-peers";
const PYTHON: &str = "target/peers/venv/bin/python";

pub const PERL_FAST: Kind = Kind {
    name: "a backend in Perl, by Redis::Fast",
    command: &["perl", "benches/peers/perl.pl", "backend", "Redis::Fast"],
    needs: "the package libredis-fast-perl",
};
pub const PERL: Kind = Kind {
    name: "a backend in Perl, by Redis",
    command: &["perl", "benches/peers/perl.pl", "backend", "Redis"],
    needs: "the package libredis-perl",
};

pub const FOREIGN: [Kind; 6] = [
    PERL_FAST,
    PERL,
    Kind { name: "rslock", command: &["target/peers/rslock/release/peer-rslock"], needs: PREPARED },
    Kind {
        name: "node-redlock",
        // Node looks for modules beside the program, so make has put it there.
        command: &["node", "target/peers/node/peer.js"],
        needs: PREPARED,
    },
    Kind { name: "redis-py Lock", command: &[PYTHON, "benches/peers/python.py", "redis"], needs: PREPARED },
    Kind { name: "python-redis-lock", command: &[PYTHON, "benches/peers/python.py", "redis_lock"], needs: PREPARED },
];

/// Wall time and its own CPU time of one pair, in ns.
#[derive(Clone, Copy)]
pub struct Cost {
    pub wall: f64,
    pub cpu: f64,
}

/// Microseconds of a pair, one figure per round.
#[derive(Default)]
pub struct Figures {
    pub wall: Series,
    pub cpu: Series,
}

impl Figures {
    /// One round's blocks.
    pub fn add(&mut self, blocks: &[Cost]) {
        let of = |what: fn(&Cost) -> f64| median(&blocks.iter().map(what).collect::<Vec<_>>()) / 1e3;
        self.wall.push(of(|cost| cost.wall));
        self.cpu.push(of(|cost| cost.cpu));
    }
}

/// One round: so many laps of one block of each of `count` subjects.
pub fn in_turn(
    laps: usize,
    count: usize,
    mut run: impl FnMut(usize) -> Result<Cost, String>,
) -> Result<Vec<Vec<Cost>>, String> {
    let mut blocks = vec![Vec::with_capacity(laps); count];
    for lap in 0..laps {
        for number in 0..count {
            // Each lap starts with another one, so that nobody always follows the same.
            let number = (number + lap) % count;
            blocks[number].push(run(number)?);
        }
    }
    Ok(blocks)
}

pub struct Peer {
    pub name: &'static str,
    process: Child,
    to: ChildStdin,
    from: BufReader<ChildStdout>,
}

/// Those that are installed, and why others are not there.
pub fn start(kinds: &[Kind], server: &Server) -> (Vec<Peer>, Vec<String>) {
    let (mut peers, mut left_out) = (Vec::new(), Vec::new());
    for kind in kinds {
        match Peer::start(kind, server) {
            Ok(peer) => peers.push(peer),
            Err(why) => left_out.push(format!("{} ({why}; it needs {})", kind.name, kind.needs)),
        }
    }
    (peers, left_out)
}

impl Peer {
    fn start(kind: &Kind, server: &Server) -> Result<Self, String> {
        let [program, arguments @ ..] = kind.command else { return Err("no command".to_owned()) };
        let (host, port) = server.address.rsplit_once(':').unwrap_or((&server.address, ""));
        let mut command = Command::new(program);
        command.args(arguments).args([host, port]).stdin(Stdio::piped()).stdout(Stdio::piped()).stderr(Stdio::null());
        let mut process = command.spawn().map_err(|error| format!("{program}: {error}"))?;
        let (Some(to), Some(from)) = (process.stdin.take(), process.stdout.take()) else {
            return Err("no pipes".to_owned());
        };
        let mut peer = Self { name: kind.name, process, to, from: BufReader::new(from) };
        match peer.line()?.trim() {
            "ready" => Ok(peer),
            _ => Err("it does not start".to_owned()),
        }
    }

    /// Has it take and give back its lock so many times.
    pub fn run(&mut self, pairs: u32) -> Result<Cost, String> {
        writeln!(self.to, "{pairs}").map_err(|error| format!("{}: {error}", self.name))?;
        let line = self.line()?;
        let numbers: Vec<f64> = line.split_whitespace().filter_map(|number| number.parse().ok()).collect();
        match numbers[..] {
            [wall, cpu] => Ok(Cost { wall: wall / f64::from(pairs), cpu: cpu / f64::from(pairs) }),
            _ => Err(format!("{} answered {line:?}", self.name)),
        }
    }

    fn line(&mut self) -> Result<String, String> {
        let mut line = String::new();
        self.from.read_line(&mut line).map_err(|error| format!("{}: {error}", self.name))?;
        Ok(line)
    }
}

impl Drop for Peer {
    fn drop(&mut self) {
        // Both fail only where it has ended by itself.
        let _ = self.process.kill();
        let _ = self.process.wait();
    }
}
