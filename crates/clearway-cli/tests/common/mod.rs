//! What the tests of the command line share: folders, processes, a tiny model.
#![allow(dead_code, clippy::panic)] // each test binary uses a part, and stops at the first surprise

use std::io::{Read, Write};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, ExitStatus, Output, Stdio};
use std::time::{Duration, Instant};

use clearway::DType;
use clearway_llm::gguf::GgufWriter;
use clearway_llm::model::{self, Arch, ModelShape, POSITIONS, ROPE_FACTORS, RecordOptions, TOKENS};

/// A folder that is removed at the end of the test.
pub struct Folder(pub PathBuf);

impl Folder {
    pub fn new(name: &str) -> Self {
        let path = std::env::temp_dir().join(format!("clearway-cli-{name}-{}", std::process::id()));
        let _ = std::fs::remove_dir_all(&path);
        std::fs::create_dir_all(&path).unwrap();
        Self(path)
    }

    pub fn path(&self, name: &str) -> PathBuf {
        self.0.join(name)
    }

    /// Every file below, but for the cache's lock.
    pub fn files(&self) -> Vec<PathBuf> {
        let mut found = Vec::new();
        let mut folders = vec![self.0.clone()];
        while let Some(folder) = folders.pop() {
            for entry in std::fs::read_dir(folder).into_iter().flatten().flatten() {
                let path = entry.path();
                if path.is_dir() {
                    folders.push(path);
                } else if !path.ends_with("models/.lock") {
                    found.push(path);
                }
            }
        }
        found
    }
}

impl Drop for Folder {
    fn drop(&mut self) {
        let _ = std::fs::remove_dir_all(&self.0);
    }
}

/// The command, with nothing of the user's environment that it looks at.
pub fn command(args: &[&str]) -> Command {
    let mut command = Command::new(env!("CARGO_BIN_EXE_clearway"));
    for variable in [
        "CLEARWAY_MODEL",
        "CLEARWAY_DEVICE",
        "CLEARWAY_DEVICE_MEMORY",
        "CLEARWAY_GPU_LAYERS",
        "CLEARWAY_THREADS",
        "HF_ENDPOINT",
    ] {
        command.env_remove(variable);
    }
    // No test may reach the user's cache by accident.
    command.env("CLEARWAY_CACHE", "/nonexistent/clearway").env("CLEARWAY_THREADS", "2");
    // Drivers that can draw on a screen complain on stderr where a session has no such folder.
    command.env("XDG_RUNTIME_DIR", std::env::temp_dir());
    command.args(args).stdin(Stdio::null());
    command
}

pub fn clearway(args: &[&str]) -> Output {
    command(args).output().unwrap()
}

/// Runs the command with lines on standard input.
pub fn with_input(args: &[&str], input: &str) -> Output {
    let mut command = command(args);
    command.stdin(Stdio::piped()).stdout(Stdio::piped()).stderr(Stdio::piped());
    let mut child = command.spawn().unwrap();
    child.stdin.take().unwrap().write_all(input.as_bytes()).unwrap();
    child.wait_with_output().unwrap()
}

pub fn stdout(output: &Output) -> String {
    assert!(output.status.success(), "{}", stderr(output));
    String::from_utf8(output.stdout.clone()).unwrap()
}

pub fn stderr(output: &Output) -> String {
    String::from_utf8(output.stderr.clone()).unwrap()
}

/// The message of a command that failed with status 1 and printed nothing to stdout.
pub fn failure(output: &Output) -> String {
    let message = stderr(output);
    assert_eq!(output.status.code(), Some(1), "{message}");
    assert!(output.stdout.is_empty(), "{:?}", String::from_utf8_lossy(&output.stdout));
    assert!(message.contains("error:"), "{message}");
    message
}

/// Sends a signal to a process of this test.
pub fn signal(name: &str, process: u32) {
    let sent = Command::new("kill").arg(format!("-{name}")).arg(process.to_string()).status();
    assert!(sent.unwrap().success());
}

/// Writes a llama of two layers with random weights, one token for each byte, and ChatML's tokens.
pub fn tiny_model(path: &Path, architecture: &str, with_vocabulary: bool) {
    tiny_model_with(path, architecture, with_vocabulary, &[], &|_, _| ());
}

