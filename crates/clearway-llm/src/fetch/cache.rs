//! The folder of fetched models.
//!
//! A model appears in it under its final name only when it is complete and checked. Until then it
//! lies in a working folder beside it, which is removed whatever happens. Fetches hold a lock, so
//! that of two processes that want the same model one fetches and the other waits; a working
//! folder found while holding the lock was left by a process that was killed, and is removed.

use std::fs::{File, TryLockError};
use std::path::{Path, PathBuf};
use std::time::Duration;
use std::{fmt, io};

use clearway::CacheFolderError;

use super::name::{BuiltIn, HubName, ModelName};
use super::{FetchError, Watch, hub};

/// Prefix of working folders.
pub(super) const WORKING: &str = ".fetch-";
/// Extension of models.
const EXTENSION: &str = "gguf";

/// Where fetched models are kept.
#[derive(Clone)]
pub struct Cache {
    folder: PathBuf,
    hub: Option<String>,
    token: Option<String>,
}

/// Without the token, which must not reach a log.
impl fmt::Debug for Cache {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { folder, hub, token: _ } = self;
        f.debug_struct("Cache").field("folder", folder).field("hub", hub).finish_non_exhaustive()
    }
}

/// A model of the cache.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct CachedModel {
    /// Name, as `-m` takes it.
    pub name: String,
    /// The file; the first of a split model.
    pub path: PathBuf,
    /// Bytes of all its files.
    pub bytes: u64,
}

impl Cache {
    /// The cache of this user, in [`clearway::cache_folder`].
    ///
    /// # Errors
    /// [`FetchError::Cache`].
    pub fn of_user() -> Result<Self, FetchError> {
        Ok(Self::at(clearway::cache_folder()?))
    }

    /// A cache in this folder, which is made when something is fetched.
    pub fn at(folder: impl Into<PathBuf>) -> Self {
        Self { folder: folder.into(), hub: None, token: None }
    }

    /// The same folder with another hub than `HF_ENDPOINT` names, such as `http://127.0.0.1:8000`.
    #[must_use]
    pub fn with_hub(self, address: impl Into<String>) -> Self {
        Self { hub: Some(address.into()), ..self }
    }

    /// The same folder with another token than `HF_TOKEN` holds.
    #[must_use]
    pub fn with_token(self, token: impl Into<String>) -> Self {
        Self { token: Some(token.into()), ..self }
    }

    /// Address of the hub, where the user of this type chose one.
    pub(super) fn hub(&self) -> Option<&str> {
        self.hub.as_deref()
    }

    /// The token for the hub, where the user of this type chose one.
    pub(super) fn token(&self) -> Option<&str> {
        self.token.as_deref()
    }

    /// The folder.
    pub fn folder(&self) -> &Path {
        &self.folder
    }

    /// Folder of the models.
    pub(super) fn models_folder(&self) -> PathBuf {
        self.folder.join("models")
    }

    /// Folder of a repository of the hub.
    pub(super) fn hub_folder(&self, name: &HubName) -> PathBuf {
        self.models_folder().join("hf").join(&name.user).join(&name.repo)
    }

    /// Place of a built-in model.
    pub(super) fn built_in(&self, model: &BuiltIn) -> PathBuf {
        self.models_folder().join(model.file)
    }

    /// The file of a model, if it is there. Nothing is fetched.
    pub fn find(&self, name: &ModelName) -> Option<PathBuf> {
        match name {
            ModelName::File(path) => path.is_file().then(|| path.clone()),
            ModelName::BuiltIn(model) => {
                let path = self.built_in(model);
                // Cheap, and notices a file that somebody else put or cut there.
                let whole = path.metadata().is_ok_and(|meta| meta.len() == model.bytes);
                whole.then_some(path)
            }
            ModelName::Hub(name) => hub::find(&self.hub_folder(name), name),
        }
    }

    /// The models that are there, by name.
    ///
    /// # Errors
    /// [`FetchError::Cache`] if the folder cannot be read; one that does not exist is empty.
    pub fn models(&self) -> Result<Vec<CachedModel>, FetchError> {
        let mut found = Vec::new();
        for model in BuiltIn::ALL {
            if let Some(path) = self.find(&ModelName::BuiltIn(model)) {
                found.push(CachedModel { name: model.name.into(), path, bytes: model.bytes });
            }
        }
        let hub = self.models_folder().join("hf");
        for user in entries(&hub)? {
            for repo in entries(&user)? {
                let label = |path: &Path| path.strip_prefix(&hub).map(hub::slashes);
                let name = label(&repo).unwrap_or_default();
                hub::list(&repo, &mut |file, path, bytes| {
                    found.push(CachedModel { name: format!("hf:{name}:{file}"), path, bytes });
                })
                .map_err(|error| FetchError::io(&repo, None, error))?;
            }
        }
        Ok(found)
    }

