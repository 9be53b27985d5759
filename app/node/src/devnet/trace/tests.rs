//! Good traces are read to the microsecond; every bad row has its code, line and column.

use std::io::{self, Read};
use std::path::Path;

use sha2::{Digest, Sha256};

use super::lines::Lines;
use super::row::days_since_1970;
use super::*;

const GOOD: &str = "TIMESTAMP,ContextTokens,GeneratedTokens\n\
    2023-11-16 18:17:03.9799600,4808,10\n\
    2023-11-16 18:17:04.0319600,3180,8\n";

fn with_row(row: &str) -> String {
    format!("{HEADER}\n2024-02-29 10:00:00.5,7,8\n{row}\n2024-02-29 10:00:09.25,9,10\n")
}

fn refused(text: &str) -> TraceError {
    scan_bytes("t.csv", text.as_bytes(), false).expect_err("must be refused")
}

fn refused_row(row: &str) -> RowError {
    match refused(&with_row(row)) {
        TraceError::Row(error) => error,
        other => panic!("not a row error: {other}"),
    }
}

fn requests(text: &str, skip: bool) -> Vec<Request> {
    let summary = scan_bytes("t.csv", text.as_bytes(), skip).expect("scan");
    TraceReader::from_bytes("t.csv", text.as_bytes(), &summary, skip)
        .expect("open")
        .collect::<Result<_, _>>()
        .expect("rows")
}

#[test]
fn a_good_trace_is_counted_hashed_and_read() {
    let summary = scan_bytes("t.csv", GOOD.as_bytes(), false).expect("scan");
    assert_eq!(summary.rows, 2);
    assert_eq!(summary.bad_rows, 0);
    assert_eq!(summary.first_ts, "2023-11-16 18:17:03.9799600");
    assert_eq!(summary.last_ts, "2023-11-16 18:17:04.0319600");
    assert_eq!(summary.span_us, 52_000);
    assert_eq!(summary.sha256, hex::encode(Sha256::digest(GOOD.as_bytes())));
    assert_eq!(
        requests(GOOD, false),
        [
            Request { index: 0, arrival_us: 0, context_tokens: 4808, generated_tokens: 10 },
            Request { index: 1, arrival_us: 52_000, context_tokens: 3180, generated_tokens: 8 },
        ]
    );
}

#[test]
fn the_digest_is_that_of_the_known_bytes() {
    // sha256("TIMESTAMP,ContextTokens,GeneratedTokens\n2000-01-01 00:00:00,1,2"), from sha256sum.
    let text = format!("{HEADER}\n2000-01-01 00:00:00,1,2");
    let summary = scan_bytes("t.csv", text.as_bytes(), false).expect("scan");
    assert_eq!(summary.sha256, "5455fd006674b245969df68590297abc1e5810037e8a41a82743935ea97abb36");
}

#[test]
fn crlf_byte_order_mark_and_a_missing_final_line_end_are_tolerated() {
    let plain = requests(GOOD, false);
    assert_eq!(requests(&GOOD.replace('\n', "\r\n"), false), plain);
    assert_eq!(requests(GOOD.trim_end(), false), plain);
    assert_eq!(requests(GOOD.replace('\n', "\r\n").trim_end_matches('\n'), false), plain);
    assert_eq!(requests(&format!("\u{feff}{GOOD}"), false), plain);
}

#[test]
fn fractions_of_zero_to_nine_digits_are_read_and_rounded_down_to_microseconds() {
    let text = format!(
        "{HEADER}\n2023-01-01 00:00:00,1,1\n2023-01-01 00:00:00.000000999,1,1\n\
         2023-01-01 00:00:00.1,1,1\n2023-01-01 00:00:00.123456789,1,1\n2023-01-01 00:00:01.0000015+00:00,1,1\n"
    );
    let arrivals: Vec<u64> = requests(&text, false).iter().map(|request| request.arrival_us).collect();
    assert_eq!(arrivals, [0, 0, 100_000, 123_456, 1_000_001]);
}

