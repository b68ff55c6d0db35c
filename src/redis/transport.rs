//! Sockets with time limits: each call ends at a point in time, however slowly bytes trickle, and whatever signals come.

use super::tls::Session;
use crate::config::Address;
use crate::fd::{KeptFd, opened};
use crate::policy::{NS_PER_MS, ms_passed};
use crate::sys::{errno, monotonic, timespec, without_signals};
use std::io;
use std::net::{IpAddr, SocketAddr, TcpStream, ToSocketAddrs};
use std::os::fd::{AsRawFd, IntoRawFd, OwnedFd};
use std::os::unix::ffi::OsStrExt;
use std::path::Path;
use std::ptr;
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::thread;
use std::time::Duration;

/// A connection to a server.
pub struct Connection {
    socket: Socket,
    tls: Option<Box<Session>>,
}

/// What bytes go over.
pub struct Socket {
    fd: KeptFd,
    /// How long a receive waits by itself, in ns.
    receive_time: u64,
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

/// How a receive ended.
pub enum Received {
    /// With so many bytes.
    Bytes(usize),
    /// The connection is of no use any more.
    Lost(String),
    /// Its time was over.
    Elapsed,
    /// A signal came.
    Interrupted,
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
        set(&socket, libc::IPPROTO_TCP, libc::TCP_NODELAY, &1i32); // refused for Unix sockets, which need it not
        // Closed at once, and what was not yet sent is not sent any more: a command that is given up must not arrive
        // seconds later.
        set(&socket, libc::SOL_SOCKET, libc::SO_LINGER, &libc::linger { l_onoff: 1, l_linger: 0 });
        let receive_time = reply_time / 8 * 7; // a little less, so that it fits into what is left of that
        set(&socket, libc::SOL_SOCKET, libc::SO_RCVTIMEO, &timeval(receive_time));
        let socket = Socket { fd: KeptFd::new(socket), receive_time };
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

    /// Ends it for all processes that have it by a fork, too: else what was not yet sent would be sent all the same, as
    /// long as one of them has it open.
    pub fn abort(self) {
        let nowhere = libc::sockaddr { sa_family: 0, sa_data: [0; 14] }; // AF_UNSPEC
        let size = libc::socklen_t::try_from(size_of_val(&nowhere)).unwrap_or(0);
        if self.socket.is_ours() {
            // SAFETY: our socket, and an address to read. Of a Unix socket it is refused, and not needed.
            unsafe { libc::connect(self.socket.fd.number(), &raw const nowhere, size) };
        }
    }

    /// Closes it, unless its number is another's by now.
    pub fn close(&self) {
        self.socket.fd.close();
    }
}

impl Socket {
    /// Sends all of `bytes`.
    ///
    /// # Errors
    /// Why not, in words.
    pub fn send(&self, mut bytes: &[u8], until: u64) -> Result<(), String> {
        while !bytes.is_empty() {
            let flags = libc::MSG_NOSIGNAL | libc::MSG_DONTWAIT;
            // SAFETY: an fd and bytes to read.
            let sent = unsafe { libc::send(self.fd.number(), bytes.as_ptr().cast(), bytes.len(), flags) };
            match usize::try_from(sent) {
                Ok(sent) => bytes = &bytes[sent..],
                Err(_) => match errno() {
                    libc::EINTR => {}
                    libc::EAGAIN if self.poll(libc::POLLOUT, until) => {}
                    libc::EAGAIN => return Err("sending took too long".to_owned()),
                    errno => return Err(format!("sending failed: {}", io::Error::from_raw_os_error(errno))),
                },
            }
        }
        Ok(())
    }

    /// Receives some bytes.
    pub fn receive(&self, into: &mut [u8], until: u64) -> Received {
        let left = until.saturating_sub(monotonic());
        // The socket's own limit saves a call of the system where it is longer than ours by an eighth at most.
        self.receive_or_wait(into, until, left >= self.receive_time)
    }

    /// The same, and never later.
    #[cfg_attr(not(feature = "tls"), allow(dead_code))]
    pub fn receive_by(&self, into: &mut [u8], until: u64) -> Received {
        self.receive_or_wait(into, until, false)
    }

    fn receive_or_wait(&self, into: &mut [u8], until: u64, mut may_block: bool) -> Received {
        loop {
            if !may_block {
                match self.poll_once(libc::POLLIN, until) {
                    Ok(true) => {}
                    Ok(false) => return Received::Elapsed,
                    Err(libc::EINTR) => return Received::Interrupted,
                    Err(errno) => return Received::Lost(io::Error::from_raw_os_error(errno).to_string()),
                }
            }
            // SAFETY: an fd and room for the bytes.
            let count = unsafe { libc::recv(self.fd.number(), into.as_mut_ptr().cast(), into.len(), 0) };
            match usize::try_from(count) {
                Ok(0) => return Received::Lost("the server closed the connection".to_owned()),
                Ok(count) => return Received::Bytes(count),
                Err(_) => match errno() {
                    libc::EAGAIN => may_block = false, // its limit, or another's bytes
                    libc::EINTR => return Received::Interrupted,
                    errno => {
                        return Received::Lost(format!("receiving failed: {}", io::Error::from_raw_os_error(errno)));
                    }
                },
            }
        }
    }

