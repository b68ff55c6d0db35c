//! What a driver is told to do.

/// What the driver of an op does next. `ms`: when so much time has passed, ask again; the op knows what it means.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Step {
    /// Nothing: fetch the result.
    Done {
        /// Whether the connection in use is clean and may serve others; else close it.
        keep: bool,
    },
    /// Close the connection in use, if there is one; then connect to the server, or take a connection that was kept.
    Connect {
        /// In ms.
        ms: u32,
    },
    /// Send all that the op has to say. It is said once.
    Send {
        /// In ms.
        ms: u32,
    },
    /// Receive some bytes.
    Receive {
        /// In ms.
        ms: u32,
    },
    /// Come back when so much time has passed.
    Sleep {
        /// In ms.
        ms: u32,
    },
    /// Come back when the bell says this id, or when so much time has passed.
    Bell {
        /// The wait's id.
        id: u32,
        /// In ms.
        ms: u32,
    },
    /// Let the caller's own client carry a command.
    Call {
        /// In ms.
        ms: u32,
        /// How many arguments it has.
        count: u32,
    },
}
