//! `clearway bench --matrix`: shapes and formats of random weights, one row each.
//!
//! Each file is made, measured with an empty cache and with a deep one, and removed. What cannot be measured, for want of
//! memory or disk, is a row that says why.

use std::path::{Path, PathBuf};
use std::sync::Arc;

use anyhow::{Context, Result};
use clearway::{Device, GraphExecutor};
use clearway_llm::engine::{Adapters, Devices};
use clearway_llm::gguf::Gguf;
use clearway_llm::gguf::synth::{Synth, SynthQuant, SynthShape};
use serde_json::{Value, json};

use super::Args;
use super::measure::{Bench, Measured, Test};
use super::micro;
use super::table::About;
use crate::out::{note, say};
use crate::progress::Bar;
use crate::{memory, model, out};

/// Small and large ones, heads of 64, 128 and 256, and a mixture of experts.
const SHAPES: [&str; 6] =
    ["smollm2-135m", "llama-1b", "qwen3-0.6b", "gemma3-4b", "llama-8b", "qwen3-30b-a3b"];

/// What people download, largest last.
const FORMATS: [SynthQuant; 15] = [
    SynthQuant::Q4_0,
    SynthQuant::Q4_1,
    SynthQuant::Q5_0,
    SynthQuant::Q5_1,
    SynthQuant::Q8_0,
    SynthQuant::Q2_K,
    SynthQuant::Q3_K_M,
    SynthQuant::Q4_K_M,
    SynthQuant::Q5_K_M,
    SynthQuant::Q6_K,
    SynthQuant::IQ4_NL,
    SynthQuant::IQ4_XS,
    SynthQuant::MXFP4,
    SynthQuant::F16,
    SynthQuant::BF16,
];

/// Tokens in the cache where -d says nothing.
const DEPTH: usize = 4_096;

/// Arguments of the matrix.
#[derive(clap::Args)]
pub struct MatrixArgs {
    /// Measure files of random weights of many shapes and formats, which are made one after another.
    #[arg(long, conflicts_with_all = ["micro", "parallel", "file", "lora", "model"])]
    pub matrix: bool,
    /// With --matrix: shapes to measure, as `clearway synth` names them.
    #[arg(long, value_name = "SHAPE,...", value_delimiter = ',', requires = "matrix")]
    shapes: Vec<SynthShape>,
    /// With --matrix: formats to measure, as `clearway synth` names them.
    #[arg(long, value_name = "QUANT,...", value_delimiter = ',', requires = "matrix")]
    formats: Vec<SynthQuant>,
    /// With --matrix: folder for the file that is being measured, at most 33 GB. The system's own for such files if none is named.
    #[arg(long, value_name = "DIR", requires = "matrix")]
    folder: Option<PathBuf>,
}

impl MatrixArgs {
    /// All pairs of a shape and a format. Experts in 16 bits are left out where nobody asks for them: nobody runs them.
    fn files(&self) -> Result<Vec<(SynthShape, SynthQuant)>> {
        let shapes = match self.shapes.is_empty() {
            true => SHAPES.iter().map(|name| name.parse()).collect::<Result<_, _>>()?,
            false => self.shapes.clone(),
        };
        let all = self.formats.is_empty();
        let formats = if all { &FORMATS[..] } else { &self.formats };
        let wanted = |shape: &SynthShape, format: SynthQuant| {
            let plain = matches!(format, SynthQuant::F16 | SynthQuant::BF16);
            !(all && plain && shape.shape().experts.is_some())
        };
        let pairs = shapes.iter().flat_map(|shape| {
            let formats = formats.iter().filter(|&&format| wanted(shape, format));
            formats.map(|&format| (shape.clone(), format))
        });
        Ok(pairs.collect())
    }
}

/// What one file gave.
struct Row {
    shape: String,
    format: &'static str,
    bytes: u64,
    /// By depth and test; or why there is nothing.
    found: Result<Vec<(About, Measured)>>,
}

/// Measures every file.
pub fn run(args: &Args) -> Result<()> {
    let (tests, longest) = args.tests()?;
    let depths = [0, if args.n_depth == 0 { DEPTH } else { args.n_depth }];
    let files = args.matrix.files()?;
    let folder = args.matrix.folder.clone().unwrap_or_else(std::env::temp_dir);
    anyhow::ensure!(folder.is_dir(), "--folder {} is no folder", folder.display());
    let device = args.device.open()?;
    let bandwidth = micro::read_bandwidth(&GraphExecutor::on(device.clone())).ok();
    if !args.json {
        head(&tests, depths)?;
    }
    let mut objects = Vec::new();
    for (shape, format) in files {
        let synth = Synth::new(shape.clone(), format, 7);
        let bytes = synth.file_bytes()?;
        let one = One { args, device: &device, bandwidth, tests: &tests, longest, depths };
        let found = one.measure(&synth, &folder);
        crate::interrupt::check()?;
        let row = Row { shape: shape.name().to_owned(), format: format.name(), bytes, found };
        if args.json {
            objects.extend(row.objects());
        } else {
            row.print(tests.len() * depths.len())?;
        }
    }
    if args.json {
        return out::json(&objects.into());
    }
    let read = bandwidth.map_or(String::new(), |read| format!("{read:.0} GB/s"));
    say!("\n`of read` is the share of {read} that the bytes of a token make; {}", about(args))
}

