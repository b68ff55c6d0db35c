//! A table's file: made, attached, refused and replaced under hostile conditions.

mod common;
#[path = "common/lock.rs"]
mod lock;
#[path = "common/process.rs"]
mod process;

use buflock::answer::{Acquire, Holder, Verdict};
use buflock::client::Client;
use buflock::error::Error;
use buflock::shm::segment::{BUCKET, HEAD, LAYOUT, SLOTS, layout};
use common::Dir;
use lock::{FEW, SMALL, assert_says, busy, client, file, hold, names, number, refusal, small, stats, take};
use process::{
    Child, Shared, as_user, chmod, chown, fork, fork_as, in_child, limit, may_unshare, mount, mount_tmpfs, own_mounts,
    root, sleep_forever, umask, unmount_proc, wait_for_all, with_own_mounts,
};
use std::collections::BTreeSet;
use std::ffi::CString;
use std::fs::{self, File};
use std::os::fd::AsRawFd;
use std::os::unix::fs::{FileExt, MetadataExt, symlink};
use std::os::unix::net::UnixListener;
use std::path::{Path, PathBuf};
use std::sync::atomic::Ordering::AcqRel;
use std::sync::atomic::Ordering::Acquire as Load;
use std::time::{Duration, Instant};

/// Two users that nobody is, and a group.
const ALICE: u32 = 12345;
const BOB: u32 = 12346;
const CREW: u32 = 12300;

/// The bytes of a whole, unused table.
fn whole() -> Vec<u8> {
    let dir = Dir::new("whole");
    stats(&client(&small(&dir)));
    let bytes = fs::read(file(&dir)).unwrap();
    assert_eq!(bytes.len(), SMALL);
    bytes
}

/// A directory with `bytes` for a table.
fn planted(bytes: &[u8]) -> Dir {
    let dir = Dir::new("planted");
    fs::write(file(&dir), bytes).unwrap();
    dir
}

/// What is said of `bytes` as a table; they stay as they are.
fn refusal_of_bytes(bytes: &[u8]) -> (String, PathBuf) {
    let dir = planted(bytes);
    let text = refusal(&small(&dir));
    assert!(fs::read(file(&dir)).unwrap() == bytes, "the file was changed: {text}");
    assert_eq!(names(dir.path()), ["t"]);
    (text, file(&dir))
}

/// Where a field of the layout is.
fn offset(field: &str) -> usize {
    let rows = layout();
    let row = rows.lines().find_map(|row| row.strip_prefix(field)?.strip_prefix(' '));
    row.unwrap_or_else(|| panic!("no {field} in the layout")).parse().unwrap()
}

fn patched(bytes: &[u8], field: &str, value: &[u8]) -> Vec<u8> {
    let mut bytes = bytes.to_vec();
    let at = offset(field);
    bytes[at..at + value.len()].copy_from_slice(value);
    bytes
}

/// Numbers that look random, and are the same at each run.
struct Dice(u64);

impl Dice {
    fn next(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mixed = (self.0 ^ self.0 >> 30).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        let mixed = (mixed ^ mixed >> 27).wrapping_mul(0x94d0_49bb_1331_11eb);
        mixed ^ mixed >> 31
    }

    fn below(&mut self, end: u64) -> u64 {
        self.next() % end
    }

    fn few(&mut self, end: u32) -> u32 {
        u32::try_from(self.below(u64::from(end))).unwrap()
    }

    fn bytes(&mut self, count: usize) -> Vec<u8> {
        (0..count.div_ceil(8)).flat_map(|_| self.next().to_le_bytes()).take(count).collect()
    }
}

fn boot() -> Vec<u8> {
    let text = fs::read_to_string("/proc/sys/kernel/random/boot_id").unwrap();
    let digits = text.chars().filter(char::is_ascii_hexdigit).collect::<String>();
    u128::from_str_radix(&digits, 16).unwrap().to_be_bytes().to_vec()
}

fn inode(path: &Path) -> u64 {
    fs::symlink_metadata(path).unwrap().ino()
}

fn mode(path: &Path) -> u32 {
    fs::symlink_metadata(path).unwrap().mode() & 0o7777
}

// What is not a table.

