//! Answers that follow a grammar: JSON, a JSON schema, a regular expression or a grammar in Lark's notation.
//!
//! [`Grammars`] belongs to a vocabulary and is made once. [`Grammars::compile`] gives a [`Constraint`] for one text: before
//! each token it says which tokens may come, and at the end of the grammar it allows only those that end a text. What
//! cannot be enforced is refused when it is compiled, never while a text is written.
//!
//! ```no_run
//! use clearway_llm::grammar::{Grammar, Grammars};
//! # fn main() -> Result<(), Box<dyn std::error::Error>> {
//! # let tokenizer = clearway_llm::text::Tokenizer::new(&clearway_llm::text::Vocab::default())?;
//! let grammars = Grammars::new(&tokenizer)?;
//! let constraint = grammars.compile(&Grammar::Regex("[0-9]{4}-[0-9]{2}".into()))?;
//! # Ok(())
//! # }
//! ```
//!
//! The work is done by `llguidance`, with limits on what a grammar may cost.

use std::sync::Arc;

use llguidance::api::{ParserLimits, TopLevelGrammar};
use llguidance::{Matcher, ParserFactory};
use serde_json::Value;
use toktrie::{ApproximateTokEnv, TokEnv, TokRxInfo, TokTrie};

use crate::engine::{Constraint, EngineError, Result, TokenMask};
use crate::text::{TokenKind, Tokenizer};

/// Longest token that a grammar sees.
const MAX_TOKEN_BYTES: usize = 1 << 10;
/// Longest grammar.
const MAX_SOURCE_BYTES: usize = 1 << 20;

/// The key of a schema under which llguidance looks for options.
const OPTIONS: &str = "x-guidance";

/// What an answer must look like.
#[derive(Clone, Debug, PartialEq)]
pub enum Grammar {
    /// Any JSON object.
    JsonObject,
    /// JSON that a schema describes.
    JsonSchema(Value),
    /// Text that a regular expression matches from its beginning to its end.
    Regex(String),
    /// Text that a grammar in Lark's notation derives, with the extensions of llguidance.
    Lark(String),
}

/// Why a grammar cannot be enforced.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{message}")]
pub struct GrammarError {
    /// The keyword of a JSON schema that is to blame, where one is.
    pub keyword: Option<String>,
    /// What is wrong.
    pub message: String,
}

/// Makes constraints for the texts of one vocabulary.
pub struct Grammars {
    factory: ParserFactory,
    /// Tokens that end a text.
    ends: Arc<[u32]>,
}

impl Grammars {
    /// Prepares a vocabulary.
    ///
    /// # Errors
    /// A vocabulary without a token that ends a text.
    pub fn new(tokenizer: &Tokenizer) -> Result<Self, GrammarError> {
        let ends: Arc<[u32]> = tokenizer.end_tokens().into();
        let end = tokenizer.eos().or_else(|| ends.first().copied());
        let end = end.ok_or_else(|| error("the vocabulary has no token that ends a text"))?;
        let word = |id: u32| {
            let bytes = tokenizer.token_bytes(id).unwrap_or_default();
            let special =
                tokenizer.token_kind(id).is_none_or(TokenKind::is_special) || ends.contains(&id);
            match special {
                _ if bytes.len() > MAX_TOKEN_BYTES => Vec::new(),
                // Text never makes a special token; the mark keeps them apart.
                true => [&[TokTrie::SPECIAL_TOKEN_MARKER], bytes].concat(),
                false => bytes.to_vec(),
            }
        };
        let words: Vec<Vec<u8>> = (0..tokenizer.len() as u32).map(word).collect();
        let trie = TokTrie::from(&TokRxInfo::new(words.len() as u32, end), &words);
        let env: TokEnv = Arc::new(ApproximateTokEnv::new(trie));
        let mut factory =
            ParserFactory::new_simple(&env).map_err(|problem| error(problem.to_string()))?;
        factory.quiet();
        *factory.limits_mut() = ParserLimits { verbose_errors: false, ..ParserLimits::default() };
        Ok(Self { factory, ends })
    }

