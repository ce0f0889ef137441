//! Metadata values: twelve kinds of scalars and strings, and arrays of them.
//!
//! A value borrows from the file. Arrays are decoded while they are iterated over, so that a
//! vocabulary of 150 000 strings costs nothing until a tokenizer walks through it. Strings are
//! bytes: tokens need not be UTF-8.

use std::fmt;

use super::{
    cursor::Cursor,
    error::{GgufError, printable},
};

/// Deepest nesting of arrays that is followed. Known files have none; the format allows any.
pub(super) const MAX_DEPTH: usize = 8;

/// Type of a metadata value.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum ValueType {
    /// 8-bit unsigned integer.
    U8,
    /// 8-bit signed integer.
    I8,
    /// 16-bit unsigned integer.
    U16,
    /// 16-bit signed integer.
    I16,
    /// 32-bit unsigned integer.
    U32,
    /// 32-bit signed integer.
    I32,
    /// 32-bit float.
    F32,
    /// Boolean, one byte.
    Bool,
    /// String of bytes, usually UTF-8.
    Str,
    /// Array of values of one type.
    Array,
    /// 64-bit unsigned integer.
    U64,
    /// 64-bit signed integer.
    I64,
    /// 64-bit float.
    F64,
}

/// One metadata value, borrowed from the file.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum Value<'a> {
    /// 8-bit unsigned integer.
    U8(u8),
    /// 8-bit signed integer.
    I8(i8),
    /// 16-bit unsigned integer.
    U16(u16),
    /// 16-bit signed integer.
    I16(i16),
    /// 32-bit unsigned integer.
    U32(u32),
    /// 32-bit signed integer.
    I32(i32),
    /// 32-bit float.
    F32(f32),
    /// Boolean.
    Bool(bool),
    /// String of bytes, usually UTF-8.
    Str(&'a [u8]),
    /// Array of values of one type.
    Array(Array<'a>),
    /// 64-bit unsigned integer.
    U64(u64),
    /// 64-bit signed integer.
    I64(i64),
    /// 64-bit float.
    F64(f64),
}

/// An array of values of one type, decoded while iterating.
#[derive(Clone, Copy, PartialEq)]
pub struct Array<'a> {
    pub(super) elem: ValueType,
    pub(super) len: usize,
    pub(super) bytes: &'a [u8],
}

impl ValueType {
    /// Every type, in the order of the numbers they have in files.
    pub const ALL: [Self; 13] = [
        Self::U8,
        Self::I8,
        Self::U16,
        Self::I16,
        Self::U32,
        Self::I32,
        Self::F32,
        Self::Bool,
        Self::Str,
        Self::Array,
        Self::U64,
        Self::I64,
        Self::F64,
    ];

    /// Number of the type in files.
    pub fn id(self) -> u32 {
        self as u32
    }

    /// Lower-case name.
    pub const fn name(self) -> &'static str {
        match self {
            Self::U8 => "u8",
            Self::I8 => "i8",
            Self::U16 => "u16",
            Self::I16 => "i16",
            Self::U32 => "u32",
            Self::I32 => "i32",
            Self::F32 => "f32",
            Self::Bool => "bool",
            Self::Str => "string",
            Self::Array => "array",
            Self::U64 => "u64",
            Self::I64 => "i64",
            Self::F64 => "f64",
        }
    }

    /// Bytes of a value of fixed size; of the length that begins a string or an array otherwise.
    pub(super) const fn min_bytes(self) -> usize {
        match self {
            Self::U8 | Self::I8 | Self::Bool => 1,
            Self::U16 | Self::I16 => 2,
            Self::U32 | Self::I32 | Self::F32 => 4,
            Self::U64 | Self::I64 | Self::F64 | Self::Str => 8,
            Self::Array => 12,
        }
    }

    pub(super) fn read(cursor: &mut Cursor<'_>) -> Result<Self, GgufError> {
        let at = cursor.at() as u64;
        let id = cursor.u32("a metadata value type")?;
        usize::try_from(id)
            .ok()
            .and_then(|id| Self::ALL.get(id).copied())
            .ok_or(GgufError::ValueType { id, at })
    }
}

impl fmt::Display for ValueType {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.name())
    }
}

