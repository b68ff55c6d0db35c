//! A table's file: made whole or not at all, checked before it is mapped, and noticed when it is deleted.

use super::atomics::Native;
use super::clock::proc_text;
use super::member::{MEMBERS, Member};
use super::place::{Place, c_path, euid, owner_in};
use super::slot::{Bucket, Slot, UNIT_SHIFT};
use crate::error::{Error, SegmentFault};
use crate::fd::{KeptFd, opened, status};
use crate::sys::{errno, sleep, wall};
use rand::TryRng;
use rand::rngs::SysRng;
use std::ffi::{CStr, CString};
use std::mem::{MaybeUninit, offset_of, size_of};
use std::os::fd::{AsRawFd, OwnedFd};
use std::path::PathBuf;
use std::ptr::{NonNull, null_mut};
use std::sync::atomic::AtomicU64;
use std::sync::atomic::Ordering::Relaxed;

/// The version of the layout. Frozen within a soname from release 0.1.0 on.
pub const LAYOUT: u32 = 1;
/// Slots of a bucket.
pub const SLOTS: usize = 15;
/// Bytes before the first bucket.
pub const HEAD: usize = 8192;
/// Bytes of a bucket.
pub const BUCKET: usize = 1024;

const MAGIC: [u8; 8] = *b"BUFLOCK1";
const ENDIAN: u32 = 0x0102_0304;
/// CLOCK_MONOTONIC in the initial time namespace.
const CLOCK: u32 = 1;
/// How much memory is asked for at once, in bytes: some 100 us.
const PIECE: libc::off_t = 256 << 10;
/// How often making and opening may get in one another's way.
const TRIES: usize = 16;
/// How often, and after how many ns, the lock on a file to be replaced is tried: for about a second.
const LOCK_TRIES: usize = 1000;
const LOCK_PAUSE: u64 = 1_000_000;

/// The plain part of the header. It is checked once and copied; nothing reads it again.
#[repr(C)]
#[derive(Clone, Copy, Debug)]
pub struct Header {
    magic: [u8; 8],
    layout: u32,
    endian: u32,
    /// Of the whole file, in bytes.
    pub size: u64,
    /// Number of buckets.
    pub buckets: u32,
    slots: u32,
    slot_size: u32,
    bucket_size: u32,
    clock: u32,
    unit_shift: u32,
    /// Key of the key hash.
    pub secret: [u64; 2],
    boot: [u8; 16],
    /// When it was made, in us since 1970: the base of its fence numbers.
    pub created: u64,
    uid: u32,
    gid: u32,
    /// Tells its tokens from those of an earlier table; never 0.
    pub id: u32,
    head_size: u32,
    members: u32,
    member_size: u32,
    reserved: [u64; 2],
}

/// What seldom happens, counted by all processes.
#[repr(C)]
#[derive(Debug)]
pub struct Counters {
    /// New keys that found no slot.
    pub full: AtomicU64,
    /// Locks taken over after their lease.
    pub steals: AtomicU64,
    /// Slots taken over from processes that did not finish binding a key.
    pub takeovers: AtomicU64,
    /// Leases that ended before their acquire could return.
    pub lost: AtomicU64,
    /// Not 0: somebody saw that the file is deleted. Nobody takes a lock here any more.
    pub deleted: AtomicU64,
    reserved: [AtomicU64; 3],
}

/// All that stands before the buckets.
#[repr(C)]
#[derive(Debug)]
pub struct Head {
    header: MaybeUninit<Header>,
    /// Counts.
    pub counters: Counters,
    reserved: [AtomicU64; (4096 - 192) / 8],
    /// The processes.
    pub members: [Member; MEMBERS],
}

/// A bucket of this layout.
pub type NativeBucket = Bucket<Native, SLOTS>;

const _: () = {
    assert!(size_of::<Header>() == 128 && offset_of!(Head, counters) == 128 && offset_of!(Head, members) == 4096);
    assert!(size_of::<Head>() == HEAD && size_of::<NativeBucket>() == BUCKET && size_of::<Slot<Native>>() == 64);
    assert!(size_of::<Member>() == 64);
};

