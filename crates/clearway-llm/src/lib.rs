//! Language models on Clearway.
//!
//! | module | what it does |
//! |---|---|
//! | [`model`] | records the ops of a model over its shape, without weights |
//! | [`engine`] | runs a model file on a device |
//! | `fetch` | models by name: downloads and the cache (feature `fetch`) |
//! | [`gguf`] | reads and writes model files |
//! | [`output`] | files that appear whole or not at all |
//! | [`text`] | tokenizers and chat templates |

pub mod engine;
#[cfg(feature = "fetch")]
pub mod fetch;
pub mod gguf;
pub mod model;
pub mod output;
pub mod text;
