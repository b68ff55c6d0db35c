//! A table whose file is deleted, replaced or moved away while it is in use: an operator's error. New leases
//! in it must end within a second, those there are may last; and it must never become a crash.

mod common;
#[path = "common/lock.rs"]
mod lock;
#[path = "common/process.rs"]
mod process;

use buflock::answer::{Acquire, Await, Holder, Verdict};
use buflock::client::Client;
use common::Dir;
use lock::{SMALL, assert_says, busy, client, file, hold, number, refusal_of, small, stats};
use process::{
    Child, Shared, chmod, chown, fork, fork_as, in_child, may_unshare, mount_tmpfs, root, sleep_forever, wait_for_all,
    with_own_mounts,
};
use std::fs::{self, File};
use std::os::fd::AsRawFd;
use std::path::Path;
use std::sync::atomic::Ordering::AcqRel;
use std::sync::atomic::Ordering::Acquire as Load;
use std::time::{Duration, Instant};

/// A user that nobody is.
const ALICE: u32 = 12345;

/// How often who does not wait looks for the file, and a little more.
const LOOK: Duration = Duration::from_millis(1050);

/// The failure to take a lock, within a wait long enough to look for the file before it.
fn refusal_of_waiting(client: &Client) -> String {
    match client.acquire(b"k", 1000, 100) {
        Err(error) => error.to_string(),
        Ok(answer) => panic!("not refused: {answer:?}"),
    }
}

fn assert_mourned(text: &str, path: &Path) {
    assert_says(
        text,
        path,
        &["it was deleted while in use: a new one is attached when the last lease in it ends, in "],
    );
}

#[test]
fn a_deleted_table_is_mourned_until_its_last_lease_ends() {
    let dir = Dir::new("mourn");
    let (mine, other) = (client(&small(&dir)), client(&small(&dir)));
    let first = hold(&mine, "first", 60_000);
    let second = hold(&other, "second", 60_000);
    let id = number(&mine, "segment_id");
    fs::remove_file(file(&dir)).unwrap();

    // Who is about to sleep looks.
    let text = other.acquire(b"first", 1000, 500).map_err(|error| error.to_string()).unwrap_err();
    assert_mourned(&text, &file(&dir));
    let left: u64 = text.split(" in ").last().unwrap().split(' ').next().unwrap().parse().unwrap();
    assert!((58_000..=60_001).contains(&left), "{text}");
    // Who does not looks once in a second.
    std::thread::sleep(LOOK);
    for client in [&mine, &other] {
        assert_mourned(&client.acquire(b"third", 1000, 0).unwrap_err().to_string(), &file(&dir));
        assert!(!file(&dir).exists(), "a second table beside the first");
    }
    // That lock was not left held.
    assert!(mine.inspect(b"third").unwrap().is_none());

    // What is held lasts, and may be used, seen and given back.
    assert_eq!(mine.extend(b"first", &first.token.0, 50_000).unwrap(), Verdict::Ok);
    let seen = other.inspect(b"first").unwrap().expect("held");
    assert_eq!(seen.holder, Holder::Process(std::process::id()));
    assert!((40_000..=50_001).contains(&seen.left_ms));
    assert_eq!(other.wait_for_end(b"first", 5).unwrap(), Await::Busy);
    assert_eq!(mine.wait_for_end(b"nobody's", 5).unwrap(), Await::Over);
    assert_eq!(mine.end_any(b"nobody's").unwrap(), Verdict::Expired);
    assert_eq!((number(&mine, "segment_id"), number(&mine, "held")), (id, 2));
    assert_eq!(mine.release(b"first", &second.token.0).unwrap(), Verdict::Taken);
    assert_eq!(mine.release(b"first", &first.token.0).unwrap(), Verdict::Ok);
    assert_eq!(mine.release(b"first", &first.token.0).unwrap(), Verdict::Expired);
    refusal_of(&mine);

    // The last one ends by an operator's act. Then there is a new table for everybody.
    assert_eq!(mine.end_any(b"second").unwrap(), Verdict::Ok);
    let third = hold(&mine, "second", 60_000);
    assert!(third.fence > second.fence.max(first.fence), "fence numbers go back: {third:?} after {second:?}");
    assert!(file(&dir).exists());
    assert!(number(&mine, "segment_id") != id);
    busy(&other, "second");

    // Old tokens touch nothing in it.
    for client in [&mine, &other] {
        assert_eq!(client.release(b"second", &second.token.0).unwrap(), Verdict::Taken);
        assert_eq!(client.extend(b"second", &second.token.0, 60_000).unwrap(), Verdict::Taken);
        assert_eq!(client.release(b"first", &first.token.0).unwrap(), Verdict::Expired);
        assert_eq!(client.extend(b"first", &first.token.0, 1).unwrap(), Verdict::Expired);
        assert_eq!(number(client, "held"), 1);
        assert_eq!(number(client, "reattached"), 1);
        let notice = format!("{} was deleted while in use, and a new table was attached", file(&dir).display());
        assert!(stats(client).contains(&notice), "{}", stats(client));
    }
    assert_eq!(mine.release(b"second", &third.token.0).unwrap(), Verdict::Ok);
}

