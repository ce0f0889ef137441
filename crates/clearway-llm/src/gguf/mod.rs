//! GGUF files: reading, writing, and synthetic models.
//!
//! A GGUF file is a model in one piece: named values (hyper-parameters, vocabulary, chat template)
//! and named tensors. [`Gguf`] maps a file, or all parts of a split one, and checks every length
//! and offset before it is used; after a successful open all tensor ranges lie inside the file and
//! apart from each other, names are unique, and no lookup can fail on the file's structure.
//! Nothing is copied: tensors and metadata borrow from the mapped pages.
//!
//! [`GgufWriter`] writes such files from byte producers, without holding tensors in memory;
//! [`synth`] uses it to make random-weight models of real shapes for speed tests.

mod cursor;
mod cut;
mod error;
mod lookup;
mod metadata;
mod part;
mod source;
mod split;
pub mod synth;
mod tensor;
mod types;
mod value;
mod writer;

use std::{path::Path, sync::Arc};

use clearway_graph::DType;

pub(crate) use self::cut::Making;
pub use self::{
    error::GgufError,
    lookup::{FromValue, Numbers, Strings, StringsIter},
    metadata::Metadata,
    tensor::Tensor,
    types::tensor_types,
    value::{Array, Value, ValueType},
    writer::{ByteStr, Encode, GgufWriter},
};
use self::{
    error::printable,
    metadata::sorted_index,
    part::Part,
    source::Source,
    tensor::{TensorInfo, check_apart},
};

/// An open GGUF model, of one file or of several parts. Clones share its bytes.
///
/// ```
/// use clearway_llm::gguf::{Gguf, GgufWriter};
///
/// let mut writer = GgufWriter::new();
/// writer.set("general.architecture", "llama")?;
/// writer.set("llama.block_count", &30_u32)?;
/// let mut file = Vec::new();
/// writer.write_to(&mut file)?;
///
/// let model = Gguf::from_bytes(file)?;
/// assert_eq!(model.metadata().str("general.architecture")?, "llama");
/// assert_eq!(model.metadata().u32("llama.block_count")?, 30);
/// # Ok::<(), clearway_llm::gguf::GgufError>(())
/// ```
#[derive(Clone, Debug)]
pub struct Gguf {
    version: u32,
    sources: Vec<Source>,
    metadata: Metadata,
    tensors: Vec<Placed>,
    /// Indices of `tensors`, sorted by name.
    by_name: Vec<usize>,
}

/// How long a file must be that begins like this one: without and with the padding that may end it. `None` if more of
/// it is needed to know.
#[cfg(feature = "fetch")]
pub(crate) fn whole_bytes(beginning: &Path) -> Result<Option<(u64, u64)>, GgufError> {
    let source = Source::map(beginning)
        .map_err(|error| GgufError::Io { path: beginning.to_owned(), error })?;
    part::whole_bytes(source)
}

/// A tensor and the part it lies in.
#[derive(Clone, Debug)]
struct Placed {
    info: TensorInfo,
    part: usize,
}

impl Gguf {
    /// Maps a file and reads its tables; for a part of a split model, those of all parts.
    ///
    /// The files must not be changed while they are open. Changed contents give wrong numbers; a
    /// file cut short ends the process on most systems when a lost page is touched.
    pub fn open(path: impl AsRef<Path>) -> Result<Self, GgufError> {
        let path = path.as_ref();
        let parts = split::open_all(path)?;
        Self::assemble(parts)
            .map_err(|error| GgufError::InFile { path: path.to_owned(), error: Box::new(error) })
    }

    /// Reads a model of one file from memory.
    pub fn from_bytes(bytes: impl Into<Arc<[u8]>>) -> Result<Self, GgufError> {
        Self::from_parts([bytes])
    }

