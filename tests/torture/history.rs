//! The check of all acquisitions together. Fence numbers say in which order a key's holds were, so it is easy.

use super::board::{Board, Event, KEYS, WORKERS, Wrong};
use std::sync::atomic::Ordering::SeqCst;

/// What was checked.
#[derive(Clone, Copy, Debug, Default)]
pub struct Checked {
    pub acquisitions: u64,
    pub pairs: u64,
    /// Acquisitions that found no room in the log.
    pub missed: u64,
}

/// An acquisition that is complete.
#[derive(Clone, Copy)]
struct Hold {
    fence: u64,
    called: u64,
    returned: u64,
    /// Until then it lasted for certain.
    end: u64,
}

impl Hold {
    fn of(event: &Event) -> Option<Self> {
        let returned = event.returned.load(SeqCst);
        let (end, release_called) = (event.end.load(SeqCst), event.release_called.load(SeqCst));
        let end = if release_called == 0 { end } else { end.min(release_called) };
        let (fence, called) = (event.fence.load(SeqCst), event.called.load(SeqCst));
        (returned != 0).then_some(Self { fence, called, returned, end })
    }
}

/// Checks all that the logs hold, and empties them. No worker may be alive.
pub fn check(board: &Board) -> Checked {
    let mut checked = Checked::default();
    let mut keys: Vec<Vec<Hold>> = vec![Vec::new(); KEYS];
    for log in &board.logs[..WORKERS] {
        let length = usize::try_from(log.length.swap(0, SeqCst)).unwrap_or(0);
        let written = length.min(log.events.len());
        checked.missed += (length - written) as u64;
        for event in &log.events[..written] {
            if let Some(hold) = Hold::of(event) {
                keys[usize::try_from(event.key.load(SeqCst)).unwrap_or(0)].push(hold);
                checked.acquisitions += 1;
            }
            event.returned.store(0, SeqCst);
            event.release_called.store(0, SeqCst);
        }
    }
    for (key, holds) in keys.iter_mut().enumerate() {
        holds.sort_by_key(|hold| hold.fence);
        for pair in holds.windows(2) {
            checked.pairs += 1;
            check_pair(board, key as u64, pair[0], pair[1]);
        }
    }
    checked
}

fn check_pair(board: &Board, key: u64, first: Hold, second: Hold) {
    if first.fence == second.fence {
        board.report(Wrong::EqualFences, [key, first.fence, 0]);
    }
    if second.returned < first.end {
        board.report(Wrong::HoldsOverlap, [key, first.fence, second.fence]);
    }
    if second.returned < first.called {
        board.report(Wrong::FencesAgainstTime, [key, first.fence, second.fence]);
    }
}
