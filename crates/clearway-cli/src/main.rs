//! The `clearway` command.
//!
//! Errors go to stderr with exit status 1, usage errors with 2; SIGINT ends a command with 130, SIGTERM with 143, SIGHUP
//! with 129. A reader that goes away, as in `clearway show | head -1`, ends a command quietly with status 0. `--json`
//! prints one object, except that of `bench`, which prints an array as llama-bench does.
// They panic where the reader has gone away; `out` has what does not.
#![deny(clippy::print_stdout, clippy::print_stderr)]

mod commands;
mod device;
mod generate;
mod interrupt;
mod lora;
mod memory;
mod model;
mod out;
mod preference;
mod progress;
mod sampling;
mod shape;
mod spec;
mod stats;
mod vulkan;
mod wgpu;

use std::process::ExitCode;

use clap::{CommandFactory, Parser, Subcommand};
use clearway_llm::fetch::FetchError;

/// A GPU graph runtime with a language-model engine.
#[derive(Parser)]
#[command(name = "clearway", version, about, arg_required_else_help = true)]
#[command(after_help = "Examples:
  clearway run -p \"Why is the sky blue?\"
  clearway chat -m model.gguf
  clearway bench -m model.gguf --json

Without -m the default model is used, which is fetched once. `clearway COMMAND -h` says more.")]
struct Cli {
    #[command(subcommand)]
    command: Command,
}

#[derive(Subcommand)]
enum Command {
    /// Answer one prompt.
    Run(commands::run::Args),
    /// Talk with a model.
    Chat(commands::chat::Args),
    /// Serve a model over HTTP, as OpenAI does.
    Serve(commands::serve::Args),
    /// Measure the speed of a model.
    Bench(commands::bench::Args),
    /// Fetch a model.
    Pull(commands::pull::Args),
    /// List the fetched models.
    List(commands::list::Args),
    /// Show what a model file holds and what it needs.
    Show(commands::show::Args),
    /// Show the devices Clearway can run on.
    Devices(commands::devices::Args),
    /// Record, optimise and prove the graph of a model, and show what was decided.
    Inspect(commands::inspect::Args),
    /// Place values in memory: the rows of a file, or the values of a model.
    Plan(commands::plan::Args),
    /// Show the tokens of a text.
    Tokenize(commands::tokenize::Args),
    /// Show the logits after some tokens.
    Eval(commands::eval::Args),
    /// Write a model of random weights, for speed tests.
    Synth(commands::synth::Args),
    /// Print what a shell needs to complete commands.
    Completions(commands::completions::Args),
    /// Print the manual page.
    Man,
}

fn main() -> ExitCode {
    interrupt::listen();
    let outcome = match Cli::parse().command {
        Command::Run(args) => commands::run::run(&args),
        Command::Chat(args) => commands::chat::run(&args),
        Command::Serve(args) => commands::serve::run(&args),
        Command::Bench(args) => commands::bench::run(&args),
        Command::Pull(args) => commands::pull::run(&args),
        Command::List(args) => commands::list::run(&args),
        Command::Show(args) => commands::show::run(&args),
        Command::Devices(args) => commands::devices::run(&args),
        Command::Inspect(args) => commands::inspect::run(&args),
        Command::Plan(args) => commands::plan::run(&args),
        Command::Tokenize(args) => commands::tokenize::run(&args),
        Command::Eval(args) => commands::eval::run(&args),
        Command::Synth(args) => commands::synth::run(&args),
        Command::Completions(args) => commands::completions::run(&args, Cli::command()),
        Command::Man => commands::completions::man(Cli::command()),
    };
    match outcome {
        // A signal that ends the process does so even where the command ended by itself meanwhile.
        Ok(()) => interrupt::ending().map_or(ExitCode::SUCCESS, Into::into),
        Err(error) if error.is::<out::Closed>() => {
            interrupt::ending().map_or(ExitCode::SUCCESS, Into::into)
        }
        Err(error) => {
            match generate::advice(&error) {
                Some(advice) => out::error(&format!("{error:#}; {advice}")),
                None => out::error(&format!("{error:#}")),
            }
            match is_interrupt(&error) || interrupt::ending().is_some() {
                true => interrupt::status().into(),
                false => ExitCode::FAILURE,
            }
        }
    }
}

fn is_interrupt(error: &anyhow::Error) -> bool {
    error.is::<interrupt::Interrupted>()
        || matches!(error.downcast_ref(), Some(FetchError::Stopped))
}
