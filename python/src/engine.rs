//! A model on a device that writes many texts at once.

use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, OnceLock, PoisonError, mpsc};
use std::task::Context;
use std::time::{Duration, Instant};

use clearway::{DType, Device};
use clearway_llm::batch::device::{DeviceOptions, DeviceRunner};
use clearway_llm::batch::request::Request;
use clearway_llm::batch::service::{Histogram, Service, ServiceOptions};
use clearway_llm::batch::text::{TextFailure, TextStream};
use clearway_llm::engine::{self, Adapter, Adapters, EngineOptions, Footprint, Pooling};
use clearway_llm::fetch::{Cache, ModelName, Watch};
use clearway_llm::gguf::Gguf;
use clearway_llm::grammar::Grammars;
use clearway_llm::text::{
    ChatOptions, ChatTemplate, Data, DecodeOptions, EncodeOptions, Tokenizer,
};
use clearway_llm::{Error, Sampling};
use pyo3::prelude::*;
use pyo3::types::{PyBool, PyDict, PyFloat, PyInt, PyList, PyString, PyTuple};

use crate::error::{self, exception};
use crate::params::Params;
use crate::stream::{self, Stream};

/// Tokens of a block of the cache.
const BLOCK: usize = 32;
/// How often a thread that waits looks for signals.
const SIGNALS: Duration = Duration::from_millis(50);
/// What a load that was interrupted gets to clean up.
const CLEANUP: Duration = Duration::from_secs(2);
/// How often progress is told.
const PROGRESS: Duration = Duration::from_millis(100);

/// How to load a model.
#[derive(FromPyObject)]
pub struct LoadOptions {
    device: String,
    threads: Option<usize>,
    max_model_len: Option<usize>,
    max_num_seqs: usize,
    cache_tokens: Option<usize>,
    kv_cache_dtype: String,
    deterministic: bool,
    max_queue: usize,
    /// Name, file and factor of each adapter of the weights.
    lora_modules: Vec<(String, String, f32)>,
    progress: Option<Py<PyAny>>,
}

/// A model on a device that writes many texts at once.
#[pyclass(frozen, module = "clearway._clearway")]
pub struct Engine {
    /// Nothing after `close`.
    service: Mutex<Option<Service>>,
    tokenizer: Arc<Tokenizer>,
    template: Result<ChatTemplate, String>,
    /// Why the model gives no vectors of texts, if it gives none.
    no_vectors: Option<String>,
    /// Names of adapters, which texts choose by the index.
    adapters: Vec<String>,
    grammars: OnceLock<Result<Grammars, String>>,
    context: usize,
    device: (String, String),
    name: String,
}

impl Engine {
    fn service(&self) -> PyResult<Service> {
        let service = self.service.lock().unwrap_or_else(PoisonError::into_inner);
        service.clone().ok_or_else(|| exception("ClosedError", "the model was closed", &[]))
    }

    fn grammars(&self) -> PyResult<&Grammars> {
        let made = self
            .grammars
            .get_or_init(|| Grammars::new(&self.tokenizer).map_err(|problem| problem.to_string()));
        made.as_ref().map_err(|message| exception("GrammarError", message, &[]))
    }

    /// The requests of `params.n` texts after tokens.
    fn requests(&self, prompt: Vec<u32>, params: &Params, patient: bool) -> PyResult<Vec<Request>> {
        let grammar = params.grammar()?;
        let grammars = grammar.as_ref().map(|grammar| Ok::<_, PyErr>((self.grammars()?, grammar)));
        let grammars = grammars.transpose()?;
        let prompt: Arc<[u32]> = prompt.into();
        let request = |choice| {
            Ok(Request {
                priority: params.priority,
                ignore_eos: params.ignore_eos,
                patient,
                ..Request::new(prompt.clone(), params.row(choice, grammars)?)
            })
        };
        (0..params.n).map(request).collect()
    }

