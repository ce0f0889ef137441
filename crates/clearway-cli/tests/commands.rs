//! The commands that run models, on a tiny one.
#![allow(clippy::unwrap_used)] // a test stops at the first surprise

mod common;
use common::{
    Folder, clearway, command, failure, signal, stderr, stdout, tiny_adapter, tiny_model,
    tiny_model_with, with_input,
};

use serde_json::Value;

/// A folder with `m.gguf`, and the path of it.
fn model(test: &str) -> (Folder, String) {
    let folder = Folder::new(test);
    let path = folder.path("m.gguf");
    tiny_model(&path, "llama", true);
    let path = path.to_str().unwrap().to_owned();
    (folder, path)
}

fn json(args: &[&str]) -> Value {
    serde_json::from_str(&stdout(&clearway(args))).unwrap()
}

#[test]
fn run_answers_on_stdout_and_tells_timings_on_stderr() {
    let (_folder, m) = model("run");
    let base = ["run", "-m", &m, "-p", "Hi", "-n", "20"];
    let output = clearway(&base);
    let text = stdout(&output);
    assert!(text.trim_end().chars().count() > 3 && text.ends_with('\n'), "{text:?}");
    let notes = stderr(&output);
    for word in ["device: cpu", "load", "prefill", "decode", "tok/s", "peak", "MiB"] {
        assert!(notes.contains(word), "{word}: {notes}");
    }
    assert!(!notes.contains('\u{1b}'), "no colours and no bars outside a terminal: {notes:?}");
    assert_eq!(stdout(&clearway(&base)), text, "the same seed, the same text");
    let seeded = stdout(&clearway(&[&base[..], &["-s", "5"]].concat()));
    assert_ne!(seeded, text);
    let named = clearway(&[&base[..], &["--device", "cpu", "--stats"]].concat());
    assert!(!stderr(&named).contains("device: cpu"), "only `auto` is announced");
    assert!(stderr(&named).contains("groups (longest chain"), "{}", stderr(&named));
    let piped = with_input(&["run", "-m", &m, "-f", "-", "-n", "20"], "Hi");
    assert_eq!(stdout(&piped), text);
    let raw = stdout(&clearway(&[&base[..], &["--raw"]].concat()));
    assert_ne!(raw, text, "without the template the prompt is another");
}

#[test]
fn what_cannot_be_run_is_said() {
    let (folder, m) = model("wrong");
    let odd = folder.path("odd.gguf");
    tiny_model(&odd, "mamba", true);
    let dumb = folder.path("dumb.gguf");
    tiny_model(&dumb, "llama", false);
    let (odd, dumb) = (odd.to_str().unwrap(), dumb.to_str().unwrap());
    std::fs::write(folder.path("text.gguf"), "not a model").unwrap();
    let text = folder.path("text.gguf");
    let long = "x".repeat(2000);
    let cases: [(&[&str], &[&str]); 9] = [
        (&["run", "-m", &m, "-p", ""], &["the prompt is empty", "-p"]),
        (&["run", "-m", &m, "-p", &long], &["tokens", "context holds 1024", "-c"]),
        (&["run", "-m", odd, "-p", "x"], &["`mamba` is not supported", "llama"]),
        (&["run", "-m", dumb, "-p", "x"], &["no vocabulary"]),
        (&["run", "-m", text.to_str().unwrap(), "-p", "x"], &["text.gguf"]),
        (&["run", "-m", "absent.gguf", "-p", "x"], &["absent.gguf", "smollm2:135m"]),
        (&["run", "-m", &m, "-p", "x", "-c", "40000000000000"], &["too large", "-c"]),
        (&["eval", "-m", &m, "--tokens", ""], &["no tokens were given"]),
        (&["eval", "-m", &m, "--tokens", "1 900"], &["token 900 does not exist"]),
    ];
    for (args, words) in cases {
        let message = failure(&clearway(args));
        assert!(words.iter().all(|word| message.contains(word)), "{args:?}: {message}");
    }
    for usage in [
        &["run", "-m", &m][..],
        &["run", "-m", &m, "-p", "x", "--device", "toaster"],
        &["run", "-m", &m, "-p", "x", "--top-p", "7"],
        &["run", "-m", "hf:nobody", "-p", "x"],
        &["bench", "-m", &m, "-r", "0"],
        &["pull"],
    ] {
        assert_eq!(clearway(usage).status.code(), Some(2), "{usage:?}");
    }
}

