//! What products would give whose matrices belong to a whole workgroup: VK_NV_cooperative_matrix2 on a device that has
//! it, f16 and 4-bit weights, over the shapes of an 8B model.
//!
//! Every variant is checked against sums in f64 before it is timed. docs/performance.md has the figures.

mod gpu;
mod kernel;
mod measure;
mod spirv;

use std::path::Path;
use std::process::ExitCode;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::mpsc;
use std::time::Instant;

use gpu::{Gpu, Result};
use kernel::{Out, Variant, Weights};
use measure::{Bench, SHAPES, Timing, tflops};

fn main() -> ExitCode {
    let args: Vec<String> = std::env::args().skip(1).collect();
    let words: Vec<&str> = args.iter().map(String::as_str).collect();
    let done = match words[..] {
        [] => measure(),
        ["--write", folder] => write(Path::new(folder)),
        _ => Err("usage: clearway-ceiling [--write FOLDER]; the folder gets the modules".into()),
    };
    match done {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            eprintln!("{}", error.0);
            ExitCode::FAILURE
        }
    }
}

/// Those that were fastest, and what shows why: fewer invocations, other tiles, results in f16, the shape in the
/// text, clamping.
fn variants() -> Vec<Variant> {
    use Variant as V;
    let (wide, square, tall) = ([128, 256, 64], [128, 128, 64], [256, 128, 64]);
    let swap = true;
    let mut list = vec![
        V::new(wide, 256),
        V::new(square, 256),
        V { swap, ..V::new(tall, 256) },
        V { out: Out::F16, ..V::new(wide, 256) },
        V { out: Out::F16, ..V::new(square, 256) },
        V { out: Out::SumsF16, ..V::new(wide, 256) },
        V { out: Out::SumsF16, ..V::new(square, 256) },
        V { columns: Some(4096), ..V::new(wide, 256) },
        V { clamp: true, ..V::new(wide, 256) },
        V { clamp: true, ..V::new(square, 256) },
        V::new(square, 128),
        V::new([128, 256, 32], 256),
        V::new([128, 128, 32], 128),
        V::new([64, 256, 64], 256),
        V::new([64, 128, 64], 256),
        V::new(wide, 128),
    ];
    for weights in [Weights::Blocks, Weights::Apart] {
        for swap in [false, true] {
            for tile in [tall, square, wide] {
                list.push(V { weights, swap, ..V::new(tile, 256) });
            }
        }
        list.push(V { weights, ..V::new([256, 128, 32], 256) });
    }
    list
}

/// Writes the modules to files, for validators and disassemblers.
fn write(folder: &Path) -> Result<()> {
    std::fs::create_dir_all(folder)?;
    for variant in variants() {
        let bytes: Vec<u8> = variant.words().iter().flat_map(|word| word.to_le_bytes()).collect();
        let file = folder.join(format!("{}.spv", variant.name()));
        std::fs::write(file, bytes)?;
    }
    Ok(())
}

/// Whether the device multiplies such matrices.
fn allowed(gpu: &Gpu, variant: &Variant) -> bool {
    let (rows, columns) = variant.sides();
    let size = [rows, columns, variant.tile[2]];
    let sums = if variant.out == Out::SumsF16 { 0 } else { 1 };
    let fits = gpu.dimensions.iter().any(|d| {
        let kind = (d.scope, d.types, d.saturating, d.invocations);
        kind == (2, [0, 0, sums, sums], 0, variant.threads)
            && size.iter().zip(d.multiples).all(|(size, multiple)| size % multiple.max(1) == 0)
    });
    fits && variant.threads <= gpu.most_invocations
        && size.iter().all(|&size| size <= gpu.largest_dimension)
}

/// Compiles on many threads and measures what is ready, one after the other.
fn measure() -> Result<()> {
    let gpu = Gpu::open()?;
    let mut list = variants();
    list.retain(|variant| allowed(&gpu, variant));
    println!("# {} of {} variants", list.len(), variants().len());
    let threads = std::thread::available_parallelism().map_or(4, |n| n.get());
    let (compiler, next) = (gpu.compiler(), AtomicUsize::new(0));
    let mut found = Vec::new();
    std::thread::scope(|scope| {
        let (sender, made) = mpsc::channel();
        for _ in 0..threads.saturating_sub(2).clamp(1, 12) {
            let (sender, list, compiler, next) = (sender.clone(), &list, &compiler, &next);
            scope.spawn(move || {
                while let Some(variant) = list.get(next.fetch_add(1, Ordering::Relaxed)) {
                    let start = Instant::now();
                    let made = compiler.kernel(&variant.words());
                    if sender.send((*variant, made, start.elapsed().as_secs_f64())).is_err() {
                        return;
                    }
                }
            });
        }
        drop(sender);
        let mut bench = Bench::new(gpu)?;
        println!("# M x N x K: {SHAPES:?}; TFLOP/s by the median of the runs (by the best)");
        for (variant, made, seconds) in made {
            let name = variant.name();
            match made {
                Err(error) => println!("FAIL  {name}: {}", error.0),
                Ok((kernel, statistics)) => {
                    println!("#     {name}: compiled in {seconds:.2} s{statistics}");
                    found.extend(bench.run(&variant, kernel)?);
                }
            }
        }
        Ok(())
    })
    .inspect(|()| table(&found))
}

/// The best three of each shape.
fn table(found: &[(Variant, usize, Timing)]) {
    let kinds = [
        (Weights::F16, "f16 weights"),
        (Weights::Blocks, "4-bit weights in blocks of 18 bytes"),
        (Weights::Apart, "4-bit weights, scales apart"),
    ];
    for (weights, title) in kinds {
        println!("\n{title}:");
        for (i, [m, n, k]) in SHAPES.into_iter().enumerate() {
            let mut list: Vec<_> =
                found.iter().filter(|f| f.0.weights == weights && f.1 == i).collect();
            list.sort_by(|a, b| a.2.median.total_cmp(&b.2.median));
            for (variant, _, timing) in list.into_iter().take(3) {
                let (median, best) = (tflops(i, timing.median), tflops(i, timing.best));
                let name = variant.name();
                let us = timing.median;
                println!("{m:>5}{n:>7}{k:>7}  {name:<28}{us:>8.1} us{median:>8.1} ({best:.1})");
            }
        }
    }
}