    /// A constraint for one text.
    ///
    /// # Errors
    /// A grammar that is malformed, too large, or asks for what cannot be enforced.
    pub fn compile(&self, grammar: &Grammar) -> Result<GrammarConstraint, GrammarError> {
        let top = match grammar {
            Grammar::JsonObject => {
                let schema = serde_json::json!({ "type": "object" });
                TopLevelGrammar::from_json_schema(with_options(&schema)?)
            }
            Grammar::JsonSchema(schema) => {
                check_size(schema.to_string().len())?;
                TopLevelGrammar::from_json_schema(with_options(schema)?)
            }
            Grammar::Regex(regex) => {
                check_size(regex.len())?;
                TopLevelGrammar::from_regex(regex)
            }
            Grammar::Lark(source) => {
                check_size(source.len())?;
                TopLevelGrammar::from_lark(source.clone())
            }
        };
        // The parser reports some malformed grammars by a panic.
        let make = std::panic::AssertUnwindSafe(|| self.factory.create_parser(top));
        let Ok(parser) = std::panic::catch_unwind(make) else {
            return Err(error("the grammar cannot be read"));
        };
        let mut matcher = Matcher::new(parser);
        let failed = matcher.get_error().or_else(|| matcher.grammar_warnings().into_iter().next());
        match failed {
            Some(message) => {
                Err(GrammarError { keyword: keyword(&message), message: shorten(&message) })
            }
            None => Ok(GrammarConstraint { matcher, ends: self.ends.clone() }),
        }
    }
}

/// A grammar in the middle of a text.
pub struct GrammarConstraint {
    matcher: Matcher,
    ends: Arc<[u32]>,
}

impl GrammarConstraint {
    /// Whether the text may end here.
    pub fn may_end(&mut self) -> bool {
        self.matcher.is_accepting().unwrap_or(false)
    }
}

impl Constraint for GrammarConstraint {
    fn mask(&mut self) -> Result<Option<Arc<TokenMask>>> {
        let ends = self.matcher.is_stopped() || self.may_end();
        let allowed =
            self.matcher.compute_mask_or_eos().map_err(|problem| failed(&problem.to_string()))?;
        let mut mask = TokenMask::from_words(allowed.as_slice().to_vec());
        if ends {
            self.ends.iter().for_each(|&end| mask.allow(end));
        }
        Ok(Some(Arc::new(mask)))
    }

    fn accept(&mut self, token: u32) -> Result<()> {
        if self.ends.contains(&token) || self.matcher.is_stopped() {
            return Ok(());
        }
        self.matcher.consume_token(token).map_err(|problem| failed(&problem.to_string()))
    }
}

/// A date that calendars have: RFC 3339 counts years from 0000, and most calendars know none; February has 29 days in leap years.
const DATE: &str = concat!(
    "(?:(?:[0-9]{3}[1-9]|[0-9]{2}[1-9][0-9]|[0-9][1-9][0-9]{2}|[1-9][0-9]{3})-",
    "(?:(?:0[13578]|1[02])-(?:0[1-9]|[12][0-9]|3[01])",
    "|(?:0[469]|11)-(?:0[1-9]|[12][0-9]|30)",
    "|02-(?:0[1-9]|1[0-9]|2[0-8]))",
    "|(?:[0-9]{2}(?:0[48]|[2468][048]|[13579][26])|(?:0[48]|[2468][048]|[13579][26])00)-02-29)",
);

/// Keywords whose values are not schemas, and those whose values have schemas by name.
const PLAIN: [&str; 4] = ["const", "enum", "default", "examples"];
const NAMED: [&str; 5] =
    ["properties", "patternProperties", "$defs", "definitions", "dependentSchemas"];

/// Lets every date of a schema be one of the calendar, which llguidance leaves out.
fn keep_to_calendar(schema: &mut Value) {
    match schema {
        Value::Array(all) => all.iter_mut().for_each(keep_to_calendar),
        Value::Object(fields) => {
            for (keyword, value) in fields.iter_mut() {
                match value {
                    Value::Object(named) if NAMED.contains(&&**keyword) => {
                        named.values_mut().for_each(keep_to_calendar);
                    }
                    _ if PLAIN.contains(&&**keyword) => {}
                    _ => keep_to_calendar(value),
                }
            }
            let end = match fields.get("format").and_then(Value::as_str) {
                Some("date") => "$",
                Some("date-time") => "[tT]",
                _ => return,
            };
            let pattern = Value::String(format!("^{DATE}{end}"));
            if !fields.contains_key("pattern") {
                fields.insert("pattern".into(), pattern);
                return;
            }
            // It has one of its own: both hold.
            let more = serde_json::json!({ "pattern": pattern });
            match fields.get_mut("allOf") {
                Some(Value::Array(all)) => all.push(more),
                _ => {
                    fields.insert("allOf".into(), Value::Array(vec![more]));
                }
            }
        }
        _ => {}
    }
}

