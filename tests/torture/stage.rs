//! A stage for small scenes: actors that stop at a point of the protocol until they are told to go on, so that one
//! interleaving of a thousand happens every time.
//!
//! An actor is a thread with a client of its own. For the protocol that is a process: clients share nothing but the
//! table.

use super::plan::{TABLE, access};
use super::sys;
use buflock::answer::{Acquire, Held};
use buflock::client::Client;
use buflock::config::Settings;
use buflock::hooks::{self, Point};
use buflock::shm::segment::SLOTS;
use buflock::shm::slot::{UNIT_SHIFT, Word};
use buflock::shm::table::Table;
use buflock::token::Token;
use std::cell::RefCell;
use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::Ordering::SeqCst;
use std::sync::atomic::{AtomicBool, AtomicU32, AtomicU64};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

/// A lease or a wait that no scene outlasts, in ms.
pub const LONG: u32 = 60_000;
/// What is sure to happen on a stage takes less, or the scene is broken. All of it is microseconds' work; this is for
/// a machine that has stood still.
const LIMIT: Duration = Duration::from_secs(10);
/// Between two looks at a sleeper, in us.
const LOOK_US: u64 = 5000;
/// A sleeper that is still asleep in so many looks (250 ms) was not woken. Only looks that find it asleep count, so a
/// busy machine does not matter: one that was woken and waits for a processor is not asleep.
const LOOKS: u32 = 50;

thread_local! {
    static GATE: RefCell<Option<Arc<Gate>>> = const { RefCell::new(None) };
}

/// Where an actor stands.
struct Gate {
    stop_at: Option<Point>,
    reached: AtomicBool,
    open: AtomicBool,
    thread: AtomicU64,
    /// It passed [`Point::CountLoaded`] last: what comes next is a sleep.
    arming: AtomicBool,
    visits: [AtomicU32; Point::COUNT],
}

fn visit(point: Point) {
    GATE.with_borrow(|gate| {
        if let Some(gate) = gate {
            gate.pass(point);
        }
    });
}

impl Gate {
    fn pass(&self, point: Point) {
        self.visits[point as usize].fetch_add(1, SeqCst);
        let arming = matches!(point, Point::CountLoaded | Point::Armed | Point::AwaitArmed | Point::BellSet);
        self.arming.store(arming, SeqCst);
        if Some(point) == self.stop_at && !self.reached.swap(true, SeqCst) {
            while !self.open.load(SeqCst) {
                sys::nap(100);
            }
        }
    }

    fn is_asleep(&self) -> bool {
        self.arming.load(SeqCst) && sys::is_asleep(self.thread.load(SeqCst))
    }
}

/// Somebody who acts beside the scene.
pub struct Actor<T> {
    gate: Arc<Gate>,
    thread: JoinHandle<T>,
}

impl<T> Actor<T> {
    /// Waits until it has come to where it stops.
    pub fn arrives(&self) {
        until("an actor did not come to its point", || self.gate.reached.load(SeqCst));
    }

    /// Waits until it sleeps for a lock.
    pub fn falls_asleep(&self) {
        until("an actor did not fall asleep", || self.gate.is_asleep());
    }

    /// Waits until it has passed a point `times` times, or is done.
    pub fn passes(&self, point: Point, times: u32) {
        let visits = &self.gate.visits[point as usize];
        until("an actor did not pass a point", || self.thread.is_finished() || visits.load(SeqCst) >= times);
    }

    /// Lets it go on from where it stopped.
    pub fn goes_on(&self) {
        self.gate.open.store(true, SeqCst);
    }

    /// Whether it has come to its end.
    pub fn is_done(&self) -> bool {
        self.thread.is_finished()
    }

    /// Waits for what it came to.
    pub fn result(self) -> T {
        self.goes_on();
        until("an actor did not come to its end", || self.thread.is_finished());
        self.thread.join().expect("an actor panicked")
    }

    /// Waits for its end, unless it sleeps on.
    pub fn wakes(&self) -> bool {
        let mut asleep = 0;
        while !self.thread.is_finished() && asleep < LOOKS {
            sys::nap(LOOK_US);
            asleep = if self.gate.is_asleep() { asleep + 1 } else { 0 };
        }
        self.thread.is_finished()
    }
}

