//! Models by name: repositories of a hub on loopback, and what is left when something breaks.
#![cfg(feature = "fetch")]
#![allow(clippy::unwrap_used, clippy::panic)] // a test stops at the first surprise

use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicUsize, Ordering};

use clearway_llm::fetch::{Cache, FetchError, ModelName, Watch};

#[path = "fetch/server.rs"]
mod server;
use server::{Behaviour, Body, Server};

/// A folder that is removed at the end of the test.
struct Folder(PathBuf);

impl Folder {
    fn new(name: &str) -> Self {
        let path =
            std::env::temp_dir().join(format!("clearway-fetch-{name}-{}", std::process::id()));
        let _ = std::fs::remove_dir_all(&path);
        Self(path)
    }

    /// Every file below, with `/` between names.
    fn files(&self) -> Vec<String> {
        fn walk(root: &Path, folder: &Path, found: &mut Vec<String>) {
            for entry in std::fs::read_dir(folder).into_iter().flatten().flatten() {
                let path = entry.path();
                if path.is_dir() {
                    walk(root, &path, found);
                } else {
                    found.push(path.strip_prefix(root).unwrap().to_str().unwrap().to_owned());
                }
            }
        }
        let mut found = Vec::new();
        walk(&self.0, &self.0, &mut found);
        found.retain(|file| file != "models/.lock");
        found.sort();
        found
    }
}

impl Drop for Folder {
    fn drop(&mut self) {
        let _ = std::fs::remove_dir_all(&self.0);
    }
}

fn cache(folder: &Folder, server: &Server) -> Cache {
    Cache::at(&folder.0).with_hub(server.address())
}

fn name(text: &str) -> ModelName {
    text.parse().unwrap()
}

#[test]
fn a_repository_is_fetched_once_and_found_without_a_network() {
    let server = Server::new(Behaviour::Good);
    let folder = Folder::new("once");
    let cache = cache(&folder, &server);
    let path = cache.fetch(&name("hf:user/repo"), &mut ()).unwrap();
    assert_eq!(std::fs::read(&path).unwrap(), server.content("m-Q4_K_M.gguf"));
    let repo = "models/hf/user/repo";
    assert_eq!(folder.files(), [format!("{repo}/.choice"), format!("{repo}/m-Q4_K_M.gguf")]);

    let tagged = cache.fetch(&name("hf:user/repo:q8_0"), &mut ()).unwrap();
    assert!(tagged.ends_with("sub/m-Q8_0.gguf"), "{}", tagged.display());
    let models: Vec<_> = cache.models().unwrap().into_iter().map(|m| (m.name, m.bytes)).collect();
    let bytes = |file: &str| server.content(file).len() as u64;
    assert_eq!(
        models,
        [
            ("hf:user/repo:m-Q4_K_M.gguf".into(), bytes("m-Q4_K_M.gguf")),
            ("hf:user/repo:sub/m-Q8_0.gguf".into(), bytes("sub/m-Q8_0.gguf")),
        ]
    );
    let requests = server.requests();
    drop(server);
    for again in ["hf:user/repo", "hf:user/repo:Q8_0", "hf:user/repo:m-Q4_K_M.gguf"] {
        assert!(cache.fetch(&name(again), &mut ()).unwrap().is_file(), "{again}");
    }
    assert_eq!(requests, 4, "two descriptions and two files");
}

#[test]
fn all_parts_of_a_split_model_are_fetched() {
    let server = Server::new(Behaviour::Good);
    let folder = Folder::new("split");
    let cache = cache(&folder, &server);
    let first = cache.fetch(&name("hf:user/repo:F16"), &mut ()).unwrap();
    assert!(first.ends_with("m-F16-00001-of-00002.gguf"));
    let models = cache.models().unwrap();
    assert_eq!(models.len(), 1, "{models:?}");
    let parts = ["m-F16-00001-of-00002.gguf", "m-F16-00002-of-00002.gguf"];
    let bytes: usize = parts.iter().map(|part| server.content(part).len()).sum();
    assert_eq!(models[0].bytes, bytes as u64);
    std::fs::remove_file(first.with_file_name(parts[1])).unwrap();
    assert_eq!(cache.find(&name("hf:user/repo:F16")), None, "a model with a hole is not there");
}

#[test]
fn a_broken_connection_is_taken_up_where_it_broke() {
    for behaviour in [Behaviour::Breaks { ranges: true }, Behaviour::Breaks { ranges: false }] {
        let server = Server::new(behaviour);
        let folder = Folder::new("breaks");
        let cache = cache(&folder, &server);
        let path = cache.fetch(&name("hf:user/repo:m-Q4_K_M.gguf"), &mut ()).unwrap();
        assert_eq!(std::fs::read(path).unwrap(), server.content("m-Q4_K_M.gguf"));
        assert!(server.requests() >= 3, "{behaviour:?}");
        let ranges = server.ranges();
        assert!(ranges.iter().all(|&from| from > 0) && !ranges.is_empty(), "{ranges:?}");
    }
}