/// A schema with our options. Between the parts of a value there may be a space, or a line end with an indent: a model that
/// could write as many as it likes sometimes never stops.
///
/// # Errors
/// A schema that brings options of its own: they could switch the enforcement off.
pub fn with_options(schema: &Value) -> Result<Value, GrammarError> {
    let schema = match schema {
        Value::Object(fields) => fields.clone(),
        // `true` allows every value.
        Value::Bool(true) => serde_json::Map::new(),
        _ => return Err(error("a JSON schema is an object")),
    };
    if schema.contains_key(OPTIONS) {
        let message = format!("\"{OPTIONS}\" is not supported in a schema");
        return Err(GrammarError { keyword: Some(OPTIONS.into()), message });
    }
    let pattern = "\\n {0,24}| ";
    let options = serde_json::json!({ "whitespace_flexible": true, "whitespace_pattern": pattern });
    let mut schema = Value::Object(schema);
    keep_to_calendar(&mut schema);
    if let Value::Object(fields) = &mut schema {
        fields.insert(OPTIONS.into(), options);
    }
    Ok(schema)
}

fn check_size(bytes: usize) -> Result<(), GrammarError> {
    match bytes > MAX_SOURCE_BYTES {
        true => {
            Err(error(format!("the grammar has {bytes} bytes; the limit is {MAX_SOURCE_BYTES}")))
        }
        false => Ok(()),
    }
}

fn error(message: impl Into<String>) -> GrammarError {
    GrammarError { keyword: None, message: message.into() }
}

fn failed(message: &str) -> EngineError {
    EngineError::Grammar { what: shorten(message) }
}

/// The first word in quotes of a message about a schema.
fn keyword(message: &str) -> Option<String> {
    let (_, rest) = message.split_once('"')?;
    let (word, _) = rest.split_once('"')?;
    let plain = !word.is_empty() && word.chars().all(|c| c.is_alphanumeric() || c == '$');
    plain.then(|| word.to_owned())
}

