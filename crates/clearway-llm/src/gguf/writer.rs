//! Writing GGUF files.
//!
//! The table of tensors comes before their data, but sizes follow from types and dimensions, so a
//! file is written front to back in one pass: a tensor is given as a closure that writes its bytes
//! when its turn comes. Multi-gigabyte files need no memory and no seeking.

use std::{
    collections::HashSet,
    fmt,
    io::{self, Read, Write},
};

use clearway_graph::DType;

use super::{
    error::{GgufError, printable},
    metadata::MAX_KEY_BYTES,
    part::{ALIGNMENT_KEY, DEFAULT_ALIGNMENT, MAX_ALIGNMENT, check_alignment},
    tensor::{MAX_DIMS, MAX_NAME_BYTES, file_type_id, tensor_bytes},
    value::{Value, ValueType},
};

/// Collects metadata and tensors, then writes the file.
///
/// ```
/// use clearway_graph::DType;
/// use clearway_llm::gguf::{Gguf, GgufWriter};
///
/// let mut writer = GgufWriter::new();
/// writer.set("tokenizer.ggml.tokens", &["a", "b"])?;
/// writer.tensor_bytes("bias", DType::F32, &[2], &[0; 8])?;
/// writer.tensor("scale", DType::F16, &[1000], |out| out.write_all(&[0; 2000]))?;
/// let mut file = Vec::new();
/// writer.write_to(&mut file)?;
/// assert_eq!(Gguf::from_bytes(file)?.tensor("scale")?.bytes().len(), 2000);
/// # Ok::<(), clearway_llm::gguf::GgufError>(())
/// ```
pub struct GgufWriter<'a> {
    version: u32,
    alignment: usize,
    pairs: Vec<u8>,
    keys: HashSet<String>,
    tensors: Vec<Pending<'a>>,
    names: HashSet<String>,
    /// Sum of all tensor sizes, each with the largest padding; kept within 64 bits.
    bound: u64,
}

type Producer<'a> = Box<dyn FnOnce(&mut dyn Write) -> io::Result<()> + 'a>;

struct Pending<'a> {
    name: String,
    type_id: u32,
    dims: Vec<u64>,
    bytes: u64,
    data: Producer<'a>,
}

impl<'a> GgufWriter<'a> {
    /// An empty file of version 3 with the usual alignment of 32 bytes.
    pub fn new() -> Self {
        Self {
            version: 3,
            alignment: DEFAULT_ALIGNMENT,
            pairs: Vec::new(),
            keys: HashSet::new(),
            tensors: Vec::new(),
            names: HashSet::new(),
            bound: 0,
        }
    }

    /// Chooses the version of the format, 2 or 3; in little-endian files they differ in nothing else.
    pub fn set_version(&mut self, version: u32) -> Result<(), GgufError> {
        if !matches!(version, 2 | 3) {
            return Err(GgufError::Version { version });
        }
        self.version = version;
        Ok(())
    }

    /// Adds a metadata value: a scalar, a string, or a slice of these (or of slices, and so on).
    /// `general.alignment` also sets the alignment of the tensors.
    pub fn set<T: Encode + ?Sized>(&mut self, key: &str, value: &T) -> Result<(), GgufError> {
        let mut bytes = Vec::new();
        value.encode(&mut bytes);
        self.pair(key, T::TYPE, &bytes)
    }

    /// Adds a metadata value read from another file.
    pub fn set_value(&mut self, key: &str, value: Value<'_>) -> Result<(), GgufError> {
        let mut bytes = Vec::new();
        value.encode(&mut bytes);
        self.pair(key, value.value_type(), &bytes)
    }

