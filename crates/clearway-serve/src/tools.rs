//! Tools: what a request offers, the grammar that calls of them follow, and how a prompt describes them.

use clearway_llm::grammar::{Grammar, with_options};
use serde_json::{Value, json};

use crate::error::{ApiError, Result};
use crate::fields::{Fields, wrong};
use crate::split::{CALL, CALL_END, ToolFormat};

/// Most tools of a request.
const MAX_TOOLS: usize = 128;

/// A function that the model may call.
#[derive(Clone, Debug)]
pub struct Tool {
    /// Its name.
    pub name: String,
    /// What it does.
    pub description: Option<String>,
    /// Schema of its arguments.
    pub parameters: Value,
}

/// Whether tools are called.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Choice {
    /// As the model likes.
    Auto,
    /// Never.
    None,
    /// One at least.
    Required,
    /// This one.
    Named(String),
}

/// The tools of a request.
#[derive(Clone, Debug)]
pub struct Tools {
    /// Which there are.
    pub tools: Vec<Tool>,
    /// Whether they are called.
    pub choice: Choice,
    /// Whether there may be several calls in one answer.
    pub parallel: bool,
}

impl Default for Tools {
    fn default() -> Self {
        Self { tools: Vec::new(), choice: Choice::Auto, parallel: true }
    }
}

impl Tool {
    /// A tool with a name that OpenAI would take.
    ///
    /// # Errors
    /// Another name, or parameters that are no schema.
    pub fn new(
        path: &str,
        name: String,
        description: Option<String>,
        parameters: Option<Value>,
    ) -> Result<Self> {
        let fits = |c: char| c.is_ascii_alphanumeric() || matches!(c, '_' | '-' | '.');
        if name.is_empty() || name.len() > 128 || !name.chars().all(fits) {
            let message = "must be 1 to 128 letters, digits, underscores, hyphens or points";
            return Err(ApiError::field(format!("{path}.name"), message));
        }
        let parameters =
            parameters.unwrap_or_else(|| json!({ "type": "object", "properties": {} }));
        if !parameters.is_object() {
            return Err(wrong(&format!("{path}.parameters"), "a JSON schema", &parameters));
        }
        with_options(&parameters)
            .map_err(|error| ApiError::field(format!("{path}.parameters"), error))?;
        Ok(Self { name, description, parameters })
    }

    /// In OpenAI's form, which is what templates expect.
    pub fn openai(&self) -> Value {
        let mut function = json!({ "name": self.name });
        if let Some(description) = &self.description {
            function["description"] = json!(description);
        }
        function["parameters"] = self.parameters.clone();
        json!({ "type": "function", "function": function })
    }
}

impl Tools {
    /// Checks the number of tools, their names and the choice.
    ///
    /// # Errors
    /// Too many, two of a name, a choice without tools or of a tool that is not there.
    pub fn check(&self) -> Result<()> {
        if self.tools.len() > MAX_TOOLS {
            return Err(ApiError::field("tools", format!("has more than {MAX_TOOLS} entries")));
        }
        for (at, tool) in self.tools.iter().enumerate() {
            if self.tools[..at].iter().any(|other| other.name == tool.name) {
                return Err(ApiError::field("tools", format!("has `{}` twice", tool.name)));
            }
        }
        match &self.choice {
            Choice::Required if self.tools.is_empty() => {
                Err(ApiError::field("tool_choice", "needs `tools`"))
            }
            Choice::Named(name) if self.tools.iter().all(|tool| tool.name != *name) => Err(
                ApiError::field("tool_choice", format!("names `{name}`, which is not in `tools`")),
            ),
            _ => Ok(()),
        }
    }

    /// Whether calls may come.
    pub fn may_call(&self) -> bool {
        !self.tools.is_empty() && self.choice != Choice::None
    }

