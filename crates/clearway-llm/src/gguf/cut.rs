//! Tensors that hold several of a model's matrices: one under the other, or so that others are made of them.

use std::sync::Arc;

use clearway_graph::DType;

use super::{
    Gguf, Placed,
    error::GgufError,
    metadata::sorted_index,
    source::{Made, Source},
    tensor::{Tensor, TensorInfo, tensor_bytes},
};

/// Bytes of one tensor from those of another.
pub(crate) type Make = dyn Fn(&[u8]) -> Vec<u8> + Send + Sync;

/// A tensor that is made of another.
pub(crate) struct Making {
    /// Its name.
    pub name: String,
    /// Its element type.
    pub dtype: DType,
    /// Its dimensions in file order.
    pub dims: Vec<usize>,
    /// Its bytes from those of the other.
    pub make: Box<Make>,
}

impl Gguf {
    /// The same file with some tensors in parts. `parts` gets the name of a tensor and its number of rows (of a vector: of
    /// elements) and answers with the names of its parts and the rows of each, in order. Nothing is copied: the parts are
    /// ranges of the file. An answer whose rows are not those of the tensor leaves it whole.
    ///
    /// # Errors
    /// A part with the name of another tensor.
    pub fn with_parts(
        &self,
        mut parts: impl FnMut(&str, usize) -> Option<Vec<(String, usize)>>,
    ) -> Result<Self, GgufError> {
        let mut tensors = Vec::with_capacity(self.tensors.len());
        for placed in &self.tensors {
            let info = &placed.info;
            let rows = info.dims().last().copied().unwrap_or_default();
            let fits = |parts: &Vec<(String, usize)>| {
                let sum = parts.iter().try_fold(0_usize, |sum, (_, part)| sum.checked_add(*part));
                sum == Some(rows) && parts.iter().all(|(_, part)| *part > 0)
            };
            // Rows are whole blocks, and a vector is of floats: a row has a whole number of bytes.
            let bytes = (info.end - info.start) / rows.max(1);
            let whole = info.dims().len() > 1 || info.dtype.block_elems() == 1;
            match parts(&info.name, rows).filter(|found| whole && fits(found)) {
                None => tensors.push(placed.clone()),
                Some(found) => {
                    let mut start = info.start;
                    for (name, rows) in found {
                        let end = start + rows * bytes;
                        let info = info.part(&name, rows, start..end);
                        tensors.push(Placed { info, part: placed.part });
                        start = end;
                    }
                }
            }
        }
        self.with_tensors(self.sources.clone(), tensors)
    }

