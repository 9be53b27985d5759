//! Fields of a protobuf message as flags, and flags as a message.
//!
//! | field | flag |
//! |---|---|
//! | text, whole number | as it is |
//! | `bool` | `--flag`, `--flag true`, `--flag false` |
//! | `bytes` | hex, `0x` may stand in front |
//! | enum | name of the value, whole or without its common prefix: `INFERENCE_STATUS_STARTED`, `started` |
//! | `Coin` | `10uhold` |
//! | `FieldMask` | names with commas: `epoch_length,poc_length`, or `*`; inside JSON in lowerCamelCase, as proto3 JSON has it |
//! | `PageRequest` | `--page-key` (base64, as printed), `--offset`, `--limit`, `--count-total`, `--reverse` |
//! | other message | proto3 JSON, or `@FILE` with it; a packed message names its type in `@type` |
//! | repeated | the flag several times, or a JSON array; coins also with commas |

use std::io::Read;

use anyhow::{Context, Result};
use base64::Engine;
use base64::engine::general_purpose::STANDARD;
use clap::{Arg, ArgAction, ArgMatches};
use holdfast_app::echo::shown;
use holdfast_proto::from_json;
use holdfast_types::Coin;
use prost_reflect::{DynamicMessage, EnumDescriptor, FieldDescriptor, Kind, MessageDescriptor, Value};
use serde_json::{Value as Json, json};

use super::catalog::{Comments, kebab};
use super::error::fail;
use super::values;

/// Ids of field flags begin with this, so that none meets the id of another flag.
pub(crate) const ID: &str = "field.";

const COIN: &str = "cosmos.base.v1beta1.Coin";
const MASK: &str = "google.protobuf.FieldMask";
const PAGE: &str = "cosmos.base.query.v1beta1.PageRequest";
/// Messages whose JSON is a string.
const JSON_STRINGS: [&str; 2] = ["google.protobuf.Timestamp", "google.protobuf.Duration"];

/// A page's fields and their flags.
const PAGE_FLAGS: [(&str, &str, &str); 5] = [
    ("key", "page-key", "Where to go on: `pagination.next_key` of the last answer, in base64"),
    ("offset", "offset", "Rows to skip; not with --page-key"),
    ("limit", "limit", "Most rows"),
    ("count_total", "count-total", "Count all rows"),
    ("reverse", "reverse", "Last row first"),
];

/// Flags of a message's fields, but for the field `without`.
pub(crate) fn args(message: &MessageDescriptor, without: Option<&str>) -> Vec<Arg> {
    let comments = Comments::of(&message.parent_file());
    let mut args = Vec::new();
    for field in message.fields().filter(|field| Some(field.name()) != without) {
        if is_page(&field) {
            args.extend(PAGE_FLAGS.iter().filter_map(|(name, flag, help)| {
                let of_page = message_of(&field)?.get_field_by_name(name)?;
                Some(arg(format!("{ID}{}.{name}", field.name()), flag, &of_page, help).help_heading("Page"))
            }));
            continue;
        }
        let help = comments.of_path(field.path());
        args.push(arg(id(&field), &kebab(field.name()), &field, &help).help_heading("Fields"));
    }
    args
}

fn id(field: &FieldDescriptor) -> String {
    format!("{ID}{}", field.name())
}

fn arg(id: String, flag: &str, field: &FieldDescriptor, help: &str) -> Arg {
    let arg = Arg::new(id).long(flag.to_owned()).help(help.to_owned()).action(ArgAction::Append);
    let kind = field.kind();
    match &kind {
        Kind::Bool if !field.is_list() => {
            arg.action(ArgAction::Set).num_args(0..=1).default_missing_value("true").value_name("BOOL")
        }
        Kind::Enum(values) => {
            arg.value_name("NAME").help(format!("{help} [one of {}]", short_names(values).join(", ")))
        }
        Kind::Message(m) => arg.value_name(match m.full_name() {
            COIN => "COIN",
            MASK => "NAMES",
            _ => "JSON",
        }),
        Kind::Bytes if flag == "page-key" => arg.value_name("BASE64"),
        Kind::Bytes => arg.value_name("HEX"),
        Kind::String => arg.value_name("TEXT"),
        // A number may be negative; whether it is allowed to be says the error.
        _ => arg.value_name("NUMBER").allow_negative_numbers(true),
    }
}

fn message_of(field: &FieldDescriptor) -> Option<MessageDescriptor> {
    field.kind().as_message().cloned()
}

fn is_page(field: &FieldDescriptor) -> bool {
    !field.is_list() && message_of(field).is_some_and(|m| m.full_name() == PAGE)
}

