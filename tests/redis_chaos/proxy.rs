//! A process between clients and server that loses, delays and swallows what passes, and resets connections.

use super::board::{Board, Count};
use super::random::Random;
use buflock::sys::monotonic;
use std::io::{Read, Write};
use std::net::{TcpListener, TcpStream};
use std::os::fd::AsRawFd;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering::SeqCst};
use std::thread;
use std::time::Duration;

/// One connection through it.
struct Pair {
    board: &'static Board,
    random: Random,
    client: TcpStream,
    server: TcpStream,
    /// Nothing passes any more, and nobody is told.
    mute: AtomicBool,
}

/// The longest storm, in ns.
const STORM_MOST: u64 = 400_000_000;
/// The shortest time between two.
const CALM: u64 = 1_000_000_000;

/// Until when there is no way to the server, on the monotonic clock.
static STORM: AtomicU64 = AtomicU64::new(0);

fn storms() -> bool {
    monotonic() < STORM.load(SeqCst)
}

/// Serves until the process is ended.
pub fn serve(board: &'static Board, listener: &TcpListener, port: u16, seed: u64) {
    let random = Random::new(seed);
    while let Ok((client, _)) = listener.accept() {
        board.count(Count::Connections);
        if monotonic() > STORM.load(SeqCst) + CALM && random.one_in(20) {
            board.count(Count::Storms);
            STORM.store(monotonic() + random.below(STORM_MOST), SeqCst);
        }
        if storms() {
            reset(&client);
            continue;
        }
        let Ok(server) = TcpStream::connect(("127.0.0.1", port)) else {
            reset(&client);
            continue;
        };
        let _ = (client.set_nodelay(true), server.set_nodelay(true));
        let random = Random::new(random.next());
        let pair = Arc::new(Pair { board, random, client, server, mute: false.into() });
        let back = pair.clone();
        thread::spawn(move || pair.pass(&pair.client, &pair.server, true));
        thread::spawn(move || back.pass(&back.server, &back.client, false));
    }
}

/// Ends a connection with RST at once.
fn reset(stream: &TcpStream) {
    let address = libc::sockaddr { sa_family: 0, sa_data: [0; 14] }; // AF_UNSPEC
    let length = libc::socklen_t::try_from(size_of_val(&address)).expect("16");
    // SAFETY: an address and its length.
    unsafe { libc::connect(stream.as_raw_fd(), &raw const address, length) };
}

impl Pair {
    fn pass(&self, mut from: &TcpStream, mut to: &TcpStream, requests: bool) {
        let mut bytes = [0; 4096];
        while let Ok(count @ 1..) = from.read(&mut bytes) {
            let bytes = &bytes[..count];
            if self.mute.load(SeqCst) {
                continue;
            }
            match self.random.below(400) {
                _ if storms() => break,
                0..4 => {
                    self.board.count(Count::Resets);
                    let _ = to.write_all(&bytes[..self.random.index(count)]);
                    break;
                }
                4..8 => {
                    self.board.count(Count::Swallowed);
                    self.mute.store(true, SeqCst);
                }
                8..12 if requests => {
                    // The client is told that it is over, and what it said arrives all the same.
                    self.board.count(Count::Late);
                    reset(&self.client);
                    self.delay(300);
                    let _ = to.write_all(bytes);
                    self.delay(20);
                    break;
                }
                12..22 => {
                    self.board.count(Count::Delays);
                    self.delay(if self.random.one_in(4) { 400 } else { 40 });
                    let _ = to.write_all(bytes);
                }
                _ => {
                    let _ = to.write_all(bytes);
                }
            }
        }
        reset(&self.client);
        reset(&self.server);
    }

    fn delay(&self, most_ms: u64) {
        thread::sleep(Duration::from_millis(1 + self.random.below(most_ms)));
    }
}
