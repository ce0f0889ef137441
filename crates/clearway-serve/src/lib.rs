//! An OpenAI-compatible HTTP server over Clearway's language-model engine.
//!
//! [`Server::bind`] listens at once; [`Server::run`] loads the model beside it and answers until it is told to stop. While
//! the model is loaded, and while the last requests are finished at the end, `/health` and all others answer 503.
//!
//! | module | what it does |
//! |---|---|
//! | `listen` | connections: limits, TLS, draining |
//! | `front` | in front of every endpoint: keys, hosts, origins, panics, the log line |
//! | `api` | the endpoints |
//! | `fields` | fields of a request, each asked for by its name; the rest is refused |
//! | `sampling`, `prompt`, `tools` | fields to sampling rows, conversations to tokens, tools to grammars |
//! | `generate`, `split` | tokens to text, and text to thoughts, words and calls |
//! | [`backend`], `batch` | what the server asks of an engine, and the engine of many sequences |
//! | `metrics`, `log` | numbers and lines |
//!
//! The HTTP side never touches the engine's thread: requests go in through a bounded queue, tokens come back through a
//! channel each, and a channel that is dropped cancels its request.

mod api;
mod app;
pub mod backend;
mod batch;
mod clock;
mod config;
mod error;
mod fields;
mod front;
#[cfg(any(test, feature = "testkit"))]
mod fuzz;
mod generate;
mod listen;
mod log;
mod metrics;
mod model;
mod prompt;
mod sampling;
mod split;
mod tls;
mod tools;

use std::io;
use std::sync::Arc;
use std::sync::mpsc::TryRecvError;
use std::time::Duration;

pub use app::App;
pub use batch::{Batch, BatchOptions, StartError};
pub use config::{Address, Config};
#[cfg(feature = "testkit")]
pub use fuzz::fuzz_body;
pub use log::LogFormat;
pub use model::{Facts, Served};

/// Cores for each thread of the HTTP side, which moves bytes and waits. With a second thread every delivery of tokens wakes
/// both, and on few cores that time is taken from the engine.
const CORES_PER_THREAD: usize = 8;
/// Most threads of the HTTP side.
const MOST_THREADS: usize = 4;
/// How often the wish to stop is looked for.
const LOOK: Duration = Duration::from_millis(50);

/// A server that listens.
pub struct Server {
    app: Arc<App>,
    runtime: tokio::runtime::Runtime,
    listener: listen::Listener,
    tls: Option<tls::Tls>,
}

/// How a server ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Ended {
    /// Every request was answered.
    Complete,
    /// Some were cut off at the deadline.
    CutOff,
    /// Loading the model broke down.
    NotLoaded,
}

impl Server {
    /// Listens. Nothing is answered before [`run`](Self::run).
    ///
    /// # Errors
    /// An address that is taken, certificates that cannot be read.
    pub fn bind(config: Config) -> io::Result<Self> {
        let tls = match &config.tls {
            None => None,
            Some((certificates, key)) => Some(tls::Tls::open(certificates, key)?),
        };
        let cores = std::thread::available_parallelism().map_or(1, usize::from);
        let runtime = tokio::runtime::Builder::new_multi_thread()
            .worker_threads((cores / CORES_PER_THREAD).clamp(1, MOST_THREADS))
            .thread_name("http")
            .enable_all()
            .build()?;
        let listener = runtime.block_on(listen::Listener::bind(&config.address))?;
        Ok(Self { app: Arc::new(App::new(config)), runtime, listener, tls })
    }

    /// Where it listens, for people.
    pub fn address(&self) -> String {
        self.listener.describe(self.tls.is_some())
    }

    /// Loads the model, tells `ready` once requests are taken, and answers until `stop` is true; then finishes the
    /// requests under way.
    ///
    /// # Errors
    /// What `load` reports: then the server ends.
    pub fn run<E: Send + 'static>(
        self,
        load: impl FnOnce() -> Result<Served, E> + Send + 'static,
        ready: impl FnOnce(&Served) + Send + 'static,
        stop: impl Fn() -> bool,
    ) -> Result<Ended, E> {
        let Self { app, runtime, listener, tls } = self;
        let (failed, failure) = std::sync::mpsc::channel();
        let loading = {
            let app = app.clone();
            std::thread::spawn(move || match load() {
                Ok(served) => ready(app.set_served(served)),
                Err(error) => {
                    let _ = failed.send(error);
                }
            })
        };
        let (mut error, mut broken) = (None, false);
        let stopping = async {
            while !stop() {
                match failure.try_recv() {
                    Ok(found) => {
                        error = Some(found);
                        return;
                    }
                    // The thread that loads has ended without a word.
                    Err(TryRecvError::Disconnected) if app.loaded().is_none() => {
                        broken = true;
                        return;
                    }
                    Err(_) => {}
                }
                tokio::time::sleep(LOOK).await;
            }
        };
        let router = api::router(app.clone());
        let serving = listen::serve(app.clone(), router, listener, tls, stopping);
        let complete = runtime.block_on(serving);
        runtime.shutdown_timeout(Duration::from_millis(200));
        // A model that is still being loaded is given up with the process.
        drop(loading);
        match error {
            Some(error) => Err(error),
            None if broken => Ok(Ended::NotLoaded),
            None if complete => Ok(Ended::Complete),
            None => Ok(Ended::CutOff),
        }
    }
}
