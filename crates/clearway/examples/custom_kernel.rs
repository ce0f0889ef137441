//! A kernel of your own: a contract that says which bytes it touches, and an implementation for each
//! kind of device.
//!
//! cargo run -p clearway --example custom_kernel

use clearway::cpu::{CpuKernel, Grid};
use clearway::{
    BindingContract, BindingRole, CustomKernel, DType, GraphExecutor, KernelContract, Layout, Ops,
    Upload,
};

/// `y = a * x + y0` in WGSL. Operands are `o0`, `o1`, ... in the order of the contract; what reaches
/// their elements is written in front of this text.
const WGSL: &str = "
@compute @workgroup_size(64)
fn main(@builtin(global_invocation_id) id: vec3<u32>) {
    let cols = P.o2.shape.w;
    let row = id.x / cols;
    let col = id.x % cols;
    if (row >= P.o2.shape.z) {
        return;
    }
    let y = argf(0u) * get_o0(row_o0(row) + col) + get_o1(row_o1(row) + col);
    put_o2(row_o2(row) + col, y);
}
";

fn axpy() -> CustomKernel {
    // The contract is all the runtime needs to order the kernel, share memory around it and prove the
    // schedule.
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
    CustomKernel::new(contract)
        .with_cpu(cpu)
        .with_wgsl(WGSL, |views, _| [views[2].layout.elems().div_ceil(64) as u32, 1, 1])
}

/// The CPU, and a GPU or a software driver where Vulkan finds one.
fn executors() -> Vec<GraphExecutor> {
    let mut all = vec![GraphExecutor::cpu()];
    #[cfg(feature = "vulkan")]
    match clearway::vulkan::VulkanDevice::open(clearway::vulkan::VulkanOptions::default()) {
        Ok(device) => all.push(GraphExecutor::new(device)),
        Err(error) => println!("on the CPU only: {error}"),
    }
    all
}

fn main() -> Result<(), Box<dyn std::error::Error>> {
    for executor in executors() {
        executor.register(axpy())?;
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
            let (name, dispatches) =
                (&executor.device().info().name, result.stats().compile.dispatches);
            println!("{name}, recorded {recorded}: {dispatches} dispatches");
        }
    }
    Ok(())
}