#[test]
fn a_cut_file_is_refused() {
    let whole = whole();
    for size in [0, 1, 100, 127, 128, 4096, HEAD - 1, HEAD, SMALL - BUCKET, SMALL - 1] {
        let (text, path) = refusal_of_bytes(&whole[..size]);
        let need = if size < HEAD { HEAD } else { SMALL };
        assert_says(&text, &path, &[&format!("it has {size} bytes, {need} are needed"), "cut off"]);
    }
}

#[test]
fn a_file_with_something_behind_it_is_refused() {
    let mut bytes = whole();
    bytes.push(0);
    let (text, path) = refusal_of_bytes(&bytes);
    assert_says(&text, &path, &["its header is damaged", "the file is longer than it says"]);
}

#[test]
fn zeros_are_refused() {
    for size in [HEAD, SMALL, 1 << 20] {
        let (text, path) = refusal_of_bytes(&vec![0; size]);
        assert_says(&text, &path, &["it is not a buflock segment"]);
    }
}

#[test]
fn random_files_are_refused() {
    let mut dice = Dice(1);
    let whole = whole();
    for round in 0..200 {
        let size = HEAD + usize::try_from(dice.below(20_000)).unwrap();
        let mut bytes = dice.bytes(size);
        if round % 2 == 0 {
            bytes[..16].copy_from_slice(&whole[..16]); // it looks like one of ours at first
        }
        let (text, path) = refusal_of_bytes(&bytes);
        assert_says(&text, &path, &[if round % 2 == 0 { "damaged" } else { "it is not a buflock segment" }]);
    }
}

#[test]
fn each_field_of_the_header_is_checked() {
    const COUNT: &str = "its header is damaged: the number of buckets cannot be";
    const SIZE: &str = "its header is damaged: the number of buckets and the size differ";
    const SHAPE: &str = "its header is damaged: its parts have other sizes than its layout's version says";
    const NUMBER: &str = "its header is damaged: its number or its time cannot be";
    let size = u64::try_from(SMALL).unwrap();
    let few = u32::try_from(FEW).unwrap();
    let most = u32::MAX / u32::try_from(SLOTS).unwrap();
    let four = u32::to_ne_bytes;
    let eight = u64::to_ne_bytes;
    let mut cases = vec![
        ("header.magic", b"BUFLOCK2".to_vec(), "it is not a buflock segment".to_owned()),
        ("header.magic", b"buflock1".to_vec(), "it is not a buflock segment".to_owned()),
        ("header.endian", 0x0403_0201u32.to_ne_bytes().to_vec(), "a machine of another byte order".to_owned()),
        ("header.endian", four(0).to_vec(), "a machine of another byte order".to_owned()),
        ("header.buckets", four(0).to_vec(), COUNT.to_owned()),
        ("header.buckets", four(u32::MAX).to_vec(), COUNT.to_owned()),
        ("header.buckets", four(most + 1).to_vec(), COUNT.to_owned()),
        ("header.buckets", four(most).to_vec(), SIZE.to_owned()),
        ("header.buckets", four(few + 1).to_vec(), SIZE.to_owned()),
        ("header.buckets", four(few - 1).to_vec(), SIZE.to_owned()),
        ("header.size", eight(0).to_vec(), SIZE.to_owned()),
        ("header.size", eight(u64::MAX).to_vec(), SIZE.to_owned()),
        ("header.size", eight(size + 1).to_vec(), SIZE.to_owned()),
        ("header.id", four(0).to_vec(), NUMBER.to_owned()),
        ("header.created", eight(1 << 52).to_vec(), NUMBER.to_owned()),
        ("header.created", eight(u64::MAX).to_vec(), NUMBER.to_owned()),
    ];
    for found in [0, LAYOUT + 1, u32::MAX] {
        let text = format!("its layout is version {found}, this library's is {LAYOUT}: all processes must use one");
        cases.push(("header.layout", four(found).to_vec(), text));
    }
    for field in [
        "header.slots",
        "header.slot_size",
        "header.bucket_size",
        "header.clock",
        "header.unit_shift",
        "header.head_size",
        "header.members",
        "header.member_size",
    ] {
        for value in [0, 3, u32::MAX] {
            cases.push((field, four(value).to_vec(), SHAPE.to_owned()));
        }
    }
    let whole = whole();
    for (field, value, want) in cases {
        let (text, path) = refusal_of_bytes(&patched(&whole, field, &value));
        assert_says(&text, &path, &[&want]);
    }
}

