//! `holdfastd query breaker what-if`: an epoch under other parameters, beside what happened.

use std::fmt::Write as _;
use std::fs::File;
use std::io::Read;

use anyhow::Result;
use clap::{Arg, ArgMatches, Command};
use holdfast_app::echo::shown;
use holdfast_proto::cosmos::base::query::v1beta1::PageRequest;
use holdfast_proto::holdfast::breaker::v1 as pb;
use holdfast_proto::holdfast::inference::v1::ValidationParams;
use holdfast_proto::{FieldMask, Message, decode_strict, from_json, pool, to_json};
use serde_json::{Map, Value};

use super::catalog::Method;
use super::error::{fail, one_line};
use super::fields;
use super::node::Node;
use super::output::{Format, Io};

/// Field of the request that a file gives.
pub(crate) const PARAMS: &str = "params";
/// Id of its flag: that of a field, by a name that no field has, for `fields` would read JSON.
const FILE: &str = "field.what-if.params";
/// Most bytes of a file of parameters.
const FILE_MAX: u64 = 1 << 20;
/// Rows asked for at a time, the most that a node gives.
const ROWS: u64 = 1_000;
/// Most calls for one command.
const CALLS_MAX: usize = 1_000;
const VALIDATION_PARAMS: &str = "holdfast.inference.v1.ValidationParams";
const UPDATE_PARAMS: &str = "/holdfast.inference.v1.MsgUpdateParams";

/// Whether a method is this one.
pub(crate) fn is(method: &Method) -> bool {
    method.grpc_path == holdfast_app::what_if::PATH
}

/// The flag that gives the parameters.
pub(crate) fn params_arg() -> Arg {
    Arg::new(FILE).long(PARAMS).value_name("FILE").help_heading("Fields").help(
        "JSON file with the parameters to try, all or some: fields of validation, the answer of `query inference params`, a \
         proposal with a MsgUpdateParams, or its messages alone [default: those in force]",
    )
}

/// The default form is text: it is for people.
pub(crate) fn finish(command: Command) -> Command {
    command.mut_arg("output", |arg| arg.default_value("text"))
}

/// Parameters and the fields of them that are meant.
#[derive(Debug, PartialEq)]
struct Proposed {
    params: ValidationParams,
    fields: Vec<String>,
}

fn bad(text: impl std::fmt::Display) -> anyhow::Error {
    fail(12, "--params", one_line(&text.to_string()))
}

/// Reads the file, with or without `@` before its name, or the JSON itself when it begins as JSON does.
fn proposed(text: &str) -> Result<Proposed> {
    let is_json = text.trim_start().starts_with(['{', '[']);
    let json = if is_json { text.to_owned() } else { read(text.strip_prefix('@').unwrap_or(text))? };
    let value: Value = serde_json::from_str(&json)
        .map_err(|e| bad(format!("{}: {e}; give a JSON object or array", shown(text))))?;
    parse(&value).map_err(|e| bad(format!("{}: {e}", shown(text))))
}

fn read(path: &str) -> Result<String> {
    let told = |e: std::io::Error| bad(format!("{:?}: {e}; give a file that can be read", shown(path)));
    let mut out = String::new();
    let read =
        File::open(path).and_then(|file| file.take(FILE_MAX + 1).read_to_string(&mut out)).map_err(told)?;
    if u64::try_from(read).is_ok_and(|read| read <= FILE_MAX) {
        Ok(out)
    } else {
        Err(bad(format!("{:?}: is larger than 1 MiB; give a smaller file", shown(path))))
    }
}

/// `healthCbShadow` and `health_cb_shadow` as the latter.
fn snake(name: &str) -> String {
    let mut out = String::new();
    for c in name.chars() {
        if c.is_ascii_uppercase() {
            out.push('_');
        }
        out.push(c.to_ascii_lowercase());
    }
    out
}