/// Offsets and sizes of everything in the file, to be compared with the golden ones.
pub fn layout() -> String {
    let rows: [(&str, usize); 49] = [
        ("header.magic", offset_of!(Header, magic)),
        ("header.layout", offset_of!(Header, layout)),
        ("header.endian", offset_of!(Header, endian)),
        ("header.size", offset_of!(Header, size)),
        ("header.buckets", offset_of!(Header, buckets)),
        ("header.slots", offset_of!(Header, slots)),
        ("header.slot_size", offset_of!(Header, slot_size)),
        ("header.bucket_size", offset_of!(Header, bucket_size)),
        ("header.clock", offset_of!(Header, clock)),
        ("header.unit_shift", offset_of!(Header, unit_shift)),
        ("header.secret", offset_of!(Header, secret)),
        ("header.boot", offset_of!(Header, boot)),
        ("header.created", offset_of!(Header, created)),
        ("header.uid", offset_of!(Header, uid)),
        ("header.gid", offset_of!(Header, gid)),
        ("header.id", offset_of!(Header, id)),
        ("header.head_size", offset_of!(Header, head_size)),
        ("header.members", offset_of!(Header, members)),
        ("header.member_size", offset_of!(Header, member_size)),
        ("header.reserved", offset_of!(Header, reserved)),
        ("header (size)", size_of::<Header>()),
        ("head.counters", offset_of!(Head, counters)),
        ("head.counters.full", offset_of!(Head, counters) + offset_of!(Counters, full)),
        ("head.counters.steals", offset_of!(Head, counters) + offset_of!(Counters, steals)),
        ("head.counters.takeovers", offset_of!(Head, counters) + offset_of!(Counters, takeovers)),
        ("head.counters.lost", offset_of!(Head, counters) + offset_of!(Counters, lost)),
        ("head.counters.deleted", offset_of!(Head, counters) + offset_of!(Counters, deleted)),
        ("head.members", offset_of!(Head, members)),
        ("head (size)", size_of::<Head>()),
        ("member.id", Member::OFFSETS[0]),
        ("member.joined", Member::OFFSETS[1]),
        ("member.mailbox", Member::OFFSETS[2]),
        ("member.version", Member::OFFSETS[3]),
        ("member.reserved", Member::OFFSETS[4]),
        ("member (size)", size_of::<Member>()),
        ("bucket.fence", offset_of!(NativeBucket, fence)),
        ("bucket.reserved", offset_of!(NativeBucket, reserved)),
        ("bucket.slots", offset_of!(NativeBucket, slots)),
        ("bucket (size)", size_of::<NativeBucket>()),
        ("slot.word", offset_of!(Slot<Native>, word)),
        ("slot.key", offset_of!(Slot<Native>, key)),
        ("slot.owner", offset_of!(Slot<Native>, owner)),
        ("slot.acquirers", offset_of!(Slot<Native>, acquirers)),
        ("slot.awaiters", offset_of!(Slot<Native>, awaiters)),
        ("slot.bells", offset_of!(Slot<Native>, bells)),
        ("slot.reserved", offset_of!(Slot<Native>, reserved)),
        ("slot (size)", size_of::<Slot<Native>>()),
        ("unit shift", UNIT_SHIFT as usize),
        ("layout version", LAYOUT as usize),
    ];
    rows.iter().map(|(name, value)| format!("{name} {value}\n")).collect()
}

/// The header's fields that say how the file is built, in their order. The layout's version stands for them all.
const SHAPE: [u32; 8] = [
    small(SLOTS),
    small(size_of::<Slot<Native>>()),
    small(BUCKET),
    CLOCK,
    UNIT_SHIFT,
    small(HEAD),
    small(MEMBERS),
    small(size_of::<Member>()),
];

#[allow(clippy::cast_possible_truncation)] // checked, and at compile time
const fn small(size: usize) -> u32 {
    assert!(size <= 1 << 16);
    size as u32
}