#[test]
fn a_size_that_the_header_only_claims_is_refused() {
    let buckets = u32::MAX / u32::try_from(SLOTS).unwrap();
    let size = u64::try_from(HEAD).unwrap() + u64::from(buckets) * u64::try_from(BUCKET).unwrap();
    let bytes = patched(&whole(), "header.buckets", &buckets.to_ne_bytes());
    let (text, path) = refusal_of_bytes(&patched(&bytes, "header.size", &size.to_ne_bytes()));
    assert_says(&text, &path, &[&format!("it has {SMALL} bytes, {size} are needed")]);
}

/// No bit of the header may be trusted: with any one of them wrong the table is refused, or works.
#[test]
fn any_bit_of_the_header_may_be_wrong() {
    let whole = whole();
    let dir = Dir::new("bits");
    let url = small(&dir);
    in_child(|| {
        for bit in 0..offset("header (size)") * 8 {
            let mut bytes = whole.clone();
            bytes[bit / 8] ^= 1 << (bit % 8);
            fs::write(file(&dir), &bytes).unwrap();
            let client = client(&url);
            match client.acquire(b"k", 60_000, 0) {
                Ok(Acquire::Held(held)) => assert_eq!(client.release(b"k", &held.token.0).unwrap(), Verdict::Ok),
                Ok(Acquire::Busy(busy)) => panic!("bit {bit}: {busy:?}"),
                Err(Error::Segment { path, .. }) => assert_eq!(path, file(&dir)),
                Err(error) => panic!("bit {bit}: {error}"),
            }
        }
    });
}

/// Everything a client can do, in a table whose contents are `body`. The answers may be anything; that there are
/// some is all that is asked.
fn use_anyhow(client: &Client, dice: &mut Dice) {
    for _ in 0..6 {
        let key = dice.below(50).to_le_bytes();
        let mut token = format!("{:016x}{:016x}", dice.next(), dice.next());
        if let Ok(Acquire::Held(held)) = client.acquire(&key, 1 + dice.few(50), dice.few(4)) {
            assert!(held.fence < 1 << 53, "fence {}", held.fence);
            token = String::from_utf8(held.token.0.to_vec()).unwrap();
        }
        client.inspect(&key).unwrap();
        client.extend(&key, token.as_bytes(), 30).unwrap();
        client.wait_for_end(&key, dice.few(4)).unwrap();
        client.release(&key, token.as_bytes()).unwrap();
        client.end_any(&key).unwrap();
        client.stats().unwrap();
    }
}

/// Random words, more or less like those of a table in use.
fn random_body(dice: &mut Dice, now: u64) -> Vec<u8> {
    let mut body = dice.bytes(SMALL - offset("header (size)"));
    let wild = dice.below(3);
    if wild == 0 {
        return body;
    }
    let (slot_size, word) = (offset("slot (size)"), offset("slot.word"));
    for slot in (HEAD..SMALL).step_by(slot_size).filter(|at| !(at - HEAD).is_multiple_of(BUCKET)) {
        let at = slot + word - offset("header (size)");
        let until = now + dice.below(1 << 10) - (1 << 9);
        let value = until << 21 | dice.below(1 << 16) << 5 | dice.below(2) << 3 | dice.below(5);
        body[at..at + 8].copy_from_slice(&value.to_le_bytes());
    }
    if wild == 2 {
        body[..HEAD - offset("header (size)")].fill(0);
    }
    for fence in (HEAD..SMALL).step_by(BUCKET).map(|at| at + offset("bucket.fence") - offset("header (size)")) {
        body[fence..fence + 8].copy_from_slice(&(u64::MAX - dice.below(2)).to_le_bytes());
    }
    body
}

#[test]
fn random_contents_behind_a_good_header_crash_nobody() {
    let whole = whole();
    let now = {
        let mut time = libc::timespec { tv_sec: 0, tv_nsec: 0 };
        // SAFETY: a struct to fill.
        unsafe { libc::clock_gettime(libc::CLOCK_MONOTONIC, &raw mut time) };
        (time.tv_sec.unsigned_abs() * 1_000_000_000 + time.tv_nsec.unsigned_abs()) >> 17
    };
    let mut dice = Dice(2);
    let dir = Dir::new("body");
    let url = small(&dir);
    in_child(|| {
        for _ in 0..300 {
            let mut bytes = whole.clone();
            let body = random_body(&mut dice, now);
            bytes[offset("header (size)")..].copy_from_slice(&body);
            // One word is more than contents: that others gave the table up.
            let deleted = offset("head.counters.deleted");
            let _ = fs::remove_file(file(&dir));
            bytes[deleted] = 1;
            fs::write(file(&dir), &bytes).unwrap();
            assert_says(&refusal(&url), &file(&dir), &["it says that it was deleted, but it is there"]);
            bytes[deleted..deleted + 8].fill(0);
            fs::write(file(&dir), &bytes).unwrap();
            use_anyhow(&client(&url), &mut dice);
        }
    });
}

