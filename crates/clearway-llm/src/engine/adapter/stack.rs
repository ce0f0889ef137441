//! Adapters of a model as the matrices that its steps read.
//!
//! All adapters of an input share a stacked rank: adapter after adapter, and of each the pairs one after another. The
//! places are the same in every layer, so that one table of choices serves all of them; a layer for which an adapter has less
//! has zeros. Factors are part of the second matrices.

use std::collections::{BTreeMap, BTreeSet};
use std::ops::Range;

use clearway::{DType, Device};
use half::f16;

use super::super::apart::Cuts;
use super::super::shape::{Keys, plain_model};
use super::super::{convert, finite};
use super::{Adapter, AdapterError, Adapters, rows_first};
use crate::gguf::{Gguf, Tensor};
use crate::model::{self, AdapterInput, AdapterLayout, ModelShape, RecordOptions};

/// Stacked ranks are multiples of this: kernels multiply rows in chunks of so many elements.
const CHUNK: usize = 32;
/// The table of token embeddings: rows of it are looked up and not multiplied.
const EMBEDDING: &str = "token_embd.weight";
/// Bytes of a tensor that tell an adapter from others.
const SAMPLE: usize = 1 << 12;

/// Adapters as a model's steps read them.
pub(in crate::engine) struct Stack {
    layout: AdapterLayout,
    matrices: BTreeMap<String, Matrix>,
    /// Tables of choices.
    tables: BTreeMap<String, Vec<f32>>,
    identity: Vec<u8>,
}

/// A stacked matrix.
struct Matrix {
    cols: usize,
    values: Vec<f32>,
}

/// A pair of an adapter and the weights it changes.
struct Pair<'a> {
    adapter: usize,
    /// First and second matrix.
    matrices: [Tensor<'a>; 2],
    rank: usize,
    /// Weights of the model, and which rows of the second matrix are theirs.
    weights: Vec<(String, Range<usize>)>,
}

impl Stack {
    /// Stacks adapters of the model of a file; `None` where there are none.
    ///
    /// # Errors
    /// An adapter of another model, or of weights whose adapters are not supported.
    pub(in crate::engine) fn new(
        adapters: &Adapters,
        gguf: &Gguf,
    ) -> super::super::Result<Option<Self>> {
        let list = adapters.list();
        if list.is_empty() {
            return Ok(None);
        }
        let keys = Keys::of(gguf.metadata())?;
        let cuts = Cuts::of(gguf, &keys)?;
        let (plain, shape) = plain_model(gguf)?;
        let model = Model { gguf, plain: &plain, cuts, architecture: keys.prefix() };
        let mut pairs = Vec::new();
        for (index, adapter) in list.iter().enumerate() {
            model.pairs(index, adapter, &mut pairs)?;
        }
        let places = Places::new(list.len(), &pairs);
        let choices = adapters.choices();
        let layout = AdapterLayout {
            weights: weights(&pairs).map(str::to_owned).collect(),
            ranks: places.ranks.clone(),
            choices: matches!(adapters, Adapters::ByText(_)).then_some(choices.len()),
        };
        check_targets(list, &pairs, &plain, &shape, &layout)?;
        let mut stack = Self {
            tables: places.tables(list, &choices),
            layout,
            matrices: BTreeMap::new(),
            identity: identity(list, &pairs),
        };
        stack.fill(list, &pairs, places)?;
        Ok(Some(stack))
    }

    /// What steps are recorded with.
    pub(in crate::engine) fn layout(&self) -> &AdapterLayout {
        &self.layout
    }

    /// Bytes that differ between adapters which act on all texts.
    pub(in crate::engine) fn identity(&self) -> &[u8] {
        match self.layout.choices {
            None => &self.identity,
            Some(_) => &[],
        }
    }

    /// Bytes of all matrices and tables.
    pub(in crate::engine) fn bytes(&self) -> u64 {
        let matrices = self
            .matrices
            .values()
            .map(|matrix| (matrix.values.len() * if matrix.fits_halves() { 2 } else { 4 }) as u64);
        let tables = self.tables.values().map(|table| 4 * table.len() as u64);
        matrices.chain(tables).sum()
    }

    /// Names and types of the matrices on a device.
    pub(in crate::engine) fn dtypes(&self, device: &dyn Device) -> Vec<(String, DType)> {
        let of = |(name, matrix): (&String, &Matrix)| (name.clone(), matrix.dtype(device));
        self.matrices.iter().map(of).collect()
    }

    /// A matrix in this type, or a table of choices, which is of floats. It is gone afterwards.
    pub(in crate::engine) fn take(&mut self, name: &str, dtype: DType) -> Option<Vec<u8>> {
        if let Some(table) = self.tables.remove(name) {
            return Some(bytemuck::cast_slice(&table).to_vec());
        }
        let Matrix { values, .. } = self.matrices.remove(name)?;
        Some(match dtype {
            DType::F16 => values.iter().flat_map(|&v| f16::from_f32(v).to_le_bytes()).collect(),
            _ => values.iter().flat_map(|v| v.to_le_bytes()).collect(),
        })
    }

