//! Stop texts, matched over the borders of deltas.
//!
//! The answer ends where the first stop text is *complete*; of several that end at one place the longest counts. So the
//! result does not depend on how the text is cut into deltas. Text that may be the beginning of a stop text is held back
//! until that is decided.
//!
//! Hosts get the stop texts with the prompt and end at them, and such an answer is paid for as any other that ends by
//! itself. What a host lets through is caught here: its inference is then cancelled, and costs what a cancelled one costs
//! (escrow-details 3, ReportError): `cancel_charge_bp` of the tokens that were delivered.

/// Cuts a text at the first stop text.
#[derive(Debug)]
pub(crate) struct StopFilter {
    stops: Vec<String>,
    /// Not handed out yet: the beginning of some stop text.
    held: String,
    found: bool,
}

impl StopFilter {
    /// Of texts that are not empty.
    pub(crate) fn new(stops: Vec<String>) -> Self {
        Self { stops, held: String::new(), found: false }
    }

    /// Takes what comes next; gives what may be handed out. After a match nothing more comes.
    pub(crate) fn push(&mut self, text: &str) -> String {
        if self.found {
            return String::new();
        }
        if self.stops.is_empty() {
            return text.to_owned();
        }
        let seen = self.held.len();
        self.held.push_str(text);
        let held = self.held.as_str();
        // Only an end in the new part can be a new match.
        let ends = held.char_indices().map(|(at, c)| at + c.len_utf8()).filter(|end| *end > seen);
        for end in ends {
            let whole = held.get(..end).unwrap_or_default();
            let longest =
                self.stops.iter().filter(|stop| whole.ends_with(stop.as_str())).map(String::len).max();
            if let Some(len) = longest {
                self.found = true;
                self.held.truncate(end - len);
                return std::mem::take(&mut self.held);
            }
        }
        let free = held.len() - self.longest_beginning(held);
        self.held.drain(..free).collect()
    }

    /// Whether a stop text was found.
    pub(crate) fn found(&self) -> bool {
        self.found
    }

    /// What is held back when nothing more comes.
    pub(crate) fn rest(&mut self) -> String {
        std::mem::take(&mut self.held)
    }

    /// Length of the longest end of `text` that is the beginning of a stop text.
    fn longest_beginning(&self, text: &str) -> usize {
        let most = self.stops.iter().map(String::len).max().unwrap_or(0).saturating_sub(1);
        let from = text.len().saturating_sub(most);
        text.char_indices()
            .map(|(at, _)| at)
            .filter(|at| *at >= from)
            .find(|at| {
                let end = text.get(*at..).unwrap_or_default();
                self.stops.iter().any(|stop| stop.len() > end.len() && stop.starts_with(end))
            })
            .map_or(0, |at| text.len() - at)
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn through(stops: &[String], pieces: &[String]) -> (String, bool) {
        let mut filter = StopFilter::new(stops.to_vec());
        let mut out = String::new();
        for piece in pieces {
            out.push_str(&filter.push(piece));
        }
        let found = filter.found();
        out.push_str(&filter.rest());
        (out, found)
    }

    /// By the definition, over the whole text.
    fn naive(stops: &[String], text: &str) -> (String, bool) {
        for end in (0..=text.len()).filter(|end| text.is_char_boundary(*end)) {
            let mut begin = None;
            for stop in stops {
                if text[..end].ends_with(stop.as_str()) {
                    begin = Some(begin.map_or(end - stop.len(), |b: usize| b.min(end - stop.len())));
                }
            }
            if let Some(begin) = begin {
                return (text[..begin].to_owned(), true);
            }
        }
        (text.to_owned(), false)
    }

    fn strings(texts: &[&str]) -> Vec<String> {
        texts.iter().map(|text| (*text).to_owned()).collect()
    }

    #[test]
    fn a_stop_text_over_two_borders_is_found_and_not_handed_out() {
        let mut filter = StopFilter::new(strings(&["\n\nUser:"]));
        assert_eq!(filter.push("Hello\n"), "Hello");
        assert_eq!(filter.push("\nUs"), "");
        assert_eq!(filter.push("er: x"), "");
        assert!(filter.found());
        assert_eq!((filter.push("more"), filter.rest()), (String::new(), String::new()));
    }

    #[test]
    fn held_text_that_turns_out_otherwise_is_handed_out() {
        let mut filter = StopFilter::new(strings(&["abab!"]));
        assert_eq!(filter.push("xaba"), "x");
        assert_eq!(filter.push("bab"), "ab");
        assert_eq!(filter.push("?"), "abab?");
        assert_eq!(filter.push("aba"), "");
        assert_eq!((filter.found(), filter.rest()), (false, "aba".to_owned()));
    }

    #[test]
    fn the_stop_text_that_is_complete_first_wins_and_of_two_at_one_place_the_longer() {
        assert_eq!(through(&strings(&["abcd", "bc"]), &strings(&["xabcd"])), ("xa".into(), true));
        assert_eq!(through(&strings(&["bc", "abc"]), &strings(&["xa", "bc"])), ("x".into(), true));
    }

    #[test]
    fn characters_of_several_bytes_are_never_cut() {
        let stops = strings(&["é→"]);
        assert_eq!(through(&stops, &strings(&["aé", "é", "→b"])), ("aé".into(), true));
        assert_eq!(through(&stops, &strings(&["日本é"])), ("日本é".into(), false));
    }

    proptest! {
        #[test]
        fn any_cut_gives_what_a_naive_search_over_the_whole_text_gives(
            stops in prop::collection::vec("[abé]{1,4}", 0..=4),
            pieces in prop::collection::vec("[abé]{0,5}", 0..8),
        ) {
            let whole = pieces.concat();
            prop_assert_eq!(through(&stops, &pieces), naive(&stops, &whole));
        }
    }
}
