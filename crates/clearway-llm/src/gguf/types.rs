//! Numbers and names of tensor types in GGUF files.

use clearway_graph::DType;

/// ggml's type numbers with their names. Numbers that are missing here were withdrawn.
const GGML_TYPES: [(u32, &str, Option<DType>); 40] = [
    (0, "F32", Some(DType::F32)),
    (1, "F16", Some(DType::F16)),
    (2, "Q4_0", Some(DType::Q4_0)),
    (3, "Q4_1", Some(DType::Q4_1)),
    (6, "Q5_0", Some(DType::Q5_0)),
    (7, "Q5_1", Some(DType::Q5_1)),
    (8, "Q8_0", Some(DType::Q8_0)),
    (9, "Q8_1", None),
    (10, "Q2_K", Some(DType::Q2_K)),
    (11, "Q3_K", Some(DType::Q3_K)),
    (12, "Q4_K", Some(DType::Q4_K)),
    (13, "Q5_K", Some(DType::Q5_K)),
    (14, "Q6_K", Some(DType::Q6_K)),
    (15, "Q8_K", None),
    (16, "IQ2_XXS", None),
    (17, "IQ2_XS", None),
    (18, "IQ3_XXS", None),
    (19, "IQ1_S", None),
    (20, "IQ4_NL", Some(DType::IQ4_NL)),
    (21, "IQ3_S", None),
    (22, "IQ2_S", None),
    (23, "IQ4_XS", Some(DType::IQ4_XS)),
    (24, "I8", None),
    (25, "I16", None),
    (26, "I32", None),
    (27, "I64", None),
    (28, "F64", None),
    (29, "IQ1_M", None),
    (30, "BF16", Some(DType::BF16)),
    (31, "Q4_0_4_4", None),
    (32, "Q4_0_4_8", None),
    (33, "Q4_0_8_8", None),
    (34, "TQ1_0", None),
    (35, "TQ2_0", None),
    (36, "IQ4_NL_4_4", None),
    (37, "IQ4_NL_4_8", None),
    (38, "IQ4_NL_8_8", None),
    (39, "MXFP4", Some(DType::MXFP4)),
    (40, "NVFP4", None),
    (41, "Q1_0", None),
];

/// The type of a number in a file; otherwise its ggml name, or the number where it has none.
pub(super) fn dtype_of_id(id: u32) -> Result<DType, String> {
    match GGML_TYPES.iter().find(|entry| entry.0 == id) {
        Some(&(_, _, Some(dtype))) => Ok(dtype),
        Some(&(_, name, None)) => Err(name.to_owned()),
        None => Err(format!("number {id} (unknown)")),
    }
}

/// The types of tensors that files can have, as far as they are supported, in the order of their numbers.
pub fn tensor_types() -> impl Iterator<Item = (&'static str, DType)> {
    GGML_TYPES.iter().filter_map(|&(_, name, dtype)| Some((name, dtype?)))
}

/// The number of a type in files; `None` for types that exist only at run time.
pub(super) fn id_of_dtype(dtype: DType) -> Option<u32> {
    GGML_TYPES.iter().find(|entry| entry.2 == Some(dtype)).map(|entry| entry.0)
}
