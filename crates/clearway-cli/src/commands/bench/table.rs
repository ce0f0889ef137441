//! What `clearway bench` prints: a table, or objects.

use anyhow::Result;
use clearway_llm::engine::Engine;
use clearway_llm::gguf::Gguf;
use serde_json::{Value, json};

use super::Args;
use super::measure::{Decode, Measured};
use crate::memory;
use crate::out::say;

/// What all tests of a run share.
pub struct About {
    model: String,
    bytes: u64,
    parameters: u64,
    device: String,
    threads: Option<usize>,
    /// Tokens in the cache before each test.
    depth: usize,
}

/// A table whose rows come as they are measured, in Markdown as llama-bench prints it.
pub struct Table {
    columns: [Column; 12],
    /// What is said below it.
    notes: Vec<String>,
}

#[derive(Clone, Copy)]
struct Column {
    name: &'static str,
    width: usize,
    /// Whether it holds words, which stand to the left.
    words: bool,
}

impl About {
    pub fn new(args: &Args, gguf: &Gguf, engine: &Engine, device: &str, depth: usize) -> Self {
        let cores = || std::thread::available_parallelism().map_or(1, std::num::NonZero::get);
        let threads = args.device.threads().unwrap_or_else(cores);
        Self {
            model: format!("{} {}", engine.shape().name, common_type(gguf)),
            bytes: gguf.tensor_bytes(),
            parameters: gguf.tensors().map(|t| t.dims().iter().product::<usize>() as u64).sum(),
            device: device.to_owned(),
            threads: (device == "cpu").then_some(threads),
            depth,
        }
    }

    /// Name of a test, with its depth where there is one, as llama-bench has it.
    fn test(&self, name: &str) -> String {
        if self.depth == 0 { name.to_owned() } else { format!("{name} @ d{}", self.depth) }
    }

    pub fn object(&self, measured: &Measured) -> Value {
        json!({
            "model": self.model,
            "model_bytes": self.bytes,
            "parameters": self.parameters,
            "device": self.device,
            "threads": self.threads,
            "test": measured.test.name(),
            "n_depth": self.depth,
            "avg_ts": measured.mean(),
            "stddev_ts": measured.deviation(),
            "samples_ts": measured.samples,
            "decode": measured.decode.map(|decode| object(&decode, measured.bandwidth_share())),
        })
    }
}

/// What a generated token is made of and what it cost; `null` stands for what is not known.
fn object(decode: &Decode, share: Option<f64>) -> Value {
    json!({
        "phases_per_token": decode.phases,
        "barriers_per_token": decode.barriers,
        "bytes_per_token": decode.bytes.total(),
        "weight_bytes_per_token": decode.bytes.weights,
        "cache_bytes_per_token": decode.bytes.cache,
        "read_gb_s": decode.read_bytes_per_ns,
        "bandwidth_share": share,
        "cpu_us_per_token": decode.cpu_us.map(|cpu| cpu.all),
        "own_cpu_us_per_token": decode.cpu_us.map(|cpu| cpu.own),
        "encoding_us_per_token": decode.host_us.map(|[encoding, _]| encoding),
        "submission_us_per_token": decode.host_us.map(|[_, submission]| submission),
        "encodings": decode.work.map(|work| work.encodings),
        "allocations": decode.work.map(|work| work.allocations),
    })
}

/// The type that most bytes of the file have.
fn common_type(gguf: &Gguf) -> String {
    let mut bytes = std::collections::BTreeMap::<String, u64>::new();
    for tensor in gguf.tensors() {
        *bytes.entry(tensor.dtype().to_string()).or_default() += tensor.bytes().len() as u64;
    }
    let most = bytes.into_iter().max_by_key(|&(_, bytes)| bytes);
    most.map(|(dtype, _)| dtype).unwrap_or_default()
}

