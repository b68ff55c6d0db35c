//! Which directory a table is in, and whether it may be trusted. Never two tables by accident.

use crate::error::{Error, SegmentFault};
use crate::fd::status;
use crate::sys::errno;
use std::ffi::CString;
use std::io;
use std::os::fd::{AsRawFd, FromRawFd, OwnedFd};
use std::os::unix::ffi::OsStrExt;
use std::path::{Path, PathBuf};

/// Where all users of a host share tables, once an operator has made it.
const SHARED: &str = "/run/buflock";

/// A directory for tables, opened.
#[derive(Debug)]
pub struct Place {
    /// Its path.
    pub path: PathBuf,
    /// Whether it is private to this user, since nobody made a shared one.
    pub private: bool,
    dir: OwnedFd,
    owner: Owner,
}

/// Whose a file is, and who may do what with it.
#[derive(Clone, Copy, Debug)]
pub struct Owner {
    /// User.
    pub uid: u32,
    /// Group.
    pub gid: u32,
    /// Permission bits.
    pub mode: u32,
    /// File type bits.
    pub kind: u32,
}

/// Where this process's user has tables of its own.
pub fn private_path() -> PathBuf {
    PathBuf::from(format!("/dev/shm/buflock-{}", euid()))
}

/// The user on whose behalf this process works.
pub fn euid() -> u32 {
    // SAFETY: it can't fail.
    unsafe { libc::geteuid() }
}

impl Place {
    /// The directory: `dir` if an option says so, else the shared one if it exists, else one of this user's own.
    ///
    /// # Errors
    /// It cannot be used. A shared directory that exists but is closed to us is an error, not a reason to go elsewhere:
    /// there, two processes would hold the same lock in two tables.
    pub fn find(dir: Option<&Path>) -> Result<Self, Error> {
        if let Some(dir) = dir {
            return Self::open(dir, false, true);
        }
        let shared = Path::new(SHARED);
        // A name that is there, whatever it is, was meant.
        match std::fs::symlink_metadata(shared) {
            Err(error) if error.kind() == io::ErrorKind::NotFound => {}
            _ => return Self::open(shared, false, false),
        }
        let private = private_path();
        let name = c_path(&private)?;
        // SAFETY: a C string.
        let made = unsafe { libc::mkdir(name.as_ptr(), 0o700) } == 0;
        let errno = errno();
        Self::open(&private, true, false).map_err(|error| match error {
            // What is not there could not be made.
            Error::Segment { path, fault: SegmentFault::System { errno: libc::ENOENT, .. } } if !made => {
                Error::Segment { path, fault: SegmentFault::System { doing: "making the directory", errno } }
            }
            error => error,
        })
    }

    fn open(path: &Path, private: bool, disk_is_meant: bool) -> Result<Self, Error> {
        let fail = |fault| Error::Segment { path: path.to_owned(), fault };
        let name = c_path(path)?;
        // Without O_PATH the right to read it is asked for too, but a directory of files in which to lock is meant
        // to be searched, not listed.
        let flags = libc::O_PATH | libc::O_DIRECTORY | libc::O_NOFOLLOW | libc::O_CLOEXEC;
        // SAFETY: a C string.
        let fd = unsafe { libc::open(name.as_ptr(), flags) };
        if fd < 0 {
            return Err(fail(match errno() {
                libc::ELOOP => SegmentFault::Kind { is: "a symbolic link", must_be: "a directory" },
                libc::ENOTDIR if is_symlink(path) => {
                    SegmentFault::Kind { is: "a symbolic link", must_be: "a directory" }
                }
                libc::ENOTDIR => SegmentFault::Kind { is: "no directory", must_be: "a directory" },
                errno => SegmentFault::System { doing: "opening the directory", errno },
            }));
        }
        // SAFETY: just opened, and nobody else's.
        let dir = unsafe { OwnedFd::from_raw_fd(fd) };
        let owner = owner_of(fd).map_err(&fail)?;
        if ![0, euid()].contains(&owner.uid) {
            return Err(fail(SegmentFault::Owner { uid: owner.uid, euid: euid() }));
        }
        // In a sticky directory others can't replace our files; that they made one first is seen by its owner.
        if owner.mode & 0o002 != 0 && owner.mode & 0o1000 == 0 || private && owner.mode & 0o022 != 0 {
            return Err(fail(SegmentFault::WorldWritable { mode: owner.mode }));
        }
        let place = Self { path: path.to_owned(), private, dir, owner };
        if !disk_is_meant && !place.in_memory().map_err(&fail)? {
            return Err(fail(SegmentFault::NotInMemory));
        }
        if let Some(doing) = place.missing_right() {
            return Err(fail(owner.denied(doing)));
        }
        Ok(place)
    }

