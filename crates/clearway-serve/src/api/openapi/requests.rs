//! Bodies of requests.
//!
//! Every body that the server accepts fits its schema: the tests change valid bodies at random and hold what is accepted
//! against the document. The reverse cannot hold, since no schema knows the context's length or what a template refuses.

use serde_json::{Map, Value, json};

/// Schemas by name.
pub fn schemas() -> Map<String, Value> {
    let mut schemas = conversations();
    schemas.extend([
        ("ChatRequest", chat()),
        ("CompletionRequest", completion()),
        ("EmbeddingsRequest", embeddings()),
        ("ResponsesRequest", responses()),
        ("MessagesRequest", messages()),
        (
            "CountRequest",
            object(&["messages"], with(anthropic(), vec![("model", or_null(text()))])),
        ),
        (
            "TokenizeRequest",
            one_of_two(
                "content",
                "prompt",
                vec![
                    ("model", or_null(text())),
                    ("add_special", flag()),
                    ("add_special_tokens", flag()),
                    ("parse_special", flag()),
                    ("with_pieces", flag()),
                    ("return_token_strs", flag()),
                ],
            ),
        ),
        (
            "DetokenizeRequest",
            object(&["tokens"], vec![("model", or_null(text())), ("tokens", list(token()))]),
        ),
        (
            "TemplateRequest",
            object(&["messages"], with(template(), vec![("model", or_null(text()))])),
        ),
    ]);
    schemas.into_iter().map(|(name, schema)| (name.to_owned(), schema)).collect()
}

