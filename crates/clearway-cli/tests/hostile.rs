//! Files that promise more than they hold: `show` and `run` refuse them within a bounded amount of memory.
#![cfg(target_os = "linux")] // memory is measured by /proc
#![allow(clippy::unwrap_used, clippy::panic)] // a test stops at the first surprise

mod common;
use common::{Folder, command, tiny_model};

use std::io::Read;
use std::path::Path;
use std::process::Stdio;
use std::time::Duration;

use clearway::DType;
use clearway_llm::gguf::{ByteStr, Gguf, GgufWriter};

/// What a command may use beyond the file, its cache and its arena.
const SLACK: u64 = 64 << 20;

/// Runs a command; returns whether it succeeded, what it said, and the most memory it had at once.
fn measured(args: &[&str]) -> (bool, String, u64) {
    let mut command = command(args);
    // Without drivers, whose memory is not ours to bound.
    command.env("VK_ICD_FILENAMES", "/nonexistent").env("VK_DRIVER_FILES", "/nonexistent");
    let mut child = command.stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().unwrap();
    let mut pipes = (child.stdout.take().unwrap(), child.stderr.take().unwrap());
    let reader = std::thread::spawn(move || {
        let mut said = String::new();
        pipes.0.read_to_string(&mut said).unwrap();
        pipes.1.read_to_string(&mut said).unwrap();
        said
    });
    let status = format!("/proc/{}/status", child.id());
    let mut peak = 0;
    let result = loop {
        // The mark only rises, so the last look before the end has all but a millisecond of it.
        let found = std::fs::read_to_string(&status).unwrap_or_default();
        let line = found.lines().find_map(|line| line.strip_prefix("VmHWM:"));
        let kib = line.and_then(|line| line.trim().strip_suffix("kB")?.trim().parse::<u64>().ok());
        peak = peak.max(kib.unwrap_or(0) << 10);
        if peak > 1 << 30 {
            child.kill().unwrap();
            child.wait().unwrap();
            panic!("{args:?} took {peak} bytes and was stopped");
        }
        match child.try_wait().unwrap() {
            Some(result) => break result,
            None => std::thread::sleep(Duration::from_millis(1)),
        }
    };
    (result.success(), reader.join().unwrap(), peak)
}

/// A copy of a model in which a key has another value, lengthened with zeros.
fn edited(from: &Path, to: &Path, len: u64, change: impl Fn(&mut GgufWriter<'_>, &str) -> bool) {
    let model = Gguf::open(from).unwrap();
    let mut writer = GgufWriter::new();
    for (key, value) in model.metadata().iter() {
        if !change(&mut writer, key) {
            writer.set_value(key, value).unwrap();
        }
    }
    for tensor in model.tensors() {
        writer.tensor_bytes(tensor.name(), tensor.dtype(), tensor.dims(), tensor.bytes()).unwrap();
    }
    let mut file = std::fs::File::create(to).unwrap();
    let written = writer.write_to(&mut file).unwrap();
    file.set_len(len.max(written)).unwrap();
}

#[test]
fn files_that_lie_about_their_sizes_cost_no_memory() {
    let folder = Folder::new("hostile");
    let good = folder.path("good.gguf");
    tiny_model(&good, "llama", true);
    let (succeeded, said, base) = measured(&arguments("run", &good));
    assert!(succeeded, "{said}");
    let number = |key: &'static str, value: u32| {
        move |writer: &mut GgufWriter<'_>, found: &str| {
            let same = found == key;
            if same {
                writer.set(key, &value).unwrap();
            }
            same
        }
    };
    let list = |key: &'static str, count: usize| {
        move |writer: &mut GgufWriter<'_>, found: &str| {
            let same = found == key;
            if same {
                writer.set(key, &vec![ByteStr(b""); count]).unwrap();
            }
            same
        }
    };
    type Change = Box<dyn Fn(&mut GgufWriter<'_>, &str) -> bool>;
    // Key, length of the file, change.
    let cases: Vec<(&str, u64, Change)> = vec![
        ("llama.block_count", 98 << 20, Box::new(number("llama.block_count", 1_000_000))),
        ("llama.block_count", 312_000, Box::new(number("llama.block_count", 100_000))),
        ("llama.feed_forward_length", 0, Box::new(number("llama.feed_forward_length", 1 << 24))),
        ("llama.embedding_length", 0, Box::new(number("llama.embedding_length", 1 << 24))),
        ("llama.context_length", 0, Box::new(number("llama.context_length", u32::MAX))),
        ("tokenizer.ggml.tokens", 0, Box::new(list("tokenizer.ggml.tokens", 4_000_000))),
    ];
    for (key, len, change) in cases {
        let path = folder.path("bad.gguf");
        edited(&good, &path, len, change);
        let len = path.metadata().unwrap().len();
        for verb in ["show", "run"] {
            let (_, said, peak) = measured(&arguments(verb, &path));
            assert!(said.contains(&format!("`{key}` is")), "{verb}: {said}");
            let limit = base + len + SLACK;
            assert!(peak <= limit, "{verb} of {len} bytes with {key}: {peak} bytes");
            println!("{verb} {key}: {} MiB for a file of {} MiB", peak >> 20, len >> 20);
        }
    }
}

#[test]
fn the_largest_tables_that_are_accepted_stay_within_bounds() {
    let folder = Folder::new("largest");
    let (good, path) = (folder.path("good.gguf"), folder.path("large.gguf"));
    tiny_model(&good, "llama", true);
    let (_, _, base) = measured(&arguments("show", &good));
    // Layers that are really there, as many as are taken.
    let layers = 512;
    let model = Gguf::open(&good).unwrap();
    let mut writer = GgufWriter::new();
    for (key, value) in model.metadata().iter() {
        match key {
            "llama.block_count" => writer.set(key, &layers).unwrap(),
            _ => writer.set_value(key, value).unwrap(),
        }
    }
    for tensor in model.tensors() {
        let names = match tensor.name().strip_prefix("blk.0.") {
            Some(part) => (0..layers).map(|layer| format!("blk.{layer}.{part}")).collect(),
            None if tensor.name().starts_with("blk.") => vec![],
            None => vec![tensor.name().to_owned()],
        };
        assert_eq!(tensor.dtype(), DType::F32);
        for name in names {
            writer.tensor_bytes(&name, tensor.dtype(), tensor.dims(), tensor.bytes()).unwrap();
        }
    }
    let len = writer.write_to(std::fs::File::create(&path).unwrap()).unwrap();
    let (succeeded, said, peak) = measured(&arguments("show", &path));
    assert!(succeeded && said.contains("weights"), "{said}");
    println!("show of {layers} layers: {} MiB for a file of {} MiB", peak >> 20, len >> 20);
    assert!(peak <= base + len + SLACK, "{peak} bytes for a file of {len}");
}

fn arguments(verb: &'static str, path: &Path) -> Vec<&'static str> {
    // Leaked: a few paths of a test.
    let path: &'static str = path.to_str().unwrap().to_owned().leak();
    match verb {
        "show" => vec!["show", path, "-c", "64"],
        _ => {
            vec!["run", "-m", path, "--device", "cpu", "-t", "1", "-c", "64", "-n", "1", "-p", "a"]
        }
    }
}
