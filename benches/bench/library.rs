//! The library file: how large it is, and what loading it costs a program.

use std::fs;
use std::io::Write;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

use crate::abi;
use crate::bench::{Bench, Measure};
use crate::cpus::Pinned;
use crate::report::{Bar, Row, Unit};
use crate::shared::now_ns;
use crate::stats::{Series, median};

/// What makes the bench's own program act as the probe.
pub const PROBE: &str = "--dlopen";
const PROBE_SOURCE: &str = include_str!("dlopen_probe.c");

pub struct Library<'b> {
    bench: &'b Bench,
    processes: usize,
    size: Series,
    size_note: String,
    /// A C program, where there is a C compiler: it has not loaded libgcc_s before.
    c_program: Option<PathBuf>,
    in_c: Series,
    in_rust: Series,
}

impl<'b> Library<'b> {
    pub fn new(bench: &'b Bench, out: &Path) -> Result<Self, String> {
        let (bytes, size_note) = stripped_size(bench)?;
        let size = Series::one(bytes as f64 / 1e3);
        let c_program = compile_probe(&out.join("dlopen_probe"));
        let processes = bench.times(7, 3);
        let (in_c, in_rust) = (Series::default(), Series::default());
        Ok(Self { bench, processes, size, size_note, c_program, in_c, in_rust })
    }

    /// Milliseconds; the median of several fresh processes.
    fn load_time(&self, program: &Path, arguments: &[&str]) -> Result<f64, String> {
        let library = self.bench.library.canonicalize().map_err(|error| error.to_string())?;
        let times: Result<Vec<f64>, String> = (0..self.processes)
            .map(|_| {
                let answer = run(Command::new(program).args(arguments).arg(&library))?;
                let nanoseconds: f64 = answer.trim().parse().map_err(|_| format!("probe: {answer:?}"))?;
                Ok(nanoseconds / 1e6)
            })
            .collect();
        Ok(median(&times?))
    }
}

impl Drop for Library<'_> {
    fn drop(&mut self) {
        if let Some(program) = &self.c_program {
            let _ = fs::remove_file(program);
        }
    }
}

impl Measure for Library<'_> {
    fn title(&self) -> &'static str {
        "The library"
    }

    fn how(&self) -> String {
        format!(
            "dlopen with RTLD_NOW in fresh processes pinned to CPU {}, {} per round, file in the page cache.{}",
            self.bench.quiet_cpu(),
            self.processes,
            if self.c_program.is_none() { " No C compiler here: Rust processes only." } else { "" }
        )
    }

    fn round(&mut self) -> Result<(), String> {
        let _pinned = Pinned::to(self.bench.quiet_cpu())?;
        if let Some(program) = &self.c_program {
            let time = self.load_time(program, &[])?;
            self.in_c.push(time);
        }
        let own = std::env::current_exe().map_err(|error| error.to_string())?;
        let time = self.load_time(&own, &[PROBE])?;
        self.in_rust.push(time);
        Ok(())
    }

    fn rows(&self) -> Vec<Row> {
        let load = |what, series| Row::new(format!("dlopen in a {what} program"), series, Unit::Milliseconds);
        let rust = load("Rust", &self.in_rust).note("has libgcc_s loaded already");
        let mut rows = vec![
            Row::new("size, stripped", &self.size, Unit::Kilobytes).bar(Bar::AtMost(1100.0)).note(&*self.size_note),
        ];
        if self.c_program.is_some() {
            rows.push(load("C", &self.in_c).bar(Bar::AtMost(1.0)));
            rows.push(rust);
        } else {
            rows.push(rust.bar(Bar::AtMost(1.0)));
        }
        rows
    }
}

/// The probe in this program: prints nanoseconds.
pub fn probe(library: &Path) -> Result<(), String> {
    let start = now_ns();
    abi::open(library)?;
    println!("{}", now_ns() - start);
    Ok(())
}

/// Bytes, and how they were found.
fn stripped_size(bench: &Bench) -> Result<(u64, String), String> {
    let copy = bench.dir.path().join("stripped.so");
    let stripped = Command::new("strip").arg("-o").arg(&copy).arg(&bench.library).output();
    let done = stripped.is_ok_and(|output| output.status.success());
    let (file, note) = if done { (&copy, "") } else { (&bench.library, "as it is: strip did not work here") };
    let size = fs::metadata(file).map_err(|error| format!("{}: {error}", file.display()))?.len();
    Ok((size, note.to_owned()))
}

/// Nothing where there is no C compiler.
fn compile_probe(program: &Path) -> Option<PathBuf> {
    let compiler = std::env::var("CC").unwrap_or_else(|_| "cc".to_owned());
    let mut child = Command::new(compiler)
        .args(["-O1", "-x", "c", "-", "-ldl", "-o"])
        .arg(program)
        .stdin(Stdio::piped())
        .stdout(Stdio::null())
        .stderr(Stdio::null())
        .spawn()
        .ok()?;
    // Closed before the wait, so that the compiler sees the end; a failed write shows in its status.
    let written = child.stdin.take().map(|mut input| input.write_all(PROBE_SOURCE.as_bytes()));
    let status = child.wait().ok()?;
    (written.is_some_and(|result| result.is_ok()) && status.success()).then(|| program.to_owned())
}

fn run(command: &mut Command) -> Result<String, String> {
    let output = command.output().map_err(|error| format!("{command:?}: {error}"))?;
    if output.status.success() {
        return Ok(String::from_utf8_lossy(&output.stdout).into_owned());
    }
    let text = String::from_utf8_lossy(&output.stderr);
    Err(format!("{command:?}: {}: {}", output.status, text.trim()))
}