fn parse(value: &Value) -> Result<Proposed, String> {
    // A proposal, or its messages as `tx gov submit-proposal --messages` takes them: the message with the mask that it has.
    if let Some(messages) = value.get("messages").unwrap_or(value).as_array() {
        let of_type = |m: &&Value| m.get("@type").and_then(Value::as_str) == Some(UPDATE_PARAMS);
        let mut found = messages.iter().filter(of_type);
        return match (found.next(), found.next()) {
            (Some(message), None) => parse(message),
            (None, _) => Err(format!("no message is a {UPDATE_PARAMS}; give one with it")),
            (Some(_), Some(_)) => {
                Err(format!("several messages are a {UPDATE_PARAMS}; give them one by one"))
            }
        };
    }
    let object = value.as_object().ok_or("give a JSON object or an array of messages")?;
    let inner = object.get(PARAMS).and_then(Value::as_object).unwrap_or(object);
    let fields = inner.get("validation").and_then(Value::as_object).unwrap_or(inner);
    let mask = object.get("update_mask").or_else(|| object.get("updateMask"));
    let given = known(fields)?;
    let fields_meant = match mask {
        None => given,
        Some(mask) => masked(mask)?,
    };
    let bytes = from_json(VALIDATION_PARAMS, &Value::Object(fields.clone())).map_err(|e| e.to_string())?;
    let params = ValidationParams::decode(bytes.as_slice()).map_err(|e| e.to_string())?;
    Ok(Proposed { params, fields: fields_meant })
}

/// Names of the fields given, in their own order; an unknown one is refused.
fn known(fields: &Map<String, Value>) -> Result<Vec<String>, String> {
    let pool = pool().map_err(|e| e.to_string())?;
    let descriptor = pool.get_message_by_name(VALIDATION_PARAMS).ok_or("has no descriptor")?;
    let names: Vec<String> = descriptor.fields().map(|field| field.name().to_owned()).collect();
    if let Some(unknown) = fields.keys().find(|key| !names.contains(&snake(key))) {
        return Err(format!("{unknown:.60} is no parameter; give some of {}", names.join(", ")));
    }
    if fields.is_empty() {
        return Err("gives no parameter; give some".into());
    }
    Ok(names.into_iter().filter(|name| fields.keys().any(|key| snake(key) == *name)).collect())
}

/// Fields of `validation` that the mask of a message names.
fn masked(mask: &Value) -> Result<Vec<String>, String> {
    let paths: Vec<String> = match mask {
        Value::String(text) => text.split(',').map(|path| snake(path.trim())).collect(),
        Value::Object(mask) => {
            let paths = mask.get("paths").and_then(Value::as_array);
            paths.into_iter().flatten().filter_map(Value::as_str).map(snake).collect()
        }
        _ => return Err("update_mask: give names with commas".into()),
    };
    if paths.iter().any(|path| path == "*" || path == "validation") {
        return Ok(vec!["*".into()]);
    }
    let fields: Vec<String> =
        paths.iter().filter_map(|path| path.strip_prefix("validation.")).map(str::to_owned).collect();
    if fields.is_empty() { Err("update_mask: names nothing of validation".into()) } else { Ok(fields) }
}

/// Asks, all pages unless one was asked for, and prints.
pub(crate) fn run(
    method: &Method,
    matches: &ArgMatches,
    connect: &dyn Fn() -> Result<Box<dyn Node>>,
    height: Option<i64>,
    format: Format,
    io: &mut Io<'_>,
) -> Result<()> {
    let bytes = fields::message(&method.input, matches)?.encode_to_vec();
    let mut request: pb::QueryWhatIfRequest = decode_strict(&bytes)?;
    if let Some(text) = matches.get_one::<String>(FILE) {
        let proposed = proposed(text)?;
        request.params = Some(proposed.params);
        request.update_mask.get_or_insert(FieldMask { paths: proposed.fields });
    }
    let one_page = request.pagination.is_some();
    let path = method.grpc_path.as_str();
    let mut node = connect()?;
    let mut answer: Option<pb::QueryWhatIfResponse> = None;
    for _ in 0..CALLS_MAX {
        if !one_page {
            let key = answer.as_ref().and_then(|a| a.pagination.as_ref()).map(|p| p.next_key.clone());
            let key = key.unwrap_or_default();
            request.pagination = Some(PageRequest { key, limit: ROWS, ..PageRequest::default() });
        }
        let bytes =
            node.unary(path, &request.encode_to_vec(), height).map_err(|failure| failure.refusal(path))?;
        let mut page: pb::QueryWhatIfResponse =
            decode_strict(&bytes).map_err(|e| fail(47, path.trim_start_matches('/'), e.to_string()))?;
        if let Some(before) = answer.take() {
            page.rows = before.rows.into_iter().chain(page.rows).collect();
        }
        let last = page.pagination.as_ref().is_none_or(|p| p.next_key.is_empty());
        answer = Some(page);
        if one_page || last {
            break;
        }
    }
    let answer = answer.unwrap_or_default();
    match format {
        Format::Json => {
            let name = method.output.full_name();
            let value = to_json(name, &answer.encode_to_vec())
                .map_err(|e| fail(47, path.trim_start_matches('/'), e.to_string()))?;
            io.print(&value, format)
        }
        Format::Text => Ok(io.out.write_all(table(&answer).as_bytes())?),
    }
}

