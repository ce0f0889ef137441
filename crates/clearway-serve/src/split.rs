//! The text of a model to its parts, as it comes: thoughts, words for the user, calls of tools.

/// A part of an answer.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Delta {
    /// Words for the user.
    Text(String),
    /// Thoughts.
    Reasoning(String),
    /// A call of a tool begins.
    Call {
        /// Name of the tool.
        name: String,
    },
    /// More of the arguments of the last call, as JSON.
    Arguments(String),
}

/// How a model writes calls of tools.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ToolFormat {
    /// `<tool_call>{"name": ..., "arguments": ...}</tool_call>`, any number of them: Hermes, Qwen.
    Tagged,
    /// `{"name": ..., "parameters": ...}` as the whole answer: Llama 3.
    Bare,
}

impl ToolFormat {
    /// Name of the field that holds the arguments.
    pub fn arguments(self) -> &'static str {
        match self {
            Self::Tagged => "arguments",
            Self::Bare => "parameters",
        }
    }
}

pub const CALL: &str = "<tool_call>";
pub const CALL_END: &str = "</tool_call>";
const THINK: &str = "<think>";
const THINK_END: &str = "</think>";
/// Llama 3 may put this in front of a call.
const PYTHON_TAG: &str = "<|python_tag|>";

/// What to look for in a text.
#[derive(Clone, Copy, Debug, Default)]
pub struct SplitOptions {
    /// Calls of tools in this format.
    pub tools: Option<ToolFormat>,
    /// Whether thoughts are told apart.
    pub reasoning: bool,
    /// Whether the prompt ends inside a thought.
    pub in_thought: bool,
}

/// Splits a text as it comes.
#[derive(Debug)]
pub struct Splitter {
    options: SplitOptions,
    state: State,
    /// Text that may be the beginning of a mark.
    held: String,
    /// Whether anything but spaces came outside of thoughts.
    begun: bool,
    /// Whether the next text follows a mark, whose line ends are no part of it.
    trim: bool,
}

#[derive(Debug)]
enum State {
    Text,
    Thought,
    /// In a call, before its arguments.
    Head,
    Arguments(Json),
    /// Behind the arguments of a call.
    Tail,
}

/// Where in a JSON value.
#[derive(Debug, Default)]
struct Json {
    depth: usize,
    in_string: bool,
    escaped: bool,
    begun: bool,
}

impl Json {
    /// Takes one more character; whether the value ends with it. Only objects and arrays know where they end.
    fn ends_with(&mut self, c: char) -> bool {
        self.begun |= !c.is_whitespace();
        if self.in_string {
            match c {
                _ if self.escaped => self.escaped = false,
                '\\' => self.escaped = true,
                '"' => self.in_string = false,
                _ => {}
            }
            return false;
        }
        match c {
            '"' => self.in_string = true,
            '{' | '[' => self.depth += 1,
            '}' | ']' => {
                self.depth = self.depth.saturating_sub(1);
                return self.depth == 0;
            }
            _ => {}
        }
        false
    }
}

impl Splitter {
    /// Nothing came yet.
    pub fn new(options: SplitOptions) -> Self {
        let state = if options.in_thought { State::Thought } else { State::Text };
        Self { options, state, held: String::new(), begun: false, trim: options.in_thought }
    }

    /// The parts that more text makes certain.
    pub fn push(&mut self, text: &str) -> Vec<Delta> {
        self.held.push_str(text);
        let mut out = Vec::new();
        while self.step(&mut out) {}
        out
    }

    /// The rest, when the text has ended.
    pub fn finish(&mut self) -> Vec<Delta> {
        let mut out = Vec::new();
        let held = std::mem::take(&mut self.held);
        match self.state {
            State::Text => self.text(held, &mut out),
            State::Thought => self.thought(held, &mut out),
            // A call that was cut off before its name is no call.
            State::Head | State::Arguments(_) | State::Tail => {}
        }
        out
    }

