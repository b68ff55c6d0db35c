//! The bell: tells an event loop which of its waits to look at again.
//!
//! A releaser raises the mailbox of each process whose bit is set in the slot. A thread of ours sleeps on this process's
//! mailbox, looks which of the armed waits the ring may have been for, and hands their ids to the loop through a pipe or
//! a socket. It also looks at the end of every slice, which mends a ring that was lost with a killed releaser, so that
//! the loop itself need not look often. A ring is a hint: the loop asks the op.

use super::clock::futex_wake;
use super::slot::{Seen, State};
use super::table::Table;
use super::wait::SLICE;
use crate::error::{ArgumentFault, BellFault, Error};
use crate::fd::{KeptFd, opened};
use crate::hooks;
use crate::policy::NS_PER_MS;
use crate::sys::{errno, sleep, without_signals};
use std::collections::hash_map::Entry;
use std::collections::{HashMap, VecDeque};
use std::fs;
use std::io;
use std::os::fd::{AsRawFd, IntoRawFd, OwnedFd};
use std::os::unix::fs::PermissionsExt;
use std::os::unix::net::UnixListener;
use std::path::{Path, PathBuf};
use std::ptr::null_mut;
use std::sync::atomic::{AtomicBool, AtomicPtr, AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, OnceLock, PoisonError};
use std::thread::{self, JoinHandle};

/// The longest path of a Unix socket.
const PATH_MAX: usize = 107;
/// With nothing to wait for the thread sleeps until it is called.
const IDLE: u64 = 3600 * 1000 * NS_PER_MS;
/// How soon what a full socket did not take is sent again.
const RETRY: u64 = 5 * NS_PER_MS;
/// Room for the thread's stack: it calls nothing deep.
const STACK: usize = 128 << 10;

impl Waits {
    /// The next id to be read.
    fn next(&mut self) -> Option<u32> {
        while let Some(id) = self.told.pop_front() {
            if id == 0 {
                return Some(id);
            }
            if let Entry::Occupied(entry) = self.known.entry(id)
                && entry.get().is_none()
            {
                entry.remove();
                return Some(id);
            }
        }
        None
    }

    fn armed(&self) -> usize {
        self.known.values().flatten().count()
    }
}

/// A bell of one process: a forked child has none of its parent's threads.
pub struct Bell {
    shared: Arc<Shared>,
    thread: Mutex<Option<JoinHandle<()>>>,
    pid: u32,
    /// The bell before this one, which ended; other threads may still hold it.
    pub(super) earlier: *mut Bell,
}

// SAFETY: `earlier` is only followed when nobody uses the bells any more.
unsafe impl Send for Bell {}
// SAFETY: `earlier` is only followed when nobody uses the bells any more.
unsafe impl Sync for Bell {}

struct Shared {
    waits: Mutex<Waits>,
    /// Until the thread ends: when it is told to, or its reader leaves.
    runs: AtomicBool,
    /// The table whose mailbox the thread sleeps on. It outlives the thread, which is joined before it goes.
    table: AtomicPtr<Table>,
    quit: AtomicBool,
    rings: AtomicU64,
    way: Way,
}

/// How ids reach the event loop.
enum Way {
    /// A byte in the pipe says that there are ids to read.
    Pipe { read: KeptFd, write: KeptFd },
    /// Ids are written to the one connection that is made to a socket.
    Socket { path: PathBuf, listener: KeptFd, peer: OnceLock<KeptFd> },
}

#[derive(Default)]
struct Waits {
    /// By id; None: it is told, and not read yet.
    known: HashMap<u32, Option<Armed>>,
    /// What is to be read, and ids that were disarmed since.
    told: VecDeque<u32>,
    /// Whether the thread sleeps without an end.
    idle: bool,
}

struct Armed {
    table: *const Table,
    seen: Seen,
    member: u16,
}

// SAFETY: the pointer is only compared, and followed while its table lives: see Shared::table.
unsafe impl Send for Armed {}