/// Columns as wide as their widest cell, two spaces between them; the first `left` columns to the left.
fn columns(rows: &[Vec<String>], left: usize) -> String {
    let count = rows.iter().map(Vec::len).max().unwrap_or(0);
    let width = |at: usize| rows.iter().filter_map(|row| row.get(at)).map(|cell| cell.chars().count()).max();
    let widths: Vec<usize> = (0..count).map(|at| width(at).unwrap_or(0)).collect();
    let mut out = String::new();
    for row in rows {
        let mut line = String::new();
        for (at, (cell, width)) in row.iter().zip(&widths).enumerate() {
            let gap = if at == 0 { "" } else { "  " };
            let _ = if at < left {
                write!(line, "{gap}{cell:<width$}")
            } else {
                write!(line, "{gap}{cell:>width$}")
            };
        }
        out.push_str(line.trim_end());
        out.push('\n');
    }
    out
}

fn table(answer: &pb::QueryWhatIfResponse) -> String {
    let mut out = String::new();
    let _ = match answer.from_height {
        0 => writeln!(out, "epoch {}: no block replayed", answer.epoch),
        from => writeln!(out, "epoch {}, blocks {from} to {}", answer.epoch, answer.to_height),
    };
    let tried = if answer.in_force { "those in force".to_owned() } else { answer.changed.join(", ") };
    let _ = writeln!(out, "{}: {tried}", if answer.in_force { "parameters" } else { "changed" });
    for (name, list) in [
        ("without effect on a replay", &vec![answer.not_replayed.join(", ")]),
        ("note", &answer.notes),
        ("lacking", &answer.lacks),
    ] {
        for line in list.iter().filter(|line| !line.is_empty()) {
            let _ = writeln!(out, "{name}: {line}");
        }
    }
    let agrees =
        if answer.agrees { "makes every recorded transition" } else { "DIFFERS from what was recorded" };
    let _ = writeln!(out, "check: a replay under the parameters in force {agrees}\n");

    let (happened, would_be) = (answer.happened.unwrap_or_default(), answer.would_be.unwrap_or_default());
    let sums = |t: &pb::WhatIfTotals| {
        [
            u64::from(t.pairs),
            t.exclusions,
            t.blocks,
            t.refused,
            t.work_saved,
            t.given_missed,
            t.finished,
            t.false_exclusions,
            t.without_work,
        ]
    };
    let names = [
        "executors excluded, by model",
        "exclusions",
        "blocks excluded",
        "exclusions refused",
        "work saved (misses inside)",
        "misses of work given inside",
        "good answers inside",
        "false exclusions (no miss inside)",
        "of them without any work inside",
    ];
    let mut rows = vec![vec![String::new(), "would be".into(), "happened".into()]];
    for ((name, would_be), happened) in names.iter().zip(sums(&would_be)).zip(sums(&happened)) {
        rows.push(vec![(*name).to_owned(), would_be.to_string(), happened.to_string()]);
    }
    out.push_str(&columns(&rows, 1));

    if !answer.rows.is_empty() {
        let head = [
            "model",
            "executor",
            "case",
            "why",
            "ended by",
            "from",
            "probe",
            "until",
            "missed inside",
            "good inside",
            "given",
            "missed of it",
            "false",
        ];
        let mut rows = vec![head.map(str::to_owned).to_vec()];
        for row in &answer.rows {
            let cases = [("would be", &row.would_be), ("happened", &row.happened)];
            for (case, e) in cases.iter().flat_map(|(case, list)| list.iter().map(move |e| (case, e))) {
                let height = |height: i64| if height == 0 { "-".to_owned() } else { height.to_string() };
                let ended_by = if e.ended_by.is_empty() { "-" } else { &e.ended_by };
                let mut cells = [&row.model, &row.participant, *case, e.rule.as_str(), ended_by]
                    .map(str::to_owned)
                    .to_vec();
                cells.extend([e.from, e.probe_from, e.until].map(height));
                cells.extend([e.missed, e.finished, e.given, e.given_missed].map(|n| n.to_string()));
                cells.push(if e.false_exclusion { "false" } else { "" }.into());
                rows.push(cells);
            }
        }
        out.push('\n');
        out.push_str(&columns(&rows, 5));
    }
    if answer.pagination.as_ref().is_some_and(|page| !page.next_key.is_empty()) {
        out.push_str("\nthere are more rows; leave out the page flags for all\n");
    }
    out
}

