//! What calls answer, whichever backend was asked.

use crate::token::Token;
use std::fmt;

/// What a release or an extend came to.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Verdict {
    /// Done.
    Ok,
    /// The token holds nothing, and nobody holds the key.
    Expired,
    /// The token holds nothing, and another holds the key.
    Taken,
}

/// What any call came to.
#[derive(Clone, Debug)]
pub enum Answer {
    /// Of an acquire.
    Acquire(Acquire),
    /// Of a release or an extend.
    Verdict(Verdict),
    /// Of an await.
    Await(Await),
    /// Of an inspect. None: nobody holds it.
    Hold(Option<Hold>),
}

// An answer is of the kind of its call; another is a bug.
impl Answer {
    /// An acquire's.
    pub fn into_acquire(self) -> Acquire {
        match self {
            Self::Acquire(acquire) => acquire,
            other => unreachable!("an acquire answered {other:?}"),
        }
    }

    /// That of a release or an extend.
    pub fn into_verdict(self) -> Verdict {
        match self {
            Self::Verdict(verdict) => verdict,
            other => unreachable!("a release or an extend answered {other:?}"),
        }
    }

    /// An await's.
    pub fn into_await(self) -> Await {
        match self {
            Self::Await(answer) => answer,
            other => unreachable!("an await answered {other:?}"),
        }
    }

    /// An inspect's.
    pub fn into_hold(self) -> Option<Hold> {
        match self {
            Self::Hold(hold) => hold,
            other => unreachable!("an inspect answered {other:?}"),
        }
    }
}

/// What an acquire came to.
#[derive(Clone, Copy, Debug)]
pub enum Acquire {
    /// The lock is ours.
    Held(Held),
    /// Another holds it, and the wait, if any, is over.
    Busy(Busy),
}

/// A lock that was acquired.
#[derive(Clone, Copy, Debug)]
pub struct Held {
    /// Whoever has it owns the lock.
    pub token: Token,
    /// Grows with every holder of a key; 0 none. Below 2^53.
    pub fence: u64,
    /// Length of the lease in ms.
    pub left_ms: u32,
    /// How long was waited, in ms.
    pub waited_ms: u32,
}

/// Somebody else's hold.
#[derive(Clone, Copy, Debug, Default)]
pub struct Busy {
    /// What is left of the holder's lease in ms; 0 unknown.
    pub left_ms: u32,
    /// How long was waited, in ms.
    pub waited_ms: u32,
    /// Who it is.
    pub holder: Holder,
}

/// What an inspect tells of somebody's hold.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Hold {
    /// What is left of the lease in ms; 0 unknown.
    pub left_ms: u32,
    /// Who it is.
    pub holder: Holder,
    /// What it calls itself, by its option `label`.
    pub label: Option<String>,
}

impl fmt::Display for Hold {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match &self.label {
            Some(label) => f.write_str(label),
            None => self.holder.fmt(f),
        }
    }
}

impl From<Busy> for Hold {
    fn from(busy: Busy) -> Self {
        Self { left_ms: busy.left_ms, holder: busy.holder, label: None }
    }
}

/// Who holds a lock, as far as is known.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Holder {
    /// Not known.
    #[default]
    Unknown,
    /// A process of our pid namespace.
    Process(u32),
    /// A process of another pid namespace, by its number there.
    Elsewhere(u32),
}

impl Holder {
    /// The process id, where it means something to us; else 0.
    pub fn pid(self) -> u32 {
        match self {
            Self::Process(pid) => pid,
            Self::Unknown | Self::Elsewhere(_) => 0,
        }
    }
}

impl fmt::Display for Holder {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Unknown => f.write_str("unknown"),
            Self::Process(pid) => write!(f, "pid {pid}"),
            Self::Elsewhere(pid) => write!(f, "pid {pid} of another pid namespace"),
        }
    }
}

/// What `await` came to.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Await {
    /// Free now, or released or in other hands since the call began.
    Over,
    /// Still the same hold.
    Busy,
}