    /// Does what can be done; whether there may be more to do.
    fn step(&mut self, out: &mut Vec<Delta>) -> bool {
        match &mut self.state {
            State::Text => self.step_text(out),
            State::Thought => {
                let (before, found) = cut(&mut self.held, &[THINK_END]);
                self.thought(before, out);
                if found.is_some() {
                    self.state = State::Text;
                    self.trim = true;
                }
                found.is_some()
            }
            State::Head => {
                let field = self.options.tools.map_or("", ToolFormat::arguments);
                match head(&self.held, field) {
                    Some((name, rest)) => {
                        self.held.drain(..rest);
                        out.push(Delta::Call { name });
                        self.state = State::Arguments(Json::default());
                        true
                    }
                    None => false,
                }
            }
            State::Arguments(json) => {
                let end = self.held.char_indices().find(|&(_, c)| json.ends_with(c));
                let ended = end.is_some();
                let length = end.map_or(self.held.len(), |(at, c)| at + c.len_utf8());
                let arguments: String = self.held.drain(..length).collect();
                if !arguments.is_empty() {
                    out.push(Delta::Arguments(arguments));
                }
                if ended {
                    self.state = State::Tail;
                }
                ended
            }
            State::Tail => {
                let bare = self.options.tools == Some(ToolFormat::Bare);
                let (_, found) = cut(&mut self.held, &[if bare { ";" } else { CALL_END }]);
                if found.is_some() {
                    self.state = if bare { State::Head } else { State::Text };
                    self.trim = true;
                }
                found.is_some()
            }
        }
    }

    fn step_text(&mut self, out: &mut Vec<Delta>) -> bool {
        let bare = self.options.tools == Some(ToolFormat::Bare);
        if bare && !self.begun {
            // The first character decides.
            let start = self.held.trim_start();
            if let Some(rest) = start.strip_prefix(PYTHON_TAG) {
                self.held = rest.to_owned();
                self.state = State::Head;
                return true;
            }
            if start.is_empty() || PYTHON_TAG.starts_with(start) {
                return false;
            }
            if start.starts_with('{') {
                self.state = State::Head;
                return true;
            }
        }
        let mut marks = Vec::new();
        // A thought comes before everything else.
        let first = self.held.find(THINK).is_none_or(|at| self.held[..at].trim().is_empty());
        if self.options.reasoning && !self.begun && first {
            marks.push(THINK);
        }
        if self.options.tools == Some(ToolFormat::Tagged) {
            marks.push(CALL);
        }
        let (before, found) = cut(&mut self.held, &marks);
        self.text(before, out);
        match found {
            Some(THINK) => {
                self.state = State::Thought;
                self.trim = true;
            }
            Some(_) => self.state = State::Head,
            None => {}
        }
        found.is_some()
    }

    fn text(&mut self, text: String, out: &mut Vec<Delta>) {
        let text = self.trimmed(text);
        if text.is_empty() {
            return;
        }
        self.begun |= !text.trim().is_empty();
        out.push(Delta::Text(text));
    }

    fn thought(&mut self, text: String, out: &mut Vec<Delta>) {
        let text = self.trimmed(text);
        if !text.is_empty() {
            out.push(Delta::Reasoning(text));
        }
    }

    /// Text without the line ends that follow a mark.
    fn trimmed(&mut self, text: String) -> String {
        if !self.trim || text.is_empty() {
            return text;
        }
        let trimmed = text.trim_start_matches('\n').to_owned();
        self.trim = trimmed.is_empty();
        trimmed
    }
}

/// Takes the text up to one of the marks, and the mark; without one, all that cannot be the beginning of one.
fn cut<'m>(held: &mut String, marks: &[&'m str]) -> (String, Option<&'m str>) {
    let found = marks.iter().filter_map(|mark| Some((held.find(mark)?, *mark))).min();
    if let Some((at, mark)) = found {
        let before = held[..at].to_owned();
        held.drain(..at + mark.len());
        return (before, Some(mark));
    }
    let begun = |mark: &&str| {
        let ends = (1..mark.len()).rev().filter(|&end| mark.is_char_boundary(end));
        ends.into_iter().find(|&end| held.ends_with(&mark[..end])).unwrap_or(0)
    };
    let kept = marks.iter().map(begun).max().unwrap_or(0);
    let rest = held.split_off(held.len() - kept);
    (std::mem::replace(held, rest), None)
}

