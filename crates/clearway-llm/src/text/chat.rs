//! Chat templates: from a conversation to the prompt a chat model was trained on.
//!
//! The template is a Jinja program inside the model file, so it is somebody else's code. It runs in minijinja with the
//! settings of the reference implementation (Hugging Face `transformers`: trimmed blocks, Python methods, Python's
//! formatting and JSON), and it is metered: `rewrite` copies its syntax tree so that every operation whose result or
//! time can grow goes through `meter`, which stops the template when a budget is spent. Minijinja's own limits are not
//! enough: doubling a string forty times costs few steps and a terabyte.

mod builtins;
mod data;
mod fallback;
mod json;
mod meter;
mod operators;
mod rewrite;

use std::sync::Arc;

use minijinja::machinery::{CodeGenerator, eval, make_string_output, parse};
use minijinja::syntax::SyntaxConfig;
use minijinja::{AutoEscape, Environment, Error, ErrorKind, Value};

pub use self::data::Data;
pub use self::fallback::ChatFormat;
use self::meter::Meter;
use super::error::TextError;
use super::tokenizer::Tokenizer;

/// Longest template. The longest in use have about 25 kB.
const MAX_SOURCE_BYTES: usize = 128 << 10;
/// Steps of the template engine that any conversation may take, and more for each message.
const FUEL: u64 = 1_000_000;
const FUEL_PER_MESSAGE: u64 = 20_000;
/// Bytes of text that any conversation may touch, and more for each byte of it.
const WORK: u64 = 64 << 20;
const WORK_PER_BYTE: u64 = 64;
/// The engine recurses over the syntax tree, whose depth the longest template bounds.
const STACK_BYTES: usize = 64 << 20;
/// Longest message taken over from a template's error.
const MAX_ERROR_CHARS: usize = 400;

/// The chat template of a model.
///
/// ```
/// use clearway_llm::text::{ChatMessage, ChatOptions, ChatTemplate};
///
/// let source = "{% for m in messages %}<{{ m.role }}>{{ m.content | trim }}{% endfor %}";
/// let template = ChatTemplate::new(source, None, None)?;
/// let prompt = template.render(&[ChatMessage::new("user", " Hi ")], &ChatOptions::default())?;
/// assert_eq!(prompt, "<user>Hi");
/// # Ok::<(), clearway_llm::text::TextError>(())
/// ```
#[derive(Debug, Clone)]
pub struct ChatTemplate {
    source: String,
    bos: Option<String>,
    eos: Option<String>,
    format: Option<ChatFormat>,
}

/// One turn of a conversation.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ChatMessage {
    /// Who speaks: `system`, `user` or `assistant`.
    pub role: String,
    /// What is said.
    pub content: String,
}

impl ChatMessage {
    /// A message.
    pub fn new(role: impl Into<String>, content: impl Into<String>) -> Self {
        Self { role: role.into(), content: content.into() }
    }
}

/// What a template is told besides the messages.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct ChatOptions {
    /// End the prompt with the opening of the assistant's turn.
    pub add_generation_prompt: bool,
    /// `enable_thinking`, for models that can think aloud; `None` leaves it to the template.
    pub enable_thinking: Option<bool>,
    /// Today, for templates that ask. Fixed by default, so that the same conversation gives the same prompt.
    pub date: Date,
}

impl Default for ChatOptions {
    fn default() -> Self {
        Self { add_generation_prompt: true, enable_thinking: None, date: Date::default() }
    }
}

/// A day of the Gregorian calendar.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Date {
    /// The year.
    pub year: u16,
    /// The month, from 1.
    pub month: u8,
    /// The day of the month, from 1.
    pub day: u8,
}

impl Default for Date {
    /// The day that Llama 3.1's template falls back to.
    fn default() -> Self {
        Self { year: 2024, month: 7, day: 26 }
    }
}

