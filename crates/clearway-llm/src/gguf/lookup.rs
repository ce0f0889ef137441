//! Conversion of metadata values to the types callers ask for, and the typed array views.

use std::marker::PhantomData;

use super::{
    cursor::Cursor,
    value::{Array, Value, ValueType},
};

/// A type that [`Metadata::required`](super::Metadata::required) and
/// [`Metadata::optional`](super::Metadata::optional) can look up.
///
/// Implemented for `u16`, `u32`, `u64`, `usize`, `i32`, `i64`, `f32`, `bool`, `&str`, `&[u8]` (an
/// array of bytes), [`Strings`], [`Numbers`] and [`Array`].
pub trait FromValue<'a>: Sized + sealed::Sealed {
    /// The type in words, for error messages.
    const EXPECTED: &'static str;

    /// Converts a value, or says what is in the way.
    #[doc(hidden)]
    fn from_value(value: Value<'a>) -> Result<Self, Mismatch>;
}

/// Why a value is not of the type asked for.
#[doc(hidden)]
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Mismatch {
    /// Another type.
    Type,
    /// The right kind of number, too large or too small.
    Range(i128),
    /// Bytes that are not text.
    Utf8,
}

/// An array of strings, decoded while iterating. Strings are bytes: tokens need not be UTF-8.
#[derive(Clone, Copy, Debug)]
pub struct Strings<'a>(Array<'a>);

/// An array of numbers, decoded on access. `T` is `i32`, `u32` or `f32`; the file may hold another
/// width, and every number is known to fit.
#[derive(Clone, Copy, Debug)]
pub struct Numbers<'a, T> {
    array: Array<'a>,
    number: PhantomData<T>,
}

impl<'a> Strings<'a> {
    /// Number of strings.
    pub fn len(&self) -> usize {
        self.0.len
    }

    /// True without strings.
    pub fn is_empty(&self) -> bool {
        self.0.len == 0
    }

    /// The strings in order.
    pub fn iter(&self) -> StringsIter<'a> {
        StringsIter { cursor: Cursor::new(self.0.bytes), left: self.0.len }
    }
}

impl<'a> IntoIterator for Strings<'a> {
    type Item = &'a [u8];
    type IntoIter = StringsIter<'a>;

    fn into_iter(self) -> StringsIter<'a> {
        self.iter()
    }
}

/// Iterator over the strings of a [`Strings`].
#[derive(Clone)]
pub struct StringsIter<'a> {
    cursor: Cursor<'a>,
    left: usize,
}

impl<'a> Iterator for StringsIter<'a> {
    type Item = &'a [u8];

    fn next(&mut self) -> Option<&'a [u8]> {
        self.left = self.left.checked_sub(1)?;
        self.cursor.string("a metadata string").ok()
    }

    fn size_hint(&self) -> (usize, Option<usize>) {
        (self.left, Some(self.left))
    }
}

impl ExactSizeIterator for StringsIter<'_> {}

impl<'a, T: FromValue<'a>> Numbers<'a, T> {
    /// Number of numbers.
    pub fn len(&self) -> usize {
        self.array.len
    }

    /// True without numbers.
    pub fn is_empty(&self) -> bool {
        self.array.len == 0
    }

    /// The number at an index.
    pub fn get(&self, index: usize) -> Option<T> {
        let width = self.array.elem.min_bytes();
        let start = index.checked_mul(width)?;
        let bytes = self.array.bytes.get(start..start.checked_add(width)?)?;
        T::from_value(Value::decode(self.array.elem, bytes)?).ok()
    }

    /// The numbers in order.
    pub fn iter(&self) -> impl Iterator<Item = T> + use<'a, T> {
        self.array.iter().map_while(|value| T::from_value(value).ok())
    }

    /// The numbers in a vector.
    pub fn to_vec(&self) -> Vec<T> {
        let mut out = Vec::with_capacity(self.array.len);
        out.extend(self.iter());
        out
    }
}

