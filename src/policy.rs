//! Lengths of time: how they are read, rounded and limited.

use crate::error::ArgumentFault;

/// As `ttl_ms` or `wait_ms`: the option of the lock.
pub const DEFAULT: u32 = u32::MAX;

/// The longest lease, and the longest time any option can say: 30 days in ms.
pub const MAX_MS: u32 = 30 * 24 * 60 * 60 * 1000;

/// Nanoseconds in a ms.
pub const NS_PER_MS: u64 = 1_000_000;

/// Seconds, as a decimal number with or without fraction and exponent, in ms, rounded up. None: not a number, negative,
/// or more than 30 days.
///
/// The digits are counted, not converted to floating point, where 0.07 s is more than 70 ms. Exponents are taken
/// because Perl and Lua print small numbers so.
pub fn milliseconds(text: &str) -> Option<u32> {
    let (mantissa, exponent) = match text.split_once(['e', 'E']) {
        Some((mantissa, exponent)) => (mantissa, exponent.parse::<i32>().ok()?),
        None => (text, 0),
    };
    let mantissa = mantissa.strip_prefix('+').unwrap_or(mantissa);
    let (whole, fraction) = mantissa.split_once('.').unwrap_or((mantissa, ""));
    let digits = || whole.bytes().chain(fraction.bytes());
    if digits().next().is_none() || !digits().all(|digit| digit.is_ascii_digit()) {
        return None;
    }
    // How many digits stand before the point, when the number is in ms.
    let point = i64::try_from(whole.len()).ok()?.checked_add(i64::from(exponent))?.checked_add(3)?;
    let mut ms = 0u64;
    let mut rest = false;
    for (place, digit) in (0i64..).zip(digits()) {
        let digit = u64::from(digit - b'0');
        if place < point {
            ms = (ms * 10 + digit).min(u64::from(u32::MAX)); // a cap above MAX_MS, so that nothing overflows
        } else {
            rest |= digit != 0;
        }
    }
    let missing = point - i64::try_from(whole.len() + fraction.len()).ok()?;
    if ms != 0 {
        for _ in 0..missing.clamp(0, 20) {
            ms = (ms * 10).min(u64::from(u32::MAX));
        }
    }
    u32::try_from(ms + u64::from(rest)).ok().filter(|ms| *ms <= MAX_MS)
}

/// A lease that a caller asks for, in ms.
///
/// # Errors
/// 0, or more than 30 days.
pub fn lease(ttl_ms: u32, default: u32) -> Result<u32, ArgumentFault> {
    match ttl_ms {
        DEFAULT => Ok(default),
        0 => Err(ArgumentFault::ZeroTtl),
        ttl if ttl > MAX_MS => Err(ArgumentFault::LongTtl(ttl)),
        ttl => Ok(ttl),
    }
}

/// A wait that a caller asks for, in ms.
pub fn wait(wait_ms: u32, default: u32) -> u32 {
    if wait_ms == DEFAULT { default } else { wait_ms }
}

/// Nanoseconds as ms, rounded up, so that what is left never looks like nothing.
pub fn ms_left(ns: u64) -> u32 {
    u32::try_from(ns.div_ceil(NS_PER_MS)).unwrap_or(u32::MAX)
}

/// Nanoseconds as ms, rounded down: time that has passed.
pub fn ms_passed(ns: u64) -> u32 {
    u32::try_from(ns / NS_PER_MS).unwrap_or(u32::MAX)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn seconds_are_rounded_up_to_ms() {
        let cases = [
            ("0", 0),
            ("0.0004", 1),
            ("0.001", 1),
            ("0.0011", 2),
            ("0.07", 70),
            ("1", 1000),
            ("1.", 1000),
            (".5", 500),
            ("+2.5", 2500),
            ("1e-05", 1),
            ("1E3", 1_000_000),
            ("25e-1", 2500),
            ("2592000", MAX_MS),
            ("0e99", 0),
            ("0000000000000000000000000000001", 1000),
            ("1e-99", 1),
        ];
        for (text, ms) in cases {
            assert_eq!(milliseconds(text), Some(ms), "{text}");
        }
    }

    #[test]
    fn other_texts_are_no_time() {
        let long = "9".repeat(400);
        for text in [
            "",
            ".",
            "-1",
            "-0",
            "inf",
            "-inf",
            "NaN",
            "nan",
            "10s",
            "1e",
            "e3",
            "1 ",
            " 1",
            "1e1.5",
            "0x10",
            "1_000",
            "2592000.001",
            "1e30",
            "1e2147483647",
            "1e99999999999",
            "1,5",
            &long,
        ] {
            assert_eq!(milliseconds(text), None, "{text}");
        }
    }

    #[test]
    fn any_number_of_ms_survives() {
        arbtest::arbtest(|u| {
            let ms: u32 = u.int_in_range(0..=MAX_MS)?;
            let (s, rest) = (ms / 1000, ms % 1000);
            assert_eq!(milliseconds(&format!("{s}.{rest:03}")), Some(ms));
            assert_eq!(milliseconds(&format!("{ms}e-3")), Some(ms));
            if ms < MAX_MS {
                assert_eq!(milliseconds(&format!("{s}.{rest:03}0001")), Some(ms + 1));
            }
            let text: String = u.arbitrary()?;
            let _ = milliseconds(&text); // whatever it is, no panic
            Ok(())
        });
    }
}
