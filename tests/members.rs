//! The records of the processes that use a table.

mod common;
#[path = "common/lock.rs"]
mod lock;
#[path = "common/process.rs"]
mod process;

use buflock::answer::{Acquire, Answer, Holder, Verdict};
use buflock::client::Client;
use buflock::shm::Shm;
use buflock::shm::member::MEMBERS;
use buflock::step::Step;
use common::Dir;
use lock::{busy, client, hold, number, stats};
use process::{Child, Shared, as_user, chmod, chown, fork, in_child, may_unshare, root, sleep_forever, wait_for_all};
use std::fs;
use std::path::Path;
use std::sync::atomic::Ordering::{AcqRel, Acquire as Load};
use std::time::{Duration, Instant};

/// Children that hold a lock each, with a record each.
struct Crowd(Vec<Child>);

impl Crowd {
    fn new(url: &str, count: usize) -> Self {
        let there = Shared::new();
        let children = (0..count).map(|number| {
            fork(|| {
                let client = client(url);
                hold(&client, &format!("crowd {number}"), 600_000);
                there[0].fetch_add(1, AcqRel);
                sleep_forever();
            })
        });
        let crowd = Self(children.collect());
        wait_for_all(&crowd.0, &there, 0, count as u64);
        crowd
    }

    fn pid(&self, number: usize) -> u32 {
        u32::try_from(self.0[number].pid()).unwrap()
    }
}

fn holder(client: &Client, key: &str) -> Holder {
    client.inspect(key.as_bytes()).unwrap().unwrap_or_else(|| panic!("nobody holds {key}")).holder
}

fn own() -> Holder {
    Holder::Process(std::process::id())
}

#[test]
fn who_finds_no_record_locks_and_waits_all_the_same() {
    let dir = Dir::new("crowd");
    let url = dir.url("t");
    let watcher = client(&url); // only looks, so it takes no record
    let crowd = Crowd::new(&url, MEMBERS);
    for number in [0, 1, MEMBERS - 1] {
        assert_eq!(holder(&watcher, &format!("crowd {number}")), Holder::Process(crowd.pid(number)));
    }
    assert_eq!(number(&watcher, "members"), MEMBERS as u64);
    let late = client(&url);
    let held = hold(&late, "late", 600_000);
    assert_eq!(holder(&watcher, "late"), Holder::Unknown);
    assert_eq!(holder(&watcher, "late").to_string(), "unknown");
    assert_eq!(holder(&late, "crowd 5"), Holder::Process(crowd.pid(5)));
    // One more without a record waits for it, and gets it.
    let state = Shared::new();
    let waiter = fork(|| {
        let waiter = client(&url);
        stats(&waiter);
        state.set(0, 1);
        match waiter.acquire(b"late", 1000, 20_000) {
            Ok(Acquire::Held(held)) => assert!(held.waited_ms >= 20, "{held:?}"),
            other => panic!("{other:?}"),
        }
    });
    waiter.wait_for(&state, 0, 1);
    std::thread::sleep(Duration::from_millis(100));
    assert_eq!(late.extend(b"late", &held.token.0, 60_000).unwrap(), Verdict::Ok);
    assert_eq!(late.release(b"late", &held.token.0).unwrap(), Verdict::Ok);
    waiter.join();
    assert_eq!(number(&watcher, "members"), MEMBERS as u64);
}