/// Flags of the message's fields that were given.
pub(crate) fn given(message: &MessageDescriptor, matches: &ArgMatches) -> Vec<String> {
    let mut flags = Vec::new();
    for field in message.fields() {
        if is_page(&field) {
            let pages = PAGE_FLAGS
                .iter()
                .filter(|(name, ..)| texts(matches, &format!("{}.{name}", id(&field))).is_some());
            flags.extend(pages.map(|(_, flag, _)| format!("--{flag}")));
        } else if texts(matches, &id(&field)).is_some() {
            flags.push(format!("--{}", kebab(field.name())));
        }
    }
    flags
}

/// Values of a flag; `None` when it was not given or is no flag of this command.
fn texts(matches: &ArgMatches, id: &str) -> Option<Vec<String>> {
    let values = matches.try_get_many::<String>(id).ok().flatten()?;
    Some(values.cloned().collect())
}

/// The message that the flags describe.
pub(crate) fn message(descriptor: &MessageDescriptor, matches: &ArgMatches) -> Result<DynamicMessage> {
    let mut message = DynamicMessage::new(descriptor.clone());
    for field in descriptor.fields() {
        if is_page(&field) {
            if let Some(page) = page(&field, matches)? {
                message.set_field(&field, Value::Message(page));
            }
        } else if let Some(texts) = texts(matches, &id(&field)) {
            let flag = format!("--{}", kebab(field.name()));
            let value = field_value(&field, &texts, &flag)?;
            message.set_field(&field, value);
        }
    }
    Ok(message)
}

fn page(field: &FieldDescriptor, matches: &ArgMatches) -> Result<Option<DynamicMessage>> {
    let descriptor = message_of(field).context("a page is a message")?;
    let mut page = DynamicMessage::new(descriptor.clone());
    let mut any = false;
    for (name, flag, _) in PAGE_FLAGS {
        let (Some(texts), Some(of_page)) =
            (texts(matches, &format!("{}.{name}", id(field))), descriptor.get_field_by_name(name))
        else {
            continue;
        };
        any = true;
        let flag = format!("--{flag}");
        let value = if name == "key" {
            let text = single(&texts, &flag)?;
            let key = STANDARD
                .decode(text)
                .map_err(|_| bad(&flag, text, "give base64, as in pagination.next_key"))?;
            Value::Bytes(key.into())
        } else {
            field_value(&of_page, &texts, &flag)?
        };
        page.set_field(&of_page, value);
    }
    Ok(any.then_some(page))
}

fn bad(flag: &str, text: &str, rule: &str) -> anyhow::Error {
    fail(12, flag, format!("{:?}: {rule}", shown(text)))
}

fn single<'t>(texts: &'t [String], flag: &str) -> Result<&'t str> {
    match texts {
        [text] => Ok(text),
        _ => Err(fail(12, flag, format!("given {} times; give it once", texts.len()))),
    }
}

/// Longest file behind an `@`.
const FILE_BYTES_MAX: u64 = 1 << 20;

/// JSON as given, or as the file named after `@` holds it.
fn json_text(text: &str, flag: &str) -> Result<String> {
    let Some(path) = text.strip_prefix('@') else { return Ok(text.to_owned()) };
    let failed = |e: std::io::Error| bad(flag, text, &format!("cannot be read: {e}"));
    let file = std::fs::File::open(path).map_err(failed)?;
    let mut json = String::new();
    file.take(FILE_BYTES_MAX.saturating_add(1)).read_to_string(&mut json).map_err(failed)?;
    if json.len() as u64 > FILE_BYTES_MAX {
        return Err(bad(flag, text, "the file is over 1 MiB"));
    }
    Ok(json)
}

fn field_value(field: &FieldDescriptor, texts: &[String], flag: &str) -> Result<Value> {
    let is_json = message_of(field).is_some_and(|m| {
        let name = m.full_name();
        name != COIN && name != MASK && !JSON_STRINGS.contains(&name)
    });
    if is_json && texts.iter().any(|text| text.starts_with('@')) {
        let read: Vec<String> = texts.iter().map(|text| json_text(text, flag)).collect::<Result<_>>()?;
        if let Some(text) = read.iter().find(|text| text.starts_with('@')) {
            return Err(bad(flag, text, "a file named after @ holds JSON, not the name of another file"));
        }
        return field_value(field, &read, flag);
    }
    if field.is_map() {
        return through_json(field, parse_json(single(texts, flag)?, flag, "object")?, flag);
    }
    if !field.is_list() {
        return one(field, single(texts, flag)?, flag);
    }
    if let [text] = texts
        && text.trim_start().starts_with('[')
    {
        return through_json(field, parse_json(text, flag, "array")?, flag);
    }
    if message_of(field).is_some_and(|m| m.full_name() == COIN) {
        let coins = values::coins(&texts.join(",")).map_err(|rule| bad(flag, &texts.join(","), &rule))?;
        return Ok(Value::List(coins.iter().map(|coin| coin_value(field, coin)).collect::<Result<_>>()?));
    }
    Ok(Value::List(texts.iter().map(|text| one(field, text, flag)).collect::<Result<_>>()?))
}

