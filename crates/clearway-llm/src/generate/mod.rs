//! Text from a model: load a file, hold a conversation, read the reply piece by piece.
//!
//! | type | what it is |
//! |---|---|
//! | [`Model`] | a model on a device, with its vocabulary and the text it has read |
//! | [`Chat`] | a conversation: messages, and the template that makes a prompt of them |
//! | [`Reply`] | an iterator over the [`Piece`]s of one reply |
//! | [`End`], [`Usage`] | why a reply ended, and what it took |
//!
//! A [`Model`] remembers one text. A prompt that begins with the same tokens reads only what comes after them, so a turn
//! of a conversation costs its new message alone.

mod chat;
mod reply;
mod saved;
pub(crate) mod stop;

pub use chat::Chat;
pub use reply::{End, Piece, Rate, Reply, Usage};
pub use stop::Stops;

use std::path::Path;
use std::sync::Arc;

use clearway::cpu::CpuDevice;
use clearway::{Device, best_device};

use crate::engine::{
    self, Devices, Engine, EngineError, EngineOptions, GpuLayers, Result, Sampling,
};
use crate::gguf::Gguf;
use crate::speculate::Speculation;
use crate::text::{EncodeOptions, Tokenizer};

/// How to load a model.
#[derive(Clone, Default)]
pub struct Options {
    /// Where it runs; `None` for a GPU if there is one, and the CPU otherwise.
    pub device: Option<Arc<dyn Device>>,
    /// How it runs.
    pub engine: EngineOptions,
    /// How many of its layers lie on that device; the CPU has those that do not.
    pub gpu_layers: GpuLayers,
}

/// A model on a device, with its vocabulary and the text it has read.
///
/// ```no_run
/// use clearway_llm::{Model, Options, Sampling};
///
/// let mut model = Model::load("model.gguf", Options::default())?;
/// let sampling = Sampling { temperature: 0.0, budget: 32, ..Sampling::default() };
/// let mut reply = model.complete("Once upon a time", &sampling)?;
/// for piece in &mut reply {
///     print!("{}", piece?);
/// }
/// println!("\n{} tokens, {:?}", reply.usage().tokens, reply.end());
/// # Ok::<(), clearway_llm::Error>(())
/// ```
pub struct Model {
    engine: Engine,
    tokenizer: Tokenizer,
    file: Gguf,
    /// Tokens in the engine's cache.
    read: Vec<u32>,
    speculation: Option<Speculation>,
}

impl Model {
    /// Loads a model file.
    ///
    /// # Errors
    /// A file that cannot be read, a model that is not supported or has no vocabulary, too little memory.
    pub fn load(path: impl AsRef<Path>, options: Options) -> Result<Self> {
        let Options { device, engine, gpu_layers } = options;
        let device = device.unwrap_or_else(best_device);
        let file = Gguf::open(path)?;
        let cpu = || Arc::new(CpuDevice::new()) as Arc<dyn Device>;
        let devices = Devices::choose(&file, &engine, gpu_layers, device, cpu)?;
        Self::on(&file, devices, engine, &mut |_| ())
    }

    /// Loads a model by name, such as `smollm2:135m`, `hf:USER/REPO[:FILE]` or the path of a file. It is fetched where it
    /// is not in the cache.
    ///
    /// # Errors
    /// What prevents the fetch, and as [`load`](Self::load).
    #[cfg(feature = "fetch")]
    pub fn fetch(name: &str, options: Options) -> Result<Self> {
        use crate::fetch::{Cache, ModelName};
        let name: ModelName = name.parse()?;
        // A file of the user's own needs no cache.
        let cache = match name {
            ModelName::File(_) => Cache::at(""),
            _ => Cache::of_user()?,
        };
        Self::load(cache.fetch(&name, &mut ())?, options)
    }

    /// Loads a model from an open file; `progress` is told how many bytes of its tensors are on the device.
    ///
    /// # Errors
    /// As [`load`](Self::load).
    pub fn new(
        gguf: &Gguf,
        device: Arc<dyn Device>,
        options: EngineOptions,
        progress: &mut dyn FnMut(u64),
    ) -> Result<Self> {
        Self::on(gguf, Devices::One(device), options, progress)
    }

    /// As [`new`](Self::new), on one device or on two.
    ///
    /// # Errors
    /// As [`load`](Self::load).
    pub fn on(
        gguf: &Gguf,
        devices: Devices,
        options: EngineOptions,
        progress: &mut dyn FnMut(u64),
    ) -> Result<Self> {
        // A file without a vocabulary is refused before gigabytes are read.
        let tokenizer = engine::tokenizer(gguf)?;
        let engine = Engine::on(gguf, devices, options, progress)?;
        let (file, read) = (gguf.clone(), Vec::new());
        Ok(Self { engine, tokenizer, file, read, speculation: None })
    }

    /// The engine.
    pub fn engine(&self) -> &Engine {
        &self.engine
    }

    /// The vocabulary.
    pub fn tokenizer(&self) -> &Tokenizer {
        &self.tokenizer
    }

