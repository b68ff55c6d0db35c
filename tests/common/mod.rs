//! What integration tests share.

#![allow(dead_code)] // no test uses all of it

use std::os::unix::fs::DirBuilderExt;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicU32, Ordering};

/// A directory for tables in memory, gone with the guard.
#[derive(Debug)]
pub struct Dir(PathBuf);

impl Dir {
    /// A new one. `tag` says whose it is, should it ever be left behind.
    pub fn new(tag: &str) -> Self {
        static COUNT: AtomicU32 = AtomicU32::new(0);
        let number = COUNT.fetch_add(1, Ordering::Relaxed);
        let path = PathBuf::from(format!("/dev/shm/buflock-test-{tag}-{}-{number}", std::process::id()));
        let made = std::fs::DirBuilder::new().mode(0o755).create(&path);
        made.unwrap_or_else(|error| panic!("{}: {error}", path.display()));
        Self(path)
    }

    /// Where it is.
    pub fn path(&self) -> &Path {
        &self.0
    }

    /// The URL of the table `name` in it.
    pub fn url(&self, name: &str) -> String {
        format!("shm:{name}?dir={}", self.0.display())
    }
}

impl Drop for Dir {
    fn drop(&mut self) {
        let _ = std::fs::remove_dir_all(&self.0);
    }
}
