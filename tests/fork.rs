//! A handle on both sides of a fork: a server's master process makes it, its workers use it.

mod common;
#[path = "common/lock.rs"]
mod lock;
#[path = "common/process.rs"]
mod process;

use buflock::answer::{Acquire, Await, Holder, Verdict};
use buflock::client::Client;
use buflock::token::Token;
use common::Dir;
use lock::{busy, client, file, hold, number, small, take};
use process::{Child, Shared, fork, in_child};
use std::collections::HashSet;
use std::fs::{self, File};
use std::io::{Read, Seek, Write};
use std::os::fd::{AsRawFd, RawFd};
use std::os::unix::fs::MetadataExt;
use std::sync::atomic::{AtomicBool, Ordering::Relaxed};
use std::thread;

fn own() -> Holder {
    Holder::Process(std::process::id())
}

fn holder(client: &Client, key: &str) -> Holder {
    client.inspect(key.as_bytes()).unwrap().unwrap_or_else(|| panic!("nobody holds {key}")).holder
}

fn release(client: &Client, key: &str, token: Token) -> Verdict {
    client.release(key.as_bytes(), &token.0).unwrap()
}

/// Frees a handle that the parent of this child goes on using.
fn free_in_child(client: &Client) {
    // SAFETY: this child's copy, which ends with the child and is not used again.
    drop(unsafe { std::ptr::read(client) });
}

/// Hands a token over to another process.
fn send(shared: &Shared, token: Token) {
    for (word, chunk) in (1..).zip(token.0.chunks(8)) {
        shared.set(word, u64::from_ne_bytes(chunk.try_into().unwrap()));
    }
    shared.set(0, 1);
}

fn receive(shared: &Shared) -> Token {
    shared.wait(0, 1);
    let mut text = [0; 32];
    for (word, chunk) in (1..).zip(text.chunks_mut(8)) {
        chunk.copy_from_slice(&shared[word].load(Relaxed).to_ne_bytes());
    }
    Token(text)
}

/// Takes a lock in a child and gives it back in the parent, and the other way round.
fn assert_shared_across_a_fork(client: &Client) {
    let (shared, mine) = (Shared::new(), hold(client, "parent's", 60_000));
    let child = fork(|| {
        busy(client, "parent's");
        assert_eq!(client.extend(b"parent's", &mine.token.0, 60_000).unwrap(), Verdict::Ok);
        assert_eq!(release(client, "parent's", mine.token), Verdict::Ok);
        send(&shared, hold(client, "child's", 60_000).token);
    });
    let token = receive(&shared);
    child.join();
    busy(client, "child's");
    assert_eq!(release(client, "parent's", mine.token), Verdict::Expired, "its child released it");
    assert_eq!(release(client, "child's", token), Verdict::Ok);
    assert!(take(client, "child's", 60_000));
}

#[test]
fn a_handle_attached_before_a_fork_works_on_both_sides() {
    let dir = Dir::new("fork");
    let client = client(&small(&dir));
    number(&client, "slots");
    assert_shared_across_a_fork(&client);
}

#[test]
fn a_handle_made_before_a_fork_is_attached_on_both_sides() {
    let dir = Dir::new("fork");
    let client = client(&small(&dir));
    let shared = Shared::new();
    let child = fork(|| {
        hold(&client, "k", 60_000);
        shared.set(0, 1);
        shared.wait(1, 1);
    });
    child.wait_for(&shared, 0, 1);
    busy(&client, "k");
    assert_eq!(holder(&client, "k"), Holder::Process(child.pid().cast_unsigned()));
    shared.set(1, 1);
    child.join();
    assert_shared_across_a_fork(&client);
}

/// How a child may end.
#[derive(Clone, Copy, Debug)]
enum End {
    /// exit: handlers run.
    Exit,
    /// _exit, from a return of the child's body.
    ExitAtOnce,
    Kill,
}