impl Armed {
    /// Whether the hold it waits for has ended. An extended one has not: its new end is seen when the old one comes.
    ///
    /// A releaser that was stopped before its ring takes the bit late, from those who wait for the next hold. So the bit
    /// is set again, and the word looked at behind it.
    fn is_over(&self) -> bool {
        // SAFETY: tables live until the handle is gone, and the thread is gone before.
        let slots = unsafe { &*self.table }.slots();
        let has_ended = || {
            let word = slots.word(self.seen.slot);
            word.state() != State::Held || word.seq() != self.seen.word.seq()
        };
        has_ended() || slots.renew_bell(self.seen.slot, self.member) && has_ended()
    }
}

impl Bell {
    /// A bell whose fd becomes readable when there are ids to read.
    pub fn with_pipe(table: &Table) -> Result<Self, Error> {
        let mut ends = [0; 2];
        // SAFETY: room for two fds.
        if unsafe { libc::pipe2(ends.as_mut_ptr(), libc::O_CLOEXEC | libc::O_NONBLOCK) } != 0 {
            return Err(failed("making a pipe", &io::Error::last_os_error()));
        }
        let [read, write] = ends.map(|fd| opened(fd).map(KeptFd::new));
        let (read, write) =
            read.and_then(|read| Ok((read, write?))).map_err(|error| failed("making a pipe", &error))?;
        Self::start(table, Way::Pipe { read, write })
    }

    /// A bell that writes ids, 4 bytes each in the machine's order, to the one connection made to `path`.
    pub fn with_socket(table: &Table, path: &Path) -> Result<Self, Error> {
        let length = path.as_os_str().len();
        if !(1..=PATH_MAX).contains(&length) {
            return Err(ArgumentFault::SocketPath { length, most: PATH_MAX }.into());
        }
        let listener = UnixListener::bind(path).map_err(|error| failed("binding the bell's socket", &error))?;
        let ready =
            fs::set_permissions(path, fs::Permissions::from_mode(0o600)).and_then(|()| listener.set_nonblocking(true));
        if let Err(error) = ready {
            let _ = fs::remove_file(path);
            return Err(failed("closing the bell's socket to others", &error));
        }
        let listener = opened(listener.into_raw_fd()).map_err(|error| {
            let _ = fs::remove_file(path);
            failed("making the bell's socket", &error)
        })?;
        let way = Way::Socket { path: path.to_owned(), listener: KeptFd::new(listener), peer: OnceLock::new() };
        Self::start(table, way).inspect_err(|_| drop(fs::remove_file(path)))
    }

    fn start(table: &Table, way: Way) -> Result<Self, Error> {
        let shared = Arc::new(Shared {
            waits: Mutex::default(),
            runs: AtomicBool::new(true),
            table: AtomicPtr::new(std::ptr::from_ref(table).cast_mut()),
            quit: AtomicBool::new(false),
            rings: AtomicU64::new(0),
            way,
        });
        let for_thread = shared.clone();
        let thread = without_signals(|| {
            let thread = thread::Builder::new().name("buflock-bell".to_owned()).stack_size(STACK);
            thread.spawn(move || for_thread.run())
        });
        let thread = thread.map_err(|error| failed("starting the bell's thread", &error))?;
        let thread = Mutex::new(Some(thread));
        Ok(Self { shared, thread, pid: std::process::id(), earlier: null_mut() })
    }

    /// Whether this process started it.
    pub fn is_ours(&self) -> bool {
        self.pid == std::process::id()
    }

    /// Whether it rings: its thread has not ended.
    pub fn runs(&self) -> bool {
        self.shared.runs.load(Ordering::Acquire)
    }

    /// The fd to watch; None: ids go to a socket.
    pub fn fd(&self) -> Option<i32> {
        match &self.shared.way {
            Way::Pipe { read, .. } => Some(read.number()),
            Way::Socket { .. } => None,
        }
    }

    /// How often it has told an id.
    pub fn rings(&self) -> u64 {
        self.shared.rings.load(Ordering::Relaxed)
    }

    /// How many waits are armed.
    pub fn waits(&self) -> usize {
        self.shared.waits().armed()
    }

