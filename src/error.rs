//! Everything that can go wrong, and the catalogue of its texts.
//!
//! A text says the cause in plain words: which argument or file, what is wrong with it, and what would be right.
//! None holds a password or a whole URL.

use crate::token::Token;
use std::fmt;
use std::io;
use std::path::PathBuf;
use std::sync::Arc;

/// A failure. Expected answers, like a busy lock, are not errors.
#[derive(Clone, Debug)]
pub enum Error {
    /// A value that an argument cannot have.
    Argument(ArgumentFault),
    /// An option or a URL that cannot be used.
    Config(ConfigFault),
    /// The table is full. Held locks are never evicted.
    Full {
        /// How many locks may be held at once.
        slots: u32,
    },
    /// The process gets no memory.
    NoMemory,
    /// The kernel gives no random numbers to make a token of.
    NoRandom,
    /// The bell cannot be had.
    Bell(BellFault),
    /// The server gave no good answer.
    Server {
        /// Which.
        server: Arc<str>,
        /// What that means.
        fault: ServerFault,
        /// What happened, in its own words where it has said some.
        why: Box<str>,
    },
    /// A blocking call of a lock whose commands a caller's own client carries.
    NoServer,
    /// The shared segment cannot be used.
    Segment {
        /// The file or the directory.
        path: PathBuf,
        /// What is wrong with it.
        fault: SegmentFault,
    },
}

/// What is wrong with an argument.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ArgumentFault {
    /// A pointer that must not be NULL.
    Null(&'static str),
    /// Text that is not UTF-8.
    NotUtf8(&'static str),
    /// A lease of no length.
    ZeroTtl,
    /// A lease of more than 30 days.
    LongTtl(u32),
    /// `size` of a struct says nothing of this library's making.
    StructSize {
        /// The struct.
        name: &'static str,
        /// What it says.
        size: usize,
        /// What this library would say.
        ours: usize,
    },
    /// A path for a socket of a length that it cannot have.
    SocketPath {
        /// Its length in bytes.
        length: usize,
        /// What it may have at most.
        most: usize,
    },
    /// An op of another process.
    OtherProcess {
        /// The process that made it.
        maker: u32,
    },
    /// The result of an op that is not done.
    NotDone,
    /// Something was given to an op that did not ask for it.
    NotAsked(&'static str),
    /// A kind of reply that there is not.
    ReplyKind(i32),
    /// An output that does not fit.
    Room {
        /// The argument.
        name: &'static str,
        /// Its size in bytes.
        room: usize,
        /// What is needed, in bytes.
        need: usize,
    },
}

/// What a failure with a server means.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ServerFault {
    /// Nothing was done there.
    Unreachable,
    /// Something may have been done there. Of an acquire: the token that may hold the lock.
    Uncertain(Option<Token>),
    /// It answered with an error.
    Refused,
    /// It was not asked: the circuit breaker is open.
    Unavailable,
}

/// Why there is no bell.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum BellFault {
    /// Only waits in shared memory have one.
    NotShm,
    /// It has the other form already.
    OtherForm,
    /// Its ids go to a socket.
    Socket,
    /// The lock is freed.
    Closed,
    /// A call of the system failed.
    System {
        /// What was tried.
        doing: &'static str,
        /// How it failed.
        errno: i32,
    },
}

/// What is wrong with the configuration.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum ConfigFault {
    /// A URL of an unknown kind. It is not quoted whole: it may hold a password.
    Scheme(String),
    /// A URL whose server cannot be read.
    Server,
    /// `unix://` without a path that a socket can have.
    SocketPath,
    /// `rediss://` where the library has no TLS.
    NoTls,
    /// A password file that cannot be used.
    PasswordFile {
        /// The file.
        path: PathBuf,
        /// What is wrong with it.
        why: String,
    },
    /// A file of certificates that cannot be used.
    CaFile {
        /// The file.
        path: PathBuf,
        /// What is wrong with it.
        why: String,
    },
    /// The system has no certificates to trust, and no file was given; why there are none.
    NoRoots(String),
    /// A bad name of a table.
    Name(String),
    /// `off:` with something behind it.
    OffName,
    /// No such option.
    Unknown {
        /// What was asked for.
        option: String,
        /// The option that looks most like it.
        nearest: &'static str,
    },
    /// A value that an option cannot have.
    Value {
        /// The option.
        option: &'static str,
        /// The value, unless it is secret.
        value: Option<String>,
        /// What it may be.
        want: &'static str,
    },
    /// An option that the URL says twice.
    Twice(String),
    /// A query parameter without `=`.
    Parameter,
    /// A `%` without two hex digits behind it.
    Escape(&'static str),
}