    /// Adds a tensor whose bytes `data` writes when the file is written. Dimensions are in file
    /// order, rows first.
    pub fn tensor(
        &mut self,
        name: &str,
        dtype: DType,
        dims: &[usize],
        data: impl FnOnce(&mut dyn Write) -> io::Result<()> + 'a,
    ) -> Result<(), GgufError> {
        check_name(name, MAX_NAME_BYTES)?;
        if dims.is_empty() || dims.len() > MAX_DIMS {
            return Err(GgufError::DimCount {
                tensor: printable(name.as_bytes()),
                count: u32::try_from(dims.len()).unwrap_or(u32::MAX),
            });
        }
        let dims: Vec<u64> = dims.iter().map(|&dim| dim as u64).collect();
        let type_id = file_type_id(name, dtype)?;
        let bytes = tensor_bytes(name, dtype, &dims)?;
        let bound =
            bytes.checked_add(MAX_ALIGNMENT).and_then(|padded| self.bound.checked_add(padded));
        let Some(bound) = bound else {
            return Err(GgufError::Dims {
                tensor: printable(name.as_bytes()),
                dims,
                reason: "the file would be too long",
            });
        };
        if !self.names.insert(name.to_owned()) {
            return Err(GgufError::DuplicateTensor { tensor: printable(name.as_bytes()) });
        }
        self.bound = bound;
        self.tensors.push(Pending {
            name: name.to_owned(),
            type_id,
            dims,
            bytes,
            data: Box::new(data),
        });
        Ok(())
    }

    /// Adds a tensor whose bytes are in memory.
    pub fn tensor_bytes(
        &mut self,
        name: &str,
        dtype: DType,
        dims: &[usize],
        bytes: &'a [u8],
    ) -> Result<(), GgufError> {
        self.tensor(name, dtype, dims, move |out| out.write_all(bytes))
    }

    /// Length of the file that [`write_to`](Self::write_to) will write.
    pub fn file_bytes(&self) -> u64 {
        let data = self.tensors.iter().fold(0, |end, tensor| self.after(end, tensor));
        self.header().len() as u64 + data
    }

    /// Writes the file and returns its length. What was written before an error is no GGUF file.
    pub fn write_to<W: Write>(self, out: W) -> Result<u64, GgufError> {
        let failed = |error| GgufError::Write { path: None, error };
        let mut out = Counted { out, written: 0 };
        out.write_all(&self.header()).map_err(failed)?;
        for tensor in self.tensors {
            let start = out.written;
            (tensor.data)(&mut out).map_err(failed)?;
            let written = out.written - start;
            if written != tensor.bytes {
                return Err(GgufError::TensorBytes {
                    tensor: printable(tensor.name.as_bytes()),
                    expected: tensor.bytes,
                    written,
                });
            }
            let padding = written.next_multiple_of(self.alignment as u64) - written;
            io::copy(&mut io::repeat(0).take(padding), &mut out).map_err(failed)?;
        }
        out.flush().map_err(failed)?;
        Ok(out.written)
    }

    fn pair(&mut self, key: &str, ty: ValueType, value: &[u8]) -> Result<(), GgufError> {
        check_name(key, MAX_KEY_BYTES)?;
        if self.keys.contains(key) {
            return Err(GgufError::DuplicateKey { key: printable(key.as_bytes()) });
        }
        if key == ALIGNMENT_KEY {
            let alignment = Value::decode(ty, value)
                .and_then(|value| value.as_integer())
                .and_then(|alignment| u64::try_from(alignment).ok());
            self.alignment = check_alignment(alignment.unwrap_or_default())?;
        }
        self.keys.insert(key.to_owned());
        key.encode(&mut self.pairs);
        self.pairs.extend(ty.id().to_le_bytes());
        self.pairs.extend(value);
        Ok(())
    }

    /// Everything before the data section, with the padding that ends it.
    pub(super) fn header(&self) -> Vec<u8> {
        let mut out = Vec::new();
        out.extend(b"GGUF");
        out.extend(self.version.to_le_bytes());
        out.extend((self.tensors.len() as u64).to_le_bytes());
        out.extend((self.keys.len() as u64).to_le_bytes());
        out.extend(&self.pairs);
        let mut offset = 0_u64;
        for tensor in &self.tensors {
            tensor.name.encode(&mut out);
            out.extend((tensor.dims.len() as u32).to_le_bytes());
            out.extend(tensor.dims.iter().flat_map(|dim| dim.to_le_bytes()));
            out.extend(tensor.type_id.to_le_bytes());
            out.extend(offset.to_le_bytes());
            offset = self.after(offset, tensor);
        }
        out.resize(out.len().next_multiple_of(self.alignment), 0);
        out
    }