fn end(end: End) {
    match end {
        // SAFETY: ends this child, with its handlers.
        End::Exit => unsafe { libc::exit(0) },
        End::ExitAtOnce => {}
        End::Kill => process::sleep_forever(),
    }
}

/// A child that inherits `client` ends, having used and freed it or not.
fn let_a_child_end(client: &Client, case: &str, how: End, uses: bool, frees: bool) {
    let ready = Shared::new();
    let child = fork(|| {
        if uses {
            hold(client, case, 60_000);
        }
        if frees {
            free_in_child(client);
        }
        ready.set(0, 1);
        end(how);
    });
    child.wait_for(&ready, 0, 1);
    match how {
        End::Kill => child.kill(),
        End::Exit | End::ExitAtOnce => child.join(),
    }
}

#[test]
fn the_end_of_a_child_releases_nothing_of_its_parents() {
    let dir = Dir::new("fork");
    let (mine, watcher) = (client(&small(&dir)), client(&small(&dir)));
    let mut held = hold(&mine, "k", 60_000);
    for how in [End::Exit, End::ExitAtOnce, End::Kill] {
        for (uses, frees) in [(false, false), (false, true), (true, false), (true, true)] {
            let case = format!("{how:?}, uses {uses}, frees {frees}");
            let_a_child_end(&mine, &case, how, uses, frees);
            busy(&watcher, "k");
            // Were the parent's member record given back, nobody would know the holder.
            assert_eq!(holder(&watcher, "k"), own(), "{case}");
            let verdict = mine.extend(b"k", &held.token.0, 60_000).unwrap();
            assert_eq!(verdict, Verdict::Ok, "{case}");
            assert_eq!(release(&mine, "k", held.token), Verdict::Ok, "{case}");
            held = hold(&mine, "k", 60_000);
            assert_eq!(holder(&watcher, "k"), own(), "{case}");
        }
    }
}

#[test]
fn a_child_has_a_record_only_from_its_first_lock_on_and_gives_back_its_own() {
    let dir = Dir::new("fork");
    let (mine, watcher) = (client(&small(&dir)), client(&small(&dir)));
    hold(&mine, "k", 60_000);
    assert_eq!(number(&watcher, "members"), 1);
    in_child(|| {
        assert_eq!(holder(&mine, "k"), Holder::Process(std::os::unix::process::parent_id()));
        assert_eq!(number(&watcher, "members"), 1, "it only looked");
        free_in_child(&mine);
        assert_eq!(number(&watcher, "members"), 1, "its parent's record");
    });
    in_child(|| {
        hold(&mine, "child's", 60_000);
        assert_eq!(number(&watcher, "members"), 2);
        in_child(|| {
            hold(&mine, "grandchild's", 60_000);
            assert_eq!(number(&watcher, "members"), 3);
            assert_eq!(holder(&watcher, "grandchild's"), own());
            free_in_child(&mine);
            assert_eq!(number(&watcher, "members"), 2);
        });
        assert_eq!((holder(&mine, "child's"), holder(&watcher, "child's")), (own(), own()));
        free_in_child(&mine);
        assert_eq!(number(&watcher, "members"), 1);
    });
    assert_eq!(number(&watcher, "members"), 1);
    assert_eq!(holder(&watcher, "k"), own());
}

#[test]
fn each_process_is_told_who_holds() {
    let dir = Dir::new("fork");
    let client = client(&small(&dir));
    hold(&client, "parent's", 60_000);
    let parent = own();
    let ready = Shared::new();
    let child = fork(|| {
        assert_eq!(holder(&client, "parent's"), parent);
        assert_eq!(busy(&client, "parent's").holder, parent);
        hold(&client, "child's", 60_000);
        assert_eq!(holder(&client, "child's"), own());
        ready.set(0, 1);
        ready.wait(1, 1);
    });
    child.wait_for(&ready, 0, 1);
    assert_eq!(holder(&client, "child's"), Holder::Process(child.pid().cast_unsigned()));
    assert_eq!(busy(&client, "child's").holder, Holder::Process(child.pid().cast_unsigned()));
    assert_eq!(holder(&client, "parent's"), parent);
    ready.set(1, 1);
    child.join();
}

