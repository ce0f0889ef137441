//! Strings that end a text.

/// Lets text pass until a stop string comes. Text that may be the beginning of one is held back.
#[derive(Debug)]
pub struct Stops {
    strings: Vec<String>,
    held: String,
}

impl Stops {
    /// Nothing came yet.
    pub fn new(strings: &[String]) -> Self {
        let strings = strings.iter().filter(|string| !string.is_empty()).cloned().collect();
        Self { strings, held: String::new() }
    }

    /// What may pass after more text, and the stop string that ended it. Of several the one that begins first counts, and
    /// of those the longest.
    pub fn push(&mut self, text: &str) -> (String, Option<String>) {
        self.held.push_str(text);
        let found = self.strings.iter().filter_map(|s| Some((self.held.find(s.as_str())?, s)));
        let first = found.min_by_key(|(at, s)| (*at, std::cmp::Reverse(s.len())));
        if let Some((at, string)) = first {
            let string = string.clone();
            self.held.truncate(at);
            return (std::mem::take(&mut self.held), Some(string));
        }
        let free = self.held.len() - self.begun();
        let kept = self.held.split_off(free);
        (std::mem::replace(&mut self.held, kept), None)
    }

    /// The rest, when the text has ended.
    pub fn finish(&mut self) -> String {
        std::mem::take(&mut self.held)
    }

    /// Bytes at the end of the held text that a stop string begins with.
    fn begun(&self) -> usize {
        let of = |string: &String| {
            let ends = string.char_indices().map(|(at, _)| &string[..at]).rev();
            ends.map(str::len).find(|&length| self.held.ends_with(&string[..length]))
        };
        self.strings.iter().filter_map(of).max().unwrap_or(0)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn run(strings: &[&str], pieces: &[&str]) -> (Vec<String>, Option<String>) {
        let strings: Vec<String> = strings.iter().map(|&s| s.into()).collect();
        let mut stops = Stops::new(&strings);
        let mut passed = Vec::new();
        for piece in pieces {
            let (text, stop) = stops.push(piece);
            passed.push(text);
            if stop.is_some() {
                return (passed, stop);
            }
        }
        passed.push(stops.finish());
        (passed, None)
    }

    #[test]
    fn text_passes_up_to_a_stop_string() {
        let (passed, stop) = run(&["END"], &["one ", "E", "N", "X E", "ND two"]);
        assert_eq!(passed, ["one ", "", "", "ENX ", ""]);
        assert_eq!(stop.as_deref(), Some("END"));
        let (passed, stop) = run(&["END"], &["one E", "N"]);
        assert_eq!(
            (passed.concat().as_str(), stop),
            ("one EN", None),
            "what was held comes at last"
        );
    }

    #[test]
    fn the_first_of_several_counts_and_of_those_the_longest() {
        let (passed, stop) = run(&["b", "ab", "abc"], &["xabc"]);
        assert_eq!((passed.concat().as_str(), stop.as_deref()), ("x", Some("abc")));
        let (passed, stop) = run(&["aab"], &["a", "a", "a", "b"]);
        assert_eq!((passed.concat().as_str(), stop.as_deref()), ("a", Some("aab")));
    }

    #[test]
    fn characters_of_several_bytes_stay_whole() {
        let (passed, stop) = run(&["é!", ""], &["caf", "é", " é", "!"]);
        assert_eq!(passed, ["caf", "", "é ", ""]);
        assert_eq!(stop.as_deref(), Some("é!"));
    }

    #[test]
    fn without_stop_strings_nothing_is_held() {
        let (passed, stop) = run(&[], &["a", "b"]);
        assert_eq!((passed, stop), (vec!["a".to_owned(), "b".to_owned(), String::new()], None));
    }
}
