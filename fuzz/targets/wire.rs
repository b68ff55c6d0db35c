#![no_main]

#[path = "../body.rs"]
#[allow(dead_code)] // of the other target
mod body;

libfuzzer_sys::fuzz_target!(|bytes: &[u8]| body::wire(bytes));