    /// Reads a split model from memory, its parts in order.
    pub fn from_parts<B: Into<Arc<[u8]>>>(
        parts: impl IntoIterator<Item = B>,
    ) -> Result<Self, GgufError> {
        let parts = parts
            .into_iter()
            .map(|bytes| Part::read(Source::Memory(bytes.into())))
            .collect::<Result<Vec<_>, _>>()?;
        split::check_all(&parts)?;
        Self::assemble(parts)
    }

    /// Version of the format, 2 or 3.
    pub fn version(&self) -> u32 {
        self.version
    }

    /// The model's metadata; of a split model, that of its first part.
    pub fn metadata(&self) -> &Metadata {
        &self.metadata
    }

    /// Number of files.
    pub fn parts(&self) -> usize {
        self.files().count()
    }

    fn files(&self) -> impl Iterator<Item = &Source> {
        self.sources.iter().filter(|source| source.is_file())
    }

    /// Bytes of all files together.
    pub fn file_bytes(&self) -> u64 {
        self.files().map(|source| source.len() as u64).sum()
    }

    /// Bytes of all tensors together.
    pub fn tensor_bytes(&self) -> u64 {
        self.tensors.iter().map(|Placed { info, .. }| (info.end - info.start) as u64).sum()
    }

    /// All tensors, in file order.
    pub fn tensors(&self) -> impl ExactSizeIterator<Item = Tensor<'_>> {
        self.tensors.iter().map(|placed| self.tensor_at(placed))
    }

    /// The tensor of a name; its absence is an error that names it.
    pub fn tensor(&self, name: &str) -> Result<Tensor<'_>, GgufError> {
        self.find_tensor(name)
            .ok_or_else(|| GgufError::MissingTensor { tensor: printable(name.as_bytes()) })
    }

    /// The tensor of a name that may be absent.
    pub fn find_tensor(&self, name: &str) -> Option<Tensor<'_>> {
        let at = self.by_name.binary_search_by(|&i| (*self.tensors[i].info.name).cmp(name)).ok()?;
        Some(self.tensor_at(&self.tensors[self.by_name[at]]))
    }

    /// The values of a tensor of f32; `None` where there is none of this name.
    pub fn floats(&self, name: &str) -> Option<Vec<f32>> {
        let tensor = self.find_tensor(name).filter(|tensor| tensor.dtype() == DType::F32)?;
        Some(tensor.bytes().as_chunks().0.iter().map(|&bytes| f32::from_le_bytes(bytes)).collect())
    }

    /// Lets go of the memory that a tensor's pages take, where the file is mapped: for tensors that
    /// have been copied elsewhere. Reading them again reads the file again.
    pub fn release(&self, tensor: &Tensor<'_>) {
        let start = tensor.bytes().as_ptr().addr();
        for source in self.files() {
            let first = source.as_ptr().addr();
            if (first..first + source.len()).contains(&start) {
                source.release(start - first..start - first + tensor.bytes().len());
            }
        }
    }

    fn tensor_at<'a>(&'a self, placed: &'a Placed) -> Tensor<'a> {
        let info = &placed.info;
        Tensor { info, source: &self.sources[placed.part] }
    }

    /// Joins parts whose split keys have been checked.
    fn assemble(parts: Vec<Part>) -> Result<Self, GgufError> {
        let mut sources = Vec::with_capacity(parts.len());
        let mut tensors = Vec::new();
        let mut first = None;
        for (i, part) in parts.into_iter().enumerate() {
            check_apart(&part.tensors)?;
            tensors.extend(part.tensors.into_iter().map(|info| Placed { info, part: i }));
            sources.push(part.source);
            first.get_or_insert((part.version, part.metadata));
        }
        let by_name = sorted_index(&tensors, |placed| &placed.info.name)
            .map_err(|tensor| GgufError::DuplicateTensor { tensor })?;
        let (version, metadata) = first.ok_or(GgufError::SplitParts { count: 1, given: 0 })?;
        Ok(Self { version, sources, metadata, tensors, by_name })
    }
}