#[test]
fn a_new_table_is_attached_by_itself_when_the_last_lease_runs_out() {
    let dir = Dir::new("runs-out");
    let url = small(&dir);
    let mine = client(&url);
    let ready = Shared::new();
    // Whose holder was killed.
    let holder = fork(|| {
        hold(&client(&url), "k", 1500);
        ready.set(0, 1);
        sleep_forever();
    });
    stats(&mine);
    holder.wait_for(&ready, 0, 1);
    let begin = Instant::now();
    holder.kill();
    fs::remove_file(file(&dir)).unwrap();
    let mut refused = 0;
    let held = loop {
        match mine.acquire(b"k", 1000, 300) {
            Ok(Acquire::Held(held)) => break held,
            Ok(Acquire::Busy(busy)) => panic!("{busy:?}"),
            Err(error) => {
                assert_mourned(&error.to_string(), &file(&dir));
                assert!(begin.elapsed() < Duration::from_secs(10), "mourned for ever: {error}");
                refused += 1;
                std::thread::sleep(Duration::from_millis(10));
            }
        }
    };
    // The lease began before `begin`; how much is not known, but it is not half of it.
    assert!(begin.elapsed() > Duration::from_millis(750), "after {:?}", begin.elapsed());
    assert!(begin.elapsed() < Duration::from_millis(4500), "after {:?}", begin.elapsed());
    assert!(refused > 0);
    assert!(file(&dir).exists());
    assert_eq!(mine.release(b"k", &held.token.0).unwrap(), Verdict::Ok);
}

#[test]
fn a_sleeping_waiter_hears_of_the_deletion() {
    let dir = Dir::new("sleeper");
    let url = small(&dir);
    let mine = client(&url);
    let held = hold(&mine, "k", 60_000);
    let state = Shared::new();
    let waiters = [1, 2].map(|word| {
        let (url, dir, state) = (&url, &dir, &state);
        fork(move || {
            let waiter = client(url);
            stats(&waiter);
            state[0].fetch_add(1, AcqRel);
            if word == 1 {
                let error = waiter.acquire(b"k", 1000, 20_000).unwrap_err();
                assert_mourned(&error.to_string(), &file(dir));
            } else {
                // Who only waits for the end waits for that of the old hold.
                assert_eq!(waiter.wait_for_end(b"k", 20_000).unwrap(), Await::Over);
            }
            state.set(word, 1);
        })
    });
    wait_for_all(&waiters, &state, 0, 2);
    std::thread::sleep(Duration::from_millis(60));
    fs::remove_file(file(&dir)).unwrap();
    let begin = Instant::now();
    wait_for_all(&waiters[..1], &state, 1, 1);
    // It looks before each sleep, and none is longer than 50 ms. The rest is for a busy machine.
    assert!(begin.elapsed() < Duration::from_secs(3), "after {:?}", begin.elapsed());
    std::thread::sleep(Duration::from_millis(100));
    assert_eq!(state[2].load(Load), 0, "the awaiter left while the lock was held");
    assert_eq!(mine.release(b"k", &held.token.0).unwrap(), Verdict::Ok);
    let begin = Instant::now();
    waiters[1].wait_for(&state, 2, 1);
    assert!(begin.elapsed() < Duration::from_secs(3), "after {:?}", begin.elapsed());
    waiters.into_iter().for_each(Child::join);
}

/// A single try that finds the lock held must notice too, or it would be told of an old hold for as long as that is
/// extended, while others hold the lock in a new table.
#[test]
fn a_single_try_of_a_held_lock_notices_within_a_second() {
    let dir = Dir::new("try");
    let mine = client(&small(&dir));
    hold(&mine, "k", 60_000);
    fs::remove_file(file(&dir)).unwrap();
    std::thread::sleep(LOOK);
    match mine.acquire(b"k", 1000, 0) {
        Err(error) => assert_mourned(&error.to_string(), &file(&dir)),
        Ok(answer) => panic!("{answer:?}"),
    }
}