    /// Arms a wait for the end of the hold that was seen; false: look again, it may be over already.
    pub fn arm(&self, id: u32, table: &Table, seen: Seen, member: u16) -> bool {
        let mut waits = self.shared.waits();
        // Known to the thread before the bit is set: a ring finds it.
        waits.known.insert(id, Some(Armed { table, seen, member }));
        let Waits { known, told, .. } = &mut *waits;
        told.reserve(known.len());
        let was_idle = std::mem::take(&mut waits.idle);
        drop(waits);
        let earlier = self.shared.table.swap(std::ptr::from_ref(table).cast_mut(), Ordering::AcqRel);
        if was_idle || !std::ptr::eq(earlier, table) {
            // SAFETY: tables live until the handle is gone.
            call(unsafe { &*earlier });
        }
        let armed = table.slots().arm_bell(seen, member);
        if !armed {
            self.disarm(id);
        }
        armed
    }

    /// Forgets a wait.
    pub fn disarm(&self, id: u32) {
        self.shared.waits().known.remove(&id);
    }

    /// Rings id 0: whoever reads leaves.
    pub fn tell_to_quit(&self) {
        let mut waits = self.shared.waits();
        waits.told.push_back(0);
        self.shared.say(waits.told.len() - 1, waits.told.len());
        drop(waits);
        call(self.shared.table());
    }

    /// Takes ids to look at, as many as `ids` has room for.
    ///
    /// # Errors
    /// They go to a socket.
    pub fn read(&self, ids: &mut [u32]) -> Result<usize, Error> {
        let Way::Pipe { read, .. } = &self.shared.way else { return Err(BellFault::Socket.into()) };
        let mut waits = self.shared.waits();
        let mut count = 0;
        while let Some(place) = ids.get_mut(count)
            && let Some(id) = waits.next()
        {
            *place = id;
            count += 1;
        }
        if waits.told.is_empty() {
            let mut bytes = [0u8; 16];
            // SAFETY: an open fd that does not block, and room for the bytes.
            while unsafe { libc::read(read.number(), bytes.as_mut_ptr().cast(), bytes.len()) } > 0 {}
        }
        Ok(count)
    }

    /// Ends the thread, and waits until it has.
    pub fn stop(&self) {
        self.shared.quit.store(true, Ordering::Release);
        call(self.shared.table());
        let thread = self.thread.lock().unwrap_or_else(PoisonError::into_inner).take();
        if let Some(thread) = thread {
            let _ = thread.join(); // a panic was said where it happened
        }
    }

    /// Forgets a bell of the process that forked this one: here is no thread to join, and what that had locked stays
    /// locked. Only its fds are closed.
    pub fn forget(self) {
        self.close();
        std::mem::forget(self);
    }

    /// Closes the fds of a bell of the process that forked this one.
    pub fn close(&self) {
        match &self.shared.way {
            Way::Pipe { read, write } => {
                read.close();
                write.close();
            }
            Way::Socket { listener, peer, .. } => {
                listener.close();
                if let Some(peer) = peer.get() {
                    peer.close();
                }
            }
        }
    }
}

impl Drop for Bell {
    fn drop(&mut self) {
        self.stop();
    }
}

impl Shared {
    fn waits(&self) -> MutexGuard<'_, Waits> {
        self.waits.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn table(&self) -> &Table {
        // SAFETY: tables live until the handle is gone, and the thread is gone before.
        unsafe { &*self.table.load(Ordering::Acquire) }
    }

    fn quits(&self) -> bool {
        self.quit.load(Ordering::Acquire)
    }

    /// The thread.
    fn run(&self) {
        let _ended = Ended(&self.runs);
        if !self.connect() {
            return;
        }
        let mut unsent = Vec::new();
        loop {
            let table = self.table();
            // The count before all looks: a ring or a call behind it changes it, and the sleep ends at once.
            let mailbox = table.mailbox();
            let count = mailbox.map(|mailbox| mailbox.load(Ordering::Acquire));
            if self.quits() {
                return;
            }
            if !std::ptr::eq(table, self.table()) {
                continue; // the call that said so went to the mailbox of the table before
            }
            let longest = self.look();
            if !self.send(&mut unsent) {
                return; // the reader has left
            }
            let longest = if unsent.is_empty() { longest } else { RETRY };
            match mailbox.zip(count) {
                Some((mailbox, count)) => table.sleep_on(mailbox, count, longest),
                None => sleep(longest.min(SLICE)),
            };
        }
    }