#[test]
fn who_finds_no_record_waits_in_steps_all_the_same() {
    let dir = Dir::new("steps");
    let url = dir.url("t");
    let watcher = client(&url);
    let crowd = Crowd::new(&url, MEMBERS - 1);
    let last = client(&url);
    let held = hold(&last, "k", 600_000);
    assert_eq!(number(&watcher, "members"), MEMBERS as u64);
    // One more: the bell that it has nobody can ring.
    let state = Shared::new();
    let waiter = fork(|| {
        let waiter = client(&url);
        waiter.bell().and_then(Shm::bell_fd).unwrap();
        let mut op = waiter.op_acquire(b"k", 1000, 20_000).unwrap();
        let mut steps = 0;
        while let step @ (Step::Sleep { .. } | Step::Bell { .. }) = op.next() {
            let Step::Sleep { ms } = step else { panic!("{step:?}, of a bell that cannot be rung") };
            assert!((1..=500).contains(&ms), "{ms}");
            steps += 1;
            state.set(0, steps);
            std::thread::sleep(Duration::from_millis(ms.into()));
        }
        let answer = op.finish().unwrap();
        assert!(matches!(answer, Ok(Answer::Acquire(Acquire::Held(_)))), "{answer:?}");
        assert_eq!((number(&waiter, "bell_sleeps"), number(&waiter, "bell_waits")), (steps, 0));
        assert!(stats(&waiter).contains("its bells are sleeps"), "{}", stats(&waiter));
    });
    waiter.wait_for(&state, 0, 3);
    assert_eq!(last.release(b"k", &held.token.0).unwrap(), Verdict::Ok);
    waiter.join();
    assert_eq!(number(&watcher, "members"), MEMBERS as u64);
    drop(crowd);
}

#[test]
fn records_of_killed_processes_are_taken_over() {
    let dir = Dir::new("killed");
    let url = dir.url("t");
    let watcher = client(&url);
    let mut crowd = Crowd::new(&url, MEMBERS);
    crowd.0.pop().unwrap().kill();
    crowd.0.remove(7).kill();
    assert_eq!(number(&watcher, "members"), MEMBERS as u64, "only who needs one looks for the dead");
    // Two come, and there are two records; a third finds none.
    let newcomers = [(); 3].map(|()| client(&url));
    for (newcomer, key) in newcomers.iter().zip(["x", "y", "z"]) {
        hold(newcomer, key, 600_000);
    }
    assert_eq!(["x", "y", "z"].map(|key| holder(&watcher, key)), [own(), own(), Holder::Unknown]);
    // What the dead left behind is not said to be ours.
    assert_eq!(holder(&watcher, "crowd 7"), Holder::Unknown);
    assert_eq!(holder(&watcher, "crowd 8"), Holder::Process(crowd.pid(7)), "the living keep theirs");
}

#[test]
fn records_are_kept_while_somebody_else_lives() {
    if !root() {
        return;
    }
    // Processes of root, which another user may not even send a signal.
    let dir = Dir::new("strangers");
    let url = dir.url("t");
    let crowd = Crowd::new(&url, MEMBERS);
    chmod(&dir.path().join("t"), 0o660);
    chown(&dir.path().join("t"), 0, 12300);
    as_user(12345, &[12300], || {
        let stranger = client(&url);
        hold(&stranger, "k", 600_000);
        assert_eq!(holder(&stranger, "k"), Holder::Unknown);
        assert_eq!(holder(&stranger, "crowd 0"), Holder::Process(crowd.pid(0)));
    });
}

#[test]
fn a_freed_handle_gives_its_record_back() {
    let dir = Dir::new("freed");
    let watcher = client(&dir.url("t"));
    assert_eq!(number(&watcher, "members"), 0);
    let handles: Vec<Client> = (0..MEMBERS + 1).map(|_| client(&dir.url("t"))).collect();
    for (at, handle) in handles.iter().enumerate() {
        hold(handle, &format!("{at}"), 600_000);
        let most = (at + 1).min(MEMBERS) as u64;
        assert_eq!(number(&watcher, "members"), most, "one per handle");
    }
    drop(handles);
    assert_eq!(number(&watcher, "members"), 0);
    // The locks last: their tokens may have travelled.
    assert_eq!(number(&watcher, "held"), MEMBERS as u64 + 1);
    assert_eq!(holder(&watcher, "0"), Holder::Unknown);
    let next = client(&dir.url("t"));
    hold(&next, "next", 600_000);
    assert_eq!((number(&watcher, "members"), holder(&watcher, "next")), (1, own()));
    // The record is another's now, but what its last owner took is not.
    assert_eq!(holder(&watcher, "0"), Holder::Unknown);
}

