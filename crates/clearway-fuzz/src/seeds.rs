//! Inputs that the targets begin with, and the words that decide how they are read.

use clearway_graph::DType;
use clearway_llm::gguf::{ByteStr, GgufWriter};
use clearway_llm::model::{self, Arch, ModelShape, POSITIONS, ROPE_FACTORS, RecordOptions, TOKENS};

/// Of model files.
pub(crate) const GGUF_WORDS: &[&[u8]] = &[
    b"GGUF",
    b"GGUF\x03\0\0\0",
    b"GGUF\x02\0\0\0",
    b"general.alignment",
    b"split.no",
    b"split.count",
    b"split.tensors.count",
    b"llama.block_count",
    b"tokenizer.ggml.tokens",
    b"tokenizer.ggml.merges",
    b"blk.",
    b"\x07\0\0\0",
    b"\x08\0\0\0",
    b"\x09\0\0\0",
    b"\x01\0\0\0\0\0\0\0",
    b"\x20\0\0\0\0\0\0\0",
    b"\0\0\0\0\0\0\0\x80",
    b"\xe0\xff\xff\xff\xff\xff\xff\xff",
];
/// Of vocabularies.
pub(crate) const TOKENIZER_WORDS: &[&[u8]] = &[
    b"\0",
    b"<0x41>",
    "Ġ".as_bytes(),
    "▁".as_bytes(),
    b"\x09a",
    b"\x19a b",
    b"  ",
    b"\r\n",
    "é".as_bytes(),
];
/// Of chat templates.
pub(crate) const TEMPLATE_WORDS: &[&[u8]] = &[
    b"{% for m in messages %}",
    b"{% endfor %}",
    b"{% if true %}",
    b"{% endif %}",
    b"{% set x = [1] * 9999 %}",
    b"{{ m.content }}",
    b"{{ x * 99999 }}",
    b"{% macro f(x) %}",
    b"{% endmacro %}",
    b"{{ f(f) }}",
    b"{% generation %}",
    b"{% endgeneration %}",
    b"| tojson",
    b"| trim",
    b"range(10 ** 9)",
    b"raise_exception('x')",
    b"namespace(a=1)",
    b"loop.previtem",
    b"messages[1:][::-1]",
    b"{#",
    b"-}}",
];
/// Of placement problems.
pub(crate) const PLAN_WORDS: &[&[u8]] = &[
    b"id,lower,upper,size\n",
    b"offset",
    b"\n",
    b",",
    b"18446744073709551615",
    b"0",
    b"-1",
    b"\xef\xbb\xbf",
];
/// Of a hub's answers.
pub(crate) const HUB_WORDS: &[&[u8]] = &[
    b"\0",
    b"\"rfilename\":",
    b"\"siblings\":[",
    b"m-Q4_K_M.gguf",
    b"../",
    b"/",
    b"-00001-of-00002.gguf",
    b"-99999-of-99999.gguf",
    b"https://hub.example:8443/",
    b"http://",
    b"//",
    b"@",
    b"bytes 0-1/2",
    b"hf:user/repo:",
];

/// Of requests to the server.
pub(crate) const HTTP_WORDS: &[&[u8]] = &[
    b"\"messages\":[{\"role\":\"user\",\"content\":",
    b"\"tools\":[{\"type\":\"function\",\"function\":{\"name\":\"f\",\"parameters\":",
    b"\"tool_choice\":\"required\"",
    b"\"response_format\":{\"type\":\"json_schema\",\"json_schema\":{\"schema\":",
    b"\"type\":\"regex\",\"regex\":",
    b"\"type\":\"lark\",\"grammar\":",
    b"\"stop\":",
    b"\"n\":128",
    b"\"seed\":-9223372036854775808",
    b"\"logit_bias\":{\"1\":-100}",
    b"null",
    b"1e999",
    b"\\u0000",
    b"\\ud800",
    b"[[[[[[[[",
];