/// Locks one of a few keys a thousand times, and says by which tokens.
fn tokens(client: &Client, number: usize) -> Vec<u8> {
    let mut tokens = Vec::with_capacity(1000 * 32);
    for round in 0..1000 {
        let key = format!("{}", (number + round) % 5);
        // As long as it takes, since the others hold each key only for a moment.
        match client.acquire(key.as_bytes(), 60_000, 60_000).unwrap() {
            Acquire::Held(held) => {
                tokens.extend(held.token.0);
                assert_eq!(release(client, &key, held.token), Verdict::Ok);
            }
            Acquire::Busy(busy) => panic!("{busy:?}"),
        }
    }
    tokens
}

#[test]
fn tokens_never_repeat() {
    let dir = Dir::new("fork");
    let client = client(&small(&dir));
    let mut all = tokens(&client, 0);
    let path = |number: usize| dir.path().join(format!("tokens-{number}"));
    let children: Vec<Child> =
        (1..=8).map(|number| fork(|| fs::write(path(number), tokens(&client, number)).unwrap())).collect();
    all.extend(tokens(&client, 9));
    children.into_iter().for_each(Child::join);
    all.extend((1..=8).flat_map(|number| fs::read(path(number)).unwrap()));
    let different: HashSet<&[u8]> = all.chunks(32).collect();
    assert_eq!((all.len() / 32, different.len()), (10_000, 10_000));
}

// A host that closes what it does not know, as daemons do.

fn close_all_from_3_on() {
    // SAFETY: in a child that needs none of them; whoever else in it does must cope, which is tested here.
    assert_eq!(unsafe { libc::close_range(3, libc::c_uint::MAX, 0) }, 0, "{}", std::io::Error::last_os_error());
}

/// A host's own files, at the numbers that were closed.
struct OwnFiles(Vec<(File, RawFd, u64)>);

impl OwnFiles {
    fn new(dir: &Dir) -> Self {
        let open = |number: usize| {
            let path = dir.path().join(format!("own-{number}"));
            let mut file = File::options().read(true).write(true).create_new(true).open(path).unwrap();
            write!(file, "file {number}").unwrap();
            let (fd, inode) = (file.as_raw_fd(), file.metadata().unwrap().ino());
            (file, fd, inode)
        };
        let files = Self((0..20).map(open).collect());
        assert_eq!(files.0[0].1, 3, "the lowest number is free");
        files
    }

    /// All are open, are what they were, and can be read and written.
    fn check(&mut self) {
        for (number, (file, fd, inode)) in self.0.iter_mut().enumerate() {
            let status = file.metadata().unwrap_or_else(|error| panic!("fd {fd} of the host was closed: {error}"));
            assert_eq!(status.ino(), *inode, "fd {fd} is another file");
            let mut text = String::new();
            file.rewind().unwrap();
            file.read_to_string(&mut text).unwrap();
            assert_eq!(text, format!("file {number}"));
            assert!(file.set_len(0).is_ok());
            file.rewind().unwrap();
            write!(file, "file {number}").unwrap();
        }
    }
}

#[test]
fn files_of_the_host_are_left_alone() {
    let dir = Dir::new("fds");
    in_child(|| {
        let mine = client(&small(&dir));
        let held = hold(&mine, "k", 60_000);
        close_all_from_3_on();
        let mut files = OwnFiles::new(&dir);

        busy(&mine, "k");
        assert!(matches!(mine.acquire(b"k", 1000, 20), Ok(Acquire::Busy(_))), "nothing is amiss");
        assert_eq!(mine.wait_for_end(b"k", 20).unwrap(), Await::Busy);
        files.check();

        fs::remove_file(file(&dir)).unwrap();
        let text = mine.acquire(b"k", 1000, 20).expect_err("the deletion was not noticed").to_string();
        assert!(text.contains("deleted while in use"), "{text}");
        assert_eq!(release(&mine, "k", held.token), Verdict::Ok);
        hold(&mine, "k", 60_000);
        assert!(file(&dir).exists(), "a new table");
        files.check();

        drop(mine);
        files.check();
    });
}