#[test]
fn other_kinds_of_files_are_refused_at_once() {
    let dir = Dir::new("kinds");
    stats(&client(&dir.url("good")));
    let at = |name: &str| dir.path().join(name);
    symlink(at("good"), at("link")).unwrap();
    symlink(at("nothing"), at("dangling")).unwrap();
    symlink(at("loop"), at("loop")).unwrap();
    fs::create_dir(at("directory")).unwrap();
    let _listener = UnixListener::bind(at("socket")).unwrap();
    let fifo = CString::new(at("fifo").to_str().unwrap()).unwrap();
    // SAFETY: a C string.
    assert_eq!(unsafe { libc::mkfifo(fifo.as_ptr(), 0o600) }, 0);
    let begin = Instant::now();
    for (name, is) in [
        ("link", "a symbolic link"),
        ("dangling", "a symbolic link"),
        ("loop", "a symbolic link"),
        ("directory", "a directory"),
        ("fifo", "a FIFO"),
        ("socket", "a special file"),
    ] {
        let text = refusal(&dir.url(name));
        assert_says(&text, &at(name), &[&format!("it is {is}: it must be a regular file")]);
    }
    // None of them is opened as a reader that waits for a writer would be. Generous: nothing here takes a millisecond.
    assert!(begin.elapsed() < Duration::from_secs(5));
    assert!(!at("nothing").exists(), "a dangling link was followed");
}

#[test]
fn a_device_node_is_refused() {
    if !root() {
        return;
    }
    let dir = Dir::new("device");
    let path = CString::new(file(&dir).to_str().unwrap()).unwrap();
    // SAFETY: a C string. 1, 3 is the null device.
    if unsafe { libc::mknod(path.as_ptr(), libc::S_IFCHR | 0o600, libc::makedev(1, 3)) } != 0 {
        return process::skip("may not make device nodes");
    }
    assert_says(&refusal(&small(&dir)), &file(&dir), &["it is a special file: it must be a regular file"]);
}

// Whose it is, and who may use it.

#[test]
fn a_world_writable_file_is_refused() {
    let dir = planted(&whole());
    for mode in [0o602, 0o606, 0o666, 0o777] {
        chmod(&file(&dir), mode);
        assert_says(
            &refusal(&small(&dir)),
            &file(&dir),
            &[&format!("others may write to it (mode {mode:04o}): take that right away")],
        );
    }
    for mode in [0o600, 0o640, 0o660, 0o664] {
        chmod(&file(&dir), mode);
        stats(&client(&small(&dir)));
    }
}

#[test]
fn a_file_that_may_not_be_read_and_written_is_refused() {
    if !root() {
        return;
    }
    let dir = planted(&whole());
    for mode in [0o600, 0o644, 0o640] {
        chmod(&file(&dir), mode);
        let rights = format!("owner 0, group 0, mode {mode:04o}");
        as_user(ALICE, &[ALICE], || {
            let want = [&*format!("this process (uid {ALICE}) has no right to read and write it"), &rights];
            assert_says(&refusal(&small(&dir)), &file(&dir), &want);
        });
    }
}

#[test]
fn a_file_of_another_user_is_refused_where_anybody_could_have_made_it() {
    if !root() {
        return;
    }
    // Whose directory, its mode, whose file, who asks.
    let cases = [
        (0, 0o1777, BOB, 0),
        (0, 0o1777, BOB, ALICE),
        (ALICE, 0o700, BOB, ALICE),
        (ALICE, 0o770, BOB, ALICE),
        (ALICE, 0o1777, BOB, ALICE),
    ];
    for (owner, bits, maker, asker) in cases {
        let dir = planted(&whole());
        chown(&file(&dir), maker, CREW);
        chmod(&file(&dir), 0o660);
        chown(dir.path(), owner, CREW);
        chmod(dir.path(), bits);
        as_user(asker, &[CREW], || {
            let want =
                format!("it belongs to uid {maker}: it must belong to this process's user (uid {asker}) or root");
            assert_says(&refusal(&small(&dir)), &file(&dir), &[&want]);
        });
    }
}