    /// Writes all pairs into their places.
    fn fill(
        &mut self,
        list: &[Adapter],
        pairs: &[Pair<'_>],
        mut places: Places,
    ) -> Result<(), AdapterError> {
        for pair in pairs {
            let adapter = &list[pair.adapter];
            let [first, second] = &pair.matrices;
            for tensor in &pair.matrices {
                if let Some(bad) = finite::bad_tensor(tensor) {
                    return Err(AdapterError::NotFinite {
                        adapter: adapter.name.clone(),
                        tensor: bad.name,
                        element: bad.element,
                        value: bad.value,
                    });
                }
            }
            let (a, mut b) = (values(first), values(second));
            let factor = adapter.factor(pair.rank);
            b.iter_mut().for_each(|value| *value *= factor);
            for input in pair.inputs() {
                let columns = places.take(pair, &input);
                let all = places.ranks[input.kind()];
                let stacked = self.matrix(input.first(), all, first.dims()[0]);
                let width = stacked.cols;
                stacked.values[columns.start * width..columns.end * width].copy_from_slice(&a);
                let own = pair.weights.iter();
                for (weight, rows) in own.filter(|(weight, _)| AdapterInput::of(weight) == input) {
                    let stacked = self.matrix(AdapterInput::second(weight), rows.len(), all);
                    let own = b[rows.start * pair.rank..].chunks_exact(pair.rank);
                    for (to, from) in stacked.values.chunks_exact_mut(all).zip(own) {
                        to[columns.clone()].copy_from_slice(from);
                    }
                }
            }
        }
        Ok(())
    }

    fn matrix(&mut self, name: String, rows: usize, cols: usize) -> &mut Matrix {
        let empty = || Matrix { cols, values: vec![0.0; rows * cols] };
        self.matrices.entry(name).or_insert_with(empty)
    }
}

impl Matrix {
    /// Whether halves hold every value.
    fn fits_halves(&self) -> bool {
        self.values.iter().all(|&value| f16::from_f32(value).to_f32() == value)
    }

    /// Halves where they hold every value and the device multiplies them, else floats.
    fn dtype(&self, device: &dyn Device) -> DType {
        match self.fits_halves() {
            true => convert::device_dtype(DType::F16, device),
            false => DType::F32,
        }
    }
}

impl Pair<'_> {
    /// What its weights read. That is the same for all, since it was one tensor; if it were not, each would get a copy.
    fn inputs(&self) -> BTreeSet<AdapterInput> {
        self.weights.iter().map(|(weight, _)| AdapterInput::of(weight)).collect()
    }
}