#[test]
fn calendar_boundaries_are_counted_in_true_days() {
    let text = format!(
        "{HEADER}\n1999-12-31 23:59:59,1,1\n2000-01-01 00:00:00,1,1\n2000-02-28 00:00:00,1,1\n\
         2000-03-01 00:00:00,1,1\n2100-02-28 00:00:00,1,1\n2100-03-01 00:00:00,1,1\n"
    );
    let seconds: Vec<u64> = requests(&text, false).iter().map(|r| r.arrival_us / 1_000_000).collect();
    // 58 days to 28 February; 2000 has a 29 February, 2100 has none; 36,525 days from 2000 to 2100.
    let day = 86_400;
    assert_eq!(seconds, [0, 1, 1 + 58 * day, 1 + 60 * day, 1 + 36_583 * day, 1 + 36_584 * day]);
    assert_eq!(days_since_1970(1970, 1, 1), 0);
    assert_eq!(days_since_1970(2023, 11, 16), 19_677);
}

#[test]
fn equal_timestamps_are_in_order() {
    let text = format!("{HEADER}\n2023-01-01 00:00:00.5,1,1\n2023-01-01 00:00:00.50,2,2\n");
    assert_eq!(requests(&text, false).len(), 2);
}

#[test]
fn the_header_is_required_and_the_first_difference_is_named() {
    let error = refused("TIMESTAMP,Context,GeneratedTokens\n");
    assert_eq!(error.code(), 102);
    assert!(error.to_string().starts_with("t.csv:1:18: header:"), "{error}");
    assert_eq!(refused("").code(), 102);
    assert!(refused("").to_string().contains("an empty file"));
    assert_eq!(refused("2023-11-16 18:17:03,1,2\n").code(), 102);
    assert_eq!(refused(&format!("{HEADER},Extra\n")).code(), 102);
    let skipped = scan_bytes("t.csv", "x\n".as_bytes(), true).expect_err("header is never skipped");
    assert_eq!(skipped.code(), 102);
}

#[test]
fn a_trace_without_rows_is_refused() {
    assert_eq!(refused(HEADER).code(), 103);
    let error = scan_bytes("t.csv", format!("{HEADER}\nx\ny\n").as_bytes(), true).expect_err("no rows");
    assert_eq!(error.code(), 103);
    assert!(error.to_string().contains("2 bad rows"), "{error}");
}

#[test]
fn a_row_error_names_file_line_column_field_and_expectation() {
    let error = refused(&with_row("2024-02-29 10:00:01,12x,5"));
    assert_eq!(error.code(), 108);
    assert_eq!(
        error.to_string(),
        "t.csv:3:23: ContextTokens: expected a whole number from 0 to 10000000, found \"12x\" \
         (devnet error 108); correct the row or pass --skip-bad-rows"
    );
}