#[cfg(test)]
mod tests {
    use std::cell::RefCell;
    use std::rc::Rc;

    use holdfast_proto::cosmos::base::query::v1beta1::PageResponse;
    use serde_json::json;

    use super::*;
    use crate::cli::node::CallFailure;

    #[test]
    fn every_form_of_a_proposal_gives_its_parameters_and_the_fields_meant() {
        let two = ["health_cb_shadow", "health_cb_window_blocks"];
        for (value, fields) in [
            (json!({ "health_cb_window_blocks": "200", "health_cb_shadow": true }), two.as_slice()),
            (json!({ "validation": { "healthCbWindowBlocks": 200, "healthCbShadow": true } }), &two),
            (
                json!({ "params": { "validation": { "health_cb_window_blocks": "200", "health_cb_shadow": true },
                    "token_price": { "denom": "uhold", "amount": "1" } } }),
                &two,
            ),
            (
                json!({ "messages": [
                    { "@type": "/cosmos.bank.v1beta1.MsgSend" },
                    { "@type": UPDATE_PARAMS, "authority": "a", "update_mask": "token_price,validation.healthCbWindowBlocks",
                        "params": { "validation": { "health_cb_window_blocks": "200", "health_cb_shadow": true } } }
                ] }),
                &["health_cb_window_blocks"],
            ),
            (
                json!([
                    { "@type": UPDATE_PARAMS, "authority": "a", "update_mask": "validation.healthCbWindowBlocks",
                        "params": { "validation": { "health_cb_window_blocks": "200", "health_cb_shadow": true } } }
                ]),
                &["health_cb_window_blocks"],
            ),
            (
                json!({ "update_mask": { "paths": ["validation"] },
                    "params": { "validation": { "health_cb_window_blocks": "200", "health_cb_shadow": true } } }),
                &["*"],
            ),
        ] {
            let found = parse(&value).unwrap_or_else(|e| panic!("{value}: {e}"));
            assert_eq!((found.params.health_cb_window_blocks, found.params.health_cb_shadow), (200, true));
            assert_eq!(found.fields, fields, "{value}");
        }
    }

    #[test]
    fn files_that_say_nothing_are_refused_with_a_remedy() {
        for (value, text) in [
            (json!(1), "give a JSON object or an array of messages"),
            (json!([]), "no message is a /holdfast.inference.v1.MsgUpdateParams"),
            (json!({}), "gives no parameter"),
            (
                json!({ "health_cb_windows": 1 }),
                "health_cb_windows is no parameter; give some of expiration_blocks",
            ),
            (json!({ "health_cb_window_blocks": "many" }), "health_cb_window_blocks"),
            (json!({ "messages": [] }), "no message is a /holdfast.inference.v1.MsgUpdateParams"),
            (json!({ "health_cb_shadow": true, "update_mask": "token_price" }), "update_mask"),
        ] {
            let error = parse(&value).unwrap_err();
            assert!(error.contains(text), "{value}: {error}");
        }
        for (text, part) in
            [("{", "give a JSON object"), ("no-such-file", "give a file"), ("@no-such-file", "give a file")]
        {
            let error = proposed(text).unwrap_err().to_string();
            assert!(error.starts_with("--params: ") && error.contains(part), "{error}");
        }
    }

    /// Answers one row a call, two calls in all.
    struct TwoPages(Rc<RefCell<Vec<pb::QueryWhatIfRequest>>>);