    fn is_quiet(&self) -> bool {
        let mut byte = 0u8;
        let flags = libc::MSG_PEEK | libc::MSG_DONTWAIT;
        // SAFETY: an fd and room for a byte.
        let count = unsafe { libc::recv(self.fd.number(), (&raw mut byte).cast(), 1, flags) };
        count < 0 && errno() == libc::EAGAIN && self.is_ours()
    }

    /// Whether its number is not another's by now.
    pub fn is_ours(&self) -> bool {
        self.fd.status().is_some()
    }

    /// Waits until it can be used for `events`, whatever signals come; false: until `until`, in vain.
    fn poll(&self, events: i16, until: u64) -> bool {
        loop {
            match self.poll_once(events, until) {
                Ok(ready) => return ready,
                Err(libc::EINTR) => {}
                Err(_) => return true, // what is tried next says why
            }
        }
    }

    fn poll_once(&self, events: i16, until: u64) -> Result<bool, i32> {
        let mut entry = libc::pollfd { fd: self.fd.number(), events, revents: 0 };
        let time = timespec(until.saturating_sub(monotonic()));
        // SAFETY: one entry and a time; the signal mask stays.
        match unsafe { libc::ppoll(&raw mut entry, 1, &raw const time, ptr::null()) } {
            0 => Ok(false),
            1.. => Ok(true),
            _ => Err(errno()),
        }
    }
}

fn set<T>(socket: &OwnedFd, level: i32, name: i32, value: &T) {
    let size = libc::socklen_t::try_from(size_of::<T>()).unwrap_or(0);
    // SAFETY: a value of this size to read. An option that is refused is done without.
    unsafe { libc::setsockopt(socket.as_raw_fd(), level, name, ptr::from_ref(value).cast(), size) };
}

fn timeval(ns: u64) -> libc::timeval {
    let time = timespec(ns.max(NS_PER_MS));
    libc::timeval { tv_sec: time.tv_sec, tv_usec: time.tv_nsec / 1000 }
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

/// How long what a name was resolved to is used without asking again.
const FRESH: u64 = 30_000 * NS_PER_MS;

/// Resolves a host name in a thread of its own, since that may take long and cannot be ended.
#[derive(Default)]
pub struct Resolver {
    state: Mutex<Names>,
    changed: Condvar,
}

#[derive(Default)]
struct Names {
    addresses: Vec<SocketAddr>,
    /// When they were found.
    at: u64,
    asks: bool,
    why: String,
}

impl Resolver {
    /// Has the name asked for again at the next connection: a fail-over may have changed what it means.
    pub fn expire(&self) {
        self.state().at = 0;
    }

    fn state(&self) -> MutexGuard<'_, Names> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// The addresses of `host`. Old ones are good until new ones are found, which nobody waits for.
    fn resolve(self: &Arc<Self>, host: &str, port: u16, until: u64) -> Result<Vec<SocketAddr>, String> {
        let begun = monotonic();
        let mut state = self.state();
        if !state.addresses.is_empty() && state.at != 0 && begun < state.at + FRESH {
            return Ok(state.addresses.clone());
        }
        let has_old = !state.addresses.is_empty();
        if !state.asks {
            state.asks = true;
            let (resolver, host) = (self.clone(), host.to_owned());
            let name = "buflock-resolve".to_owned();
            let thread = without_signals(|| {
                thread::Builder::new()
                    .name(name)
                    .spawn(move || resolver.ask(&host, port))
                    .map_err(|error| error.to_string())
            });
            if let Err(why) = thread {
                state.asks = false;
                return Err(format!("starting a thread to resolve the host's name failed: {why}"));
            }
        }
        while state.asks && !has_old {
            let left = until.saturating_sub(monotonic());
            if left == 0 {
                break;
            }
            state = self
                .changed
                .wait_timeout(state, Duration::from_nanos(left))
                .map_or_else(|poisoned| poisoned.into_inner().0, |(state, _)| state);
        }
        match (state.addresses.is_empty(), state.asks) {
            (false, _) => Ok(state.addresses.clone()),
            (true, false) => Err(format!("resolving {host} failed: {}", state.why)),
            (true, true) => Err(format!("resolving {host} took more than {} ms", ms_passed(monotonic() - begun))),
        }
    }

    fn ask(&self, host: &str, port: u16) {
        let found = (host, port).to_socket_addrs();
        let mut state = self.state();
        match found {
            Ok(addresses) => (state.addresses, state.at) = (addresses.collect(), monotonic()),
            Err(error) => state.why = error.to_string(),
        }
        state.asks = false;
        self.changed.notify_all();
    }
}
