//! A kernel of one's own: numbers are clamped to a range, on a GPU where there is one.

use clearway::cpu::{CpuKernel, Grid};
use clearway::{
    BindingContract, BindingRole, CustomKernel, DType, GraphExecutor, KernelContract, Layout, Ops,
    Upload,
};

const CLAMP: &str = "
@compute @workgroup_size(64)
fn main(@builtin(global_invocation_id) id: vec3<u32>) {
    if (id.x < P.o1.shape.w) {
        put_o1(id.x, clamp(get_o0(id.x), argf(0u), argf(1u)));
    }
}
";

fn main() -> Result<(), Box<dyn std::error::Error>> {
    let contract = KernelContract::new(
        "clamp",
        [
            BindingContract::new("x", BindingRole::Read),
            BindingContract::new("y", BindingRole::Write),
        ],
    );
    let cpu = CpuKernel::new(
        |views, _| Grid::rows(views[1].layout.rows(), 1),
        |piece| {
            let (low, high) = (piece.float(0), piece.float(1));
            for row in piece.rows() {
                let x = piece.src_row::<f32>(0, row);
                for (y, x) in piece.dst_row::<f32>(1, row).iter_mut().zip(x) {
                    *y = x.clamp(low, high);
                }
            }
        },
    );
    let kernel = CustomKernel::new(contract)
        .with_cpu(cpu)
        .with_wgsl(CLAMP, |views, _| [views[1].layout.elems().div_ceil(64) as u32, 1, 1]);

    let executor = GraphExecutor::auto();
    executor.register(kernel)?;
    let numbers: Vec<f32> = (0..256).map(|i| i as f32 - 128.0).collect();
    let data = executor.device().upload(&numbers)?;
    let mut pass = executor.begin_recorded()?;
    let x = data.tensor(DType::F32, &[256])?;
    let y = pass.declare(Layout::new(DType::F32, &[256])?)?;
    pass.call_kernel("clamp", &[x, y], &[(-10.0_f32).to_bits(), 10.0_f32.to_bits()])?;
    pass.output(y)?;
    let found = pass.finish_optimized()?.read_f32(y)?;
    for (number, found) in numbers.iter().zip(&found) {
        assert_eq!(*found, number.clamp(-10.0, 10.0));
    }
    println!("{} numbers clamped on {}", found.len(), executor.device().info().name);
    Ok(())
}
