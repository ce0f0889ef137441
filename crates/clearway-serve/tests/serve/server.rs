//! A server in this process, over a model of random weights.

use std::path::PathBuf;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, OnceLock};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use clearway::Device;
use clearway::cpu::CpuDevice;
use clearway_llm::engine::{self, Adapters, Engine, EngineOptions};
use clearway_llm::gguf::Gguf;
use clearway_llm::gguf::synth::{Synth, SynthQuant, SynthShape};
use clearway_llm::model::{Arch, ModelShape};
use clearway_serve::{Address, Batch, BatchOptions, Config, Ended, LogFormat, Served, Server};

use crate::client::Client;

/// Name of the model.
pub const MODEL: &str = "tiny";
/// Tokens of its context.
pub const CONTEXT: usize = 1024;

/// A server that runs.
pub struct Running {
    /// Talks to it.
    pub client: Client,
    stop: Arc<AtomicBool>,
    thread: Option<JoinHandle<Result<Ended, String>>>,
}

/// What a test may change.
pub struct Setup {
    /// How the server runs.
    pub config: Config,
    /// Texts that may wait.
    pub queue: usize,
    /// Texts that are written at once.
    pub parallel: usize,
    /// How long loading takes.
    pub load: Duration,
    /// Opens the device, the first time and again.
    pub device: Arc<dyn Fn() -> Arc<dyn Device> + Send + Sync>,
    /// Adapters that requests choose.
    pub adapters: Adapters,
}

impl Default for Setup {
    fn default() -> Self {
        let address = Address::Tcp { host: [127, 0, 0, 1].into(), port: 0 };
        let config = Config { address, log: LogFormat::None, ..Config::default() };
        let device = || Arc::new(CpuDevice::new()) as Arc<dyn Device>;
        Self {
            config,
            queue: 64,
            parallel: 2,
            load: Duration::ZERO,
            device: Arc::new(device),
            adapters: Adapters::None,
        }
    }
}

impl Setup {
    /// Starts the server.
    pub fn start(self) -> Running {
        let Self { config, queue, parallel, load, device, adapters } = self;
        let server = Server::bind(config).unwrap();
        let address = server.address();
        let client = Client::new(address.strip_prefix("http://").unwrap_or(&address));
        let stop = Arc::new(AtomicBool::new(false));
        let thread = {
            let stop = stop.clone();
            std::thread::spawn(move || {
                let made = move || {
                    std::thread::sleep(load);
                    served(queue, parallel, device, adapters).map_err(|error| error.to_string())
                };
                server.run(made, |_| (), move || stop.load(Ordering::SeqCst))
            })
        };
        Running { client, stop, thread: Some(thread) }
    }
}

impl Running {
    /// A server with nothing special, which is ready.
    pub fn new() -> Self {
        let running = Setup::default().start();
        running.wait();
        running
    }

    /// Waits until it is ready.
    pub fn wait(&self) {
        until("ready", || self.client.get("/health").status == 200);
    }

    /// Tells it to end.
    pub fn tell(&self) {
        self.stop.store(true, Ordering::SeqCst);
    }

    /// Ends it; how it ended.
    pub fn end(mut self) -> Ended {
        self.tell();
        self.thread.take().unwrap().join().unwrap().unwrap()
    }

    /// Waits until nothing runs and nothing waits.
    pub fn wait_idle(&self) {
        until("idle", || {
            let slots = self.client.get("/slots").json();
            slots["running"] == 0 && slots["waiting"] == 0
        });
    }
}

impl Drop for Running {
    fn drop(&mut self) {
        self.tell();
        if let Some(thread) = self.thread.take() {
            let _ = thread.join();
        }
    }
}

/// Waits for something that must come soon.
pub fn until(what: &str, there: impl Fn() -> bool) {
    let start = Instant::now();
    while !there() {
        assert!(start.elapsed() < Duration::from_secs(60), "{what} never came");
        std::thread::sleep(Duration::from_millis(5));
    }
}

fn served(
    queue: usize,
    parallel: usize,
    device: Arc<dyn Fn() -> Arc<dyn Device> + Send + Sync>,
    adapters: Adapters,
) -> Result<Served, Box<dyn std::error::Error>> {
    let file = Gguf::open(model())?;
    let again = file.clone();
    let options = EngineOptions { context: Some(parallel * CONTEXT), ..EngineOptions::default() };
    let choices = adapters.choices();
    let engine = Engine::with_adapters(&file, &adapters, device(), options, &mut |_| ())?;
    let ends = engine::tokenizer(&file)?.end_tokens().to_vec();
    let reopen = move || Engine::with_adapters(&again, &adapters, device(), options, &mut |_| ());
    let options = BatchOptions { parallel, context: CONTEXT, queue };
    let backend = Batch::reopening(engine, ends, options, reopen)?;
    let served = Served::new(vec![MODEL.into()], &file, CONTEXT, 4096, Box::new(backend))?;
    Ok(served.with_adapters(choices))
}

/// The model file, made once.
pub fn model() -> PathBuf {
    static MADE: OnceLock<Mutex<Option<PathBuf>>> = OnceLock::new();
    let mut made = MADE.get_or_init(Mutex::default).lock().unwrap();
    made.get_or_insert_with(|| {
        let shape = ModelShape::new("tiny", Arch::Llama, 2, 64, 96, 4, 2, 16, 4096);
        let shape = SynthShape::new(ModelShape { tied: true, context: 4096, ..shape }).unwrap();
        let path = std::env::temp_dir().join(format!("clearway-serve-{}.gguf", std::process::id()));
        let synth =
            Synth { shape, quant: "f32".parse::<SynthQuant>().unwrap(), seed: 7, vocab: true };
        synth.write_file(&path, |_| Ok(())).unwrap();
        path
    })
    .clone()
}
