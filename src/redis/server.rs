//! The server: where it is, and under which names it and its connections are known.

use crate::cancel::Uncancelled;
use crate::config::{Address, Settings};
use crate::error::{ConfigFault, Error};
use std::ffi::CString;
use std::fs;
use std::hash::{BuildHasher, RandomState};
use std::os::unix::ffi::OsStrExt;
use std::path::Path;
use std::sync::{Arc, LazyLock};

/// The longest password that a file may hold, in bytes.
const PASSWORD_MAX: u64 = 64 * 1024;

/// A server.
#[derive(Debug)]
pub struct Server {
    /// Where it is.
    pub address: Address,
    /// For texts: no password in it.
    pub shown: Arc<str>,
    /// Its host, or the path of its Unix socket.
    pub host: CString,
    /// The name of the pool of connections that have this server, user and database.
    pub pool: CString,
    /// The same for those that may wait long.
    pub waiting_pool: CString,
}

impl Server {
    /// The server at `address`.
    pub fn new(address: Address, settings: &Settings) -> Self {
        let db = settings.db.unwrap_or(0);
        let (host, shown) = match &address {
            Address::Tcp { host, port, tls } => {
                let scheme = if *tls { "rediss" } else { "redis" };
                let brackets = if host.contains(':') { ["[", "]"] } else { ["", ""] };
                (host.clone().into_bytes(), format!("{scheme}://{}{host}{}:{port}/{db}", brackets[0], brackets[1]))
            }
            Address::Unix(path) => {
                (path.as_os_str().as_bytes().to_vec(), format!("unix://{}, db {db}", path.display()))
            }
        };
        // Another user, password or list of certificates is another pool. None of them can be read from its name: the
        // hash has a key of this process.
        static KEY: LazyLock<RandomState> = LazyLock::new(RandomState::new);
        let secret = match &settings.password {
            Some(crate::config::Secret::Text(text)) => text.clone(),
            Some(crate::config::Secret::File(path)) => format!("file {}", path.display()),
            None => String::new(),
        };
        let identity = KEY.hash_one((&settings.user, secret, &settings.ca_file));
        let pool = format!("buflock {shown} {identity:016x}");
        let text = |text: String| CString::new(text).unwrap_or_default(); // no NUL gets past the URL
        Self {
            host: CString::new(host).unwrap_or_default(),
            shown: shown.into(),
            waiting_pool: text(format!("{pool} waiting")),
            pool: text(pool),
            address,
        }
    }
}

/// Reads a file of at most `most` bytes, in words `size`.
///
/// # Errors
/// Why not, in words.
pub fn read_file(path: &Path, most: u64, size: &str) -> Result<Vec<u8>, String> {
    let _uncancelled = Uncancelled::new();
    let status = fs::metadata(path).map_err(|error| error.to_string())?;
    if !status.is_file() || status.len() > most {
        return Err(format!("it must be a file of at most {size}"));
    }
    fs::read(path).map_err(|error| error.to_string())
}

/// Reads a password from its file: the first line.
pub fn read_password(path: &Path) -> Result<Vec<u8>, Error> {
    let fault = |why: String| Error::from(ConfigFault::PasswordFile { path: path.to_path_buf(), why });
    let text = read_file(path, PASSWORD_MAX, "64 kB").map_err(fault)?;
    let line = text.split(|byte| *byte == b'\n').next().unwrap_or_default();
    let line = line.strip_suffix(b"\r").unwrap_or(line);
    if line.is_empty() { Err(fault("its first line is empty".to_owned())) } else { Ok(line.to_vec()) }
}