/// The name of a call and where its arguments begin, once both are there.
fn head(text: &str, field: &str) -> Option<(String, usize)> {
    let after = |text: &str, key: &str| {
        let at = text.find(key)? + key.len();
        let colon = at + text[at..].find(':')? + 1;
        let value = text[colon..].find(|c: char| !c.is_whitespace())?;
        Some(colon + value)
    };
    let start = after(text, "\"name\"")?;
    let mut values = serde_json::Deserializer::from_str(&text[start..]).into_iter::<String>();
    let name = values.next()?.ok()?;
    let behind = start + values.byte_offset();
    let arguments = behind + after(&text[behind..], &format!("\"{field}\""))?;
    Some((name, arguments))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn text(text: &str) -> Delta {
        Delta::Text(text.into())
    }

    /// The parts of a text that comes in pieces of every length, neighbours of a kind joined.
    fn split(options: SplitOptions, whole: &str) -> Vec<Delta> {
        let joined = |size: usize| {
            let mut splitter = Splitter::new(options);
            let chars: Vec<char> = whole.chars().collect();
            let mut parts: Vec<Delta> = Vec::new();
            let pieces = chars.chunks(size).map(|piece| piece.iter().collect::<String>());
            let mut all: Vec<Delta> = Vec::new();
            for piece in pieces {
                all.extend(splitter.push(&piece));
            }
            all.extend(splitter.finish());
            for delta in all {
                match (parts.last_mut(), &delta) {
                    (Some(Delta::Text(a)), Delta::Text(b))
                    | (Some(Delta::Reasoning(a)), Delta::Reasoning(b))
                    | (Some(Delta::Arguments(a)), Delta::Arguments(b)) => a.push_str(b),
                    _ => parts.push(delta),
                }
            }
            parts
        };
        let whole = joined(1);
        for size in [2, 3, 7, 1000] {
            assert_eq!(joined(size), whole, "pieces of {size}");
        }
        whole
    }

    #[test]
    fn thoughts_are_told_apart() {
        let options = SplitOptions { reasoning: true, ..SplitOptions::default() };
        let parts = split(options, "<think>\nhm <b>\n</think>\n\nYes <think> no");
        assert_eq!(parts, [Delta::Reasoning("hm <b>\n".into()), text("Yes <think> no")]);
        let parts = split(SplitOptions { in_thought: true, ..options }, "hm</think>Yes");
        assert_eq!(parts, [Delta::Reasoning("hm".into()), text("Yes")]);
        assert_eq!(split(SplitOptions::default(), "<think>a"), [text("<think>a")]);
    }

    #[test]
    fn tagged_calls_come_with_their_arguments() {
        let options = SplitOptions { tools: Some(ToolFormat::Tagged), ..SplitOptions::default() };
        let call = |name: &str, a: &str| {
            format!("<tool_call>\n{{\"name\": \"{name}\", \"arguments\": {a}}}\n</tool_call>")
        };
        let whole = format!("Wait.{}\n{}", call("f", r#"{"a": "}\"{"}"#), call("g\\u0041", "{}"));
        let arguments = |text: &str| Delta::Arguments(text.into());
        let name = |name: &str| Delta::Call { name: name.into() };
        assert_eq!(
            split(options, &whole),
            [text("Wait."), name("f"), arguments(r#"{"a": "}\"{"}"#), name("gA"), arguments("{}")]
        );
        assert_eq!(split(options, "a <tool"), [text("a <tool")]);
    }

    #[test]
    fn bare_calls_are_the_whole_answer() {
        let options = SplitOptions { tools: Some(ToolFormat::Bare), ..SplitOptions::default() };
        let expected =
            [Delta::Call { name: "f".into() }, Delta::Arguments(r#"{"x": [1, {"y": 2}]}"#.into())];
        let call = r#"{"name": "f", "parameters": {"x": [1, {"y": 2}]}}"#;
        assert_eq!(split(options, call), expected);
        assert_eq!(split(options, &format!("<|python_tag|>{call}")), expected);
        assert_eq!(split(options, "No {tool}"), [text("No {tool}")]);
    }
}
