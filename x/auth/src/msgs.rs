//! Messages, parsed and checked as far as no state is needed.

use holdfast_proto::cosmos::auth::v1beta1 as pb;
use holdfast_types::{Address, FieldError, Hrp, ModuleError, apply_mask, sdk};

use crate::{AuthError, PARAMS_FIELDS, Params};

/// `cosmos.auth.v1beta1.MsgUpdateParams`.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct UpdateParams {
    /// New values; only those named in `fields` are read.
    pub params: Params,
    /// Fields to change.
    pub fields: Vec<&'static str>,
}

impl UpdateParams {
    /// Parses the message. Fails with `sdk` 7 for no address, 4 for another signer than gov, 5 for mask or params.
    pub fn from_pb(msg: &pb::MsgUpdateParams, hrp: &Hrp) -> Result<Self, ModuleError> {
        let authority = Address::parse(&msg.authority, hrp)
            .map_err(|e| ModuleError::sdk(sdk::INVALID_ADDRESS, format!("authority: {e}")))?;
        let gov = Address::module("gov");
        if authority != gov {
            return Err(AuthError::InvalidSigner { expected: gov.to_bech32(hrp) }.into());
        }
        let invalid = |e: FieldError| ModuleError::from(AuthError::InvalidParams(e));
        let mask = msg.update_mask.as_ref().map(|m| m.paths.as_slice()).unwrap_or_default();
        let fields = apply_mask(mask, PARAMS_FIELDS).map_err(invalid)?;
        let params =
            msg.params.as_ref().ok_or_else(|| invalid(FieldError::new("params", "must be given")))?;
        Ok(Self { params: params.into(), fields })
    }
}