    fn ask(&self, service: &Service, requests: Vec<Request>) -> PyResult<Stream> {
        let stops = |request: &Request| request.sampling.stop_strings.clone();
        let stops: Vec<Vec<String>> = requests.iter().map(stops).collect();
        let streams = service.submit_all(requests).map_err(|why| error::refusal(&why))?;
        let text = |(stream, stops): (_, Vec<String>)| {
            TextStream::new(stream, 1, self.tokenizer.clone(), &stops, self.context)
        };
        Ok(Stream::new(streams.into_iter().zip(stops).map(text).collect()))
    }

    fn open(model: &str, options: &LoadOptions, watch: &mut Watcher) -> PyResult<Self> {
        let name: ModelName = model.parse().map_err(|problem| error::fetch(&problem))?;
        let failed = |problem: Error| error::engine(&problem);
        // A file of the user's own needs no cache.
        let cache = match name {
            ModelName::File(_) => Cache::at(""),
            _ => Cache::of_user().map_err(|problem| error::fetch(&problem))?,
        };
        let path = cache.fetch(&name, watch).map_err(|problem| error::fetch(&problem))?;
        let file = Gguf::open(&path).map_err(|problem| failed(problem.into()))?;
        let adapter = |(name, path, scale): &(String, String, f32)| {
            Ok::<_, Error>(Adapter::open(path, *scale)?.named(name))
        };
        let adapters = options.lora_modules.iter().map(adapter).collect::<Result<Vec<_>, _>>();
        // Without any, steps have nothing of adapters in them.
        let adapters = match adapters.map_err(failed)? {
            list if list.is_empty() => Adapters::None,
            list => Adapters::ByText(list),
        };
        let device = crate::device::open(&options.device, options.threads)?;
        let info = device.info().clone();
        let cache_dtype = match options.kv_cache_dtype.as_str() {
            "f32" => DType::F32,
            "q8_0" => DType::Q8_0,
            _ => DType::F16,
        };
        let (length, memory) = (options.max_model_len, info.memory_bytes);
        let footprint = Footprint::with_adapters(&file, &adapters, length, cache_dtype, memory)
            .map_err(failed)?;
        let context = footprint.context;
        let pool =
            options.cache_tokens.unwrap_or_else(|| footprint.pool(options.max_num_seqs, memory));
        // A pool of whole blocks that holds at least one text.
        let pool = pool.max(context).next_multiple_of(BLOCK);
        let engine_options =
            EngineOptions { context: Some(pool), cache_dtype, ..EngineOptions::default() };
        let service = start(&file, &adapters, device, engine_options, context, options, watch)
            .map_err(failed)?;
        let tokenizer = Arc::new(engine::tokenizer(&file).map_err(failed)?);
        let template =
            engine::chat_template(&file, &tokenizer).map_err(|problem| problem.to_string());
        let no_vectors = Pooling::of(&file).err().map(|problem| problem.to_string());
        let context = service.limits().context;
        Ok(Self {
            service: Mutex::new(Some(service)),
            tokenizer,
            template,
            no_vectors,
            adapters: adapters.choices(),
            grammars: OnceLock::new(),
            context,
            device: (info.name, info.description),
            name: name.to_string(),
        })
    }
}

fn start(
    file: &Gguf,
    adapters: &Adapters,
    device: Arc<dyn Device>,
    engine_options: EngineOptions,
    context: usize,
    options: &LoadOptions,
    watch: &mut Watcher,
) -> Result<Service, Error> {
    let ends = engine::tokenizer(file)?.end_tokens().to_vec();
    let total = file.tensor_bytes();
    watch.say("loading");
    let mut progress = |done| watch.progress(done, Some(total));
    let engine =
        engine::Engine::with_adapters(file, adapters, device, engine_options, &mut progress)?;
    let vocab = engine.shape().vocab;
    let device = DeviceOptions {
        slots: options.max_num_seqs,
        block: BLOCK,
        context,
        deterministic: options.deterministic,
    };
    let mut runner = DeviceRunner::new(engine, device)?;
    runner.prepare(1, &Sampling::default())?;
    let options = ServiceOptions {
        end_tokens: ends,
        vocab: Some(vocab),
        queue: options.max_queue,
        ..ServiceOptions::default()
    };
    let no_thread = |problem: std::io::Error| clearway::GpuError::Driver {
        device: "cpu".into(),
        call: "thread",
        reason: problem.to_string(),
    };
    Service::new(Box::new(runner), options).map_err(|problem| no_thread(problem).into())
}