impl Header {
    fn new(size: u64) -> Result<Self, MakeError> {
        let random = || SysRng.try_next_u64().map_err(|_| MakeError::Other(Error::NoRandom));
        let most = u64::from(u32::MAX) / SLOTS as u64;
        let buckets = (size.saturating_sub(HEAD as u64) / BUCKET as u64).clamp(1, most);
        let buckets = u32::try_from(buckets).unwrap_or(1);
        let [slots, slot_size, bucket_size, clock, unit_shift, head_size, members, member_size] = SHAPE;
        Ok(Self {
            magic: MAGIC,
            layout: LAYOUT,
            endian: ENDIAN,
            size: HEAD as u64 + u64::from(buckets) * BUCKET as u64,
            buckets,
            slots,
            slot_size,
            bucket_size,
            clock,
            unit_shift,
            secret: [random()?, random()?],
            boot: boot_id()?,
            created: wall() / 1000,
            uid: euid(),
            // SAFETY: it can't fail.
            gid: unsafe { libc::getegid() },
            id: u32::try_from(random()? >> 32).unwrap_or(1).max(1),
            head_size,
            members,
            member_size,
            reserved: [0; 2],
        })
    }

    fn shape(&self) -> [u32; 8] {
        let Self { slots, slot_size, bucket_size, clock, unit_shift, head_size, members, member_size, .. } = *self;
        [slots, slot_size, bucket_size, clock, unit_shift, head_size, members, member_size]
    }

    fn check(&self, file_size: u64) -> Result<(), SegmentFault> {
        if self.magic != MAGIC {
            return Err(SegmentFault::Foreign);
        }
        if self.endian != ENDIAN {
            return Err(SegmentFault::ByteOrder);
        }
        if self.layout != LAYOUT {
            return Err(SegmentFault::Layout { found: self.layout, ours: LAYOUT });
        }
        if self.shape() != SHAPE {
            return Err(SegmentFault::Damaged("its parts have other sizes than its layout's version says"));
        }
        let slots = u64::from(self.buckets) * SLOTS as u64;
        if self.buckets == 0 || slots > u64::from(u32::MAX) {
            return Err(SegmentFault::Damaged("the number of buckets cannot be"));
        }
        let size = HEAD as u64 + u64::from(self.buckets) * BUCKET as u64;
        if self.size != size {
            return Err(SegmentFault::Damaged("the number of buckets and the size differ"));
        }
        if file_size < size {
            return Err(SegmentFault::Short { size: file_size, need: size });
        }
        if file_size > size {
            return Err(SegmentFault::Damaged("the file is longer than it says"));
        }
        if self.id == 0 || self.created >= 1 << 52 {
            return Err(SegmentFault::Damaged("its number or its time cannot be"));
        }
        Ok(())
    }

    /// Whether all who held locks in it are gone: it was made before the machine started.
    fn is_of_an_earlier_boot(&self) -> Result<bool, SegmentFault> {
        let boot = boot_id()?;
        Ok(boot != [0; 16] && self.boot != [0; 16] && self.boot != boot)
    }
}

/// The number of this run of the machine; zeros without `/proc`.
fn boot_id() -> Result<[u8; 16], SegmentFault> {
    let text = proc_text("/proc/sys/kernel/random/boot_id")?;
    let digits = text.chars().filter(char::is_ascii_hexdigit).collect::<String>();
    Ok(u128::from_str_radix(&digits, 16).map_or([0; 16], u128::to_be_bytes))
}

/// A table's file, mapped.
#[derive(Debug)]
pub struct Segment {
    /// Where it is.
    pub path: PathBuf,
    /// The same, made beforehand: looks at it do not allocate.
    c_path: CString,
    /// Whether it is private to this user by the rule of place.
    pub private: bool,
    /// Its header, as it was checked.
    pub header: Header,
    base: NonNull<u8>,
    length: usize,
    file: KeptFd,
}

// SAFETY: all that is shared is atomics; the rest does not change.
unsafe impl Send for Segment {}
// SAFETY: all that is shared is atomics; the rest does not change.
unsafe impl Sync for Segment {}