    /// The grammar of an answer: calls are made of the tools there are, with arguments by their schemas.
    pub fn grammar(&self, format: ToolFormat) -> Option<Grammar> {
        if !self.may_call() {
            return None;
        }
        let allowed = |tool: &&Tool| match &self.choice {
            Choice::Named(name) => tool.name == *name,
            _ => true,
        };
        let call = |(at, tool): (usize, &Tool)| {
            let field = format.arguments();
            let name = &tool.name;
            let schema = with_options(&tool.parameters).ok()?;
            Some(format!(
                "call_{at}: \"{{\\\"name\\\": \\\"{name}\\\", \\\"{field}\\\": \" args_{at} \"}}\"\nargs_{at}: %json {schema}\n"
            ))
        };
        let calls: Vec<String> =
            self.tools.iter().filter(allowed).enumerate().filter_map(call).collect();
        let names: Vec<String> = (0..calls.len()).map(|at| format!("call_{at}")).collect();
        let (names, calls) = (names.join(" | "), calls.concat());
        let free = self.choice == Choice::Auto;
        // A tool that is asked for by its name is called once.
        let many = self.parallel && !matches!(self.choice, Choice::Named(_));
        let lark = match (format, free, many) {
            (ToolFormat::Tagged, true, many) => {
                let tail = if many { "(\"\\n\"? tagged)* TEXT?" } else { "" };
                format!(
                    "start: TEXT | opened {tail}\nopened: before body\ntagged: \"{CALL}\" body\n\
                     body: \"\\n\"? call \"\\n\"? \"{CALL_END}\"\n\
                     before[lazy]: /(.|\\n)*{CALL}/\nTEXT: /(.|\\n)*/\n"
                )
            }
            (ToolFormat::Tagged, false, many) => {
                let tail = if many { "(\"\\n\" tagged)*" } else { "" };
                format!("start: tagged {tail}\ntagged: \"{CALL}\\n\" call \"\\n{CALL_END}\"\n")
            }
            (ToolFormat::Bare, true, _) => "start: call | TEXT\nTEXT: /[^{](.|\\n)*/\n".to_owned(),
            (ToolFormat::Bare, false, _) => "start: call\n".to_owned(),
        };
        Some(Grammar::Lark(format!("%llguidance {{}}\n{lark}call: {names}\n{calls}")))
    }

    /// What is said to a model whose template says nothing about tools.
    pub fn instructions(&self) -> String {
        let tools: Vec<String> = self.tools.iter().map(|tool| tool.openai().to_string()).collect();
        let tools = tools.join("\n");
        format!(
            "You may call one or more functions to assist with the user query.\n\nYou are provided with function \
             signatures within <tools></tools> XML tags:\n<tools>\n{tools}\n</tools>\n\nFor each function call, return a \
             json object with function name and arguments within {CALL}{CALL_END} XML tags:\n{CALL}\n{{\"name\": \
             <function-name>, \"arguments\": <args-json-object>}}\n{CALL_END}"
        )
    }
}

/// Reads `tools`, `tool_choice` and `parallel_tool_calls` in the form of chat completions.
///
/// # Errors
/// What [`Tools::check`] says, and tools of other kinds.
pub fn from_chat(fields: &mut Fields) -> Result<Tools> {
    let mut tools = Tools::default();
    for (at, value) in fields.list("tools")?.unwrap_or_default().into_iter().enumerate() {
        let path = format!("tools[{at}]");
        let mut tool = Fields::of(&path, value)?;
        match tool.text("type")?.as_deref() {
            Some("function") | None => {}
            Some(other) => return Err(tool.error("type", format!("`{other}` is not supported"))),
        }
        let function = tool.object("function")?;
        let function = function.ok_or_else(|| tool.error("function", "is missing"))?;
        tools.tools.push(from_function(&format!("{path}.function"), function)?);
        tool.finish()?;
    }
    tools.choice = match fields.take("tool_choice") {
        None => Choice::Auto,
        Some(Value::String(word)) => choice_word(&word)?,
        Some(value) => {
            let mut choice = Fields::of("tool_choice", value)?;
            match choice.text("type")?.as_deref() {
                Some("function") => {}
                _ => return Err(choice.error("type", "must be \"function\"")),
            }
            // The Responses API has the name here.
            let mut name = choice.text("name")?;
            if let Some(mut function) = choice.object("function")? {
                name = function.text("name")?;
                function.finish()?;
            }
            let name = name.ok_or_else(|| choice.error("function.name", "is missing"))?;
            choice.finish()?;
            Choice::Named(name)
        }
    };
    tools.parallel = fields.flag("parallel_tool_calls")?.unwrap_or(true);
    tools.check()?;
    Ok(tools)
}

/// Reads the words of `tool_choice`.
///
/// # Errors
/// Another word.
pub fn choice_word(word: &str) -> Result<Choice> {
    match word {
        "auto" => Ok(Choice::Auto),
        "none" => Ok(Choice::None),
        "required" | "any" => Ok(Choice::Required),
        _ => Err(ApiError::field(
            "tool_choice",
            "must be \"auto\", \"none\", \"required\" or a tool",
        )),
    }
}

/// Reads a function with `name`, `description`, `parameters` and `strict`.
///
/// # Errors
/// What is missing or not supported.
pub fn from_function(path: &str, mut function: Fields) -> Result<Tool> {
    let name = function.text("name")?.ok_or_else(|| function.error("name", "is missing"))?;
    let (description, parameters) = (function.text("description")?, function.take("parameters"));
    // Arguments follow their schema in any case.
    function.flag("strict")?;
    function.finish()?;
    Tool::new(path, name, description, parameters)
}