/// What is wrong with a shared segment or its directory.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum SegmentFault {
    /// A call of the system failed.
    System {
        /// What was tried.
        doing: &'static str,
        /// How it failed.
        errno: i32,
    },
    /// A right is missing.
    Denied {
        /// What is not allowed.
        doing: &'static str,
        /// Who wants it.
        euid: u32,
        /// Whose it is.
        uid: u32,
        /// Whose group it is.
        gid: u32,
        /// Its permission bits.
        mode: u32,
    },
    /// It is not what it must be.
    Kind {
        /// What it is.
        is: &'static str,
        /// What it must be.
        must_be: &'static str,
    },
    /// It belongs to somebody whom this process has no reason to trust.
    Owner {
        /// Whose it is.
        uid: u32,
        /// Who asks.
        euid: u32,
    },
    /// Others than those who are trusted may write to it.
    WorldWritable {
        /// Its permission bits.
        mode: u32,
    },
    /// A directory on a file system that is not in memory, and nobody asked for that.
    NotInMemory,
    /// Too short to be a segment, or cut.
    Short {
        /// Its size in bytes.
        size: u64,
        /// What it should be at least.
        need: u64,
    },
    /// No segment of ours.
    Foreign,
    /// Made by a library with another layout.
    Layout {
        /// Its layout's version.
        found: u32,
        /// Ours.
        ours: u32,
    },
    /// Made on a machine with another byte order.
    ByteOrder,
    /// Its header contradicts itself or its size.
    Damaged(&'static str),
    /// It was deleted while locks in it are held.
    Deleted {
        /// Until the last lease in it ends, in ms.
        left_ms: u64,
    },
    /// This process has unshared its time namespace.
    TimeNamespace,
}

impl From<ArgumentFault> for Error {
    fn from(fault: ArgumentFault) -> Self {
        Self::Argument(fault)
    }
}

impl From<ConfigFault> for Error {
    fn from(fault: ConfigFault) -> Self {
        Self::Config(fault)
    }
}

impl From<BellFault> for Error {
    fn from(fault: BellFault) -> Self {
        Self::Bell(fault)
    }
}

impl Error {
    /// After an acquire: the token that may hold the lock.
    pub fn token(&self) -> Option<&Token> {
        match self {
            Self::Server { fault: ServerFault::Uncertain(token), .. } => token.as_ref(),
            _ => None,
        }
    }
}

impl std::error::Error for Error {}

impl fmt::Display for Error {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Argument(fault) => fault.fmt(f),
            Self::Config(fault) => fault.fmt(f),
            Self::Full { slots } => {
                write!(f, "the lock table is full (room for {slots} locks): give a larger size when it is made")
            }
            Self::Bell(fault) => fault.fmt(f),
            Self::Server { server, why, .. } => write!(f, "{server}: {why}"),
            Self::NoServer => f.write_str("redis: names no server: use ops, drive them by buflock_op_next, and let your own client carry their commands"),
            Self::NoMemory => f.write_str("the process gets no memory"),
            Self::NoRandom => f.write_str("the kernel gives no random numbers to make a token of"),
            Self::Segment { path, fault } => write!(f, "{}: {fault}", path.display()),
        }
    }
}

impl fmt::Display for ArgumentFault {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Null(name) => write!(f, "{name} is NULL"),
            Self::NotUtf8(name) => write!(f, "{name} is not UTF-8"),
            Self::ZeroTtl => f.write_str("ttl_ms is 0: a lease lasts at least 1 ms"),
            Self::LongTtl(ttl) => write!(f, "ttl_ms is {ttl}: a lease lasts at most 30 days (2592000000 ms)"),
            Self::StructSize { name, size, ours } => {
                write!(f, "{name}->size is {size}: set it to sizeof *{name} (here {ours}) before the call")
            }
            Self::SocketPath { length, most } => {
                write!(f, "path has {length} bytes: a socket's has 1 to {most}")
            }
            Self::OtherProcess { maker } => {
                write!(f, "op was made in process {maker}: in this one it can only be freed")
            }
            Self::NotDone => f.write_str("op is not done: call buflock_op_next or buflock_op_run until it is"),
            Self::NotAsked(what) => write!(f, "op did not ask for {what}: do what its last step says"),
            Self::ReplyKind(kind) => write!(f, "kind is {kind}: it must be a buflock_reply, 0 to 3"),
            Self::Room { name, room, need } => write!(f, "{name} has room for {room} bytes, {need} are needed"),
        }
    }
}

