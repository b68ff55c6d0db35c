//! The layout of a table's file: what another version of the library, mapped at the same time, relies on.

mod common;

use buflock::client::Client;
use buflock::config::Settings;
use buflock::shm::segment::{BUCKET, HEAD, LAYOUT, SLOTS, layout};
use common::Dir;
use std::fs;

const GOLDEN: &str = include_str!("layout.txt");

/// A number of the golden file.
fn golden(name: &str) -> usize {
    let number = GOLDEN.lines().find_map(|line| line.strip_prefix(name)?.strip_prefix(' ')?.parse().ok());
    number.unwrap_or_else(|| panic!("no {name} in layout.txt"))
}

/// With UPDATE=1 the golden file is written anew, which is right only together with a new LAYOUT.
#[test]
fn the_layout_is_the_golden_one() {
    if std::env::var_os("UPDATE").is_some() {
        fs::write(concat!(env!("CARGO_MANIFEST_DIR"), "/tests/layout.txt"), layout()).unwrap();
        return;
    }
    let changes = changes(GOLDEN, &layout());
    assert!(
        changes.is_empty(),
        "the layout is not the one of tests/layout.txt:\n{changes}Processes that run different versions would damage \
         one another's locks. If the change is meant: raise LAYOUT, then UPDATE=1 cargo test --test layout"
    );
}

/// The lines that differ, in the manner of diff.
fn changes(before: &str, after: &str) -> String {
    let only = |sign: char, these: &str, those: &str| {
        let lines = these.lines().filter(|line| !those.lines().any(|other| other == *line));
        lines.map(|line| format!("{sign} {line}\n")).collect::<String>()
    };
    only('-', before, after) + &only('+', after, before)
}

#[test]
fn a_change_is_told() {
    assert_eq!(changes("a 1\nb 2\n", "a 1\nb 2\n"), "");
    assert_eq!(changes("a 1\nb 2\n", "a 1\nb 3\n"), "- b 2\n+ b 3\n");
    assert_eq!(changes("a 1\n", "a 1\nb 2\n"), "+ b 2\n");
}

struct File(Vec<u8>);

impl File {
    /// A new table's, after one key was locked.
    fn of(size: &str) -> Self {
        let dir = Dir::new("layout");
        let url = format!("{}&size={size}", dir.url("t"));
        let client = Client::new(&url, Settings::default()).unwrap();
        client.acquire(b"key", 60_000, 0).unwrap();
        Self(fs::read(dir.path().join("t")).unwrap())
    }

    fn at<const N: usize>(&self, offset: usize) -> [u8; N] {
        self.0[offset..offset + N].try_into().unwrap()
    }

    fn u32(&self, name: &str) -> usize {
        u32::from_ne_bytes(self.at(golden(name))).try_into().unwrap()
    }

    fn u64(&self, offset: usize) -> u64 {
        u64::from_ne_bytes(self.at(offset))
    }
}

#[test]
fn a_files_header_says_what_it_is() {
    let file = File::of("64k");
    assert_eq!(file.at(0), *b"BUFLOCK1");
    assert_eq!(golden("header.magic"), 0);
    assert_eq!((file.u32("header.layout"), golden("layout version")), (LAYOUT as usize, LAYOUT as usize));
    assert_eq!(file.u32("header.endian"), 0x0102_0304);
    assert_eq!(file.u64(golden("header.size")), file.0.len() as u64);
    assert_eq!(file.u32("header.buckets"), (file.0.len() - golden("head (size)")) / golden("bucket (size)"));
    assert_eq!(file.u32("header.slots"), SLOTS);
    assert_eq!(file.u32("header.slot_size"), golden("slot (size)"));
    assert_eq!(file.u32("header.bucket_size"), golden("bucket (size)"));
    assert_eq!(file.u32("header.unit_shift"), golden("unit shift"));
    assert_eq!(file.u32("header.head_size"), golden("head (size)"));
    assert_eq!(file.u32("header.member_size"), golden("member (size)"));
    assert_eq!((golden("head (size)"), golden("bucket (size)")), (HEAD, BUCKET));
    assert_ne!(file.at::<16>(golden("header.secret")), [0; 16]);
    assert_ne!(file.u32("header.id"), 0);
    // SAFETY: they can't fail.
    let (uid, gid) = unsafe { (libc::geteuid(), libc::getegid()) };
    assert_eq!((file.u32("header.uid"), file.u32("header.gid")), (uid as usize, gid as usize));
}

#[test]
fn a_held_lock_stands_at_the_golden_offsets() {
    let file = File::of("16k");
    let slots = (0..file.u32("header.buckets")).flat_map(|bucket| {
        let first = golden("head (size)") + bucket * golden("bucket (size)") + golden("bucket.slots");
        (0..SLOTS).map(move |slot| first + slot * golden("slot (size)"))
    });
    let used = Vec::from_iter(slots.filter(|slot| file.at::<64>(*slot) != [0; 64]));
    assert_eq!(used.len(), 1, "one key was locked, in one slot");
    let word = file.u64(used[0] + golden("slot.word"));
    let owner = file.u64(used[0] + golden("slot.owner"));
    assert_eq!(word & 7, 2, "held");
    assert_eq!(word >> 5 & 0xffff, owner & 0xffff, "the sequence number");
    assert_eq!(owner >> 48, 1, "the first member");
    let (until, since) = (word >> 21, owner >> 16 & 0xffff_ffff);
    assert_eq!(((until & 0xffff_ffff).wrapping_sub(since) << golden("unit shift")) / 1_000_000_000, 60, "the lease");
    for place in 0..3 {
        assert_ne!(file.u64(used[0] + golden("slot.key") + 8 * place), 0, "the key's hash");
    }
    let member = golden("head.members");
    assert_eq!(file.u64(member + golden("member.id")) & 0x3f_ffff, u64::from(std::process::id()));
    // It joined in the same call as it took the lock: no minute passes in between, whatever the machine does.
    let before = since.wrapping_sub(file.u64(member + golden("member.joined"))) & 0xffff_ffff;
    assert!((before << golden("unit shift")) / 1_000_000_000 < 60, "joined {before} units before the lock was taken");
    let fences = (0..file.u32("header.buckets"))
        .map(|bucket| file.u64(golden("head (size)") + bucket * golden("bucket (size)") + golden("bucket.fence")));
    assert_eq!(fences.sum::<u64>(), 1, "one fence number was given out");
}
