//! W3C trace context: one trace id from a client's request to the worker that computes for it.

use std::fmt;

/// A `traceparent` of version 00. Shown as the header's text.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct TraceContext {
    /// The same at every hop.
    pub trace_id: [u8; 16],
    /// Span of the caller.
    pub parent_id: [u8; 8],
    /// Bit 0: sampled.
    pub flags: u8,
}

impl TraceContext {
    /// Reads `00-<32 hex>-<16 hex>-<2 hex>`, lower case, ids not all zero. `None` for anything else: a trace that cannot
    /// be read is begun anew, never an error.
    #[must_use]
    pub fn parse(text: &str) -> Option<Self> {
        let mut parts = text.split('-');
        let (version, trace, parent, flags) = (parts.next()?, parts.next()?, parts.next()?, parts.next()?);
        if version != "00" || parts.next().is_some() {
            return None;
        }
        let (trace_id, parent_id, [flags]) = (bytes(trace)?, bytes(parent)?, bytes(flags)?);
        (trace_id != [0; 16] && parent_id != [0; 8]).then_some(Self { trace_id, parent_id, flags })
    }

    /// The context of a call made within this one: the same trace, another span.
    #[must_use]
    pub fn child(self, span: [u8; 8]) -> Self {
        Self { parent_id: span, ..self }
    }
}

/// Exactly `N` bytes of lower-case hex.
fn bytes<const N: usize>(text: &str) -> Option<[u8; N]> {
    let mut out = [0; N];
    let digits = text.as_bytes();
    if digits.len() != N * 2 {
        return None;
    }
    let digit = |byte: u8| match byte {
        b'0'..=b'9' => Some(byte - b'0'),
        b'a'..=b'f' => Some(byte - b'a' + 10),
        _ => None,
    };
    for (byte, pair) in out.iter_mut().zip(digits.chunks_exact(2)) {
        *byte = digit(pair[0])? << 4 | digit(pair[1])?;
    }
    Some(out)
}

impl fmt::Display for TraceContext {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("00-")?;
        self.trace_id.iter().try_for_each(|byte| write!(f, "{byte:02x}"))?;
        f.write_str("-")?;
        self.parent_id.iter().try_for_each(|byte| write!(f, "{byte:02x}"))?;
        write!(f, "-{:02x}", self.flags)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_example_of_the_recommendation_comes_back_and_anything_else_is_none() {
        let text = "00-4bf92f3577b34da6a3ce929d0e0e4736-00f067aa0ba902b7-01";
        let context = TraceContext::parse(text).unwrap();
        assert_eq!((context.trace_id[0], context.parent_id[7], context.flags), (0x4b, 0xb7, 1));
        assert_eq!(context.to_string(), text);
        let child = context.child([0xb9, 0xc7, 0xc9, 0x89, 0xf9, 0x79, 0x18, 0xe1]);
        assert_eq!(child.to_string(), "00-4bf92f3577b34da6a3ce929d0e0e4736-b9c7c989f97918e1-01");
        for bad in [
            "",
            "00-00000000000000000000000000000000-00f067aa0ba902b7-01",
            "00-4bf92f3577b34da6a3ce929d0e0e4736-0000000000000000-01",
            "00-4BF92F3577B34DA6A3CE929D0E0E4736-00f067aa0ba902b7-01",
            "ff-4bf92f3577b34da6a3ce929d0e0e4736-00f067aa0ba902b7-01",
            "00-4bf92f3577b34da6a3ce929d0e0e4736-00f067aa0ba902b7-01-x",
            "00-4bf92f3577b34da6a3ce929d0e0e473-00f067aa0ba902b7-01",
            "00-4bf92f3577b34da6a3ce929d0e0e473é-00f067aa0ba902b7-01",
        ] {
            assert_eq!(TraceContext::parse(bad), None, "{bad}");
        }
    }
}
