//! Decoding that takes one encoding of each value only.

use prost::{Message, Name};

/// Why bytes were refused by [`decode_strict`].
#[derive(Clone, Debug, PartialEq, thiserror::Error)]
pub enum StrictDecodeError {
    /// The bytes are no message of this type: cut short, a wrong wire type, text that is not UTF-8, nested too deep.
    #[error("{type_name}: cannot be decoded: {source}; encode the message with this chain's definitions")]
    Malformed {
        /// Full name of the message.
        type_name: String,
        /// What prost found.
        source: prost::DecodeError,
    },
    /// The bytes decode, but are not the encoding this chain uses.
    #[error(
        "{type_name}: encoding differs from the canonical one at byte {offset} ({given} bytes given, {canonical} \
         canonical): {hint}; send each known field once, in ascending order, with shortest varints and defaults left out"
    )]
    NotCanonical {
        /// Full name of the message.
        type_name: String,
        /// First byte that differs.
        offset: usize,
        /// Length of the bytes given.
        given: usize,
        /// Length of the canonical encoding.
        canonical: usize,
        /// Likely cause.
        hint: &'static str,
    },
}

/// Decodes `bytes` and requires that encoding the value again gives the same bytes.
///
/// So unknown fields, trailing bytes, long varints, fields out of order or given twice, and defaults written out are
/// all refused, at any depth except inside `bytes` fields and packed `Any` values, which the caller decodes on its own.
///
/// # Errors
/// [`StrictDecodeError::Malformed`] when the bytes are no such message, [`StrictDecodeError::NotCanonical`] when they
/// are one in another encoding.
pub fn decode_strict<M: Message + Name + Default>(bytes: &[u8]) -> Result<M, StrictDecodeError> {
    let message = M::decode(bytes)
        .map_err(|source| StrictDecodeError::Malformed { type_name: M::full_name(), source })?;
    let canonical = message.encode_to_vec();
    if canonical == bytes {
        return Ok(message);
    }
    let offset = canonical.iter().zip(bytes).take_while(|(ours, theirs)| ours == theirs).count();
    let hint = if offset == canonical.len() {
        "bytes follow that belong to no field, such as an unknown field or a default written out"
    } else if bytes.len() > canonical.len() {
        "an unknown field, a field given twice, a varint longer than needed or a default written out"
    } else if bytes.len() == canonical.len() {
        "fields are out of order, or a value is not in its usual form"
    } else {
        "a value is in a shorter form than the usual one, such as numbers of a list not packed"
    };
    Err(StrictDecodeError::NotCanonical {
        type_name: M::full_name(),
        offset,
        given: bytes.len(),
        canonical: canonical.len(),
        hint,
    })
}