/// Model files of every kind, the last one complete.
pub(crate) fn gguf() -> Vec<Vec<u8>> {
    let empty = written(GgufWriter::new());
    let mut scalars = GgufWriter::new();
    scalars.set("general.alignment", &16_u32).unwrap();
    scalars.set("u8", &1_u8).unwrap();
    scalars.set("i16", &-2_i16).unwrap();
    scalars.set("f32", &0.5_f32).unwrap();
    scalars.set("bool", &true).unwrap();
    scalars.set("u64", &4_u64).unwrap();
    scalars.set("f64", &0.25_f64).unwrap();
    let mut arrays = GgufWriter::new();
    arrays.set("strings", &[ByteStr(b"a"), ByteStr(b"\xff"), ByteStr(b"")]).unwrap();
    arrays.set("bools", &[true, false]).unwrap();
    arrays.set("nested", &[vec![[1_u8, 2]], vec![[3, 4], [5, 6]]]).unwrap();
    let mut tensors = GgufWriter::new();
    for (i, dtype) in [DType::F32, DType::Q8_0, DType::Q4_K, DType::IQ4_XS].into_iter().enumerate()
    {
        let row = dtype.block_elems().max(2);
        let bytes = row / dtype.block_elems() * dtype.block_bytes();
        let write = move |out: &mut dyn std::io::Write| out.write_all(&vec![7; bytes]);
        tensors.tensor(&format!("t{i}"), dtype, &[row], write).unwrap();
    }
    let parts = (0..2_u16).flat_map(|no| {
        let mut part = GgufWriter::new();
        part.set("split.no", &no).unwrap();
        part.set("split.count", &2_u16).unwrap();
        part.set("split.tensors.count", &2_i32).unwrap();
        part.tensor(&format!("t{no}"), DType::F32, &[1], |out| out.write_all(&[0; 4])).unwrap();
        written(part)
    });
    vec![empty, written(scalars), written(arrays), written(tensors), parts.collect(), model()]
}

/// The smallest model that an engine takes, with a vocabulary and a template.
fn model() -> Vec<u8> {
    let shape =
        ModelShape { tied: true, ..ModelShape::new("seed", Arch::Llama, 1, 4, 4, 2, 1, 2, 6) };
    let mut writer = GgufWriter::new();
    writer.set("general.architecture", "llama").unwrap();
    for (key, value) in [
        ("block_count", 1_u32),
        ("context_length", 8),
        ("embedding_length", 4),
        ("feed_forward_length", 4),
        ("attention.head_count", 2),
        ("attention.head_count_kv", 1),
    ] {
        writer.set(&format!("llama.{key}"), &value).unwrap();
    }
    writer.set("llama.attention.layer_norm_rms_epsilon", &1e-5_f32).unwrap();
    writer.set("tokenizer.ggml.model", "gpt2").unwrap();
    writer.set("tokenizer.ggml.pre", "gpt-2").unwrap();
    writer.set("tokenizer.ggml.tokens", &["a", "b", "ab", "Ġ", "<s>", "</s>"]).unwrap();
    writer.set("tokenizer.ggml.token_type", &[1, 1, 1, 1, 3, 3]).unwrap();
    writer.set("tokenizer.ggml.merges", &["a b"]).unwrap();
    writer.set("tokenizer.ggml.eos_token_id", &5_u32).unwrap();
    writer.set("tokenizer.chat_template", "{{ messages[0].content }}").unwrap();
    let record = RecordOptions { weight_dtype: &|_| DType::F32, ..RecordOptions::new(1, 1) };
    for external in model::record(&shape, &record).unwrap().into_externals() {
        let name = &*external.name;
        if [TOKENS, POSITIONS, ROPE_FACTORS].contains(&name) || name.starts_with("cache.") {
            continue;
        }
        let layout = external.view.layout;
        let dims: Vec<usize> = layout.dims().iter().rev().map(|&dim| dim as usize).collect();
        let bytes = layout.elems() * 4;
        let write = move |out: &mut dyn std::io::Write| out.write_all(&vec![0; bytes]);
        writer.tensor(name, DType::F32, &dims, write).unwrap();
    }
    written(writer)
}

fn written(writer: GgufWriter<'_>) -> Vec<u8> {
    let mut file = Vec::new();
    writer.write_to(&mut file).unwrap();
    file
}

/// Options, tokens, merges and a text, as `fuzz_tokenizer` reads them, of both kinds.
pub(crate) fn tokenizer() -> Vec<Vec<u8>> {
    let records = |strings: &[&str]| {
        let mut out = Vec::new();
        for string in strings {
            out.push((string.len() as u8) << 3 | 1);
            out.extend(string.as_bytes());
        }
        out.push(0);
        out
    };
    let input = |flags: u8, tokens: &[&str], merges: &[&str], text: &str| {
        let mut out = vec![flags, 0, 1];
        out.extend(records(tokens));
        out.extend(records(merges));
        out.extend(text.as_bytes());
        out
    };
    vec![
        input(0b0000_0000, &["a", "b", "ab", "Ġ", "Ġa"], &["a b", "Ġ a"], "ab a\nb"),
        input(0b0111_1111, &["<unk>", "▁a", "a", "▁", "b", "<0x41>"], &[], "a b  a A é"),
    ]
}