#[test]
fn every_malformed_row_has_its_code_and_column() {
    use RowFault::*;
    let ts = "2024-02-29 10:00:01";
    let long_number = format!("{ts},5,{}", "9".repeat(60));
    let cases: Vec<(String, RowFault, usize)> = vec![
        (String::new(), Columns, 1),
        (ts.to_owned(), Columns, 20),
        (format!("{ts},5"), Columns, 22),
        (format!("{ts},5,6,7"), Columns, 24),
        (format!("{ts},5,6,"), Columns, 24),
        (format!("{ts},,6"), ContextTokens, 21),
        (format!("{ts},5,"), GeneratedTokens, 23),
        (format!("{ts},-5,6"), ContextTokens, 21),
        (format!("{ts}, 5,6"), ContextTokens, 21),
        (format!("{ts},+5,6"), ContextTokens, 21),
        (format!("{ts},5,6.0"), GeneratedTokens, 24),
        (format!("{ts},5,6\r\r"), GeneratedTokens, 24),
        (format!("{ts},5,\"6\""), GeneratedTokens, 23),
        (format!("{ts},10000001,6"), ContextTokensRange, 21),
        (format!("{ts},5,4294967296"), GeneratedTokensRange, 23),
        (long_number, GeneratedTokensRange, 23),
        (",5,6".to_owned(), Timestamp, 1),
        ("2024/02/29 10:00:01,5,6".to_owned(), Timestamp, 5),
        ("2024-02-29T10:00:01,5,6".to_owned(), Timestamp, 11),
        ("2024-02-29 10:00,5,6".to_owned(), Timestamp, 17),
        ("2024-02-29 10:00:0,5,6".to_owned(), Timestamp, 19),
        ("24-02-29 10:00:01,5,6".to_owned(), Timestamp, 3),
        ("2024-02-29 10.00:01,5,6".to_owned(), Timestamp, 14),
        ("1969-02-28 10:00:01,5,6".to_owned(), Timestamp, 1),
        ("2024-00-29 10:00:01,5,6".to_owned(), Timestamp, 6),
        ("2024-13-29 10:00:01,5,6".to_owned(), Timestamp, 6),
        ("2024-02-30 10:00:01,5,6".to_owned(), Timestamp, 9),
        ("2023-02-29 10:00:01,5,6".to_owned(), Timestamp, 9),
        ("2024-04-31 10:00:01,5,6".to_owned(), Timestamp, 9),
        ("2024-02-00 10:00:01,5,6".to_owned(), Timestamp, 9),
        ("2024-02-29 24:00:01,5,6".to_owned(), Timestamp, 12),
        ("2024-02-29 10:60:01,5,6".to_owned(), Timestamp, 15),
        ("2024-02-29 10:00:60,5,6".to_owned(), Timestamp, 18),
        ("2024-02-29 10:00:01.,5,6".to_owned(), Timestamp, 21),
        ("2024-02-29 10:00:01.0123456789,5,6".to_owned(), Timestamp, 30),
        ("2024-02-29 10:00:01.5Z,5,6".to_owned(), Timestamp, 22),
        ("2024-02-29 10:00:01+01:00,5,6".to_owned(), Timestamp, 20),
        ("2024-02-29 09:59:59,5,6".to_owned(), OutOfOrder, 1),
        ("2024-02-29 10:00:00.499999999,5,6".to_owned(), OutOfOrder, 1),
        ("x".repeat(MAX_LINE_BYTES + 1), LineTooLong, MAX_LINE_BYTES + 1),
    ];
    for (row, fault, column) in cases {
        let error = refused_row(&row);
        assert_eq!((error.fault, error.column, error.line), (fault, column, 3), "{row:?}: {error}");
        assert!(TRACE_ERROR_CODES.iter().any(|(code, _)| *code == fault.code()));
    }
}

