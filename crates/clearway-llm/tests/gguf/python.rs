//! Files written by the `gguf` Python package, see `data/make_gguf.py`.

use std::path::PathBuf;

use clearway_llm::gguf::{Gguf, Value, ValueType};

use crate::{file_types, fuzz_one::fuzz_one, pattern};

const FILE: &[u8] = include_bytes!("../data/python.gguf");

fn data(name: &str) -> PathBuf {
    PathBuf::from(env!("CARGO_MANIFEST_DIR")).join("tests/data").join(name)
}

#[test]
fn all_values_are_read() {
    let m = Gguf::from_bytes(FILE).unwrap();
    let meta = m.metadata();
    let scalars = [
        ("general.architecture", Value::Str(b"llama")),
        ("general.alignment", Value::U32(64)),
        ("test.u8", Value::U8(200)),
        ("test.i8", Value::I8(-100)),
        ("test.u16", Value::U16(60_000)),
        ("test.i16", Value::I16(-30_000)),
        ("test.u32", Value::U32(4_000_000_000)),
        ("test.i32", Value::I32(-2_000_000_000)),
        ("test.f32", Value::F32(0.1)),
        ("test.u64", Value::U64(u64::MAX)),
        ("test.i64", Value::I64(i64::MIN)),
        ("test.f64", Value::F64(0.1)),
        ("test.true", Value::Bool(true)),
        ("test.false", Value::Bool(false)),
        ("test.text", Value::Str("grün 🙂 \n".as_bytes())),
        ("test.bytes", Value::Str(b"\xff\xfe\0")),
    ];
    for (key, value) in scalars {
        assert_eq!(meta.get(key), Some(value), "{key}");
    }
    let arrays: [(&str, &[Value<'_>]); 9] = [
        ("test.array.i32", &[Value::I32(1), Value::I32(-2), Value::I32(3)]),
        ("test.array.u16", &[Value::U16(1), Value::U16(65_535)]),
        ("test.array.i8", &[Value::I8(-1), Value::I8(127)]),
        ("test.array.u8", &[Value::U8(0), Value::U8(128), Value::U8(255)]),
        ("test.array.u64", &[Value::U64(1 << 40), Value::U64(5)]),
        ("test.array.f32", &[Value::F32(0.5), Value::F32(-1.25), Value::F32(1e-30)]),
        ("test.array.f64", &[Value::F64(0.5), Value::F64(1e300)]),
        ("test.array.bool", &[Value::Bool(true), Value::Bool(false), Value::Bool(true)]),
        (
            "test.array.bytes",
            &[Value::Str(b"\xf0\x9f"), Value::Str(b""), Value::Str("é".as_bytes())],
        ),
    ];
    for (key, values) in arrays {
        let Some(Value::Array(array)) = meta.get(key) else { panic!("{key} is no array") };
        assert_eq!(array.iter().collect::<Vec<_>>(), values, "{key}");
    }
    assert_eq!(nested(meta.get("test.array.nested").unwrap()), "[[[1 2 ] [3 ] ] [[4 5 6 ] ] ] ");
    let tokens = meta.strings("tokenizer.ggml.tokens").unwrap();
    assert!(tokens.iter().eq((0..300).map(|i| format!("token {i}").into_bytes())));
    let scores = meta.f32s("tokenizer.ggml.scores").unwrap();
    assert!(scores.iter().eq((0..300).map(|i| i as f32 / 4.0)));
    assert_eq!(meta.len(), scalars.len() + arrays.len() + 3);
}

#[test]
fn all_tensors_are_read() {
    let m = Gguf::from_bytes(FILE).unwrap();
    for (i, dtype) in file_types().enumerate() {
        let tensor = m.tensor(&format!("tensor.{}", dtype.name().to_uppercase())).unwrap();
        assert_eq!((tensor.dtype(), tensor.dims()), (dtype, &[256, 2, 1][..]), "{tensor:?}");
        assert_eq!(
            tensor.bytes(),
            pattern(512 / dtype.block_elems() * dtype.block_bytes(), i),
            "{tensor:?}"
        );
        assert_eq!(tensor.file_offset() % 64, 0);
    }
    let values = m.tensor("values").unwrap();
    assert_eq!(values.dims(), [9]);
    let floats: Vec<f32> =
        values.bytes().chunks(4).map(|b| f32::from_le_bytes(b.try_into().unwrap())).collect();
    assert_eq!(floats, [-1.0, -0.75, -0.5, -0.25, 0.0, 0.25, 0.5, 0.75, 1.0]);
    assert_eq!(m.tensors().len(), 17);
    assert!(fuzz_one(FILE));
}

#[test]
fn a_split_model_is_opened_by_any_part() {
    for part in 1..=3 {
        let m = Gguf::open(data(&format!("python-0000{part}-of-00003.gguf"))).unwrap();
        assert_eq!((m.parts(), m.tensors().len()), (3, 5));
        assert_eq!(m.metadata().u32("llama.block_count").unwrap(), 5);
        for i in 0..5_usize {
            let tensor = m.tensor(&format!("blk.{i}.weight")).unwrap();
            assert_eq!(tensor.dims(), [i + 1, 4]);
            assert_eq!(tensor.bytes(), (i as f32).to_le_bytes().repeat(4 * (i + 1)));
        }
    }
}

fn nested(value: Value<'_>) -> String {
    match value {
        Value::Array(a) => {
            assert!(matches!(a.element_type(), ValueType::Array | ValueType::I32));
            format!("[{}] ", a.iter().map(nested).collect::<String>())
        }
        other => format!("{other} "),
    }
}
