//! Tensors that hold several of a model's matrices, one under the other.

use super::{Gguf, Placed, error::GgufError, metadata::sorted_index};

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
        let by_name = sorted_index(&tensors, |placed| &placed.info.name)
            .map_err(|tensor| GgufError::DuplicateTensor { tensor })?;
        let (version, sources) = (self.version, self.sources.clone());
        Ok(Self { version, sources, metadata: self.metadata.clone(), tensors, by_name })
    }
}

#[cfg(test)]
mod tests {
    use clearway_graph::DType;

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