type Field = (&'static str, Value);

fn text() -> Value {
    json!({ "type": "string" })
}

fn word(words: &[&str]) -> Value {
    json!({ "enum": words })
}

fn list(items: Value) -> Value {
    json!({ "type": "array", "items": items })
}

fn any_of(schemas: &[Value]) -> Value {
    json!({ "anyOf": schemas })
}

fn named(name: &str) -> Value {
    json!({ "$ref": format!("#/components/schemas/{name}") })
}

/// A value that may be `null`, which counts as absent.
fn or_null(schema: Value) -> Value {
    any_of(&[schema, json!({ "type": "null" })])
}

fn flag() -> Value {
    or_null(json!({ "type": "boolean" }))
}

fn number(low: f64, high: f64) -> Value {
    or_null(json!({ "type": "number", "minimum": low, "maximum": high }))
}

fn int(low: i64, high: i64) -> Value {
    or_null(json!({ "type": "integer", "minimum": low, "maximum": high }))
}

fn count() -> Value {
    int(1, i64::from(u32::MAX))
}

fn token() -> Value {
    json!({ "type": "integer", "minimum": 0, "maximum": u32::MAX })
}

/// A field that is supported with these values only.
fn only(values: &[Value]) -> Value {
    or_null(json!({ "enum": values }))
}

/// A field that is ignored, whatever it holds.
fn anything() -> Value {
    json!({})
}

/// An object. A field that is not known may be `null`, as clients send what they do not use.
fn object(required: &[&str], fields: Vec<Field>) -> Value {
    let properties: Map<String, Value> =
        fields.into_iter().map(|(name, schema)| (name.to_owned(), schema)).collect();
    json!({ "type": "object", "required": required, "properties": properties, "additionalProperties": { "type": "null" } })
}

/// An object with one of two texts.
fn one_of_two(first: &'static str, second: &'static str, fields: Vec<Field>) -> Value {
    let with_one = |name| object(&[name], with(fields.clone(), vec![(name, text())]));
    any_of(&[with_one(first), with_one(second)])
}

fn with(mut fields: Vec<Field>, more: Vec<Field>) -> Vec<Field> {
    fields.extend(more);
    fields
}

/// One string or several.
fn stops() -> Value {
    let stop = json!({ "type": "string", "maxLength": 1024 });
    or_null(any_of(&[stop.clone(), json!({ "type": "array", "items": stop, "maxItems": 16 })]))
}

/// What all endpoints that write text take.
fn sampling() -> Vec<Field> {
    vec![
        ("stream", flag()),
        ("seed", or_null(json!({ "type": "integer", "minimum": i64::MIN, "maximum": i64::MAX }))),
        ("temperature", number(0.0, 2.0)),
        ("top_p", number(0.0, 1.0)),
        ("min_p", number(0.0, 1.0)),
        ("top_k", int(-1, i64::from(u32::MAX))),
        ("frequency_penalty", number(-2.0, 2.0)),
        ("presence_penalty", number(-2.0, 2.0)),
        ("repetition_penalty", number(0.01, 100.0)),
        ("repeat_penalty", number(0.01, 100.0)),
        ("repeat_last_n", int(-1, i64::from(u32::MAX))),
        (
            "logit_bias",
            or_null(json!({
                "type": "object", "maxProperties": 1024,
                "additionalProperties": { "type": "number", "minimum": -100, "maximum": 100 },
            })),
        ),
        ("stop", stops()),
        ("stop_token_ids", or_null(list(token()))),
        ("ignore_eos", flag()),
        ("skip_special_tokens", only(&[json!(true)])),
        ("no_stop_trim", only(&[json!(false)])),
        ("return_hidden_states", only(&[json!(false)])),
    ]
}

fn stream_options() -> Value {
    or_null(object(
        &[],
        vec![
            ("include_usage", flag()),
            ("continuous_usage_stats", only(&[json!(false)])),
            ("include_obfuscation", only(&[json!(false)])),
        ],
    ))
}

/// `response_format`, or `format` of the Responses API.
fn format() -> Value {
    let kind = |words: &[&str], more: Vec<Field>, required: &[&str]| {
        let required: Vec<&str> = ["type"].iter().chain(required).copied().collect();
        object(&required, with(vec![("type", word(words))], more))
    };
    let schema = || {
        vec![
            ("name", or_null(text())),
            ("description", or_null(text())),
            ("strict", flag()),
            ("schema", json!({ "type": ["object", "boolean"] })),
        ]
    };
    any_of(&[
        kind(&["text", "json_object"], vec![], &[]),
        kind(
            &["json_schema"],
            vec![("json_schema", object(&["schema"], schema()))],
            &["json_schema"],
        ),
        kind(&["json_schema"], schema(), &["schema"]),
        kind(&["regex"], vec![("regex", text())], &["regex"]),
        kind(&["lark", "grammar"], vec![("grammar", text())], &["grammar"]),
    ])
}

/// What the text must look like.
fn constraints() -> Vec<Field> {
    let structured = object(
        &[],
        vec![
            ("json", or_null(json!({ "type": ["object", "boolean"] }))),
            ("json_object", flag()),
            ("regex", or_null(text())),
            ("grammar", or_null(text())),
            ("choice", or_null(list(text()))),
        ],
    );
    vec![("response_format", or_null(format())), ("structured_outputs", or_null(structured))]
}

/// Contents, messages, tools and calls, of each dialect.
fn conversations() -> Vec<Field> {
    let part = |words: &[&str], name: &'static str| {
        let fields = vec![
            ("type", word(words)),
            (name, text()),
            ("annotations", anything()),
            ("logprobs", anything()),
            ("cache_control", anything()),
            ("citations", anything()),
        ];
        object(&["type", name], fields)
    };
    let parts = any_of(&[
        part(&["text", "input_text", "output_text"], "text"),
        part(&["refusal"], "refusal"),
    ]);
    let call = object(
        &["function"],
        vec![
            ("id", or_null(text())),
            ("type", only(&[json!("function")])),
            ("index", anything()),
            (
                "function",
                object(
                    &["name"],
                    vec![
                        ("name", text()),
                        ("arguments", or_null(json!({ "type": ["string", "object"] }))),
                    ],
                ),
            ),
        ],
    );
    let said = |roles: &[&str], required: &[&str], more: Vec<Field>| {
        let fields =
            vec![("role", word(roles)), ("content", named("Content")), ("name", or_null(text()))];
        object(required, with(fields, more))
    };
    let assistant = object(
        &["role"],
        vec![
            ("role", word(&["assistant"])),
            ("content", or_null(named("Content"))),
            ("name", or_null(text())),
            ("refusal", or_null(text())),
            ("reasoning_content", or_null(text())),
            ("tool_calls", or_null(list(call))),
        ],
    );
    let message = any_of(&[
        said(&["system", "developer", "user"], &["role", "content"], vec![]),
        assistant,
        said(&["tool"], &["role", "content", "tool_call_id"], vec![("tool_call_id", text())]),
    ]);
    vec![
        ("Content", any_of(&[text(), list(parts)])),
        ("Message", message),
        ("Turn", turn()),
        ("Function", function()),
        ("Item", item()),
    ]
}

/// A function that the model may call.
fn function() -> Value {
    object(&["name"], described())
}

fn described() -> Vec<Field> {
    vec![
        ("name", json!({ "type": "string", "pattern": "^[A-Za-z0-9_.-]{1,128}$" })),
        ("description", or_null(text())),
        ("parameters", or_null(json!({ "type": "object" }))),
        ("strict", flag()),
    ]
}

