//! What the documents name is there: tests alone. They are no integration tests, since those make cargo link the program again
//! while it runs.

use std::collections::BTreeSet;
use std::path::{Path, PathBuf};

fn root() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("..")
}

/// Files below a folder with one of these endings; outputs of builds are left out.
fn files(folder: &Path, endings: &[&str], found: &mut Vec<PathBuf>) {
    for entry in std::fs::read_dir(folder).unwrap() {
        let path = entry.unwrap().path();
        let name = path.file_name().unwrap().to_str().unwrap();
        if path.is_dir() {
            if !matches!(name, "target" | "node_modules") && !name.starts_with('.') {
                files(&path, endings, found);
            }
        } else if endings.iter().any(|ending| name.ends_with(ending)) {
            found.push(path);
        }
    }
}

/// What stands between two marks, line by line.
fn between<'a>(text: &'a str, open: &'a str, close: char) -> impl Iterator<Item = &'a str> {
    text.lines().flat_map(move |line| {
        line.split(open).skip(1).filter_map(move |rest| Some(rest.split_once(close)?.0))
    })
}

/// Code in a text: every second part between back quotes.
fn code(text: &str) -> impl Iterator<Item = &str> {
    text.lines().flat_map(|line| line.split('`').skip(1).step_by(2))
}

#[test]
fn every_test_that_the_proof_names_exists() {
    let mut sources = Vec::new();
    for folder in ["crates", "tools"] {
        files(&root().join(folder), &[".rs"], &mut sources);
    }
    let mut known = BTreeSet::new();
    for path in sources {
        let text = std::fs::read_to_string(path).unwrap();
        known.extend(between(&text, "fn ", '(').map(str::to_owned));
    }
    let text = std::fs::read_to_string(root().join("docs/proof.md")).unwrap();
    let mut named = 0;
    for quoted in code(&text) {
        // `module::test`, `…::test` and `outside: test`; a last part with a star is a prefix of nothing or of several.
        let Some((_, test)) = quoted.rsplit_once("::").or(quoted.rsplit_once(": ")) else {
            continue;
        };
        let is_test = |name: &&str| {
            name.len() > 12 && name.chars().all(|c| c.is_ascii_lowercase() || c == '_')
        };
        if is_test(&test) {
            named += 1;
            assert!(
                known.contains(test),
                "docs/proof.md names `{quoted}`, which no test is called"
            );
        } else if let Some(prefix) = test.strip_suffix('*') {
            assert!(known.iter().any(|name| name.starts_with(prefix)), "docs/proof.md: {quoted}");
        }
    }
    assert!(named > 30, "only {named} tests were found in docs/proof.md");
}

#[test]
fn links_between_documents_lead_somewhere() {
    let mut documents = Vec::new();
    files(&root(), &[".md"], &mut documents);
    let mut links = 0;
    // Pages below `src` are part of the documentation of a crate, whose links rustdoc checks.
    let in_source = |path: &&PathBuf| path.components().any(|part| part.as_os_str() == "src");
    for document in documents.iter().filter(|path| !in_source(path)) {
        let text = std::fs::read_to_string(document).unwrap();
        for link in between(&text, "](", ')') {
            let target = link.split('#').next().unwrap();
            if target.is_empty() || target.contains("://") || target.contains(' ') {
                continue;
            }
            links += 1;
            let path = document.parent().unwrap().join(target);
            assert!(path.exists(), "{} links to {link}", document.display());
        }
    }
    assert!(links > 20, "only {links} links were found");
}

#[test]
fn files_that_the_recipes_name_exist() {
    for document in ["CONTRIBUTING.md", "ARCHITECTURE.md"] {
        let text = std::fs::read_to_string(root().join(document)).unwrap();
        let crates = |name: &&str| name.starts_with("crates/") || name.starts_with("clearway-");
        for quoted in code(&text).filter(crates) {
            let path = quoted.strip_prefix("crates/").unwrap_or(quoted);
            if path.contains('/') {
                assert!(root().join("crates").join(path).exists(), "{document} names {quoted}");
            }
        }
    }
}
