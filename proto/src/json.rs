//! Messages to and from proto3 JSON, by full name.

use std::sync::OnceLock;

use prost::Message;
use prost_reflect::{
    DescriptorPool, DeserializeOptions, DynamicMessage, MessageDescriptor, SerializeOptions,
};
use serde_json::Value;
use serde_path_to_error::Track;

use crate::FILE_DESCRIPTOR_SET;

/// Why a conversion to or from JSON failed.
#[derive(Debug, thiserror::Error)]
pub enum JsonError {
    /// This crate's descriptors do not form a pool; cannot happen in a build that passes the crate's tests.
    #[error("descriptor set is not consistent: {0}")]
    Descriptors(String),
    /// No message of that name.
    #[error("{full_name}: unknown message; use a full name such as holdfast.breaker.v1.GenesisState")]
    UnknownMessage {
        /// The name asked for.
        full_name: String,
    },
    /// The bytes are no message of that type.
    #[error("{full_name}: cannot be decoded: {source}")]
    Decode {
        /// Full name of the message.
        full_name: String,
        /// What prost found.
        source: prost::DecodeError,
    },
    /// The JSON does not fit the message: unknown field, wrong type, number out of range.
    #[error("{full_name}: {path}: {source}")]
    Json {
        /// Full name of the message.
        full_name: String,
        /// Field that was read or written, such as `entries[3].entry.state`; `.` for the message
        /// itself.
        path: String,
        /// What serde found.
        source: serde_json::Error,
    },
}

/// All message, enum and service descriptors of this crate; built at the first call.
///
/// # Errors
/// [`JsonError::Descriptors`] when the embedded descriptor set is broken.
pub fn pool() -> Result<&'static DescriptorPool, JsonError> {
    static POOL: OnceLock<Result<DescriptorPool, String>> = OnceLock::new();
    POOL.get_or_init(|| DescriptorPool::decode(FILE_DESCRIPTOR_SET).map_err(|source| source.to_string()))
        .as_ref()
        .map_err(|text| JsonError::Descriptors(text.clone()))
}

/// JSON of an encoded message: field names as in the `.proto` file, 64-bit integers as text, enums by name, `bytes` in
/// base64, defaults written out.
///
/// # Errors
/// [`JsonError::UnknownMessage`], [`JsonError::Decode`], or [`JsonError::Json`] when a packed `Any` is of an unknown
/// type.
pub fn to_json(full_name: &str, bytes: &[u8]) -> Result<Value, JsonError> {
    let message = DynamicMessage::decode(descriptor(full_name)?, bytes)
        .map_err(|source| JsonError::Decode { full_name: full_name.to_owned(), source })?;
    let options = SerializeOptions::new()
        .use_proto_field_name(true)
        .stringify_64_bit_integers(true)
        .use_enum_numbers(false)
        .skip_default_fields(false);
    let mut track = Track::new();
    message
        .serialize_with_options(
            serde_path_to_error::Serializer::new(serde_json::value::Serializer, &mut track),
            &options,
        )
        .map_err(|source| JsonError::Json {
            full_name: full_name.to_owned(),
            path: track.path().to_string(),
            source,
        })
}

/// Encoded message of a JSON value as [`to_json`] writes it; fields may be left out, unknown ones are refused.
///
/// # Errors
/// [`JsonError::UnknownMessage`] or [`JsonError::Json`].
pub fn from_json(full_name: &str, value: &Value) -> Result<Vec<u8>, JsonError> {
    let options = DeserializeOptions::new().deny_unknown_fields(true);
    let mut track = Track::new();
    let tracked = serde_path_to_error::Deserializer::new(value, &mut track);
    match DynamicMessage::deserialize_with_options(descriptor(full_name)?, tracked, &options) {
        Ok(message) => Ok(message.encode_to_vec()),
        Err(source) => {
            Err(JsonError::Json { full_name: full_name.to_owned(), path: track.path().to_string(), source })
        }
    }
}

fn descriptor(full_name: &str) -> Result<MessageDescriptor, JsonError> {
    pool()?
        .get_message_by_name(full_name)
        .ok_or_else(|| JsonError::UnknownMessage { full_name: full_name.to_owned() })
}
