//! What tests of the compiled kernels need: SPIR-V without a device.

use clearway_graph::{DType, Layout};

use super::guards::Guards;
use super::{pipeline, spirv, wide};
use crate::lowering::prefetch;
use crate::wgsl::{Wide, planes};

/// Stands for what turns text into SPIR-V, in the names of what is kept on disk.
pub const COMPILER: u32 = pipeline::COMPILER;

/// The words a driver gets for this text; `checks` guards every index and loop.
///
/// # Errors
/// What is wrong with the text.
pub fn compile(source: &str, checks: bool) -> Result<Vec<u32>, String> {
    pipeline::to_spirv(source, &Guards::own(checks))
}

/// The words with the accesses and barriers that their memory model asks for.
///
/// # Errors
/// Why they cannot be repaired.
pub fn repair(words: Vec<u32>) -> Result<Vec<u32>, String> {
    spirv::repair(words).map_err(|error| error.to_string())
}

/// The text of the kernel that reads weights ahead, which no op stands for.
pub fn read_ahead() -> String {
    prefetch::reader(0, 4096).source
}

/// Products on matrices of a workgroup, each with a name: all types of weights, sides, steps and addends.
pub fn wide() -> Vec<(String, Vec<u32>)> {
    let readable = |dtype: &DType| {
        let layout = Layout::new(*dtype, &[4096, 4096]);
        let planes = layout.is_ok_and(|layout| planes::supports(&layout));
        matches!(dtype, DType::F16 | DType::BF16) || planes
    };
    let mut all = Vec::new();
    for weights in DType::ALL.into_iter().filter(readable) {
        let (starts, _) = planes::offsets(weights, 4096 * 4096 / 32);
        for step in [64, 32] {
            for (left, addend) in
                [(false, None), (true, Some((2, 4096))), (false, Some((2, 4096))), (true, None)]
            {
                let tile = if left { [256, 128, step] } else { [128, 256, step] };
                // By turns the addend is the memory of the result.
                let y = match addend {
                    Some(_) if left => (2, 4096),
                    Some(_) => (3, 4096),
                    None => (2, 4096),
                };
                let product = Wide {
                    tile,
                    invocations: 256,
                    weights_left: left,
                    outer: 4096,
                    inner: 4096,
                    x_stride: 4096,
                    weights,
                    planes: starts.map(|start| (start / 4) as u32),
                    y,
                    addend,
                };
                let added = addend.map_or("", |c| if c == y { "-in-place" } else { "-added" });
                let side = if left { "left" } else { "right" };
                let name = format!("wide-{weights}-{side}-{step}{added}");
                all.push((name, wide::words(&product)));
            }
        }
    }
    all
}