impl Table {
    /// Prints the head.
    pub fn new(about: &About) -> Result<Self> {
        let table = Self::empty(about);
        let line = |column: &Column| match column.words {
            true => "-".repeat(column.width),
            false => "-".repeat(column.width - 1) + ":",
        };
        table.print(table.columns.map(|column| column.name.to_owned()))?;
        table.print(table.columns.map(|column| line(&column)))?;
        Ok(table)
    }

    fn empty(about: &About) -> Self {
        let words = |name, width| Column { name, width, words: true };
        let number = |name, width| Column { name, width, words: false };
        let columns = [
            words("model", about.model.len().max(8)),
            number("size", 10),
            number("params", 8),
            words("device", 10),
            number("threads", 7),
            number("test", about.test("tg1024").len().max(7)),
            number("t/s", 18),
            number("phases", 6),
            number("barriers", 8),
            number("bytes/t", 9),
            number("of read", 7),
            number("cpu us/t", 9),
        ];
        Self { columns, notes: Vec::new() }
    }

    /// Prints a row.
    pub fn row(&mut self, about: &About, measured: &Measured) -> Result<()> {
        self.print(cells(about, measured))?;
        let Some(decode) = measured.decode else { return Ok(()) };
        if let (Some(read), true) = (decode.read_bytes_per_ns, self.notes.is_empty()) {
            self.notes.push(format!("read: {read:.1} GB/s by a kernel that only reads"));
        }
        if let Some(work) = decode.work {
            self.notes.push(format!(
                "{}: {} lists encoded and {} buffers allocated in all timed runs",
                measured.test.name(),
                work.encodings,
                work.allocations
            ));
        }
        if let Some([encoding, submission]) = decode.host_us {
            self.notes.push(format!(
                "{}: {encoding:.1} us of the host for encoding a token, {submission:.1} us for its submission",
                measured.test.name(),
            ));
        }
        if let Some(cpu) = decode.cpu_us {
            self.notes.push(format!(
                "{}: {:.1} us of the CPU time of a token are those of the thread that generates",
                measured.test.name(),
                cpu.own
            ));
        }
        Ok(())
    }

    /// Prints what is said below the table.
    pub fn end(self) -> Result<()> {
        for (index, note) in self.notes.iter().enumerate() {
            // Markdown takes a line right below a table for a row of it.
            say!("{}{note}", if index == 0 { "\n" } else { "" })?;
        }
        Ok(())
    }

    fn print(&self, cells: [String; 12]) -> Result<()> {
        say!("{}", self.line(&cells))
    }

    fn line(&self, cells: &[String; 12]) -> String {
        let mut line = String::from("|");
        for (&Column { width, words, .. }, cell) in self.columns.iter().zip(cells) {
            line += &match words {
                true => format!(" {cell:<width$} |"),
                false => format!(" {cell:>width$} |"),
            };
        }
        line
    }
}

/// A row; cells of what a test does not have are empty.
fn cells(about: &About, measured: &Measured) -> [String; 12] {
    let decode = measured.decode.as_ref();
    let cell = |text: Option<String>| text.unwrap_or_default();
    [
        about.model.clone(),
        memory::size(about.bytes),
        parameters(about.parameters),
        about.device.clone(),
        cell(about.threads.map(|threads| threads.to_string())),
        about.test(&measured.test.name()),
        format!("{:.2} ± {:.2}", measured.mean(), measured.deviation()),
        cell(decode.map(|decode| decode.phases.to_string())),
        cell(decode.map(|decode| decode.barriers.to_string())),
        cell(decode.map(|decode| memory::size(decode.bytes.total()))),
        cell(measured.bandwidth_share().map(|share| format!("{:.1} %", share * 100.0))),
        cell(decode.and_then(|decode| decode.cpu_us).map(|us| format!("{:.1}", us.all))),
    ]
}

fn parameters(count: u64) -> String {
    match count {
        1_000_000_000.. => format!("{:.2} B", count as f64 / 1e9),
        _ => format!("{:.2} M", count as f64 / 1e6),
    }
}

