//! `cargo xtask size`: lines per source file. A file that no longer fits a reader's head shows here.

use std::path::{Path, PathBuf};

use anyhow::Result;

use crate::root;

/// Lines a source file may have; tests and tables may have more.
const LIMIT: usize = 700;

/// Prints the table, largest file first.
pub fn run() -> Result<()> {
    let root = root()?;
    let files = measure(&root)?;
    for file in &files {
        let flag = if file.is_too_long() { "  over the limit" } else { "" };
        println!("{:>6}  {}{flag}", file.lines, file.path.display());
    }
    println!("\n{}", summary_of(&files));
    Ok(())
}

/// One line about all files.
pub fn summary(root: &Path) -> Result<String> {
    Ok(summary_of(&measure(root)?))
}

struct SourceFile {
    /// Relative to the root.
    path: PathBuf,
    lines: usize,
}

impl SourceFile {
    fn is_too_long(&self) -> bool {
        self.lines > LIMIT && !self.is_exempt()
    }

    /// Tests and tables are long by nature and read in parts.
    fn is_exempt(&self) -> bool {
        let words = ["test", "tests", "bench", "benches", "table", "tables"];
        let is_word = |word: &str| words.contains(&word);
        let parts = self.path.with_extension("");
        parts.iter().filter_map(|part| part.to_str()).any(|part| part.split('_').any(is_word))
    }
}

fn summary_of(files: &[SourceFile]) -> String {
    let lines: usize = files.iter().map(|file| file.lines).sum();
    let largest = files.iter().find(|file| !file.is_exempt());
    let largest = largest
        .map_or_else(String::new, |f| format!(", largest {} ({})", f.path.display(), f.lines));
    let too_long: Vec<_> = files
        .iter()
        .filter(|file| file.is_too_long())
        .map(|file| file.path.display().to_string())
        .collect();
    let over = if too_long.is_empty() { "none".to_owned() } else { too_long.join(", ") };
    format!("size: {} source files, {lines} lines{largest}, over {LIMIT}: {over}", files.len())
}

/// All source files, largest first.
fn measure(root: &Path) -> Result<Vec<SourceFile>> {
    let mut files = Vec::new();
    for folder in ["crates", "xtask", "fuzz"] {
        collect(root, &root.join(folder), &mut files)?;
    }
    files.sort_by(|a, b| b.lines.cmp(&a.lines).then_with(|| a.path.cmp(&b.path)));
    Ok(files)
}

fn collect(root: &Path, folder: &Path, files: &mut Vec<SourceFile>) -> Result<()> {
    let Ok(entries) = std::fs::read_dir(folder) else { return Ok(()) };
    for entry in entries {
        let entry = entry?;
        let path = entry.path();
        if entry.file_type()?.is_dir() {
            if entry.file_name() != "target" {
                collect(root, &path, files)?;
            }
        } else if path.extension().is_some_and(|extension| extension == "rs" || extension == "wgsl")
        {
            let lines = std::fs::read_to_string(&path)?.lines().count();
            let path = path.strip_prefix(root).unwrap_or(&path).to_owned();
            files.push(SourceFile { path, lines });
        }
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn file(path: &str, lines: usize) -> SourceFile {
        SourceFile { path: PathBuf::from(path), lines }
    }

    #[test]
    fn only_sources_that_are_no_tests_or_tables_are_limited() {
        assert!(file("crates/a/src/plan.rs", 701).is_too_long());
        assert!(file("crates/a/src/testkit/mod.rs", 701).is_too_long());
        assert!(!file("crates/a/src/plan.rs", 700).is_too_long());
        assert!(!file("crates/a/tests/plan.rs", 900).is_too_long());
        assert!(!file("crates/a/src/plan/tests.rs", 900).is_too_long());
        assert!(!file("crates/a/src/unicode_tables.rs", 900).is_too_long());
    }

    #[test]
    fn the_summary_names_what_is_over_the_limit() {
        let files = [file("a/tests.rs", 900), file("a/b.rs", 800), file("a/c.rs", 3)];
        let expected = "size: 3 source files, 1703 lines, largest a/b.rs (800), over 700: a/b.rs";
        assert_eq!(summary_of(&files), expected);
    }
}
