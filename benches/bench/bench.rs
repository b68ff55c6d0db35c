//! What every measurement works with, and what a measurement is.

use std::ffi::{CString, OsString};
use std::os::unix::ffi::OsStringExt;
use std::path::{Path, PathBuf};

use crate::abi::{Api, Handle};
use crate::cpus;
use crate::locks::{Buflock, Flock, Kind, Lock, Polling, Rivals, Robust};
use crate::report::Row;
use crate::shared::{Shared, system_error};

/// One part of the bench. All parts take turns, round by round, so that a slow minute of the
/// machine hits them alike.
pub trait Measure {
    fn title(&self) -> &'static str;
    /// How it is done and on which CPUs, for the reader of the report.
    fn how(&self) -> String;
    fn round(&mut self) -> Result<(), String>;
    fn rows(&self) -> Vec<Row>;
}

pub struct Bench {
    pub library: PathBuf,
    pub api: Api,
    pub dir: PrivateDir,
    pub rivals: Shared<Rivals>,
    pub cpus: Vec<usize>,
    pub quick: bool,
}

impl Bench {
    pub fn new(library: &Path, quick: bool) -> Result<Self, String> {
        let api = Api::load(library)?;
        let rivals: Shared<Rivals> = Shared::new()?;
        rivals.init()?;
        Ok(Self { library: library.to_owned(), api, dir: PrivateDir::new()?, rivals, cpus: cpus::allowed()?, quick })
    }

    /// A handle of the calling process's own on the bench's private segment.
    pub fn handle(&self) -> Result<Handle<'_>, String> {
        let dir = self.dir.path().to_string_lossy();
        self.api.open("shm:bench", &[("dir", &dir)])
    }

    /// The calling process's own access to the lock of that kind that all processes of the bench share.
    pub fn lock(&self, kind: Kind, key: &str) -> Result<Box<dyn Lock + '_>, String> {
        Ok(match kind {
            Kind::Buflock => Box::new(Buflock::waiting(self.handle()?, key)),
            Kind::Polling => Box::new(Polling::steadily(Buflock::trying(self.handle()?, key))),
            Kind::Robust => Box::new(Robust(&self.rivals)),
            Kind::Flock => Box::new(Flock::open(self.dir.path())?),
        })
    }

    /// The CPU number `index` of those we may use; they repeat when there are fewer.
    pub fn cpu(&self, index: usize) -> usize {
        self.cpus[index % self.cpus.len()]
    }

    /// The last one: the first often has the machine's interrupts.
    pub fn quiet_cpu(&self) -> usize {
        self.cpu(self.cpus.len() - 1)
    }

    /// How often to do something: fully, or just to see that it works.
    pub fn times<T>(&self, full: T, quick: T) -> T {
        if self.quick { quick } else { full }
    }
}

/// A fresh directory on tmpfs, removed at the end.
pub struct PrivateDir(PathBuf);

impl PrivateDir {
    fn new() -> Result<Self, String> {
        let template = format!("/dev/shm/buflock-bench-{}-XXXXXX", std::process::id());
        let name = CString::new(template).map_err(|error| error.to_string())?.into_raw();
        // SAFETY: name is a writable text that ends in NUL; mkdtemp keeps its length.
        let made = unsafe { libc::mkdtemp(name) };
        let error = system_error("mkdtemp in /dev/shm");
        // SAFETY: from into_raw above, taken back once.
        let name = unsafe { CString::from_raw(name) };
        if made.is_null() {
            return Err(error);
        }
        Ok(Self(PathBuf::from(OsString::from_vec(name.into_bytes()))))
    }

    pub fn path(&self) -> &Path {
        &self.0
    }
}

impl Drop for PrivateDir {
    fn drop(&mut self) {
        if let Err(error) = std::fs::remove_dir_all(&self.0) {
            eprintln!("bench: cannot remove {}: {error}", self.0.display());
        }
    }
}
