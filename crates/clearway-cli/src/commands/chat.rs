//! `clearway chat`

use std::path::Path;
use std::time::Instant;

use anyhow::Result;
use clearway::Device;
use clearway_llm::fetch::Cache;
use clearway_llm::{Chat, End, Error, Sampling as Row, Usage};
use console::Style;
use rustyline::error::ReadlineError;
use rustyline::{Config, DefaultEditor};
use serde_json::json;

use crate::generate;
use crate::model::ModelArgs;
use crate::out::{self, note, say};
use crate::sampling::Sampling;
use crate::spec::SpecArgs;
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
    #[command(flatten)]
    spec: SpecArgs,
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
    args.spec.kind()?;
    let gguf = args.model.name.open()?;
    let started = Instant::now();
    let (mut model, device) = args.model.model(&gguf)?;
    args.spec.apply(&mut model, &device, &args.model.engine)?;
    let sampling = args.sampling.row(args.n_predict);
    model.prepare(&sampling)?;
    let load = started.elapsed();
    interrupt::catch();
    let mut chat = Talk { chat: model.chat()?, system: args.system.as_deref(), sampling };
    chat.clear();
    let quiet = !console::user_attended();
    if !quiet {
        let name = &args.model.name.model;
        let context = chat.context();
        note!("{name} with {context} tokens of context; /help shows the commands");
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
                if let Some(usage) = chat.say(text)?
                    && args.stats
                {
                    stats::print(load, &usage, &*device as &dyn Device);
                }
            }
        }
    }
    stats::print_stall(chat.chat.model().engine());
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

/// A conversation and how its replies are made.
struct Talk<'a> {
    chat: Chat<'a>,
    system: Option<&'a str>,
    sampling: Row,
}

impl Talk<'_> {
    fn clear(&mut self) {
        self.chat.clear();
        if let Some(text) = self.system {
            self.chat.system(text);
        }
    }

    fn context(&self) -> usize {
        self.chat.model().engine().context()
    }

    /// One turn. `None` if there was no room for it; then the conversation is as before.
    fn say(&mut self, text: &str) -> Result<Option<Usage>> {
        self.chat.user(text);
        let reply = self.chat.reply(&self.sampling);
        let (usage, end) = match reply.map(|reply| generate::write(reply, false)) {
            Ok(written) => written?,
            Err(error @ Error::ContextFull { .. }) => {
                self.chat.pop();
                note!(
                    "no room for this: {error}. /clear starts anew, or start chat with a larger -c"
                );
                return Ok(None);
            }
            Err(error) => return Err(error.into()),
        };
        match end {
            Some(End::Stopped) => {
                // Ctrl-C ends the answer, other signals the chat.
                if interrupt::ending().is_some() {
                    return Err(interrupt::Interrupted.into());
                }
                interrupt::forget();
                out::note_styled(&Style::new().dim(), "(stopped)");
            }
            Some(End::ContextFull { context }) => note!(
                "the context of {context} tokens is full: the answer ends here. /clear starts anew, or start chat with a \
                 larger -c"
            ),
            _ => {}
        }
        Ok(Some(usage))
    }

    fn save(&self, file: &Path) -> Result<()> {
        let text = if file.extension().is_some_and(|extension| extension == "json") {
            let messages: Vec<_> = self
                .chat
                .messages()
                .iter()
                .map(|message| json!({ "role": message.role, "content": message.content }))
                .collect();
            serde_json::to_string_pretty(&json!({ "messages": messages }))? + "\n"
        } else {
            let turns =
                self.chat.messages().iter().map(|m| format!("{}: {}\n", m.role, m.content.trim()));
            turns.collect::<Vec<_>>().join("\n")
        };
        out::file(file, &text)
    }
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
