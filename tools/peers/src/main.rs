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
        ["speed", file, threads, prompt, generated] => {
            speed(file, threads.parse()?, prompt.parse()?, generated.parse()?)
        }
        ["logits", file, threads, at_once, ref tokens @ ..] => {
            let tokens: Vec<i32> =
                tokens.iter().map(|id| id.parse()).collect::<std::result::Result<_, _>>()?;
            logits(file, threads.parse()?, at_once.parse()?, &tokens)
        }
        _ => {
            Err("usage: features | speed FILE THREADS PP TG | logits FILE THREADS AT_ONCE ID..."
                .into())
        }
    }
}

/// Prints tokens per second of a prompt and of generation, the cache empty before each.
fn speed(file: &str, threads: i32, prompt: usize, generated: usize) -> Result<()> {
    let mut backend = LlamaBackend::init()?;
    backend.void_logs();
    let model = LlamaModel::load_from_file(&backend, file, &LlamaModelParams::default())?;
    let mut context = context(&backend, &model, threads, prompt.max(generated) + 8)?;
    let vocab = model.n_vocab() as usize;
    let ids: Vec<i32> = (0..prompt).map(|i| (1 + i * 7919 % (vocab - 1)) as i32).collect();
    eval(&mut context, &ids[..8.min(prompt)], 0)?;
    context.clear_kv_cache();
    let start = Instant::now();
    eval(&mut context, &ids, 0)?;
    println!("pp {}", prompt as f64 / start.elapsed().as_secs_f64());
    context.clear_kv_cache();
    let start = Instant::now();
    for position in 0..generated {
        eval(&mut context, &[ids[position % prompt]], position as i32)?;
    }
    println!("tg {}", generated as f64 / start.elapsed().as_secs_f64());
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

fn context<'a>(
    backend: &LlamaBackend,
    model: &'a LlamaModel,
    threads: i32,
    tokens: usize,
) -> Result<LlamaContext<'a>> {
    Ok(model.new_context(backend, params(threads, tokens))?)
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