#[cfg(test)]
mod tests {
    use clearway::HostWork;
    use clearway_llm::engine::TokenBytes;

    use super::super::measure::{Cpu, Test};
    use super::*;

    fn about() -> About {
        let (model, device) = ("a model of a long name q4_1".to_owned(), "vulkan:0".to_owned());
        About { model, bytes: 3 << 30, parameters: 8_030_000_000, device, threads: None, depth: 0 }
    }

    fn generated() -> Measured {
        let decode = Decode {
            phases: 182,
            barriers: 181,
            bytes: TokenBytes { weights: 96 << 20, cache: 4 << 20 },
            read_bytes_per_ns: Some(4_000.0),
            cpu_us: Some(Cpu { all: 12.34, own: 2.46 }),
            work: Some(HostWork { encodings: 0, allocations: 1 }),
            host_us: Some([300.0, 20.0]),
        };
        Measured { test: Test::Generate(128), samples: vec![1_000.0; 5], decode: Some(decode) }
    }

    #[test]
    fn every_row_has_the_columns_of_the_head() {
        let mut table = Table::empty(&about());
        let head = table.line(&table.columns.map(|column| column.name.to_owned()));
        let prompt =
            Measured { test: Test::Prompt(512), samples: vec![98_765_432.1; 2], decode: None };
        for measured in [&prompt, &generated()] {
            let line = table.line(&cells(&about(), measured));
            let bars = |line: &str| {
                let places = line.chars().enumerate().filter(|&(_, c)| c == '|');
                places.map(|(at, _)| at).collect::<Vec<_>>()
            };
            assert_eq!(bars(&line), bars(&head), "\n{head}\n{line}");
        }
        let of = |measured: &Measured| cells(&about(), measured)[7..].join(" ");
        assert_eq!(of(&generated()), "182 181 100.0 MiB 2.6 % 12.3");
        assert_eq!(of(&prompt).trim(), "");
        table.row(&about(), &prompt).unwrap();
        assert!(table.notes.is_empty(), "a prompt has nothing to say");
        table.row(&about(), &generated()).unwrap();
        assert_eq!(
            table.notes,
            [
                "read: 4000.0 GB/s by a kernel that only reads",
                "tg128: 0 lists encoded and 1 buffers allocated in all timed runs",
                "tg128: 300.0 us of the host for encoding a token, 20.0 us for its submission",
                "tg128: 2.5 us of the CPU time of a token are those of the thread that generates"
            ]
        );
    }

    #[test]
    fn a_depth_is_part_of_the_name_of_every_test() {
        let about = About { depth: 4096, ..about() };
        let prompt = Measured { test: Test::Prompt(512), samples: vec![1.0], decode: None };
        assert_eq!(cells(&about, &prompt)[5], "pp512 @ d4096");
        assert_eq!(cells(&about, &generated())[5], "tg128 @ d4096");
        assert_eq!(about.object(&prompt)["n_depth"], 4096);
    }

    #[test]
    fn an_object_holds_what_is_known_and_null_for_the_rest() {
        let object = about().object(&generated());
        let decode = &object["decode"];
        assert_eq!(decode["bytes_per_token"], 100 << 20);
        assert_eq!(decode["encodings"], 0);
        assert!((decode["bandwidth_share"].as_f64().unwrap() - 0.026_214_4).abs() < 1e-9);
        let mut unknown = generated();
        if let Some(decode) = &mut unknown.decode {
            (decode.read_bytes_per_ns, decode.cpu_us, decode.work) = (None, None, None);
        }
        let object = about().object(&unknown);
        for key in ["read_gb_s", "bandwidth_share", "cpu_us_per_token", "encodings", "allocations"]
        {
            assert!(object["decode"][key].is_null(), "{key}");
        }
        unknown.decode = None;
        assert!(about().object(&unknown)["decode"].is_null());
    }
}
