//! Many sequences at once on one device.
//!
//! | module | what it does |
//! |---|---|
//! | [`runner`] | what is asked of a device: slots, blocks, rows of prompts, decode steps |
//! | [`device`] | a device that does it |
//! | [`request`] | what is asked of the service, and how it ends or is refused |
//! | [`pool`] | the blocks of the cache: who holds them, which can be found again by their tokens |
//! | [`schedule`] | which sequences run next: a state machine without I/O |
//! | [`service`] | requests in, streams of tokens out, from any thread |
//! | [`text`] | tokens of a stream to pieces of text, with stop strings |
//!
//! A [`schedule::Scheduler`] plans [`runner::Work`] and a [`runner::Runner`] does it. A [`service::Service`] owns both.

pub mod device;
pub mod pool;
pub mod request;
pub mod runner;
pub mod schedule;
pub mod service;
pub mod text;
