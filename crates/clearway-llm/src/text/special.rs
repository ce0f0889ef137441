//! Finding special tokens in text: from left to right, the longest at each place.

use super::table::TokenTable;
use super::vocab::TokenKind;

/// Longer tokens are not looked for. Real ones have tens of bytes; without a limit a file could make the search quadratic.
const LONGEST: usize = 1024;

/// The texts of some tokens, sorted, with their ids.
#[derive(Debug, Default)]
pub(super) struct SpecialTokens {
    tokens: Vec<(Box<str>, u32)>,
    /// Where the tokens that start with a byte lie in `tokens`.
    starts: Vec<(u32, u32)>,
}

impl SpecialTokens {
    /// The tokens of `table` whose kind `include` accepts, as `spelled` writes them. Of equal texts the first id counts.
    pub(super) fn new(
        table: &TokenTable,
        include: impl Fn(TokenKind) -> bool,
        spelled: impl Fn(&str) -> String,
    ) -> Self {
        let mut tokens: Vec<(Box<str>, u32)> = (0..table.len() as u32)
            .filter(|&id| table.kind(id).is_some_and(&include))
            .filter_map(|id| Some((str::from_utf8(table.bytes(id)).ok()?, id)))
            .filter(|(text, _)| (1..=LONGEST).contains(&text.len()))
            .map(|(text, id)| (spelled(text).into(), id))
            .collect();
        tokens.sort();
        tokens.dedup_by(|later, earlier| later.0 == earlier.0);
        let mut starts = vec![(0, 0); 256];
        for (i, (text, _)) in tokens.iter().enumerate() {
            let range = &mut starts[usize::from(text.as_bytes()[0])];
            if range.0 == range.1 {
                range.0 = i as u32;
            }
            range.1 = i as u32 + 1;
        }
        Self { tokens, starts }
    }

    /// The id of a special token by its text.
    pub(super) fn id(&self, text: &str) -> Option<u32> {
        let found = self.tokens.binary_search_by(|(token, _)| token.as_ref().cmp(text));
        found.ok().map(|i| self.tokens[i].1)
    }

    /// The first special token in `text` at or after `from`: where it starts, where it ends, and its id.
    pub(super) fn find(&self, text: &str, from: usize) -> Option<(usize, usize, u32)> {
        if self.tokens.is_empty() {
            return None;
        }
        let bytes = text.as_bytes();
        (from..bytes.len()).find_map(|start| {
            let (lo, hi) = self.starts[usize::from(bytes[start])];
            // A token is valid UTF-8, so a match begins and ends between characters of the text.
            let (len, id) = self.longest_at(&bytes[start..], lo as usize, hi as usize)?;
            Some((start, start + len, id))
        })
    }

    /// Narrows the sorted tokens `lo..hi` byte by byte; the last one that ends is the longest match.
    fn longest_at(&self, text: &[u8], mut lo: usize, mut hi: usize) -> Option<(usize, u32)> {
        let mut best = None;
        let mut depth = 1;
        while lo < hi {
            let (token, id) = &self.tokens[lo];
            if token.len() == depth {
                best = Some((depth, *id));
                lo += 1;
            }
            let Some(&byte) = text.get(depth) else { break };
            let range = &self.tokens[lo..hi];
            let byte_at = |(token, _): &(Box<str>, u32)| token.as_bytes()[depth];
            let first = range.partition_point(|token| byte_at(token) < byte);
            let last = range.partition_point(|token| byte_at(token) <= byte);
            (lo, hi) = (lo + first, lo + last);
            depth += 1;
        }
        best
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn tokens(texts: &[&str]) -> SpecialTokens {
        let mut table = TokenTable::new(texts.len()).unwrap();
        for text in texts {
            table.push(TokenKind::Control, |out| out.extend(text.as_bytes())).unwrap();
        }
        SpecialTokens::new(&table, |_| true, str::to_owned)
    }

    #[test]
    fn the_longest_of_the_leftmost_wins() {
        let tokens = tokens(&["<a>", "<ab>", "<a", "b>c", "", "<a>", "é", "\n\n", "\n"]);
        assert_eq!(tokens.find("x<a>y", 0), Some((1, 4, 0)));
        assert_eq!(tokens.find("x<ab>c", 0), Some((1, 5, 1)));
        assert_eq!(tokens.find("x<ab", 0), Some((1, 3, 2)));
        assert_eq!(tokens.find("ab>c", 0), Some((1, 4, 3)));
        assert_eq!(tokens.find("caffé", 0), Some((4, 6, 6)));
        assert_eq!(tokens.find("a\n\n\n", 0), Some((1, 3, 7)));
        assert_eq!(tokens.find("a\n\n\n", 3), Some((3, 4, 8)));
        assert_eq!(tokens.find("plain < text", 0), None);
        assert_eq!(tokens.id("<ab>"), Some(1));
        assert_eq!(tokens.id("<"), None);
    }

    #[test]
    fn every_text_agrees_with_a_plain_search() {
        let texts = ["a", "ab", "abc", "bca", "cc", "caab", "bb"];
        let tokens = tokens(&texts);
        let mut state = 3u64;
        for _ in 0..3000 {
            let text: String = (0..12)
                .map(|_| {
                    state = state.wrapping_mul(6364136223846793005).wrapping_add(1);
                    char::from(b'a' + ((state >> 40) % 4) as u8)
                })
                .collect();
            let plain = (0..text.len()).find_map(|start| {
                let at = |&(_, t): &(usize, &&str)| text[start..].starts_with(*t);
                let (id, found) =
                    texts.iter().enumerate().filter(at).max_by_key(|(_, t)| t.len())?;
                Some((start, start + found.len(), id as u32))
            });
            assert_eq!(tokens.find(&text, 0), plain, "{text}");
        }
    }
}
