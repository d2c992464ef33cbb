//! Numbers as text, appended to a byte buffer: for headers and the access log, on every request.
//!
//! `core::fmt` takes ten times the instructions for the same digits, which shows where a whole request costs a few thousand.
//! Everything written less often uses `core::fmt`.

use std::io::Write as _;
use std::time::Duration;

/// Appends an integer in decimal.
pub fn int(out: &mut Vec<u8>, number: u64) {
    match number {
        0..=9 => out.push(b'0' + number as u8),
        10..=99 => fraction::<2>(out, number),
        100..=999 => fraction::<3>(out, number),
        _ => long_int(out, number),
    }
}

fn long_int(out: &mut Vec<u8>, number: u64) {
    let (mut digits, mut rest, mut used) = ([b'0'; 20], number, 0);
    for digit in digits.iter_mut().rev() {
        *digit += (rest % 10) as u8;
        (rest, used) = (rest / 10, used + 1);
        if rest == 0 {
            break;
        }
    }
    out.extend_from_slice(&digits[digits.len() - used..]);
}

/// Appends the low `digits` (at most 32) hexadecimal digits of a number, in lower case.
pub fn hex(out: &mut Vec<u8>, number: u128, digits: usize) {
    let all = hex_digits(number);
    out.extend_from_slice(&all[all.len().saturating_sub(digits)..]);
}

/// All hexadecimal digits of a number, in lower case.
pub fn hex_digits(number: u128) -> [u8; 32] {
    let mut all = [0; 32];
    for (digits, shift) in all.as_chunks_mut().0.iter_mut().zip([96, 64, 32, 0]) {
        *digits = hex_word((number >> shift) as u32);
    }
    all
}

/// The eight digits of a number, all at once: one in each byte of a word.
fn hex_word(number: u32) -> [u8; 8] {
    let mut word = u64::from(number);
    for (shift, kept) in [(16, 0x0000_ffff_0000_ffff), (8, 0x00ff_00ff_00ff_00ff), (4, ONES * 0xf)] {
        word = (word | word << shift) & kept;
    }
    let is_letter = (word + ONES * 6) >> 4 & ONES;
    (word + ONES * u64::from(b'0') + is_letter * u64::from(b'a' - b'0' - 10)).to_be_bytes()
}

const ONES: u64 = 0x0101_0101_0101_0101;

/// Bytes as hexadecimal digits, in lower case.
pub fn hex_of(bytes: &[u8]) -> String {
    let mut text = Vec::with_capacity(2 * bytes.len());
    bytes.iter().for_each(|byte| hex(&mut text, u128::from(*byte), 2));
    String::from_utf8(text).unwrap_or_default()
}

/// The first 128 bits of a hash as hexadecimal digits, in lower case.
pub fn half_of(hash: &[u8; 32]) -> String {
    let half = hash.first_chunk().copied().map_or(0, u128::from_be_bytes);
    String::from_utf8(hex_digits(half).into()).unwrap_or_default()
}

/// The bytes of hexadecimal digits; `None` where they are none.
pub fn bytes_of(hex: &str) -> Option<Vec<u8>> {
    let (pairs, []) = hex.as_bytes().as_chunks::<2>() else { return None };
    let nibble = |digit: u8| char::from(digit).to_digit(16);
    let byte = |[high, low]: &[u8; 2]| u8::try_from(16 * nibble(*high)? + nibble(*low)?).ok();
    pairs.iter().map(byte).collect()
}

/// Appends a number with `N` digits after the point, at least one: `-0.25`.
pub fn decimal<const N: usize>(out: &mut Vec<u8>, number: f64) {
    let unit = const { 10_u64.pow(N as u32) };
    let units = (number.abs() * unit as f64).round_ties_even();
    if units.is_nan() || units >= MAX_EXACT {
        // Writing into memory does not fail.
        let _ = write!(out, "{number:.N$}");
        return;
    }
    if number.is_sign_negative() {
        out.push(b'-');
    }
    int(out, units as u64 / unit);
    out.push(b'.');
    fraction::<N>(out, units as u64 % unit);
}