#[test]
fn a_forked_child_has_a_record_of_its_own_and_leaves_its_parents_alone() {
    let dir = Dir::new("forked");
    let watcher = client(&dir.url("t"));
    let mine = client(&dir.url("t"));
    hold(&mine, "mine", 600_000);
    let (mine, seen) = (std::mem::ManuallyDrop::new(mine), Shared::new());
    let child = |uses: bool| {
        fork(|| {
            if uses {
                hold(&mine, "child's", 600_000);
                assert_eq!(holder(&mine, "child's"), own());
                seen.set(0, number(&mine, "members"));
            }
            // SAFETY: this child's copy, not used afterwards.
            drop(unsafe { std::ptr::read(&raw const *mine) });
        })
    };
    child(false).join();
    assert_eq!((number(&watcher, "members"), holder(&watcher, "mine")), (1, own()), "a child that did not use it");
    child(true).join();
    assert_eq!(seen[0].load(Load), 2);
    assert_eq!((number(&watcher, "members"), holder(&watcher, "mine")), (1, own()), "a child that used it");
    assert_eq!(holder(&watcher, "child's"), Holder::Unknown);
    drop(std::mem::ManuallyDrop::into_inner(mine));
    assert_eq!(number(&watcher, "members"), 0);
}

// Other pid namespaces.

fn may_have_own_pids() -> bool {
    root() && may_unshare(libc::CLONE_NEWPID, "pid")
}

/// Runs `body` as process 1 of a new pid namespace, with its own `/proc` or with ours.
fn with_own_pids(own_proc: bool, body: impl FnOnce()) {
    process::unshare(libc::CLONE_NEWPID);
    in_child(|| {
        if own_proc {
            mount_own_proc();
        }
        body();
    });
}

fn mount_own_proc() {
    process::own_mounts();
    process::mount(Some(Path::new("proc")), Path::new("/proc"), Some("proc"), 0, "");
}

#[test]
fn a_holder_of_another_pid_namespace_is_named_so() {
    if !may_have_own_pids() {
        return;
    }
    let dir = Dir::new("pidns");
    let url = dir.url("t");
    let outside = client(&url);
    hold(&outside, "outside", 600_000);
    let ready = Shared::new();
    let inside = fork(|| {
        with_own_pids(true, || {
            let inside = client(&url);
            hold(&inside, "inside", 600_000);
            assert_eq!(holder(&inside, "inside"), Holder::Process(1));
            assert_eq!(holder(&inside, "outside"), Holder::Elsewhere(parents_number(&ready)));
            ready.set(0, 1);
            sleep_forever();
        });
    });
    ready.set(1, u64::from(std::process::id()));
    inside.wait_for(&ready, 0, 1);
    let seen = busy(&outside, "inside").holder;
    assert_eq!(seen, Holder::Elsewhere(1));
    assert_eq!((seen.to_string(), seen.pid()), ("pid 1 of another pid namespace".to_owned(), 0));
    // It counts as alive as long as nobody can know better.
    let crowd = Crowd::new(&url, MEMBERS - 2);
    assert_eq!(number(&outside, "members"), MEMBERS as u64);
    let late = client(&url);
    hold(&late, "late", 600_000);
    assert_eq!(holder(&outside, "late"), Holder::Unknown);
    assert_eq!(holder(&outside, "inside"), Holder::Elsewhere(1));
    drop((crowd, inside));
}

fn parents_number(ready: &Shared) -> u32 {
    ready.wait(1, 1);
    u32::try_from(ready[1].load(Load)).unwrap()
}