impl fmt::Display for BellFault {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::NotShm => f.write_str("only shm: locks have a bell: drive their ops by the steps they ask for"),
            Self::OtherForm => f.write_str("this lock's bell has another form already: an fd or a socket, not both"),
            Self::Closed => f.write_str("the lock is freed: it has no bell any more"),
            Self::Socket => f.write_str("this lock's bell writes its ids to a socket: read them there"),
            Self::System { doing, errno } => write!(f, "{doing} failed: {}", io::Error::from_raw_os_error(*errno)),
        }
    }
}

impl fmt::Display for ConfigFault {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Scheme(scheme) => {
                write!(f, "the URL begins with \"{scheme}\": it must begin with shm:, off:, ")?;
                f.write_str("redis://, rediss://, unix:// or redis:")
            }
            Self::Server => {
                f.write_str(
                    "the URL's server cannot be read: write redis://[USER:PASSWORD@]HOST[:PORT][/DB], with %XX ",
                )?;
                f.write_str("for other characters than A-Z a-z 0-9 - . _ ~ in USER and PASSWORD")
            }
            Self::SocketPath => f.write_str("unix:// needs a path that begins with / and has at most 107 bytes"),
            Self::NoTls => f.write_str("rediss:// needs a library that was built with TLS: make lib TLS=1"),
            Self::PasswordFile { path, why } => write!(f, "password_file {}: {why}", path.display()),
            Self::CaFile { path, why } => write!(f, "ca_file {}: {why}", path.display()),
            Self::NoRoots(why) => {
                write!(f, "this system has no certificates to trust, and there is no option ca_file: {why}")
            }
            Self::Name(name) => {
                write!(f, "bad table name \"{name}\" behind shm: it has 1 to 64 of A-Z a-z 0-9 . _ - and ")?;
                f.write_str("does not begin with a dot")
            }
            Self::OffName => f.write_str("off: takes no name"),
            Self::Unknown { option, nearest } => {
                write!(f, "unknown option \"{option}\": did you mean \"{nearest}\"?")
            }
            Self::Value { option, value: Some(value), want } => {
                write!(f, "option {option} is \"{value}\": it must be {want}")
            }
            Self::Value { option, value: None, want } => write!(f, "option {option} must be {want}"),
            Self::Twice(option) => write!(f, "the URL says option {option} twice: say it once"),
            Self::Parameter => f.write_str("a URL parameter has no value: write NAME=VALUE, and & in a value as %26"),
            Self::Escape(place) => write!(f, "the URL's {place} has a % without two hex digits behind it"),
        }
    }
}

impl fmt::Display for SegmentFault {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::System { doing, errno } => write!(f, "{doing} failed: {}", io::Error::from_raw_os_error(*errno)),
            Self::Denied { doing, euid, uid, gid, mode } => write!(
                f,
                "this process (uid {euid}) has no right to {doing} it: owner {uid}, group {gid}, mode {mode:04o}"
            ),
            Self::Kind { is, must_be } => write!(f, "it is {is}: it must be {must_be}"),
            Self::Owner { uid, euid } => {
                write!(f, "it belongs to uid {uid}: it must belong to this process's user (uid {euid}) or root")
            }
            Self::WorldWritable { mode } => {
                write!(f, "others may write to it (mode {mode:04o}): take that right away from them")
            }
            Self::NotInMemory => {
                f.write_str("it is not on a tmpfs: mount one there, or give the option dir to use a disk on purpose")
            }
            Self::Short { size, need } => write!(f, "it has {size} bytes, {need} are needed: it was cut off"),
            Self::Foreign => f.write_str("it is not a buflock segment"),
            Self::Layout { found, ours } => {
                write!(f, "its layout is version {found}, this library's is {ours}: all processes must use one version")
            }
            Self::ByteOrder => f.write_str("it was made on a machine of another byte order"),
            Self::Damaged(what) => write!(f, "its header is damaged: {what}"),
            Self::Deleted { left_ms } => {
                write!(f, "it was deleted while in use: a new one is attached when the last lease in it ends, in ")?;
                write!(f, "{left_ms} ms at the latest")
            }
            Self::TimeNamespace => f.write_str("this process has unshared its time namespace: fork before locking"),
        }
    }
}
