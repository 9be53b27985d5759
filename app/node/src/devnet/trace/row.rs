//! One row: its three columns and the calendar.

use super::error::RowFault;
use super::lines::HEADER;

/// Largest token count accepted in either column.
pub const MAX_TOKENS: u32 = 10_000_000;

/// A point in time: seconds since 1970 and nanoseconds, ordered.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub(super) struct Instant {
    seconds: u64,
    nanos: u32,
}

impl Instant {
    /// Microseconds from `earlier`, rounded down; years end at 9999, so this fits with room to spare.
    pub(super) fn micros_since(self, earlier: Instant) -> u64 {
        let nanos = |at: Instant| u128::from(at.seconds) * 1_000_000_000 + u128::from(at.nanos);
        u64::try_from(nanos(self).saturating_sub(nanos(earlier)) / 1000).unwrap_or(u64::MAX)
    }
}

pub(super) struct Row {
    pub(super) at: Instant,
    pub(super) timestamp: String,
    pub(super) context_tokens: u32,
    pub(super) generated_tokens: u32,
}

/// A fault inside a line, before file and line number are known.
pub(super) struct Fault {
    pub(super) column: usize,
    pub(super) fault: RowFault,
    pub(super) expected: String,
    pub(super) found: String,
}

pub(super) fn parse_row(line: &[u8]) -> Result<Row, Fault> {
    let mut fields = [(0usize, &line[..0]); 3];
    let mut count = 0;
    let mut start = 0;
    for (at, byte) in line.iter().chain(b",").enumerate() {
        if *byte != b',' {
            continue;
        }
        if count == 3 {
            return Err(Fault {
                column: start,
                fault: RowFault::Columns,
                expected: "the end of the row after 3 columns".to_owned(),
                found: quoted(&line[start - 1..]),
            });
        }
        fields[count] = (start, &line[start..at]);
        count += 1;
        start = at + 1;
    }
    if count < 3 {
        let found = match (line.is_empty(), count) {
            (true, _) => "an empty line".to_owned(),
            (_, 1) => "1 column".to_owned(),
            _ => format!("{count} columns"),
        };
        return Err(Fault {
            column: line.len() + 1,
            fault: RowFault::Columns,
            expected: format!("3 columns, {HEADER}"),
            found,
        });
    }
    let at = parse_timestamp(fields[0].1)?;
    let context_tokens = parse_tokens(fields[1], RowFault::ContextTokens, RowFault::ContextTokensRange)?;
    let generated_tokens =
        parse_tokens(fields[2], RowFault::GeneratedTokens, RowFault::GeneratedTokensRange)?;
    let timestamp = String::from_utf8_lossy(fields[0].1).into_owned();
    Ok(Row { at, timestamp, context_tokens, generated_tokens })
}

fn parse_tokens((start, field): (usize, &[u8]), form: RowFault, range: RowFault) -> Result<u32, Fault> {
    let expected = || format!("a whole number from 0 to {MAX_TOKENS}");
    let bad_digit = field.iter().position(|byte| !byte.is_ascii_digit());
    if let Some(at) = bad_digit.or(field.is_empty().then_some(0)) {
        return Err(Fault {
            column: start + at + 1,
            fault: form,
            expected: expected(),
            found: quoted(field),
        });
    }
    let value = field
        .iter()
        .fold(0u64, |value, byte| value.saturating_mul(10).saturating_add(u64::from(byte - b'0')));
    match u32::try_from(value) {
        Ok(value) if value <= MAX_TOKENS => Ok(value),
        _ => Err(Fault { column: start + 1, fault: range, expected: expected(), found: quoted(field) }),
    }
}