    /// A folder to work in, in which nobody else works.
    pub(super) fn working_folder(
        &self,
        watch: &mut dyn Watch,
    ) -> Result<WorkingFolder, FetchError> {
        let models = self.models_folder();
        let failed = |error| FetchError::io(&models, None, error);
        clearway::make_cache_folder(&models).map_err(|error| match error {
            CacheFolderError::Refused { path, error } => FetchError::io(&path, None, error),
            other => other.into(),
        })?;
        let lock = File::options()
            .create(true)
            .truncate(false)
            .write(true)
            .open(models.join(".lock"))
            .map_err(failed)?;
        let mut waited = false;
        loop {
            match lock.try_lock() {
                Ok(()) => {
                    remove_leftovers(&models).map_err(failed)?;
                    break;
                }
                Err(TryLockError::WouldBlock) => {
                    if !waited {
                        watch.say("another process is fetching; waiting for it");
                        waited = true;
                    }
                    pause(watch)?;
                }
                // Some network file systems have no locks. Working folders have the process in
                // their names, so two fetches stay apart even then.
                Err(TryLockError::Error(error)) if error.kind() == io::ErrorKind::Unsupported => {
                    break;
                }
                Err(TryLockError::Error(error)) => return Err(failed(error)),
            }
        }
        let path = models.join(format!("{WORKING}{}", std::process::id()));
        let _ = std::fs::remove_dir_all(&path); // of an earlier process with this number
        private_folder(&path).map_err(failed)?;
        Ok(WorkingFolder { path, _lock: lock })
    }
}

/// A folder that is removed, with what is in it, when it is dropped.
pub(super) struct WorkingFolder {
    path: PathBuf,
    _lock: File,
}

impl WorkingFolder {
    pub fn path(&self) -> &Path {
        &self.path
    }

    /// Gives a complete file of this folder its place.
    pub fn place(&self, file: &Path, place: &Path) -> Result<(), FetchError> {
        let folder = place.parent().unwrap_or(place);
        std::fs::create_dir_all(folder)
            .and_then(|()| std::fs::rename(file, place))
            .map_err(|error| FetchError::io(folder, None, error))
    }
}

impl Drop for WorkingFolder {
    fn drop(&mut self) {
        // The next fetch tries again if this fails.
        let _ = std::fs::remove_dir_all(&self.path);
    }
}

/// Makes a folder that only this user can look into.
pub(super) fn private_folder(path: &Path) -> io::Result<()> {
    let mut builder = std::fs::DirBuilder::new();
    #[cfg(unix)]
    std::os::unix::fs::DirBuilderExt::mode(&mut builder, 0o700);
    builder.create(path)
}

/// A moment, which ends with an error if the user wants to stop.
pub(super) fn pause(watch: &dyn Watch) -> Result<(), FetchError> {
    if watch.stopped() {
        return Err(FetchError::Stopped);
    }
    std::thread::sleep(Duration::from_millis(50));
    Ok(())
}

fn remove_leftovers(models: &Path) -> io::Result<()> {
    for entry in std::fs::read_dir(models)? {
        let entry = entry?;
        if entry.file_name().to_string_lossy().starts_with(WORKING) {
            std::fs::remove_dir_all(entry.path())?;
        }
    }
    Ok(())
}

/// Sub-folders, sorted; none of a folder that does not exist.
fn entries(folder: &Path) -> Result<Vec<PathBuf>, FetchError> {
    let failed = |error| FetchError::io(folder, None, error);
    let list = match std::fs::read_dir(folder) {
        Ok(list) => list,
        Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(Vec::new()),
        Err(error) => return Err(failed(error)),
    };
    let mut folders = Vec::new();
    for entry in list {
        let path = entry.map_err(failed)?.path();
        if path.is_dir() {
            folders.push(path);
        }
    }
    folders.sort();
    Ok(folders)
}

/// Whether a name is that of a model file.
pub(super) fn is_model(name: &str) -> bool {
    Path::new(name).extension().is_some_and(|found| found.eq_ignore_ascii_case(EXTENSION))
}
