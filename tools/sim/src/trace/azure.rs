//! Decodes the CSV of Azure's language model inference traces: arrival and lengths per request.
//!
//! The traces hold no block ids: each request gets fresh ones, one per 512 tokens of context, so
//! nothing is ever reused. Timestamps count from the first row.

#![deny(clippy::indexing_slicing)]

use super::TraceRequest;
use super::error::Fault;
use super::lines::LineDecoder;
use super::requests::Requests;

/// First line of the file.
pub(super) const HEADER: &str = "TIMESTAMP,ContextTokens,GeneratedTokens";

/// As in the Mooncake traces.
const BLOCK_TOKENS: u32 = 512;

const NANOS_PER_SECOND: i128 = 1_000_000_000;
const NANOS_PER_MS: i128 = 1_000_000;

/// Decoder of the CSV lines.
#[derive(Debug, Default)]
pub(super) struct AzureDecoder {
    first_nanos: Option<i128>,
    next_block: u64,
}

impl LineDecoder for AzureDecoder {
    fn decode(&mut self, line: &str, requests: &mut Requests) -> Result<(), Fault> {
        if line == HEADER {
            return Ok(());
        }
        let mut fields = line.split(',').map(str::trim);
        let (Some(time), Some(input), Some(output), None) =
            (fields.next(), fields.next(), fields.next(), fields.next())
        else {
            return Err(Fault::malformed(
                "three fields `time,context,generated`",
                line,
            ));
        };
        let nanos = parse_nanos(time).ok_or_else(|| {
            Fault::malformed("a TIMESTAMP `YYYY-MM-DD HH:MM:SS[.fraction][+HH:MM]`", time)
        })?;
        let since_first = nanos - *self.first_nanos.get_or_insert(nanos);
        let timestamp_ms = u64::try_from(since_first.div_euclid(NANOS_PER_MS))
            .map_err(|_| Fault::malformed("a TIMESTAMP not before that of the first row", time))?;
        let input_tokens = tokens(input, "ContextTokens to be an integer of 32 bits")?;
        let output_tokens = tokens(output, "GeneratedTokens to be an integer of 32 bits")?;

        let count = u64::from(input_tokens.div_ceil(BLOCK_TOKENS));
        let blocks = self.next_block..self.next_block + count;
        self.next_block = blocks.end;
        requests.push(count, || TraceRequest {
            timestamp_ms,
            input_tokens,
            output_tokens,
            blocks: blocks.collect(),
            is_chain: true,
        })
    }
}

fn tokens(text: &str, expected: &'static str) -> Result<u32, Fault> {
    text.parse().map_err(|_| Fault::malformed(expected, text))
}

/// Nanoseconds since 1970 of `2023-11-16 18:17:03.9799600`; the 2024 traces add `+00:00`.
fn parse_nanos(text: &str) -> Option<i128> {
    let (date, time) = text.split_once([' ', 'T'])?;
    let (time, offset) = split_offset(time)?;
    let mut date = date.split('-');
    let year = number(date.next()?, 4, 9999)?;
    let month = number(date.next()?, 2, 12)?;
    let day = number(date.next()?, 2, 31)?;
    let (clock, fraction) = time.split_once('.').unwrap_or((time, "0"));
    let mut clock = clock.split(':');
    let hour = number(clock.next()?, 2, 23)?;
    let minute = number(clock.next()?, 2, 59)?;
    // A leap second is written 60.
    let second = number(clock.next()?, 2, 60)?;
    if date.next().is_some() || clock.next().is_some() || month < 1 || day < 1 {
        return None;
    }
    let seconds = days_since_1970(year, month, day) * 86_400 + hour * 3600 + minute * 60 + second;
    Some(i128::from(seconds - offset) * NANOS_PER_SECOND + fraction_nanos(fraction)?)
}

