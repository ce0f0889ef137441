//! The `clearway` command.
//!
//! Errors go to stderr with exit status 1, usage errors with 2. `--json` prints one object.

mod commands;
mod device;
mod model;
mod shape;

use std::process::ExitCode;

use clap::{Parser, Subcommand};

/// A GPU graph runtime with a language-model engine.
#[derive(Parser)]
#[command(name = "clearway", version, about, arg_required_else_help = true)]
struct Cli {
    #[command(subcommand)]
    command: Command,
}

#[derive(Subcommand)]
enum Command {
    /// Answer one prompt.
    Run(commands::run::Args),
    /// Show the devices Clearway can run on.
    Devices(commands::devices::Args),
    /// Record, optimise and prove the graph of a model, and show what was decided.
    Inspect(commands::inspect::Args),
    /// Place values in memory: the rows of a file, or the values of a model.
    Plan(commands::plan::Args),
    /// Show what a model file holds.
    Show(commands::show::Args),
    /// Show the tokens of a text.
    Tokenize(commands::tokenize::Args),
    /// Show the logits after some tokens.
    Eval(commands::eval::Args),
    /// Write a model of random weights, for speed tests.
    Synth(commands::synth::Args),
}

fn main() -> ExitCode {
    let outcome = match Cli::parse().command {
        Command::Devices(args) => commands::devices::run(&args),
        Command::Inspect(args) => commands::inspect::run(&args),
        Command::Plan(args) => commands::plan::run(&args),
        Command::Run(args) => commands::run::run(&args),
        Command::Show(args) => commands::show::run(&args),
        Command::Tokenize(args) => commands::tokenize::run(&args),
        Command::Eval(args) => commands::eval::run(&args),
        Command::Synth(args) => commands::synth::run(&args),
    };
    match outcome {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            eprintln!("error: {error:#}");
            ExitCode::FAILURE
        }
    }
}