#[test]
fn a_file_of_another_user_is_used_where_only_roots_group_could_have_made_it() {
    if !root() {
        return;
    }
    for bits in [0o755, 0o750, 0o2770, 0o3770] {
        let dir = planted(&whole());
        chown(&file(&dir), BOB, CREW);
        chmod(&file(&dir), 0o660);
        chown(dir.path(), 0, CREW);
        chmod(dir.path(), bits);
        let (url, seen) = (small(&dir), Shared::new());
        let alice = fork_as(ALICE, &[CREW], || {
            let alice = client(&url);
            hold(&alice, "k", 60_000);
            seen.set(0, 1);
            sleep_forever();
        });
        alice.wait_for(&seen, 0, 1);
        let pid = u32::try_from(alice.pid()).unwrap();
        as_user(BOB, &[CREW], || assert_eq!(busy(&client(&url), "k").holder, Holder::Process(pid)));
        assert_eq!(busy(&client(&url), "k").holder, Holder::Process(pid));
    }
}

#[test]
fn a_directory_that_is_not_trusted_is_refused() {
    if !root() {
        return;
    }
    let dir = planted(&whole());
    chmod(dir.path(), 0o777);
    assert_says(&refusal(&small(&dir)), dir.path(), &["others may write to it (mode 0777)"]);
    chmod(dir.path(), 0o755);
    chown(dir.path(), BOB, BOB);
    assert_says(&refusal(&small(&dir)), dir.path(), &[&format!("it belongs to uid {BOB}")]);
}

#[test]
fn permission_bits_do_not_depend_on_the_umask() {
    if !root() {
        return;
    }
    // The directory's mode, the option, what comes of it.
    let cases = [
        (0o700, "", 0o600),
        (0o755, "", 0o600),
        (0o770, "", 0o600),
        (0o2770, "", 0o660),
        (0o3770, "", 0o660),
        (0o2750, "", 0o600),
        (0o2770, "&mode=0600", 0o600),
        (0o700, "&mode=0660", 0o660),
    ];
    for (bits, option, want) in cases {
        for mask in [0, 0o022, 0o077, 0o777] {
            let dir = Dir::new("umask");
            chown(dir.path(), 0, CREW);
            chmod(dir.path(), bits);
            in_child(|| {
                umask(mask);
                stats(&client(&format!("{}{option}", small(&dir))));
            });
            assert_eq!(mode(&file(&dir)), want, "directory {bits:o}, option {option}, umask {mask:o}");
            let group = if bits & 0o2000 != 0 { CREW } else { 0 };
            assert_eq!(fs::metadata(file(&dir)).unwrap().gid(), group, "directory {bits:o}");
        }
    }
}

// Made whole or not at all.

/// Lets many processes attach at the same moment. The numbers of the tables that they found, and how many of them took
/// a lock that they all tried.
fn race(count: usize, client: impl Fn(usize) -> Client) -> (BTreeSet<u64>, u64) {
    let (start, ids, held) = (Shared::new(), Shared::new(), Shared::new());
    let racers: Vec<Child> = (0..count)
        .map(|racer| {
            fork(|| {
                let client = client(racer);
                start[0].fetch_add(1, AcqRel);
                start.wait(1, 1);
                held[0].fetch_add(u64::from(take(&client, "k", 60_000)), AcqRel);
                ids.set(racer, number(&client, "segment_id"));
            })
        })
        .collect();
    wait_for_all(&racers, &start, 0, count as u64);
    start.set(1, 1);
    racers.into_iter().for_each(Child::join);
    (ids[..count].iter().map(|id| id.load(Load)).collect(), held[0].load(Load))
}

#[test]
fn of_many_that_make_it_one_prevails() {
    for round in 0..40 {
        let dir = Dir::new("race");
        // A full MiB takes longer to allocate: there is more to be in the middle of.
        let url = if round % 2 == 0 { small(&dir) } else { dir.url("t") };
        let (tables, held) = race(12, |_| client(&url));
        assert_eq!((tables.len(), held), (1, 1), "tables {tables:?}, and holders");
        assert_eq!(names(dir.path()), ["t"], "left behind");
    }
}