#[pymethods]
impl Engine {
    /// Fetches and loads a model, on a thread of its own so that signals are seen meanwhile.
    #[new]
    fn new(py: Python<'_>, model: String, options: LoadOptions) -> PyResult<Self> {
        let stopped = Arc::new(AtomicBool::new(false));
        let mut watch = Watcher {
            progress: options.progress.as_ref().map(|progress| progress.clone_ref(py)),
            line: String::new(),
            told: None,
            stopped: Arc::clone(&stopped),
        };
        let (sender, result) = mpsc::channel();
        let load = move || {
            let loaded = Self::open(&model, &options, &mut watch);
            watch.end();
            // Whoever was interrupted does not wait for it.
            let _ = sender.send(loaded);
        };
        let thread = std::thread::Builder::new().name("clearway-load".into());
        // Chat templates and grammars recurse.
        thread.stack_size(16 << 20).spawn(load)?;
        let mut result = Waiting(result);
        loop {
            if let Some(loaded) = result.within(py, SIGNALS) {
                return loaded;
            }
            if let Err(interrupt) = py.check_signals() {
                stopped.store(true, Ordering::Release);
                drop(result.within(py, CLEANUP));
                return Err(interrupt);
            }
        }
    }

    /// Asks for `params.n` texts after tokens, which are read as they are written.
    fn submit(&self, py: Python<'_>, prompt: Vec<u32>, params: Params) -> PyResult<Stream> {
        let service = self.service()?;
        py.detach(|| self.ask(&service, self.requests(prompt, &params, false)?))
    }

    /// Asks for texts after many prompts at once, all of which are waited for. Prompt `i` has row `which[i]`; its texts follow
    /// those of the prompt before.
    fn submit_all(
        &self,
        py: Python<'_>,
        prompts: Vec<Vec<u32>>,
        rows: Vec<Params>,
        which: Vec<usize>,
    ) -> PyResult<Stream> {
        let service = self.service()?;
        py.detach(|| {
            let mut all = Vec::with_capacity(prompts.len());
            for (prompt, row) in prompts.into_iter().zip(which) {
                let row = rows.get(row).ok_or_else(|| {
                    exception("ClearwayError", "there is no such row of parameters", &[])
                })?;
                all.extend(self.requests(prompt, row, true)?);
            }
            self.ask(&service, all)
        })
    }

    /// The vectors of texts of tokens, each of length 1.
    fn embed(&self, py: Python<'_>, texts: Vec<Vec<u32>>) -> PyResult<Vec<Vec<f32>>> {
        let service = self.service()?;
        if let Some(why) = &self.no_vectors {
            return Err(exception("ModelError", why, &[]));
        }
        let vectors = service.embed(texts).map_err(|why| error::refusal(&why))?;
        let mut vectors = Box::pin(vectors);
        let found =
            stream::wait(py, |waker| vectors.as_mut().poll(&mut Context::from_waker(waker)))?;
        found.map_err(|failure| error::failure(&TextFailure::Tokens(failure)))
    }

    /// Text to tokens.
    fn encode(&self, text: &str, special: bool) -> PyResult<Vec<u32>> {
        let options = if special { EncodeOptions::PROMPT } else { EncodeOptions::PLAIN };
        self.tokenizer.encode(text, options).map_err(|problem| error::text(&problem))
    }

