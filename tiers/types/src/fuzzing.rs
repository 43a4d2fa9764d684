//! What the fuzz target of this crate calls: the lengths that a person types.
//!
//! Aim: no text makes the parser panic, and what it accepts is the number that is written there.
//! Method: the number is worked out again, digit by digit; what is printed is parsed again.

use crate::ByteLen;

/// A byte length as text; whether it is one.
#[must_use]
pub fn byte_len(bytes: &[u8]) -> bool {
    let Ok(text) = str::from_utf8(bytes) else {
        return false;
    };
    let Ok(ByteLen(len)) = text.parse::<ByteLen>() else {
        return false;
    };
    assert_eq!(u128::from(len), expected(text));
    assert_eq!(format!("{len}").parse(), Ok(ByteLen(len)));
    assert_eq!(format!(" {len} b ").parse(), Ok(ByteLen(len)));
    // Two digits are printed, and rounding up may pass what 64 bits hold.
    if let Ok(ByteLen(printed)) = ByteLen(len).to_string().parse() {
        assert!(printed.abs_diff(len) <= len / 100, "{len} is {printed}");
    } else {
        assert!(len > u64::MAX / 100 * 99, "{len}");
    }
    true
}

/// The length that an accepted text stands for, rounded down.
fn expected(text: &str) -> u128 {
    let text = text.trim().to_ascii_lowercase();
    let unit = text.trim_start_matches(|c: char| c.is_ascii_digit() || c == '.');
    let number = text.strip_suffix(unit).unwrap_or(&text);
    let step: u128 = match unit.trim().as_bytes() {
        [_, b'b'] => 1000,
        _ => 1024,
    };
    let power = ["k", "m", "g", "t"]
        .iter()
        .position(|letter| unit.trim().starts_with(letter));
    let factor = step.pow(power.map_or(0, |place| place as u32 + 1));
    let (whole, fraction) = number.split_once('.').unwrap_or((number, ""));
    let digit = |c: char| u128::from(c.to_digit(10).unwrap_or(0));
    // What is more than nine digits behind the point is cut off.
    let parts: String = format!("{fraction:0<9}").chars().take(9).collect();
    let value = |digits: &str| digits.chars().fold(0, |sum, c| sum * 10 + digit(c));
    let whole = whole.trim_start_matches('0');
    value(whole) * factor + value(&parts) * factor / 1_000_000_000
}

#[cfg(test)]
#[path = "../../../fuzz/replay.rs"]
mod replay;

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn corpus_replayed_is_accepted_and_refused() {
        replay::all(&[("byte_len", byte_len)]);
    }
}
