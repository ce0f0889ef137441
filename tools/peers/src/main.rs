//! llama.cpp on one file: speed of prompt and generation, or the logits of given tokens.
//!
//! `cargo xtask peers` runs it and reads its lines; see there for how it is used.

use std::num::NonZeroU32;
use std::time::Instant;

use llama_cpp_2::context::LlamaContext;
use llama_cpp_2::context::params::{KvCacheType, LlamaContextParams};
use llama_cpp_2::llama_backend::LlamaBackend;
use llama_cpp_2::llama_batch::LlamaBatch;
use llama_cpp_2::model::LlamaModel;
use llama_cpp_2::model::params::LlamaModelParams;
use llama_cpp_2::token::LlamaToken;

type Result<T> = std::result::Result<T, Box<dyn std::error::Error>>;

fn main() -> Result<()> {
    let args: Vec<String> = std::env::args().skip(1).collect();
    let words: Vec<&str> = args.iter().map(String::as_str).collect();
    match words[..] {
        ["features"] => {
            // SAFETY: the function takes nothing and gives a text that lives as long as the process.
            let text =
                unsafe { std::ffi::CStr::from_ptr(llama_cpp_sys_2::llama_print_system_info()) };
            println!("{}", text.to_string_lossy());
            Ok(())
        }
        ["speed", file, threads, prompt, generated, depth, sequences] => {
            let test = Test {
                prompt: prompt.parse()?,
                generated: generated.parse()?,
                depth: depth.parse()?,
                sequences: sequences.parse()?,
            };
            speed(file, threads.parse()?, &test)
        }
        ["logits", file, threads, at_once, ref tokens @ ..] => {
            let tokens: Vec<i32> =
                tokens.iter().map(|id| id.parse()).collect::<std::result::Result<_, _>>()?;
            logits(file, threads.parse()?, at_once.parse()?, &tokens)
        }
        _ => {
            Err("usage: features | speed FILE THREADS PP TG DEPTH SEQUENCES | logits FILE THREADS AT_ONCE ID..."
                .into())
        }
    }
}

/// What is measured.
struct Test {
    /// Tokens of the prompt; 0 for none.
    prompt: usize,
    /// Tokens generated for each sequence; 0 for none.
    generated: usize,
    /// Tokens in the cache before either.
    depth: usize,
    sequences: usize,
}

/// Prints tokens per second of a prompt and of generation, with so many tokens in the cache before each. Several sequences
/// have a prompt each before they generate, token by token together.
fn speed(file: &str, threads: i32, test: &Test) -> Result<()> {
    let Test { prompt, generated, depth, sequences } = *test;
    let mut backend = LlamaBackend::init()?;
    backend.void_logs();
    let model = LlamaModel::load_from_file(&backend, file, &LlamaModelParams::default())?;
    let each = if sequences > 1 { prompt + generated } else { depth + prompt.max(generated) };
    let params = params(threads, sequences * (each + 8)).with_n_seq_max(sequences as u32);
    let mut context = model.new_context(&backend, params)?;
    let vocab = model.n_vocab() as usize;
    let id = |i: usize| (1 + i * 7919 % (vocab - 1)) as i32;
    let fill = |context: &mut LlamaContext<'_>| -> Result<()> {
        context.clear_kv_cache();
        let ids: Vec<i32> = (0..depth).map(id).collect();
        read(context, &ids, 0)
    };
    read(&mut context, &(0..8).map(id).collect::<Vec<_>>(), 0)?;
    if sequences > 1 {
        return batched(&mut context, test, id);
    }
    if prompt > 0 {
        fill(&mut context)?;
        let ids: Vec<i32> = (depth..depth + prompt).map(id).collect();
        let start = Instant::now();
        read(&mut context, &ids, depth as i32)?;
        println!("pp {}", prompt as f64 / start.elapsed().as_secs_f64());
    }
    if generated > 0 {
        fill(&mut context)?;
        let start = Instant::now();
        for position in depth..depth + generated {
            eval(&mut context, &[id(position)], position as i32)?;
        }
        println!("tg {}", generated as f64 / start.elapsed().as_secs_f64());
    }
    Ok(())
}

/// Prints tokens per second of several sequences that generate together, in all.
fn batched(context: &mut LlamaContext<'_>, test: &Test, id: impl Fn(usize) -> i32) -> Result<()> {
    context.clear_kv_cache();
    for sequence in 0..test.sequences {
        let mut batch = LlamaBatch::new(test.prompt, 1);
        for position in 0..test.prompt {
            let token = LlamaToken(id(position + sequence));
            batch.add(token, position as i32, &[sequence as i32], position + 1 == test.prompt)?;
        }
        context.decode(&mut batch)?;
    }
    context.synchronize();
    let start = Instant::now();
    for position in test.prompt..test.prompt + test.generated {
        let mut batch = LlamaBatch::new(test.sequences, 1);
        for sequence in 0..test.sequences {
            let token = LlamaToken(id(position + sequence));
            batch.add(token, position as i32, &[sequence as i32], true)?;
        }
        context.decode(&mut batch)?;
        context.synchronize();
    }
    let tokens = test.generated * test.sequences;
    println!("tg {}", tokens as f64 / start.elapsed().as_secs_f64());
    Ok(())
}

/// Reads a text in batches of 512.
fn read(context: &mut LlamaContext<'_>, ids: &[i32], first: i32) -> Result<()> {
    for (index, some) in ids.chunks(512).enumerate() {
        eval(context, some, first + 512 * index as i32)?;
    }
    Ok(())
}

/// Prints the logits after the last token; so many are read at once. The cache holds f32.
fn logits(file: &str, threads: i32, at_once: usize, tokens: &[i32]) -> Result<()> {
    let mut backend = LlamaBackend::init()?;
    backend.void_logs();
    let model = LlamaModel::load_from_file(&backend, file, &LlamaModelParams::default())?;
    let params = params(threads, tokens.len() + 8)
        .with_type_k(KvCacheType::F32)
        .with_type_v(KvCacheType::F32)
        .with_flash_attention_policy(llama_cpp_sys_2::LLAMA_FLASH_ATTN_TYPE_DISABLED);
    let mut context = model.new_context(&backend, params)?;
    let mut position = 0;
    let mut last = 0;
    for some in tokens.chunks(at_once.max(1)) {
        eval(&mut context, some, position)?;
        position += some.len() as i32;
        last = some.len() as i32 - 1;
    }
    let line: Vec<String> =
        context.get_logits_ith(last).iter().map(|logit| logit.to_string()).collect();
    println!("{}", line.join(" "));
    Ok(())
}

fn params(threads: i32, tokens: usize) -> LlamaContextParams {
    LlamaContextParams::default()
        .with_n_ctx(NonZeroU32::new(tokens as u32))
        .with_n_batch(512)
        .with_n_threads(threads)
        .with_n_threads_batch(threads)
}

fn eval(context: &mut LlamaContext<'_>, ids: &[i32], first: i32) -> Result<()> {
    let mut batch = LlamaBatch::new(ids.len().max(1), 1);
    for (index, &id) in ids.iter().enumerate() {
        batch.add(LlamaToken(id), first + index as i32, &[0], index + 1 == ids.len())?;
    }
    context.decode(&mut batch)?;
    context.synchronize();
    Ok(())
}
