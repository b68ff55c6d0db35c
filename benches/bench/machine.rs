//! On what the figures were taken.

use std::ffi::CStr;
use std::fs;

use crate::bench::Bench;
use crate::report::Facts;

pub fn facts(bench: &Bench, rounds: usize, load_before: &str) -> Facts {
    let cpus = bench.cpus.len();
    vec![
        ("date", date()),
        ("library", format!("{} ({} bytes)", bench.library.display(), file_size(bench))),
        ("version", format!("{}, ABI {}", bench.api.version(), bench.api.abi())),
        ("CPUs", format!("{cpus} × {}", cpu_model())),
        ("kernel", kernel()),
        ("rounds", format!("{rounds}{}", if bench.quick { ", quick" } else { "" })),
        ("load", format!("{load_before} before, {} after (1, 5, 15 min)", load())),
    ]
}

/// The load averages of 1, 5 and 15 minutes.
pub fn load() -> String {
    let text = fs::read_to_string("/proc/loadavg").unwrap_or_default();
    text.split_whitespace().take(3).collect::<Vec<_>>().join(" ")
}

fn file_size(bench: &Bench) -> u64 {
    fs::metadata(&bench.library).map_or(0, |data| data.len())
}

fn cpu_model() -> String {
    let text = fs::read_to_string("/proc/cpuinfo").unwrap_or_default();
    let model = text.lines().find_map(|line| line.strip_prefix("model name")?.split_once(':'));
    // ARM kernels name no model.
    model.map_or(std::env::consts::ARCH.to_owned(), |(_, name)| name.trim().to_owned())
}

fn kernel() -> String {
    // SAFETY: all-zero bytes are a valid utsname.
    let mut names: libc::utsname = unsafe { std::mem::zeroed() };
    // SAFETY: names is writable.
    if unsafe { libc::uname(&raw mut names) } != 0 {
        return "unknown".to_owned();
    }
    let text = |field: &[libc::c_char]| {
        // SAFETY: uname ends each field in NUL.
        unsafe { CStr::from_ptr(field.as_ptr()) }.to_string_lossy().into_owned()
    };
    format!("{} {} {}", text(&names.sysname), text(&names.release), text(&names.machine))
}

fn date() -> String {
    // SAFETY: NULL asks for the result alone.
    let now = unsafe { libc::time(std::ptr::null_mut()) };
    // SAFETY: all-zero bytes are a valid tm.
    let mut parts: libc::tm = unsafe { std::mem::zeroed() };
    // SAFETY: both are ours and alive.
    unsafe { libc::gmtime_r(&raw const now, &raw mut parts) };
    let (year, month) = (parts.tm_year + 1900, parts.tm_mon + 1);
    format!("{year}-{month:02}-{:02} {:02}:{:02} UTC", parts.tm_mday, parts.tm_hour, parts.tm_min)
}
