//! Chat templates: against `jinja2` with the settings of `transformers` (see `data/tokenizer/make_chat.py`), the built-in
//! formats, and templates that mean harm.

// Helper functions of tests may fail like tests do.
#![allow(clippy::unwrap_used, clippy::panic)]

#[path = "../../clearway-fuzz/src/template.rs"]
mod fuzz_template;

use std::time::{Duration, Instant};

use clearway_llm::text::{
    ChatFormat, ChatMessage, ChatOptions, ChatTemplate, Date, EncodeOptions, TextError, Tokenizer,
    Vocab,
};
use serde_json::Value;

const DATA: &str = include_str!("data/tokenizer/chat.json");

#[test]
fn templates_render_as_in_the_reference() {
    let data: Value = serde_json::from_str(DATA).unwrap();
    let mut texts = 0;
    for case in data["cases"].as_array().unwrap() {
        let source = data["templates"][index(&case["template"])].as_str().unwrap();
        let messages = conversation(&data["conversations"][index(&case["messages"])]);
        let options = ChatOptions {
            add_generation_prompt: case["options"]["add_generation_prompt"].as_bool().unwrap(),
            enable_thinking: case["options"]["enable_thinking"].as_bool(),
            ..ChatOptions::default()
        };
        let result = ChatTemplate::new(source, Some("<s>"), Some("</s>"))
            .and_then(|template| template.render(&messages, &options));
        let note = format!("{source}\n{messages:?}\n{result:?}");
        match (case["text"].as_str(), case["raised"].as_str()) {
            (Some(text), _) => {
                assert_eq!(result.as_deref(), Ok(text), "{note}");
                texts += 1;
            }
            (None, Some(raised)) => {
                assert!(
                    matches!(result, Err(TextError::TemplateRaised { message, .. }) if message == raised),
                    "{note}"
                );
            }
            // Only that there is an error is the same in both.
            (None, None) => {
                assert!(matches!(result, Err(TextError::TemplateFailed { .. })), "{note}")
            }
        }
    }
    assert!(texts > 300);
}

#[test]
fn errors_name_the_line() {
    let render = |source: &str| render(source, &[("user", "x")]);
    let error = render("a\nb\n{{ messages[0].nothing.more }}").unwrap_err();
    assert!(matches!(error, TextError::TemplateFailed { line: 3, .. }), "{error}");
    let error = render("a\n{% if %}").unwrap_err();
    assert!(matches!(error, TextError::TemplateSyntax { line: 2, .. }), "{error}");
    let error = render("\n\n\n{{ raise_exception('no ' ~ messages[0].role) }}").unwrap_err();
    assert_eq!(error, TextError::TemplateRaised { line: 4, message: "no user".into() });
    let error =
        render("\n{% for i in range(90000) %}{% for j in range(90000) %}{% endfor %}{% endfor %}")
            .unwrap_err();
    assert_eq!(error, TextError::TemplateLimit { what: "steps", line: 2 });
    let error = render("\n\n{{ 'x' * 1000000000 }}").unwrap_err();
    assert_eq!(error, TextError::TemplateLimit { what: "memory", line: 3 });
    let error = render(&"x".repeat(200_000)).unwrap_err();
    assert_eq!(error, TextError::TemplateTooLong { bytes: 200_000, limit: 131_072 });
    for source in [
        "{% include 'x' %}",
        "{% extends 'x' %}",
        "{% block a %}{% endblock %}",
        "{{ f(*messages) }}",
    ] {
        let error = render(source).unwrap_err();
        assert!(matches!(error, TextError::TemplateSyntax { line: 1, .. }), "{source}: {error}");
    }
    assert!(render("{{ 'a'.format(1) }}").is_err());
}