#[test]
fn what_is_wrong_is_named_and_nothing_is_left() {
    let cases: [(Behaviour, &str, &[&str]); 6] = [
        (Behaviour::Flips, "hf:user/repo", &["SHA-256", "nothing was kept"]),
        (Behaviour::TooLong, "hf:user/repo", &["length"]),
        (Behaviour::Status(401), "hf:user/repo", &["401", "HF_TOKEN"]),
        (Behaviour::NotJson, "hf:user/repo", &["not what the hub says"]),
        (Behaviour::Good, "hf:user/repo:Q2_K", &["Q2_K", "m-Q4_K_M.gguf", "sub/m-Q8_0.gguf"]),
        (Behaviour::Redirects, "hf:user/repo", &["redirect"]),
    ];
    for (behaviour, model, words) in cases {
        let server = Server::new(behaviour);
        let folder = Folder::new("wrong");
        let error = cache(&folder, &server).fetch(&name(model), &mut ()).unwrap_err().to_string();
        for word in words {
            assert!(error.contains(word), "{behaviour:?}: {error}");
        }
        assert_eq!(folder.files(), [""; 0], "{behaviour:?}");
    }
}

/// Stops when some bytes have come.
struct Impatient {
    after: u64,
    seen: u64,
    asked: AtomicUsize,
}

impl Watch for Impatient {
    fn progress(&mut self, done: u64, _total: Option<u64>) {
        self.seen = done;
    }

    fn stopped(&self) -> bool {
        // A server that sends nothing makes no progress; the user's patience ends all the same.
        self.asked.fetch_add(1, Ordering::Relaxed) > 20 || self.seen >= self.after
    }
}

#[test]
fn a_stop_leaves_nothing_even_if_the_server_is_silent() {
    for behaviour in [Behaviour::Good, Behaviour::Silent] {
        let server = Server::new(behaviour);
        let folder = Folder::new("stop");
        let mut watch = Impatient { after: 1, seen: 0, asked: AtomicUsize::new(0) };
        let stopped = cache(&folder, &server).fetch(&name("hf:user/repo"), &mut watch);
        assert!(matches!(stopped, Err(FetchError::Stopped)), "{behaviour:?}: {stopped:?}");
        assert_eq!(folder.files(), [""; 0], "{behaviour:?}");
    }
}

#[test]
fn what_a_killed_process_left_is_removed_by_the_next() {
    let server = Server::new(Behaviour::Good);
    let folder = Folder::new("left");
    let left = folder.0.join("models/.fetch-1");
    std::fs::create_dir_all(&left).unwrap();
    std::fs::write(left.join("part-0"), "half").unwrap();
    cache(&folder, &server).fetch(&name("hf:user/repo"), &mut ()).unwrap();
    assert!(!left.exists());
}

#[test]
fn a_file_is_itself_or_missing() {
    let folder = Folder::new("file");
    let cache = Cache::at(&folder.0);
    let error = cache.fetch(&name("absent.gguf"), &mut ()).unwrap_err().to_string();
    for word in ["absent.gguf", "smollm2:135m", "hf:"] {
        assert!(error.contains(word), "{error}");
    }
    assert_eq!(folder.files(), [""; 0]);
}

#[test]
fn a_model_without_length_and_hash_is_measured_by_its_own_tables() {
    let server = Server::new(Behaviour::Unmeasured(Body::Whole));
    let folder = Folder::new("unmeasured");
    let path = cache(&folder, &server).fetch(&name("hf:user/repo"), &mut ()).unwrap();
    assert_eq!(std::fs::read(path).unwrap(), server::model());

    let cases: [(Body, &[&str]); 5] = [
        (Body::Cut, &["ended too early"]),
        (Body::CutInTables, &["ended too early"]),
        (Body::Endless, &["length", "nothing was kept"]),
        (Body::EndlessTables, &["tables", "nothing was kept"]),
        (Body::Page, &["not a GGUF file", "nothing was kept"]),
    ];
    for (body, words) in cases {
        let server = Server::new(Behaviour::Unmeasured(body));
        let folder = Folder::new(&format!("unmeasured-{body:?}"));
        let error = cache(&folder, &server).fetch(&name("hf:user/repo"), &mut ());
        let error = error.unwrap_err().to_string();
        assert!(words.iter().all(|word| error.contains(word)), "{body:?}: {error}");
        assert_eq!(folder.files(), [""; 0], "{body:?}");
        // Tables may be long; what comes behind them is cut off at once.
        let limit = if body == Body::EndlessTables { 80 << 20 } else { 16 << 20 };
        assert!(server.sent() < limit, "{body:?}: {} bytes were taken", server.sent());
    }
}

