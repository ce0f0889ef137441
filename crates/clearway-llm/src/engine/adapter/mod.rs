//! Low-rank adapters (LoRA) in GGUF files.
//!
//! An adapter changes weights `W` of a model to `W + scale * alpha / rank * B A`, with a pair of small matrices for each.
//! Its file has the tensors `NAME.lora_a`, `rank` rows of what `W` reads, and `NAME.lora_b`, a row of `rank` for each row of
//! `W`, where `NAME` is the tensor of the model; `adapter.lora.alpha` is one number, and 0 stands for a factor of `scale`
//! alone. The weights of the model stay as they are: what an adapter adds is computed by products of its own
//! ([`AdapterLayout`](crate::model::AdapterLayout)).

mod error;
mod stack;

pub use error::AdapterError;
pub(super) use stack::Stack;

use std::collections::BTreeMap;
use std::path::Path;

use super::EngineError;
use crate::gguf::{Gguf, GgufError, Tensor, Value};

const TYPE: &str = "general.type";
const ARCHITECTURE: &str = "general.architecture";
const KIND: &str = "adapter.type";
const ALPHA: &str = "adapter.lora.alpha";
const INVOCATION: &str = "adapter.alora.invocation_tokens";
const HALVES: [&str; 2] = [".lora_a", ".lora_b"];

type Result<T> = std::result::Result<T, AdapterError>;

/// An adapter file, checked as far as that is possible without its model. Clones share its bytes.
#[derive(Clone, Debug)]
pub struct Adapter {
    name: String,
    file: Gguf,
    architecture: String,
    alpha: f32,
    scale: f32,
    /// Names of the weights it changes, as its file has them, and the rank of each change.
    ranks: BTreeMap<String, usize>,
}

/// Adapters of a model, and which texts they act on.
#[derive(Clone, Debug, Default)]
pub enum Adapters {
    /// There are none.
    #[default]
    None,
    /// All of them act on every text.
    All(Vec<Adapter>),
    /// Each text names those that act on it ([`Sampling::adapter`](super::Sampling::adapter)), where many texts are
    /// written at once. Adapters of one name go together. Texts of an engine without slots have none.
    ByText(Vec<Adapter>),
}

impl Adapters {
    /// All of them.
    pub fn list(&self) -> &[Adapter] {
        match self {
            Self::None => &[],
            Self::All(list) | Self::ByText(list) => list,
        }
    }

    /// What texts can choose from: names in order, each once. A text chooses by the index.
    pub fn choices(&self) -> Vec<String> {
        let mut names: Vec<String> = Vec::new();
        match self {
            Self::None | Self::All(_) => {}
            Self::ByText(list) => {
                for adapter in list {
                    if !names.contains(&adapter.name) {
                        names.push(adapter.name.clone());
                    }
                }
            }
        }
        names
    }
}

impl Adapter {
    /// Opens an adapter file, whose name without its ending is the adapter's.
    ///
    /// # Errors
    /// As [`new`](Self::new).
    pub fn open(path: impl AsRef<Path>, scale: f32) -> Result<Self> {
        let path = path.as_ref();
        let stem = path.file_stem().unwrap_or(path.as_os_str());
        let name = stem.to_string_lossy();
        let file = Gguf::open(path).map_err(|error| of_file(&name, error))?;
        Self::new(&name, &file, scale)
    }

    /// An adapter from an open file. What it adds is multiplied by `scale`.
    ///
    /// # Errors
    /// A file that is no adapter, or holds what is not supported.
    pub fn new(name: &str, file: &Gguf, scale: f32) -> Result<Self> {
        let adapter = || name.to_owned();
        let meta = file.metadata();
        if !is_adapter(file) {
            let found = said(file, TYPE);
            return Err(AdapterError::NotAdapter { adapter: adapter(), found });
        }
        if !says(file, KIND, "lora") {
            let found = said(file, KIND);
            return Err(AdapterError::Kind { adapter: adapter(), found });
        }
        if meta.contains(INVOCATION) {
            return Err(AdapterError::Activated { adapter: adapter(), key: INVOCATION });
        }
        let wrong = |error| of_file(name, error);
        let architecture = meta.str(ARCHITECTURE).map_err(wrong)?.to_owned();
        let alpha = meta.optional::<f32>(ALPHA).map_err(wrong)?.unwrap_or(0.0);
        for (what, found) in [("alpha", alpha), ("scale", scale)] {
            if !found.is_finite() {
                return Err(AdapterError::Factor { adapter: adapter(), what, found });
            }
        }
        let ranks = pairs(name, file)?;
        Ok(Self { name: adapter(), file: file.clone(), architecture, alpha, scale, ranks })
    }