impl ChatTemplate {
    /// A template from its source, with the text of the BOS and EOS tokens for `bos_token` and `eos_token`.
    pub fn new(source: &str, bos: Option<&str>, eos: Option<&str>) -> Result<Self, TextError> {
        if source.len() > MAX_SOURCE_BYTES {
            return Err(TextError::TemplateTooLong {
                bytes: source.len(),
                limit: MAX_SOURCE_BYTES,
            });
        }
        let template = Self {
            source: rewrite::without_generation_tags(source),
            bos: bos.map(Into::into),
            eos: eos.map(Into::into),
            format: None,
        };
        on_large_stack(|| compile(&template.source, |_, _| Ok(())))?;
        Ok(template)
    }

    /// The template that goes with a vocabulary: the file's own, or the format that the vocabulary's tokens give away.
    pub fn for_tokenizer(source: Option<&str>, tokenizer: &Tokenizer) -> Result<Self, TextError> {
        let text = |id: Option<u32>| {
            let bytes = id.and_then(|id| tokenizer.token_bytes(id))?;
            Some(String::from_utf8_lossy(bytes).into_owned())
        };
        let (bos, eos) = (text(tokenizer.bos()), text(tokenizer.eos()));
        let (source, format) = match source {
            Some(source) => (source, None),
            None => {
                let format = ChatFormat::detect(tokenizer).ok_or(TextError::NoChatTemplate)?;
                (format.source(), Some(format))
            }
        };
        let template = Self::new(source, bos.as_deref(), eos.as_deref())?;
        Ok(Self { format, ..template })
    }

    /// The built-in format in use, where the file has no template of its own.
    pub fn format(&self) -> Option<ChatFormat> {
        self.format
    }

    /// The template as it is run.
    pub fn source(&self) -> &str {
        &self.source
    }

    /// The prompt of a conversation.
    pub fn render(
        &self,
        messages: &[ChatMessage],
        options: &ChatOptions,
    ) -> Result<String, TextError> {
        let of = |message: &ChatMessage| {
            let [role, content] = [&message.role, &message.content].map(Data::text);
            Data::Map(vec![("role".into(), role), ("content".into(), content)])
        };
        let messages: Vec<Data> = messages.iter().map(of).collect();
        self.render_data(&messages, &[], options)
    }

    /// The prompt of a conversation whose messages hold more than text, such as calls of tools. `variables` are set besides
    /// those that every template gets, `tools` for example.
    ///
    /// ```
    /// use clearway_llm::text::{ChatOptions, ChatTemplate, Data};
    ///
    /// let source = "{{ tools[0].name }} {% for m in messages %}{{ m.role }}{% endfor %}";
    /// let template = ChatTemplate::new(source, None, None)?;
    /// let tool = Data::Map(vec![("name".into(), Data::text("add"))]);
    /// let message = Data::Map(vec![("role".into(), Data::text("user"))]);
    /// let variables = [("tools", Data::List(vec![tool]))];
    /// let prompt = template.render_data(&[message], &variables, &ChatOptions::default())?;
    /// assert_eq!(prompt, "add user");
    /// # Ok::<(), clearway_llm::text::TextError>(())
    /// ```
    pub fn render_data(
        &self,
        messages: &[Data],
        variables: &[(&str, Data)],
        options: &ChatOptions,
    ) -> Result<String, TextError> {
        let given = messages.iter().chain(variables.iter().map(|(_, value)| value));
        let input: usize = given.map(Data::size).sum();
        let meter =
            Arc::new(Meter::new(WORK.saturating_add(WORK_PER_BYTE.saturating_mul(input as u64))));
        let fuel = FUEL.saturating_add(FUEL_PER_MESSAGE.saturating_mul(messages.len() as u64));
        let context = self.context(messages, variables, options);
        let rendered = on_large_stack(|| {
            compile(&self.source, |instructions, blocks| {
                let env = environment(&meter, fuel, options.date);
                let mut text = String::new();
                let mut output = make_string_output(&mut text);
                eval(&env, instructions, context, blocks, &mut output, AutoEscape::None)
                    .map_err(|error| failure(&error, &meter))?;
                Ok(text)
            })
        })?;
        Ok(rendered)
    }

