//! The processes that use a table: who holds a lock, and later whom to ring.

use super::slot::{Owner, UNIT_SHIFT};
use crate::answer::Holder;
use std::fs::File;
use std::io::{Read, Write};
use std::mem::offset_of;
use std::os::unix::fs::MetadataExt;
use std::sync::atomic::Ordering::{AcqRel, Acquire, Relaxed};
use std::sync::atomic::{AtomicU32, AtomicU64};

/// How many processes of a table are known by name. More can lock and wait.
pub const MEMBERS: usize = 64;

/// One process, 64 bytes.
#[repr(C, align(64))]
#[derive(Debug)]
pub struct Member {
    /// [`Identity`] of the process; 0: nobody's record.
    id: AtomicU64,
    /// Time unit in which it joined.
    joined: AtomicU64,
    /// Futex that is raised to ring its bell.
    mailbox: AtomicU32,
    /// The library's ABI number and layout, to see who still runs an old one: `abi:16 | layout:16`.
    version: AtomicU32,
    reserved: [AtomicU64; 5],
}

impl Member {
    /// The futex that is raised to ring its bell.
    pub fn mailbox(&self) -> &AtomicU32 {
        &self.mailbox
    }

    /// Offsets of the fields, for [`super::segment::layout`].
    pub(super) const OFFSETS: [usize; 5] = [
        offset_of!(Self, id),
        offset_of!(Self, joined),
        offset_of!(Self, mailbox),
        offset_of!(Self, version),
        offset_of!(Self, reserved),
    ];
}

/// `pid namespace:16 | start time:26 | pid:22`. In one word, so that a record is never half somebody else's.
///
/// The start time tells a process from an earlier one with its number. Where two namespaces share the 16 bits, their
/// processes may take one another's record for a dead one's: then inspect may name the wrong process.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Identity(u64);

const PID_BITS: u32 = 22; // the kernel's PID_MAX_LIMIT
const START_BITS: u32 = 26; // 7.7 days of ticks
const PID_MASK: u64 = (1 << PID_BITS) - 1;
const START_MASK: u64 = (1 << START_BITS) - 1;

impl Identity {
    fn new(namespace: u64, start: u64, pid: u32) -> Self {
        let start = (start & START_MASK) << PID_BITS;
        Self((namespace & 0xffff) << (PID_BITS + START_BITS) | start | u64::from(pid) & PID_MASK)
    }

    /// This process's; None without `/proc`.
    fn of_this_process() -> Option<Self> {
        let pid = std::process::id();
        if !proc_is_ours(pid) {
            return None;
        }
        Some(Self::new(own_namespace()?, start_time(pid)?, pid))
    }

    #[allow(clippy::cast_possible_truncation)] // 22 bits
    fn pid(self) -> u32 {
        (self.0 & PID_MASK) as u32
    }

    fn namespace(self) -> u64 {
        self.0 >> (PID_BITS + START_BITS)
    }

    /// Whether the process is surely gone. One of another namespace never is, as far as we can see.
    fn is_dead(self, own: Self) -> bool {
        if self.namespace() != own.namespace() {
            return false;
        }
        let pid = self.pid();
        let Ok(number) = libc::pid_t::try_from(pid) else { return true };
        // SAFETY: signal 0 only asks.
        let gone = unsafe { libc::kill(number, 0) } != 0 && crate::sys::errno() == libc::ESRCH;
        // Its start time may be hidden from us; then it lives.
        gone || start_time(pid).is_some_and(|start| Self::new(self.namespace(), start, pid) != self)
    }
}

/// Whether `/proc` is that of our pid namespace. In another's, numbers mean other processes.
fn proc_is_ours(pid: u32) -> bool {
    let mut own = [0u8; 16];
    // SAFETY: a C string, and a buffer with its size.
    let length = unsafe { libc::readlink(c"/proc/self".as_ptr(), own.as_mut_ptr().cast(), own.len()) };
    let own = usize::try_from(length).ok().and_then(|length| std::str::from_utf8(&own[..length]).ok());
    own.and_then(|own| own.parse().ok()) == Some(pid)
}

/// The pid namespace's number.
fn own_namespace() -> Option<u64> {
    std::fs::metadata("/proc/self/ns/pid").ok().map(|namespace| namespace.ino())
}

/// When a process started, in ticks since boot. Does not allocate: it runs in the first acquire after a fork.
fn start_time(pid: u32) -> Option<u64> {
    let mut path = [0u8; 32];
    let mut rest = &mut path[..];
    write!(rest, "/proc/{pid}/stat").ok()?;
    let unused = rest.len();
    let path = std::str::from_utf8(&path[..path.len() - unused]).ok()?;
    let mut stat = [0u8; 1024];
    let length = File::open(path).ok()?.read(&mut stat).ok()?;
    // The name in parentheses may hold anything; the 20th field behind it is the start time.
    let stat = &stat[..length];
    let behind = stat.iter().rposition(|byte| *byte == b')')? + 1;
    let field = stat[behind..].split(|byte| *byte == b' ').filter(|field| !field.is_empty()).nth(19)?;
    std::str::from_utf8(field).ok()?.parse().ok()
}

