//! The first run in a folder that somebody else made: nothing in it is executed.
#![cfg(unix)] // the stand-ins are shell scripts
#![allow(clippy::unwrap_used)] // a test stops at the first surprise

mod common;
use common::{Folder, command, failure};

use std::os::unix::fs::PermissionsExt;
use std::path::Path;
use std::process::Command;

/// `clearway pull` of the default model in a folder full of traps, each of which leaves a file `sprung`.
struct Trap {
    folder: Folder,
}

impl Trap {
    fn new(test: &str) -> Self {
        let folder = Folder::new(&format!("first-{test}"));
        std::fs::create_dir_all(folder.path("here/pip")).unwrap();
        std::fs::create_dir_all(folder.path("here/bin")).unwrap();
        let trap = Self { folder };
        let code = format!("open({:?}, 'a').write('python')\n", trap.sprung());
        for module in ["pip/__init__.py", "pip/__main__.py", "runpy.py", "sitecustomize.py"] {
            std::fs::write(trap.folder.path("here").join(module), &code).unwrap();
        }
        for place in ["here/python3", "here/bin/python3"] {
            script(&trap.folder.path(place), &format!("echo shell >> {}", trap.sprung().display()));
        }
        trap
    }

    fn sprung(&self) -> std::path::PathBuf {
        self.folder.path("sprung")
    }

    /// The command in the folder, with variables that lead Python there.
    fn pull(&self, search_path: &str) -> Command {
        let mut pull = command(&["pull", "smollm2:135m"]);
        let here = self.folder.path("here");
        pull.current_dir(&here).env("PATH", search_path);
        pull.env("CLEARWAY_CACHE", self.folder.path("cache"));
        pull.env("PYTHONPATH", &here).env("PYTHONSTARTUP", here.join("pip/__main__.py"));
        // No index: what matters has happened before pip asks for one.
        pull.env("PIP_INDEX_URL", "http://127.0.0.1:1").env("PIP_RETRIES", "0");
        pull
    }

    fn assert_unsprung(&self, what: &str) {
        let sprung = std::fs::read_to_string(self.sprung()).unwrap_or_default();
        assert!(sprung.is_empty(), "{what}: code of the current folder was run: {sprung}");
    }
}

fn script(path: &Path, text: &str) {
    std::fs::write(path, format!("#!/bin/sh\n{text}\n")).unwrap();
    std::fs::set_permissions(path, PermissionsExt::from_mode(0o755)).unwrap();
}

#[test]
fn pythons_in_the_current_folder_are_not_looked_for() {
    let trap = Trap::new("search-path");
    for search_path in ["", ":", ".", "bin", ":bin:./bin:/nonexistent"] {
        let message = failure(&trap.pull(search_path).output().unwrap());
        assert!(message.contains("`python3` is not installed"), "{search_path}: {message}");
        trap.assert_unsprung(search_path);
    }
}

#[test]
fn python_runs_isolated_in_an_empty_folder_of_its_own() {
    let trap = Trap::new("stand-in");
    let bin = trap.folder.path("good");
    std::fs::create_dir_all(&bin).unwrap();
    // Says how it was started.
    let said = trap.folder.path("said");
    let text = format!(
        "{{ echo \"args $*\"; echo \"cwd $PWD\"; echo \"files $(ls -A | wc -l)\"; \
         echo \"mode $(stat -c %a . 2>/dev/null)\"; env | grep ^PYTHON; \
         echo \"stdin $(wc -c)\"; }} > {} 2>&1; exit 1",
        said.display()
    );
    script(&bin.join("python3"), &text);
    let mut pull = trap.pull(&format!("{}:/usr/bin:/bin", bin.display()));
    // What is typed is for nobody.
    let typed = trap.folder.path("typed");
    std::fs::write(&typed, "secret").unwrap();
    pull.stdin(std::fs::File::open(&typed).unwrap());
    failure(&pull.output().unwrap());
    let said = std::fs::read_to_string(said).unwrap();
    assert!(said.contains("args -I -m pip download"), "{said}");
    assert!(said.contains("files 0") && said.contains("mode 700"), "{said}");
    assert!(!said.contains("PYTHON") && said.contains("stdin 0"), "{said}");
    let here = trap.folder.path("here");
    assert!(!said.contains(&format!("cwd {}\n", here.display())), "{said}");
    let cache = trap.folder.path("cache");
    assert!(said.contains(&format!("cwd {}", cache.display())), "{said}");
    assert!(
        !cache
            .join("models")
            .read_dir()
            .unwrap()
            .any(|entry| { entry.unwrap().file_name().to_string_lossy().starts_with(".fetch") })
    );
}

#[test]
fn a_relative_cache_folder_means_the_same_to_pip() {
    let trap = Trap::new("relative");
    let bin = trap.folder.path("good");
    std::fs::create_dir_all(&bin).unwrap();
    let said = trap.folder.path("said");
    let text = format!("while [ $# -gt 2 ]; do shift; done; echo $1 > {}; exit 1", said.display());
    script(&bin.join("python3"), &text);
    let mut pull = trap.pull(&format!("{}:/bin", bin.display()));
    failure(&pull.env("CLEARWAY_CACHE", "kept").output().unwrap());
    let said = std::fs::read_to_string(said).unwrap();
    let expected = trap.folder.path("here/kept/models");
    assert!(said.starts_with(expected.to_str().unwrap()), "{said}");
}

#[test]
fn a_real_python_runs_no_code_of_the_current_folder() {
    let installed = Command::new("python3").args(["-I", "-c", "0"]).output();
    if !installed.is_ok_and(|output| output.status.success()) {
        println!("skipped: there is no python3");
        return;
    }
    let trap = Trap::new("real");
    let search_path = std::env::var("PATH").unwrap();
    // Without pip this is another error, which is as good here.
    failure(&trap.pull(&search_path).output().unwrap());
    trap.assert_unsprung("python3");
}
