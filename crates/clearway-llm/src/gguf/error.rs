//! What can be wrong with a GGUF file, a lookup in it, or the writing of one.
//!
//! Messages carry the cause in their text and not as a `source`, so printing the error alone, or
//! as a chain, says everything once.

use std::{io, path::PathBuf};

use clearway_graph::DType;

/// Why a GGUF file could not be read, searched or written.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum GgufError {
    /// The operating system refused to open or map the file.
    #[error("cannot read {}: {error}", path.display())]
    Io {
        /// File that was asked for.
        path: PathBuf,
        /// What the system said.
        error: io::Error,
    },
    /// Something is wrong inside the named file.
    #[error("{}: {error}", path.display())]
    InFile {
        /// The file.
        path: PathBuf,
        /// What is wrong in it.
        error: Box<Self>,
    },
    /// The first four bytes are not `GGUF`.
    #[error("not a GGUF file (it begins with \"{found}\" instead of \"GGUF\")")]
    NotGguf {
        /// First bytes of the file, escaped.
        found: String,
    },
    /// The file was written for big-endian machines.
    #[error("big-endian GGUF files are not supported; convert the model again as little-endian")]
    BigEndian,
    /// A version of the format that this reader does not know.
    #[error(
        "GGUF version {version} is not supported (only 2 and 3 are); convert the model again with a current converter"
    )]
    Version {
        /// Version number in the file.
        version: u32,
    },
    /// The file is shorter than its own lengths say.
    #[error(
        "the file ends inside {what}: {need} bytes are needed at byte {at}, the file has {len}; it may be an incomplete download"
    )]
    Truncated {
        /// What was being read.
        what: &'static str,
        /// Where it begins.
        at: u64,
        /// Bytes it takes.
        need: u64,
        /// Bytes in the file.
        len: u64,
    },
    /// A count that cannot be true, because its items would not fit into the rest of the file.
    #[error("the {what} is {count}, more than the {remaining} bytes that follow can hold")]
    Count {
        /// Which count.
        what: &'static str,
        /// Its value.
        count: u64,
        /// Bytes left in the file.
        remaining: u64,
    },
    /// More entries of a table than any model has.
    #[error("the {what} is {count}; more than {limit} are not supported")]
    TooMany {
        /// Which count.
        what: &'static str,
        /// Its value.
        count: u64,
        /// Largest accepted count.
        limit: u64,
    },
    /// A key or tensor name longer than the format allows.
    #[error("the {what} at byte {at} has {len} bytes, more than the {limit} allowed")]
    TooLong {
        /// Key or tensor name.
        what: &'static str,
        /// Where it is.
        at: u64,
        /// Its length.
        len: u64,
        /// Longest accepted length.
        limit: u64,
    },
    /// A key or tensor name that is not UTF-8.
    #[error("the {what} at byte {at} is not UTF-8: \"{text}\"")]
    NameNotUtf8 {
        /// Key or tensor name.
        what: &'static str,
        /// Where it is.
        at: u64,
        /// The name with its invalid bytes replaced.
        text: String,
    },
    /// A metadata key occurs twice.
    #[error("metadata key \"{key}\" occurs twice")]
    DuplicateKey {
        /// The key.
        key: String,
    },
    /// A metadata value of a type the format does not have.
    #[error("unknown metadata value type {id} at byte {at}")]
    ValueType {
        /// Type number in the file.
        id: u32,
        /// Where it is.
        at: u64,
    },
    /// A boolean that is neither 0 nor 1.
    #[error("the boolean at byte {at} is {value}, neither 0 nor 1")]
    Bool {
        /// Its value.
        value: u8,
        /// Where it is.
        at: u64,
    },
    /// Arrays nested deeper than the reader follows.
    #[error("metadata arrays are nested more than {limit} deep at byte {at}")]
    Depth {
        /// Deepest nesting accepted.
        limit: usize,
        /// Where the limit was passed.
        at: u64,
    },
    /// `general.alignment` is not a usable alignment.
    #[error("alignment {alignment} is not a power of two between 1 and {limit}")]
    Alignment {
        /// Value in the file.
        alignment: u64,
        /// Largest accepted alignment.
        limit: u64,
    },
    /// A key that is needed is not in the file.
    #[error("metadata key \"{key}\" is missing")]
    MissingKey {
        /// The key.
        key: String,
    },
    /// A key holds another type than the one asked for.
    #[error("metadata key \"{key}\" should be {expected}, but is {found}")]
    WrongType {
        /// The key.
        key: String,
        /// Type asked for.
        expected: &'static str,
        /// Type in the file.
        found: String,
    },
    /// A key holds a number that the type asked for cannot hold.
    #[error("metadata key \"{key}\" should be {expected}, but {value} is out of range")]
    OutOfRange {
        /// The key.
        key: String,
        /// Type asked for.
        expected: &'static str,
        /// The number in the file.
        value: String,
    },
    /// A string that must be text is not UTF-8.
    #[error("metadata key \"{key}\" holds text that is not UTF-8")]
    TextNotUtf8 {
        /// The key.
        key: String,
    },
    /// Two tensors have the same name.
    #[error("tensor \"{tensor}\" occurs twice")]
    DuplicateTensor {
        /// The name.
        tensor: String,
    },
    /// A tensor that is needed is not in the file.
    #[error("tensor \"{tensor}\" is missing")]
    MissingTensor {
        /// The name.
        tensor: String,
    },
    /// Dimensions that describe no tensor.
    #[error("tensor \"{tensor}\" has dimensions {dims:?}: {reason}")]
    Dims {
        /// The name.
        tensor: String,
        /// Dimensions in file order.
        dims: Vec<u64>,
        /// What is wrong with them.
        reason: &'static str,
    },
    /// More dimensions than the format allows, or none.
    #[error("tensor \"{tensor}\" has {count} dimensions; 1 to 4 are possible")]
    DimCount {
        /// The name.
        tensor: String,
        /// Number of dimensions in the file.
        count: u32,
    },
    /// A row that is not a whole number of quantised blocks.
    #[error("tensor \"{tensor}\": rows of {row} elements are not whole {dtype} blocks of {block}")]
    RowBlocks {
        /// The name.
        tensor: String,
        /// Its type.
        dtype: DType,
        /// Elements in a row.
        row: u64,
        /// Elements in a block.
        block: usize,
    },
    /// A tensor of a type that Clearway does not compute with.
    #[error(
        "tensor \"{tensor}\" has type {type_name}, which is not supported; use a file with f32, f16, bf16, q4_0 to q8_0, q2_k to q6_k, iq4_nl, iq4_xs or mxfp4 weights"
    )]
    UnsupportedType {
        /// The name.
        tensor: String,
        /// ggml's name of the type, or its number when it has none.
        type_name: String,
    },
    /// A tensor that does not begin on the file's alignment.
    #[error("tensor \"{tensor}\" begins at offset {offset}, not a multiple of {alignment}")]
    Misaligned {
        /// The name.
        tensor: String,
        /// Offset from the start of the data section.
        offset: u64,
        /// Alignment of the file.
        alignment: u64,
    },
    /// A tensor whose bytes are not all in the file.
    #[error(
        "tensor \"{tensor}\" takes {bytes} bytes at offset {offset} of the data section, which has {available}; the file may be an incomplete download"
    )]
    TensorRange {
        /// The name.
        tensor: String,
        /// Offset from the start of the data section.
        offset: u64,
        /// Bytes it takes.
        bytes: u64,
        /// Bytes in the data section.
        available: u64,
    },
    /// Two tensors share bytes.
    #[error("tensors \"{first}\" and \"{second}\" overlap")]
    Overlap {
        /// The tensor that begins first.
        first: String,
        /// The tensor that begins before it ends.
        second: String,
    },
    /// A part of a split model whose name does not say so, so the others cannot be found.
    #[error("part {part} of {count} of a split model must have a name that ends in \"{expected}\"")]
    SplitName {
        /// Number of this part, from 1.
        part: u64,
        /// Number of parts.
        count: u64,
        /// End of the name that would fit.
        expected: String,
    },
    /// A part of a split model given in memory without the others.
    #[error("this is one of {count} parts of a split model, and {given} were given")]
    SplitParts {
        /// Number of parts the metadata speaks of.
        count: u64,
        /// Number of parts given.
        given: u64,
    },
    /// A part of a split model is not there or cannot be read.
    #[error("part {part} of {count} of the split model is missing: {}: {error}", path.display())]
    SplitMissing {
        /// Number of the part, from 1.
        part: u64,
        /// Number of parts.
        count: u64,
        /// Where it should be.
        path: PathBuf,
        /// What the system said.
        error: io::Error,
    },
    /// Metadata about the split that contradicts itself.
    #[error(
        "split.no = {no} and split.count = {count} describe no part of a split model of at most {limit} parts"
    )]
    SplitNumbers {
        /// Value of `split.no`, which counts from 0.
        no: u64,
        /// Value of `split.count`.
        count: u64,
        /// Most parts of a model.
        limit: u64,
    },
    /// Metadata about the split that contradicts the part's place or another part.
    #[error("part {part} of the split model has {key} = {found}, but {expected} was expected")]
    SplitMismatch {
        /// Number of the part, from 1.
        part: u64,
        /// The key.
        key: &'static str,
        /// Its value.
        found: String,
        /// The value that would fit.
        expected: String,
    },
    /// The parts of a split model do not hold the number of tensors they promise.
    #[error("the split model promises {expected} tensors, but its parts hold {found}")]
    SplitTensors {
        /// Value of `split.tensors.count`.
        expected: u64,
        /// Tensors found.
        found: u64,
    },
    /// Writing failed.
    #[error("cannot write {}: {error}", path.as_ref().map_or("the GGUF file".into(), |p| p.display().to_string()))]
    Write {
        /// File being written, where there is one.
        path: Option<PathBuf>,
        /// What the system said.
        error: io::Error,
    },
    /// A tensor was given more or fewer bytes than its type and dimensions take.
    #[error("tensor \"{tensor}\" takes {expected} bytes, but {written} were given")]
    TensorBytes {
        /// The name.
        tensor: String,
        /// Bytes that its type and dimensions take.
        expected: u64,
        /// Bytes that its producer gave, as far as they were counted.
        written: u64,
    },
    /// A key or tensor name too long to be written.
    #[error("name \"{name}\" has {len} bytes, more than the {limit} allowed")]
    NameLength {
        /// The name, cut short.
        name: String,
        /// Its length.
        len: u64,
        /// Longest accepted length.
        limit: u64,
    },
    /// A type that has no number in the format.
    #[error("tensor \"{tensor}\" has type {dtype}, which GGUF files cannot hold")]
    NotInFormat {
        /// The name.
        tensor: String,
        /// The type.
        dtype: DType,
    },
    /// A name that is not in a built-in table.
    #[error("unknown {what} \"{name}\"; known are {known}")]
    UnknownName {
        /// What was looked up.
        what: &'static str,
        /// The name asked for.
        name: String,
        /// The names that exist.
        known: String,
    },
    /// A shape of which no synthetic model can be made.
    #[error("no synthetic model of shape \"{shape}\": {reason}")]
    NoSynth {
        /// Name of the shape.
        shape: String,
        /// What is in the way.
        reason: String,
    },
}

/// Bytes from a file as one short printable line: hostile names must neither fill the screen nor
/// steer the terminal.
pub(super) fn printable(bytes: &[u8]) -> String {
    const LIMIT: usize = 80;
    let cut = &bytes[..bytes.len().min(4 * LIMIT)];
    let text = String::from_utf8_lossy(cut);
    let mut shown = String::new();
    for c in text.chars().take(LIMIT) {
        match c {
            // Shown in double quotes, where it needs no escape.
            '\'' => shown.push(c),
            _ => shown.extend(c.escape_debug()),
        }
    }
    if cut.len() < bytes.len() || text.chars().count() > LIMIT {
        shown.push('…');
    }
    shown
}
