//! Repositories of the Hugging Face hub: which file is meant, and where it lies in the cache.

use std::io;
use std::path::{Path, PathBuf};

use serde::Deserialize;

use super::cache::{Cache, is_model};
use super::checked::CheckedFile;
use super::http::Client;
use super::name::{HubName, is_plain};
use super::{FetchError, Watch};

/// Quantisations in the order in which one is taken if the user names none: small, and good for
/// its size, first.
const PREFERRED: [&str; 5] = ["Q4_K_M", "Q4_K_S", "Q4_0", "Q5_K_M", "Q8_0"];
/// In a repository's folder: the file that was chosen for a name without one.
const CHOICE: &str = ".choice";

/// What the hub says about a repository.
#[derive(Deserialize)]
pub(super) struct Repository {
    /// Revision; files are fetched from it, so that an update between two requests mixes nothing.
    sha: Option<String>,
    #[serde(default)]
    pub(super) siblings: Vec<Sibling>,
}

/// A file of a repository.
#[derive(Deserialize)]
pub(super) struct Sibling {
    pub(super) rfilename: String,
    size: Option<u64>,
    lfs: Option<Lfs>,
}

#[derive(Deserialize)]
struct Lfs {
    sha256: Option<String>,
    size: Option<u64>,
}

/// Fetches the file of a name and returns its place.
pub(super) fn fetch(
    cache: &Cache,
    name: &HubName,
    watch: &mut dyn Watch,
) -> Result<PathBuf, FetchError> {
    let client = Client::new(cache.hub(), cache.token())?;
    let working = cache.working_folder(watch)?;
    let folder = cache.hub_folder(name);
    if let Some(path) = find(&folder, name) {
        return Ok(path);
    }
    let repo = format!("{}/{}", name.user, name.repo);
    let info = client.text(&format!("/api/models/{repo}?blobs=true"), watch)?;
    let info: Repository = serde_json::from_str(&info).map_err(|error| FetchError::Http {
        url: client.url(&format!("/api/models/{repo}")),
        message: format!("not what the hub says about a repository: {error}"),
    })?;
    let files: Vec<&str> = info.siblings.iter().map(|file| &*file.rfilename).collect();
    let chosen = choose(&files, name.file.as_deref()).ok_or_else(|| FetchError::NoGguf {
        repo: repo.clone(),
        wanted: name.file.clone(),
        files: summary(&files),
    })?;
    let revision = info.sha.as_deref().filter(|sha| is_plain(sha)).unwrap_or("main");
    let mut fetched = Vec::new();
    for (part, file) in chosen.iter().enumerate() {
        let sibling = info.siblings.iter().find(|sibling| sibling.rfilename == *file);
        let lfs = sibling.and_then(|sibling| sibling.lfs.as_ref());
        let size = lfs.and_then(|lfs| lfs.size).or(sibling.and_then(|sibling| sibling.size));
        let sha256 = lfs.and_then(|lfs| lfs.sha256.as_deref());
        watch.say(&format!("fetching hf:{repo}:{file}"));
        let partial = working.path().join(format!("part-{part}"));
        let mut out = CheckedFile::create(&partial, file, size, sha256)?;
        client.download(&format!("/{repo}/resolve/{revision}/{file}"), &mut out, watch)?;
        out.finish()?;
        fetched.push((partial, folder.join(file)));
    }
    for (partial, place) in &fetched {
        working.place(partial, place)?;
    }
    if name.file.is_none() {
        let choice = working.path().join("choice");
        std::fs::write(&choice, chosen[0]).map_err(|error| FetchError::io(&choice, None, error))?;
        working.place(&choice, &folder.join(CHOICE))?;
    }
    Ok(folder.join(chosen[0]))
}

/// The file of a name in the repository's folder of the cache, if all parts of it are there.
pub(super) fn find(folder: &Path, name: &HubName) -> Option<PathBuf> {
    let mut wanted = name.file.clone();
    if wanted.is_none() {
        wanted = Some(std::fs::read_to_string(folder.join(CHOICE)).ok()?);
    }
    let files = files(folder).ok()?;
    let files: Vec<&str> = files.iter().map(|(file, _)| &**file).collect();
    Some(folder.join(choose(&files, wanted.as_deref())?[0]))
}

/// Tells name, path and length of every model in a repository's folder of the cache.
pub(super) fn list(folder: &Path, tell: &mut dyn FnMut(&str, PathBuf, u64)) -> io::Result<()> {
    let files = files(folder)?;
    let names: Vec<&str> = files.iter().map(|(file, _)| &**file).collect();
    for file in names.iter().filter(|file| is_first(file)) {
        let Some(parts) = parts(&names, file) else { continue };
        let sizes = files.iter().filter(|(name, _)| parts.contains(&&**name));
        tell(file, folder.join(file), sizes.map(|(_, bytes)| bytes).sum());
    }
    Ok(())
}

/// A path below a folder, as the hub writes it.
pub(super) fn slashes(path: &Path) -> String {
    let parts: Vec<_> = path.iter().map(|part| part.to_string_lossy()).collect();
    parts.join("/")
}