/// Kills a process that makes, uses and deletes a table again and again. What is left is a whole table or nothing.
fn kill_makers(rounds: u32, dice: &mut Dice) {
    for round in 0..rounds {
        let dir = Dir::new("kill");
        let url = if round % 2 == 0 { small(&dir) } else { dir.url("t") };
        let begun = Shared::new();
        let maker = fork(|| {
            loop {
                begun.set(0, 1);
                stats(&client(&url));
                fs::remove_file(file(&dir)).unwrap();
            }
        });
        maker.wait_for(&begun, 0, 1);
        std::thread::sleep(Duration::from_micros(dice.below(1500)));
        maker.kill();
        let left = names(dir.path());
        assert!(left.is_empty() || left == ["t"], "left behind: {left:?}");
        hold(&client(&url), "k", 1000);
    }
}

#[test]
fn killed_makers_leave_a_whole_file_or_nothing() {
    kill_makers(300, &mut Dice(3));
}

#[test]
fn killed_replacers_leave_a_whole_file() {
    let old = patched(&whole(), "header.boot", &[7; 16]);
    let mut dice = Dice(4);
    for _ in 0..200 {
        let dir = planted(&old);
        let (url, begun) = (small(&dir), Shared::new());
        let replacer = fork(|| {
            loop {
                begun.set(0, 1);
                stats(&client(&url));
                // In place: the next round replaces it again.
                File::options().write(true).open(file(&dir)).unwrap().write_all_at(&old, 0).unwrap();
            }
        });
        replacer.wait_for(&begun, 0, 1);
        std::thread::sleep(Duration::from_micros(dice.below(1500)));
        replacer.kill();
        hold(&client(&url), "k", 1000);
        assert_eq!(names(dir.path()), ["t"], "left behind");
    }
}

#[test]
fn a_full_file_system_is_an_error_and_no_crash() {
    if !root() || !may_unshare(libc::CLONE_NEWNS, "mount") {
        return;
    }
    let dir = Dir::new("full");
    with_own_mounts(|| {
        mount_tmpfs(dir.path(), "size=64k,mode=755");
        let text = refusal(&dir.url("t"));
        assert_says(&text, &file(&dir), &["allocating its memory failed: No space left on device"]);
        assert!(names(dir.path()).is_empty(), "left behind: {:?}", names(dir.path()));
        // The whole of it works where it fits, and goes on working when nothing else fits beside it.
        let client = client(&format!("{}&size=48k", dir.url("t")));
        stats(&client);
        let _ = fs::write(dir.path().join("filler"), vec![1; 1 << 16]);
        for key in 0..480 {
            let _ = client.acquire(format!("{key}").as_bytes(), 60_000, 0).map_err(|error| error.to_string());
        }
        let held = number(&client, "held");
        assert!(held > 400, "{held} locks are held");
    });
}

#[test]
fn a_file_system_without_inodes_is_an_error() {
    if !root() || !may_unshare(libc::CLONE_NEWNS, "mount") {
        return;
    }
    let dir = Dir::new("inodes");
    with_own_mounts(|| {
        mount_tmpfs(dir.path(), "size=4m,nr_inodes=1,mode=755");
        assert_says(&refusal(&dir.url("t")), &file(&dir), &["failed: No space left on device"]);
    });
}

#[test]
fn a_read_only_file_system_is_an_error() {
    if !root() || !may_unshare(libc::CLONE_NEWNS, "mount") {
        return;
    }
    let dir = Dir::new("readonly");
    with_own_mounts(|| {
        mount_tmpfs(dir.path(), "mode=755");
        stats(&client(&dir.url("t")));
        mount(None, dir.path(), None, libc::MS_REMOUNT | libc::MS_RDONLY, "");
        assert_says(&refusal(&dir.url("t")), &file(&dir), &["opening it failed: Read-only file system"]);
        assert_says(&refusal(&dir.url("new")), &dir.path().join("new"), &["creating it failed: Read-only file system"]);
        mount(None, dir.path(), None, libc::MS_REMOUNT, "");
        stats(&client(&dir.url("new")));
    });
}