fn weights<'a>(pairs: &'a [Pair<'_>]) -> impl Iterator<Item = &'a str> {
    pairs.iter().flat_map(|pair| &pair.weights).map(|(weight, _)| &**weight)
}

/// Where the ranks of each adapter lie among all of a kind of input.
struct Places {
    /// Stacked ranks of each kind.
    ranks: BTreeMap<String, usize>,
    /// For each kind the ranks of each adapter.
    of_adapters: BTreeMap<String, Vec<Range<usize>>>,
    /// Ranks that pairs of an adapter have taken in an input.
    taken: BTreeMap<(usize, AdapterInput), usize>,
}

impl Places {
    fn new(adapters: usize, pairs: &[Pair<'_>]) -> Self {
        let mut sums: BTreeMap<(usize, AdapterInput), usize> = BTreeMap::new();
        for pair in pairs {
            for input in pair.inputs() {
                *sums.entry((pair.adapter, input)).or_default() += pair.rank;
            }
        }
        let mut widths: BTreeMap<String, Vec<usize>> = BTreeMap::new();
        for ((adapter, input), sum) in sums {
            let kind = widths.entry(input.kind().to_owned());
            let width = &mut kind.or_insert_with(|| vec![0; adapters])[adapter];
            *width = sum.max(*width);
        }
        let places = |widths: &Vec<usize>| {
            let ends = widths.iter().scan(0, |end, width| {
                *end += width;
                Some(*end - width..*end)
            });
            ends.collect()
        };
        let padded = |widths: &Vec<usize>| widths.iter().sum::<usize>().next_multiple_of(CHUNK);
        Self {
            ranks: widths.iter().map(|(kind, all)| (kind.clone(), padded(all))).collect(),
            of_adapters: widths.iter().map(|(kind, all)| (kind.clone(), places(all))).collect(),
            taken: BTreeMap::new(),
        }
    }

    /// The next ranks of an input that its adapter has free.
    fn take(&mut self, pair: &Pair<'_>, input: &AdapterInput) -> Range<usize> {
        let taken = self.taken.entry((pair.adapter, input.clone())).or_default();
        let start = self.of_adapters[input.kind()][pair.adapter].start + *taken;
        *taken += pair.rank;
        start..start + pair.rank
    }

    /// For each kind a row of zeros, and for each choice one with ones at the ranks of its adapters.
    fn tables(&self, list: &[Adapter], choices: &[String]) -> BTreeMap<String, Vec<f32>> {
        let table = |(kind, places): (&String, &Vec<Range<usize>>)| {
            let width = self.ranks[kind];
            let mut table = vec![0.0; (choices.len() + 1) * width];
            for (row, choice) in (1..).zip(choices) {
                let own = list.iter().zip(places).filter(|(adapter, _)| adapter.name == *choice);
                for (_, place) in own {
                    table[row * width..][place.clone()].fill(1.0);
                }
            }
            (AdapterInput::table(kind), table)
        };
        match choices {
            [] => BTreeMap::new(),
            _ => self.of_adapters.iter().map(table).collect(),
        }
    }
}

/// The model that adapters are for.
struct Model<'a> {
    /// The file as it is.
    gguf: &'a Gguf,
    /// The file with each matrix as a tensor of its own.
    plain: &'a Gguf,
    cuts: Option<Cuts>,
    architecture: &'a str,
}

impl Model<'_> {
    /// Adds the pairs of an adapter, held against the tensors of the model.
    fn pairs<'a>(
        &self,
        index: usize,
        adapter: &'a Adapter,
        pairs: &mut Vec<Pair<'a>>,
    ) -> Result<(), AdapterError> {
        let name = || adapter.name.clone();
        if adapter.architecture != self.architecture {
            return Err(AdapterError::Architecture {
                adapter: name(),
                found: adapter.architecture.clone(),
                model: self.architecture.to_owned(),
            });
        }
        for (weight, &rank) in &adapter.ranks {
            let joined = self.cuts.as_ref().and_then(|cuts| cuts.parts(self.gguf, weight));
            let file = if joined.is_some() { self.gguf } else { self.plain };
            let Some(tensor) = file.find_tensor(weight) else {
                return Err(AdapterError::NoWeight { adapter: name(), weight: weight.clone() });
            };
            let target = || AdapterError::Target { adapter: name(), weight: weight.clone() };
            let &[width, rows] = tensor.dims() else { return Err(target()) };
            if weight == EMBEDDING {
                return Err(target());
            }
            let matrices = adapter.matrices(weight)?;
            let most = width.max(rows);
            for (tensor, fitting) in matrices.iter().zip([[rank, width], [rows, rank]]) {
                let found = rows_first(tensor);
                let wrong = match (found == fitting, rank <= most) {
                    (true, true) => continue,
                    (true, false) => format!("a rank of at most {most}"),
                    (false, _) => format!("{fitting:?}"),
                };
                let expected = format!("{wrong} for a weight of [{rows}, {width}]");
                let tensor = tensor.name().to_owned();
                return Err(AdapterError::Shape { adapter: name(), tensor, found, expected });
            }
            let mut end = 0;
            let parts = joined.unwrap_or_else(|| vec![(weight.clone(), rows)]);
            let weights = parts.into_iter().map(|(part, rows)| {
                end += rows;
                (part, end - rows..end)
            });
            pairs.push(Pair { adapter: index, matrices, rank, weights: weights.collect() });
        }
        Ok(())
    }
}

/// An error for a weight whose adapters no step of the model would read.
fn check_targets(
    list: &[Adapter],
    pairs: &[Pair<'_>],
    plain: &Gguf,
    shape: &ModelShape,
    layout: &AdapterLayout,
) -> super::super::Result<()> {
    let dtype = |name: &str| plain.find_tensor(name).map_or(DType::F32, |tensor| tensor.dtype());
    let options =
        RecordOptions { weight_dtype: &dtype, adapters: Some(layout), ..RecordOptions::new(1, 1) };
    let recorded = model::record(shape, &options)?.into_externals();
    let read: BTreeSet<&str> = recorded.iter().map(|external| &*external.name).collect();
    for pair in pairs {
        for (weight, _) in &pair.weights {
            if !read.contains(&*AdapterInput::second(weight)) {
                let adapter = list[pair.adapter].name.clone();
                return Err(AdapterError::Target { adapter, weight: weight.clone() }.into());
            }
        }
    }
    Ok(())
}

/// The numbers of a tensor.
fn values(tensor: &Tensor<'_>) -> Vec<f32> {
    let bytes = convert::convert(tensor, DType::F32);
    bytes.as_chunks().0.iter().map(|&bytes| f32::from_le_bytes(bytes)).collect()
}

/// What tells adapters from others: their factors and the beginning of their matrices.
fn identity(list: &[Adapter], pairs: &[Pair<'_>]) -> Vec<u8> {
    let mut bytes = Vec::new();
    for pair in pairs {
        let adapter = &list[pair.adapter];
        bytes.extend(adapter.factor(pair.rank).to_le_bytes());
        for tensor in &pair.matrices {
            bytes.extend(tensor.name().as_bytes());
            bytes.extend(&tensor.bytes()[..tensor.bytes().len().min(SAMPLE)]);
        }
    }
    bytes
}
