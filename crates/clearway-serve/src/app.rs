//! What all requests share.

use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::sync::{Arc, OnceLock};
use std::time::Instant;

use clearway_llm::engine::TextConstraint;
use clearway_llm::grammar::{Grammar, GrammarError, Grammars};

use crate::config::Config;
use crate::error::{ApiError, Result};
use crate::log::Log;
use crate::metrics::Metrics;
use crate::model::Served;

/// Bytes of bodies that may be in memory at once.
const MAX_BODIES: usize = 256 << 20;

/// What all requests share.
pub struct App {
    /// How the server runs.
    pub config: Config,
    /// What is counted.
    pub metrics: Arc<Metrics>,
    /// Where requests are logged.
    pub log: Log,
    /// When the server started.
    pub started: Instant,
    /// The same in seconds since 1970.
    pub created: u64,
    served: OnceLock<Arc<Served>>,
    draining: AtomicBool,
    grammars: OnceLock<Result<Grammars, GrammarError>>,
    bodies: AtomicUsize,
}

impl App {
    /// A server without a model.
    pub fn new(config: Config) -> Self {
        let log = Log::new(config.log);
        Self {
            config,
            metrics: Arc::default(),
            log,
            started: Instant::now(),
            created: crate::clock::unix(),
            served: OnceLock::new(),
            draining: AtomicBool::new(false),
            grammars: OnceLock::new(),
            bodies: AtomicUsize::new(0),
        }
    }

    /// The model is loaded: requests are taken from here on. There is one model; a second one is not taken.
    pub fn set_served(&self, served: Served) -> &Served {
        self.served.get_or_init(|| Arc::new(served))
    }

    /// Takes no more requests.
    pub fn drain(&self) {
        self.draining.store(true, Ordering::SeqCst);
    }

    /// Whether no more requests are taken.
    pub fn is_draining(&self) -> bool {
        self.draining.load(Ordering::SeqCst)
    }

    /// One word for what the server does.
    pub fn state(&self) -> &'static str {
        match self.served.get() {
            _ if self.is_draining() => "draining",
            None => "loading",
            Some(_) => "ready",
        }
    }

    /// The model, if it is loaded.
    pub fn loaded(&self) -> Option<&Arc<Served>> {
        self.served.get()
    }

    /// The model, for a new request.
    ///
    /// # Errors
    /// It is not loaded yet, or the server is shutting down.
    pub fn served(&self) -> Result<Arc<Served>> {
        if self.is_draining() {
            return Err(
                ApiError::unavailable("the server is shutting down", 5).with_code("draining")
            );
        }
        let served = self.served.get().cloned();
        served.ok_or_else(|| {
            ApiError::unavailable("the model is being loaded", 2).with_code("loading")
        })
    }

    /// A constraint for one text.
    ///
    /// # Errors
    /// A grammar that cannot be enforced.
    pub fn constraint(&self, served: &Served, grammar: &Grammar) -> Result<TextConstraint> {
        let refused = |error: &GrammarError| {
            let message = match &error.keyword {
                Some(keyword) => format!("cannot be enforced because of `{keyword}`: {error}"),
                None => format!("cannot be enforced: {error}"),
            };
            ApiError::field("response_format", message).with_code("grammar")
        };
        let grammars = self.grammars.get_or_init(|| Grammars::new(&served.tokenizer));
        let constraint = grammars.as_ref().map_err(refused)?.compile(grammar);
        Ok(TextConstraint::new(constraint.map_err(|error| refused(&error))?))
    }

    /// Makes room for bytes of a body. They are given back when what is returned is dropped.
    ///
    /// # Errors
    /// Too many bytes are in memory already.
    pub fn reserve(self: &Arc<Self>, bytes: usize) -> Result<Reserved> {
        let reserved = Reserved { app: self.clone(), bytes };
        match self.bodies.fetch_add(bytes, Ordering::Relaxed) + bytes > MAX_BODIES {
            true => Err(ApiError::unavailable("too many large requests at once", 2)),
            false => Ok(reserved),
        }
    }
}

/// Room for a body.
pub struct Reserved {
    app: Arc<App>,
    bytes: usize,
}

impl Drop for Reserved {
    fn drop(&mut self) {
        self.app.bodies.fetch_sub(self.bytes, Ordering::Relaxed);
    }
}