    impl Node for TwoPages {
        fn unary(&mut self, path: &str, request: &[u8], height: Option<i64>) -> Result<Vec<u8>, CallFailure> {
            assert_eq!((path, height), (holdfast_app::what_if::PATH, Some(7)));
            let request: pb::QueryWhatIfRequest = decode_strict(request).unwrap();
            let first = request.pagination.as_ref().unwrap().key.is_empty();
            self.0.borrow_mut().push(request);
            let model = if first { "m1" } else { "m2" };
            let pagination = PageResponse { next_key: if first { vec![9] } else { Vec::new() }, total: 0 };
            let answer = pb::QueryWhatIfResponse {
                rows: vec![pb::WhatIfRow { model: model.into(), ..pb::WhatIfRow::default() }],
                pagination: Some(pagination),
                ..pb::QueryWhatIfResponse::default()
            };
            Ok(answer.encode_to_vec())
        }
    }

    #[test]
    fn a_file_is_sent_with_its_fields_as_the_mask_and_all_pages_are_printed_as_one() {
        let dir = tempfile::tempdir().unwrap();
        let file = dir.path().join("params.json");
        std::fs::write(&file, r#"{ "health_cb_consecutive_misses": 2, "health_cb_window_blocks": "0" }"#)
            .unwrap();
        let calls = Rc::new(RefCell::new(Vec::new()));
        let file = file.to_str().unwrap();
        let words = "holdfastd query breaker what-if --epoch 3 --model m1 --height 7 --output json --params";
        let words: Vec<_> = words.split(' ').chain([file]).map(Into::into).collect();
        let (mut out, mut err) = (Vec::new(), Vec::new());
        let mut io = Io { out: &mut out, err: &mut err, input: &mut "".as_bytes(), terminal: false };
        let connect = |_: &str| -> Result<Box<dyn Node>> { Ok(Box::new(TwoPages(calls.clone()))) };
        assert!(crate::cli::execute(&words, &mut io, &connect).is_ok());
        let value: Value = serde_json::from_slice(&out).unwrap();
        assert_eq!((&value["rows"][0]["model"], &value["rows"][1]["model"]), (&json!("m1"), &json!("m2")));
        let calls = calls.borrow();
        let keys: Vec<_> = calls.iter().map(|call| call.pagination.clone().unwrap().key).collect();
        assert_eq!(keys, [Vec::new(), vec![9]]);
        let (call, params) = (&calls[0], calls[0].params.clone().unwrap());
        assert_eq!(
            (call.epoch, call.model.as_str(), params.health_cb_consecutive_misses),
            (Some(3), "m1", 2)
        );
        // A value of zero is meant as well.
        let mask = ["health_cb_window_blocks", "health_cb_consecutive_misses"].map(str::to_owned);
        assert_eq!(call.update_mask.as_ref().unwrap().paths, mask);
    }

    #[test]
    fn the_table_shows_both_cases_side_by_side() {
        let exclusion = pb::WhatIfExclusion {
            from: 4,
            probe_from: 9,
            rule: "streak".into(),
            missed: 2,
            given: 2,
            given_missed: 1,
            ..pb::WhatIfExclusion::default()
        };
        let answer = pb::QueryWhatIfResponse {
            epoch: 3,
            from_height: 1,
            to_height: 14,
            changed: vec!["health_cb_consecutive_misses".into()],
            agrees: true,
            lacks: vec!["blocks 15 to 16".into()],
            would_be: Some(pb::WhatIfTotals { exclusions: 1, work_saved: 2, ..pb::WhatIfTotals::default() }),
            rows: vec![pb::WhatIfRow {
                model: "m1".into(),
                participant: "hold1a".into(),
                would_be: vec![exclusion],
                ..pb::WhatIfRow::default()
            }],
            ..pb::QueryWhatIfResponse::default()
        };
        let expected = "\
epoch 3, blocks 1 to 14
changed: health_cb_consecutive_misses
lacking: blocks 15 to 16
check: a replay under the parameters in force makes every recorded transition

                                   would be  happened
executors excluded, by model              0         0
exclusions                                1         0
blocks excluded                           0         0
exclusions refused                        0         0
work saved (misses inside)                2         0
misses of work given inside               0         0
good answers inside                       0         0
false exclusions (no miss inside)         0         0
of them without any work inside           0         0

model  executor  case      why     ended by  from  probe  until  missed inside  good inside  given  missed of it  false
m1     hold1a    would be  streak  -            4      9      -              2            0      2             1
";
        assert_eq!(table(&answer), expected);
    }
}