/// Takes a record for this process: an unused one, else a dead process's. [`Owner::NO_RECORD`]: there is none.
/// `version` says what the process runs: ABI number in the high half, layout version in the low one.
pub fn join(members: &[Member; MEMBERS], now: u64, version: u32) -> u16 {
    let Some(own) = Identity::of_this_process() else { return Owner::NO_RECORD };
    let take = |usable: &dyn Fn(u64) -> bool| {
        members.iter().position(|member| {
            let id = member.id.load(Acquire);
            usable(id) && member.id.compare_exchange(id, own.0, AcqRel, Relaxed).is_ok()
        })
    };
    let Some(place) = take(&|id| id == 0).or_else(|| take(&|id| id == 0 || Identity(id).is_dead(own))) else {
        return Owner::NO_RECORD;
    };
    let member = &members[place];
    member.joined.store(now >> UNIT_SHIFT, Relaxed);
    member.version.store(version, Relaxed);
    u16::try_from(place + 1).unwrap_or(Owner::NO_RECORD)
}

/// Gives this process's record back.
pub fn leave(members: &[Member; MEMBERS], number: u16) {
    let Some(member) = usize::from(number).checked_sub(1).and_then(|place| members.get(place)) else { return };
    let id = Identity(member.id.load(Acquire));
    if id.pid() == std::process::id() {
        let _ = member.id.compare_exchange(id.0, 0, AcqRel, Relaxed); // not ours any more: so be it
    }
}

/// Whose hold an owner word names.
pub fn holder(members: &[Member; MEMBERS], owner: Owner) -> Holder {
    let Some(member) = usize::from(owner.member()).checked_sub(1).and_then(|place| members.get(place)) else {
        return Holder::Unknown;
    };
    let id = Identity(member.id.load(Acquire));
    #[allow(clippy::cast_possible_truncation)] // the low half is compared
    let joined = member.joined.load(Relaxed) as u32;
    let taken_before = owner.since().wrapping_sub(joined) > u32::MAX / 2;
    if id.0 == 0 || taken_before {
        return Holder::Unknown; // its process has left, and perhaps another has the record
    }
    if own_namespace().is_none_or(|own| own & 0xffff == id.namespace()) {
        Holder::Process(id.pid())
    } else {
        Holder::Elsewhere(id.pid())
    }
}

/// How many records are in use.
pub fn count(members: &[Member; MEMBERS]) -> usize {
    members.iter().filter(|member| member.id.load(Relaxed) != 0).count()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn table() -> Box<[Member; MEMBERS]> {
        // SAFETY: a member is atomics, for which zero is a value.
        unsafe { Box::new(std::mem::zeroed()) }
    }

    #[test]
    fn records_are_given_out_and_given_back() {
        let members = table();
        assert_eq!(join(&members, 0, 0), 1);
        assert_eq!(join(&members, 0, 0), 2);
        leave(&members, 1);
        assert_eq!(join(&members, 0, 0), 1);
        for number in 3..=64 {
            assert_eq!(join(&members, 0, 0), number);
        }
        assert_eq!(join(&members, 0, 0), Owner::NO_RECORD);
        assert_eq!(count(&members), 64);
        leave(&members, Owner::NO_RECORD);
        leave(&members, 0);
        assert_eq!(count(&members), 64);
    }

    #[test]
    fn a_dead_processs_record_is_taken_over() {
        let members = table();
        let own = Identity::of_this_process().unwrap();
        for member in members.iter() {
            // Our number, but of a process that started at another time.
            member.id.store(own.0 ^ 1 << PID_BITS, Relaxed);
        }
        members[7].id.store(own.0, Relaxed);
        assert_eq!(join(&members, 0, 0), 1);
        for (number, member) in (1..).zip(members.iter()) {
            if number != 8 {
                // Alive, but of another namespace: out of sight.
                member.id.store(own.0 ^ 1 << (PID_BITS + START_BITS), Relaxed);
            }
        }
        assert_eq!(join(&members, 0, 0), Owner::NO_RECORD);
    }

    #[test]
    fn a_hold_older_than_the_record_has_an_unknown_holder() {
        let members = table();
        let number = join(&members, 100 << UNIT_SHIFT, 0);
        let pid = Holder::Process(std::process::id());
        assert_eq!(holder(&members, Owner::new(number, 100, 1)), pid);
        assert_eq!(holder(&members, Owner::new(number, 101, 1)), pid);
        assert_eq!(holder(&members, Owner::new(number, 99, 1)), Holder::Unknown);
        assert_eq!(holder(&members, Owner::new(Owner::NO_RECORD, 101, 1)), Holder::Unknown);
        assert_eq!(holder(&members, Owner::new(0, 101, 1)), Holder::Unknown);
        assert_eq!(holder(&members, Owner::new(64, 101, 1)), Holder::Unknown);
    }

    #[test]
    fn the_start_time_is_found_behind_any_name() {
        let own = start_time(std::process::id()).unwrap();
        assert!(own > 0);
        assert_eq!(start_time(u32::MAX), None);
    }
}
