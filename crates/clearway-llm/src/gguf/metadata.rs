//! The key-value section of a file and typed lookups in it.
//!
//! Only keys and positions are kept; values are decoded from the file when asked for. Keys are
//! found by binary search in a sorted index: unlike a hash table it cannot be slowed down by keys
//! chosen for the purpose, and it finds duplicates on the way.

use super::{
    cursor::Cursor,
    error::{GgufError, printable},
    lookup::{FromValue, Mismatch, Numbers, Strings},
    source::Source,
    value::{Value, ValueType},
};

/// Longest key, from the format's specification.
pub(super) const MAX_KEY_BYTES: u64 = 65_535;
/// Most keys. Models have some tens.
pub(super) const MAX_KEYS: u64 = 1 << 16;
/// Smallest key-value pair: length of an empty key, a type, a one-byte value.
const MIN_PAIR_BYTES: usize = 13;

/// The metadata of a model: named values of many types.
///
/// Integer lookups accept every integer type that holds the number, since converters disagree
/// about widths; float lookups accept both widths. Everything else must match exactly.
#[derive(Clone, Debug)]
pub struct Metadata {
    source: Source,
    entries: Vec<Entry>,
    /// Indices of `entries`, sorted by key.
    by_key: Vec<usize>,
}

#[derive(Clone, Debug)]
struct Entry {
    key: Box<str>,
    ty: ValueType,
    start: usize,
    end: usize,
}

impl Metadata {
    /// Number of keys.
    pub fn len(&self) -> usize {
        self.entries.len()
    }

    /// True without keys.
    pub fn is_empty(&self) -> bool {
        self.entries.is_empty()
    }

    /// True when the key is there.
    pub fn contains(&self, key: &str) -> bool {
        self.find(key).is_some()
    }

    /// The value of a key.
    pub fn get(&self, key: &str) -> Option<Value<'_>> {
        self.find(key).and_then(|entry| self.value(entry))
    }

    /// All keys with their values, in file order.
    pub fn iter(&self) -> impl Iterator<Item = (&str, Value<'_>)> {
        self.entries.iter().filter_map(|entry| Some((&*entry.key, self.value(entry)?)))
    }

    /// The value of a key that may be absent, as the type asked for.
    pub fn optional<'a, T: FromValue<'a>>(&'a self, key: &str) -> Result<Option<T>, GgufError> {
        let Some(value) = self.get(key) else {
            return Ok(None);
        };
        let key = || printable(key.as_bytes());
        T::from_value(value).map(Some).map_err(|mismatch| match mismatch {
            Mismatch::Type => GgufError::WrongType {
                key: key(),
                expected: T::EXPECTED,
                found: value.type_words(),
            },
            Mismatch::Range(number) => GgufError::OutOfRange {
                key: key(),
                expected: T::EXPECTED,
                value: number.to_string(),
            },
            Mismatch::Utf8 => GgufError::TextNotUtf8 { key: key() },
        })
    }

    /// The value of a key that must be there, as the type asked for.
    pub fn required<'a, T: FromValue<'a>>(&'a self, key: &str) -> Result<T, GgufError> {
        self.optional(key)?.ok_or_else(|| GgufError::MissingKey { key: printable(key.as_bytes()) })
    }

    /// A required integer that fits 32 unsigned bits.
    pub fn u32(&self, key: &str) -> Result<u32, GgufError> {
        self.required(key)
    }

    /// A required integer that fits 32 signed bits.
    pub fn i32(&self, key: &str) -> Result<i32, GgufError> {
        self.required(key)
    }

    /// A required integer that fits 64 unsigned bits.
    pub fn u64(&self, key: &str) -> Result<u64, GgufError> {
        self.required(key)
    }

    /// A required float.
    pub fn f32(&self, key: &str) -> Result<f32, GgufError> {
        self.required(key)
    }

    /// A required boolean.
    pub fn bool(&self, key: &str) -> Result<bool, GgufError> {
        self.required(key)
    }

    /// A required text, which must be UTF-8.
    pub fn str(&self, key: &str) -> Result<&str, GgufError> {
        self.required(key)
    }

    /// A required array of strings, as bytes.
    pub fn strings(&self, key: &str) -> Result<Strings<'_>, GgufError> {
        self.required(key)
    }

    /// A required array of floats.
    pub fn f32s(&self, key: &str) -> Result<Numbers<'_, f32>, GgufError> {
        self.required(key)
    }

    /// A required array of integers that fit 32 signed bits.
    pub fn i32s(&self, key: &str) -> Result<Numbers<'_, i32>, GgufError> {
        self.required(key)
    }

    /// A required array of integers that fit 32 unsigned bits.
    pub fn u32s(&self, key: &str) -> Result<Numbers<'_, u32>, GgufError> {
        self.required(key)
    }

    /// Reads and checks `count` pairs at the cursor, which stands in the bytes of `source`.
    pub(super) fn read(
        source: &Source,
        cursor: &mut Cursor<'_>,
        count: u64,
    ) -> Result<Self, GgufError> {
        cursor.check_table(count, "number of metadata keys", MIN_PAIR_BYTES, MAX_KEYS)?;
        // Grown while reading and not reserved: a false count then costs nothing.
        let mut entries = Vec::new();
        for _ in 0..count {
            let key = cursor.name("metadata key", MAX_KEY_BYTES)?;
            let ty = ValueType::read(cursor)?;
            let start = cursor.at();
            Value::read(cursor, ty, 0)?;
            entries.push(Entry { key: key.into(), ty, start, end: cursor.at() });
        }
        let by_key =
            sorted_index(&entries, |e| &e.key).map_err(|key| GgufError::DuplicateKey { key })?;
        Ok(Self { source: source.clone(), entries, by_key })
    }

    fn find(&self, key: &str) -> Option<&Entry> {
        let at = self.by_key.binary_search_by(|&i| (*self.entries[i].key).cmp(key)).ok()?;
        Some(&self.entries[self.by_key[at]])
    }

    fn value(&self, entry: &Entry) -> Option<Value<'_>> {
        Value::decode(entry.ty, self.source.get(entry.start..entry.end)?)
    }
}

/// Indices of `items` sorted by their unique names; a name that occurs twice is returned instead.
pub(super) fn sorted_index<T>(
    items: &[T],
    name: impl Fn(&T) -> &str,
) -> Result<Vec<usize>, String> {
    let mut index: Vec<usize> = (0..items.len()).collect();
    index.sort_unstable_by(|&a, &b| name(&items[a]).cmp(name(&items[b])));
    let twice = index.windows(2).find(|pair| name(&items[pair[0]]) == name(&items[pair[1]]));
    match twice {
        Some(pair) => Err(printable(name(&items[pair[0]]).as_bytes())),
        None => Ok(index),
    }
}