/// A message in Anthropic's form.
fn turn() -> Value {
    let block = |kind: &str, required: &[&str], more: Vec<Field>| {
        let fields = vec![
            ("type", word(&[kind])),
            ("cache_control", anything()),
            ("citations", anything()),
            ("caller", anything()),
        ];
        let required: Vec<&str> = ["type"].iter().chain(required).copied().collect();
        object(&required, with(fields, more))
    };
    let said = block("text", &["text"], vec![("text", text())]);
    let result = block(
        "tool_result",
        &["tool_use_id"],
        vec![("tool_use_id", text()), ("is_error", flag()), ("content", or_null(named("Content")))],
    );
    let thinking =
        block("thinking", &[], vec![("thinking", or_null(text())), ("signature", anything())]);
    let redacted = block("redacted_thinking", &[], vec![("data", anything())]);
    let used = block(
        "tool_use",
        &["name"],
        vec![("id", or_null(text())), ("name", text()), ("input", anything())],
    );
    let of = |role: &str, blocks: &[Value]| {
        let content = any_of(&[text(), list(any_of(blocks))]);
        object(&["role", "content"], vec![("role", word(&[role])), ("content", content)])
    };
    any_of(&[
        of("user", &[said.clone(), result]),
        of("assistant", &[said.clone(), thinking, redacted, used]),
        of("system", &[said]),
    ])
}

/// An item of the Responses API.
fn item() -> Value {
    let item = |kind: Value, required: &[&str], more: Vec<Field>| {
        let fields = vec![("type", kind), ("id", anything()), ("status", anything())];
        object(required, with(fields, more))
    };
    any_of(&[
        item(
            or_null(word(&["message"])),
            &["role", "content"],
            vec![
                ("role", word(&["system", "developer", "user", "assistant"])),
                ("content", named("Content")),
                ("phase", anything()),
            ],
        ),
        item(
            word(&["function_call"]),
            &["type", "name"],
            vec![
                ("name", text()),
                ("arguments", or_null(text())),
                ("call_id", or_null(text())),
                ("namespace", anything()),
            ],
        ),
        item(
            word(&["function_call_output"]),
            &["type", "call_id", "output"],
            vec![("call_id", text()), ("output", named("Content"))],
        ),
        item(
            word(&["reasoning"]),
            &["type"],
            vec![
                ("summary", anything()),
                ("content", anything()),
                ("encrypted_content", anything()),
            ],
        ),
    ])
}

/// Whether tools are called, in OpenAI's form.
fn tool_choice() -> Value {
    let name = object(&["name"], vec![("name", text())]);
    let named = object(
        &["type"],
        vec![("type", word(&["function"])), ("name", or_null(text())), ("function", or_null(name))],
    );
    or_null(any_of(&[word(&["auto", "none", "required", "any"]), named]))
}

/// What a template is told, in OpenAI's form.
fn template() -> Vec<Field> {
    let tool = object(
        &["function"],
        vec![("type", only(&[json!("function")])), ("function", named("Function"))],
    );
    vec![
        ("messages", json!({ "type": "array", "items": named("Message"), "minItems": 1 })),
        ("tools", or_null(json!({ "type": "array", "items": tool, "maxItems": 128 }))),
        ("tool_choice", tool_choice()),
        ("parallel_tool_calls", flag()),
        ("chat_template_kwargs", or_null(json!({ "type": "object" }))),
        ("reasoning_effort", or_null(efforts())),
        ("continue_final_message", flag()),
        ("include_reasoning", only(&[json!(true)])),
        ("separate_reasoning", only(&[json!(true)])),
        ("stream_reasoning", only(&[json!(true)])),
    ]
}

fn efforts() -> Value {
    word(&["none", "minimal", "low", "medium", "high", "xhigh"])
}

fn chat() -> Value {
    let own = vec![
        ("model", or_null(text())),
        ("max_tokens", count()),
        ("max_completion_tokens", count()),
        ("n", int(1, 128)),
        ("logprobs", flag()),
        ("top_logprobs", int(0, 20)),
        ("stream_options", stream_options()),
        ("return_token_ids", flag()),
        ("modalities", only(&[json!(["text"])])),
        ("service_tier", only(&[json!("auto"), json!("default")])),
        ("store", only(&[json!(false)])),
        ("metadata", anything()),
        ("user", or_null(text())),
        ("safety_identifier", or_null(text())),
        ("prompt_cache_key", or_null(text())),
    ];
    object(&["messages"], with(with(with(sampling(), template()), constraints()), own))
}

/// Texts or tokens.
fn inputs() -> Value {
    let tokens = || json!({ "type": "array", "items": token(), "minItems": 1 });
    let several = any_of(&[text(), tokens()]);
    any_of(&[
        text(),
        json!({ "type": "array", "items": several, "minItems": 1, "maxItems": 2048 }),
        tokens(),
    ])
}