    /// The model file.
    pub fn file(&self) -> &Gguf {
        &self.file
    }

    /// Tokens of the text that the model remembers.
    pub fn tokens(&self) -> &[u32] {
        &self.read
    }

    /// Drafts what comes next and checks drafts as rows of one step from now on, or does not (`None`). Texts stay what they
    /// are; [`speculate`](crate::speculate) says how exactly. [`Usage::drafts`] tells what came of it. Returns who drafted
    /// before, with what is known about its drafts.
    ///
    /// ```no_run
    /// use clearway_llm::{Model, Options, Sampling, Speculation};
    ///
    /// let mut model = Model::load("model.gguf", Options::default())?;
    /// model.speculate(Some(Speculation::ngram()));
    /// let mut reply = model.complete("One two three, one two three, one", &Sampling::greedy())?;
    /// reply.by_ref().for_each(drop);
    /// println!("{:?}", reply.usage().drafts);
    /// # Ok::<(), clearway_llm::Error>(())
    /// ```
    pub fn speculate(&mut self, speculation: Option<Speculation>) -> Option<Speculation> {
        std::mem::replace(&mut self.speculation, speculation)
    }

    /// Forgets the text.
    pub fn clear(&mut self) {
        self.keep(0);
    }

    /// Compiles what replies by such a row need, so that the first one need not wait for it.
    ///
    /// # Errors
    /// What the device reports.
    pub fn prepare(&mut self, sampling: &Sampling) -> Result<()> {
        self.engine.check_writes()?;
        match &self.speculation {
            Some(speculation) => speculation.prepare(&mut self.engine, sampling),
            None if self.engine.feeds_back() => self.engine.prepare(sampling),
            None => Ok(()),
        }
    }

    /// A conversation that has not begun.
    ///
    /// # Errors
    /// A file whose chat template is broken, or that has none.
    pub fn chat(&mut self) -> Result<Chat<'_>> {
        let template = engine::chat_template(&self.file, &self.tokenizer)?;
        Ok(Chat::new(self, template))
    }

    /// The vector of a text, of length 1: texts that mean the same have vectors whose product is near 1. The file says how
    /// its tokens are pooled ([`engine::Pooling`]). The text that the model remembers stays as it is.
    ///
    /// # Errors
    /// As [`Engine::embed`].
    pub fn embed(&mut self, text: &str) -> Result<Vec<f32>> {
        let tokens = self.tokenizer.encode(text, EncodeOptions::PROMPT)?;
        self.engine.embed(&tokens)
    }

    /// As [`embed`](Self::embed), of tokens.
    ///
    /// # Errors
    /// As [`Engine::embed`].
    pub fn embed_tokens(&mut self, tokens: &[u32]) -> Result<Vec<f32>> {
        self.engine.embed(tokens)
    }

    /// Continues a text as it is, without a chat template.
    ///
    /// # Errors
    /// As [`reply`](Self::reply).
    pub fn complete(&mut self, prompt: &str, sampling: &Sampling) -> Result<Reply<'_>> {
        let tokens = self.tokenizer.encode(prompt, EncodeOptions::PROMPT)?;
        self.reply(tokens, sampling)
    }

    /// Replies to a prompt of tokens. What it shares with the text that the model remembers is not read again.
    ///
    /// # Errors
    /// Before anything is computed: [`EngineError::Empty`], [`EngineError::ContextFull`],
    /// [`EngineError::TokenOutOfRange`], [`EngineError::NoAdapter`], [`EngineError::NoLogits`].
    pub fn reply(&mut self, prompt: Vec<u32>, sampling: &Sampling) -> Result<Reply<'_>> {
        self.reply_to(prompt, sampling, None)
    }

    fn reply_to<'a>(
        &'a mut self,
        prompt: Vec<u32>,
        sampling: &Sampling,
        messages: Option<&'a mut Vec<crate::text::ChatMessage>>,
    ) -> Result<Reply<'a>> {
        sampling.check()?;
        self.engine.check_writes()?;
        let Some(last) = prompt.len().checked_sub(1) else { return Err(EngineError::Empty) };
        let context = self.engine.context();
        if prompt.len() > context {
            return Err(EngineError::ContextFull { wanted: prompt.len(), context });
        }
        let vocab = self.engine.shape().vocab;
        if let Some(&token) = prompt.iter().find(|&&token| token as usize >= vocab) {
            return Err(EngineError::TokenOutOfRange { token, vocab });
        }
        // The last token is always read: its logits are the reply's beginning.
        let shared = prompt[..last].iter().zip(&self.read).take_while(|(a, b)| a == b).count();
        self.keep(shared);
        let Self { engine, tokenizer, read, speculation, .. } = self;
        let speculation = speculation.as_mut();
        Ok(Reply::new(engine, tokenizer, read, speculation, messages, prompt, sampling))
    }

    /// Forgets the text after its first `tokens` tokens.
    fn keep(&mut self, tokens: usize) {
        self.engine.truncate(tokens);
        self.read.truncate(tokens);
    }
}
