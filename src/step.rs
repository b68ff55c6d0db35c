//! What a driver is told to do.

/// What the driver of an op does next.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Step {
    /// Nothing: fetch the result.
    Done,
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
}
