//! Messages, queries and events of Holdfast as protobuf types.
//!
//! | module | holds |
//! |---|---|
//! | [`holdfast`] | the chain's own packages: `auth`, `bank`, `epochs`, `participants`, `inference`, `breaker`, `escrow`, `gov`, each `v1`; those off it: `runner`, `host`, `gateway` |
//! | [`cosmos`] | the part of the Cosmos SDK's packages that clients such as cosmrs, CosmJS and grpcurl rely on |
//! | [`google`] | the status of a failed gRPC call |
//! | [`tendermint`] | blocks and events as the consensus engine names them |
//!
//! The types are generated when the crate is built. Plain use needs `prost` only. Feature `client` adds a gRPC client
//! to each package that has a service, feature `json` adds the functions `to_json`, `from_json` and `pool`.
//!
//! Transactions are signed as bytes and hashed as bytes, so two encodings of one value must not both be taken:
//! [`decode_strict`] is the only way in for bytes from outside.

mod strict;

#[cfg(feature = "json")]
mod json;

#[cfg(test)]
mod tests;

/// Generated code; documented in the `.proto` files, whose comments it carries.
#[allow(missing_docs, unreachable_pub, clippy::all, clippy::pedantic, clippy::nursery)]
mod generated {
    include!(concat!(env!("OUT_DIR"), "/modules.rs"));
}

pub use generated::{cosmos, google, holdfast, tendermint};
pub use prost::{self, Message, Name};
pub use prost_types::{Any, Duration, FieldMask, Timestamp};
pub use strict::{StrictDecodeError, decode_strict};

#[cfg(feature = "json")]
pub use json::{JsonError, from_json, pool, to_json};

/// All files this crate knows, with imports, comments and custom options, as an encoded
/// `google.protobuf.FileDescriptorSet`. Serves gRPC reflection.
pub const FILE_DESCRIPTOR_SET: &[u8] = include_bytes!(concat!(env!("OUT_DIR"), "/descriptor.bin"));

/// Type URL of a message in the Cosmos form: `/` and the full name, without a host.
///
/// ```
/// use holdfast_proto::{holdfast::inference::v1::MsgStartInference, type_url};
/// assert_eq!(type_url::<MsgStartInference>(), "/holdfast.inference.v1.MsgStartInference");
/// ```
pub fn type_url<M: Name>() -> String {
    M::type_url()
}
