//! What the fuzzer tries, with random bytes.

#[path = "../../fuzz/body.rs"]
mod body;

fn any(body: fn(&[u8])) {
    arbtest::arbtest(|u| {
        body(u.bytes(u.len())?);
        Ok(())
    })
    .budget_ms(1500);
}

#[test]
fn any_bytes_as_replies() {
    any(body::wire);
}

#[test]
fn any_bytes_as_a_call() {
    any(body::machine);
}