#[test]
fn bytes_that_are_not_text_are_refused_and_escaped() {
    let mut bytes = format!("{HEADER}\n2024-02-29 10:00:01,").into_bytes();
    bytes.extend_from_slice(b"\xff\x1b[2J,6\n");
    let error = scan_bytes("t.csv", bytes.as_slice(), false).expect_err("refused");
    assert_eq!(error.code(), 108);
    assert!(error.to_string().contains(r#""\xff\x1b[2J""#), "{error}");
    assert!(!error.to_string().contains('\u{1b}'));
}

#[test]
fn the_line_limit_is_exact_and_a_longer_line_takes_no_more_memory() {
    let at_limit = "y".repeat(MAX_LINE_BYTES);
    assert_eq!(refused_row(&at_limit).fault, RowFault::Columns);
    let crlf = with_row(&format!("{at_limit}\r"));
    let TraceError::Row(error) = refused(&crlf) else { panic!("row error") };
    assert_eq!(error.fault, RowFault::Columns);
    let text = with_row(&"z".repeat(1 << 20));
    let mut lines = Lines::new(text.as_bytes());
    while lines.next_line().expect("line") {
        assert!(lines.line.capacity() <= 4 * MAX_LINE_BYTES);
    }
    let summary = scan_bytes("t.csv", text.as_bytes(), true).expect("scan");
    assert_eq!((summary.rows, summary.bad_rows), (2, 1));
}

#[test]
fn skipped_rows_are_counted_the_first_ten_kept_and_the_rest_of_the_trace_read() {
    let mut text = format!("{HEADER}\n");
    for second in 10..40 {
        text.push_str(&format!("2024-02-29 10:00:{second},1,{second}\nbad {second}\n"));
    }
    text.push_str("2024-02-29 10:00:00,1,1\n");
    let summary = scan_bytes("t.csv", text.as_bytes(), true).expect("scan");
    assert_eq!((summary.rows, summary.bad_rows), (30, 31));
    assert_eq!(summary.bad_row_samples.len(), MAX_BAD_ROW_SAMPLES);
    assert!(summary.bad_row_samples[0].starts_with("t.csv:3:7: row: expected 3 columns"));
    assert!(summary.bad_row_samples[9].starts_with("t.csv:21:7:"));
    let rows = requests(&text, true);
    assert_eq!(rows.len(), 30);
    assert_eq!(rows[29].index, 29);
    assert_eq!(rows[29].arrival_us, 29_000_000);
    // Without the flag the same file stops at the first bad row.
    assert_eq!(refused(&text).code(), 105);
}

#[test]
fn a_file_that_changes_between_the_passes_is_noticed() {
    let summary = scan_bytes("t.csv", GOOD.as_bytes(), false).expect("scan");
    let other = GOOD.replace("4808", "4809");
    let items: Vec<_> =
        TraceReader::from_bytes("t.csv", other.as_bytes(), &summary, false).expect("open").collect();
    assert_eq!(items.len(), 3);
    let error = items[2].as_ref().expect_err("changed");
    assert_eq!(error.code(), 110);
}

#[test]
fn the_reader_ends_after_an_error() {
    let summary = scan_bytes("t.csv", GOOD.as_bytes(), false).expect("scan");
    let text = with_row("bad");
    let items: Vec<_> =
        TraceReader::from_bytes("t.csv", text.as_bytes(), &summary, false).expect("open").collect();
    assert_eq!(items.len(), 2);
    assert_eq!(items[1].as_ref().expect_err("bad row").code(), 105);
}

#[test]
fn a_missing_file_is_named() {
    let error = scan(Path::new("no/such/trace.csv"), false).expect_err("missing");
    assert_eq!(error.code(), 101);
    assert!(error.to_string().contains("no/such/trace.csv"));
}

#[test]
fn a_failing_source_is_an_error_and_not_a_short_trace() {
    struct Broken;
    impl Read for Broken {
        fn read(&mut self, _: &mut [u8]) -> io::Result<usize> {
            Err(io::Error::other("disk gone"))
        }
    }
    let error = scan_bytes("t.csv", GOOD.as_bytes().chain(Broken), false).expect_err("broken");
    assert_eq!(error.code(), 101);
    assert!(error.to_string().contains("disk gone"));
}

#[test]
fn a_line_split_over_many_reads_is_one_line() {
    struct OneByte<'a>(&'a [u8]);
    impl Read for OneByte<'_> {
        fn read(&mut self, buffer: &mut [u8]) -> io::Result<usize> {
            let Some((first, rest)) = self.0.split_first() else {
                return Ok(0);
            };
            buffer[0] = *first;
            self.0 = rest;
            Ok(1)
        }
    }
    let whole = scan_bytes("t.csv", GOOD.as_bytes(), false).expect("scan");
    let parts = scan_bytes("t.csv", OneByte(GOOD.as_bytes()), false).expect("scan");
    assert_eq!(whole, parts);
}