    fn in_memory(&self) -> Result<bool, SegmentFault> {
        // SAFETY: zero is a value of this plain struct.
        let mut system: libc::statfs = unsafe { std::mem::zeroed() };
        // SAFETY: an open fd and a struct to fill.
        if unsafe { libc::fstatfs(self.dir.as_raw_fd(), &raw mut system) } != 0 {
            return Err(SegmentFault::System { doing: "asking for its file system", errno: errno() });
        }
        Ok([libc::TMPFS_MAGIC, RAMFS_MAGIC].contains(&system.f_type))
    }

    /// The right that is needed to find files here and that this process lacks.
    fn missing_right(&self) -> Option<&'static str> {
        // SAFETY: an open fd and a C string; the effective user is asked about.
        let may = unsafe { libc::faccessat(self.dir.as_raw_fd(), c".".as_ptr(), libc::X_OK, libc::AT_EACCESS) } == 0;
        // A filter of system calls may refuse the question itself; then the first file that is opened tells.
        (!may && errno() == libc::EACCES).then_some("search")
    }

    /// The directory's fd.
    pub fn fd(&self) -> i32 {
        self.dir.as_raw_fd()
    }

    /// Why nothing can be made here.
    pub fn denied(&self, doing: &'static str) -> Error {
        Error::Segment { path: self.path.clone(), fault: self.owner.denied(doing) }
    }

    /// Whether a file of `uid` may be trusted here: root's, ours, or in a directory into which only root lets people
    /// write, whose group is the trust.
    pub fn trusts(&self, uid: u32) -> bool {
        uid == 0 || uid == euid() || self.owner.uid == 0 && self.owner.mode & 0o002 == 0
    }

    /// The permission bits of a new file: for the group too where the directory is the group's.
    pub fn file_mode(&self) -> u32 {
        if self.owner.mode & 0o2020 == 0o2020 { 0o660 } else { 0o600 }
    }
}

const RAMFS_MAGIC: libc::c_long = 0x8584_58f6;

impl Owner {
    /// A right that is missing.
    pub fn denied(self, doing: &'static str) -> SegmentFault {
        SegmentFault::Denied { doing, euid: euid(), uid: self.uid, gid: self.gid, mode: self.mode }
    }
}

/// Whose an open file is.
pub fn owner_of(fd: i32) -> Result<Owner, SegmentFault> {
    status(fd).map(|status| owner_in(&status)).ok_or_else(|| SegmentFault::System { doing: "stat", errno: errno() })
}

/// Whose the file of this status is.
pub fn owner_in(status: &libc::stat) -> Owner {
    Owner { uid: status.st_uid, gid: status.st_gid, mode: status.st_mode & 0o7777, kind: status.st_mode & libc::S_IFMT }
}

fn is_symlink(path: &Path) -> bool {
    std::fs::symlink_metadata(path).is_ok_and(|status| status.is_symlink())
}

/// A path for the C library.
pub fn c_path(path: &Path) -> Result<CString, Error> {
    CString::new(path.as_os_str().as_bytes()).map_err(|_| Error::Segment {
        path: path.to_owned(),
        fault: SegmentFault::Kind { is: "a path with a NUL byte", must_be: "a path" },
    })
}