/// In a namespace of its own, but with the `/proc` of another: numbers there mean other processes.
#[test]
fn where_proc_is_another_namespaces_no_record_is_taken_from_the_living() {
    if !may_have_own_pids() {
        return;
    }
    let dir = Dir::new("foreign-proc");
    let url = dir.url("t");
    in_child(|| {
        with_own_pids(false, || {
            let first = client(&url);
            hold(&first, "first", 600_000);
            let seen = holder(&first, "first");
            assert!([Holder::Process(1), Holder::Unknown].contains(&seen), "{seen:?}");
            let used = usize::try_from(number(&first, "members")).unwrap();
            // Another process of the namespace, which sees the right start times.
            in_child(|| {
                mount_own_proc();
                let handles: Vec<Client> = (used..MEMBERS).map(|_| client(&url)).collect();
                for (at, handle) in handles.iter().enumerate() {
                    hold(handle, &format!("filler {at}"), 600_000);
                    assert_eq!(holder(handle, &format!("filler {at}")), own());
                }
                let late = client(&url);
                hold(&late, "late", 600_000);
                assert_eq!((holder(&late, "first"), holder(&late, "late")), (seen, Holder::Unknown));
            });
        });
    });
}

/// In a time namespace the kernel says other start times of the same processes.
#[test]
fn in_a_shifted_time_namespace_no_record_is_taken_from_the_living() {
    if !root() || !may_unshare(libc::CLONE_NEWTIME, "time") {
        return;
    }
    let dir = Dir::new("timens");
    let url = dir.url("t");
    let outside = client(&url);
    let inside = |body: &dyn Fn()| {
        in_child(|| {
            process::unshare(libc::CLONE_NEWTIME);
            fs::write("/proc/self/timens_offsets", "boottime 100000 0\n").expect("offsets");
            in_child(body);
        });
    };
    let ready = Shared::new();
    let lodger = fork(|| {
        inside(&|| {
            let lodger = client(&url);
            hold(&lodger, "lodger", 600_000);
            ready.set(0, u64::from(std::process::id()));
            sleep_forever();
        });
    });
    lodger.wait_for(&ready, 0, 1);
    let pid = u32::try_from(ready[0].load(Load)).unwrap();
    let seen = holder(&outside, "lodger");
    assert!([Holder::Process(pid), Holder::Unknown].contains(&seen), "{seen:?}");
    let used = usize::try_from(number(&outside, "members")).unwrap();
    let crowd = Crowd::new(&url, MEMBERS - used);
    // From either side the others live.
    inside(&|| {
        hold(&client(&url), "inside", 600_000);
        assert_eq!(holder(&outside, "crowd 0"), Holder::Process(crowd.pid(0)));
    });
    let late = client(&url);
    hold(&late, "late", 600_000);
    assert_eq!(holder(&outside, "late"), Holder::Unknown);
    assert_eq!(holder(&outside, "lodger"), seen);
}

/// Records must not get lost either where handles come and go all the time.
#[test]
fn coming_and_going_uses_no_records_up() {
    let dir = Dir::new("churn");
    let url = dir.url("t");
    let watcher = client(&url);
    let begin = Instant::now();
    let churners: Vec<Child> = (0..4)
        .map(|number| {
            fork(|| {
                for round in 0..100 {
                    let client = client(&url);
                    hold(&client, &format!("{number}"), 1);
                    if round % 3 == 0 {
                        // Killed with its record.
                        let orphan = fork(|| {
                            hold(&client, &format!("orphan {number}"), 1);
                            // SAFETY: ends this child.
                            unsafe { libc::kill(libc::getpid(), libc::SIGKILL) };
                        });
                        drop(orphan);
                    }
                    std::thread::sleep(Duration::from_millis(2));
                }
            })
        })
        .collect();
    churners.into_iter().for_each(Child::join);
    let last = client(&url);
    hold(&last, "last", 600_000);
    assert_eq!(holder(&watcher, "last"), own(), "no record left after {:?}", begin.elapsed());
    assert!(fs::metadata(dir.path().join("t")).is_ok());
    in_child(|| {
        // And nobody was left who is alive: as many as there are records can come.
        let handles: Vec<Client> = (1..MEMBERS).map(|_| client(&url)).collect();
        for (at, handle) in handles.iter().enumerate() {
            hold(handle, &format!("new {at}"), 600_000);
            assert_eq!(holder(&watcher, &format!("new {at}")), own());
        }
    });
}