impl Segment {
    /// Attaches the table `name` in `place`, which is made with `size` bytes and permission bits `mode` if it is not
    /// there yet.
    ///
    /// # Errors
    /// It cannot be made, opened or trusted.
    pub fn attach(place: &Place, name: &str, size: u64, mode: Option<u32>) -> Result<Self, Error> {
        let path = place.path.join(name);
        let fail = |fault| Error::Segment { path: path.clone(), fault };
        let c_name = c_path(name.as_ref())?;
        for _ in 0..TRIES {
            let Some(file) = open(place, &c_name).map_err(|error| error.at(&path))? else {
                let draft = Draft::filled(place, size, mode.unwrap_or(place.file_mode()));
                draft.and_then(|draft| draft.publish(&c_name)).map_err(|error| error.at(&path))?;
                continue; // and open it as everybody does: perhaps another made it first
            };
            let (status, header) = check(place, &file).map_err(&fail)?;
            if header.is_of_an_earlier_boot().map_err(&fail)? {
                replace(place, &c_name, &file, &header, &status).map_err(|error| error.at(&path))?;
                continue;
            }
            let length = usize::try_from(header.size).map_err(|_| Error::NoMemory)?;
            let base = map(&file, length).map_err(&fail)?;
            let file = KeptFd::new(file);
            let segment = Self { c_path: c_path(&path)?, path, private: place.private, header, base, length, file };
            // Or every acquire would look for another one, and find this again.
            if segment.head().counters.deleted.load(Relaxed) != 0 && !segment.has_no_name() {
                let fault = SegmentFault::Damaged("it says that it was deleted, but it is there");
                return Err(Error::Segment { path: segment.path.clone(), fault });
            }
            return Ok(segment);
        }
        Err(fail(SegmentFault::System { doing: "making it while others make and delete it", errno: libc::EAGAIN }))
    }

    /// The header's shared part.
    #[inline]
    pub fn head(&self) -> &Head {
        // SAFETY: mapped until drop, of at least this size, aligned to a page; all that is read of it is atomics.
        unsafe { self.base.cast().as_ref() }
    }

    /// The buckets.
    #[inline]
    pub fn buckets(&self) -> &[NativeBucket] {
        // SAFETY: mapped until drop; the header was checked against the file's size; buckets are atomics, at a
        // multiple of their alignment.
        unsafe { std::slice::from_raw_parts(self.base.add(HEAD).cast().as_ptr(), self.header.buckets as usize) }
    }

    /// Whether it is deleted, as all who have it open see.
    pub fn has_no_name(&self) -> bool {
        self.file.status().is_some_and(|status| status.st_nlink == 0)
    }

    /// Whether its name is gone or another's. A path that we may not look at (any more) tells nothing.
    pub fn is_deleted(&self) -> bool {
        if self.has_no_name() {
            return true;
        }
        let kept = self.file.status();
        // SAFETY: zero is a value of this plain struct.
        let mut status: libc::stat = unsafe { std::mem::zeroed() };
        // SAFETY: a C string and a struct to fill.
        if unsafe { libc::lstat(self.c_path.as_ptr(), &raw mut status) } == 0 {
            return !self.file.is(&status); // moved away, or hidden by a mount, and there is another in its place
        }
        // A file that has a name, but not this one, is out of reach of others, or of us after a chroot: harmless as
        // long as there is no other.
        kept.is_none() && errno() == libc::ENOENT
    }
}

impl Drop for Segment {
    fn drop(&mut self) {
        // SAFETY: mapped by attach, and nobody refers to it any more.
        unsafe { libc::munmap(self.base.as_ptr().cast(), self.length) };
    }
}

