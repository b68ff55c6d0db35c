//! File descriptors that a host may close behind our back, or have copied by a fork.

use crate::cancel::Uncancelled;
use std::io;
use std::os::fd::{AsRawFd, FromRawFd, IntoRawFd, OwnedFd};

/// An fd of ours, with what tells its file from another under the same number: a daemon that closes all it does not know
/// may have opened something else there, which is not ours to close.
#[derive(Debug)]
pub struct KeptFd {
    fd: i32,
    device: libc::dev_t,
    inode: libc::ino_t,
}

impl KeptFd {
    /// Keeps `fd`. Its file must have an inode of its own: an eventfd, for one, has not.
    pub fn new(fd: OwnedFd) -> Self {
        let fd = fd.into_raw_fd();
        let (device, inode) = status(fd).map_or((0, 0), |status| (status.st_dev, status.st_ino));
        Self { fd, device, inode }
    }

    /// Its number.
    pub fn number(&self) -> i32 {
        self.fd
    }

    /// The file's status; None: it is not ours any more.
    pub fn status(&self) -> Option<libc::stat> {
        status(self.fd).filter(|status| self.is(status))
    }

    /// Whether this is the status of our file.
    pub fn is(&self, status: &libc::stat) -> bool {
        status.st_dev == self.device && status.st_ino == self.inode
    }
}

impl KeptFd {
    /// Closes it, unless it is not ours any more.
    pub fn close(&self) {
        let _uncancelled = Uncancelled::new();
        if self.status().is_some() {
            // SAFETY: still our file, as far as can be told.
            unsafe { libc::close(self.fd) };
        }
    }
}

impl Drop for KeptFd {
    fn drop(&mut self) {
        self.close();
    }
}

/// The fd of what was just opened, above the standard ones: where a host has closed those, what it prints must not end
/// up in our file.
///
/// # Errors
/// `fd` is none, with the system's error, or there is no other number.
pub fn opened(fd: i32) -> io::Result<OwnedFd> {
    if fd < 0 {
        return Err(io::Error::last_os_error());
    }
    // SAFETY: just opened, and nobody else's.
    let fd = unsafe { OwnedFd::from_raw_fd(fd) };
    if fd.as_raw_fd() > libc::STDERR_FILENO {
        return Ok(fd);
    }
    // SAFETY: an open fd.
    let moved = unsafe { libc::fcntl(fd.as_raw_fd(), libc::F_DUPFD_CLOEXEC, libc::STDERR_FILENO + 1) };
    if moved < 0 {
        return Err(io::Error::last_os_error());
    }
    // SAFETY: just made, and nobody else's.
    Ok(unsafe { OwnedFd::from_raw_fd(moved) })
}

/// fstat.
pub fn status(fd: i32) -> Option<libc::stat> {
    // SAFETY: zero is a value of this plain struct.
    let mut status: libc::stat = unsafe { std::mem::zeroed() };
    // SAFETY: a struct to fill; a bad fd is an error.
    (unsafe { libc::fstat(fd, &raw mut status) } == 0).then_some(status)
}