#[test]
fn what_has_no_end_is_cut_off() {
    let cases: [(Behaviour, &[&str], usize); 3] = [
        (Behaviour::EndlessHead, &["header"], 16 << 20),
        (Behaviour::EndlessText, &["too long"], 64 << 20),
        (Behaviour::Vast, &["no space left", "1152921504607 MB", "MB are free"], 1),
    ];
    for (behaviour, words, limit) in cases {
        let server = Server::new(behaviour);
        let folder = Folder::new("endless");
        let error = cache(&folder, &server).fetch(&name("hf:user/repo"), &mut ());
        let error = error.unwrap_err().to_string();
        assert!(words.iter().all(|word| error.contains(word)), "{behaviour:?}: {error}");
        assert!(server.sent() < limit, "{behaviour:?}: {} bytes were taken", server.sent());
        assert_eq!(folder.files(), [""; 0], "{behaviour:?}");
    }
}

#[test]
fn a_token_goes_to_the_hub_and_to_nobody_else() {
    let token = Some("Bearer secret".to_owned());
    let hub = Server::new(Behaviour::Moves { to: None });
    let folder = Folder::new("token-same");
    cache(&folder, &hub).with_token("secret").fetch(&name("hf:user/repo"), &mut ()).unwrap();
    assert_eq!(hub.tokens(), [token.clone(), token.clone(), token.clone()], "a redirect loses it");

    let other = Server::new(Behaviour::Good);
    let hub = Server::new(Behaviour::Moves { to: Some(other.port()) });
    let folder = Folder::new("token-other");
    cache(&folder, &hub).with_token("secret").fetch(&name("hf:user/repo"), &mut ()).unwrap();
    assert_eq!(hub.tokens(), [token.clone(), token]);
    assert_eq!(other.tokens(), [None], "another server learned the token");
}

#[test]
fn a_token_does_not_go_over_http_unless_the_user_says_so() {
    // Every address of this machine, which the rule does not take for loopback.
    let hub = Server::new(Behaviour::Good);
    let folder = Folder::new("token-http");
    let address = format!("http://0.0.0.0:{}", hub.port());
    let child = |switch: Option<&str>| {
        let mut child = std::process::Command::new(std::env::current_exe().unwrap());
        child.args(["--ignored", "--exact", "fetches_as_the_environment_says", "--nocapture"]);
        child.env("HF_ENDPOINT", &address).env("HF_TOKEN", "secret");
        child.env("CLEARWAY_CACHE", &folder.0).env_remove("CLEARWAY_TOKEN_OVER_HTTP");
        child.envs(switch.map(|value| ("CLEARWAY_TOKEN_OVER_HTTP", value)));
        let output = child.output().unwrap();
        let said = String::from_utf8(output.stdout).unwrap();
        (output.status.success(), said + &String::from_utf8(output.stderr).unwrap())
    };
    for switch in [None, Some(""), Some("0")] {
        let (fetched, said) = child(switch);
        assert!(!fetched && said.contains("CLEARWAY_TOKEN_OVER_HTTP"), "{switch:?}: {said}");
        assert!(hub.tokens().is_empty(), "{switch:?}");
    }
    let (fetched, said) = child(Some("1"));
    assert!(fetched, "{said}");
    assert_eq!(hub.tokens(), [Some("Bearer secret".to_owned()), Some("Bearer secret".to_owned())]);
}

#[test]
#[ignore = "run by a_token_does_not_go_over_http_unless_the_user_says_so"]
fn fetches_as_the_environment_says() {
    if let Err(error) = Cache::of_user().unwrap().fetch(&name("hf:user/repo"), &mut ()) {
        panic!("{error}");
    }
}

#[test]
fn a_cache_that_cannot_be_used_is_named_with_what_to_do() {
    let server = Server::new(Behaviour::Good);
    let folder = Folder::new("no-folder");
    std::fs::write(&folder.0, "a file").unwrap();
    let error = cache(&folder, &server).fetch(&name("hf:user/repo"), &mut ());
    std::fs::remove_file(&folder.0).unwrap();
    let error = error.unwrap_err().to_string();
    assert!(error.contains("cache folder") && error.contains("CLEARWAY_CACHE"), "{error}");
    assert_eq!(server.requests(), 0);
}