/// Opens the file; None: it does not exist. Opening never makes it: where files of others in sticky directories are
/// protected, that right would be refused.
fn open(place: &Place, name: &CStr) -> Result<Option<OwnedFd>, MakeError> {
    let flags = libc::O_RDWR | libc::O_NOFOLLOW | libc::O_CLOEXEC | libc::O_NONBLOCK | libc::O_NOCTTY;
    // SAFETY: an open fd and a C string.
    let error = match opened(unsafe { libc::openat(place.fd(), name.as_ptr(), flags) }) {
        Ok(file) => return Ok(Some(file)),
        Err(error) => error.raw_os_error().unwrap_or(0),
    };
    let kind = |is| Err(SegmentFault::Kind { is, must_be: "a regular file" }.into());
    match error {
        libc::ENOENT => Ok(None),
        libc::ELOOP => kind("a symbolic link"),
        libc::EISDIR => kind("a directory"),
        libc::ENXIO => kind("a special file"), // a socket, or a device that is not there
        libc::EACCES => {
            // SAFETY: zero is a value of this plain struct.
            let mut status: libc::stat = unsafe { std::mem::zeroed() };
            // SAFETY: an open fd, a C string and a struct to fill.
            let known =
                unsafe { libc::fstatat(place.fd(), name.as_ptr(), &raw mut status, libc::AT_SYMLINK_NOFOLLOW) } == 0;
            Err(if known { owner_in(&status).denied("read and write").into() } else { place.denied("search").into() })
        }
        errno => Err(SegmentFault::System { doing: "opening it", errno }.into()),
    }
}

/// Looks at an opened file before it is mapped.
fn check(place: &Place, file: &OwnedFd) -> Result<(libc::stat, Header), SegmentFault> {
    let fd = file.as_raw_fd();
    let status = status(fd).ok_or_else(|| SegmentFault::System { doing: "stat", errno: errno() })?;
    let owner = owner_in(&status);
    if owner.kind != libc::S_IFREG {
        let is = if owner.kind == libc::S_IFIFO { "a FIFO" } else { "a special file" };
        return Err(SegmentFault::Kind { is, must_be: "a regular file" });
    }
    if !place.trusts(owner.uid) {
        return Err(SegmentFault::Owner { uid: owner.uid, euid: euid() });
    }
    if owner.mode & 0o002 != 0 {
        return Err(SegmentFault::WorldWritable { mode: owner.mode });
    }
    let size = u64::try_from(status.st_size).unwrap_or(0);
    if size < HEAD as u64 {
        return Err(SegmentFault::Short { size, need: HEAD as u64 });
    }
    let mut header = MaybeUninit::<Header>::uninit();
    // SAFETY: as many bytes as the struct has. Read, not mapped: a file that is cut now is an error, not a SIGBUS.
    let read = unsafe { libc::pread(fd, header.as_mut_ptr().cast(), size_of::<Header>(), 0) };
    if read != size_of::<Header>().cast_signed() {
        return Err(SegmentFault::System { doing: "reading its header", errno: errno() });
    }
    // SAFETY: wholly read, and every bit pattern is a value.
    let header = unsafe { header.assume_init() };
    header.check(size)?;
    Ok((status, header))
}

fn map(file: &OwnedFd, length: usize) -> Result<NonNull<u8>, SegmentFault> {
    let access = libc::PROT_READ | libc::PROT_WRITE;
    // SAFETY: the kernel chooses the place; the file has this length.
    let base = unsafe { libc::mmap(null_mut(), length, access, libc::MAP_SHARED, file.as_raw_fd(), 0) };
    if base == libc::MAP_FAILED {
        return Err(SegmentFault::System { doing: "mapping it", errno: errno() });
    }
    NonNull::new(base.cast()).ok_or(SegmentFault::System { doing: "mapping it", errno: libc::ENOMEM })
}

/// A failure to make a file: of the file itself, or of the process.
enum MakeError {
    Fault(SegmentFault),
    Other(Error),
}

impl MakeError {
    fn at(self, path: &std::path::Path) -> Error {
        match self {
            Self::Fault(fault) => Error::Segment { path: path.to_owned(), fault },
            Self::Other(error) => error,
        }
    }
}

impl From<Error> for MakeError {
    fn from(error: Error) -> Self {
        Self::Other(error)
    }
}

impl From<SegmentFault> for MakeError {
    fn from(fault: SegmentFault) -> Self {
        Self::Fault(fault)
    }
}