/// Reads `YYYY-MM-DD HH:MM:SS`, then optionally `.` and 1 to 9 digits, then optionally `+00:00`.
fn parse_timestamp(field: &[u8]) -> Result<Instant, Fault> {
    const PATTERN: &[u8] = b"dddd-dd-dd dd:dd:dd";
    let fault = |at: usize, expected: &str| Fault {
        column: at + 1,
        fault: RowFault::Timestamp,
        expected: expected.to_owned(),
        found: quoted(field),
    };
    for (at, pattern) in PATTERN.iter().enumerate() {
        let fits = match (pattern, field.get(at)) {
            (b'd', Some(byte)) => byte.is_ascii_digit(),
            (pattern, Some(byte)) => pattern == byte,
            (_, None) => false,
        };
        if !fits {
            let expected = match pattern {
                b'd' => "a digit of YYYY-MM-DD HH:MM:SS.fraction",
                b'-' => "\"-\" of YYYY-MM-DD HH:MM:SS.fraction",
                b':' => "\":\" of YYYY-MM-DD HH:MM:SS.fraction",
                _ => "the space of YYYY-MM-DD HH:MM:SS.fraction",
            };
            return Err(fault(at, expected));
        }
    }
    let number = |from: usize, to: usize| {
        field[from..to].iter().fold(0u64, |value, byte| value * 10 + u64::from(byte - b'0'))
    };
    let (year, month, day) = (number(0, 4), number(5, 7), number(8, 10));
    let (hour, minute, second) = (number(11, 13), number(14, 16), number(17, 19));
    if year < 1970 {
        return Err(fault(0, "a year from 1970 to 9999"));
    }
    if !(1..=12).contains(&month) {
        return Err(fault(5, "a month from 01 to 12"));
    }
    if day < 1 || day > days_in_month(year, month) {
        return Err(fault(8, "a day of that month"));
    }
    if hour > 23 {
        return Err(fault(11, "an hour from 00 to 23"));
    }
    if minute > 59 {
        return Err(fault(14, "a minute from 00 to 59"));
    }
    if second > 59 {
        return Err(fault(17, "a second from 00 to 59"));
    }
    let mut rest = &field[PATTERN.len()..];
    let mut nanos = 0u32;
    if let Some(fraction) = rest.strip_prefix(b".") {
        let digits = fraction.iter().take_while(|byte| byte.is_ascii_digit()).count();
        if digits == 0 || digits > 9 {
            return Err(fault(PATTERN.len() + 1 + digits.min(9), "1 to 9 digits of a second after \".\""));
        }
        for at in 0..9 {
            nanos = nanos * 10 + fraction[..digits].get(at).map_or(0, |byte| u32::from(byte - b'0'));
        }
        rest = &fraction[digits..];
    }
    if !rest.is_empty() && rest != b"+00:00" {
        return Err(fault(field.len() - rest.len(), "the end of the timestamp, or \"+00:00\""));
    }
    let seconds = days_since_1970(year, month, day) * 86_400 + hour * 3600 + minute * 60 + second;
    Ok(Instant { seconds, nanos })
}

fn is_leap(year: u64) -> bool {
    year.is_multiple_of(4) && (!year.is_multiple_of(100) || year.is_multiple_of(400))
}

fn days_in_month(year: u64, month: u64) -> u64 {
    match month {
        2 if is_leap(year) => 29,
        2 => 28,
        4 | 6 | 9 | 11 => 30,
        _ => 31,
    }
}

pub(super) fn days_since_1970(year: u64, month: u64, day: u64) -> u64 {
    let leap_days = |year: u64| year / 4 - year / 100 + year / 400;
    let whole_years = (year - 1970) * 365 + leap_days(year - 1) - leap_days(1969);
    whole_years + (1..month).map(|month| days_in_month(year, month)).sum::<u64>() + day - 1
}

/// Quotes at most 40 bytes of what was found, escaping what a terminal would act on.
pub(super) fn quoted(bytes: &[u8]) -> String {
    let shown = &bytes[..bytes.len().min(40)];
    let more = if bytes.len() > shown.len() { "..." } else { "" };
    format!("\"{}{more}\"", shown.escape_ascii())
}