/// What holds for all rows.
fn about(args: &Args) -> String {
    format!("tokens per second, mean of {}", args.repetitions)
}

fn head(tests: &[Test], depths: [usize; 2]) -> Result<()> {
    let names = depths.iter().flat_map(|depth| {
        tests.iter().map(move |test| match depth {
            0 => test.name(),
            depth => format!("{} @ d{depth}", test.name()),
        })
    });
    let names: Vec<_> = names.collect();
    say!("| shape | format | size | {} | of read |", names.join(" | "))?;
    say!("|---|---|---|{}---|", "---|".repeat(names.len()))
}

impl Row {
    fn print(&self, columns: usize) -> Result<()> {
        let start = format!("| {} | {} | {} |", self.shape, self.format, memory::size(self.bytes));
        let found = match &self.found {
            Ok(found) => found,
            Err(error) => {
                note!("{} {}: {error:#}", self.shape, self.format);
                return say!("{start}{}", " |".repeat(columns + 1));
            }
        };
        let speeds = found.iter().map(|(_, measured)| format!(" {:.0} |", measured.mean()));
        let share = found.iter().find_map(|(_, measured)| measured.bandwidth_share());
        let share = share.map_or(String::new(), |share| format!("{:.1} %", share * 100.0));
        say!("{start}{} {share} |", speeds.collect::<String>())
    }

    fn objects(&self) -> Vec<Value> {
        let named = |mut object: Value| {
            object["shape"] = json!(self.shape);
            object["format"] = json!(self.format);
            object
        };
        match &self.found {
            Ok(found) => {
                found.iter().map(|(about, measured)| named(about.object(measured))).collect()
            }
            Err(error) => vec![named(json!({ "error": format!("{error:#}") }))],
        }
    }
}

/// What the files share.
struct One<'a> {
    args: &'a Args,
    device: &'a Arc<dyn Device>,
    bandwidth: Option<f64>,
    tests: &'a [Test],
    longest: usize,
    depths: [usize; 2],
}

impl One<'_> {
    fn measure(&self, synth: &Synth, folder: &Path) -> Result<Vec<(About, Measured)>> {
        let file = Made::new(synth, folder)?;
        let mut found = Vec::new();
        for depth in self.depths {
            // A cache of the size that `bench` alone would give it: kernels are chosen by it.
            let options = self.args.engine.options(Some(self.longest + depth));
            let devices = Devices::One(self.device.clone());
            let mut engine = model::load(&file.gguf, &Adapters::None, devices, options)?;
            for &test in self.tests {
                let name = &self.device.info().name;
                let about = About::new(self.args, &file.gguf, &engine, name, depth);
                let mut bench = Bench {
                    engine: &mut engine,
                    device: &**self.device,
                    bandwidth: self.bandwidth,
                    depth,
                    temperature: self.args.temp,
                    repetitions: self.args.repetitions,
                };
                found.push((about, bench.measure(test)?));
                crate::interrupt::check()?;
            }
        }
        Ok(found)
    }
}

/// A file that is gone when nobody uses it.
struct Made {
    gguf: Gguf,
    /// Where a file that is open cannot be removed.
    #[cfg(not(unix))]
    path: PathBuf,
}

impl Made {
    fn new(synth: &Synth, folder: &Path) -> Result<Self> {
        let name = format!(
            "clearway-{}-{}-{}.gguf",
            std::process::id(),
            synth.shape.name(),
            synth.quant.name()
        );
        let path = folder.join(name);
        let bar = Bar::new("writing");
        let total = synth.file_bytes()?;
        synth
            .write_file(&path, |done| {
                bar.at(done, Some(total));
                crate::interrupt::check().map_err(std::io::Error::other)
            })
            .context("the file cannot be made; --folder names another place for it")?;
        drop(bar);
        let gguf = Gguf::open(&path);
        // The map of it stays, and nothing is left behind however this ends.
        #[cfg(unix)]
        std::fs::remove_file(&path)?;
        #[cfg(unix)]
        return Ok(Self { gguf: gguf? });
        #[cfg(not(unix))]
        Ok(Self { gguf: gguf?, path })
    }
}

#[cfg(not(unix))]
impl Drop for Made {
    fn drop(&mut self) {
        // Some systems keep a mapped file. What is left has the number of the process in its name.
        let _ = std::fs::remove_file(&self.path);
    }
}
