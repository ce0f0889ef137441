//! One step of fuzzing model files, shared by libFuzzer, the loop and the tests.
//!
//! Whatever the bytes are, reading them must not panic. If they are accepted, everything the
//! reader promises must hold, and a copy written from what was read must read the same.

use clearway_llm::engine::{chat_template, model_shape, tokenizer};
use clearway_llm::gguf::{Array, Gguf, GgufWriter, Numbers, Strings, Value};

/// Reads the bytes as one file, and as the parts of a split model, cut where `GGUF` occurs.
/// Says whether they were accepted as one file.
pub fn fuzz_one(data: &[u8]) -> bool {
    let accepted = Gguf::from_bytes(data).map_err(|error| assert!(!error.to_string().is_empty()));
    if let Ok(model) = &accepted {
        check(model);
        let copy = copy(model);
        assert_same(model, &copy);
        check_model(model);
    }
    let parts = cut(data);
    if parts.len() > 1
        && let Ok(model) = Gguf::from_parts(parts)
    {
        check(&model);
    }
    accepted.is_ok()
}

fn cut(data: &[u8]) -> Vec<&[u8]> {
    const MAGIC: &[u8] = b"GGUF";
    let mut starts: Vec<usize> =
        (0..data.len()).filter(|&i| data[i..].starts_with(MAGIC)).collect();
    starts.push(data.len());
    starts.windows(2).map(|pair| &data[pair[0]..pair[1]]).collect()
}

/// Uses everything a model offers.
fn check(model: &Gguf) {
    let meta = model.metadata();
    assert_eq!(meta.iter().count(), meta.len(), "a value did not decode");
    for (key, value) in meta.iter() {
        assert!(meta.contains(key));
        assert!(value.to_string().len() < 10_000);
        check_value(value);
        let _ = meta.optional::<u32>(key);
        let _ = meta.optional::<i64>(key);
        let _ = meta.optional::<f32>(key);
        let _ = meta.optional::<bool>(key);
        let _ = meta.optional::<&str>(key);
        let _ = meta.optional::<&[u8]>(key);
        if let Ok(Some(strings)) = meta.optional::<Strings<'_>>(key) {
            assert_eq!(strings.iter().count(), strings.len());
        }
        if let Ok(Some(numbers)) = meta.optional::<Numbers<'_, i32>>(key) {
            assert_eq!(numbers.to_vec().len(), numbers.len());
            assert_eq!(
                numbers.iter().last(),
                numbers.len().checked_sub(1).and_then(|i| numbers.get(i))
            );
        }
        if let Ok(Some(numbers)) = meta.optional::<Numbers<'_, f32>>(key) {
            assert_eq!(numbers.to_vec().len(), numbers.len());
        }
    }
    let mut total = 0;
    for tensor in model.tensors() {
        let found = model.tensor(tensor.name()).unwrap();
        assert!(std::ptr::eq(found.bytes(), tensor.bytes()));
        let (dims, dtype) = (tensor.dims(), tensor.dtype());
        assert!((1..=4).contains(&dims.len()) && dims[0] % dtype.block_elems() == 0);
        let blocks = tensor.elements() / dtype.block_elems();
        assert_eq!(tensor.bytes().len(), blocks * dtype.block_bytes());
        total += tensor.bytes().len() as u64;
    }
    // Apart from each other and inside the files, so together no longer than these.
    assert_eq!(total, model.tensor_bytes());
    assert!(total <= model.file_bytes());
}

/// Hyper-parameters and vocabulary: an error, or numbers that the file's tensors bear out.
fn check_model(model: &Gguf) {
    if let Ok(shape) = model_shape(model) {
        assert!(shape.layers <= model.tensors().len());
        assert!(shape.parameters() <= 4 * model.tensor_bytes(), "{shape:?}");
    }
    if let Ok(tokenizer) = tokenizer(model) {
        let _ = chat_template(model, &tokenizer);
    }
}

fn check_value(value: Value<'_>) {
    if let Value::Array(array) = value {
        assert_eq!(array.iter().count(), array.len(), "an element did not decode");
        array.iter().for_each(check_value);
    }
}

fn copy(model: &Gguf) -> Gguf {
    let mut writer = GgufWriter::new();
    writer.set_version(model.version()).unwrap();
    for (key, value) in model.metadata().iter() {
        writer.set_value(key, value).unwrap();
    }
    for tensor in model.tensors() {
        writer.tensor_bytes(tensor.name(), tensor.dtype(), tensor.dims(), tensor.bytes()).unwrap();
    }
    let mut file = Vec::new();
    writer.write_to(&mut file).unwrap();
    Gguf::from_bytes(file).unwrap()
}

fn assert_same(a: &Gguf, b: &Gguf) {
    assert_eq!(a.version(), b.version());
    assert_eq!(a.metadata().len(), b.metadata().len());
    for ((key_a, value_a), (key_b, value_b)) in a.metadata().iter().zip(b.metadata().iter()) {
        assert_eq!(key_a, key_b);
        assert!(same(value_a, value_b), "{key_a}: {value_a} became {value_b}");
    }
    assert_eq!(a.tensors().len(), b.tensors().len());
    for (a, b) in a.tensors().zip(b.tensors()) {
        assert_eq!((a.name(), a.dtype(), a.dims()), (b.name(), b.dtype(), b.dims()));
        assert!(a.bytes() == b.bytes(), "{} changed", a.name());
    }
}

/// Equality that also holds for numbers that are none.
fn same(a: Value<'_>, b: Value<'_>) -> bool {
    match (a, b) {
        (Value::F32(a), Value::F32(b)) => a.to_bits() == b.to_bits(),
        (Value::F64(a), Value::F64(b)) => a.to_bits() == b.to_bits(),
        (Value::Array(a), Value::Array(b)) => same_arrays(a, b),
        (a, b) => a == b,
    }
}

fn same_arrays(a: Array<'_>, b: Array<'_>) -> bool {
    a.element_type() == b.element_type()
        && a.len() == b.len()
        && a.iter().zip(b.iter()).all(|(a, b)| same(a, b))
}