#[test]
fn the_date_is_what_the_caller_says() {
    let template = ChatTemplate::new("{{ strftime_now('%A, %d %B %Y') }}", None, None).unwrap();
    for (year, month, day, expected) in [
        (2024, 7, 26, "Friday, 26 July 2024"),
        (2000, 2, 29, "Tuesday, 29 February 2000"),
        (1900, 1, 1, "Monday, 01 January 1900"),
        (2026, 12, 31, "Thursday, 31 December 2026"),
    ] {
        let options = ChatOptions { date: Date { year, month, day }, ..ChatOptions::default() };
        assert_eq!(template.render(&[], &options).unwrap(), expected);
    }
    // A date that does not exist is still no panic.
    let options =
        ChatOptions { date: Date { year: 0, month: 0, day: 0 }, ..ChatOptions::default() };
    template.render(&[], &options).unwrap();
}

#[test]
fn a_file_without_a_template_gets_the_format_of_its_tokens() {
    let system_and_user =
        [("system", "Be brief."), ("user", " Hi "), ("assistant", "Yes?"), ("user", "Bye")];
    let cases = [
        (
            ChatFormat::ChatMl,
            "gpt2",
            &["<|im_start|>", "<|im_end|>"][..],
            "<|im_start|>system\nBe brief.<|im_end|>\n<|im_start|>user\n Hi <|im_end|>\n<|im_start|>assistant\nYes?<|im_end|>\n\
             <|im_start|>user\nBye<|im_end|>\n<|im_start|>assistant\n",
        ),
        (
            ChatFormat::Llama3,
            "gpt2",
            &["<|start_header_id|>", "<|end_header_id|>", "<|eot_id|>"],
            "<s><|start_header_id|>system<|end_header_id|>\n\nBe brief.<|eot_id|><|start_header_id|>user<|end_header_id|>\n\n\
             Hi<|eot_id|><|start_header_id|>assistant<|end_header_id|>\n\nYes?<|eot_id|><|start_header_id|>user\
             <|end_header_id|>\n\nBye<|eot_id|><|start_header_id|>assistant<|end_header_id|>\n\n",
        ),
        (
            ChatFormat::Gemma,
            "llama",
            &["<start_of_turn>", "<end_of_turn>"],
            "<s><start_of_turn>user\nBe brief.\n\nHi<end_of_turn>\n<start_of_turn>model\nYes?<end_of_turn>\n\
             <start_of_turn>user\nBye<end_of_turn>\n<start_of_turn>model\n",
        ),
        (
            ChatFormat::Mistral,
            "llama",
            &["[INST]", "[/INST]"],
            "<s>[INST] Be brief.\n\n Hi [/INST] Yes?</s>[INST] Bye[/INST]",
        ),
        (
            ChatFormat::Harmony,
            "gpt2",
            &["<|start|>", "<|channel|>", "<|message|>", "<|end|>"],
            "<|start|>developer<|message|># Instructions\n\nBe brief.<|end|><|start|>user<|message|> Hi <|end|>\
             <|start|>assistant<|channel|>final<|message|>Yes?<|end|><|start|>user<|message|>Bye<|end|><|start|>assistant",
        ),
        (
            ChatFormat::DeepSeek,
            "gpt2",
            &["<｜User｜>", "<｜Assistant｜>"],
            "<s>Be brief.<｜User｜> Hi <｜Assistant｜>Yes?</s><｜User｜>Bye<｜Assistant｜>",
        ),
        (
            ChatFormat::Llama2,
            "llama",
            &[],
            "<s>[INST] <<SYS>>\nBe brief.\n<</SYS>>\n\nHi [/INST] Yes? </s><s>[INST] Bye [/INST]",
        ),
    ];
    let messages = system_and_user.map(|(role, content)| ChatMessage::new(role, content));
    for (format, model, texts, expected) in cases {
        let tokenizer = tokenizer(model, texts);
        let template = ChatTemplate::for_tokenizer(None, &tokenizer).unwrap();
        assert_eq!(template.format(), Some(format));
        let prompt = template.render(&messages, &ChatOptions::default()).unwrap();
        assert_eq!(prompt, expected, "{}", format.name());
        // What the format writes is read back as the tokens it was recognised by.
        let ids = tokenizer.encode_chat(&prompt).unwrap();
        let specials = texts.iter().map(|text| tokenizer.token_id(text).unwrap());
        assert!(specials.into_iter().all(|id| ids.contains(&id)), "{prompt}");
        let own = ChatTemplate::for_tokenizer(Some("own"), &tokenizer).unwrap();
        assert_eq!(own.format(), None);
    }
    let error = ChatTemplate::for_tokenizer(None, &tokenizer("gpt2", &[])).unwrap_err();
    assert_eq!(error, TextError::NoChatTemplate);
}