    /// The same adapter under another name.
    #[must_use]
    pub fn named(self, name: &str) -> Self {
        Self { name: name.to_owned(), ..self }
    }

    /// Its name.
    pub fn name(&self) -> &str {
        &self.name
    }

    /// The family of its model, as files name it.
    pub fn architecture(&self) -> &str {
        &self.architecture
    }

    /// What is divided by the rank of a change and multiplied with it; 0 for a factor of 1.
    pub fn alpha(&self) -> f32 {
        self.alpha
    }

    /// What its changes are multiplied by, besides.
    pub fn scale(&self) -> f32 {
        self.scale
    }

    /// Names of the weights it changes and the rank of each change.
    pub fn ranks(&self) -> &BTreeMap<String, usize> {
        &self.ranks
    }

    /// What a change of this rank is multiplied by.
    fn factor(&self, rank: usize) -> f32 {
        match self.alpha {
            0.0 => self.scale,
            alpha => self.scale * alpha / rank as f32,
        }
    }

    /// The matrices of a weight: [`HALVES`].
    fn matrices(&self, weight: &str) -> Result<[Tensor<'_>; 2]> {
        let half = |half| self.file.tensor(&format!("{weight}{half}"));
        let [first, second] = HALVES.map(|name| half(name).map_err(|e| of_file(&self.name, e)));
        Ok([first?, second?])
    }
}

/// Whether a file calls itself an adapter.
pub fn is_adapter(file: &Gguf) -> bool {
    says(file, TYPE, "adapter")
}

/// An error if a file is an adapter where a model is needed.
pub(super) fn check_is_model(file: &Gguf) -> super::Result<()> {
    match is_adapter(file) {
        true => Err(EngineError::IsAdapter { architecture: said(file, ARCHITECTURE) }),
        false => Ok(()),
    }
}

fn says(file: &Gguf, key: &str, what: &str) -> bool {
    file.metadata().get(key) == Some(Value::Str(what.as_bytes()))
}

/// What a file says under a key, in words.
fn said(file: &Gguf, key: &str) -> String {
    file.metadata().get(key).map_or_else(|| "not there".to_owned(), |value| value.to_string())
}

/// The weights that a file has pairs of matrices for, and their ranks.
fn pairs(name: &str, file: &Gguf) -> Result<BTreeMap<String, usize>> {
    let adapter = || name.to_owned();
    let mut ranks = BTreeMap::new();
    for tensor in file.tensors() {
        let found = tensor.name();
        let half = HALVES.iter().position(|half| found.ends_with(half));
        let Some((half, weight)) =
            half.and_then(|half| Some((half, found.strip_suffix(HALVES[half])?)))
        else {
            return Err(AdapterError::Tensor { adapter: adapter(), tensor: found.to_owned() });
        };
        let missing = format!("{weight}{}", HALVES[1 - half]);
        let Some(other) = file.find_tensor(&missing) else {
            let found = found.to_owned();
            return Err(AdapterError::Half { adapter: adapter(), found, missing });
        };
        if half == 1 {
            continue;
        }
        let wrong = |tensor: &Tensor<'_>, expected: String| AdapterError::Shape {
            adapter: adapter(),
            tensor: tensor.name().to_owned(),
            found: rows_first(tensor),
            expected,
        };
        let &[_, rank] = tensor.dims() else {
            return Err(wrong(&tensor, "a matrix".to_owned()));
        };
        match *other.dims() {
            [width, _] if width == rank => {}
            [_, _] => return Err(wrong(&other, format!("rows of the rank {rank}"))),
            _ => return Err(wrong(&other, "a matrix".to_owned())),
        }
        ranks.insert(weight.to_owned(), rank);
    }
    match ranks.is_empty() {
        true => Err(AdapterError::Empty { adapter: adapter() }),
        false => Ok(ranks),
    }
}

/// Dimensions with the number of rows first.
fn rows_first(tensor: &Tensor<'_>) -> Vec<usize> {
    tensor.dims().iter().rev().copied().collect()
}

fn of_file(name: &str, error: GgufError) -> AdapterError {
    AdapterError::File { adapter: name.to_owned(), error: Box::new(error) }
}