/// A file on its way to its name.
struct Draft<'a> {
    file: OwnedFd,
    place: &'a Place,
    /// Its name meanwhile, where the file system has no nameless files.
    name: Option<CString>,
}

impl<'a> Draft<'a> {
    /// Makes a whole file that nobody can see: killed before it has its name, nothing is left.
    fn filled(place: &'a Place, size: u64, mode: u32) -> Result<Self, MakeError> {
        let header = Header::new(size)?;
        let draft = Self::new(place)?;
        let fd = draft.file.as_raw_fd();
        allocate(&draft.file, header.size)?;
        // All slots and counters begin as zeros, so the header is all there is to write.
        // SAFETY: a plain struct without padding, read as bytes.
        let written = unsafe { libc::pwrite(fd, (&raw const header).cast(), size_of::<Header>(), 0) };
        if written != size_of::<Header>().cast_signed() {
            return Err(SegmentFault::System { doing: "writing its header", errno: errno() }.into());
        }
        // SAFETY: an open fd. The umask has cut the mode it was made with.
        if unsafe { libc::fchmod(fd, mode) } != 0 {
            return Err(SegmentFault::System { doing: "setting its permission bits", errno: errno() }.into());
        }
        Ok(draft)
    }

    fn new(place: &'a Place) -> Result<Self, MakeError> {
        let flags = libc::O_RDWR | libc::O_CLOEXEC;
        // SAFETY: an open fd and a C string.
        match opened(unsafe { libc::openat(place.fd(), c".".as_ptr(), flags | libc::O_TMPFILE, 0o600) }) {
            Ok(file) if has_proc_fd(file.as_raw_fd()) => return Ok(Self { file, place, name: None }),
            _ => {}
        }
        let name = hidden_name();
        // SAFETY: an open fd and a C string.
        match opened(unsafe { libc::openat(place.fd(), name.as_ptr(), flags | libc::O_CREAT | libc::O_EXCL, 0o600) }) {
            Ok(file) => Ok(Self { file, place, name: Some(name) }),
            Err(error) => Err(match error.raw_os_error().unwrap_or(0) {
                libc::EACCES | libc::EPERM => place.denied("create files in").into(),
                errno => SegmentFault::System { doing: "creating it", errno }.into(),
            }),
        }
    }

    /// Gives the file a name. That another has it already is no failure: the next look finds that file.
    fn publish(&self, name: &CStr) -> Result<(), MakeError> {
        match self.link(name) {
            Ok(()) | Err(libc::EEXIST) => Ok(()),
            Err(libc::EACCES | libc::EPERM) => Err(self.place.denied("create files in").into()),
            Err(errno) => Err(SegmentFault::System { doing: "naming it", errno }.into()),
        }
    }

    /// Gives the file the name of another, for those who hold the lock on that.
    ///
    /// Renaming replaces, linking does not, but a nameless file cannot be renamed. So it gets a name in between, and
    /// always the same: what a killed process left there is in nobody's way.
    fn replace(&self, name: &CStr) -> Result<(), i32> {
        let hidden = CString::new([b".new-", name.to_bytes()].concat()).unwrap_or_default();
        let (fd, hidden) = (self.place.fd(), hidden.as_c_str());
        // SAFETY: an open fd and a C string.
        let forget = || unsafe { libc::unlinkat(fd, hidden.as_ptr(), 0) };
        forget();
        self.link(hidden)?;
        // SAFETY: open fds and C strings.
        if unsafe { libc::renameat(fd, hidden.as_ptr(), fd, name.as_ptr()) } == 0 {
            return Ok(());
        }
        let errno = errno();
        forget();
        Err(errno)
    }

    fn link(&self, name: &CStr) -> Result<(), i32> {
        let fd = self.place.fd();
        let linked = match &self.name {
            // SAFETY: open fds and C strings.
            Some(hidden) => unsafe { libc::linkat(fd, hidden.as_ptr(), fd, name.as_ptr(), 0) },
            None => {
                let own = proc_fd(self.file.as_raw_fd());
                // SAFETY: an open fd and C strings.
                unsafe { libc::linkat(libc::AT_FDCWD, own.as_ptr(), fd, name.as_ptr(), libc::AT_SYMLINK_FOLLOW) }
            }
        };
        if linked == 0 { Ok(()) } else { Err(errno()) }
    }
}