    /// The same file with others in the place of some tensors. `makings` gets a tensor and answers with those that are made of
    /// it. Their bytes are computed when they are first read.
    ///
    /// # Errors
    /// A tensor with the name of another, or with dimensions that none can have.
    pub(crate) fn with_made(
        &self,
        mut makings: impl FnMut(&Tensor<'_>) -> Option<Vec<Making>>,
    ) -> Result<Self, GgufError> {
        let (mut tensors, mut sources) = (Vec::new(), self.sources.clone());
        for placed in &self.tensors {
            let Some(found) = makings(&self.tensor_at(placed)) else {
                tensors.push(placed.clone());
                continue;
            };
            for Making { name, dtype, dims, make } in found {
                let extents: Vec<u64> = dims.iter().map(|&dim| dim as u64).collect();
                let len = tensor_bytes(&name, dtype, &extents)?;
                let made = usize::try_from(len)
                    .ok()
                    .and_then(|len| Some((len, TensorInfo::made(&name, dtype, &dims, len)?)));
                let Some((len, info)) = made else {
                    let reason = "a tensor that is made of another has at most four";
                    return Err(GgufError::Dims { tensor: name, dims: extents, reason });
                };
                let (of, range) =
                    (self.sources[placed.part].clone(), placed.info.start..placed.info.end);
                let made = Made::new(len, move || make(&of[range.clone()]));
                tensors.push(Placed { info, part: sources.len() });
                sources.push(Source::Made(Arc::new(made)));
            }
        }
        self.with_tensors(sources, tensors)
    }

    fn with_tensors(&self, sources: Vec<Source>, tensors: Vec<Placed>) -> Result<Self, GgufError> {
        let by_name = sorted_index(&tensors, |placed| &placed.info.name)
            .map_err(|tensor| GgufError::DuplicateTensor { tensor })?;
        let (version, metadata) = (self.version, self.metadata.clone());
        Ok(Self { version, sources, metadata, tensors, by_name })
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::gguf::GgufWriter;

    fn file() -> Gguf {
        let mut writer = GgufWriter::new();
        for (name, dtype, dims) in
            [("m", DType::Q8_0, &[64, 6][..]), ("v", DType::F32, &[6]), ("o", DType::F32, &[2])]
        {
            let bytes = dims.iter().product::<usize>() / dtype.block_elems() * dtype.block_bytes();
            let data: Vec<u8> = (0..bytes).map(|byte| byte as u8).collect();
            writer.tensor(name, dtype, dims, move |out| out.write_all(&data)).unwrap();
        }
        let mut bytes = Vec::new();
        writer.write_to(&mut bytes).unwrap();
        Gguf::from_bytes(bytes).unwrap()
    }

    fn named(parts: &[(&str, usize)]) -> Option<Vec<(String, usize)>> {
        Some(parts.iter().map(|(name, rows)| ((*name).to_owned(), *rows)).collect())
    }

    #[test]
    fn parts_are_the_rows_of_the_whole() {
        let file = file();
        let cut = file.with_parts(|name, _| match name {
            "m" => named(&[("m.a", 2), ("m.b", 3), ("m.c", 1)]),
            "v" => named(&[("v.a", 4), ("v.b", 2)]),
            _ => None,
        });
        let cut = cut.unwrap();
        assert!(cut.find_tensor("m").is_none() && cut.find_tensor("o").is_some());
        let whole = file.tensor("m").unwrap();
        let row = whole.bytes().len() / 6;
        let b = cut.tensor("m.b").unwrap();
        assert_eq!((b.dims(), b.dtype()), (&[64, 3][..], DType::Q8_0));
        assert_eq!(b.bytes(), &whole.bytes()[2 * row..5 * row]);
        let v = cut.tensor("v.b").unwrap();
        assert_eq!((v.dims(), v.bytes()), (&[2][..], &file.tensor("v").unwrap().bytes()[16..]));
        assert_eq!(cut.tensor_bytes(), file.tensor_bytes());
    }

    #[test]
    fn tensors_that_are_made_of_others_take_their_place_and_are_no_files() {
        let file = file();
        let reversed = |tensor: &Tensor<'_>| {
            let (name, dtype, dims) = (String::from("w"), DType::F32, vec![3, 2]);
            let make = |bytes: &[u8]| bytes.iter().rev().copied().collect();
            (tensor.name() == "v").then(|| vec![Making { name, dtype, dims, make: Box::new(make) }])
        };
        let made = file.with_made(reversed).unwrap();
        assert!(made.find_tensor("v").is_none());
        let w = made.tensor("w").unwrap();
        let bytes: Vec<u8> = file.tensor("v").unwrap().bytes().iter().rev().copied().collect();
        assert_eq!((w.dims(), w.bytes()), (&[3, 2][..], &bytes[..]));
        assert_eq!((made.parts(), made.file_bytes()), (1, file.file_bytes()));
        assert_eq!(made.tensor_bytes(), file.tensor_bytes());
        made.release(&w);
        assert_eq!(made.tensor("w").unwrap().bytes(), bytes);
        let five = |_: &Tensor<'_>| {
            let (name, dtype, dims) = (String::from("w"), DType::F32, vec![1; 5]);
            Some(vec![Making { name, dtype, dims, make: Box::new(|_| Vec::new()) }])
        };
        assert!(matches!(file.with_made(five), Err(GgufError::Dims { .. })));
    }

    #[test]
    fn rows_that_do_not_add_up_leave_a_tensor_whole_and_taken_names_are_refused() {
        let file = file();
        for parts in
            [&[("m.a", 2)][..], &[("m.a", 6), ("m.b", 0)], &[("m.a", usize::MAX), ("m.b", 7)]]
        {
            let cut = file.with_parts(|name, _| named(parts).filter(|_| name == "m")).unwrap();
            assert_eq!(cut.tensor("m").unwrap().dims(), [64, 6]);
        }
        let taken = file.with_parts(|name, _| named(&[("o", 3), ("x", 3)]).filter(|_| name == "m"));
        assert!(matches!(taken, Err(GgufError::DuplicateTensor { .. })));
    }
}
