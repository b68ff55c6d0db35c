//! 128 bits as 32 lower-case hex digits, and back. Done in every call, so on x86-64 with its vectors: by bytes it takes
//! four times as long as the compare-and-swap that takes the lock.

#[cfg(not(target_arch = "x86_64"))]
pub use by_bytes::{digits, value};
#[cfg(target_arch = "x86_64")]
pub use by_vectors::{digits, value};

#[cfg(any(test, not(target_arch = "x86_64")))]
mod by_bytes {
    /// The digits of `value`.
    pub fn digits(value: u128) -> [u8; 32] {
        let mut digits = [0; 32];
        for (pair, byte) in digits.chunks_exact_mut(2).zip(value.to_be_bytes()) {
            pair.copy_from_slice(&[byte >> 4, byte & 15].map(|digit| b"0123456789abcdef"[usize::from(digit)]));
        }
        digits
    }

    /// The value of `digits`; None if there are others among them.
    pub fn value(digits: &[u8; 32]) -> Option<u128> {
        digits.iter().try_fold(0, |value, digit| {
            let digit = match digit {
                b'0'..=b'9' => digit - b'0',
                b'a'..=b'f' => digit - b'a' + 10,
                _ => return None,
            };
            Some(value << 4 | u128::from(digit))
        })
    }
}

#[cfg(target_arch = "x86_64")]
mod by_vectors {
    use std::arch::x86_64::*; // SSE2, which every x86-64 has

    const LETTER: i8 = (b'a' - b'9' - 1).cast_signed(); // from behind '9' to 'a'

    /// The digits of `value`.
    #[inline]
    pub fn digits(value: u128) -> [u8; 32] {
        // SAFETY: both are 16 bytes, of which every pattern is a value.
        let bytes: __m128i = unsafe { std::mem::transmute(value.to_be_bytes()) };
        // SAFETY: x86-64 has these instructions.
        let halves = unsafe {
            let low_bits = _mm_set1_epi8(15);
            let high = _mm_and_si128(_mm_srli_epi16::<4>(bytes), low_bits);
            let low = _mm_and_si128(bytes, low_bits);
            [_mm_unpacklo_epi8(high, low), _mm_unpackhi_epi8(high, low)].map(|numbers| {
                let letters = _mm_cmpgt_epi8(numbers, _mm_set1_epi8(9));
                let digits = _mm_add_epi8(numbers, _mm_set1_epi8(b'0'.cast_signed()));
                _mm_add_epi8(digits, _mm_and_si128(letters, _mm_set1_epi8(LETTER)))
            })
        };
        // SAFETY: both are 32 bytes, of which every pattern is a value.
        unsafe { std::mem::transmute(halves) }
    }

    /// The value of `digits`; None if there are others among them.
    #[inline]
    pub fn value(digits: &[u8; 32]) -> Option<u128> {
        // SAFETY: both are 32 bytes, of which every pattern is a value.
        let halves: [__m128i; 2] = unsafe { std::mem::transmute(*digits) };
        // SAFETY: x86-64 has these instructions.
        unsafe {
            let [high, low] = halves.map(|text| {
                let from = |first: u8| _mm_sub_epi8(text, _mm_set1_epi8(first.cast_signed()));
                let below = |number, limit| {
                    let least = _mm_cmpgt_epi8(number, _mm_set1_epi8(-1));
                    _mm_and_si128(least, _mm_cmpgt_epi8(_mm_set1_epi8(limit), number))
                };
                let (number, letter) = (from(b'0'), from(b'a'));
                let (is_number, is_letter) = (below(number, 10), below(letter, 6));
                let letter = _mm_add_epi8(letter, _mm_set1_epi8(10));
                let digit = _mm_or_si128(_mm_and_si128(is_number, number), _mm_and_si128(is_letter, letter));
                // In each 16-bit lane the first digit is the low byte: 4 bits up, beside the second from 8 bits down.
                let pair = _mm_or_si128(_mm_slli_epi16::<4>(digit), _mm_srli_epi16::<8>(digit));
                (_mm_and_si128(pair, _mm_set1_epi16(0xff)), _mm_or_si128(is_number, is_letter))
            });
            let all_good = _mm_movemask_epi8(_mm_and_si128(high.1, low.1)) == 0xffff;
            let bytes: [u8; 16] = std::mem::transmute(_mm_packus_epi16(high.0, low.0));
            all_good.then(|| u128::from_be_bytes(bytes))
        }
    }
}

#[cfg(test)]
mod tests {
    #[test]
    fn digits_and_value_are_one_anothers_opposite() {
        arbtest::arbtest(|u| {
            let value: u128 = u.arbitrary()?;
            let digits = super::digits(value);
            assert_eq!(std::str::from_utf8(&digits), Ok(format!("{value:032x}").as_str()));
            assert_eq!((super::value(&digits), super::by_bytes::digits(value)), (Some(value), digits));
            Ok(())
        });
    }

    #[test]
    fn no_other_byte_is_a_digit() {
        let good = *b"0123456789abcdef0123456789abcdef";
        assert!(super::value(&good).is_some());
        for place in 0..32 {
            for byte in 0..=255 {
                let mut digits = good;
                digits[place] = byte;
                let is_digit = matches!(byte, b'0'..=b'9' | b'a'..=b'f');
                assert_eq!(super::value(&digits).is_some(), is_digit, "byte {byte} at {place}");
                assert_eq!(super::value(&digits), super::by_bytes::value(&digits));
            }
        }
    }
}
