//! A socket whose calls end at a point in time, however slowly bytes trickle, and whatever signals come.

use crate::cancel::Uncancelled;
use crate::fd::KeptFd;
use crate::policy::NS_PER_MS;
use crate::sys::{errno, monotonic, timespec};
use std::io;
use std::os::fd::{AsRawFd, OwnedFd};
use std::ptr;

/// What bytes go over.
pub struct Socket {
    fd: KeptFd,
    /// How long a receive waits by itself, in ns.
    receive_time: u64,
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

impl Socket {
    /// One that was just connected. `reply_time`: how long replies mostly may take, in ns.
    pub fn new(socket: OwnedFd, reply_time: u64) -> Self {
        set(&socket, libc::IPPROTO_TCP, libc::TCP_NODELAY, &1i32); // refused for Unix sockets, which need it not
        // Closed at once, and what was not yet sent is not sent any more: a command that is given up must not arrive
        // seconds later.
        set(&socket, libc::SOL_SOCKET, libc::SO_LINGER, &libc::linger { l_onoff: 1, l_linger: 0 });
        let receive_time = reply_time / 8 * 7; // a little less, so that it fits into what is left of that
        set(&socket, libc::SOL_SOCKET, libc::SO_RCVTIMEO, &timeval(receive_time));
        Self { fd: KeptFd::new(socket), receive_time }
    }

    /// Ends it for all processes that have it by a fork, too: else what was not yet sent would be sent all the same, as
    /// long as one of them has it open.
    pub fn abort(self) {
        let nowhere = libc::sockaddr { sa_family: 0, sa_data: [0; 14] }; // AF_UNSPEC
        let size = libc::socklen_t::try_from(size_of_val(&nowhere)).unwrap_or(0);
        let _uncancelled = Uncancelled::new();
        if self.is_ours() {
            // SAFETY: our socket, and an address to read. Of a Unix socket it is refused, and not needed.
            unsafe { libc::connect(self.fd.number(), &raw const nowhere, size) };
        }
    }

    /// Closes it, unless its number is another's by now.
    pub fn close(&self) {
        self.fd.close();
    }

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
        // The socket's own limit saves a call of the system where it is no longer than ours.
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

    /// Whether it is open and nothing has come.
    pub fn is_quiet(&self) -> bool {
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

/// Sets an option. One that is refused is done without.
pub fn set<T>(socket: &OwnedFd, level: i32, name: i32, value: &T) {
    let size = libc::socklen_t::try_from(size_of::<T>()).unwrap_or(0);
    // SAFETY: a value of this size to read.
    unsafe { libc::setsockopt(socket.as_raw_fd(), level, name, ptr::from_ref(value).cast(), size) };
}

/// A time as options of sockets want it; never 0, which is for ever.
pub fn timeval(ns: u64) -> libc::timeval {
    let time = timespec(ns.max(NS_PER_MS));
    libc::timeval { tv_sec: time.tv_sec, tv_usec: time.tv_nsec / 1000 }
}