mod sealed {
    pub trait Sealed {}
}

macro_rules! integers {
    ($($ty:ident)*) => {$(
        impl sealed::Sealed for $ty {}
        impl FromValue<'_> for $ty {
            const EXPECTED: &'static str = stringify!($ty);

            fn from_value(value: Value<'_>) -> Result<Self, Mismatch> {
                let number = value.as_integer().ok_or(Mismatch::Type)?;
                Self::try_from(number).map_err(|_| Mismatch::Range(number))
            }
        }
    )*};
}

integers!(u16 u32 u64 usize i32 i64);

impl sealed::Sealed for f32 {}
impl FromValue<'_> for f32 {
    const EXPECTED: &'static str = "f32";

    fn from_value(value: Value<'_>) -> Result<Self, Mismatch> {
        match value {
            Value::F32(v) => Ok(v),
            Value::F64(v) => Ok(v as Self),
            _ => Err(Mismatch::Type),
        }
    }
}

impl sealed::Sealed for bool {}
impl FromValue<'_> for bool {
    const EXPECTED: &'static str = "bool";

    fn from_value(value: Value<'_>) -> Result<Self, Mismatch> {
        match value {
            Value::Bool(v) => Ok(v),
            _ => Err(Mismatch::Type),
        }
    }
}

impl sealed::Sealed for &str {}
impl<'a> FromValue<'a> for &'a str {
    const EXPECTED: &'static str = "string";

    fn from_value(value: Value<'a>) -> Result<Self, Mismatch> {
        match value {
            Value::Str(v) => std::str::from_utf8(v).map_err(|_| Mismatch::Utf8),
            _ => Err(Mismatch::Type),
        }
    }
}

impl sealed::Sealed for &[u8] {}
impl<'a> FromValue<'a> for &'a [u8] {
    const EXPECTED: &'static str = "array of u8";

    fn from_value(value: Value<'a>) -> Result<Self, Mismatch> {
        match value {
            // Signed bytes are the same bytes; converters write both.
            Value::Array(a) if matches!(a.elem, ValueType::U8 | ValueType::I8) => Ok(a.bytes),
            _ => Err(Mismatch::Type),
        }
    }
}

impl sealed::Sealed for Array<'_> {}
impl<'a> FromValue<'a> for Array<'a> {
    const EXPECTED: &'static str = "array";

    fn from_value(value: Value<'a>) -> Result<Self, Mismatch> {
        match value {
            Value::Array(a) => Ok(a),
            _ => Err(Mismatch::Type),
        }
    }
}

impl sealed::Sealed for Strings<'_> {}
impl<'a> FromValue<'a> for Strings<'a> {
    const EXPECTED: &'static str = "array of string";

    fn from_value(value: Value<'a>) -> Result<Self, Mismatch> {
        match value {
            Value::Array(a) if a.elem == ValueType::Str => Ok(Self(a)),
            _ => Err(Mismatch::Type),
        }
    }
}

macro_rules! numbers {
    ($($ty:ident $exact:pat, $expected:literal;)*) => {$(
        impl sealed::Sealed for Numbers<'_, $ty> {}
        impl<'a> FromValue<'a> for Numbers<'a, $ty> {
            const EXPECTED: &'static str = $expected;

            fn from_value(value: Value<'a>) -> Result<Self, Mismatch> {
                let Value::Array(array) = value else {
                    return Err(Mismatch::Type);
                };
                match array.elem {
                    $exact => {}
                    ValueType::Str | ValueType::Array => return Err(Mismatch::Type),
                    // Another width: each number is tried here, so that access needs no error.
                    _ => {
                        for v in array.iter() {
                            $ty::from_value(v)?;
                        }
                    }
                }
                Ok(Self { array, number: PhantomData })
            }
        }
    )*};
}

numbers! {
    i32 ValueType::I32, "array of i32";
    u32 ValueType::U32, "array of u32";
    f32 ValueType::F32 | ValueType::F64, "array of f32";
}