#[test]
fn a_table_that_was_renamed_over_is_given_up() {
    let dir = Dir::new("rename");
    // The older one takes the place of the younger.
    let next = client(&format!("{}&size=16k", dir.url("next")));
    let id = number(&next, "segment_id");
    let mine = client(&small(&dir));
    let held = hold(&mine, "k", 60_000);
    fs::rename(dir.path().join("next"), file(&dir)).unwrap();
    assert_mourned(&refusal_of_waiting(&mine), &file(&dir));
    assert_eq!(mine.release(b"k", &held.token.0).unwrap(), Verdict::Ok);
    let new = hold(&mine, "k", 60_000);
    assert_eq!(number(&mine, "segment_id"), id);
    assert!(new.fence > held.fence, "fence numbers go back: {new:?} after {held:?}");
    // Its first name is gone, but the file is the same, and in use by that name.
    assert!(number(&next, "held") == 1);
}

/// Moved away, or hidden by a mount: there is one table more as soon as somebody makes one in its place.
#[test]
fn a_table_that_others_do_not_find_any_more_is_given_up() {
    let dir = Dir::new("moved");
    let mine = client(&small(&dir));
    let held = hold(&mine, "k", 60_000);
    fs::rename(file(&dir), dir.path().join("elsewhere")).unwrap();
    hold(&client(&small(&dir)), "k", 60_000);
    assert_mourned(&refusal_of_waiting(&mine), &file(&dir));
    assert_eq!(mine.release(b"k", &held.token.0).unwrap(), Verdict::Ok);
    busy(&mine, "k");
    if !root() || !may_unshare(libc::CLONE_NEWNS, "mount") {
        return;
    }
    with_own_mounts(|| {
        let mine = client(&small(&dir));
        busy(&mine, "k");
        mount_tmpfs(dir.path(), "mode=755");
        hold(&client(&small(&dir)), "k", 60_000);
        assert_mourned(&refusal_of_waiting(&mine), &file(&dir));
    });
    // Who sees it where it was goes on.
    hold(&mine, "another", 60_000);
    std::thread::sleep(LOOK);
    hold(&mine, "one more", 60_000);
    assert_eq!(number(&mine, "reattached"), 1);
}

/// Of those who share it one sees it first, and goes on as soon as it finds no lease. The others are told by then.
#[test]
fn what_one_process_has_seen_all_know() {
    let dir = Dir::new("told");
    let url = small(&dir);
    let mine = client(&url);
    let held = hold(&mine, "k", 60_000);
    let state = Shared::new();
    let other = fork(|| {
        let other = client(&url);
        hold(&other, "other", 1);
        state.set(0, 1);
        state.wait(1, 1);
        // It has looked a moment ago, and would not look again within the second.
        assert_mourned(&refusal_of(&other), &file(&dir));
    });
    other.wait_for(&state, 0, 1);
    fs::remove_file(file(&dir)).unwrap();
    assert_mourned(&refusal_of_waiting(&mine), &file(&dir));
    state.set(1, 1);
    other.join();
    assert_eq!(mine.release(b"k", &held.token.0).unwrap(), Verdict::Ok);
}

#[test]
fn what_takes_the_place_of_a_deleted_table_is_checked_too() {
    let dir = Dir::new("garbage");
    let mine = client(&small(&dir));
    let held = hold(&mine, "k", 60_000);
    fs::remove_file(file(&dir)).unwrap();
    fs::write(file(&dir), vec![0; SMALL]).unwrap();
    std::thread::sleep(LOOK);
    assert_mourned(&refusal_of(&mine), &file(&dir));
    assert_eq!(mine.release(b"k", &held.token.0).unwrap(), Verdict::Ok);
    for _ in 0..3 {
        assert_says(&refusal_of(&mine), &file(&dir), &["it is not a buflock segment"]);
    }
    stats(&mine);
    fs::remove_file(file(&dir)).unwrap();
    hold(&mine, "k", 1000);
    assert!(fs::metadata(file(&dir)).unwrap().len() == SMALL as u64);
}

