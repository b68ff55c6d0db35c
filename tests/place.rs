//! Where a table is: the rule of place, and clocks that differ between time namespaces.

mod common;
#[path = "common/lock.rs"]
mod lock;
#[path = "common/process.rs"]
mod process;

use buflock::answer::{Acquire, Holder, Verdict};
use buflock::client::Client;
use buflock::config::Settings;
use buflock::error::Error;
use common::Dir;
use lock::{assert_says, busy, client, hold, names, refusal, refusal_of, stats, take};
use process::{
    Shared, as_user, chmod, chown, fork, fork_as, in_child, limit, may_unshare, mount, mount_tmpfs, root, skip,
    sleep_forever, umask, with_own_mounts,
};
use std::fs::{self, File};
use std::os::fd::AsRawFd;
use std::os::unix::fs::{MetadataExt, symlink};
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

/// Users that nobody is, and a group.
const ALICE: u32 = 12345;
const BOB: u32 = 12346;
const EVE: u32 = 12347;
const CREW: u32 = 12300;

const SHARED: &str = "/run/buflock";

fn shared() -> &'static Path {
    Path::new(SHARED)
}

fn private(uid: u32) -> PathBuf {
    PathBuf::from(format!("/dev/shm/buflock-{uid}"))
}

/// Whether this machine lets a test have directories of its own below `/run` and `/dev/shm`.
fn may_have_own_places() -> bool {
    root() && may_unshare(libc::CLONE_NEWNS, "mount")
}

/// Runs `body` in a child that sees `/run` and `/dev/shm` as after a start of the machine.
fn with_own_places(body: impl FnOnce()) {
    with_own_mounts(|| {
        mount_tmpfs(Path::new("/run"), "mode=755");
        mount_tmpfs(Path::new("/dev/shm"), "mode=1777");
        body();
    });
}

fn make_dir(path: &Path, uid: u32, gid: u32, mode: u32) {
    fs::create_dir(path).unwrap();
    chown(path, uid, gid);
    chmod(path, mode);
}

/// Puts something at a path.
type Make<'a> = &'a dyn Fn(&Path);

fn mode(path: &Path) -> u32 {
    fs::symlink_metadata(path).unwrap().mode() & 0o7777
}

fn says(client: &Client, part: &str) {
    let stats = stats(client);
    assert!(stats.contains(part), "{stats} does not say {part}");
}

// Nobody made a shared place.

