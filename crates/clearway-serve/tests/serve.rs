//! The server over real connections, with a model of random weights: what it answers, what it refuses, and what it survives.
#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic)] // a test stops at the first surprise

#[path = "serve/abuse.rs"]
mod abuse;
#[path = "serve/adapters.rs"]
mod adapters;
#[path = "serve/answers.rs"]
mod answers;
#[path = "serve/client.rs"]
mod client;
#[path = "serve/doors.rs"]
mod doors;
#[path = "serve/ends.rs"]
mod ends;
#[path = "serve/grammars.rs"]
mod grammars;
#[path = "serve/lost.rs"]
mod lost;
#[path = "serve/pieces.rs"]
mod pieces;
#[path = "serve/refusals.rs"]
mod refusals;
#[path = "serve/server.rs"]
mod server;
#[path = "serve/vectors.rs"]
mod vectors;
