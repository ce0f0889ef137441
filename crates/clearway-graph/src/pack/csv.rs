//! Placement problems as text: MiniMalloc's CSV format.
//!
//! The first row names the columns; `id`, `lower`, `upper` and `size` are required, in any order,
//! and an `offset` column is skipped, so that a result can be read back as a problem. Ids are free
//! text without commas; numbers are plain decimal. Every error names its line.

use std::collections::hash_map::Entry;
use std::fmt::Write as _;

use rustc_hash::FxHashMap;

use super::Item;

/// A problem read from a file. Row `i` is item `i`, whose [`Item::id`] is `i`.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Table {
    /// The items, in the order of the rows.
    pub items: Vec<Item>,
    names: Vec<String>,
    lines: Vec<usize>,
}

impl Table {
    /// The id of a row as the file spells it.
    pub fn name(&self, row: usize) -> Option<&str> {
        self.names.get(row).map(String::as_str)
    }

    /// The line of a row in the file, counted from 1.
    pub fn line(&self, row: usize) -> Option<usize> {
        self.lines.get(row).copied()
    }

    /// The rows with an `offset` column. Rows beyond the offsets given are left out.
    pub fn write(&self, offsets: &[u64]) -> String {
        let mut text = String::from("id,lower,upper,size,offset\n");
        for ((name, item), offset) in self.names.iter().zip(&self.items).zip(offsets) {
            let Item { lower, upper, size, .. } = item;
            // Writing to a string cannot fail.
            let _ = writeln!(text, "{name},{lower},{upper},{size},{offset}");
        }
        text
    }
}

/// Why a file is not a placement problem.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("line {line}: {reason}")]
pub struct CsvError {
    /// The line, counted from 1.
    pub line: usize,
    /// What is wrong with it.
    pub reason: CsvReason,
}

/// What is wrong with a line.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum CsvReason {
    /// The header lacks a column, or there is no header.
    #[error("the header has no column `{0}`; expected id,lower,upper,size")]
    MissingColumn(&'static str),
    /// The header names a column twice.
    #[error("the header names the column `{0}` twice")]
    DuplicateColumn(String),
    /// The header has a column this format does not know.
    #[error("unknown column `{0}`; expected id,lower,upper,size and perhaps offset")]
    UnknownColumn(String),
    /// The row has too few or too many fields.
    #[error("{found} fields where the header has {expected}")]
    FieldCount {
        /// Fields of the header.
        expected: usize,
        /// Fields of the row.
        found: usize,
    },
    /// The row has no id.
    #[error("the id is empty")]
    EmptyId,
    /// The field is not a decimal number.
    #[error("{column} `{text}` is not a number")]
    NotANumber {
        /// The column.
        column: &'static str,
        /// The field.
        text: String,
    },
    /// The field is a negative number.
    #[error("{column} {text} is negative")]
    Negative {
        /// The column.
        column: &'static str,
        /// The field.
        text: String,
    },
    /// The field is a number beyond 64 bits.
    #[error("{column} {text} does not fit 64 bits")]
    TooLarge {
        /// The column.
        column: &'static str,
        /// The field.
        text: String,
    },
    /// The interval is empty or inverted.
    #[error("the interval [{lower}, {upper}) is empty or inverted")]
    EmptyInterval {
        /// Start of the interval.
        lower: u64,
        /// End of the interval.
        upper: u64,
    },
    /// The sizes up to here add up to more than 64 bits.
    #[error("the sizes up to here add up to more than 64 bits")]
    SumTooLarge,
    /// The id was used before.
    #[error("id `{id}` was used on line {line}")]
    DuplicateId {
        /// The id.
        id: String,
        /// The line that used it first.
        line: usize,
    },
    /// More rows than 32-bit ids can name.
    #[error("more rows than can be numbered")]
    TooManyRows,
}

/// Reads a problem.
///
/// # Errors
///
/// The first line that does not fit the format, and why.
pub fn parse(text: &str) -> Result<Table, CsvError> {
    let text = text.strip_prefix('\u{feff}').unwrap_or(text);
    let mut rows = text
        .lines()
        .enumerate()
        .map(|(line, row)| (line + 1, row.trim()))
        .filter(|(_, row)| !row.is_empty());
    let (line, header) = rows.next().unwrap_or((1, ""));
    let columns = Columns::parse(header).map_err(|reason| CsvError { line, reason })?;
    let mut reader = Reader::default();
    for (line, row) in rows {
        reader.read(&columns, line, row).map_err(|reason| CsvError { line, reason })?;
    }
    Ok(reader.table)
}

/// Positions of the columns.
struct Columns {
    count: usize,
    id: usize,
    lower: usize,
    upper: usize,
    size: usize,
}

impl Columns {
    fn parse(header: &str) -> Result<Self, CsvReason> {
        let names: Vec<&str> = header.split(',').map(str::trim).collect();
        let position = |name: &'static str| {
            names.iter().position(|&other| other == name).ok_or(CsvReason::MissingColumn(name))
        };
        let columns = Self {
            count: names.len(),
            id: position("id")?,
            lower: position("lower")?,
            upper: position("upper")?,
            size: position("size")?,
        };
        for (at, &name) in names.iter().enumerate() {
            if names[..at].contains(&name) {
                return Err(CsvReason::DuplicateColumn(name.to_owned()));
            }
            if !["id", "lower", "upper", "size", "offset"].contains(&name) {
                return Err(CsvReason::UnknownColumn(name.to_owned()));
            }
        }
        Ok(columns)
    }
}

#[derive(Default)]
struct Reader {
    table: Table,
    seen: FxHashMap<String, usize>,
    sum: u64,
}

impl Reader {
    fn read(&mut self, columns: &Columns, line: usize, row: &str) -> Result<(), CsvReason> {
        let fields: Vec<&str> = row.split(',').map(str::trim).collect();
        if fields.len() != columns.count {
            return Err(CsvReason::FieldCount { expected: columns.count, found: fields.len() });
        }
        let name = fields[columns.id];
        if name.is_empty() {
            return Err(CsvReason::EmptyId);
        }
        let lower = number("lower", fields[columns.lower])?;
        let upper = number("upper", fields[columns.upper])?;
        let size = number("size", fields[columns.size])?;
        if lower >= upper {
            return Err(CsvReason::EmptyInterval { lower, upper });
        }
        self.sum = self.sum.checked_add(size).ok_or(CsvReason::SumTooLarge)?;
        match self.seen.entry(name.to_owned()) {
            Entry::Occupied(first) => {
                return Err(CsvReason::DuplicateId { id: name.to_owned(), line: *first.get() });
            }
            Entry::Vacant(entry) => {
                entry.insert(line);
            }
        }
        let id = u32::try_from(self.table.items.len()).map_err(|_| CsvReason::TooManyRows)?;
        self.table.items.push(Item { id, lower, upper, size });
        self.table.names.push(name.to_owned());
        self.table.lines.push(line);
        Ok(())
    }
}

fn number(column: &'static str, text: &str) -> Result<u64, CsvReason> {
    let digits = text.strip_prefix('-').unwrap_or(text);
    if digits.is_empty() || !digits.bytes().all(|byte| byte.is_ascii_digit()) {
        return Err(CsvReason::NotANumber { column, text: text.to_owned() });
    }
    if digits.len() < text.len() {
        return Err(CsvReason::Negative { column, text: text.to_owned() });
    }
    // All digits: the only way left to fail is the range.
    text.parse().map_err(|_| CsvReason::TooLarge { column, text: text.to_owned() })
}
