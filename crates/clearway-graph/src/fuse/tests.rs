//! Tests of the fuse stage: what fires, what is refused, and that nothing else changes.

mod chains;
mod fires;
mod meaning;
mod order;
mod random;
mod refuses;
mod repeats;
mod setup;
