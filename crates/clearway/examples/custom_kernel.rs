//! A kernel of your own: a contract that says which bytes it touches, and an implementation.
//!
//! cargo run -p clearway --example custom_kernel

use clearway::cpu::{CpuKernel, Grid};
use clearway::{
    BindingContract, BindingRole, CustomKernel, DType, GraphExecutor, KernelContract, Layout, Ops,
    Upload,
};

fn main() -> Result<(), Box<dyn std::error::Error>> {
    // `y = a * x + y0` on rows. The contract is all the runtime needs to order it, share memory
    // around it and prove the schedule.
    let contract = KernelContract::new(
        "axpy",
        [
            BindingContract::new("x", BindingRole::Read),
            BindingContract::new("y0", BindingRole::Read),
            BindingContract::new("y", BindingRole::Write),
        ],
    );
    let cpu = CpuKernel::new(
        // Cut into rows: each piece owns some rows of the output.
        |views, _| Grid::rows(views[2].layout.rows(), 16),
        |piece| {
            let a = piece.float(0);
            for row in piece.rows() {
                let (x, y0) = (piece.src_row::<f32>(0, row), piece.src_row::<f32>(1, row));
                for ((y, x), y0) in piece.dst_row::<f32>(2, row).iter_mut().zip(x).zip(y0) {
                    *y = a * x + y0;
                }
            }
        },
    );
    let executor = GraphExecutor::cpu();
    executor.register(CustomKernel::new(contract).with_cpu(cpu))?;

    let layout = Layout::new(DType::F32, &[64, 8])?;
    let x = executor.device().upload(&vec![1.0_f32; 512])?;

    // The same calls in both kinds of session: encoded as they come, or recorded and optimised.
    for recorded in [false, true] {
        let mut pass = if recorded { executor.begin_recorded()? } else { executor.begin()? };
        let x = x.view(0, layout)?;
        let doubled = pass.scale(x, 2.0)?;
        let y = pass.declare(layout)?;
        pass.call_kernel("axpy", &[x, doubled, y], &[10.0_f32.to_bits()])?;
        pass.output(y)?;
        let result = pass.finish_optimized()?;
        assert!(result.read_f32(y)?.iter().all(|&v| v == 12.0));
        println!("recorded {recorded}: {} dispatches", result.stats().compile.dispatches);
    }
    Ok(())
}