/// Every one of these is small and asks for much. Each must fail, and soon.
#[test]
fn hostile_templates_are_stopped() {
    let grow = |step: &str| {
        format!(
            "{{% set n = namespace(x='abcdefgh', l=[1, 2]) %}}{{% for i in range(99999) %}}{step}{{% endfor %}}"
        )
    };
    let mut bombs = vec![
        grow("{% set n.x = n.x ~ n.x %}"),
        grow("{% set n.x = n.x + n.x %}"),
        grow("{% set n.x = n.x * 2 %}"),
        grow("{% set n.x = [n.x, n.x] | join %}"),
        grow("{% set n.x = ['', ''] | join(n.x) ~ n.x %}"),
        grow("{% set n.x = n.x.join([n.x, n.x]) %}"),
        grow("{% set n.x = n.x | replace('a', n.x) %}"),
        grow("{% set n.x = n.x.replace('', n.x) %}"),
        grow("{% set n.x = n.x | indent(1000000) %}"),
        grow("{% set n.x %}{{ n.x }}{{ n.x }}{% endset %}"),
        grow("{% set n.x %}{% filter upper %}{{ n.x }}{{ n.x }}{% endfilter %}{% endset %}"),
        grow("{% set n.x = n.x | tojson | tojson %}"),
        grow("{% set n.x = n.x | tojson(indent=1000000000) ~ n.x %}"),
        grow("{% set n.x = n.x | e ~ n.x %}"),
        grow("{% set n.x = n.x.split('') | join('xx') %}"),
        grow("{% set n.l = n.l + n.l %}"),
        grow("{% set n.l = n.l * 2 %}"),
        grow("{% set n.l = [n.l, n.l] %}"),
        grow("{% set n.l = [n.l] %}"),
        grow("{% set n.l = {'a': n.l} %}"),
        grow("{% set n.l = (n.l,) %}"),
        grow("{% set n.l = n.l | list + n.l | reverse | list %}"),
        grow("{% set n.l = n.l | map('string') | list + n.l %}"),
        grow("{% set n.l = n.l[::-1] + n.l %}"),
        grow("{% if n.x * 100000 == n.x * 100000 %}{% endif %}"),
        grow("{% if n.x * 100000 is eq(n.x * 100000) %}{% endif %}"),
        grow("{{ n.x * 100000 }}"),
        grow("{{ (n.x * 100000) | length }}"),
        grow("{{ (n.x * 100000)[5] }}"),
        grow("{% for c in n.x * 1000000 %}{% endfor %}"),
        "{% set n = namespace() %}{% set n.n = n %}{{ n }}".into(),
        "{% set n = namespace() %}{% set n.n = [n] %}{{ n | tojson }}".into(),
        "{% set n = namespace() %}{% set m = namespace(n=n) %}{% set n.m = m %}{{ n }}".into(),
        "{{ 'x' * 99999999 ~ 'x' * 99999999 ~ 'x' * 99999999 }}".into(),
        "{{ (0,) * 99999999 }}".into(),
        "{{ [0] * 99999999 }}".into(),
        "{{ range(100000) | list * 100000 }}".into(),
        "{{ ('x' * 9000000).replace('', 'y' * 9000000) }}".into(),
        "{{ ('x' * 9000000) | replace('x', 'y' * 9000000) }}".into(),
        "{{ ('x' * 1000000).join(range(99999)) }}".into(),
        "{{ range(99999) | join('x' * 1000000) }}".into(),
        "{{ ('\\n' * 9000000) | indent(9000000) }}".into(),
        "{{ 'x' | indent(99999999999999) }}".into(),
        "{{ 'x' | indent(width=99999999999999) }}".into(),
        "{% macro f(x) %}{{ x }}{{ x }}{% endmacro %}{{ ".to_owned()
            + &"f(".repeat(60)
            + "'abc'"
            + &")".repeat(60)
            + " }}",
        "{% macro f() %}{{ f() }}{% endmacro %}{{ f() }}".into(),
        "{% macro f(n) %}{{ f(n + 1) }}{{ f(n + 1) }}{% endmacro %}{{ f(0) }}".into(),
        "{% for x in [[1]] recursive %}{{ loop([x]) }}{% endfor %}".into(),
        "{{ ".to_owned() + &"(".repeat(5000) + "1" + &")".repeat(5000) + " }}",
        "{{ ".to_owned() + &"[".repeat(50_000) + " }}",
        "{{ x".to_owned() + &".a".repeat(60_000) + " }}",
        "{{ 'x'".to_owned() + &"|e".repeat(60_000) + " }}",
        "{{ 1".to_owned() + &"+1".repeat(60_000) + " }}",
        "{{ 'a'".to_owned() + &"~'a'".repeat(30_000) + " }}",
        "{{ ".to_owned() + &"not ".repeat(30_000) + "1 }}",
        "{{ ".to_owned() + &"-".repeat(100_000) + "1 }}",
        "{{ 1".to_owned() + &" if 1 else 1".repeat(9_000) + " }}",
        "{% if 1 %}".to_owned() + &"{% elif 1 %}".repeat(9_000) + "{% endif %}",
        "{% if 1 %}".repeat(12_000),
        "{% for i in x %}".repeat(8_000),
    ];
    // The largest that fits, again and again.
    bombs.push(grow("{% set n.l = n.l + [n.x * 500000] %}"));
    bombs.push(grow("{% set n.l = n.l + [(n.x * 50000).upper()] %}"));
    bombs.push(grow("{% set n.l = n.l + [(n.x * 50000)[1:]] %}"));
    for bomb in &bombs {
        let start = Instant::now();
        let result = render(bomb, &[("user", "x")]);
        let elapsed = start.elapsed();
        let shown: String = bomb.chars().take(160).collect();
        let error = match result {
            Err(error) => error,
            Ok(text) => panic!("{shown} gave {} bytes", text.len()),
        };
        assert!(!error.to_string().contains("broke down"), "{shown}: {error}");
        assert!(elapsed < Duration::from_secs(10), "{shown} took {elapsed:?}: {error}");
    }
}