#[test]
fn a_deleted_directory_is_noticed() {
    let dir = Dir::new("gone");
    let inner = dir.path().join("inner");
    fs::create_dir(&inner).unwrap();
    chmod(&inner, 0o755);
    let url = format!("shm:t?size=16k&dir={}", inner.display());
    let mine = client(&url);
    let held = hold(&mine, "k", 60_000);
    fs::remove_dir_all(&inner).unwrap();
    assert_mourned(&refusal_of_waiting(&mine), &inner.join("t"));
    assert_eq!(mine.release(b"k", &held.token.0).unwrap(), Verdict::Ok);
    assert_says(&refusal_of(&mine), &inner, &["opening the directory failed: No such file or directory"]);
    fs::create_dir(&inner).unwrap();
    chmod(&inner, 0o755);
    hold(&mine, "k", 1000);
}

/// Deleted again and again under processes that lock all the time: each sees its own table, errors, and no crash.
#[test]
fn deletions_in_a_row_are_survived() {
    let dir = Dir::new("row");
    let url = small(&dir);
    let done = Shared::new();
    let users: Vec<Child> = (0..4)
        .map(|_| {
            fork(|| {
                let client = client(&url);
                while done[0].load(Load) == 0 {
                    match client.acquire(b"k", 20, 5) {
                        Ok(Acquire::Held(held)) => drop(client.release(b"k", &held.token.0).unwrap()),
                        Ok(Acquire::Busy(_)) => {}
                        Err(error) => assert!(error.to_string().contains("deleted while in use"), "{error}"),
                    }
                }
                std::thread::sleep(LOOK);
                while client.acquire(b"k", 20, 1000).is_err() {}
                done.set(1, number(&client, "segment_id"));
                done[2].fetch_add(1, AcqRel);
                assert_eq!(done[1].load(Load), number(&client, "segment_id"));
            })
        })
        .collect();
    for _ in 0..60 {
        std::thread::sleep(Duration::from_millis(20));
        let _ = fs::remove_file(file(&dir));
    }
    done.set(0, 1);
    users.into_iter().for_each(Child::join);
    assert_eq!(done[2].load(Load), 4);
}

// A host that closes what it does not know.

/// Closes the fd that is kept of a table, and opens another file under the same number.
fn close_kept_fd(table: &Path) -> i32 {
    let fds = fs::read_dir("/proc/self/fd").unwrap().map(|entry| entry.unwrap().path());
    let fd = fds.into_iter().find(|fd| fs::read_link(fd).is_ok_and(|target| target == table)).expect("kept");
    let fd: i32 = fd.file_name().unwrap().to_str().unwrap().parse().unwrap();
    let other = File::open("/dev/null").unwrap();
    // SAFETY: as a daemon does that closes all it does not know.
    assert_eq!(unsafe { libc::dup2(other.as_raw_fd(), fd) }, fd);
    fd
}

#[test]
fn a_file_whose_fd_the_host_closed_is_still_watched_and_left_alone() {
    let dir = Dir::new("closed");
    in_child(|| {
        let mine = client(&small(&dir));
        let held = hold(&mine, "k", 60_000);
        let fd = close_kept_fd(&file(&dir));
        assert!(matches!(mine.acquire(b"k", 1000, 10), Ok(Acquire::Busy(_))), "nothing is amiss");
        fs::remove_file(file(&dir)).unwrap();
        assert_mourned(&refusal_of_waiting(&mine), &file(&dir));
        assert_eq!(mine.release(b"k", &held.token.0).unwrap(), Verdict::Ok);
        drop(mine);
        // SAFETY: only asks.
        assert!(unsafe { libc::fcntl(fd, libc::F_GETFD) } >= 0, "the host's file was closed");
    });
}

/// A path that may not be looked at any more tells nothing.
#[test]
fn a_file_that_can_no_longer_be_looked_at_is_not_taken_for_deleted() {
    if !root() {
        return;
    }
    let dir = Dir::new("closed-dir");
    chown(dir.path(), ALICE, ALICE);
    let ready = Shared::new();
    let alice = fork_as(ALICE, &[ALICE], || {
        let mine = client(&small(&dir));
        let held = hold(&mine, "k", 60_000);
        close_kept_fd(&file(&dir));
        ready.set(0, 1);
        ready.wait(1, 1);
        std::thread::sleep(LOOK);
        assert!(matches!(mine.acquire(b"k", 1000, 10), Ok(Acquire::Busy(_))));
        hold(&mine, "other", 1000);
        assert_eq!(mine.release(b"k", &held.token.0).unwrap(), Verdict::Ok);
        hold(&mine, "k", 1000);
        assert_eq!(number(&mine, "reattached"), 0);
    });
    alice.wait_for(&ready, 0, 1);
    chown(dir.path(), 0, 0);
    chmod(dir.path(), 0o700);
    ready.set(1, 1);
    alice.join();
}