impl Drop for Draft<'_> {
    fn drop(&mut self) {
        if let Some(name) = &self.name {
            // SAFETY: an open fd and a C string.
            unsafe { libc::unlinkat(self.place.fd(), name.as_ptr(), 0) };
        }
    }
}

/// A name that no table has: those do not begin with a dot.
fn hidden_name() -> CString {
    let number = SysRng.try_next_u64().unwrap_or_else(|_| wall());
    CString::new(format!(".new-{number:016x}")).unwrap_or_default()
}

fn proc_fd(fd: i32) -> CString {
    CString::new(format!("/proc/self/fd/{fd}")).unwrap_or_default()
}

fn has_proc_fd(fd: i32) -> bool {
    // SAFETY: a C string.
    unsafe { libc::access(proc_fd(fd).as_ptr(), libc::F_OK) == 0 }
}

/// Gives a file its size, with memory behind every page: in a sparse file of a full tmpfs the first touch is SIGBUS.
fn allocate(file: &OwnedFd, size: u64) -> Result<(), SegmentFault> {
    let fault = |errno| SegmentFault::System { doing: "allocating its memory", errno };
    let mut limit = libc::rlimit { rlim_cur: 0, rlim_max: 0 };
    // Beyond this limit the kernel would not answer but send SIGXFSZ.
    // SAFETY: a struct to fill.
    if unsafe { libc::getrlimit(libc::RLIMIT_FSIZE, &raw mut limit) } == 0 && size > limit.rlim_cur {
        return Err(fault(libc::EFBIG));
    }
    let length = libc::off_t::try_from(size).map_err(|_| fault(libc::EFBIG))?;
    // In pieces: on tmpfs of older kernels any signal ends the call and undoes it: under a timer a long one never ends.
    let mut done = 0;
    while done < length {
        let piece = (length - done).min(PIECE);
        // SAFETY: an open fd.
        match unsafe { libc::posix_fallocate(file.as_raw_fd(), done, piece) } {
            0 => done += piece,
            libc::EINTR => {}
            errno => return Err(fault(errno)),
        }
    }
    Ok(())
}

/// Puts a new file in the place of one from before the machine started. One process does it; the others find its file.
fn replace(place: &Place, name: &CStr, old: &OwnedFd, header: &Header, status: &libc::stat) -> Result<(), MakeError> {
    lock(old)?;
    let still_named = match open(place, name)? {
        Some(current) => self::status(current.as_raw_fd())
            .is_some_and(|current| current.st_dev == status.st_dev && current.st_ino == status.st_ino),
        None => false,
    };
    if !still_named {
        return Ok(());
    }
    let new = Draft::filled(place, header.size, status.st_mode & 0o777)?;
    new.replace(name).map_err(|errno| match errno {
        // Only its owner may in a sticky directory.
        libc::EACCES | libc::EPERM => owner_in(status).denied("replace").into(),
        errno => SegmentFault::System { doing: "replacing it after a restart", errno }.into(),
    })
}

/// Locks a file. Whoever is killed meanwhile lets go of the lock; for one that is stopped there is no use in waiting.
fn lock(file: &OwnedFd) -> Result<(), SegmentFault> {
    let fail = |errno| Err(SegmentFault::System { doing: "waiting for the process that replaces it", errno });
    for _ in 0..LOCK_TRIES {
        // SAFETY: an open fd.
        if unsafe { libc::flock(file.as_raw_fd(), libc::LOCK_EX | libc::LOCK_NB) } == 0 {
            return Ok(());
        }
        match errno() {
            libc::EINTR | libc::EWOULDBLOCK => drop(sleep(LOCK_PAUSE)),
            errno => return fail(errno),
        }
    }
    fail(libc::ETIMEDOUT)
}
