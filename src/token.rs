//! Tokens as text: 32 lower-case hex digits.

use rand::TryRng;
use rand::rngs::SysRng;

/// A token as callers see it. Whoever has it owns the lock.
#[derive(Clone, Copy, PartialEq, Eq)]
pub struct Token(pub [u8; 32]);

impl Token {
    /// The token with these 128 bits.
    #[inline]
    pub fn from_halves(high: u64, low: u64) -> Self {
        let mut text = [0; 32];
        text[..16].copy_from_slice(&hex(high));
        text[16..].copy_from_slice(&hex(low));
        Self(text)
    }

    /// The 128 bits of a token's text; None if it is not 32 lower-case hex digits.
    #[inline]
    pub fn parse(text: &[u8]) -> Option<(u64, u64)> {
        let text: &[u8; 32] = text.try_into().ok()?;
        let (high, low) = (text[..16].try_into().ok()?, text[16..].try_into().ok()?);
        Some((unhex(high)?, unhex(low)?))
    }

    /// 128 bits from the kernel's random numbers, which differ between a process and its forked child.
    ///
    /// # Errors
    /// Where the kernel gives no random numbers.
    pub fn random() -> Result<Self, rand::rngs::SysError> {
        Ok(Self::from_halves(SysRng.try_next_u64()?, SysRng.try_next_u64()?))
    }
}

impl std::fmt::Debug for Token {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "Token({})", String::from_utf8_lossy(&self.0))
    }
}

// Eight digits at a time, a byte of a word each: tokens are written and read in every call, and a loop over the
// digits costs as much as the lock itself.
const ONES: u64 = 0x0101_0101_0101_0101;

#[inline]
fn hex(value: u64) -> [u8; 16] {
    let mut text = [0; 16];
    text[..8].copy_from_slice(&hex_digits(value >> 32).to_be_bytes());
    text[8..].copy_from_slice(&hex_digits(value & 0xffff_ffff).to_be_bytes());
    text
}

/// The 8 digits of a number below 2^32, first digit in the highest byte.
#[inline]
fn hex_digits(value: u64) -> u64 {
    let spread = (value | value << 16) & 0x0000_ffff_0000_ffff;
    let spread = (spread | spread << 8) & 0x00ff_00ff_00ff_00ff;
    let digits = (spread | spread << 4) & 0x0f0f_0f0f_0f0f_0f0f;
    let letters = (digits + 6 * ONES) >> 4 & ONES; // 1 where the digit is 10 or more
    digits + 0x30 * ONES + letters * 0x27
}

#[inline]
fn unhex(text: &[u8; 16]) -> Option<u64> {
    let high = unhex_digits(u64::from_be_bytes(text[..8].try_into().ok()?))?;
    let low = unhex_digits(u64::from_be_bytes(text[8..].try_into().ok()?))?;
    Some(high << 32 | low)
}

#[inline]
fn unhex_digits(text: u64) -> Option<u64> {
    let letters = text >> 6 & ONES; // 1 for 'a'..'f'
    let digits = (text & 0x0f0f_0f0f_0f0f_0f0f) + letters * 9;
    let packed = (digits | digits >> 4) & 0x00ff_00ff_00ff_00ff;
    let packed = (packed | packed >> 8) & 0x0000_ffff_0000_ffff;
    let packed = (packed | packed >> 16) & 0xffff_ffff;
    // Writing it again proves that the text was what it should be, whatever the bytes were.
    (hex_digits(packed) == text).then_some(packed)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn text_and_bits_are_the_same_token() {
        arbtest::arbtest(|u| {
            let (high, low) = (u.arbitrary()?, u.arbitrary()?);
            let token = Token::from_halves(high, low);
            assert_eq!(std::str::from_utf8(&token.0).unwrap(), format!("{high:016x}{low:016x}"));
            assert_eq!(Token::parse(&token.0), Some((high, low)));
            Ok(())
        });
    }

    #[test]
    fn nothing_else_is_a_token() {
        let good = *b"0123456789abcdef0123456789abcdef";
        assert!(Token::parse(&good).is_some());
        assert_eq!(Token::parse(&good[..31]), None);
        assert_eq!(Token::parse(b""), None);
        for place in 0..32 {
            for byte in (0..=255).filter(|b| !matches!(b, b'0'..=b'9' | b'a'..=b'f')) {
                let mut bad = good;
                bad[place] = byte;
                assert_eq!(Token::parse(&bad), None, "byte {byte} at {place}");
            }
        }
    }

    #[test]
    fn random_tokens_differ() {
        assert_ne!(Token::random().unwrap(), Token::random().unwrap());
    }
}