    /// Tokens to text.
    fn decode(&self, tokens: Vec<u32>, skip_special: bool) -> PyResult<String> {
        let options = DecodeOptions { skip_special, ..DecodeOptions::default() };
        let bytes =
            self.tokenizer.decode(&tokens, options).map_err(|problem| error::text(&problem))?;
        Ok(String::from_utf8_lossy(&bytes).into_owned())
    }

    /// A conversation to a prompt.
    fn render(
        &self,
        py: Python<'_>,
        messages: Vec<Bound<'_, PyAny>>,
        variables: Vec<(String, Bound<'_, PyAny>)>,
        add_generation_prompt: bool,
        enable_thinking: Option<bool>,
    ) -> PyResult<String> {
        let template = self.template.as_ref();
        let template = template.map_err(|message| exception("ModelError", message, &[]))?;
        let messages = messages.iter().map(data).collect::<PyResult<Vec<Data>>>()?;
        let variables = variables.iter().map(|(name, value)| Ok((name.as_str(), data(value)?)));
        let variables = variables.collect::<PyResult<Vec<_>>>()?;
        let options =
            ChatOptions { add_generation_prompt, enable_thinking, ..ChatOptions::default() };
        py.detach(|| {
            template
                .render_data(&messages, &variables, &options)
                .map_err(|problem| error::text(&problem))
        })
    }

    /// The tokens of a prompt that a template made.
    fn encode_chat(&self, prompt: &str) -> PyResult<Vec<u32>> {
        self.tokenizer.encode_chat(prompt).map_err(|problem| error::text(&problem))
    }

    /// Counters by name, and times as (name, count, mean, median, 99th percentile) in seconds.
    fn stats<'py>(&self, py: Python<'py>) -> PyResult<Bound<'py, PyDict>> {
        let service = self.service()?;
        let stats = service.stats();
        let all = PyDict::new(py);
        for (name, number) in stats.numbers().by_name() {
            all.set_item(name, number)?;
        }
        all.set_item("queued", stats.queued())?;
        let times: [(&str, &Histogram); 5] = [
            ("first_token", &stats.first_token),
            ("between_tokens", &stats.between_tokens),
            ("queue", &stats.queue),
            ("prompt", &stats.prompt),
            ("host_per_step", &stats.host_per_step),
        ];
        for (name, histogram) in times {
            let times = histogram.read();
            let row = PyDict::new(py);
            row.set_item("count", times.count())?;
            row.set_item("mean", times.mean().as_secs_f64())?;
            row.set_item("p50", times.quantile(0.5).as_secs_f64())?;
            row.set_item("p99", times.quantile(0.99).as_secs_f64())?;
            all.set_item(format!("{name}_seconds"), row)?;
        }
        Ok(all)
    }

    /// Takes no more requests and waits at most so long for those under way; whether all ended by themselves.
    fn drain(&self, py: Python<'_>, seconds: f64) -> PyResult<bool> {
        let service = self.service()?;
        let until = Instant::now() + Duration::try_from_secs_f64(seconds).unwrap_or_default();
        let (sender, done) = mpsc::channel();
        let all = move || {
            let in_time = service.drain(until.saturating_duration_since(Instant::now()));
            // Whoever was interrupted does not wait for it.
            let _ = sender.send(in_time);
        };
        std::thread::Builder::new().name("clearway-drain".into()).spawn(all)?;
        let mut done = Waiting(done);
        loop {
            if let Some(in_time) = done.within(py, SIGNALS) {
                return Ok(in_time);
            }
            py.check_signals()?;
        }
    }

    /// Cancels what is under way and gives the device back.
    fn close(&self, py: Python<'_>) {
        let service = self.service.lock().unwrap_or_else(PoisonError::into_inner).take();
        if let Some(service) = service {
            py.detach(|| drop((service.drain(Duration::ZERO), service)));
        }
    }

    /// Whether `close` was called.
    #[getter]
    fn closed(&self) -> bool {
        self.service.lock().unwrap_or_else(PoisonError::into_inner).is_none()
    }

    /// Tokens of one text at most.
    #[getter]
    fn context(&self) -> usize {
        self.context
    }

    /// Name and description of the device.
    #[getter]
    fn device(&self) -> (String, String) {
        self.device.clone()
    }

    /// Name of the model.
    #[getter]
    fn name(&self) -> &str {
        &self.name
    }

    /// Names of adapters, which texts choose by the index.
    #[getter]
    fn adapters(&self) -> Vec<String> {
        self.adapters.clone()
    }

    /// Tokens there are.
    #[getter]
    fn vocab_size(&self) -> usize {
        self.tokenizer.len()
    }

    /// Tokens that end a text.
    #[getter]
    fn end_tokens(&self) -> Vec<u32> {
        self.tokenizer.end_tokens().to_vec()
    }
}

