//! Many sequences at once: the scheduler and the service against a simulated device that checks every rule.
#![allow(clippy::unwrap_used, clippy::panic, clippy::expect_used)] // a test stops at the first surprise

#[path = "batch/drive.rs"]
mod drive;
#[path = "batch/random.rs"]
mod random;
#[path = "batch/rules.rs"]
mod rules;
#[path = "batch/service.rs"]
mod service;
#[path = "batch/sim.rs"]
mod sim;
