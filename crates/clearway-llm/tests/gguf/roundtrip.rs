//! What the writer writes, the reader reads: every value type, every tensor type, every lookup.

use clearway_graph::DType;
use clearway_llm::gguf::{ByteStr, Gguf, GgufError, GgufWriter, Value, ValueType};

use crate::{file_types, fuzz_one::fuzz_one, pattern, small_file, written};

fn model(fill: impl FnOnce(&mut GgufWriter<'_>) -> Result<(), GgufError>) -> Gguf {
    let mut w = GgufWriter::new();
    fill(&mut w).unwrap();
    Gguf::from_bytes(written(w)).unwrap()
}

#[test]
fn every_scalar_type_keeps_its_extremes() {
    macro_rules! check {
        ($($ty:ident $value:ident)*) => {$(
            for number in [$ty::MIN, $ty::MAX, $ty::MAX / (2 as $ty)] {
                let m = model(|w| w.set("key", &number));
                assert_eq!(m.metadata().get("key"), Some(Value::$value(number)));
                assert_eq!(m.metadata().get("key").unwrap().value_type(), ValueType::$value);
            }
        )*};
    }
    check!(u8 U8 i8 I8 u16 U16 i16 I16 u32 U32 i32 I32 u64 U64 i64 I64 f32 F32 f64 F64);
    for truth in [true, false] {
        assert_eq!(model(|w| w.set("key", &truth)).metadata().get("key"), Some(Value::Bool(truth)));
    }
    for text in ["", "é 🙂\n", &"long ".repeat(10_000)] {
        assert_eq!(model(|w| w.set("key", text)).metadata().str("key").unwrap(), text);
    }
}

#[test]
fn arrays_of_every_type_and_depth() {
    macro_rules! check {
        ($($items:expr, $value:expr;)*) => {$(
            for n in [0, 1, $items.len()] {
                let m = model(|w| w.set("key", &$items[..n]));
                let Some(Value::Array(array)) = m.metadata().get("key") else { panic!("no array") };
                assert_eq!(array.len(), n);
                let expected: Vec<Value<'_>> = $items[..n].iter().map(|&v| $value(v)).collect();
                assert_eq!(array.iter().collect::<Vec<_>>(), expected);
            }
        )*};
    }
    check! {
        [1_u8, 2, 255], Value::U8; [-1_i8, 2, -128], Value::I8; [1_u16, 2, 65535], Value::U16;
        [-1_i16, 2, 3], Value::I16; [1_u32, 2, u32::MAX], Value::U32; [i32::MIN, 2, 3], Value::I32;
        [0.1_f32, -2., 3.], Value::F32; [true, false, true], Value::Bool;
        [1_u64, 2, u64::MAX], Value::U64; [i64::MIN, 2, 3], Value::I64; [0.1_f64, 2., 3.], Value::F64;
        ["a", "", "ccc"], |s: &'static str| Value::Str(s.as_bytes());
    }
    let m = model(|w| w.set("key", &[vec![vec!["x", "yy"]], vec![], vec![vec![], vec!["z"]]]));
    let Some(Value::Array(outer)) = m.metadata().get("key") else { panic!("no array") };
    let flat = |v: Value<'_>| match v {
        Value::Array(a) => a.iter().map(|v| v.to_string()).collect::<Vec<_>>(),
        other => panic!("{other} is no array"),
    };
    let items: Vec<Vec<String>> = outer.iter().map(flat).collect();
    assert_eq!(
        items,
        [vec![r#"2 x string ["x", "yy"]"#], vec![], vec!["0 x string []", r#"1 x string ["z"]"#]]
    );
}

#[test]
fn every_tensor_type_under_several_alignments_in_both_versions() {
    for (version, alignment) in
        [(3, None), (2, None), (3, Some(1)), (3, Some(8)), (2, Some(4096)), (3, Some(1 << 21))]
    {
        let data: Vec<Vec<u8>> = file_types()
            .enumerate()
            .map(|(i, t)| pattern(512 / t.block_elems() * t.block_bytes(), i))
            .collect();
        let mut w = GgufWriter::new();
        w.set_version(version).unwrap();
        if let Some(alignment) = alignment {
            w.set("general.alignment", &(alignment as u32)).unwrap();
        }
        for (dtype, bytes) in file_types().zip(&data) {
            w.tensor_bytes(dtype.name(), dtype, &[256, 1, 2], bytes).unwrap();
        }
        let file = written(w);
        let m = Gguf::from_bytes(file.as_slice()).unwrap();
        assert_eq!((m.version(), m.tensors().len(), m.parts()), (version, 16, 1));
        assert_eq!(m.file_bytes(), file.len() as u64);
        assert_eq!(m.tensor_bytes(), data.iter().map(|d| d.len() as u64).sum::<u64>());
        for ((dtype, bytes), in_order) in file_types().zip(&data).zip(m.tensors()) {
            let tensor = m.tensor(dtype.name()).unwrap();
            assert_eq!(tensor.name(), in_order.name());
            assert_eq!(
                (tensor.dtype(), tensor.dims(), tensor.elements()),
                (dtype, &[256, 1, 2][..], 512)
            );
            assert_eq!(tensor.bytes(), bytes);
            assert_eq!(tensor.file_offset() % alignment.unwrap_or(32), 0);
            assert_eq!(&file[tensor.file_offset()..][..bytes.len()], bytes);
        }
    }
}

#[test]
fn lookups_convert_what_fits_and_name_what_does_not() {
    let m = model(|w| {
        w.set("arch", "llama")?;
        w.set("bad", &ByteStr(b"\xff"))?;
        w.set("small", &7_u8)?;
        w.set("minus", &-7_i64)?;
        w.set("big", &u64::MAX)?;
        w.set("eps", &1e-5_f64)?;
        w.set("flag", &true)?;
        w.set("tokens", &["a", "b"])?;
        w.set("types", &[1_u8, 2, 3])?;
        w.set("wide", &[1_i64, 1 << 40])?;
        w.set("scores", &[0.5_f32, -1.0])
    });
    let meta = m.metadata();
    assert_eq!(meta.u32("small").unwrap(), 7);
    assert_eq!(meta.i32("minus").unwrap(), -7);
    assert_eq!(meta.u64("big").unwrap(), u64::MAX);
    assert_eq!(meta.f32("eps").unwrap(), 1e-5);
    assert!(meta.bool("flag").unwrap());
    assert_eq!(meta.optional::<u32>("absent").unwrap(), None);
    assert_eq!(meta.required::<usize>("small").unwrap(), 7);
    assert_eq!(meta.strings("tokens").unwrap().into_iter().collect::<Vec<_>>(), [b"a", b"b"]);
    assert_eq!(meta.i32s("types").unwrap().to_vec(), [1, 2, 3]);
    assert_eq!(meta.u32s("types").unwrap().get(2), Some(3));
    assert_eq!(meta.u32s("types").unwrap().get(3), None);
    assert_eq!(meta.required::<&[u8]>("types").unwrap(), [1, 2, 3]);
    assert_eq!(meta.f32s("scores").unwrap().to_vec(), [0.5, -1.0]);
    for (result, message) in [
        (meta.u32("absent").map(|_| ()), r#"metadata key "absent" is missing"#),
        (meta.u32("arch").map(|_| ()), r#"metadata key "arch" should be u32, but is string"#),
        (
            meta.u32("minus").map(|_| ()),
            r#"metadata key "minus" should be u32, but -7 is out of range"#,
        ),
        (
            meta.i32("big").map(|_| ()),
            r#"metadata key "big" should be i32, but 18446744073709551615 is out of range"#,
        ),
        (meta.f32("small").map(|_| ()), r#"metadata key "small" should be f32, but is u8"#),
        (meta.bool("small").map(|_| ()), r#"metadata key "small" should be bool, but is u8"#),
        (meta.str("bad").map(|_| ()), r#"metadata key "bad" holds text that is not UTF-8"#),
        (
            meta.str("tokens").map(|_| ()),
            r#"metadata key "tokens" should be string, but is array of 2 string"#,
        ),
        (
            meta.strings("types").map(|_| ()),
            r#"metadata key "types" should be array of string, but is array of 3 u8"#,
        ),
        (
            meta.i32s("wide").map(|_| ()),
            r#"metadata key "wide" should be array of i32, but 1099511627776 is out of range"#,
        ),
        (
            meta.i32s("scores").map(|_| ()),
            r#"metadata key "scores" should be array of i32, but is array of 2 f32"#,
        ),
        (
            meta.f32s("arch").map(|_| ()),
            r#"metadata key "arch" should be array of f32, but is string"#,
        ),
        (m.tensor("absent").map(|_| ()), r#"tensor "absent" is missing"#),
    ] {
        assert_eq!(result.unwrap_err().to_string(), message);
    }
}

#[test]
fn values_print_on_one_short_line() {
    let m = model(|w| {
        w.set("long", &"x".repeat(1000))?;
        w.set("control", "a\x1b[31m\n'\"")?;
        w.set("many", &vec![1_i32; 1000])
    });
    let shown = |key: &str| m.metadata().get(key).unwrap().to_string();
    assert_eq!(shown("long"), format!("\"{}…\"", "x".repeat(80)));
    assert_eq!(shown("control"), r#""a\u{1b}[31m\n'\"""#);
    assert_eq!(shown("many"), "1000 x i32 [1, 1, 1, 1, 1, 1, …]");
}

#[test]
fn the_writer_refuses_what_the_reader_would() {
    let mut w = GgufWriter::new();
    w.set("key", &1_u32).unwrap();
    w.tensor_bytes("t", DType::F32, &[1], &[0; 4]).unwrap();
    assert!(matches!(w.set("key", "again"), Err(GgufError::DuplicateKey { .. })));
    assert!(matches!(w.set(&"k".repeat(65_536), "long"), Err(GgufError::NameLength { .. })));
    assert!(matches!(
        w.set("general.alignment", &24_u32),
        Err(GgufError::Alignment { alignment: 24, .. })
    ));
    assert!(matches!(w.set("general.alignment", "x"), Err(GgufError::Alignment { .. })));
    assert!(matches!(w.set_version(1), Err(GgufError::Version { version: 1 })));
    let mut tensor =
        |name: &str, dtype, dims: &[usize]| w.tensor_bytes(name, dtype, dims, &[]).unwrap_err();
    assert!(matches!(tensor("t", DType::F32, &[1]), GgufError::DuplicateTensor { .. }));
    assert!(matches!(tensor(&"n".repeat(256), DType::F32, &[1]), GgufError::NameLength { .. }));
    assert!(matches!(tensor("u", DType::U32, &[1]), GgufError::NotInFormat { .. }));
    assert!(matches!(tensor("u", DType::F32, &[]), GgufError::DimCount { count: 0, .. }));
    assert!(matches!(tensor("u", DType::F32, &[1; 5]), GgufError::DimCount { count: 5, .. }));
    assert!(matches!(tensor("u", DType::F32, &[3, 0]), GgufError::Dims { .. }));
    assert!(matches!(tensor("u", DType::F32, &[usize::MAX, 2]), GgufError::Dims { .. }));
    assert!(matches!(tensor("u", DType::F32, &[usize::MAX / 4]), GgufError::Dims { .. }));
    assert!(matches!(
        tensor("u", DType::Q4_K, &[128, 2]),
        GgufError::RowBlocks { row: 128, block: 256, .. }
    ));
    // What was refused has left nothing behind.
    let m = Gguf::from_bytes(written(w)).unwrap();
    assert_eq!((m.metadata().len(), m.tensors().len()), (1, 1));
}

#[test]
fn producers_must_keep_to_the_length() {
    for given in [0, 11, 13] {
        let mut w = GgufWriter::new();
        w.tensor("t", DType::F32, &[3], move |out| out.write_all(&vec![0; given])).unwrap();
        let error = w.write_to(Vec::new()).unwrap_err();
        assert_eq!(
            error.to_string(),
            format!(r#"tensor "t" takes 12 bytes, but {given} were given"#)
        );
    }
    let mut w = GgufWriter::new();
    w.tensor("t", DType::F32, &[3], |_| Err(std::io::Error::other("no data"))).unwrap();
    assert_eq!(
        w.write_to(Vec::new()).unwrap_err().to_string(),
        "cannot write the GGUF file: no data"
    );
}

#[test]
fn copies_are_equal() {
    assert!(fuzz_one(&small_file()));
}

#[test]
fn a_large_vocabulary_is_cheap() {
    let tokens: Vec<String> = (0..150_000).map(|i| format!("token-{i}")).collect();
    let file = written({
        let mut w = GgufWriter::new();
        w.set("tokenizer.ggml.tokens", &tokens).unwrap();
        w.set("tokenizer.ggml.token_type", &vec![1_i32; tokens.len()]).unwrap();
        w
    });
    let start = std::time::Instant::now();
    let m = Gguf::from_bytes(file).unwrap();
    // A thousand lookups must not walk through the strings a thousand times.
    for _ in 0..1000 {
        assert_eq!(m.metadata().strings("tokenizer.ggml.tokens").unwrap().len(), tokens.len());
    }
    assert!(
        m.metadata()
            .strings("tokenizer.ggml.tokens")
            .unwrap()
            .iter()
            .eq(tokens.iter().map(|t| t.as_bytes()))
    );
    assert!(start.elapsed().as_millis() < 500, "{:?}", start.elapsed());
}
