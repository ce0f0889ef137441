//! One module per command: its arguments, and what it does.

pub mod bench;
pub mod chat;
pub mod completions;
pub mod devices;
pub mod eval;
pub mod inspect;
pub mod list;
pub mod plan;
pub mod pull;
pub mod run;
pub mod serve;
pub mod show;
pub mod synth;
pub mod tokenize;
