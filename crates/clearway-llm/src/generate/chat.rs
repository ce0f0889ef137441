//! Conversations.

use super::{Model, Reply, saved};
use crate::engine::{Result, Sampling};
use crate::text::{ChatMessage, ChatOptions, ChatTemplate};

/// A conversation with a model.
///
/// ```no_run
/// use clearway_llm::{Model, Options, Sampling};
///
/// let mut model = Model::load("model.gguf", Options::default())?;
/// let mut chat = model.chat()?;
/// chat.system("Answer in one sentence.");
/// for question in ["Why is the sky blue?", "And at sunset?"] {
///     chat.user(question);
///     for piece in chat.reply(&Sampling::default())? {
///         print!("{}", piece?);
///     }
///     println!();
/// }
/// // The conversation and what the model has computed for it, for another day.
/// std::fs::write("chat.state", chat.save()?)?;
/// let chat = model.restore_chat(&std::fs::read("chat.state")?)?;
/// assert_eq!(chat.messages().len(), 5);
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
pub struct Chat<'m> {
    model: &'m mut Model,
    template: ChatTemplate,
    messages: Vec<ChatMessage>,
    options: ChatOptions,
}

impl<'m> Chat<'m> {
    pub(super) fn new(model: &'m mut Model, template: ChatTemplate) -> Self {
        Self { model, template, messages: Vec::new(), options: ChatOptions::default() }
    }

    /// Says something as the one who sets the rules.
    pub fn system(&mut self, text: impl Into<String>) {
        self.push(ChatMessage::new("system", text));
    }

    /// Says something as the user.
    pub fn user(&mut self, text: impl Into<String>) {
        self.push(ChatMessage::new("user", text));
    }

    /// Adds a message of any role.
    pub fn push(&mut self, message: ChatMessage) {
        self.messages.push(message);
    }

    /// Takes the last message back.
    pub fn pop(&mut self) -> Option<ChatMessage> {
        self.messages.pop()
    }

    /// All messages so far, replies included.
    pub fn messages(&self) -> &[ChatMessage] {
        &self.messages
    }

    /// What the template is told besides the messages.
    pub fn set_options(&mut self, options: ChatOptions) {
        self.options = options;
    }

    /// The model.
    pub fn model(&self) -> &Model {
        self.model
    }

    /// Starts anew, without messages.
    pub fn clear(&mut self) {
        self.messages.clear();
        self.model.clear();
    }

    /// The model's reply to the messages. When it ends, or is dropped, what came of it becomes the next message.
    ///
    /// # Errors
    /// A template that fails, and as [`Model::reply`]. The messages stay as they are.
    pub fn reply(&mut self, sampling: &Sampling) -> Result<Reply<'_>> {
        let prompt = self.template.render(&self.messages, &self.options)?;
        let tokens = self.model.tokenizer.encode_chat(&prompt)?;
        self.model.reply_to(tokens, sampling, Some(&mut self.messages))
    }

    /// The conversation and the model's memory of it as bytes, for [`Model::restore_chat`].
    ///
    /// # Errors
    /// What the device reports.
    pub fn save(&self) -> Result<Vec<u8>> {
        saved::write(self.model, &self.messages)
    }
}

impl Model {
    /// A conversation that [`Chat::save`] saved, with the same file and the same type of cache. The model remembers what it
    /// had read and reads nothing again.
    ///
    /// # Errors
    /// [`EngineError::Saved`](crate::Error::Saved) for bytes that are damaged or belong to another model;
    /// [`EngineError::ContextFull`](crate::Error::ContextFull) where the text is longer than the context; as
    /// [`chat`](Self::chat).
    pub fn restore_chat(&mut self, bytes: &[u8]) -> Result<Chat<'_>> {
        let messages = saved::read(self, bytes)?;
        let mut chat = self.chat()?;
        chat.messages = messages;
        Ok(chat)
    }

    /// The text that the model remembers as bytes, for [`restore`](Self::restore).
    ///
    /// # Errors
    /// What the device reports.
    pub fn save(&self) -> Result<Vec<u8>> {
        saved::write(self, &[])
    }

    /// Remembers a text that [`save`](Self::save) or [`Chat::save`] saved.
    ///
    /// # Errors
    /// As [`restore_chat`](Self::restore_chat).
    pub fn restore(&mut self, bytes: &[u8]) -> Result<()> {
        saved::read(self, bytes).map(|_| ())
    }
}
