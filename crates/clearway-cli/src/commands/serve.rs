//! `clearway serve`

use std::net::{IpAddr, ToSocketAddrs};
use std::path::PathBuf;
use std::time::Duration;

use anyhow::{Context, Result, bail};
use clearway_llm::engine::{self, Devices, Engine, EngineError, Footprint};
use clearway_llm::fetch::ModelName;
use clearway_serve::{Address, Batch, BatchOptions, Config, Ended, LogFormat, Served, Server};

use crate::interrupt;
use crate::model::{self, ModelArgs};
use crate::out::note;

const WHAT: &str = "`serve`";

/// Arguments of `clearway serve`.
#[derive(clap::Args)]
#[command(after_help = "Examples:
  clearway serve
  curl localhost:8080/v1/chat/completions -d '{\"messages\":[{\"role\":\"user\",\"content\":\"Hi\"}]}'
  clearway serve -m model.gguf --host 0.0.0.0 --api-key-file keys.txt --tls-cert cert.pem --tls-key key.pem
  clearway serve --unix /run/clearway.sock --parallel 32 --queue 256

The page at http://localhost:8080/ talks to the model. SIGTERM or Ctrl-C ends the server when the requests under way are
answered, a second one at once.")]
pub struct Args {
    #[command(flatten)]
    model: ModelArgs,
    /// Address to listen on. Any but that of this machine needs --api-key or --no-api-key.
    #[arg(long, value_name = "HOST", default_value = "127.0.0.1", env = "CLEARWAY_HOST")]
    host: String,
    /// Port to listen on; 0 for any.
    #[arg(long, value_name = "PORT", default_value_t = 8080, env = "CLEARWAY_PORT")]
    port: u16,
    /// Listen on a socket in the file system instead.
    #[arg(long, value_name = "PATH", conflicts_with_all = ["tls_cert", "tls_key"])]
    unix: Option<PathBuf>,
    /// Key that requests must bring; may be given several times.
    #[arg(long, value_name = "KEY", env = "CLEARWAY_API_KEY", hide_env_values = true)]
    api_key: Vec<String>,
    /// File with keys, one a line.
    #[arg(long, value_name = "FILE")]
    api_key_file: Option<PathBuf>,
    /// Listen on an address that others can reach without any key.
    #[arg(long, conflicts_with_all = ["api_key", "api_key_file"])]
    no_api_key: bool,
    /// Texts that are written at once.
    #[arg(long, value_name = "N", default_value_t = 16, value_parser = clap::value_parser!(u32).range(1..=1024))]
    parallel: u32,
    /// Tokens of the KV cache, which all texts share; as many as --parallel texts of --ctx-size need, at most 65536, without it.
    #[arg(long, value_name = "TOKENS")]
    cache_size: Option<usize>,
    /// Requests that may wait; more are told to come later.
    #[arg(long, value_name = "N", default_value_t = 128, value_parser = clap::value_parser!(u32).range(1..=1_000_000))]
    queue: u32,
    /// Seconds that one text may take.
    #[arg(long, value_name = "SECONDS", default_value_t = 600, value_parser = clap::value_parser!(u64).range(1..=604_800))]
    timeout: u64,
    /// Seconds that requests under way get when the server is told to end.
    #[arg(long, value_name = "SECONDS", default_value_t = 30, value_parser = clap::value_parser!(u64).range(0..=86_400))]
    drain: u64,
    /// Origin whose pages may use the server, such as https://example.com; * for all. May be given several times.
    #[arg(long, value_name = "ORIGIN")]
    cors: Vec<String>,
    /// Name that requests may address the server by, besides localhost. May be given several times.
    #[arg(long, value_name = "NAME")]
    allow_host: Vec<String>,
    /// File with certificates (PEM), for https.
    #[arg(long, value_name = "FILE", requires = "tls_key")]
    tls_cert: Option<PathBuf>,
    /// File with the key of the certificate (PEM).
    #[arg(long, value_name = "FILE", requires = "tls_cert")]
    tls_key: Option<PathBuf>,
    /// Another name of the model. May be given several times.
    #[arg(long, value_name = "NAME")]
    alias: Vec<String>,
    /// How requests are logged, on stderr.
    #[arg(long, value_name = "FORMAT", default_value = "text")]
    log: Format,
}

/// What `--log` takes.
#[derive(Clone, Copy, clap::ValueEnum)]
enum Format {
    Text,
    Json,
    None,
}

