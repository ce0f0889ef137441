//! Adapters, which requests choose as models.

use clearway::DType;
use clearway_llm::engine::{Adapter, Adapters};
use clearway_llm::gguf::{Gguf, GgufWriter};
use serde_json::{Value, json};

use crate::server::{MODEL, Running, Setup, model};

/// An adapter of rank 2 of every matrix of the model's layers.
fn adapter(name: &str, scale: f32) -> Adapter {
    let base = Gguf::open(model()).unwrap();
    let mut writer = GgufWriter::new();
    for (key, value) in
        [("general.type", "adapter"), ("general.architecture", "llama"), ("adapter.type", "lora")]
    {
        writer.set(key, value).unwrap();
    }
    for tensor in base.tensors().filter(|tensor| tensor.name().starts_with("blk.")) {
        let &[width, rows] = tensor.dims() else { continue };
        for (half, dims) in [("lora_a", [width, 2]), ("lora_b", [2, rows])] {
            let numbers = (0..dims[0] as u32 * dims[1] as u32).map(|index| {
                let hash = (index + 1).wrapping_mul(0x9e37_79b9) >> 8;
                (hash % 1000) as f32 / 4000.0 - 0.125
            });
            let bytes: Vec<u8> = numbers.flat_map(f32::to_le_bytes).collect();
            let name = format!("{}.{half}", tensor.name());
            let write = move |out: &mut dyn std::io::Write| out.write_all(&bytes);
            writer.tensor(&name, DType::F32, &dims, write).unwrap();
        }
    }
    let mut bytes = Vec::new();
    writer.write_to(&mut bytes).unwrap();
    Adapter::new(name, &Gguf::from_bytes(bytes).unwrap(), scale).unwrap()
}

#[test]
fn requests_choose_adapters_as_models() {
    let adapters = Adapters::ByText(vec![adapter("sql", 8.0), adapter("poems", -5.0)]);
    let server = Setup { adapters, ..Setup::default() }.start();
    server.wait();
    // How likely each token of a text was.
    let likely = |model: &str| -> Vec<f64> {
        let body = json!({ "model": model, "prompt": "Once upon a time there was a road and on",
            "max_tokens": 3, "temperature": 0, "ignore_eos": true, "logprobs": 1 });
        let answer = server.client.post("/v1/completions", &body).json();
        assert_eq!(answer["model"], model, "{answer}");
        let found = answer["choices"][0]["logprobs"]["token_logprobs"].clone();
        serde_json::from_value(found).unwrap()
    };
    let distance = |a: &[f64], b: &[f64]| {
        assert_eq!((a.len(), b.len()), (3, 3));
        a.iter().zip(b).map(|(a, b)| (a - b).abs()).fold(0.0, f64::max)
    };
    let alone = [MODEL, "sql", "poems"].map(likely);
    for (a, b) in [(0, 1), (1, 2), (0, 2)] {
        assert!(distance(&alone[a], &alone[b]) > 0.01, "{alone:?}");
    }
    // The second time their prompts are in the cache, each in its own blocks.
    let again = std::thread::scope(|scope| {
        let ask = |model| scope.spawn(move || likely(model));
        [MODEL, "sql", "poems"].map(ask).map(|thread| thread.join().unwrap())
    });
    for (again, alone) in again.iter().zip(&alone) {
        assert!(distance(again, alone) < 1e-3, "{again:?} {alone:?}");
    }
    let chat = json!({ "model": "sql", "messages": [{ "role": "user", "content": "Hi" }],
        "max_tokens": 2 });
    let answer = server.client.post("/v1/chat/completions", &chat);
    assert_eq!((answer.status, &answer.json()["model"]), (200, &json!("sql")));

    let models = server.client.get("/v1/models").json();
    let field = |name: &str| -> Vec<Value> {
        models["data"].as_array().unwrap().iter().map(|model| model[name].clone()).collect()
    };
    assert_eq!(field("id"), [MODEL, "sql", "poems"]);
    assert_eq!(field("parent"), [Value::Null, json!(MODEL), json!(MODEL)]);
    assert_eq!(field("root"), [MODEL, "sql", "poems"]);
    assert_eq!(server.client.get("/v1/models/poems").json()["parent"], MODEL);
    let other = server.client.post("/v1/completions", &json!({ "model": "no", "prompt": "a" }));
    assert_eq!(other.status, 404);
    assert!(other.error().contains("tiny, sql, poems"), "{}", other.error());
    let vectors = json!({ "model": "sql", "input": "a" });
    let vectors = server.client.post("/v1/embeddings", &vectors);
    assert_eq!(vectors.status, 400);
    assert!(vectors.error().contains("adapter"), "{}", vectors.error());
    assert!(server.client.get("/metrics").body.contains("max_lora=\"2\""));
}

#[test]
fn without_adapters_their_names_are_unknown() {
    let server = Running::new();
    let answer = server.client.post("/v1/completions", &json!({ "model": "sql", "prompt": "a" }));
    assert_eq!(answer.status, 404);
    assert_eq!(server.client.get("/v1/models").json()["data"].as_array().unwrap().len(), 1);
}
