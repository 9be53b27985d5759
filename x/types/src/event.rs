//! Events: for indexers and people, never wiring between modules.

/// A typed event: `kind` is the protobuf message name (`holdfast.breaker.v1.EventExecutorExcluded`),
/// attributes are plain strings in the message's field order: integers decimal, booleans `true`/`false`,
/// addresses bech32.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Event {
    /// Full protobuf name.
    pub kind: String,
    /// Name and value, in order.
    pub attributes: Vec<(String, String)>,
}

impl Event {
    /// An event without attributes.
    pub fn new(kind: impl Into<String>) -> Self {
        Self { kind: kind.into(), attributes: Vec::new() }
    }

    /// Adds an attribute.
    #[must_use]
    pub fn with(mut self, name: &str, value: impl ToString) -> Self {
        self.attributes.push((name.to_owned(), value.to_string()));
        self
    }

    /// The value of attribute `name`.
    pub fn get(&self, name: &str) -> Option<&str> {
        self.attributes.iter().find(|(n, _)| n == name).map(|(_, v)| v.as_str())
    }
}