/// Splits `18:17:03.97+02:00` into the time and the seconds east of UTC.
fn split_offset(time: &str) -> Option<(&str, i64)> {
    if let Some(utc) = time.strip_suffix('Z') {
        return Some((utc, 0));
    }
    let Some(at) = time.find(['+', '-']) else {
        return Some((time, 0));
    };
    let (time, offset) = time.split_at_checked(at)?;
    let sign = if offset.starts_with('-') { -1 } else { 1 };
    let (hours, minutes) = offset.get(1..)?.split_once(':')?;
    Some((
        time,
        sign * (number(hours, 2, 23)? * 3600 + number(minutes, 2, 59)? * 60),
    ))
}

/// A decimal of exactly `digits` digits and at most `max`.
fn number(text: &str, digits: usize, max: i64) -> Option<i64> {
    let is_digits = text.len() == digits && text.bytes().all(|byte| byte.is_ascii_digit());
    let value = is_digits.then(|| text.parse().ok())??;
    (value <= max).then_some(value)
}

/// `9799600` after the point is 979,960,000 ns.
fn fraction_nanos(text: &str) -> Option<i128> {
    let digits = u32::try_from(text.len())
        .ok()
        .filter(|digits| (1..=9).contains(digits))?;
    let value = number(text, text.len(), 999_999_999)?;
    Some(i128::from(value) * 10_i128.pow(9 - digits))
}

/// Days from 1970-01-01 to a date of the Gregorian calendar. Years run from March here, so that
/// the leap day is the last one: 2023-11-16 is day 19,677.
const fn days_since_1970(year: i64, month: i64, day: i64) -> i64 {
    let (year, month) = if month <= 2 {
        (year - 1, month + 9)
    } else {
        (year, month - 3)
    };
    let leap_days = year.div_euclid(4) - year.div_euclid(100) + year.div_euclid(400);
    // 153 days in each five months from March; 719,469 days before 1970 counted this way.
    year * 365 + leap_days + (month * 153 + 2) / 5 + day - 719_469
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn days_since_1970_known_dates_are_right() {
        assert_eq!(days_since_1970(1970, 1, 1), 0);
        assert_eq!(days_since_1970(1969, 12, 31), -1);
        assert_eq!(days_since_1970(2000, 3, 1), 11_017);
        assert_eq!(days_since_1970(2023, 11, 16), 19_677);
        assert_eq!(days_since_1970(2024, 2, 29), 19_782);
    }

    #[test]
    fn parse_nanos_fractions_and_offsets_are_exact() {
        let nanos = |text| parse_nanos(text).unwrap();
        assert_eq!(nanos("1970-01-01 00:00:01.0000001"), 1_000_000_100);
        assert_eq!(nanos("1970-01-01 00:00:01.5"), 1_500_000_000);
        assert_eq!(nanos("1970-01-02 00:00:00"), 86_400 * NANOS_PER_SECOND);
        assert_eq!(
            nanos("1970-01-01T01:00:00.000000001Z"),
            3600 * NANOS_PER_SECOND + 1
        );
        assert_eq!(nanos("1970-01-01 02:00:00.1+02:00"), 100_000_000);
        assert_eq!(nanos("1970-01-01 00:00:00-00:30"), 1800 * NANOS_PER_SECOND);
    }

    #[test]
    fn parse_nanos_malformed_is_none() {
        for text in [
            "",
            "2023-11-16",
            "2023-13-16 00:00:00",
            "2023-00-16 00:00:00",
            "2023-11-00 00:00:00",
            "2023-11-16 24:00:00",
            "2023-11-16 00:60:00",
            "2023-11-16 00:00",
            "2023-11-16 00:00:00:00",
            "2023-11-16-1 00:00:00",
            "2023-11-16 00:00:00.",
            "2023-11-16 00:00:00.1234567890",
            "2023-11-16 00:00:00.12x",
            "2023-11-16 00:00:00+0200",
            "2023-11-16 00:00:00+é0:00",
            "+023-11-16 00:00:00",
        ] {
            assert_eq!(parse_nanos(text), None, "{text:?}");
        }
    }
}