    /// Offset behind a tensor that begins at `offset`. `tensor` has made sure that no sum overflows.
    fn after(&self, offset: u64, tensor: &Pending<'_>) -> u64 {
        offset + tensor.bytes.next_multiple_of(self.alignment as u64)
    }
}

impl Default for GgufWriter<'_> {
    fn default() -> Self {
        Self::new()
    }
}

impl fmt::Debug for GgufWriter<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "GgufWriter({} keys, {} tensors)", self.keys.len(), self.tensors.len())
    }
}

/// A value that can be written as metadata.
///
/// Implemented for all scalar types of the format, `str`, `String`, [`ByteStr`], and for arrays,
/// slices and vectors of all of these, nested too.
pub trait Encode {
    /// Type that is written before the value.
    const TYPE: ValueType;

    /// Appends the value as it stands in files, without its type.
    fn encode(&self, out: &mut Vec<u8>);
}

/// A string that need not be UTF-8, as tokens are.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ByteStr<'a>(pub &'a [u8]);

macro_rules! encode_scalars {
    ($($ty:ident $value:ident)*) => {$(
        impl Encode for $ty {
            const TYPE: ValueType = ValueType::$value;

            fn encode(&self, out: &mut Vec<u8>) {
                Value::$value(*self).encode(out);
            }
        }
    )*};
}

encode_scalars!(u8 U8 i8 I8 u16 U16 i16 I16 u32 U32 i32 I32 f32 F32 bool Bool u64 U64 i64 I64 f64 F64);

impl Encode for ByteStr<'_> {
    const TYPE: ValueType = ValueType::Str;

    fn encode(&self, out: &mut Vec<u8>) {
        Value::Str(self.0).encode(out);
    }
}

impl Encode for str {
    const TYPE: ValueType = ValueType::Str;

    fn encode(&self, out: &mut Vec<u8>) {
        ByteStr(self.as_bytes()).encode(out);
    }
}

impl Encode for String {
    const TYPE: ValueType = ValueType::Str;

    fn encode(&self, out: &mut Vec<u8>) {
        self.as_str().encode(out);
    }
}

impl<T: Encode + ?Sized> Encode for &T {
    const TYPE: ValueType = T::TYPE;

    fn encode(&self, out: &mut Vec<u8>) {
        (**self).encode(out);
    }
}

impl<T: Encode> Encode for [T] {
    const TYPE: ValueType = ValueType::Array;

    fn encode(&self, out: &mut Vec<u8>) {
        out.extend(T::TYPE.id().to_le_bytes());
        out.extend((self.len() as u64).to_le_bytes());
        for item in self {
            item.encode(out);
        }
    }
}

impl<T: Encode, const N: usize> Encode for [T; N] {
    const TYPE: ValueType = ValueType::Array;

    fn encode(&self, out: &mut Vec<u8>) {
        self.as_slice().encode(out);
    }
}

impl<T: Encode> Encode for Vec<T> {
    const TYPE: ValueType = ValueType::Array;

    fn encode(&self, out: &mut Vec<u8>) {
        self.as_slice().encode(out);
    }
}

/// Refuses names that readers refuse.
fn check_name(name: &str, limit: u64) -> Result<(), GgufError> {
    if name.len() as u64 > limit {
        return Err(GgufError::NameLength {
            name: printable(name.as_bytes()),
            len: name.len() as u64,
            limit,
        });
    }
    Ok(())
}

/// Counts what passes.
struct Counted<W> {
    out: W,
    written: u64,
}

impl<W: Write> Write for Counted<W> {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        let taken = self.out.write(bytes)?;
        self.written += taken as u64;
        Ok(taken)
    }

    fn flush(&mut self) -> io::Result<()> {
        self.out.flush()
    }
}
