//! What an answer repeats of a stranger's text: enough to recognise it, never all of a long one.

/// Longest text repeated whole, in characters.
pub const SHOWN_CHARS: usize = 100;
/// Longest message of an error, in characters.
pub const MESSAGE_CHARS: usize = 4_096;

/// The first [`SHOWN_CHARS`] characters of a value, `…` behind them when there are more.
pub fn shown(text: &str) -> String {
    cut(text, SHOWN_CHARS)
}

/// The first `most` characters, `…` behind them when there are more.
///
/// ```
/// use holdfast_app::echo::cut;
/// assert_eq!(cut("päth", 4), "päth");
/// assert_eq!(cut("päths", 4), "päth…");
/// ```
pub fn cut(text: &str, most: usize) -> String {
    match text.char_indices().nth(most) {
        Some((end, _)) => format!("{}…", text.get(..end).unwrap_or_default()),
        None => text.to_owned(),
    }
}
