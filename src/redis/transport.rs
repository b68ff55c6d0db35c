//! Connections to a server, with time limits.

use super::resolver::Resolver;
use super::socket::{Received, Socket, set, timeval};
use super::tls::Session;
use crate::config::Address;
use crate::fd::opened;
use crate::policy::ms_passed;
use crate::sys::{errno, monotonic};
use std::io;
use std::net::{IpAddr, SocketAddr, TcpStream};
use std::os::fd::{AsRawFd, IntoRawFd, OwnedFd};
use std::os::unix::ffi::OsStrExt;
use std::path::Path;
use std::sync::Arc;
use std::time::Duration;

/// A connection to a server.
pub struct Connection {
    socket: Socket,
    tls: Option<Box<Session>>,
}

/// Why there is no connection.
pub struct Unopened {
    /// In words.
    pub why: String,
    /// Whether this process is at its limits: that says nothing of the server.
    pub by_us: bool,
}

impl From<String> for Unopened {
    fn from(why: String) -> Self {
        Self { why, by_us: false }
    }
}

impl From<io::Error> for Unopened {
    fn from(error: io::Error) -> Self {
        const LIMITS: [i32; 4] = [libc::EMFILE, libc::ENFILE, libc::ENOMEM, libc::ENOBUFS];
        Self { why: error.to_string(), by_us: error.raw_os_error().is_some_and(|errno| LIMITS.contains(&errno)) }
    }
}

impl Connection {
    /// Connects, until `until` at the latest; with TLS, where there is a session to begin. `reply_time`: how long
    /// replies mostly may take, in ns.
    ///
    /// # Errors
    /// Why not, in words.
    pub fn open(
        address: &Address,
        mut tls: Option<Box<Session>>,
        resolver: &Arc<Resolver>,
        until: u64,
        reply_time: u64,
    ) -> Result<Self, Unopened> {
        let socket = match address {
            Address::Tcp { host, port, .. } => connect_tcp(host, *port, resolver, until)?,
            Address::Unix(path) => connect_unix(path, until)?,
        };
        let socket = Socket::new(socket, reply_time);
        if let Some(tls) = &mut tls {
            tls.shake_hands(&socket, until)?;
        }
        Ok(Self { socket, tls })
    }

    /// Sends all of `bytes`.
    ///
    /// # Errors
    /// Why not, in words.
    pub fn send(&mut self, bytes: &[u8], until: u64) -> Result<(), String> {
        match &mut self.tls {
            None => self.socket.send(bytes, until),
            Some(tls) => tls.send(&self.socket, bytes, until),
        }
    }

    /// Receives some bytes.
    pub fn receive(&mut self, into: &mut [u8], until: u64) -> Received {
        match &mut self.tls {
            None => self.socket.receive(into, until),
            Some(tls) => tls.receive(&self.socket, into, until),
        }
    }

    /// Whether it is open and nothing has come.
    pub fn is_quiet(&mut self) -> bool {
        match &mut self.tls {
            None => self.socket.is_quiet(),
            Some(tls) => tls.is_quiet(&self.socket),
        }
    }

    /// Ends it, at the server too.
    pub fn abort(self) {
        self.socket.abort();
    }

    /// Closes it, unless its number is another's by now.
    pub fn close(&self) {
        self.socket.close();
    }
}

fn connect_tcp(host: &str, port: u16, resolver: &Arc<Resolver>, until: u64) -> Result<OwnedFd, Unopened> {
    let addresses = match host.parse::<IpAddr>() {
        Ok(address) => vec![SocketAddr::new(address, port)],
        Err(_) => resolver.resolve(host, port, until)?,
    };
    let none = if addresses.is_empty() { format!("{host} has no address") } else { "no time is left".to_owned() };
    let mut why = Unopened::from(none);
    for (place, address) in addresses.iter().enumerate() {
        // Each gets its share of the time that is left.
        let left = until.saturating_sub(monotonic()) / (addresses.len() - place) as u64;
        if left == 0 {
            break;
        }
        match TcpStream::connect_timeout(address, Duration::from_nanos(left)) {
            Ok(stream) => return Ok(opened(stream.into_raw_fd())?),
            Err(error) if error.kind() == io::ErrorKind::TimedOut => {
                why = format!("no answer within {} ms", ms_passed(left)).into();
            }
            Err(error) => why = error.into(),
        }
    }
    Err(why)
}

fn connect_unix(path: &Path, until: u64) -> io::Result<OwnedFd> {
    // SAFETY: makes a socket.
    let socket = opened(unsafe { libc::socket(libc::AF_UNIX, libc::SOCK_STREAM | libc::SOCK_CLOEXEC, 0) })?;
    // SAFETY: zero is a value of this plain struct.
    let mut address: libc::sockaddr_un = unsafe { std::mem::zeroed() };
    address.sun_family = libc::sa_family_t::try_from(libc::AF_UNIX).unwrap_or(0);
    let bytes = path.as_os_str().as_bytes();
    if bytes.len() >= address.sun_path.len() {
        return Err(io::Error::from_raw_os_error(libc::ENAMETOOLONG));
    }
    for (place, byte) in address.sun_path.iter_mut().zip(bytes) {
        *place = byte.cast_signed();
    }
    let size = libc::socklen_t::try_from(size_of_val(&address)).unwrap_or(0);
    loop {
        // Also for how long connect waits where the server takes no more connections.
        set(&socket, libc::SOL_SOCKET, libc::SO_SNDTIMEO, &timeval(until.saturating_sub(monotonic())));
        // SAFETY: an address of this size to read.
        if unsafe { libc::connect(socket.as_raw_fd(), (&raw const address).cast(), size) } == 0 {
            return Ok(socket);
        }
        match errno() {
            libc::EISCONN => return Ok(socket),
            libc::EINTR if monotonic() < until => {}
            libc::EAGAIN | libc::EINTR => return Err(io::ErrorKind::TimedOut.into()),
            errno => return Err(io::Error::from_raw_os_error(errno)),
        }
    }
}