/// The same in a worker: its handle's fd was closed by its parent.
#[test]
fn files_of_a_daemons_worker_are_left_alone() {
    let dir = Dir::new("fds");
    in_child(|| {
        let mine = client(&small(&dir));
        hold(&mine, "k", 60_000);
        close_all_from_3_on();
        let mut files = OwnFiles::new(&dir);
        in_child(|| {
            assert!(take(&mine, "child's", 60_000));
            free_in_child(&mine);
            files.check();
        });
        files.check();
        drop(mine);
        files.check();
    });
}

/// Another handle may find the number free, and open the same file under it.
#[test]
fn a_handle_copes_with_the_loss_of_its_file_to_another_one() {
    let dir = Dir::new("fds");
    in_child(|| {
        let first = client(&small(&dir));
        hold(&first, "first", 60_000);
        close_all_from_3_on();
        let second = client(&small(&dir));
        let held = hold(&second, "second", 60_000);
        drop(first); // takes the second one's file for its own
        let mut files = OwnFiles::new(&dir);
        busy(&second, "first");
        assert_eq!(release(&second, "second", held.token), Verdict::Ok);
        fs::remove_file(file(&dir)).unwrap();
        let text = second.acquire(b"first", 1000, 20).unwrap_err().to_string();
        assert!(text.contains("deleted while in use"), "{text}");
        drop(second);
        files.check();
    });
}

/// Runs `disturb` in two threads again and again while `body` runs.
fn disturbed(disturb: impl Fn() + Sync, body: impl FnOnce()) {
    /// Ends the threads when the body panics, too.
    struct Stop<'a>(&'a AtomicBool);
    impl Drop for Stop<'_> {
        fn drop(&mut self) {
            self.0.store(true, Relaxed);
        }
    }
    let over = AtomicBool::new(false);
    thread::scope(|scope| {
        let stop = Stop(&over);
        for _ in 0..2 {
            scope.spawn(|| {
                while !over.load(Relaxed) {
                    disturb();
                }
            });
        }
        body();
        drop(stop);
    });
}

/// One key from its being free to its being free again. Others hold it for a moment only.
fn take_a_turn(client: &Client) {
    match client.acquire(b"k", 60_000, 60_000).unwrap() {
        Acquire::Held(held) => assert_eq!(release(client, "k", held.token), Verdict::Ok),
        Acquire::Busy(busy) => panic!("{busy:?}"),
    }
}

/// Forks children that must not hang: what the threads of their parent were in the middle of, nobody ends in the child.
/// Each would be ended by its alarm. 300 are some for every place in which a thread may be.
fn fork_many(body: impl Fn()) {
    for _ in 0..300 {
        in_child(&body);
    }
}

#[test]
fn a_fork_in_the_middle_of_attaching_hangs_nobody() {
    let dir = Dir::new("fork");
    let url = small(&dir);
    let attach = || take_a_turn(&client(&url));
    disturbed(attach, || fork_many(attach));
}

#[test]
fn a_fork_in_the_middle_of_a_shared_first_use_hangs_nobody() {
    let dir = Dir::new("fork");
    let url = small(&dir);
    for _ in 0..50 {
        let shared = client(&url);
        thread::scope(|scope| {
            let user = scope.spawn(|| take_a_turn(&shared));
            in_child(|| take_a_turn(&shared));
            user.join().unwrap();
        });
    }
}

#[test]
fn a_fork_in_the_middle_of_acquiring_hangs_nobody() {
    let dir = Dir::new("fork");
    let shared = client(&small(&dir));
    disturbed(
        || take_a_turn(&shared),
        || {
            fork_many(|| {
                take_a_turn(&shared);
                free_in_child(&shared);
            });
        },
    );
}