#[test]
fn a_chat_has_turns_commands_and_an_end() {
    let (folder, m) = model("chat");
    let (text, messages) = (folder.path("chat.txt"), folder.path("chat.json"));
    let lines = [
        "Hello",
        "/save",
        "And again?",
        &format!("/save {}", text.display()),
        &format!("/save {}", messages.display()),
        "/nonsense",
        "/clear",
        "/save /nonexistent/folder/file",
        "/help",
        "/exit",
        "never reached",
    ];
    let chat = ["chat", "-m", &m, "-n", "8", "--temp", "0", "--system", "Be brief."];
    let output = with_input(&chat, &(lines.join("\n") + "\n"));
    let (said, notes) = (stdout(&output), stderr(&output));
    assert!(said.contains("/clear") && said.contains("the chat is empty again"), "{said}");
    for word in ["/save needs", "there is no /nonsense", "cannot write /nonexistent/folder/file"] {
        assert!(notes.contains(word), "{word}: {notes}");
    }
    let saved: Value = serde_json::from_slice(&std::fs::read(messages).unwrap()).unwrap();
    let roles: Vec<_> =
        saved["messages"].as_array().unwrap().iter().map(|m| m["role"].as_str().unwrap()).collect();
    assert_eq!(roles, ["system", "user", "assistant", "user", "assistant"]);
    assert_eq!(saved["messages"][3]["content"], "And again?");
    let answer = saved["messages"][2]["content"].as_str().unwrap();
    assert!(said.contains(answer), "{said:?} has {answer:?}");
    assert!(std::fs::read_to_string(text).unwrap().contains("user: And again?"));
    assert_eq!(folder.files().len(), 3, "nothing partial is left: {:?}", folder.files());
}

#[test]
fn a_turn_that_reuses_the_cache_answers_as_one_that_does_not() {
    let (folder, m) = model("reuse");
    let talk = |name: &str, lines: &str, limit: &str| {
        let file = folder.path(name);
        let input = format!("{lines}\n/save {}\n", file.display());
        let chat = ["chat", "-m", &m, "-n", limit, "--temp", "0"];
        stdout(&with_input(&chat, &input));
        let saved: Value = serde_json::from_slice(&std::fs::read(file).unwrap()).unwrap();
        saved["messages"].as_array().unwrap().clone()
    };
    let twice = talk("twice.json", "Hello\nHow are you?", "6");
    // The same conversation, as one prompt to a fresh process.
    let prompt: String = twice[..3]
        .iter()
        .map(|message| {
            let (role, content) = (message["role"].as_str(), message["content"].as_str());
            format!("<|im_start|>{}\n{}<|im_end|>\n", role.unwrap(), content.unwrap())
        })
        .collect();
    let file = folder.path("prompt");
    std::fs::write(&file, prompt + "<|im_start|>assistant\n").unwrap();
    let file = file.to_str().unwrap();
    let whole =
        stdout(&clearway(&["run", "-m", &m, "-f", file, "--raw", "-n", "6", "--temp", "0"]));
    assert_eq!(whole.trim_end_matches('\n'), twice[3]["content"].as_str().unwrap());
}

#[test]
fn a_full_context_is_said_and_the_chat_goes_on() {
    let (_folder, m) = model("full");
    let long = "y".repeat(100);
    let input = format!("{long}\nHi\n/clear\nHi\n");
    let output = with_input(&["chat", "-m", &m, "-c", "64", "-n", "200"], &input);
    let (said, notes) = (stdout(&output), stderr(&output));
    assert!(notes.contains("no room for this") && notes.contains("/clear"), "{notes}");
    assert!(notes.contains("the context of 64 tokens is full"), "{notes}");
    assert!(said.contains("the chat is empty again"), "{said}");
    let run = clearway(&["run", "-m", &m, "-c", "64", "-n", "200", "-p", "Hi"]);
    assert!(run.status.success() && stderr(&run).contains("context holds 64"), "{}", stderr(&run));
}