/// What another thread will send.
struct Waiting<T>(mpsc::Receiver<T>);

impl<T: Send> Waiting<T> {
    /// Waits without the interpreter.
    fn within(&mut self, py: Python<'_>, time: Duration) -> Option<T> {
        py.detach(|| {
            let this = &mut *self;
            this.0.recv_timeout(time).ok()
        })
    }
}

/// Tells Python how far a load is, and stops a fetch.
struct Watcher {
    progress: Option<Py<PyAny>>,
    line: String,
    told: Option<Instant>,
    stopped: Arc<AtomicBool>,
}

impl Watcher {
    fn tell(&self, done: u64, total: Option<u64>) {
        let Some(progress) = &self.progress else { return };
        // A bar that cannot be drawn stops no load.
        Python::try_attach(|py| drop(progress.call1(py, (&self.line, done, total))));
    }

    fn end(&mut self) {
        if self.told.is_some() {
            self.line.clear();
            self.tell(0, None);
        }
    }
}

impl Watch for Watcher {
    fn say(&mut self, line: &str) {
        line.clone_into(&mut self.line);
        self.told = Some(Instant::now());
        self.tell(0, None);
    }

    fn progress(&mut self, done: u64, total: Option<u64>) {
        if self.told.is_none_or(|told| told.elapsed() >= PROGRESS) {
            self.told = Some(Instant::now());
            self.tell(done, total);
        }
    }

    fn stopped(&self) -> bool {
        self.stopped.load(Ordering::Acquire)
    }
}

/// A Python value for a template.
fn data(value: &Bound<'_, PyAny>) -> PyResult<Data> {
    if value.is_none() {
        return Ok(Data::Null);
    }
    if let Ok(value) = value.cast::<PyBool>() {
        return Ok(Data::Bool(value.is_true()));
    }
    if let Ok(value) = value.cast::<PyInt>() {
        return Ok(Data::Int(value.extract()?));
    }
    if let Ok(value) = value.cast::<PyFloat>() {
        return Ok(Data::Float(value.value()));
    }
    if let Ok(value) = value.cast::<PyString>() {
        return Ok(Data::Text(value.extract()?));
    }
    if let Ok(map) = value.cast::<PyDict>() {
        let entries = map.iter().map(|(key, value)| Ok((key.extract()?, data(&value)?)));
        return Ok(Data::Map(entries.collect::<PyResult<_>>()?));
    }
    if let Ok(list) = value.cast::<PyList>() {
        return Ok(Data::List(list.iter().map(|item| data(&item)).collect::<PyResult<_>>()?));
    }
    if let Ok(list) = value.cast::<PyTuple>() {
        return Ok(Data::List(list.iter().map(|item| data(&item)).collect::<PyResult<_>>()?));
    }
    let message =
        format!("a message may hold text, numbers, lists and dicts, not {}", value.get_type());
    Err(exception("PromptError", &message, &[]))
}
