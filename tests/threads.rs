//! One handle in many threads.

mod common;
#[path = "common/lock.rs"]
mod lock;

use buflock::answer::{Acquire, Held, Verdict};
use buflock::client::Client;
use common::Dir;
use lock::{client, file, hold, names, number, small};
use std::cell::UnsafeCell;
use std::fs;
use std::sync::Barrier;
use std::sync::atomic::Ordering::Relaxed;
use std::sync::atomic::{AtomicBool, AtomicU64};
use std::thread;
use std::time::{Duration, Instant};

const THREADS: usize = 8;

/// Runs `body` in all threads at once.
fn in_threads<T: Send>(body: impl Fn(usize) -> T + Sync) -> Vec<T> {
    let start = Barrier::new(THREADS);
    thread::scope(|scope| {
        let (start, body) = (&start, &body);
        let run = |number| {
            scope.spawn(move || {
                start.wait();
                body(number)
            })
        };
        let threads = Vec::from_iter((0..THREADS).map(run));
        threads.into_iter().map(|thread| thread.join().unwrap()).collect()
    })
}

/// What only the holder of a lock may touch.
#[derive(Default)]
struct Protected {
    count: UnsafeCell<u64>,
    in_use: AtomicBool,
    fence: AtomicU64,
}

// SAFETY: the cell is touched under the lock alone; whether that is enough is what is tested.
unsafe impl Sync for Protected {}

impl Protected {
    /// Counts one hold, in steps that another holder would disturb.
    fn count(&self) {
        assert!(!self.in_use.swap(true, Relaxed), "two holders");
        // SAFETY: the caller holds the lock.
        let count = unsafe { self.count.get().read() };
        if count.is_multiple_of(7) {
            thread::yield_now();
        }
        // SAFETY: as above.
        unsafe { self.count.get().write(count + 1) };
        self.in_use.store(false, Relaxed);
    }

    fn check_fence(&self, held: &Held) {
        let last = self.fence.swap(held.fence, Relaxed);
        assert!(held.fence > last, "fence number {} after {last}", held.fence);
    }
}

fn sum<const N: usize>(all: [Protected; N]) -> u64 {
    all.into_iter().map(|protected| protected.count.into_inner()).sum()
}

/// Acquires as long as it takes: others hold the lock for a moment only.
fn acquire(client: &Client, key: &str) -> Held {
    match client.acquire(key.as_bytes(), 60_000, 60_000).unwrap() {
        Acquire::Held(held) => held,
        Acquire::Busy(busy) => panic!("{key}: {busy:?}"),
    }
}

fn release(client: &Client, key: &str, held: &Held) {
    assert_eq!(client.release(key.as_bytes(), &held.token.0).unwrap(), Verdict::Ok, "{key}");
}

#[test]
fn a_lock_has_one_holder() {
    const ROUNDS: usize = 3000;
    let dir = Dir::new("threads");
    let client = client(&small(&dir));
    let keys = ["a", "b", "c"];
    let protected = keys.map(|_| Protected::default());
    in_threads(|number| {
        for round in 0..ROUNDS {
            let place = (number + round) % keys.len();
            let held = acquire(&client, keys[place]);
            protected[place].check_fence(&held);
            protected[place].count();
            release(&client, keys[place], &held);
        }
    });
    let counted = sum(protected);
    assert_eq!(counted, (THREADS * ROUNDS) as u64);
}

/// How many files below `dir` this process has open, deleted ones too.
fn open_files(dir: &Dir) -> usize {
    let fds = fs::read_dir("/proc/self/fd").unwrap().map(|entry| entry.unwrap().path());
    fds.filter(|fd| fs::read_link(fd).is_ok_and(|target| target.starts_with(dir.path()))).count()
}

/// The table is made and attached by all threads at once, or only joined.
#[test]
fn a_first_use_by_all_threads_at_once() {
    for round in 0..200 {
        let dir = Dir::new("first");
        let client = client(&small(&dir));
        if round % 2 == 0 {
            number(&client, "slots"); // who only looks does not join
        }
        let held = in_threads(|number| {
            hold(&client, &format!("mine {number}"), 60_000);
            matches!(client.acquire(b"ours", 60_000, 0).unwrap(), Acquire::Held(_))
        });
        assert_eq!(held.iter().filter(|held| **held).count(), 1, "of all threads one gets the lock");
        assert_eq!(number(&client, "held"), THREADS as u64 + 1);
        assert_eq!(number(&client, "members"), 1, "one process");
        assert_eq!((names(dir.path()), open_files(&dir)), (vec!["t".to_owned()], 1));
        drop(client);
        assert_eq!(open_files(&dir), 0);
    }
}

/// Tries until the table is another one. Says when.
fn wait_for_new_table(client: &Client, key: &str) -> Instant {
    // Within the wait it looks for the file, whoever holds it. Leases end within 1.5 s; the rest is for a busy machine.
    let end = Instant::now() + Duration::from_secs(30);
    loop {
        match client.acquire(key.as_bytes(), 60_000, 20) {
            Ok(Acquire::Held(held)) => {
                release(client, key, &held);
                return Instant::now();
            }
            Ok(Acquire::Busy(_)) => {}
            Err(error) => assert!(error.to_string().contains("deleted while in use"), "{error}"),
        }
        assert!(Instant::now() < end, "nobody goes on");
    }
}

#[test]
fn all_threads_go_on_in_one_new_table_when_the_leases_are_over() {
    let dir = Dir::new("deleted");
    let client = client(&small(&dir));
    let lease = Duration::from_millis(1500);
    let begin = Instant::now();
    hold(&client, "ours", 1500); // never given back
    let id = number(&client, "segment_id");
    fs::remove_file(file(&dir)).unwrap();
    let went_on = in_threads(|_| wait_for_new_table(&client, "ours"));
    for time in went_on {
        assert!(time.duration_since(begin) >= lease, "before the lease was over");
    }
    assert_ne!(number(&client, "segment_id"), id);
    assert_eq!(number(&client, "reattached"), 1);
    assert_eq!(names(dir.path()), ["t"]);
    drop(client);
    assert_eq!(open_files(&dir), 0, "the deleted one is closed too");
}

/// Deleted again and again while all threads lock: no lock of this handle ever has two holders, and all go on.
#[test]
fn deletions_while_all_threads_lock() {
    let dir = Dir::new("deletions");
    let client = client(&small(&dir));
    let keys = ["a", "b", "c"];
    let protected = keys.map(|_| Protected::default());
    let over = AtomicBool::new(false);
    let counts = in_threads(|number| {
        if number == 0 {
            for _ in 0..50 {
                thread::sleep(Duration::from_millis(20));
                let _ = fs::remove_file(file(&dir));
            }
            over.store(true, Relaxed);
        }
        let mut count = 0;
        for round in 0.. {
            let place = (number + round) % keys.len();
            match client.acquire(keys[place].as_bytes(), 60_000, 20) {
                Ok(Acquire::Held(held)) => {
                    protected[place].count();
                    release(&client, keys[place], &held);
                    count += 1;
                }
                Ok(Acquire::Busy(_)) => {}
                Err(error) => assert!(error.to_string().contains("deleted while in use"), "{error}"),
            }
            if over.load(Relaxed) {
                break;
            }
        }
        count
    });
    let counted = sum(protected);
    assert_eq!(counted, counts.iter().sum::<u64>());
    println!("{counted} holds, {} tables", number(&client, "reattached") + 1);
    in_threads(|number| wait_for_new_table(&client, &format!("{number}")));
    drop(client);
    assert_eq!(open_files(&dir), 0);
}