fn completion() -> Value {
    let own = vec![
        ("model", or_null(text())),
        ("prompt", inputs()),
        ("max_tokens", count()),
        ("max_completion_tokens", count()),
        ("n", int(1, 128)),
        ("best_of", int(1, 128)),
        ("logprobs", int(0, 20)),
        ("echo", flag()),
        ("suffix", only(&[json!("")])),
        ("stream_options", stream_options()),
        ("return_token_ids", flag()),
        ("user", or_null(text())),
    ];
    object(&["prompt"], with(with(sampling(), constraints()), own))
}

fn embeddings() -> Value {
    object(
        &["input"],
        vec![
            ("model", or_null(text())),
            ("input", inputs()),
            ("encoding_format", or_null(word(&["float", "base64"]))),
            ("dimensions", count()),
            ("user", or_null(text())),
        ],
    )
}

fn responses() -> Value {
    let tool = object(&["type", "name"], with(vec![("type", word(&["function"]))], described()));
    let reasoning = object(
        &[],
        vec![
            ("effort", or_null(efforts())),
            ("summary", only(&[json!("auto")])),
            ("generate_summary", only(&[json!("auto")])),
        ],
    );
    let shape =
        object(&[], vec![("format", or_null(format())), ("verbosity", only(&[json!("medium")]))]);
    let items = json!({ "type": "array", "items": named("Item"), "minItems": 1 });
    let own = vec![
        ("model", or_null(text())),
        ("input", any_of(&[text(), items])),
        ("instructions", or_null(text())),
        ("tools", or_null(json!({ "type": "array", "items": tool, "maxItems": 128 }))),
        ("tool_choice", tool_choice()),
        ("parallel_tool_calls", flag()),
        ("reasoning", or_null(reasoning)),
        ("text", or_null(shape)),
        ("max_output_tokens", count()),
        (
            "stream_options",
            or_null(object(&[], vec![("include_obfuscation", only(&[json!(false)]))])),
        ),
        ("metadata", or_null(json!({ "type": "object", "additionalProperties": text() }))),
        ("store", only(&[json!(false)])),
        ("background", only(&[json!(false)])),
        ("truncation", only(&[json!("disabled")])),
        ("service_tier", only(&[json!("auto"), json!("default")])),
        ("include", only(&[json!([]), json!(["reasoning.encrypted_content"])])),
        ("top_logprobs", only(&[json!(0)])),
        ("user", or_null(text())),
        ("safety_identifier", or_null(text())),
        ("prompt_cache_key", or_null(text())),
    ];
    object(&["input"], with(sampling(), own))
}

/// A conversation in Anthropic's form.
fn anthropic() -> Vec<Field> {
    let tool = object(
        &["name"],
        vec![
            ("type", only(&[json!("custom")])),
            ("name", json!({ "type": "string", "pattern": "^[A-Za-z0-9_.-]{1,128}$" })),
            ("description", or_null(text())),
            ("input_schema", or_null(json!({ "type": "object" }))),
            ("cache_control", anything()),
            ("strict", anything()),
            ("eager_input_streaming", anything()),
            ("input_examples", anything()),
        ],
    );
    let choice = |words: &[&str], required: &[&str], more: Vec<Field>| {
        let fields = vec![("type", word(words)), ("disable_parallel_tool_use", flag())];
        object(required, with(fields, more))
    };
    let choices = any_of(&[
        choice(&["tool"], &["type", "name"], vec![("name", text())]),
        choice(&["auto", "any", "none", "required"], &["type"], vec![]),
    ]);
    let thinking = object(
        &["type"],
        vec![
            ("type", word(&["enabled", "adaptive", "disabled"])),
            ("budget_tokens", int(0, i64::from(u32::MAX))),
            ("display", anything()),
        ],
    );
    vec![
        ("messages", json!({ "type": "array", "items": named("Turn"), "minItems": 1 })),
        ("system", or_null(named("Content"))),
        ("tools", or_null(json!({ "type": "array", "items": tool, "maxItems": 128 }))),
        ("tool_choice", or_null(choices)),
        ("thinking", or_null(thinking)),
    ]
}

fn messages() -> Value {
    let own = vec![
        ("model", text()),
        ("max_tokens", json!({ "type": "integer", "minimum": 1, "maximum": u32::MAX })),
        ("stop_sequences", stops()),
        ("service_tier", only(&[json!("auto"), json!("standard_only")])),
        ("metadata", anything()),
    ];
    object(&["model", "messages", "max_tokens"], with(with(sampling(), anthropic()), own))
}