    /// The variables of the template: those that `transformers` sets, then the caller's.
    fn context(
        &self,
        messages: &[Data],
        variables: &[(&str, Data)],
        options: &ChatOptions,
    ) -> Value {
        let mut context = vec![
            ("messages", messages.iter().map(Data::to_value).collect::<Vec<_>>().into()),
            ("tools", Value::from(())),
            ("documents", Value::from(())),
            ("add_generation_prompt", options.add_generation_prompt.into()),
        ];
        let given = [
            ("bos_token", self.bos.as_deref().map(Value::from)),
            ("eos_token", self.eos.as_deref().map(Value::from)),
            ("enable_thinking", options.enable_thinking.map(Value::from)),
        ];
        context.extend(given.into_iter().filter_map(|(name, value)| Some((name, value?))));
        for (name, value) in variables {
            context.retain(|(known, _)| known != name);
            context.push((name, value.to_value()));
        }
        Value::from_pairs(context)
    }
}

type Instructions<'s> = minijinja::machinery::Instructions<'s>;
type Blocks<'s> = std::collections::BTreeMap<&'s str, Instructions<'s>>;

/// Compiles `source` with meters in it and hands the program to `run`.
fn compile<T>(
    source: &str,
    run: impl for<'s> FnOnce(&Instructions<'s>, &Blocks<'s>) -> Result<T, TextError>,
) -> Result<T, TextError> {
    let config = SyntaxConfig::builder().trim_blocks(true).lstrip_blocks(true).build();
    let tree = config
        .and_then(|config| parse(source, "chat", config))
        .map_err(|error| syntax_error(&error))?;
    let tree = rewrite::metered(&tree)?;
    let mut generator = CodeGenerator::new("chat", source);
    generator.compile_stmt(&tree);
    let (instructions, blocks) = generator.finish();
    run(&instructions, &blocks)
}

/// Runs `f` with a stack that fits the deepest tree, and turns a panic of the engine into an error.
fn on_large_stack<T: Send>(
    f: impl FnOnce() -> Result<T, TextError> + Send,
) -> Result<T, TextError> {
    let failed = |message: &str| TextError::TemplateFailed { line: 0, message: message.to_owned() };
    std::thread::scope(|scope| {
        std::thread::Builder::new()
            .name("chat template".to_owned())
            .stack_size(STACK_BYTES)
            .spawn_scoped(scope, f)
            .map_err(|error| failed(&format!("no thread for it: {error}")))?
            .join()
            .unwrap_or_else(|_| Err(failed("the template engine broke down")))
    })
}

fn environment(meter: &Arc<Meter>, fuel: u64, date: Date) -> Environment<'static> {
    let mut env = Environment::empty();
    env.set_fuel(Some(fuel));
    builtins::install(&mut env, meter, date);
    env
}

fn syntax_error(error: &Error) -> TextError {
    TextError::TemplateSyntax { line: error.line().unwrap_or(0), message: message_of(error) }
}

/// Why a template stopped. The meter knows reasons that the engine reports only as some failed call.
fn failure(error: &Error, meter: &Meter) -> TextError {
    let line = error.line().unwrap_or(0);
    if let Some(message) = meter.raised() {
        let message = shorten(&message);
        return TextError::TemplateRaised { line, message };
    }
    if meter.is_spent() {
        let what = "memory";
        return TextError::TemplateLimit { what, line };
    }
    let mut cause: Option<&(dyn std::error::Error + 'static)> = Some(error);
    while let Some(error) = cause {
        if let Some(error) = error.downcast_ref::<Error>()
            && error.kind() == ErrorKind::OutOfFuel
        {
            let what = "steps";
            return TextError::TemplateLimit { what, line };
        }
        cause = error.source();
    }
    let message = message_of(error);
    TextError::TemplateFailed { line, message }
}

fn message_of(error: &Error) -> String {
    let kind = error.kind();
    shorten(&match error.detail() {
        Some(detail) => format!("{kind}: {detail}"),
        None => kind.to_string(),
    })
}

fn shorten(message: &str) -> String {
    match message.char_indices().nth(MAX_ERROR_CHARS) {
        Some((end, _)) => format!("{}…", &message[..end]),
        None => message.to_owned(),
    }
}