/// Templates of the common formats.
pub(crate) fn template() -> Vec<Vec<u8>> {
    let chatml = "{% for m in messages %}{{ '<|im_start|>' + m['role'] + '\\n' + m.content | trim }}\
                  {% endfor %}{% if add_generation_prompt %}<|im_start|>assistant\n{% endif %}";
    let macros = "{%- macro f(x, n=2) -%}{{ x * n }}{%- endmacro -%}{% set ns = namespace(i=0) %}\
                  {% for m in messages[::-1] %}{% set ns.i = ns.i + loop.index0 %}{{ f(m.role) }}\
                  {% if loop.last and not ns.i is none %}{{ ns | tojson }}{% endif %}{% endfor %}";
    let strings = "{{ bos_token }}{{ messages | map(attribute='content') | join(', ') | upper }}\
                   {{ 'a,b'.split(',')[1] ~ strftime_now('%Y') if true else raise_exception('no') }}";
    [chatml, macros, strings].map(|text| text.as_bytes().to_vec()).to_vec()
}

/// A small problem, and one that was solved.
pub(crate) fn plan() -> Vec<Vec<u8>> {
    let problem = "id,lower,upper,size\na,0,3,4\nb,3,9,4\nc,0,9,8\nd,2,4,1\n";
    let solved = "size,offset,upper,lower,id\n4,0,3,0,x y\n4,4,9,1,z\n";
    [problem, solved].map(|text| text.as_bytes().to_vec()).to_vec()
}

/// A description of a repository with a redirect, a range and a name.
pub(crate) fn hub() -> Vec<Vec<u8>> {
    let json = r#"{"sha":"0123abcd","siblings":[{"rfilename":"m-Q4_K_M.gguf","size":3,"lfs":
        {"sha256":"00","size":3}},{"rfilename":"sub/m-Q8_0.gguf"},{"rfilename":"../m.gguf"},
        {"rfilename":"x-00001-of-00002.gguf"},{"rfilename":"x-00002-of-00002.gguf"}]}"#;
    let plain = format!("{json}\0/moved/file\0bytes 5-9/10\0hf:user/repo:Q8_0");
    let away = "{}\0https://hub.example:8443/x\0bytes */10\0hf:user/repo".to_owned();
    vec![plain.into_bytes(), away.into_bytes()]
}

/// A request to each endpoint.
pub(crate) fn http() -> Vec<Vec<u8>> {
    let tool = r#"{"type":"function","function":{"name":"f","parameters":{"type":"object","properties":{"a":{"enum":[1]}}}}}"#;
    let user = r#"[{"role":"user","content":"a b"}]"#;
    let requests = [
        format!(
            "\0{{\"messages\":{user},\"max_tokens\":4,\"stop\":[\"x\"],\"n\":2,\"logit_bias\":{{\"3\":1}}}}"
        ),
        format!("\0{{\"messages\":{user},\"tools\":[{tool}],\"tool_choice\":\"required\"}}"),
        format!("\0{{\"messages\":{user},\"response_format\":{{\"type\":\"json_object\"}}}}"),
        "\u{1}{\"prompt\":[\"a\",\"b\"],\"max_tokens\":3,\"stream\":true,\"echo\":true}".to_owned(),
        "\u{1}{\"prompt\":[1,2],\"response_format\":{\"type\":\"regex\",\"regex\":\"[ab]{2}\"}}"
            .to_owned(),
        "\u{2}{\"input\":\"a\",\"instructions\":\"b\",\"max_output_tokens\":3}".to_owned(),
        format!("\u{3}{{\"model\":\"m\",\"messages\":{user},\"max_tokens\":3,\"system\":\"s\"}}"),
        "\u{4}{\"input\":[\"a\",\"b\"],\"encoding_format\":\"base64\",\"dimensions\":0}".to_owned(),
        "\u{4}{\"input\":[[1,2],[3]]}".to_owned(),
    ];
    requests.map(String::into_bytes).to_vec()
}