impl<'a> Value<'a> {
    /// Type of the value.
    pub fn value_type(&self) -> ValueType {
        match self {
            Self::U8(_) => ValueType::U8,
            Self::I8(_) => ValueType::I8,
            Self::U16(_) => ValueType::U16,
            Self::I16(_) => ValueType::I16,
            Self::U32(_) => ValueType::U32,
            Self::I32(_) => ValueType::I32,
            Self::F32(_) => ValueType::F32,
            Self::Bool(_) => ValueType::Bool,
            Self::Str(_) => ValueType::Str,
            Self::Array(_) => ValueType::Array,
            Self::U64(_) => ValueType::U64,
            Self::I64(_) => ValueType::I64,
            Self::F64(_) => ValueType::F64,
        }
    }

    /// Type of the value in words, for messages.
    pub(super) fn type_words(&self) -> String {
        match self {
            Self::Array(a) => format!("array of {} {}", a.len, a.elem),
            other => other.value_type().to_string(),
        }
    }

    /// The number, when the value is an integer of any width.
    pub fn as_integer(&self) -> Option<i128> {
        Some(match *self {
            Self::U8(v) => v.into(),
            Self::I8(v) => v.into(),
            Self::U16(v) => v.into(),
            Self::I16(v) => v.into(),
            Self::U32(v) => v.into(),
            Self::I32(v) => v.into(),
            Self::U64(v) => v.into(),
            Self::I64(v) => v.into(),
            _ => return None,
        })
    }

    /// Reads and checks a value; `depth` counts the arrays it lies in.
    pub(super) fn read(
        cursor: &mut Cursor<'a>,
        ty: ValueType,
        depth: usize,
    ) -> Result<Self, GgufError> {
        const WHAT: &str = "a metadata value";
        Ok(match ty {
            ValueType::U8 => Self::U8(u8::from_le_bytes(cursor.array(WHAT)?)),
            ValueType::I8 => Self::I8(i8::from_le_bytes(cursor.array(WHAT)?)),
            ValueType::U16 => Self::U16(u16::from_le_bytes(cursor.array(WHAT)?)),
            ValueType::I16 => Self::I16(i16::from_le_bytes(cursor.array(WHAT)?)),
            ValueType::U32 => Self::U32(u32::from_le_bytes(cursor.array(WHAT)?)),
            ValueType::I32 => Self::I32(i32::from_le_bytes(cursor.array(WHAT)?)),
            ValueType::F32 => Self::F32(f32::from_le_bytes(cursor.array(WHAT)?)),
            ValueType::U64 => Self::U64(u64::from_le_bytes(cursor.array(WHAT)?)),
            ValueType::I64 => Self::I64(i64::from_le_bytes(cursor.array(WHAT)?)),
            ValueType::F64 => Self::F64(f64::from_le_bytes(cursor.array(WHAT)?)),
            ValueType::Bool => {
                let at = cursor.at();
                let [byte] = cursor.array(WHAT)?;
                check_bools(&[byte], at)?;
                Self::Bool(byte == 1)
            }
            ValueType::Str => Self::Str(cursor.string("a metadata string")?),
            ValueType::Array => Self::Array(Array::read(cursor, depth)?),
        })
    }

    /// Decodes the bytes of a value that [`Value::read`] has accepted, without walking through an
    /// array again. `None` only when the file was changed since.
    pub(super) fn decode(ty: ValueType, bytes: &'a [u8]) -> Option<Self> {
        let mut cursor = Cursor::new(bytes);
        if ty != ValueType::Array {
            return Self::read(&mut cursor, ty, 0).ok();
        }
        let elem = ValueType::read(&mut cursor).ok()?;
        let len = cursor.count("array length", elem.min_bytes()).ok()?;
        Some(Self::Array(Array {
            elem,
            len: usize::try_from(len).ok()?,
            bytes: bytes.get(cursor.at()..)?,
        }))
    }