/// As [`tiny_model`], with more texts in the metadata and weights that are changed by name.
pub fn tiny_model_with(
    path: &Path,
    architecture: &str,
    with_vocabulary: bool,
    texts: &[(&str, &str)],
    change: &dyn Fn(&str, &mut [f32]),
) {
    let mut shape = ModelShape::new("tiny", Arch::Llama, 2, 32, 64, 2, 1, 16, 260);
    shape.tied = true;
    let mut writer = GgufWriter::new();
    writer.set("general.architecture", architecture).unwrap();
    if texts.iter().all(|(key, _)| *key != "general.name") {
        writer.set("general.name", "tiny").unwrap();
    }
    for (key, value) in [
        ("block_count", 2),
        ("embedding_length", 32),
        ("feed_forward_length", 64),
        ("attention.head_count", 2),
        ("attention.head_count_kv", 1),
        ("context_length", 1024),
    ] {
        writer.set(&format!("{architecture}.{key}"), &(value as u32)).unwrap();
    }
    let eps = format!("{architecture}.attention.layer_norm_rms_epsilon");
    writer.set(&eps, &1e-5_f32).unwrap();
    if with_vocabulary {
        set_vocabulary(&mut writer);
    }
    for (key, text) in texts {
        writer.set(key, *text).unwrap();
    }
    let record = RecordOptions { weight_dtype: &|_| DType::F32, ..RecordOptions::new(1, 1) };
    let mut state = 1_u64;
    for external in model::record(&shape, &record).unwrap().into_externals() {
        let name = &*external.name;
        if [TOKENS, POSITIONS, ROPE_FACTORS].contains(&name) || name.starts_with("cache.") {
            continue;
        }
        let layout = external.view.layout;
        let dims: Vec<usize> = layout.dims().iter().rev().map(|&d| d as usize).collect();
        let mut values: Vec<f32> = (0..layout.elems())
            .map(|_| {
                state = state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1);
                (state >> 40) as f32 / (1 << 24) as f32 - 0.5
            })
            .collect();
        change(name, &mut values);
        let write = move |out: &mut dyn Write| {
            values.iter().try_for_each(|value| out.write_all(&value.to_le_bytes()))
        };
        writer.tensor(name, DType::F32, &dims, write).unwrap();
    }
    let mut file = Vec::new();
    writer.write_to(&mut file).unwrap();
    std::fs::write(path, file).unwrap();
}

/// Byte-level BPE with one merge, the fewest a file may have: printable bytes stand for themselves, the others for characters
/// from U+0100 on, as GPT-2 has it.
fn set_vocabulary(writer: &mut GgufWriter<'_>) {
    let printable = |byte: u8| matches!(byte, 33..=126 | 161..=172 | 174..=255);
    let mut next = 256;
    let mut tokens: Vec<String> = (0..=255_u8)
        .map(|byte| {
            let code = if printable(byte) { u32::from(byte) } else { next };
            next += u32::from(!printable(byte));
            char::from_u32(code).unwrap().to_string()
        })
        .collect();
    tokens.extend(["<|im_start|>", "<|im_end|>", "<|endoftext|>", "qq"].map(str::to_owned));
    let types: Vec<i32> =
        (0..tokens.len()).map(|id| if (256..259).contains(&id) { 3 } else { 1 }).collect();
    writer.set("tokenizer.ggml.model", "gpt2").unwrap();
    writer.set("tokenizer.ggml.pre", "gpt-2").unwrap();
    writer.set("tokenizer.ggml.tokens", &tokens).unwrap();
    writer.set("tokenizer.ggml.token_type", &types).unwrap();
    writer.set("tokenizer.ggml.merges", &["q q"]).unwrap();
    writer.set("tokenizer.ggml.eos_token_id", &257_u32).unwrap();
}

/// How long anything a test waits for may take.
pub const LONG: Duration = Duration::from_secs(60);

/// Waits for a process of this test and says how long it took; one that does not end is killed.
pub fn wait(child: &mut Child) -> (ExitStatus, Duration) {
    let started = Instant::now();
    while started.elapsed() < LONG {
        if let Some(status) = child.try_wait().unwrap() {
            return (status, started.elapsed());
        }
        std::thread::sleep(Duration::from_millis(2));
    }
    child.kill().unwrap();
    child.wait().unwrap();
    panic!("a process did not end in {LONG:?}");
}

/// A pipe with a name.
#[cfg(unix)]
pub fn fifo(path: &Path) {
    assert!(Command::new("mkfifo").arg(path).status().unwrap().success());
}

/// A terminal: our side, and the side a process gets.
#[cfg(unix)]
pub fn terminal() -> (std::fs::File, std::fs::File) {
    use rustix::fs::{Mode, OFlags, open};
    use rustix::pty::{OpenptFlags, grantpt, openpt, ptsname, unlockpt};
    let ours = openpt(OpenptFlags::RDWR | OpenptFlags::NOCTTY | OpenptFlags::CLOEXEC).unwrap();
    grantpt(&ours).unwrap();
    unlockpt(&ours).unwrap();
    let name = ptsname(&ours, Vec::new()).unwrap();
    let flags = OFlags::RDWR | OFlags::NOCTTY | OFlags::CLOEXEC;
    let theirs = open(&*name, flags, Mode::empty()).unwrap();
    (ours.into(), theirs.into())
}

/// All that a command prints to a terminal.
#[cfg(unix)]
pub fn on_terminal(args: &[&str]) -> String {
    let (mut ours, theirs) = terminal();
    let mut command = command(args);
    command.stdout(theirs.try_clone().unwrap()).stderr(Stdio::null());
    drop(theirs);
    let mut child = command.spawn().unwrap();
    // The side of the process is closed with it; only then does reading fail.
    drop(command);
    let reader = std::thread::spawn(move || {
        let (mut all, mut some) = (Vec::new(), [0; 4096]);
        while let Ok(count @ 1..) = ours.read(&mut some) {
            all.extend_from_slice(&some[..count]);
        }
        all
    });
    assert!(wait(&mut child).0.success());
    String::from_utf8(reader.join().unwrap()).unwrap()
}