fn shorten(message: &str) -> String {
    match message.char_indices().nth(500) {
        Some((end, _)) => format!("{}…", &message[..end]),
        None => message.to_owned(),
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;
    use crate::text::Vocab;

    /// All printable bytes as tokens, some longer ones, and an end.
    fn tokenizer() -> Tokenizer {
        let mut tokens: Vec<String> =
            (33_u8..127).map(|byte| char::from(byte).to_string()).collect();
        tokens.extend(["Ġ", "Ċ", "{\"", "\":", "tr", "true", "<end>"].map(String::from));
        let mut types = vec![1; tokens.len()];
        *types.last_mut().unwrap() = 3;
        let end = tokens.len() as u32 - 1;
        Tokenizer::new(&Vocab {
            model: "gpt2",
            pre: Some("gpt-2"),
            tokens: tokens.iter().map(|token| token.as_bytes()).collect(),
            token_types: Some(&types),
            merges: vec![b"t r"],
            eos: Some(end),
            ..Vocab::default()
        })
        .unwrap()
    }

    /// Whether a text, byte by byte, follows a grammar to its end.
    fn follows(grammar: &Grammar, text: &str) -> bool {
        let tokenizer = tokenizer();
        let mut constraint = Grammars::new(&tokenizer).unwrap().compile(grammar).unwrap();
        for c in text.chars() {
            let token = tokenizer.token_id(&c.to_string()).unwrap();
            if !constraint.mask().unwrap().unwrap().allows(token) {
                return false;
            }
            constraint.accept(token).unwrap();
        }
        let end = tokenizer.eos().unwrap();
        constraint.mask().unwrap().unwrap().allows(end)
    }

    #[test]
    fn texts_follow_a_grammar_or_are_cut_off() {
        let regex = Grammar::Regex("[0-9]{2}(px|em)".into());
        assert!(follows(&regex, "12px") && follows(&regex, "99em"));
        assert!(!follows(&regex, "12p") && !follows(&regex, "1px") && !follows(&regex, "12pxx"));
        let lark = Grammar::Lark("start: \"a\" b+\nb: \"b\" | \"c\"".into());
        assert!(follows(&lark, "abc") && !follows(&lark, "a") && !follows(&lark, "bc"));
        let schema = json!({
            "type": "object", "properties": { "a": { "type": "boolean" } }, "required": ["a"],
            "additionalProperties": false
        });
        let schema = Grammar::JsonSchema(schema);
        assert!(follows(&schema, r#"{"a":true}"#) && follows(&schema, r#"{"a": false}"#));
        assert!(!follows(&schema, r#"{"a":  true}"#), "spaces do not go on for ever");
        assert!(!follows(&schema, r#"{"a":1}"#) && !follows(&schema, r#"{"b":true}"#));
        assert!(!follows(&schema, r#"{"a":true"#), "it may not end here");
        assert!(follows(&Grammar::JsonObject, r#"{"x":[1,null]}"#));
        assert!(!follows(&Grammar::JsonObject, "[1]"));
    }

    #[test]
    fn dates_are_those_of_the_calendar() {
        let date = json!({ "type": "string", "format": "date" });
        let time = json!({ "type": "string", "format": "date-time" });
        let object = json!({
            "type": "object", "properties": { "enum": date }, "required": ["enum"],
            "additionalProperties": false
        });
        let [date, time, object] = [date, time, object].map(Grammar::JsonSchema);
        let calendar = ["2024-02-29", "2000-02-29", "0001-01-01", "0400-02-29", "9999-12-31"];
        let none = ["0000-01-01", "0000-02-29", "2023-02-29", "1900-02-29", "2024-04-31"];
        for (days, are) in [(calendar, true), (none, false)] {
            for day in days {
                assert_eq!(follows(&date, &format!("\"{day}\"")), are, "{day}");
                assert_eq!(follows(&time, &format!("\"{day}T10:00:00Z\"")), are, "{day}");
                assert_eq!(follows(&object, &format!("{{\"enum\":\"{day}\"}}")), are, "{day}");
            }
        }
        // A pattern of its own holds, too, and a value that only looks like a schema is left alone.
        let own = json!({ "type": "string", "format": "date", "pattern": "^00" });
        let own = Grammar::JsonSchema(own);
        assert!(follows(&own, "\"0012-01-01\"") && !follows(&own, "\"1012-01-01\""));
        assert!(!follows(&own, "\"0000-01-01\""));
        let value = Grammar::JsonSchema(json!({ "const": { "format": "date" } }));
        assert!(follows(&value, r#"{"format":"date"}"#));
    }

    #[test]
    fn a_finished_grammar_allows_the_end_and_nothing_else() {
        let tokenizer = tokenizer();
        let grammars = Grammars::new(&tokenizer).unwrap();
        let mut constraint = grammars.compile(&Grammar::Regex("a".into())).unwrap();
        constraint.accept(tokenizer.token_id("a").unwrap()).unwrap();
        let mask = constraint.mask().unwrap().unwrap();
        let allowed: Vec<u32> = (0..tokenizer.len() as u32).filter(|&id| mask.allows(id)).collect();
        assert_eq!(allowed, tokenizer.end_tokens());
    }

    #[test]
    fn what_cannot_be_enforced_is_refused_by_its_keyword() {
        let tokenizer = tokenizer();
        let grammars = Grammars::new(&tokenizer).unwrap();
        let refuse = |grammar: Grammar| grammars.compile(&grammar).err().unwrap();
        let refused = refuse(Grammar::JsonSchema(json!({ "type": "array", "uniqueItems": true })));
        assert_eq!(refused.keyword.as_deref(), Some("uniqueItems"), "{refused}");
        let lenient =
            json!({ "type": "array", "uniqueItems": true, "x-guidance": { "lenient": true } });
        assert_eq!(refuse(Grammar::JsonSchema(lenient)).keyword.as_deref(), Some("x-guidance"));
        refuse(Grammar::JsonSchema(json!({ "type": "nothing" })));
        refuse(Grammar::JsonSchema(json!({ "$ref": "https://example.com/x" })));
        refuse(Grammar::Regex("(".into()));
        refuse(Grammar::Lark("start: missing".into()));
        refuse(Grammar::Lark(String::new()));
    }
}
