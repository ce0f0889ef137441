//! Language models on Clearway: a file in, text out.
//!
//! # A first reply
//!
//! A [`Model`] is a GGUF file on a device: a GPU where there is one, the CPU otherwise. [`Model::chat`] starts a
//! conversation. [`Chat::reply`] is an iterator over pieces of text, which come as the model writes them and hold whole
//! characters only.
//!
//! ```no_run
//! use clearway_llm::{Model, Options, Sampling};
//!
//! let mut model = Model::load("model.gguf", Options::default())?;
//! let mut chat = model.chat()?;
//! chat.user("Why is the sky blue?");
//! for piece in chat.reply(&Sampling::default())? {
//!     print!("{}", piece?);
//! }
//! # Ok::<(), clearway_llm::Error>(())
//! ```
//!
//! With the feature `fetch`, `Model::fetch("smollm2:135m", ...)` loads a model by name and downloads it once.
//! [`Model::complete`] continues a text as it is, without a chat template, and [`Model::reply`] takes tokens.
//!
//! # How tokens are chosen
//!
//! [`Sampling`] is one row of plain data: seed, temperature, top-k, top-p, min-p, penalties, biases, a mask of allowed
//! tokens, log probabilities, what ends the text and how long it may be. Its default is what llama.cpp users know, and
//! [`Sampling::greedy`] takes the likeliest token each time. [`engine::sampling`] has the order in which the parts of a row
//! act. A draw depends on the seed and on the position in the text alone, so the same row gives the same text whether the
//! host or the GPU draws.
//!
//! ```
//! use clearway_llm::Sampling;
//!
//! let sampling = Sampling {
//!     temperature: 0.3,
//!     stop_strings: vec!["\n\n".into()],
//!     budget: 200,
//!     ..Sampling::default()
//! };
//! assert!(sampling.runs_on_device()); // no token waits for the host
//! ```
//!
//! # How a reply ends, and what it took
//!
//! Iterate over `&mut reply` to ask it afterwards: [`Reply::end`] says why it ended ([`End`]), [`Reply::usage`] counts
//! tokens and time ([`Usage`]). [`Reply::stop_when`] lets a signal or another thread end it. A prompt that does not fit the
//! context is an error before anything is computed; a reply that fills it ends with [`End::ContextFull`].
//!
//! A model remembers the last text it read. A prompt that begins with the same tokens costs only what is new, which makes
//! a turn of a conversation cheap. [`Chat::save`] and [`Model::restore_chat`] carry a conversation and what was computed
//! for it over to another process.
//!
//! # Vectors
//!
//! [`Model::embed`] gives the vector of a text, by which texts are compared.
//!
//! # Where it runs
//!
//! [`Options::device`] names a device; without it [`clearway::best_device`] chooses. The feature `vulkan`, which is on by
//! default, brings GPUs; without it models run on the CPU. The feature `fetch` brings models by name.
//!
//! ```no_run
//! use std::sync::Arc;
//!
//! use clearway::cpu::CpuDevice;
//! use clearway_llm::{Model, Options};
//!
//! let options = Options { device: Some(Arc::new(CpuDevice::new())), ..Options::default() };
//! let model = Model::load("model.gguf", options)?;
//! # Ok::<(), clearway_llm::Error>(())
//! ```
//!
//! # Below the text
//!
//! [`engine::Engine`] evaluates tokens and gives logits, of the last token or of chosen ones
//! ([`Engine::eval_rows`](engine::Engine::eval_rows)). [`engine::Sampler`] chooses from them on the host,
//! [`Engine::generate`](engine::Engine::generate) on the device. Everything else is a module of its own:
//!
//! | module | what it does |
//! |---|---|
//! | [`generate`] | conversations and replies |
//! | [`engine`] | runs a model file on a device |
//! | [`speculate`] | drafts of what comes next, checked as rows of one step |
//! | [`batch`] | many sequences at once: scheduler, block pool, service |
//! | [`model`] | records the ops of a model over its shape, without weights |
//! | [`gguf`] | reads and writes model files |
//! | [`text`] | tokenizers and chat templates |
//! | `fetch` | models by name: downloads and the cache (feature `fetch`) |
//! | `grammar` | answers that follow a JSON schema, a regular expression or a grammar (feature `grammar`) |
//! | [`tls`] | what TLS needs of the processor |
//! | [`output`] | files that appear whole or not at all |

pub mod batch;
pub mod engine;
#[cfg(feature = "fetch")]
pub mod fetch;
pub mod generate;
pub mod gguf;
#[cfg(feature = "grammar")]
pub mod grammar;
pub mod model;
pub mod output;
pub mod speculate;
pub mod text;
#[cfg(any(target_arch = "x86_64", target_arch = "aarch64"))]
pub mod tls;

pub use engine::{EngineError as Error, Sampling};
pub use generate::{Chat, End, Model, Options, Piece, Rate, Reply, Usage};
pub use speculate::Speculation;