fn parse_json(text: &str, flag: &str, kind: &str) -> Result<Json> {
    serde_json::from_str(text).map_err(|e| bad(flag, text, &format!("give a JSON {kind}: {e}")))
}

/// The field's value by way of its message's JSON, so that all of proto3 JSON is understood.
fn through_json(field: &FieldDescriptor, json: Json, flag: &str) -> Result<Value> {
    let parent = field.parent_message();
    let bytes = from_json(parent.full_name(), &json!({ field.name(): json }))
        .map_err(|e| fail(12, flag, e.to_string()))?;
    let message = DynamicMessage::decode(parent.clone(), bytes.as_slice())?;
    Ok(message.get_field(field).into_owned())
}

fn coin_value(field: &FieldDescriptor, coin: &Coin) -> Result<Value> {
    let descriptor = message_of(field).context("a coin is a message")?;
    let mut message = DynamicMessage::new(descriptor);
    message.set_field_by_name("denom", Value::String(coin.denom.clone()));
    message.set_field_by_name("amount", Value::String(coin.amount.to_string()));
    Ok(Value::Message(message))
}

/// One value of a field; of a repeated one, one element.
fn one(field: &FieldDescriptor, text: &str, flag: &str) -> Result<Value> {
    Ok(match field.kind() {
        Kind::String => Value::String(text.to_owned()),
        Kind::Bool => Value::Bool(text.parse().map_err(|_| bad(flag, text, "give true or false"))?),
        Kind::Bytes => {
            let digits = text.strip_prefix("0x").unwrap_or(text);
            let bytes =
                hex::decode(digits).map_err(|_| bad(flag, text, "give bytes in hex, two digits each"))?;
            Value::Bytes(bytes.into())
        }
        Kind::Uint32 | Kind::Fixed32 => Value::U32(number(text, flag, u32::MIN, u32::MAX)?),
        Kind::Uint64 | Kind::Fixed64 => Value::U64(number(text, flag, u64::MIN, u64::MAX)?),
        Kind::Int32 | Kind::Sint32 | Kind::Sfixed32 => Value::I32(number(text, flag, i32::MIN, i32::MAX)?),
        Kind::Int64 | Kind::Sint64 | Kind::Sfixed64 => Value::I64(number(text, flag, i64::MIN, i64::MAX)?),
        Kind::Float => Value::F32(text.parse().map_err(|_| bad(flag, text, "give a number"))?),
        Kind::Double => Value::F64(text.parse().map_err(|_| bad(flag, text, "give a number"))?),
        Kind::Enum(descriptor) => Value::EnumNumber(enum_number(&descriptor, text, flag)?),
        Kind::Message(descriptor) => match descriptor.full_name() {
            COIN => coin_value(field, &values::coin(text).map_err(|rule| bad(flag, text, &rule))?)?,
            MASK => {
                let names = text.split(',').map(|name| Value::String(name.trim().to_owned())).collect();
                let mut mask = DynamicMessage::new(descriptor);
                mask.set_field_by_name("paths", Value::List(names));
                Value::Message(mask)
            }
            name => {
                let json = if JSON_STRINGS.contains(&name) {
                    text.into()
                } else {
                    parse_json(text, flag, "object")?
                };
                let bytes = from_json(name, &json).map_err(|e| fail(12, flag, e.to_string()))?;
                Value::Message(DynamicMessage::decode(descriptor.clone(), bytes.as_slice())?)
            }
        },
    })
}

fn number<N: std::str::FromStr + std::fmt::Display>(text: &str, flag: &str, least: N, most: N) -> Result<N> {
    text.parse().map_err(|_| bad(flag, text, &format!("give a whole number from {least} to {most}")))
}

/// Names of an enum's values without the prefix that all share, in small letters.
fn short_names(descriptor: &EnumDescriptor) -> Vec<String> {
    let prefix = kebab(descriptor.name()).replace('-', "_").to_ascii_uppercase() + "_";
    descriptor
        .values()
        .map(|v| v.name().strip_prefix(&prefix).unwrap_or(v.name()).to_ascii_lowercase())
        .collect()
}

fn enum_number(descriptor: &EnumDescriptor, text: &str, flag: &str) -> Result<i32> {
    let short = short_names(descriptor);
    let wanted = text.to_ascii_lowercase().replace('-', "_");
    let found = descriptor
        .values()
        .zip(&short)
        .find(|(value, short)| value.name().eq_ignore_ascii_case(&wanted) || **short == wanted)
        .map(|(value, _)| value.number());
    found.ok_or_else(|| bad(flag, text, &format!("give one of {}", short.join(", "))))
}
