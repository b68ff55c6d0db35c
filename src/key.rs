//! The names under which the backends keep a key.

use crate::hex;
use md5::{Digest, Md5};
use siphasher::sip128::SipHasher13;

/// The name that Redis holds: `namespace`, then the MD5 of `key` as 32 lower-case hex digits.
///
/// This is the form of the Perl backend that buflock replaces, so that mixed fleets exclude one another. Perl hashes
/// the UTF-8 encoding of a character string; here a key is bytes, which the bindings encode.
pub fn stored_key(namespace: &[u8], key: &[u8]) -> Vec<u8> {
    let digest = u128::from_be_bytes(Md5::digest(key).into());
    [namespace, &hex::digits(digest)].concat()
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

/// Hashes the keys of one namespace for one table: SipHash-1-3 with 128 bits over the key, under a secret that is the
/// same function of the namespace under the table's secret. So namespaces can't run into keys, and cost nothing.
#[derive(Clone, Copy, Debug)]
pub struct KeyHasher {
    keyed: SipHasher13,
    buckets: u32,
}

impl KeyHasher {
    /// A hasher for a table of `buckets` buckets whose header says `secret`.
    pub fn new(secret: [u64; 2], buckets: u32, namespace: &[u8]) -> Self {
        let secret = SipHasher13::new_with_keys(secret[0], secret[1]).hash(namespace);
        Self { keyed: SipHasher13::new_with_keys(secret.h1, secret.h2), buckets }
    }

    /// The hash of `key`.
    #[inline]
    pub fn hash(&self, key: &[u8]) -> KeyHash {
        let hash = self.keyed.hash(key);
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