#[test]
fn a_context_that_nobody_asked_for_is_explained() {
    let (folder, m) = model("unasked");
    let shown = json(&["show", &m, "--json"]);
    let memory = &shown["memory"];
    assert_eq!((&memory["context"], &memory["model_context"]), (&1024.into(), &1024.into()));
    assert_eq!(memory["context_reason"], "all that the model allows");
    let text = stdout(&clearway(&["show", &m, "-c", "100"]));
    assert!(text.contains("100 of 1024 tokens, as asked"), "{text}");
    let run = ["run", "-m", &m, "-p", "Hi", "-n", "1"];
    assert!(!stderr(&clearway(&run)).contains("context"), "there is nothing to say");

    let mut bytes = std::fs::read(&m).unwrap();
    let key = b"llama.context_length";
    let at = bytes.windows(key.len()).position(|part| part == key).unwrap() + key.len() + 4;
    bytes[at..at + 4].copy_from_slice(&100_000_u32.to_le_bytes());
    let long = folder.path("long.gguf");
    std::fs::write(&long, bytes).unwrap();
    let long = long.to_str().unwrap();
    let run = ["run", "-m", long, "-p", "Hi", "-n", "1"];
    let notes = stderr(&clearway(&run));
    let said = "context: 32768 of 100000 tokens, the most that is taken unasked; -c changes it";
    assert!(notes.contains(said), "{notes}");
    let notes = stderr(&clearway(&[&run[..], &["-c", "64"]].concat()));
    assert!(!notes.contains("context:"), "{notes}");
}

#[test]
fn a_depth_moves_prompts_and_generation() {
    let (_folder, m) = model("depth");
    let bench = ["bench", "-m", &m, "-p", "8", "-n", "4", "-r", "1", "-d", "16"];
    let measured = json(&[&bench[..], &["--json"]].concat());
    let depths: Vec<_> = measured.as_array().unwrap().iter().map(|t| &t["n_depth"]).collect();
    assert_eq!(depths, [16, 16]);
    let table = stdout(&clearway(&bench));
    assert!(table.contains("pp8 @ d16") && table.contains("tg4 @ d16"), "{table}");
}

#[test]
fn bench_measures_every_length() {
    let folder = Folder::new("bench");
    let path = folder.path("m.gguf");
    tiny_model(&path, "llama", false);
    let m = path.to_str().unwrap();
    let measured = json(&["bench", "-m", m, "-p", "8,16", "-n", "4,0", "-r", "3", "--json"]);
    let tests: Vec<_> =
        measured.as_array().unwrap().iter().map(|t| t["test"].as_str().unwrap()).collect();
    assert_eq!(tests, ["pp8", "pp16", "tg4"]);
    for test in measured.as_array().unwrap() {
        assert_eq!((&test["model"], &test["device"]), (&"tiny f32".into(), &"cpu".into()));
        assert!(test["avg_ts"].as_f64().unwrap() > 0.0 && test["stddev_ts"].is_f64(), "{test}");
        assert_eq!(test["samples_ts"].as_array().unwrap().len(), 3);
    }
    assert!(measured[0]["decode"].is_null(), "a prompt is no decode");
    let decode = &measured[2]["decode"];
    assert_eq!(decode["phases_per_token"], 21);
    assert_eq!(decode["barriers_per_token"], 21);
    // Two rows on average, of two layers, keys and values, 16 wide, in f16.
    assert_eq!(decode["cache_bytes_per_token"], 2 * 2 * 2 * 16 * 2);
    let show = json(&["show", m, "--json"]);
    // Rotary factors are no tensor of the file, but they are read.
    let weights = show["memory"]["weight_bytes"].as_u64().unwrap() + 8 * 4;
    assert_eq!(decode["weight_bytes_per_token"], weights);
    for key in ["read_gb_s", "bandwidth_share", "cpu_us_per_token", "own_cpu_us_per_token"] {
        assert!(decode[key].as_f64().unwrap() > 0.0, "{key}: {decode}");
    }
    assert_eq!((&decode["encodings"], &decode["allocations"]), (&0.into(), &0.into()));
    let anew = json(&["bench", "-m", m, "-p", "0", "-n", "4", "-r", "3", "--no-replay", "--json"]);
    assert_eq!(anew[0]["decode"]["encodings"], 3 * 4, "every step is encoded anew");
    assert!(anew[0]["decode"]["allocations"].as_u64().unwrap() >= 3 * 4);
    let table = stdout(&clearway(&["bench", "-m", m, "-p", "8", "-n", "2", "-r", "2"]));
    let rows: Vec<_> = table.lines().collect();
    assert_eq!(rows.len(), 8, "{table}");
    let head = ["model", "size", "params", "device", "threads", "t/s", "phases", "barriers"];
    for (row, words) in [
        (0, &head[..]),
        (0, &["bytes/t", "of read", "cpu us/t"]),
        (3, &["tg2", " ± ", " 21 |", " % |"]),
        (5, &["GB/s"]),
        (6, &["tg2: 0 lists encoded and 0 buffers allocated in all timed runs"]),
        (7, &["tg2: ", " us of the CPU time of a token are those of the thread that generates"]),
    ] {
        assert!(words.iter().all(|word| rows[row].contains(word)), "{table}");
    }
    let nothing = failure(&clearway(&["bench", "-m", m, "-p", "0", "-n", "0"]));
    assert!(nothing.contains("nothing to measure"));
}