#[test]
fn a_limit_of_file_sizes_is_an_error_and_no_signal() {
    let dir = Dir::new("fsize");
    in_child(|| {
        for most in [0, 4096, u64::try_from(SMALL).unwrap() - 1] {
            limit(libc::RLIMIT_FSIZE, most);
            assert_says(&refusal(&small(&dir)), &file(&dir), &["allocating its memory failed: File too large"]);
            assert!(names(dir.path()).is_empty());
        }
        limit(libc::RLIMIT_FSIZE, u64::try_from(SMALL).unwrap());
        let client = client(&small(&dir));
        stats(&client);
        // A table that is there needs no right to make files.
        limit(libc::RLIMIT_FSIZE, 0);
        hold(&client, "k", 1000);
        busy(&self::client(&small(&dir)), "k");
    });
}

#[test]
fn a_process_without_fds_is_told() {
    let dir = Dir::new("fds");
    let old = patched(&whole(), "header.boot", &[7; 16]);
    in_child(|| {
        let free = File::open("/dev/null").unwrap();
        let next = u64::from(free.as_raw_fd().unsigned_abs());
        drop(free);
        for spare in 0..8 {
            // A table from before the machine started: it must be replaced, however little there is to do it with.
            fs::write(file(&dir), &old).unwrap();
            limit(libc::RLIMIT_NOFILE, next + spare);
            let client = client(&small(&dir));
            let answer = client.acquire(b"k", 1000, 0);
            limit(libc::RLIMIT_NOFILE, 256);
            match answer {
                Ok(_) => assert_eq!(fs::read(file(&dir)).unwrap()[offset("header.boot")..][..16], boot()),
                Err(error) => assert!(error.to_string().contains("Too many open files"), "{error}"),
            }
            drop(client);
            fs::remove_file(file(&dir)).unwrap();
        }
    });
}

