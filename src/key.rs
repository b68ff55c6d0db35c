//! The names under which the backends keep a key.

use md5::{Digest, Md5};
use siphasher::sip128::{Hasher128, SipHasher13};
use std::hash::Hasher;

/// The name that Redis holds: `namespace`, then the MD5 of `key` as 32 lower-case hex digits.
///
/// This is the form of the Perl backend that buflock replaces, so that mixed fleets exclude one another. Perl hashes
/// the UTF-8 encoding of a character string; here a key is bytes, which the bindings encode.
pub fn stored_key(namespace: &[u8], key: &[u8]) -> Vec<u8> {
    let mut stored = namespace.to_vec();
    for byte in Md5::digest(key) {
        stored.extend([byte >> 4, byte & 15].map(|digit| b"0123456789abcdef"[usize::from(digit)]));
    }
    stored
}

/// Where a key may live in a shared-memory table, and what tells it from the other keys there.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct KeyHash {
    /// The key's first bucket. Its fence counter is here, wherever the slot is.
    pub first: u32,
    /// The other bucket; the same as `first` in a table of one bucket.
    pub second: u32,
    /// 96 bits that the slot keeps.
    pub tags: [u32; 3],
}

/// Hashes the keys of one namespace for one table: SipHash-1-3 with 128 bits, under the table's secret, over
/// `len(namespace) as u32 LE, namespace, key`.
#[derive(Clone, Copy, Debug)]
pub struct KeyHasher {
    prefix: SipHasher13,
    buckets: u32,
}

impl KeyHasher {
    /// A hasher for a table of `buckets` buckets whose header says `secret`.
    pub fn new(secret: [u64; 2], buckets: u32, namespace: &[u8]) -> Self {
        let mut prefix = SipHasher13::new_with_keys(secret[0], secret[1]);
        let length = u32::try_from(namespace.len()).unwrap_or(u32::MAX);
        prefix.write(&length.to_le_bytes());
        prefix.write(namespace);
        Self { prefix, buckets }
    }

    /// The hash of `key`.
    #[inline]
    pub fn hash(&self, key: &[u8]) -> KeyHash {
        let mut hasher = self.prefix;
        hasher.write(key);
        let hash = hasher.finish128();
        let (low, high) = (hash.h1, hash.h2);
        let first = scale(low_half(low), self.buckets);
        let mut second = scale(high_half((low ^ high).wrapping_mul(0x9e37_79b9_7f4a_7c15)), self.buckets);
        if second == first {
            second = (first + 1) % self.buckets;
        }
        KeyHash { first, second, tags: [high_half(low), low_half(high), high_half(high)] }
    }
}

/// `value`, taken as a fraction of 2^32, of `count`.
#[inline]
fn scale(value: u32, count: u32) -> u32 {
    high_half(u64::from(value) * u64::from(count))
}

#[inline]
#[allow(clippy::cast_possible_truncation)] // a half is what is asked for
fn low_half(value: u64) -> u32 {
    value as u32
}

#[inline]
fn high_half(value: u64) -> u32 {
    low_half(value >> 32)
}