#[test]
fn the_matrix_has_every_shape_and_format_and_leaves_nothing_behind() {
    let folder = Folder::new("matrix");
    let matrix = ["bench", "--matrix", "--shapes", "smollm2-135m", "--folder"];
    let short = ["-p", "4", "-n", "2", "-d", "8", "-r", "1", "--device", "cpu"];
    let place = folder.0.to_str().unwrap().to_owned();
    let with = |more: &[&'static str]| [&matrix[..], &[place.as_str()], &short, more].concat();
    let measured = json(&with(&["--formats", "q4_0,q8_0", "--json"]));
    let keys = ["format", "test", "n_depth"];
    let of = |test: &Value| keys.map(|key| test[key].to_string()).join(" ");
    let found: Vec<_> = measured.as_array().unwrap().iter().map(of).collect();
    let tests = |format| {
        [("pp4", 0), ("tg2", 0), ("pp4", 8), ("tg2", 8)]
            .map(|(test, depth)| format!("\"{format}\" \"{test}\" {depth}"))
    };
    assert_eq!(found, [tests("q4_0"), tests("q8_0")].concat());
    for test in measured.as_array().unwrap() {
        assert_eq!(test["shape"], "smollm2-135m");
        assert!(test["avg_ts"].as_f64().unwrap() > 0.0, "{test}");
    }
    let table = stdout(&clearway(&with(&["--formats", "q8_0"])));
    assert!(table.contains("| pp4 | tg2 | pp4 @ d8 | tg2 @ d8 | of read |"), "{table}");
    let row = table.lines().find(|line| line.starts_with("| smollm2-135m | q8_0 | ")).unwrap();
    assert_eq!(row.matches('|').count(), 9, "{row}");
    assert!(row.ends_with(" % |"), "{row}");
    assert_eq!(std::fs::read_dir(&folder.0).unwrap().count(), 0, "a file is left");

    let nowhere = failure(&clearway(&[&matrix[..], &["nowhere"], &short].concat()));
    assert!(nowhere.contains("--folder nowhere is no folder"), "{nowhere}");
    for wrong in [&["--formats", "q9"][..], &["--parallel", "2"], &["--micro"]] {
        assert_eq!(clearway(&with(wrong)).status.code(), Some(2), "{wrong:?}");
    }
}

#[test]
fn tokens_and_logits_are_shown() {
    let (_folder, m) = model("tokens");
    let tokens = json(&["tokenize", "-m", &m, "--json", "<|im_start|>é-"]);
    assert_eq!(tokens["tokens"], serde_json::json!([256, 0xc3, 0xa9, b'-']));
    let text = stdout(&clearway(&["tokenize", "-m", &m, "-dash"]));
    assert_eq!(text.lines().count(), 5, "{text}");
    let eval = json(&["eval", "-m", &m, "--tokens", "72 105", "--top", "3", "-n", "4", "--json"]);
    assert_eq!(eval["top"].as_array().unwrap().len(), 3);
    assert_eq!(eval["greedy"].as_array().unwrap().len(), 4);
    assert_eq!(eval["greedy"][0], eval["top"][0][0]);
    assert!(eval["logsumexp"].as_f64().unwrap() >= eval["top"][0][1].as_f64().unwrap());
}

#[test]
fn a_damaged_model_is_an_error_that_names_the_place() {
    let folder = Folder::new("damaged");
    let path = folder.path("m.gguf");
    tiny_model_with(&path, "llama", true, &[], &|name, values| {
        if name == "blk.1.ffn_down.weight" {
            values[77] = f32::NAN;
        }
    });
    let m = path.to_str().unwrap();
    let cases: [(&[&str], &str); 5] = [
        (&["run", "-m", m, "-p", "Hi"], ""),
        (&["run", "-m", m, "-p", "Hi", "--no-replay", "--no-fuse"], ""),
        (&["chat", "-m", m], "Hi\n"),
        (&["eval", "-m", m, "--tokens", "72 105"], ""),
        (&["bench", "-m", m, "-p", "8", "-n", "4", "-r", "1", "--json"], ""),
    ];
    for (args, input) in cases {
        let message = failure(&with_input(args, input));
        for word in ["NaN begins in `blk.1.ffn_down`", "element 77", "damaged"] {
            assert!(message.contains(word), "{args:?}: {message}");
        }
    }
}

/// Every off switch, by flag and by name in the environment.
const SWITCHES: [(&str, &str); 6] = [
    ("--no-fuse", "CLEARWAY_NO_FUSE"),
    ("--no-quantise", "CLEARWAY_NO_QUANTISE"),
    ("--no-reorder", "CLEARWAY_NO_REORDER"),
    ("--no-elide", "CLEARWAY_NO_ELIDE"),
    ("--no-reuse", "CLEARWAY_NO_REUSE"),
    ("--no-replay", "CLEARWAY_NO_REPLAY"),
];

#[test]
fn every_switch_gives_the_same_text_and_changes_the_step() {
    let (_folder, m) = model("switches");
    let run = |more: &[&str], variable: Option<(&str, &str)>| {
        let base = ["run", "-m", &m, "--device", "cpu", "-p", "Hi", "-n", "12", "--temp", "0"];
        let mut command = command(&[&base[..], &["--stats"], more].concat());
        let output = command.envs(variable).output().unwrap();
        let notes = stderr(&output);
        let step: Vec<String> =
            notes.lines().filter(|line| !line.contains(" ms")).map(str::to_owned).collect();
        (stdout(&output), step.join("\n").split_once("device").unwrap().1.to_owned())
    };
    let (text, step) = run(&[], None);
    let eval = ["eval", "-m", &m, "--device", "cpu", "--tokens", "72 105", "-n", "8", "--json"];
    let evaluated = json(&eval);
    for (flag, variable) in SWITCHES {
        let (switched, other) = run(&[flag], None);
        assert_eq!(switched, text, "{flag}");
        assert!(other.contains("groups"), "{flag}: {other}");
        match flag {
            // The CPU backend has no kernels for quantised values between products.
            "--no-replay" | "--no-quantise" => assert_eq!(other, step),
            // Fused, the order of this step is the best already.
            "--no-reorder" => {
                assert_ne!(run(&["--no-fuse", flag], None).1, run(&["--no-fuse"], None).1);
            }
            _ => assert_ne!(other, step, "{flag} must change the step"),
        }
        assert_eq!(run(&[], Some((variable, "1"))), (switched, other), "{variable}");
        assert_eq!(run(&[], Some((variable, "0"))).1, step, "{variable}=0 is off");
        let switched = json(&[&eval[..], &[flag]].concat());
        assert_eq!(switched["greedy"], evaluated["greedy"], "{flag}");
        let help = stdout(&clearway(&["chat", "-h"]));
        assert!(help.contains(flag) && help.contains("Off switches:"), "{help}");
    }
    let chat = ["chat", "-m", &m, "-n", "8", "--temp", "0"];
    let plain = stdout(&with_input(&chat, "Hi\n"));
    let all: Vec<_> = chat.into_iter().chain(SWITCHES.map(|(flag, _)| flag)).collect();
    assert_eq!(stdout(&with_input(&all, "Hi\n")), plain);
}

#[test]
fn the_cache_has_the_type_that_is_asked_for() {
    let (_folder, m) = model("cache");
    let tokens = ["eval", "-m", &m, "--tokens", "72 105 33", "-n", "4", "--json"];
    let (half, full) = (json(&tokens), json(&[&tokens[..], &["--cache-type", "f32"]].concat()));
    let sum = |eval: &Value| eval["logsumexp"].as_f64().unwrap();
    assert_ne!(sum(&half), sum(&full), "keys and values are rounded less");
    assert!((sum(&half) - sum(&full)).abs() < 1e-2, "{half} {full}");

    let shown = |more: &[&str]| json(&[&["show", &m, "-c", "100", "--json"], more].concat());
    let (half, full) = (shown(&[]), shown(&["--cache-type", "f32"]));
    let (half, full) = (&half["memory"], &full["memory"]);
    assert_eq!((&half["cache_type"], &full["cache_type"]), (&"f16".into(), &"f32".into()));
    assert_eq!(full["cache_bytes"].as_u64(), half["cache_bytes"].as_u64().map(|bytes| 2 * bytes));
    let text = stdout(&clearway(&["show", &m, "-c", "1024", "--cache-type", "f32"]));
    assert!(text.contains("256.0 KiB for 1024 tokens in f32"), "{text}");

    let run = ["run", "-m", &m, "-p", "x", "-c", "4000000000000"];
    let half = failure(&clearway(&run));
    assert!(half.contains("465.7 TiB for a context of 4000000000000 tokens in f16"), "{half}");
    let full = failure(&clearway(&[&run[..], &["--cache-type", "f32"]].concat()));
    assert!(full.contains("931.3 TiB for a context of 4000000000000 tokens in f32"), "{full}");
    let rounded = failure(&clearway(&[&run[..], &["--cache-type", "q8_0"]].concat()));
    assert!(rounded.contains("cannot be q8_0: heads of 16 elements"), "{rounded}");
    let wrong = clearway(&[&run[..], &["--cache-type", "q4_0"]].concat());
    assert_eq!(wrong.status.code(), Some(2));
    let message = stderr(&wrong);
    assert!(message.contains("'q4_0'") && message.contains("f16, f32, q8_0"), "{message}");
}

#[test]
fn show_counts_memory_and_names_what_cannot_be_run() {
    let (folder, m) = model("show");
    let shown = json(&["show", &m, "-c", "100", "--json"]);
    let memory = &shown["memory"];
    // Two layers of keys and values, 16 wide, in f16.
    assert_eq!(memory["cache_bytes"], 2 * 2 * 16 * 2 * 100);
    assert_eq!(memory["devices"][0]["fits"], true);
    assert_eq!(shown["tensors"]["f32"]["bytes"], memory["weight_bytes"]);
    assert!(memory["arena_bytes"].as_u64().unwrap() > 0);
    let large = stdout(&clearway(&["show", &m, "-c", "4000000000"]));
    assert!(large.contains("does not fit") && large.contains("general.name"), "{large}");
    let odd = folder.path("odd.gguf");
    tiny_model(&odd, "mamba", false);
    let odd = stdout(&clearway(&["show", odd.to_str().unwrap()]));
    assert!(odd.contains("cannot be run") && odd.contains("mamba"), "{odd}");
}

#[test]
fn adapters_change_what_a_model_gives_as_far_as_their_scale_says() {
    let (folder, m) = model("lora");
    let [a, b] = ["a.gguf", "b.gguf"].map(|name| folder.path(name).to_str().unwrap().to_owned());
    tiny_adapter(folder.path("a.gguf").as_path(), "llama");
    tiny_adapter(folder.path("b.gguf").as_path(), "qwen2");
    let logits = |lora: &[&str]| {
        let args = ["eval", "-m", &m, "--device", "cpu", "--tokens", "5 6 7", "--json"];
        json(&[&args[..], lora].concat())["logsumexp"].as_f64().unwrap()
    };
    let scaled = |scale: &str| format!("{a}:{scale}");
    let base = logits(&[]);
    assert!((logits(&["--lora", &scaled("0")]) - base).abs() < 1e-5);
    let one = logits(&["--lora", &a]);
    assert!((one - base).abs() > 1e-3, "{one} {base}");
    assert_eq!(logits(&["--lora", &scaled("1.0")]), one);
    let halves = logits(&["--lora", &scaled("0.5"), "--lora", &scaled("0.5")]);
    assert!((halves - one).abs() < 1e-5, "{halves} {one}");

    let text = |more: &[&str]| {
        let args = ["run", "-m", &m, "-p", "Hi", "-n", "20", "--device", "cpu", "--temp", "0"];
        stdout(&clearway(&[&args[..], more].concat()))
    };
    assert_ne!(text(&["--lora", &a]), text(&[]));

    let shown = stdout(&clearway(&["show", &a]));
    for word in ["LoRA", "llama", "--lora", "rank 2", "alpha 4", "2 weights: attn_q, ffn_down"] {
        assert!(shown.contains(word), "{word}: {shown}");
    }
    let shown = json(&["show", &a, "--json"]);
    assert_eq!(shown["adapter"]["parts"], serde_json::json!(["attn_q", "ffn_down"]));
    assert_eq!((&shown["adapter"]["rank_max"], &shown["memory"]), (&2.into(), &Value::Null));

    let wrong = |args: &[&str]| failure(&clearway(&[args, &["--device", "cpu"]].concat()));
    let other = wrong(&["run", "-m", &m, "-p", "Hi", "--lora", &b]);
    assert!(other.contains("`b`") && other.contains("qwen2"), "{other}");
    let model = wrong(&["run", "-m", &m, "-p", "Hi", "--lora", &m]);
    assert!(model.contains("no adapter"), "{model}");
    let missing = wrong(&["run", "-m", &m, "-p", "Hi", "--lora", "/nowhere.gguf"]);
    assert!(missing.contains("/nowhere.gguf"), "{missing}");
    for command in [&["run", "-p", "Hi"][..], &["eval", "--tokens", "1"]] {
        let swapped = wrong(&[command, &["-m", &a]].concat());
        assert!(swapped.contains("--lora") && swapped.contains("llama"), "{swapped}");
    }
    let usage = clearway(&["eval", "-m", &m, "--tokens", "1", "--lora", &scaled("nan")]);
    assert_eq!(usage.status.code(), Some(2));
    let same = wrong(&["serve", "-m", &m, "--port", "0", "--lora", &format!("m={a}")]);
    assert!(same.contains("`m`") && same.contains("NAME=FILE"), "{same}");
}

#[test]
fn every_command_shows_examples() {
    for command in ["run", "chat", "bench", "pull", "list", "show", "tokenize", "eval", "synth"] {
        for help in ["-h", "--help"] {
            let text = stdout(&clearway(&[command, help]));
            assert!(text.contains("Examples:\n  clearway"), "{command}: {text}");
        }
    }
}

#[test]
fn a_synthetic_model_with_a_vocabulary_answers() {
    let folder = Folder::new("synth-vocab");
    let file = folder.path("synthetic.gguf");
    let m = file.to_str().unwrap();
    let written = stdout(&clearway(&["synth", "smollm2-135m", "q4_k_m", m, "--vocab"]));
    assert!(written.contains("synthetic.gguf written"), "{written}");
    let greedy = ["-m", m, "-n", "3", "-c", "64", "--temp", "0", "--device", "cpu"];
    let answer = stdout(&clearway(&[&["run", "-p", "Once upon a time"], &greedy[..]].concat()));
    assert!(!answer.trim().is_empty(), "{answer:?}");
    let answer = stdout(&with_input(&[&["chat"], &greedy[..]].concat(), "Hello\n"));
    assert!(!answer.trim().is_empty(), "{answer:?}");
    let bare = folder.path("bare.gguf");
    let b = bare.to_str().unwrap();
    stdout(&clearway(&["synth", "135m", "iq4_xs", b]));
    let message = failure(&clearway(&["run", "-m", b, "-p", "Once"]));
    assert!(message.contains("vocabulary"), "{message}");
    let message = stderr(&clearway(&["synth", "moe-16l-shared", "q4_0", b]));
    assert!(message.contains("known are smollm2-135m") && message.contains("gemma3-4b"));
}

#[cfg(unix)]
#[test]
fn an_interrupt_ends_synth_without_a_trace_and_run_after_its_token() {
    let folder = Folder::new("interrupt");
    let file = folder.path("big.gguf");
    let mut synth = command(&["synth", "llama-8b", "f16", file.to_str().unwrap()]).spawn().unwrap();
    while folder.files().is_empty() {
        assert!(synth.try_wait().unwrap().is_none(), "16 GB are not written yet");
        std::thread::sleep(std::time::Duration::from_millis(2));
    }
    signal("INT", synth.id());
    assert_eq!(synth.wait().unwrap().code(), Some(130));
    assert!(folder.files().is_empty(), "{:?}", folder.files());

    // Generates until the context is full, which takes long enough to be interrupted.
    let (_folder, m) = model("interrupt-run");
    let mut run = command(&["run", "-m", &m, "-p", "Hi", "--raw", "-n", "100000", "-c", "100000"]);
    let mut run = run.stdout(std::process::Stdio::piped()).spawn().unwrap();
    let mut first = [0];
    std::io::Read::read_exact(run.stdout.as_mut().unwrap(), &mut first).unwrap();
    signal("INT", run.id());
    let output = run.wait_with_output().unwrap();
    assert_eq!(output.status.code(), Some(130));
    assert_eq!(output.stdout.last(), Some(&b'\n'), "the line is ended");
}

/// Steps with counters have the bits of steps with barriers, and the text is right where a counter never fills. Where there is no
/// driver the command says so.
#[cfg(feature = "vulkan")]
#[test]
fn counters_are_checked_against_barriers() {
    let folder = Folder::new("check-counters");
    let model = folder.path("tiny.gguf");
    tiny_model(&model, "llama", true);
    let m = model.to_str().unwrap();
    if !clearway(&["inspect", "--shape", "llama-1b", "--device", "vulkan"]).status.success() {
        return clearway_graph::testkit::skip("vulkan", "no device can be opened");
    }
    let check = ["bench", "-m", m, "--device", "vulkan", "--check-counters", "60"];
    let output = clearway(&check);
    let text = stdout(&output);
    assert!(
        text.contains("60 steps in 1 sequence: tokens, logits and cache have the bits"),
        "{text}"
    );
    assert!(text.contains("no wait was in vain"), "{text}");

    let output = clearway(&[&check[..], &["--counter-fault", "never-fills", "--json"]].concat());
    let verdict: Value = serde_json::from_str(&stdout(&output)).unwrap();
    assert_eq!((&verdict["same_bits"], &verdict["stalled"]), (&true.into(), &true.into()));
    let said = stderr(&output);
    assert_eq!(said.matches("did not start workgroups in order").count(), 1, "{said}");

    // On a software driver dispatches do not overlap, so nobody looks twice; on a card somebody does.
    let output = clearway(&[&check[..], &["--counter-fault", "one-look"]].concat());
    if output.status.success() {
        assert!(stdout(&output).contains("as wanted"), "{}", stdout(&output));
    } else {
        assert!(failure(&output).contains("the fault was not seen"));
    }
    let cpu = clearway(&["bench", "-m", m, "--device", "cpu", "--check-counters", "60"]);
    assert!(failure(&cpu).contains("choose --device vulkan"));
    let usage = clearway(&["bench", "-m", m, "--counter-fault", "one-look"]);
    assert_eq!(usage.status.code(), Some(2));
}
