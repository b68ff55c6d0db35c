//! buflock: one lock that Perl, nginx/OpenResty and C programs share.
//!
//! On one host it works through shared memory, with no server at all; across hosts through Redis. A lock has a lease: it
//! ends by itself when its holder dies or forgets it. The C API in `include/buflock.h` is generated from [`ffi`];
//! [`client::Client`] is the same for Rust.
//!
//! Dependencies point one way: `ffi` to `client` and `op`, these to the backends `shm`, `redis` and `off`, all to the
//! leaves `answer`, `cancel`, `config`, `error`, `fd`, `fork`, `hex`, `hooks`, `key`, `policy`, `stats`, `step`, `sys`,
//! `token`. The backends do not know each other.

pub mod answer;
pub mod cancel;
pub mod client;
pub mod config;
pub mod error;
pub mod fd;
pub mod ffi;
pub mod fork;
mod hex;
pub mod hooks;
pub mod key;
pub mod off;
pub mod op;
pub mod policy;
pub mod redis;
pub mod shm;
pub mod stats;
pub mod step;
pub mod sys;
pub mod token;

/// The version, as in `Cargo.toml`.
pub const VERSION: &str = env!("CARGO_PKG_VERSION");

/// The number of the C ABI. Bindings refuse another.
pub const ABI: u32 = 1;