/// Model files of a folder and its folders with their lengths, sorted by name.
fn files(folder: &Path) -> io::Result<Vec<(String, u64)>> {
    let mut found = Vec::new();
    let mut folders = vec![folder.to_owned()];
    while let Some(next) = folders.pop() {
        for entry in std::fs::read_dir(&next)? {
            let path = entry?.path();
            let name = slashes(path.strip_prefix(folder).unwrap_or(&path));
            match path.metadata()? {
                meta if meta.is_dir() => folders.push(path),
                meta if is_model(&name) => found.push((name, meta.len())),
                _ => {}
            }
        }
    }
    found.sort();
    Ok(found)
}

/// The file that is meant, with its further parts if it is split. `wanted` is the whole name of a
/// file or a word in it.
pub(super) fn choose<'a>(files: &[&'a str], wanted: Option<&str>) -> Option<Vec<&'a str>> {
    let mut candidates: Vec<&'a str> = files.iter().copied().filter(|f| is_first(f)).collect();
    candidates.sort_unstable();
    let with = |word: &str| {
        let word = word.to_ascii_uppercase();
        candidates.iter().copied().find(|file| has_word(&file.to_ascii_uppercase(), &word))
    };
    let file = match wanted {
        Some(wanted) if is_model(wanted) => candidates.iter().copied().find(|f| *f == wanted),
        Some(word) => with(word),
        None => PREFERRED.into_iter().find_map(with).or(candidates.first().copied()),
    };
    parts(files, file?)
}

/// Whether a name has a word in it that is not a piece of a longer one: `Q4_K` is not in `Q4_K_M`.
fn has_word(name: &str, word: &str) -> bool {
    let inside = |c: char| c.is_ascii_alphanumeric() || c == '_';
    name.match_indices(word).any(|(at, _)| {
        let before = name[..at].chars().next_back();
        let after = name[at + word.len()..].chars().next();
        !before.is_some_and(inside) && !after.is_some_and(inside)
    })
}

/// Whether a file is a language model that can be opened: safe to store under its name, no image
/// encoder, and the first part if it is split.
fn is_first(file: &str) -> bool {
    let name = file.rsplit('/').next().unwrap_or(file);
    is_model(name)
        && file.split('/').all(is_plain)
        && !name.to_ascii_lowercase().starts_with("mmproj")
        && split(file).is_none_or(|(_, number, _)| number == 1)
}

/// All parts of the model that starts with `first`; none if one is missing.
fn parts<'a>(files: &[&'a str], first: &'a str) -> Option<Vec<&'a str>> {
    let Some((base, _, count)) = split(first) else { return Some(vec![first]) };
    let part = |number| format!("{base}-{number:05}-of-{count:05}.gguf");
    (1..=count).map(|n| files.iter().copied().find(|file| *file == part(n))).collect()
}

/// Base, number and count of a part of a split model: `BASE-00001-of-00003.gguf`.
fn split(file: &str) -> Option<(&str, u32, u32)> {
    let (rest, count) = file.strip_suffix(".gguf")?.rsplit_once("-of-")?;
    let (base, number) = rest.rsplit_once('-')?;
    let digits = |text: &str| (text.len() == 5).then(|| text.parse().ok()).flatten();
    let (number, count) = (digits(number)?, digits(count)?);
    (1..=count).contains(&number).then_some((base, number, count))
}

/// The model files, for people.
fn summary(files: &[&str]) -> String {
    const SHOWN: usize = 12;
    let models: Vec<&str> = files.iter().copied().filter(|file| is_first(file)).collect();
    let more = models.len().saturating_sub(SHOWN);
    match models.len() {
        0 => "none".to_owned(),
        _ if more > 0 => format!("{} and {more} more", models[..SHOWN].join(", ")),
        _ => models.join(", "),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const FILES: [&str; 8] = [
        "README.md",
        "big-Q4_K_M-00001-of-00002.gguf",
        "big-Q4_K_M-00002-of-00002.gguf",
        "m-F16.gguf",
        "m-Q4_K_S.gguf",
        "mmproj-Q4_K_M.gguf",
        "sub/m-Q8_0.gguf",
        "../m-Q4_0.gguf",
    ];

    #[test]
    fn the_file_that_is_meant_is_found() {
        let split = vec![FILES[1], FILES[2]];
        assert_eq!(choose(&FILES, None), Some(split.clone()));
        assert_eq!(choose(&FILES, Some("q4_k_m")), Some(split));
        assert_eq!(choose(&FILES, Some("Q4_K")), None, "a piece of a longer word");
        assert_eq!(choose(&FILES, Some("q8_0")), Some(vec![FILES[6]]));
        assert_eq!(choose(&FILES, Some("m-F16.gguf")), Some(vec![FILES[3]]));
        assert_eq!(choose(&FILES, Some("F16.gguf")), None, "a name is a whole name");
        assert_eq!(choose(&FILES, Some("Q4_0")), None, "names that climb are no names");
        assert_eq!(choose(&FILES[..2], None), None, "a part is missing");
        assert_eq!(choose(&FILES[3..5], None), Some(vec![FILES[4]]));
        assert_eq!(choose(&FILES[3..4], None), Some(vec![FILES[3]]));
        assert_eq!(choose(&FILES[..1], None), None);
    }

    #[test]
    fn split_names_are_read() {
        assert_eq!(split("a-b-00002-of-00003.gguf"), Some(("a-b", 2, 3)));
        for odd in ["a.gguf", "a-00004-of-00003.gguf", "a-00000-of-00003.gguf", "a-1-of-2.gguf"] {
            assert_eq!(split(odd), None, "{odd}");
        }
    }
}