#[test]
fn without_a_shared_place_each_user_has_one() {
    if !may_have_own_places() {
        return;
    }
    with_own_places(|| {
        for uid in [0, ALICE] {
            for (mask, round) in [(0, 0), (0o077, 1)] {
                as_user(uid, &[uid], || {
                    umask(mask);
                    let client = client("shm:");
                    says(&client, r#""private_to_this_user":true"#);
                    says(&client, &format!(r#""path":"{}/default""#, private(uid).display()));
                    says(
                        &client,
                        &format!("{}/default is private to this user: make /run/buflock", private(uid).display()),
                    );
                    assert_eq!(take(&client, "k", 60_000), round == 0, "the table is used again");
                });
                let made = fs::symlink_metadata(private(uid)).unwrap();
                assert_eq!((made.mode() & 0o7777, made.uid()), (0o700, uid));
                assert_eq!(mode(&private(uid).join("default")), 0o600);
            }
        }
        assert_eq!(names(Path::new("/dev/shm")), ["buflock-0", &format!("buflock-{ALICE}")]);
        assert!(!shared().exists(), "it is the operator who makes that");
    });
}

#[test]
fn the_effective_user_counts() {
    if !may_have_own_places() {
        return;
    }
    with_own_places(|| {
        in_child(|| {
            // SAFETY: changes this child only. A program with the set-user-ID bit looks so.
            assert_eq!(unsafe { libc::setresuid(BOB, ALICE, ALICE) }, 0);
            stats(&client("shm:"));
        });
        assert_eq!(names(Path::new("/dev/shm")), [format!("buflock-{ALICE}")]);
    });
}

#[test]
fn the_environment_does_not_count() {
    if !may_have_own_places() {
        return;
    }
    with_own_places(|| {
        let elsewhere = Path::new("/run/elsewhere");
        fs::create_dir(elsewhere).unwrap();
        for name in ["HOME", "TMPDIR", "TMP", "XDG_RUNTIME_DIR", "PWD", "BUFLOCK_DIR"] {
            // SAFETY: this child has one thread.
            unsafe { std::env::set_var(name, elsewhere) };
        }
        std::env::set_current_dir(elsewhere).unwrap();
        says(&client("shm:"), r#""path":"/dev/shm/buflock-0/default""#);
        assert!(names(elsewhere).is_empty());
    });
}

/// What may be found where a user's own place should be, made by others.
#[test]
fn a_squatted_private_place_is_refused() {
    if !may_have_own_places() {
        return;
    }
    let good = Path::new("/dev/shm/good");
    let cases: [(&str, Make); 8] = [
        ("it belongs to uid 12346", &|path| make_dir(path, BOB, BOB, 0o700)),
        ("it belongs to uid 12346", &|path| make_dir(path, BOB, BOB, 0o1777)),
        ("others may write to it (mode 0770)", &|path| make_dir(path, ALICE, ALICE, 0o770)),
        ("others may write to it (mode 0702)", &|path| make_dir(path, ALICE, ALICE, 0o702)),
        ("others may write to it (mode 1777)", &|path| make_dir(path, ALICE, ALICE, 0o1777)),
        ("it is a symbolic link: it must be a directory", &|path| symlink(good, path).unwrap()),
        ("it is no directory: it must be a directory", &|path| fs::write(path, "").unwrap()),
        ("has no right to search it: owner 0, group 0, mode 0700", &|path| make_dir(path, 0, 0, 0o700)),
    ];
    for (want, make) in cases {
        with_own_places(|| {
            make_dir(good, ALICE, ALICE, 0o700);
            let path = private(ALICE);
            make(&path);
            let before = fs::symlink_metadata(&path).unwrap();
            as_user(ALICE, &[ALICE], || assert_says(&refusal("shm:"), &path, &[want]));
            let after = fs::symlink_metadata(&path).unwrap();
            assert_eq!((before.ino(), before.mode()), (after.ino(), after.mode()), "it was changed");
            assert!(names(good).is_empty(), "the link was followed");
            assert_eq!(names(Path::new("/dev/shm")).len(), 2, "another place was made");
        });
    }
}

#[test]
fn a_private_place_that_cannot_be_made_is_an_error() {
    if !may_have_own_places() {
        return;
    }
    with_own_places(|| {
        mount(None, Path::new("/dev/shm"), None, libc::MS_REMOUNT | libc::MS_RDONLY, "");
        let want = "making the directory failed: Read-only file system";
        assert_says(&refusal("shm:"), &private(0), &[want]);
    });
    with_own_places(|| {
        chmod(Path::new("/dev/shm"), 0o755);
        as_user(ALICE, &[ALICE], || {
            assert_says(&refusal("shm:"), &private(ALICE), &["making the directory failed: Permission denied"]);
        });
    });
}

/// As session managers do when a user's last session ends.
#[test]
fn a_private_place_that_was_removed_is_made_again() {
    if !may_have_own_places() {
        return;
    }
    with_own_places(|| {
        as_user(ALICE, &[ALICE], || {
            let mine = client("shm:");
            let held = hold(&mine, "k", 60_000);
            fs::remove_dir_all(private(ALICE)).unwrap();
            let text = mine.acquire(b"k", 1000, 100).unwrap_err().to_string();
            assert_says(&text, &private(ALICE).join("default"), &["deleted while in use"]);
            assert_eq!(mine.release(b"k", &held.token.0).unwrap(), Verdict::Ok);
            hold(&mine, "k", 60_000);
            busy(&client("shm:"), "k");
            says(&mine, r#""private_to_this_user":true"#);
            assert_eq!(mode(&private(ALICE)), 0o700);
        });
    });
}

/// A daemon that gives root's rights up: the rule would now lead it elsewhere than those that it shares locks with.
#[test]
fn who_has_become_another_user_does_not_go_on_elsewhere() {
    if !may_have_own_places() {
        return;
    }
    for (want, all) in [
        ("has no right to search it: owner 0, group 0, mode 0700", false),
        ("opening the directory failed: No such file or directory", true),
    ] {
        with_own_places(|| {
            let mine = client("shm:");
            stats(&mine);
            let changed = Shared::new();
            let worker = fork_as(ALICE, &[ALICE], || {
                changed.set(0, 1);
                changed.wait(1, 1);
                assert_says(&refusal_of(&mine), &private(0), &[want]);
            });
            worker.wait_for(&changed, 0, 1);
            fs::remove_file(private(0).join("default")).unwrap();
            if all {
                fs::remove_dir(private(0)).unwrap();
            }
            std::thread::sleep(Duration::from_millis(1050)); // who does not wait looks once in a second
            changed.set(1, 1);
            worker.join();
            let left: &[&str] = if all { &[] } else { &["buflock-0"] };
            assert_eq!(names(Path::new("/dev/shm")), left, "it went elsewhere");
        });
    }
}

// A shared place that can be used.

#[test]
fn all_of_a_group_meet_in_a_group_directory() {
    if !may_have_own_places() {
        return;
    }
    for bits in [0o3770, 0o2770] {
        with_own_places(|| {
            make_dir(shared(), 0, CREW, bits);
            let ready = Shared::new();
            let alice = fork_as(ALICE, &[ALICE, CREW], || {
                umask(0o077);
                let client = client("shm:");
                says(&client, r#""private_to_this_user":false"#);
                says(&client, r#""notices":[]"#);
                hold(&client, "k", 60_000);
                ready.set(0, 1);
                sleep_forever();
            });
            alice.wait_for(&ready, 0, 1);
            let file = fs::symlink_metadata(shared().join("default")).unwrap();
            assert_eq!((file.mode() & 0o7777, file.uid(), file.gid()), (0o660, ALICE, CREW));
            let pid = u32::try_from(alice.pid()).unwrap();
            let sees = || assert_eq!(busy(&client("shm:"), "k").holder, Holder::Process(pid));
            as_user(BOB, &[CREW], sees);
            as_user(0, &[0], sees);
            // Who is not of the group is told, and does not lock somewhere else.
            as_user(EVE, &[EVE], || {
                let want =
                    format!("this process (uid {EVE}) has no right to search it: owner 0, group {CREW}, mode {bits:o}");
                assert_says(&refusal("shm:"), shared(), &[&want]);
            });
            assert!(names(Path::new("/dev/shm")).is_empty(), "a second place");
        });
    }
}

#[test]
fn a_directory_of_root_serves_root_and_those_it_lets_in() {
    if !may_have_own_places() {
        return;
    }
    with_own_places(|| {
        make_dir(shared(), 0, 0, 0o755);
        let file = shared().join("default");
        as_user(ALICE, &[ALICE], || {
            let want =
                format!("this process (uid {ALICE}) has no right to create files in it: owner 0, group 0, mode 0755");
            assert_says(&refusal("shm:"), shared(), &[&want]);
        });
        let mine = client("shm:");
        hold(&mine, "k", 60_000);
        assert_eq!(mode(&file), 0o600);
        as_user(ALICE, &[ALICE], || {
            let want = "has no right to read and write it: owner 0, group 0, mode 0600";
            assert_says(&refusal("shm:"), &file, &[want]);
        });
        // An operator may let a group in.
        chown(&file, 0, CREW);
        chmod(&file, 0o660);
        as_user(ALICE, &[CREW], || assert_eq!(busy(&client("shm:"), "k").holder.pid(), parent()));
        assert!(names(Path::new("/dev/shm")).is_empty(), "a second place");
    });
}

fn parent() -> u32 {
    std::os::unix::process::parent_id()
}

/// A place where everybody may make files, but not delete those of others.
#[test]
fn a_sticky_shared_place_is_used_but_not_files_of_others() {
    if !may_have_own_places() {
        return;
    }
    with_own_places(|| {
        make_dir(shared(), 0, 0, 0o1777);
        as_user(ALICE, &[CREW], || {
            stats(&client("shm:?mode=0660"));
        });
        let want = format!("it belongs to uid {ALICE}: it must belong to this process's user (uid {BOB}) or root");
        as_user(BOB, &[CREW], || assert_says(&refusal("shm:"), &shared().join("default"), &[&want]));
        as_user(BOB, &[BOB], || {
            let want = format!("has no right to read and write it: owner {ALICE}, group {CREW}, mode 0660");
            assert_says(&refusal("shm:"), &shared().join("default"), &[&want]);
        });
        assert!(names(Path::new("/dev/shm")).is_empty(), "a second place");
    });
}

// A shared place that is there and cannot be used: never a second table.

#[test]
fn an_unusable_shared_place_is_an_error_and_never_a_second_table() {
    if !may_have_own_places() {
        return;
    }
    let good = Path::new("/run/good");
    let cases: [(&str, Make); 11] = [
        ("this process (uid 12345) has no right to search it: owner 0, group 0, mode 0700", &|path| {
            make_dir(path, 0, 0, 0o700);
        }),
        ("has no right to search it: owner 0, group 12300, mode 2770", &|path| make_dir(path, 0, CREW, 0o2770)),
        ("has no right to search it: owner 0, group 0, mode 1766", &|path| make_dir(path, 0, 0, 0o1766)),
        ("has no right to create files in it: owner 0, group 0, mode 0755", &|path| make_dir(path, 0, 0, 0o755)),
        ("it is no directory: it must be a directory", &|path| fs::write(path, "").unwrap()),
        ("it is a symbolic link: it must be a directory", &|path| symlink(good, path).unwrap()),
        ("it is a symbolic link: it must be a directory", &|path| symlink("nowhere", path).unwrap()),
        ("others may write to it (mode 0777)", &|path| make_dir(path, 0, 0, 0o777)),
        ("others may write to it (mode 0773)", &|path| make_dir(path, ALICE, ALICE, 0o773)),
        ("it belongs to uid 12346: it must belong to this process's user (uid 12345) or root", &|path| {
            make_dir(path, BOB, BOB, 0o755);
        }),
        ("it belongs to uid 12346", &|path| make_dir(path, BOB, BOB, 0o1777)),
    ];
    for (want, make) in cases {
        with_own_places(|| {
            make_dir(good, ALICE, ALICE, 0o700);
            make(shared());
            let repaired = Shared::new();
            let alice = fork_as(ALICE, &[ALICE], || {
                let client = client("shm:");
                for _ in 0..2 {
                    assert_says(&refusal_of(&client), shared(), &[want]);
                    assert_says(&client.release(b"k", b"some token").unwrap_err().to_string(), shared(), &[want]);
                    assert_says(&client.inspect(b"k").unwrap_err().to_string(), shared(), &[want]);
                    assert_says(&client.stats().unwrap_err().to_string(), shared(), &[want]);
                }
                // The operator repairs it: the same handle works.
                repaired.set(0, 1);
                repaired.wait(1, 1);
                hold(&client, "k", 1000);
            });
            alice.wait_for(&repaired, 0, 1);
            assert!(names(Path::new("/dev/shm")).is_empty(), "a second place for {want}");
            assert!(names(good).is_empty(), "the link was followed");
            let _ = fs::remove_dir(shared()).or_else(|_| fs::remove_file(shared()));
            make_dir(shared(), ALICE, ALICE, 0o755);
            repaired.set(1, 1);
            alice.join();
            assert_eq!(names(shared()), ["default"]);
        });
    }
}

#[test]
fn a_shared_place_that_cannot_be_seen_is_an_error() {
    if !may_have_own_places() {
        return;
    }
    with_own_places(|| {
        make_dir(shared(), 0, 0, 0o755);
        chmod(Path::new("/run"), 0o700);
        as_user(ALICE, &[ALICE], || assert_says(&refusal("shm:"), shared(), &["Permission denied"]));
        assert!(names(Path::new("/dev/shm")).is_empty(), "a second place");
    });
}

#[test]
fn a_shared_place_on_a_ramfs_is_used() {
    if !may_have_own_places() {
        return;
    }
    with_own_places(|| {
        fs::create_dir(shared()).unwrap();
        mount(Some(Path::new("ramfs")), shared(), Some("ramfs"), 0, "mode=755");
        let (mine, other) = (client("shm:"), client("shm:"));
        hold(&mine, "k", 60_000);
        busy(&other, "k");
        says(&mine, r#""path":"/run/buflock/default""#);
        assert_eq!((names(shared()), mode(&shared().join("default"))), (vec!["default".to_owned()], 0o600));
    });
}

/// A directory on a file system that is not in memory.
fn disk() -> Option<PathBuf> {
    let disk = PathBuf::from(env!("CARGO_TARGET_TMPDIR"));
    let path = std::ffi::CString::new(disk.to_str()?).ok()?;
    // SAFETY: zero is a value of this plain struct.
    let mut system: libc::statfs = unsafe { std::mem::zeroed() };
    // SAFETY: a C string and a struct to fill.
    let known = unsafe { libc::statfs(path.as_ptr(), &raw mut system) } == 0;
    (known && system.f_type != libc::TMPFS_MAGIC).then_some(disk)
}

#[test]
fn a_shared_place_on_a_disk_is_refused() {
    if !may_have_own_places() {
        return;
    }
    let Some(disk) = disk() else { return skip("the target directory is in memory") };
    let dir = disk.join(format!("place-{}", std::process::id()));
    make_dir(&dir, 0, 0, 0o755);
    with_own_places(|| {
        fs::create_dir(shared()).unwrap();
        mount(Some(&dir), shared(), None, libc::MS_BIND, "");
        assert_says(&refusal("shm:"), shared(), &["it is not on a tmpfs: mount one there, or give the option dir"]);
        assert!(names(Path::new("/dev/shm")).is_empty(), "a second place");
        assert!(names(&dir).is_empty());
        // Who says so means it.
        hold(&client("shm:t?dir=/run/buflock"), "k", 1000);
        assert_eq!(names(&dir), ["t"]);
    });
    fs::remove_dir_all(&dir).unwrap();
}

// The option dir.

#[test]
fn a_relative_dir_is_a_bad_option() {
    for value in ["", "tables", "./tables", "../tables", "~/tables"] {
        match Client::new(&format!("shm:t?dir={value}"), Settings::default()) {
            Err(Error::Config(fault)) => {
                let want = format!("option dir is \"{value}\": it must be a path that begins with /");
                assert_eq!(fault.to_string(), want);
            }
            Err(error) => panic!("{error}"),
            Ok(_) => panic!("{value} was taken"),
        }
    }
}

#[test]
fn a_dir_that_is_not_there_is_an_error_and_not_made() {
    let dir = Dir::new("missing");
    let missing = dir.path().join("missing");
    let text = refusal(&format!("shm:t?dir={}", missing.display()));
    assert_says(&text, &missing, &["opening the directory failed: No such file or directory"]);
    assert!(names(dir.path()).is_empty());
}

#[test]
fn a_dir_on_a_disk_is_used() {
    let Some(disk) = disk() else { return skip("the target directory is in memory") };
    let name = format!("disk-{}", std::process::id());
    let url = format!("shm:{name}?size=16k&dir={}", disk.display());
    let (mine, other) = (client(&url), client(&url));
    let held = hold(&mine, "k", 60_000);
    busy(&other, "k");
    assert_eq!(mine.release(b"k", &held.token.0).unwrap(), Verdict::Ok);
    hold(&other, "k", 1);
    fs::remove_file(disk.join(name)).unwrap();
}

#[test]
fn a_sticky_dir_is_used_but_not_files_of_others() {
    if !root() {
        return;
    }
    let dir = Dir::new("sticky");
    chmod(dir.path(), 0o1777);
    fs::write(dir.path().join("squatted"), vec![0; 16384]).unwrap();
    chown(&dir.path().join("squatted"), BOB, BOB);
    chmod(&dir.path().join("squatted"), 0o660);
    for uid in [0, ALICE] {
        as_user(uid, &[BOB], || {
            let url = dir.url(&format!("of-{uid}"));
            hold(&client(&url), "k", 60_000);
            busy(&client(&url), "k");
            let text = refusal(&dir.url("squatted"));
            assert_says(&text, &dir.path().join("squatted"), &[&format!("it belongs to uid {BOB}")]);
        });
    }
}

#[test]
fn a_given_dir_does_not_ask_for_the_shared_place() {
    if !may_have_own_places() {
        return;
    }
    with_own_places(|| {
        fs::write(shared(), "").unwrap();
        make_dir(Path::new("/run/given"), 0, 0, 0o755);
        let client = client("shm:t?dir=/run/given");
        says(&client, r#""path":"/run/given/t""#);
        says(&client, r#""private_to_this_user":false"#);
        // Its name may be a link's but for the last part.
        symlink("/run/given", "/run/link").unwrap();
        let want = "it is a symbolic link: it must be a directory";
        assert_says(&refusal("shm:t?dir=/run/link"), Path::new("/run/link"), &[want]);
        make_dir(Path::new("/run/given/inner"), 0, 0, 0o755);
        stats(&self::client("shm:t?dir=/run/link/inner"));
    });
}

// Time namespaces.

fn may_shift_time() -> bool {
    root() && Path::new("/proc/self/timens_offsets").exists() && may_unshare(libc::CLONE_NEWTIME, "time")
}

/// Runs `body` where CLOCK_MONOTONIC is ahead by so many seconds.
fn ahead(seconds: i64, body: impl FnOnce()) {
    process::unshare(libc::CLONE_NEWTIME);
    fs::write("/proc/self/timens_offsets", format!("monotonic {seconds} 123456789\n")).expect("offsets");
    in_child(body);
}

/// How long the machine runs, in s.
fn uptime() -> u64 {
    time_of(libc::CLOCK_MONOTONIC).as_secs()
}

fn time_of(clock: libc::clockid_t) -> Duration {
    let mut time = libc::timespec { tv_sec: 0, tv_nsec: 0 };
    // SAFETY: a struct to fill.
    assert_eq!(unsafe { libc::clock_gettime(clock, &raw mut time) }, 0);
    Duration::new(time.tv_sec.unsigned_abs(), u32::try_from(time.tv_nsec).unwrap())
}

fn ms(since: Instant) -> u64 {
    u64::try_from(since.elapsed().as_millis()).unwrap()
}

/// Takes a lock when it is free, and says after how many ms.
fn wait_for(client: &Client, key: &str, ttl_ms: u32) -> u64 {
    let begin = Instant::now();
    match client.acquire(key.as_bytes(), ttl_ms, 20_000) {
        Ok(Acquire::Held(_)) => ms(begin),
        other => panic!("{key}: {other:?}"),
    }
}

/// Leases of one side as the other sees them. `[0]`: how far inside is, `[1]`: how far outside is.
fn play(client: &Client, steps: &Shared, me: usize) {
    let other = 1 - me;
    for round in 0..2 {
        if round == me {
            hold(client, "lease", 600);
            let kept = hold(client, "released", 60_000);
            steps[me].fetch_add(1, std::sync::atomic::Ordering::AcqRel);
            steps.wait(other, round as u64 + 1);
            std::thread::sleep(Duration::from_millis(150));
            assert_eq!(client.release(b"released", &kept.token.0).unwrap(), Verdict::Ok);
        } else {
            steps.wait(other, round as u64 + 1);
            assert!(busy(client, "lease").left_ms <= 601, "{:?}", busy(client, "lease"));
            let left = busy(client, "released").left_ms;
            assert!((50_000..=60_001).contains(&left), "{left}");
            steps[me].fetch_add(1, std::sync::atomic::Ordering::AcqRel);
            // Freed by the holder, long before its lease ends.
            assert!(wait_for(client, "released", 1) < 10_000);
            // By itself. The upper bound is for a busy machine; the lower one is what counts.
            let waited = wait_for(client, "lease", 1);
            assert!(waited < 10_000, "{waited}");
        }
        let steps_done = 10 * (round as u64 + 1);
        steps[2 + me].store(steps_done, std::sync::atomic::Ordering::Release);
        steps.wait(2 + other, steps_done);
        steps.set(me, round as u64 + 1);
        steps.wait(other, round as u64 + 1);
        std::thread::sleep(Duration::from_millis(10)); // the 1 ms leases end
    }
}

#[test]
fn clocks_of_other_time_namespaces_agree() {
    if !may_shift_time() {
        return;
    }
    // Back, so that a futex that is given another's time sleeps too long; but not to before the machine started.
    let back = i64::try_from(uptime().saturating_sub(2).min(30)).unwrap();
    for seconds in [100_000, -back] {
        let dir = Dir::new("timens");
        let url = dir.url("t");
        let steps = Shared::new();
        let inside = fork(|| ahead(seconds, || play(&client(&url), &steps, 0)));
        let outside = fork(|| play(&client(&url), &steps, 1));
        outside.join();
        inside.join();
    }
}

/// A lease that began in another time namespace lasts as long as it says, and no longer.
#[test]
fn a_lease_lasts_as_long_in_another_time_namespace() {
    if !may_shift_time() {
        return;
    }
    let dir = Dir::new("timens-lease");
    let url = dir.url("t");
    for outside_first in [true, false] {
        let key = if outside_first { "a" } else { "b" };
        let (begun, ready) = (Shared::new(), Shared::new());
        let take = || {
            ready.wait(0, 1);
            let client = client(&url);
            stats(&client);
            let begin = Instant::now();
            hold(&client, key, 700);
            begun.set(0, 1);
            std::thread::sleep(Duration::from_millis(690).saturating_sub(begin.elapsed()));
            // Held for all of its time.
            busy(&client, key);
        };
        let want = || {
            let client = client(&url);
            stats(&client);
            ready.set(0, 1);
            begun.wait(0, 1);
            let worked = time_of(libc::CLOCK_THREAD_CPUTIME_ID);
            let waited = wait_for(&client, key, 1000);
            let worked = time_of(libc::CLOCK_THREAD_CPUTIME_ID) - worked;
            assert!(worked < Duration::from_millis(100), "it did not sleep, but worked {worked:?} of {waited} ms");
            assert!((300..5000).contains(&waited), "waited {waited} ms for a lease of 700 ms");
        };
        let (taker, wanter) = if outside_first {
            (fork(take), fork(|| ahead(100_000, want)))
        } else {
            (fork(|| ahead(100_000, take)), fork(want))
        };
        taker.join();
        wanter.join();
    }
}

#[test]
fn who_has_unshared_its_time_namespace_must_fork_first() {
    if !may_shift_time() {
        return;
    }
    let dir = Dir::new("unshared");
    in_child(|| {
        process::unshare(libc::CLONE_NEWTIME);
        let client = client(&dir.url("t"));
        let want = "this process has unshared its time namespace: fork before locking";
        assert_says(&refusal_of(&client), &dir.path().join("t"), &[want]);
        in_child(|| {
            hold(&client, "k", 1000);
        });
    });
}

/// A process that cannot find out its clock's offset must not lock by a wrong clock.
#[test]
fn a_clock_whose_offset_cannot_be_read_is_an_error() {
    if !may_shift_time() {
        return;
    }
    let dir = Dir::new("timens-fds");
    let url = dir.url("t");
    let outside = client(&url);
    hold(&outside, "k", 60_000);
    in_child(|| {
        ahead(100_000, || {
            let next = u64::from(File::open("/dev/null").unwrap().as_raw_fd().unsigned_abs());
            for spare in 0..8 {
                limit(libc::RLIMIT_NOFILE, next + spare);
                let answer = client(&url).acquire(b"k", 1000, 0);
                limit(libc::RLIMIT_NOFILE, 256);
                match answer {
                    Ok(Acquire::Busy(busy)) => assert!(busy.left_ms > 50_000, "{busy:?}"),
                    Ok(Acquire::Held(held)) => panic!("two hold it: {held:?} with {spare} fds"),
                    Err(error) => assert!(error.to_string().contains("Too many open files"), "{error}"),
                }
            }
        });
    });
}
