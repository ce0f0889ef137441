//! `clearway chat`

use std::path::Path;
use std::time::Instant;

use anyhow::Result;
use clearway::Device;
use clearway_llm::engine::{self, Engine, EngineError, Sampler};
use clearway_llm::fetch::Cache;
use clearway_llm::text::{ChatMessage, ChatOptions, ChatTemplate, Tokenizer};
use console::Style;
use rustyline::error::ReadlineError;
use rustyline::{Config, DefaultEditor};
use serde_json::json;

use crate::generate::{self, Answer, End, Talker};
use crate::model::ModelArgs;
use crate::out::{self, note, say};
use crate::sampling::Sampling;
use crate::{interrupt, stats};

/// Arguments of `clearway chat`.
#[derive(clap::Args)]
#[command(after_help = "Examples:
  clearway chat
  clearway chat -m model.gguf -c 8192 --system \"Answer in one sentence.\"
  printf 'Hello\\nAnd again?\\n' | clearway chat --temp 0

Commands: /clear, /save FILE, /help, /exit. Ctrl-C stops an answer and keeps the chat.")]
pub struct Args {
    #[command(flatten)]
    model: ModelArgs,
    /// What the model is told before the chat.
    #[arg(long, value_name = "TEXT")]
    system: Option<String>,
    /// Tokens of an answer at most.
    #[arg(short = 'n', long = "n-predict", value_name = "N", default_value_t = 1024)]
    n_predict: usize,
    /// Print timings after every answer.
    #[arg(long)]
    stats: bool,
    #[command(flatten)]
    sampling: Sampling,
}

const HELP: &str = "/clear      start anew
/save FILE  write the chat to a file; one that ends in .json as messages
/help       show this
/exit       leave; so does Ctrl-D
Ctrl-C stops an answer and keeps the chat.";

/// What to do with a line.
#[derive(Debug, PartialEq)]
enum Line<'a> {
    Nothing,
    Say(&'a str),
    Clear,
    Save(&'a str),
    Help,
    Exit,
    Unknown(&'a str),
}

/// Talks until the user leaves.
pub fn run(args: &Args) -> Result<()> {
    let gguf = args.model.name.open()?;
    let started = Instant::now();
    let tokenizer = engine::tokenizer(&gguf)?;
    let template = engine::chat_template(&gguf, &tokenizer)?;
    let (mut engine, device) = args.model.engine(&gguf)?;
    let sampler = args.sampling.sampler();
    generate::prepare(&mut engine, &sampler)?;
    let load = started.elapsed();
    interrupt::catch();
    let mut chat = Chat {
        messages: Vec::new(),
        system: args.system.as_deref(),
        template,
        tokenizer: &tokenizer,
        cached: Vec::new(),
        engine: &mut engine,
        sampler,
        limit: args.n_predict,
    };
    chat.clear();
    let quiet = !console::user_attended();
    if !quiet {
        let name = &args.model.name.model;
        note!("{name} with {} tokens of context; /help shows the commands", chat.engine.context());
    }
    let history = Cache::of_user().ok().map(|cache| cache.folder().join("chat-history"));
    let mut editor = editor(history.as_deref())?;
    loop {
        let line = match interrupt::at_prompt(|| editor.readline("> ")) {
            Ok(line) => line,
            Err(ReadlineError::Interrupted) => {
                note!("(/exit or Ctrl-D leaves)");
                continue;
            }
            Err(ReadlineError::Eof) => break,
            Err(ReadlineError::Io(error)) => return Err(out::closed(error)),
            Err(error) => return Err(error.into()),
        };
        match parse(&line) {
            Line::Nothing => {}
            Line::Exit => break,
            Line::Help => say!("{HELP}")?,
            Line::Clear => {
                chat.clear();
                say!("(the chat is empty again)")?;
            }
            Line::Save("") => note!("/save needs the name of a file"),
            Line::Save(file) => match chat.save(Path::new(file)) {
                Ok(()) => say!("(saved to {file})")?,
                Err(error) => note!("{error:#}"),
            },
            Line::Unknown(word) => note!("there is no {word}; /help shows the commands"),
            Line::Say(text) => {
                if let Some(answer) = chat.say(text)?
                    && args.stats
                {
                    stats::print(load, &answer, &*device as &dyn Device);
                }
            }
        }
    }
    if let Some(history) = &history {
        // Losing the history of the prompt is no reason to fail.
        let _ = history.parent().map(std::fs::create_dir_all);
        let _ = editor.save_history(history);
    }
    Ok(())
}

fn editor(history: Option<&Path>) -> Result<DefaultEditor> {
    let config = Config::builder().auto_add_history(true).max_history_size(1000)?.build();
    let mut editor = DefaultEditor::with_config(config)?;
    if let Some(history) = history {
        let _ = editor.load_history(history); // there is none at first
    }
    Ok(editor)
}

fn parse(line: &str) -> Line<'_> {
    let line = line.trim();
    let (word, rest) = line.split_once(char::is_whitespace).unwrap_or((line, ""));
    match word {
        "" => Line::Nothing,
        "/clear" => Line::Clear,
        "/save" => Line::Save(rest.trim()),
        "/help" | "/?" => Line::Help,
        "/exit" | "/quit" | "/bye" => Line::Exit,
        // A path such as /etc/hosts is something to talk about.
        _ if word.starts_with('/') && !word[1..].contains('/') => Line::Unknown(word),
        _ => Line::Say(line),
    }
}

/// A conversation and the model's memory of it.
struct Chat<'a> {
    messages: Vec<ChatMessage>,
    system: Option<&'a str>,
    template: ChatTemplate,
    tokenizer: &'a Tokenizer,
    /// Tokens in the cache. A turn evaluates only what comes after those it shares with them.
    cached: Vec<u32>,
    engine: &'a mut Engine,
    sampler: Sampler,
    limit: usize,
}