pub fn until(otherwise: &str, condition: impl Fn() -> bool) {
    let begin = Instant::now();
    while !condition() {
        assert!(begin.elapsed() < LIMIT, "{otherwise}");
        sys::nap(200);
    }
}

/// A table of its own for one scene.
pub struct Stage {
    url: String,
    settings: Settings,
    /// The table, to look into it.
    pub table: Box<Table>,
    client: Client,
}

impl Stage {
    /// A table of `buckets` buckets in `dir`: few, so that all keys meet.
    pub fn new(dir: &Path, buckets: usize) -> Self {
        let (url, settings) = access(dir, buckets);
        let table = Table::attach(TABLE, &settings).expect("a table");
        let client = Client::new(&url, settings.clone()).expect("a client");
        hooks::visit_points(visit);
        Self { url, settings, table, client }
    }

    /// Lets somebody act, up to a point if there is one.
    pub fn act<T: Send + 'static>(
        &self,
        stop_at: Option<Point>,
        body: impl FnOnce(&Client, &Table) -> T + Send + 'static,
    ) -> Actor<T> {
        let gate = Arc::new(Gate {
            stop_at,
            reached: AtomicBool::new(false),
            open: AtomicBool::new(false),
            thread: AtomicU64::new(0),
            arming: AtomicBool::new(false),
            visits: [const { AtomicU32::new(0) }; Point::COUNT],
        });
        let (own, url, settings) = (Arc::clone(&gate), self.url.clone(), self.settings.clone());
        let thread = std::thread::spawn(move || {
            let client = Client::new(&url, settings.clone()).expect("a client");
            let table = Table::attach(TABLE, &settings).expect("a table");
            own.thread.store(sys::thread_id(), SeqCst);
            GATE.set(Some(own));
            body(&client, &table)
        });
        Actor { gate, thread }
    }

    /// As [`Self::act`]: an acquire for ever, with or without waiting for it.
    pub fn acquirer(&self, stop_at: Option<Point>, key: &str, ttl_ms: u32, wait_ms: u32) -> Actor<Option<Held>> {
        let key = key.to_owned();
        self.act(stop_at, move |client, _| take(client, &key, ttl_ms, wait_ms))
    }

    /// Takes a lock that is free.
    pub fn take(&self, key: &str, ttl_ms: u32) -> Held {
        take(&self.client, key, ttl_ms, 0).expect("a lock that is free")
    }

    /// The client of the scene itself.
    pub fn client(&self) -> &Client {
        &self.client
    }

    /// Takes and keeps other keys, `count` of them.
    pub fn fill(&self, count: usize) {
        for other in 0..count {
            self.take(&format!("other-{other}"), LONG);
        }
    }

    /// Waits until a hold's lease has run out.
    pub fn outlasts(&self, held: &Held) {
        let end = self.word(held).until();
        until("a lease did not run out", || self.table.clock().now() >> UNIT_SHIFT >= end);
    }

    /// The word of a hold's slot.
    pub fn word(&self, held: &Held) -> Word {
        self.table.slots().word(slot_of(held))
    }

    /// The bucket of a hold's slot.
    pub fn bucket(&self, held: &Held) -> u32 {
        slot_of(held) / u32::try_from(SLOTS).expect("small")
    }

    /// Waits until the binding that stopped in a slot may be taken over.
    pub fn outlasts_binding(&self, slot: u32) {
        let end = self.table.slots().word(slot).until();
        until("a binding did not run out", || self.table.clock().now() >> UNIT_SHIFT >= end);
    }
}

/// None: it is not to be had.
pub fn take(client: &Client, key: &str, ttl_ms: u32, wait_ms: u32) -> Option<Held> {
    match client.acquire(key.as_bytes(), ttl_ms, wait_ms) {
        Ok(Acquire::Held(held)) => Some(held),
        Ok(Acquire::Busy(_)) | Err(_) => None,
    }
}

fn slot_of(held: &Held) -> u32 {
    let (high, _) = Token::parse(&held.token.0).expect("a token");
    u32::try_from(high >> 32).expect("a half")
}