#[test]
fn long_conversations_are_within_the_limits() {
    let data: Value = serde_json::from_str(DATA).unwrap();
    let long = "word ".repeat(20_000);
    let talkative: Vec<_> =
        (0..1000).map(|i| (["user", "assistant"][i % 2], "Something to say.")).collect();
    let verbose: Vec<_> = (0..20).map(|i| (["user", "assistant"][i % 2], long.as_str())).collect();
    for source in data["templates"].as_array().unwrap().iter().take(6) {
        for messages in [&talkative, &verbose] {
            let text = render(source.as_str().unwrap(), messages).unwrap();
            assert!(text.len() > 1000);
        }
    }
}

/// Damaged templates either render or fail, within the time that a test has.
#[test]
fn damaged_templates_never_panic() {
    let data: Value = serde_json::from_str(DATA).unwrap();
    let sources: Vec<&str> =
        data["templates"].as_array().unwrap().iter().map(|t| t.as_str().unwrap()).collect();
    let words = [
        "{{",
        "}}",
        "{%",
        "%}",
        "{#",
        "#}",
        "-",
        "+",
        "~",
        "*",
        "**",
        "//",
        "%",
        "|",
        "(",
        ")",
        "[",
        "]",
        "{",
        "}",
        ":",
        "::-1",
        ",",
        ".",
        "'",
        "\"",
        "\\",
        "\n",
        "0",
        "-1",
        "9223372036854775807",
        "-9223372036854775808",
        "1e308",
        "99999999999999999999",
        "none",
        "messages",
        "loop",
        "caller",
        "self",
        "super",
        "namespace",
        "range",
        "recursive",
        "if",
        "else",
        "endif",
        "for",
        "in",
        "endfor",
        "set",
        "endset",
        "macro",
        "endmacro",
        "call",
        "endcall",
        "filter",
        "endfilter",
        "break",
        "continue",
        "is",
        "not",
        "and",
        "with",
        "endwith",
        "raw",
        "endraw",
        "é",
        "😀",
        "\0",
        "join",
        "sort",
        "tojson",
        "round",
        "split",
        "items",
        "first",
        "map",
        "int",
        "float",
    ];
    let seed = std::time::SystemTime::now()
        .duration_since(std::time::UNIX_EPOCH)
        .map_or(1, |t| t.as_nanos() as u64 | 1);
    let mut state = seed;
    let mut below = |n: usize| {
        state ^= state << 13;
        state ^= state >> 7;
        state ^= state << 17;
        (state % n.max(1) as u64) as usize
    };
    let mut rendered = 0;
    let start = Instant::now();
    let mut rounds = 0;
    while rounds < 3000 && start.elapsed() < Duration::from_secs(5) {
        rounds += 1;
        let mut source: Vec<char> = sources[below(sources.len())].chars().collect();
        for _ in 0..=below(4) {
            let at = below(source.len() + 1);
            match below(4) {
                0 => source.truncate(at),
                1 => drop(source.drain(at..(at + below(8)).min(source.len()))),
                2 => {
                    let other: Vec<char> = sources[below(sources.len())].chars().collect();
                    let from = below(other.len());
                    let part = other[from..(from + below(60)).min(other.len())].to_vec();
                    source.splice(at..at, part);
                }
                _ => drop(source.splice(at..at, words[below(words.len())].chars())),
            }
        }
        let source: String = source.into_iter().collect();
        let began = Instant::now();
        let outcome = std::panic::catch_unwind(|| fuzz_template::fuzz_template(source.as_bytes()));
        rendered += u32::from(outcome.unwrap_or_else(|_| panic!("seed {seed}: {source:?}")));
        let took = began.elapsed();
        assert!(took < Duration::from_secs(5), "seed {seed}: {source:?} took {took:?}");
    }
    assert!(rendered * 20 > rounds, "seed {seed}: {rendered} of {rounds}");
}