    /// Tells the waits that are over; says how long to sleep.
    fn look(&self) -> u64 {
        let mut waits = self.waits();
        let Waits { known, told, .. } = &mut *waits;
        let before = told.len();
        let mut armed = 0;
        // Without allocating: a process that forks meanwhile copies an allocator at rest.
        for (id, wait) in known.iter_mut() {
            if wait.as_ref().is_some_and(Armed::is_over) {
                *wait = None;
                told.push_back(*id);
            }
            armed += usize::from(wait.is_some());
        }
        self.say(before, told.len());
        waits.idle = armed == 0;
        if waits.idle { IDLE } else { hooks::slice(SLICE) }
    }

    /// Says that there are `now` ids to read, where there were `before`.
    fn say(&self, before: usize, now: usize) {
        self.rings.fetch_add((now - before) as u64, Ordering::Relaxed);
        if let Way::Pipe { write, .. } = &self.way
            && now > 0
            && before == 0
        {
            // SAFETY: an open fd that does not block. One byte is enough: it stays until all ids are read.
            unsafe { libc::write(write.number(), c"!".as_ptr().cast(), 1) };
        }
    }

    /// Waits for the one connection to the socket; false: the thread is to end.
    fn connect(&self) -> bool {
        let Way::Socket { path, listener, peer } = &self.way else { return true };
        while !self.quits() && peer.get().is_none() {
            let mut ready = libc::pollfd { fd: listener.number(), events: libc::POLLIN, revents: 0 };
            // SAFETY: one entry. The time is how long a stop may have to wait.
            unsafe { libc::poll(&raw mut ready, 1, 50) };
            if let Some(connection) = accept(listener).filter(is_of_this_process) {
                peer.get_or_init(|| KeptFd::new(connection));
            }
        }
        let _ = fs::remove_file(path);
        listener.close();
        peer.get().is_some()
    }

    /// Writes the told ids to the socket, if there is one; false: its reader has gone.
    fn send(&self, unsent: &mut Vec<u8>) -> bool {
        let Way::Socket { peer, .. } = &self.way else { return true };
        let Some(peer) = peer.get() else { return false };
        let mut waits = self.waits();
        unsent.extend(std::iter::from_fn(|| waits.next()).flat_map(u32::to_ne_bytes));
        drop(waits);
        while !unsent.is_empty() {
            let flags = libc::MSG_DONTWAIT | libc::MSG_NOSIGNAL;
            // SAFETY: an fd and bytes to read.
            let sent = unsafe { libc::send(peer.number(), unsent.as_ptr().cast(), unsent.len(), flags) };
            match usize::try_from(sent) {
                Ok(sent) => drop(unsent.drain(..sent)),
                Err(_) => return [libc::EAGAIN, libc::EINTR].contains(&errno()), // the rest soon
            }
        }
        true
    }
}

/// A connection that waits to be accepted.
fn accept(listener: &KeptFd) -> Option<OwnedFd> {
    // SAFETY: an fd that does not block; the peer's address is not asked for.
    let fd = unsafe { libc::accept4(listener.number(), null_mut(), null_mut(), libc::SOCK_CLOEXEC) };
    // SAFETY: just made, and nobody else's.
    opened(fd).ok()
}

/// Says that the thread has ended, however it does.
struct Ended<'a>(&'a AtomicBool);

impl Drop for Ended<'_> {
    fn drop(&mut self) {
        self.0.store(false, Ordering::Release);
    }
}

/// Wakes the thread that sleeps on this process's mailbox.
fn call(table: &Table) {
    if let Some(mailbox) = table.mailbox() {
        mailbox.fetch_add(1, Ordering::AcqRel);
        futex_wake(mailbox, u32::MAX);
    }
}

fn is_of_this_process(peer: &OwnedFd) -> bool {
    let mut who = libc::ucred { pid: 0, uid: 0, gid: 0 };
    let mut size = libc::socklen_t::try_from(size_of::<libc::ucred>()).unwrap_or(0);
    // SAFETY: room for what is asked, and its size.
    let got = unsafe {
        let place = (&raw mut who).cast();
        libc::getsockopt(peer.as_raw_fd(), libc::SOL_SOCKET, libc::SO_PEERCRED, place, &raw mut size)
    };
    got == 0 && u32::try_from(who.pid) == Ok(std::process::id())
}

fn failed(doing: &'static str, error: &io::Error) -> Error {
    BellFault::System { doing, errno: error.raw_os_error().unwrap_or(0) }.into()
}