/// Answers requests until it is told to end.
pub fn run(args: &Args) -> Result<()> {
    let config = config(args)?;
    let again = args.model.engine.layers.only_device(WHAT, &args.model.device)?;
    let file = args.model.name.open()?;
    let server = Server::bind(config).with_context(|| match &args.unix {
        Some(path) => format!("cannot listen on {}", path.display()),
        None => format!("cannot listen on {} port {}", args.host, args.port),
    })?;
    let address = server.address();
    note!("listening on {address}");
    interrupt::drain();
    let device = again.open()?;
    let names = names(&args.model.name.model, &args.alias);
    let dtype = args.model.engine.options(None).cache_dtype;
    let memory = device.info().memory_bytes;
    let (parallel, queue) = (args.parallel as usize, args.queue as usize);
    let footprint = Footprint::new(&file, args.model.ctx_size, dtype, memory)?;
    let context = footprint.context;
    let pool = args.cache_size.unwrap_or_else(|| footprint.pool(parallel, memory)).max(context);
    let options = args.model.engine.options(Some(pool));
    let load = move || -> Result<Served> {
        let loaded = model::load(&file, Devices::One(device), options);
        let engine = model::undivided(WHAT, loaded)?;
        let trained = engine.shape().context;
        let ends = engine::tokenizer(&file)?.end_tokens().to_vec();
        let reopen = {
            let file = file.clone();
            move || -> Result<Engine, EngineError> {
                note!("the device was lost and is opened again");
                let device = again
                    .open()
                    .map_err(|error| EngineError::NoDevice { what: format!("{error:#}") })?;
                Engine::new(&file, device, options)
            }
        };
        let options = BatchOptions { parallel, context, queue };
        let backend = Batch::reopening(engine, ends, options, reopen)?;
        let context = backend.context();
        Ok(Served::new(names, &file, context, trained, Box::new(backend))?)
    };
    let ready = move |served: &Served| {
        let (name, context) = (served.name(), served.context);
        note!("ready: {name} on {address}, {parallel} texts of {context} tokens at once");
    };
    match server.run(load, ready, interrupt::wanted)? {
        Ended::Complete => {
            interrupt::drained();
            Ok(())
        }
        Ended::NotLoaded => bail!("the model could not be loaded"),
        Ended::CutOff => bail!("requests were cut off; --drain gives them more time"),
    }
}

fn config(args: &Args) -> Result<Config> {
    let address = match &args.unix {
        Some(path) => Address::Unix(path.clone()),
        None => Address::Tcp { host: host(&args.host)?, port: args.port },
    };
    let mut keys = args.api_key.clone();
    if let Some(file) = &args.api_key_file {
        let text = std::fs::read_to_string(file)
            .with_context(|| format!("cannot read {}", file.display()))?;
        let before = keys.len();
        keys.extend(text.lines().map(str::trim).filter(|key| !key.is_empty()).map(str::to_owned));
        if keys.len() == before {
            bail!("{} holds no key", file.display());
        }
    }
    if keys.iter().any(|key| key.is_empty() || key.len() > 256) {
        bail!("a key must have 1 to 256 bytes");
    }
    if !address.is_local() && keys.is_empty() && !args.no_api_key {
        bail!(
            "{} can be reached by others: give --api-key or --api-key-file, or --no-api-key if that is meant",
            args.host
        );
    }
    Ok(Config {
        address,
        keys,
        origins: args.cors.clone(),
        hosts: args.allow_host.clone(),
        tls: args.tls_cert.clone().zip(args.tls_key.clone()),
        timeout: Duration::from_secs(args.timeout),
        drain: Duration::from_secs(args.drain),
        log: match args.log {
            Format::Text => LogFormat::Text,
            Format::Json => LogFormat::Json,
            Format::None => LogFormat::None,
        },
        ..Config::default()
    })
}

fn host(name: &str) -> Result<IpAddr> {
    let name = name.trim_start_matches('[').trim_end_matches(']');
    if let Ok(address) = name.parse() {
        return Ok(address);
    }
    let found =
        (name, 0).to_socket_addrs().with_context(|| format!("there is no address `{name}`"))?;
    let found: Vec<IpAddr> = found.map(|address| address.ip()).collect();
    let first = found.iter().find(|address| address.is_ipv4()).or(found.first());
    first.copied().with_context(|| format!("there is no address `{name}`"))
}

/// The names that requests may give the model.
fn names(model: &ModelName, aliases: &[String]) -> Vec<String> {
    let own = match model {
        ModelName::File(path) => path
            .file_stem()
            .map_or_else(|| model.to_string(), |stem| stem.to_string_lossy().into_owned()),
        other => other.to_string(),
    };
    // An alias is what clients should see first.
    let mut names = aliases.to_vec();
    names.push(own);
    names
}