#[test]
fn the_size_of_a_file_that_is_there_wins() {
    let dir = Dir::new("size");
    let first = client(&small(&dir));
    assert!(stats(&first).contains(r#""notices":[]"#), "{}", stats(&first));
    let second = client(&format!("{}&size=1M", dir.url("t")));
    let path = file(&dir);
    let notice =
        format!("{} has {SMALL} bytes: it was there already, so the size {} was ignored", path.display(), 1 << 20);
    assert!(stats(&second).contains(&notice), "{}", stats(&second));
    assert_eq!(fs::metadata(&path).unwrap().len(), SMALL as u64);
    hold(&first, "k", 1000);
    busy(&second, "k");
    // Less than a bucket is no other size.
    let rounded = client(&format!("{}&size={}", dir.url("t"), SMALL + 1));
    assert!(stats(&rounded).contains(r#""notices":[]"#), "{}", stats(&rounded));
}

#[test]
fn attaching_and_failing_to_leaves_nothing_open() {
    let dir = Dir::new("leak");
    fs::write(dir.path().join("bad"), vec![0; SMALL]).unwrap();
    in_child(|| {
        let count = || (names(Path::new("/proc/self/fd")).len(), names(Path::new("/proc/self/map_files")).len());
        let cycle = || {
            hold(&client(&small(&dir)), "k", 1);
            refusal(&dir.url("bad"));
            refusal(&format!("shm:t?dir={}/none", dir.path().display()));
            std::thread::sleep(Duration::from_millis(2));
        };
        cycle();
        let before = count();
        (0..50).for_each(|_| cycle());
        let after = count();
        assert_eq!(before.0, after.0, "fds");
        // The allocator may have mapped some more.
        assert!(after.1 < before.1 + 20, "mappings: {before:?}, then {after:?}");
    });
}

#[test]
fn of_many_threads_that_attach_one_prevails() {
    let dir = Dir::new("threads");
    in_child(|| {
        for _ in 0..20 {
            let client = client(&small(&dir));
            let held = std::thread::scope(|scope| {
                let threads: Vec<_> = (0..8).map(|_| scope.spawn(|| take(&client, "k", 60_000))).collect();
                threads.into_iter().filter_map(|thread| thread.join().unwrap().then_some(())).count()
            });
            assert_eq!(held, 1);
            assert_eq!(number(&client, "members"), 1, "one record for one handle");
            drop(client);
            fs::remove_file(file(&dir)).unwrap();
        }
    });
}

// From before the machine started.

#[test]
fn a_file_of_an_earlier_boot_is_replaced_once() {
    let old = patched(&whole(), "header.boot", &[7; 16]);
    let old_id = u64::from(u32::from_ne_bytes(old[offset("header.id")..][..4].try_into().unwrap()));
    for _ in 0..30 {
        let dir = planted(&old);
        chmod(&file(&dir), 0o640);
        let (tables, held) = race(8, |_| client(&dir.url("t")));
        assert_eq!((tables.len(), held), (1, 1), "tables {tables:?}, and holders");
        assert!(!tables.contains(&old_id), "the old table is still in use");
        assert_eq!(names(dir.path()), ["t"], "left behind");
        // Size and permissions are the old one's: an operator may have chosen them.
        let made = fs::metadata(file(&dir)).unwrap();
        assert_eq!((made.len(), made.mode() & 0o7777), (SMALL as u64, 0o640));
    }
}

#[test]
fn a_file_of_an_unknown_boot_is_used() {
    let dir = planted(&patched(&whole(), "header.boot", &[0; 16]));
    let before = inode(&file(&dir));
    hold(&client(&small(&dir)), "k", 1000);
    assert_eq!(inode(&file(&dir)), before);
}

/// In a sticky directory only its owner may replace a file. Who is not says so.
#[test]
fn another_users_file_of_an_earlier_boot_is_an_error_in_a_sticky_directory() {
    if !root() {
        return;
    }
    let dir = planted(&patched(&whole(), "header.boot", &[7; 16]));
    chown(&file(&dir), BOB, CREW);
    chmod(&file(&dir), 0o660);
    chown(dir.path(), 0, CREW);
    chmod(dir.path(), 0o3770);
    as_user(ALICE, &[CREW], || {
        let text = refusal(&small(&dir));
        let want = format!("this process (uid {ALICE}) has no right to replace it");
        assert_says(&text, &file(&dir), &[&want, &format!("owner {BOB}, group {CREW}, mode 0660")]);
        assert_eq!(names(dir.path()), ["t"], "left behind");
    });
    as_user(BOB, &[CREW], || {
        hold(&client(&small(&dir)), "k", 60_000);
    });
    as_user(ALICE, &[CREW], || {
        busy(&client(&small(&dir)), "k");
    });
}

/// Whoever may read a file may lock it, and be stopped while replacing it.
#[test]
fn a_replacer_that_was_stopped_does_not_hang_the_others() {
    let dir = planted(&patched(&whole(), "header.boot", &[7; 16]));
    let locked = File::open(file(&dir)).unwrap();
    locked.lock().unwrap();
    let begin = Instant::now();
    in_child(|| {
        let _ = client(&small(&dir)).acquire(b"k", 1000, 0);
    });
    // More than any pause that makes sense here.
    assert!(begin.elapsed() < Duration::from_secs(10));
}

// Without /proc.

#[test]
fn without_proc_everything_but_names_of_holders_works() {
    if !root() || !may_unshare(libc::CLONE_NEWNS, "mount") {
        return;
    }
    for first_has_proc in [true, false] {
        let dir = Dir::new("no-proc");
        let url = small(&dir);
        if first_has_proc {
            stats(&client(&url));
        }
        with_own_mounts(|| {
            unmount_proc();
            umask(0);
            let (mine, other) = (client(&url), client(&url));
            let held = hold(&mine, "k", 60_000);
            assert_eq!(busy(&other, "k").holder, Holder::Unknown);
            assert_eq!(mode(&file(&dir)), 0o600);
            assert_eq!(names(dir.path()), ["t"], "left behind");
            assert_eq!(mine.release(b"k", &held.token.0).unwrap(), Verdict::Ok);
            hold(&mine, "kept", 60_000);
        });
        busy(&client(&url), "kept");
        hold(&client(&url), "k", 1000);
    }
}

#[test]
fn of_many_that_make_it_with_and_without_proc_one_prevails() {
    if !root() || !may_unshare(libc::CLONE_NEWNS, "mount") {
        return;
    }
    for _ in 0..10 {
        let dir = Dir::new("race-no-proc");
        let (tables, held) = race(8, |racer| {
            if racer % 2 == 0 {
                own_mounts();
                unmount_proc();
            }
            client(&small(&dir))
        });
        assert_eq!((tables.len(), held), (1, 1), "tables {tables:?}, and holders");
        assert_eq!(names(dir.path()), ["t"], "left behind");
    }
}