/// Appends a duration in milliseconds, to the microsecond: `12.345`.
pub fn millis(out: &mut Vec<u8>, span: Duration) {
    let micros = u64::try_from(span.as_micros()).unwrap_or(u64::MAX);
    int(out, micros / 1000);
    let [a, b, c] = places::<3>(micros % 1000);
    out.extend_from_slice(&[b'.', a, b, c]);
}

/// Appends a duration in seconds, rounded to the microsecond, without trailing zeros: `1.25`.
pub fn seconds(out: &mut Vec<u8>, span: Duration) {
    let micros = u64::from(span.subsec_nanos() + 500) / 1000;
    int(out, span.as_secs() + micros / 1_000_000);
    let [a, b, c, d, e, f] = places::<6>(micros % 1_000_000);
    let text = [b'0', b'.', a, b, c, d, e, f];
    let zeros = (u64::from_be_bytes(text) ^ u64::from_be_bytes(*b"0.000000")).trailing_zeros() / 8;
    out.extend_from_slice(&text[1..text.len() - zeros.min(5) as usize]);
}

/// Appends the last `N` digits of a number, leading zeros included.
pub fn fraction<const N: usize>(out: &mut Vec<u8>, number: u64) {
    out.extend_from_slice(&places::<N>(number));
}

fn places<const N: usize>(mut number: u64) -> [u8; N] {
    let mut digits = [b'0'; N];
    for digit in digits.iter_mut().rev() {
        *digit += (number % 10) as u8;
        number /= 10;
    }
    digits
}

/// Floats below this tell whole numbers apart.
const MAX_EXACT: f64 = 9e15;

#[cfg(test)]
mod tests {
    use super::*;

    fn written(write: impl FnOnce(&mut Vec<u8>)) -> String {
        let mut out = b"=".to_vec();
        write(&mut out);
        String::from_utf8(out).unwrap()
    }

    #[test]
    fn digits_are_those_of_the_standard_formatter() {
        for number in [0, 1, 9, 10, 99, 100, 255, 999, 1000, 4096, u64::MAX] {
            assert_eq!(written(|out| int(out, number)), format!("={number}"));
            assert_eq!(written(|out| hex(out, u128::from(number), 16)), format!("={number:016x}"));
            assert_eq!(written(|out| fraction::<3>(out, number)), format!("={:03}", number % 1000));
        }
        assert_eq!(written(|out| hex(out, u128::MAX - 5, 32)), format!("={:032x}", u128::MAX - 5));
    }

    #[test]
    fn digits_give_the_bytes_back_and_nothing_else_is_taken() {
        let bytes: Vec<u8> = (0..=255).collect();
        assert_eq!(bytes_of(&hex_of(&bytes)), Some(bytes));
        assert_eq!(bytes_of(""), Some(vec![]));
        ["0", "zz", "+1", "é"].iter().for_each(|none| assert_eq!(bytes_of(none), None, "{none}"));
    }

    #[test]
    fn decimals_are_those_of_the_standard_formatter() {
        for number in [0.0, -0.0, 0.04, 0.25, -1.06, 12.349, 1e9 + 0.1, 1e20, -1e300, f64::NAN, f64::INFINITY]
        {
            assert_eq!(written(|out| decimal::<1>(out, number)), format!("={number:.1}"));
            assert_eq!(written(|out| decimal::<6>(out, number)), format!("={number:.6}"));
        }
    }

    #[test]
    fn durations() {
        for (micros, in_ms, in_seconds) in [
            (0, "=0.000", "=0.0"),
            (1, "=0.001", "=0.000001"),
            (195_000, "=195.000", "=0.195"),
            (2_000_000, "=2000.000", "=2.0"),
            (61_020_300, "=61020.300", "=61.0203"),
        ] {
            let span = Duration::from_micros(micros);
            assert_eq!(written(|out| millis(out, span)), in_ms);
            assert_eq!(written(|out| seconds(out, span)), in_seconds);
        }
        assert_eq!(written(|out| seconds(out, Duration::from_nanos(1_999_999_500))), "=2.0");
    }
}