impl Chat<'_> {
    fn clear(&mut self) {
        let system = self.system.map(|text| ChatMessage::new("system", text));
        self.messages = system.into_iter().collect();
        self.engine.clear();
        self.cached.clear();
    }

    /// One turn. `None` if there was no room for it; then the conversation is as before.
    fn say(&mut self, text: &str) -> Result<Option<Answer>> {
        self.messages.push(ChatMessage::new("user", text));
        let answer = match self.turn() {
            Ok(answer) => answer,
            Err(error) if is_full(&error) => {
                self.messages.pop();
                note!(
                    "no room for this: {error:#}. /clear starts anew, or start chat with a larger -c"
                );
                return Ok(None);
            }
            Err(error) => return Err(error),
        };
        self.messages.push(ChatMessage::new("assistant", &answer.text));
        match &answer.end {
            End::Done => {}
            End::Stopped => {
                // Ctrl-C ends the answer, other signals the chat.
                if interrupt::ending().is_some() {
                    return Err(interrupt::Interrupted.into());
                }
                interrupt::forget();
                out::note_styled(&Style::new().dim(), "(stopped)");
            }
            End::Full(_) => note!(
                "the context of {} tokens is full: the answer ends here. /clear starts anew, or \
                 start chat with a larger -c",
                self.engine.context()
            ),
        }
        Ok(Some(answer))
    }

    fn turn(&mut self) -> Result<Answer> {
        let prompt = self.template.render(&self.messages, &ChatOptions::default())?;
        let tokens = self.tokenizer.encode_chat(&prompt)?;
        // The last token is always evaluated: its logits are the answer's beginning.
        let reusable = &tokens[..tokens.len().saturating_sub(1)];
        let shared = reusable.iter().zip(&self.cached).take_while(|(a, b)| a == b).count();
        self.engine.truncate(shared);
        self.cached.truncate(shared);
        let mut talker = Talker {
            engine: &mut *self.engine,
            tokenizer: self.tokenizer,
            sampler: &mut self.sampler,
            limit: self.limit,
        };
        let mut out = out::Answer::new(false);
        let answer = talker.answer(&tokens[shared..], &mut |text| out.write(text))?;
        out.write("\n")?;
        self.cached.extend_from_slice(&tokens[shared..][..answer.prefill.tokens]);
        self.cached.extend_from_slice(&answer.tokens);
        Ok(answer)
    }

    fn save(&self, file: &Path) -> Result<()> {
        let text = if file.extension().is_some_and(|extension| extension == "json") {
            let messages: Vec<_> = self
                .messages
                .iter()
                .map(|message| json!({ "role": message.role, "content": message.content }))
                .collect();
            serde_json::to_string_pretty(&json!({ "messages": messages }))? + "\n"
        } else {
            let turns = self.messages.iter().map(|m| format!("{}: {}\n", m.role, m.content.trim()));
            turns.collect::<Vec<_>>().join("\n")
        };
        out::file(file, &text)
    }
}

fn is_full(error: &anyhow::Error) -> bool {
    matches!(error.downcast_ref(), Some(EngineError::ContextFull { .. }))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn lines_are_commands_or_something_to_say() {
        for (line, meaning) in [
            ("  ", Line::Nothing),
            (" hello ", Line::Say("hello")),
            ("/save my chat.txt ", Line::Save("my chat.txt")),
            ("/save", Line::Save("")),
            ("/exit", Line::Exit),
            ("/clear", Line::Clear),
            ("/claer", Line::Unknown("/claer")),
            ("/etc/hosts is what?", Line::Say("/etc/hosts is what?")),
        ] {
            assert_eq!(parse(line), meaning, "{line:?}");
        }
    }
}
