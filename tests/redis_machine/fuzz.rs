//! What the fuzzer tries, with random bytes that are the same each time.

#[path = "../../fuzz/body.rs"]
mod body;
#[path = "../torture/random.rs"]
#[allow(dead_code)]
mod random;

use random::Random;

fn byte(random: &Random) -> u8 {
    u8::try_from(random.below(256)).expect("a byte")
}

#[test]
pub fn any_bytes_as_replies() {
    for seed in 0..5_000 {
        let random = Random::new(seed);
        let mut bytes = vec![byte(&random)];
        for _ in 0..random.below(20) {
            match random.below(8) {
                0 => bytes.push(byte(&random)),
                _ => bytes.extend(body::REPLIES[random.index(body::REPLIES.len())].0),
            }
        }
        body::wire(&bytes);
    }
}

#[test]
pub fn any_bytes_as_a_call() {
    for seed in 0..20_000 {
        let random = Random::new(seed);
        let bytes: Vec<_> = (0..random.below(200)).map(|_| byte(&random)).collect();
        body::machine(&bytes);
    }
}
