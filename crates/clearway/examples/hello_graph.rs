//! A first graph: record a few ops, look at what Clearway decides, run it once, run it again.
//!
//! cargo run -p clearway --example hello_graph

use clearway::{CompileOptions, DType, GraphExecutor, Layout, Ops, Upload};

fn main() -> Result<(), Box<dyn std::error::Error>> {
    let executor = GraphExecutor::cpu();
    let weight = executor.device().upload(&[1.0_f32, 2.0, 3.0, 4.0])?;
    let weight = weight.tensor(DType::F32, &[4]).map(|view| (weight, view))?;

    // Record. Nothing runs yet: every call only says which bytes it reads and writes.
    let mut pass = executor.begin_recorded()?;
    let x = pass.input(Layout::new(DType::F32, &[2, 4])?)?;
    let normed = pass.rms_norm(x, 1e-5)?;
    let left = pass.mul(normed, weight.1)?;
    let right = pass.silu(x)?;
    let y = pass.add(left, right)?;
    pass.output(y)?;

    // Compile: fuse, order, place, prove, lower. The rms_norm, its weight and the sum become one
    // dispatch, behind silu.
    let mut graph = pass.compile(&CompileOptions::default())?;
    print!("{}", graph.graph().to_text());
    let stats = graph.stats().compile;
    assert_eq!((stats.recorded, stats.dispatches, stats.groups), (4, 2, 2));

    // Run, as often as you like: nothing is encoded again.
    for step in 1..=3 {
        let input: Vec<f32> = (0..8).map(|i| (i * step) as f32).collect();
        graph.write(x, &input)?;
        graph.run()?;
        println!("step {step}: {:?}", graph.read_f32(y)?);
    }
    Ok(())
}