fn render(source: &str, messages: &[(&str, &str)]) -> Result<String, TextError> {
    let messages: Vec<ChatMessage> =
        messages.iter().map(|&(role, content)| ChatMessage::new(role, content)).collect();
    ChatTemplate::new(source, Some("<s>"), Some("</s>"))?.render(&messages, &ChatOptions::default())
}

/// A tokenizer of single bytes with the given control tokens.
fn tokenizer(model: &str, special: &[&str]) -> Tokenizer {
    let mut tokens: Vec<Vec<u8>> =
        ["<unk>", "<s>", "</s>"].map(|text| text.as_bytes().to_vec()).to_vec();
    let mut types = vec![2, 3, 3];
    match model {
        "llama" => {
            tokens.extend((0..=255u8).map(|byte| format!("<0x{byte:02X}>").into_bytes()));
            types.resize(tokens.len(), 6);
        }
        _ => {
            tokens.extend((b'!'..=b'~').map(|byte| vec![byte]));
            tokens.push(b"Hi".to_vec());
            types.resize(tokens.len(), 1);
        }
    }
    tokens.extend(special.iter().map(|text| text.as_bytes().to_vec()));
    types.resize(tokens.len(), 3);
    let tokenizer = Tokenizer::new(&Vocab {
        model,
        pre: Some("gpt-2"),
        tokens: tokens.iter().map(Vec::as_slice).collect(),
        token_types: Some(&types),
        merges: vec![b"H i"],
        bos: Some(1),
        eos: Some(2),
        ..Vocab::default()
    });
    let tokenizer = tokenizer.unwrap();
    assert!(!tokenizer.encode("Hi", EncodeOptions::PLAIN).unwrap().is_empty());
    tokenizer
}

fn conversation(messages: &Value) -> Vec<ChatMessage> {
    let messages = messages.as_array().unwrap().iter();
    messages
        .map(|m| ChatMessage::new(m["role"].as_str().unwrap(), m["content"].as_str().unwrap()))
        .collect()
}

fn index(value: &Value) -> usize {
    value.as_u64().unwrap() as usize
}
