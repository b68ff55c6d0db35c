//! Tokens as text: 32 lower-case hex digits.

use crate::cancel::Uncancelled;
use crate::hex;
use rand::TryRng;
use rand::rngs::SysRng;

/// A token as callers see it. Whoever has it owns the lock.
#[derive(Clone, Copy, PartialEq, Eq)]
pub struct Token(pub [u8; Self::LENGTH]);

impl Token {
    /// Its length in bytes.
    pub const LENGTH: usize = 32;

    /// The token with these 128 bits.
    #[inline]
    pub fn from_halves(high: u64, low: u64) -> Self {
        Self(hex::digits(u128::from(high) << 64 | u128::from(low)))
    }

    /// The 128 bits of a token's text; None if it is not 32 lower-case hex digits.
    #[inline]
    #[allow(clippy::cast_possible_truncation)] // two halves
    pub fn parse(text: &[u8]) -> Option<(u64, u64)> {
        let bits = hex::value(text.try_into().ok()?)?;
        Some(((bits >> 64) as u64, bits as u64))
    }

    /// 128 bits from the kernel's random numbers, which differ between a process and its forked child.
    ///
    /// # Errors
    /// Where the kernel gives no random numbers.
    pub fn random() -> Result<Self, rand::rngs::SysError> {
        let _uncancelled = Uncancelled::new();
        let mut bits = [0; 16]; // at once: each asking is a call of the system
        SysRng.try_fill_bytes(&mut bits)?;
        Ok(Self(hex::digits(u128::from_ne_bytes(bits))))
    }
}

impl std::fmt::Debug for Token {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "Token({})", String::from_utf8_lossy(&self.0))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn text_and_bits_are_the_same_token() {
        let token = Token::from_halves(0x0123_4567_89ab_cdef, 42);
        assert_eq!(&token.0, b"0123456789abcdef000000000000002a");
        assert_eq!(Token::parse(&token.0), Some((0x0123_4567_89ab_cdef, 42)));
        for other in
            [&b""[..], &token.0[..31], b"0123456789abcdef000000000000002a0", b"0123456789ABCDEF000000000000002A"]
        {
            assert_eq!(Token::parse(other), None);
        }
    }

    #[test]
    fn random_tokens_differ() {
        assert_ne!(Token::random().unwrap(), Token::random().unwrap());
    }
}