    /// Appends the value as it stands in files, without its type.
    pub(super) fn encode(&self, out: &mut Vec<u8>) {
        match *self {
            Self::U8(v) => out.push(v),
            Self::I8(v) => out.extend(v.to_le_bytes()),
            Self::U16(v) => out.extend(v.to_le_bytes()),
            Self::I16(v) => out.extend(v.to_le_bytes()),
            Self::U32(v) => out.extend(v.to_le_bytes()),
            Self::I32(v) => out.extend(v.to_le_bytes()),
            Self::F32(v) => out.extend(v.to_le_bytes()),
            Self::U64(v) => out.extend(v.to_le_bytes()),
            Self::I64(v) => out.extend(v.to_le_bytes()),
            Self::F64(v) => out.extend(v.to_le_bytes()),
            Self::Bool(v) => out.push(v.into()),
            Self::Str(v) => {
                out.extend((v.len() as u64).to_le_bytes());
                out.extend(v);
            }
            Self::Array(a) => {
                out.extend(a.elem.id().to_le_bytes());
                out.extend((a.len as u64).to_le_bytes());
                out.extend(a.bytes);
            }
        }
    }
}

/// One line: numbers plainly, strings quoted and cut, arrays by their first elements.
impl fmt::Display for Value<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        const SHOWN: usize = 6;
        match self {
            Self::F32(v) => write!(f, "{v}"),
            Self::F64(v) => write!(f, "{v}"),
            Self::Bool(v) => write!(f, "{v}"),
            Self::Str(v) => write!(f, "\"{}\"", printable(v)),
            Self::Array(a) => {
                write!(f, "{} x {} [", a.len, a.elem)?;
                for (i, v) in a.iter().take(SHOWN).enumerate() {
                    f.write_str(if i == 0 { "" } else { ", " })?;
                    match v {
                        // Not further down, or nesting would multiply the line's length.
                        Self::Array(inner) => write!(f, "[{} x {}]", inner.len, inner.elem)?,
                        scalar => scalar.fmt(f)?,
                    }
                }
                f.write_str(if a.len > SHOWN { ", …]" } else { "]" })
            }
            other => write!(f, "{}", other.as_integer().unwrap_or_default()),
        }
    }
}

impl<'a> Array<'a> {
    /// Type of the elements.
    pub fn element_type(&self) -> ValueType {
        self.elem
    }

    /// Number of elements.
    pub fn len(&self) -> usize {
        self.len
    }

    /// True without elements.
    pub fn is_empty(&self) -> bool {
        self.len == 0
    }

    /// The elements in order, decoded one by one.
    pub fn iter(&self) -> impl Iterator<Item = Value<'a>> + Clone + use<'a> {
        let mut cursor = Cursor::new(self.bytes);
        let elem = self.elem;
        (0..self.len).map_while(move |_| Value::read(&mut cursor, elem, 1).ok())
    }

    fn read(cursor: &mut Cursor<'a>, depth: usize) -> Result<Self, GgufError> {
        if depth >= MAX_DEPTH {
            return Err(GgufError::Depth { limit: MAX_DEPTH, at: cursor.at() as u64 });
        }
        let elem = ValueType::read(cursor)?;
        let len = cursor.count("array length", elem.min_bytes())?;
        let start = cursor.at();
        match elem {
            ValueType::Str => {
                for _ in 0..len {
                    cursor.string("a metadata string")?;
                }
            }
            ValueType::Array => {
                for _ in 0..len {
                    Self::read(cursor, depth + 1)?;
                }
            }
            // `count` has compared this product with the rest of the file.
            fixed => {
                let bytes = cursor.take(len * fixed.min_bytes() as u64, "a metadata array")?;
                if fixed == ValueType::Bool {
                    check_bools(bytes, start)?;
                }
            }
        }
        let bytes = cursor.since(start);
        Ok(Self {
            elem,
            // Elements take at least a byte each, and all are in memory.
            len: usize::try_from(len).unwrap_or(bytes.len()),
            bytes,
        })
    }
}

/// Shows what the array is, never its (possibly hundred thousands of) elements.
impl fmt::Debug for Array<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Array({} x {})", self.len, self.elem)
    }
}

fn check_bools(bytes: &[u8], start: usize) -> Result<(), GgufError> {
    match bytes.iter().position(|&b| b > 1) {
        None => Ok(()),
        Some(i) => Err(GgufError::Bool { value: bytes[i], at: (start + i) as u64 }),
    }
}
