//! Runs that are handed over before earlier ones are done.
#![allow(clippy::unwrap_used)] // a test stops at the first surprise

use std::sync::Arc;

use clearway::cpu::{CpuDevice, CpuKernel, Grid};
use clearway::testkit::open_vulkan;
use clearway::vulkan::VulkanOptions;
use clearway::{
    BindingContract, BindingRole, Bindings, Buffer, CapturedOpKind, CompileOptions, CustomKernel,
    DType, Device, Executable, GraphExecutor, KernelContract, Recorder,
};

const SLOTS: u32 = 64;

/// A list that `work`s, counting its runs in a word, and `post`s: counts its own and puts both counts into
/// the host-visible buffer.
struct Counting {
    executable: Executable,
    visible: Buffer,
}

impl Counting {
    fn new(device: Arc<dyn Device>) -> Self {
        let executor = GraphExecutor::on(device.clone());
        let (work, post) = (work(), post());
        let contracts = (work.contract.clone(), post.contract.clone());
        executor.register(work).unwrap();
        executor.register(post).unwrap();
        let count = device.alloc(4).unwrap();
        let posts = device.alloc(4).unwrap();
        let visible = device.alloc_host_visible(u64::from(SLOTS) * 8).unwrap();
        let (mut recorder, mut bound) = (Recorder::new(), Bindings::new());
        let views =
            [("count", &count), ("posts", &posts), ("visible", &visible)].map(|(name, buffer)| {
                let words = buffer.len() as usize / 4;
                let view = recorder.external(name, DType::U32, &[words]).unwrap();
                bound.bind(view, buffer);
                view
            });
        let graph = recorder.graph_mut();
        let kind = CapturedOpKind::Custom;
        graph.dispatch(kind, &contracts.0, &views[..1], &[], "work").unwrap();
        graph.dispatch(kind, &contracts.1, &views, &[], "post").unwrap();
        let executable =
            executor.compile(recorder.graph(), &bound, &CompileOptions::default()).unwrap();
        Self { executable, visible }
    }

    /// What the host-visible buffer holds in a slot: runs of `work` and of `post`.
    fn slot(&self, index: usize) -> (u32, u32) {
        let words: Vec<u32> = self.visible.peek_vec(0, SLOTS as usize * 2).unwrap();
        (words[index * 2], words[index * 2 + 1])
    }
}

fn work() -> CustomKernel {
    let count = BindingContract::new("count", BindingRole::ReadWrite);
    let cpu = CpuKernel::new(|_, _| Grid::rows(1, 1), |piece| piece.dst_row::<u32>(0, 0)[0] += 1);
    let wgsl = "
@compute @workgroup_size(1)
fn main() { put_o0(0u, get_o0(0u) + 1u); }
";
    CustomKernel::new(KernelContract::new("test.work", [count]))
        .with_cpu(cpu)
        .with_wgsl(wgsl, |_, _| [1, 1, 1])
}

fn post() -> CustomKernel {
    let bindings = [
        BindingContract::new("count", BindingRole::Read),
        BindingContract::new("posts", BindingRole::ReadWrite),
        BindingContract::new("visible", BindingRole::ReadWrite),
    ];
    let cpu = CpuKernel::new(
        |_, _| Grid::rows(1, 1),
        |piece| {
            let count = piece.src::<u32>(0)[0];
            let posts = piece.dst_row::<u32>(1, 0)[0] + 1;
            piece.dst_row::<u32>(1, 0)[0] = posts;
            let slot = (posts - 1) as usize * 2;
            piece.dst_row::<u32>(2, 0)[slot] = count;
            piece.dst_row::<u32>(2, 0)[slot + 1] = posts;
        },
    );
    let wgsl = "
@compute @workgroup_size(1)
fn main() {
    let posts = get_o1(0u) + 1u;
    put_o1(0u, posts);
    put_o2(2u * posts - 2u, get_o0(0u));
    put_o2(2u * posts - 1u, posts);
}
";
    CustomKernel::new(KernelContract::new("test.post", bindings))
        .with_cpu(cpu)
        .with_wgsl(wgsl, |_, _| [1, 1, 1])
}

fn devices() -> Vec<Arc<dyn Device>> {
    let options = VulkanOptions { disk_cache: false, ..VulkanOptions::default() };
    let vulkan = open_vulkan(options).unwrap().map(|device| Arc::new(device) as Arc<dyn Device>);
    let cpu = Arc::new(CpuDevice::with_threads(2)) as Arc<dyn Device>;
    std::iter::once(cpu).chain(vulkan).chain(wgpu()).collect()
}

#[cfg(feature = "wgpu")]
fn wgpu() -> Option<Arc<dyn Device>> {
    let options = clearway::wgpu::WgpuOptions { disk_cache: false, ..Default::default() };
    clearway::testkit::open_wgpu(options).unwrap().map(|device| Arc::new(device) as Arc<dyn Device>)
}

#[cfg(not(feature = "wgpu"))]
fn wgpu() -> Option<Arc<dyn Device>> {
    None
}

#[test]
fn results_of_finished_runs_are_seen_while_others_are_under_way() {
    for device in devices() {
        let mut counting = Counting::new(device);
        let first = counting.executable.start(3).unwrap();
        let second = counting.executable.start(40).unwrap();
        counting.executable.finish(first).unwrap();
        assert_eq!((0..3).map(|i| counting.slot(i)).collect::<Vec<_>>(), [(1, 1), (2, 2), (3, 3)]);
        let third = counting.executable.start(21).unwrap();
        counting.executable.finish(second).unwrap();
        assert_eq!(counting.slot(42), (43, 43));
        counting.executable.finish(third).unwrap();
        assert_eq!(counting.slot(63), (64, 64));
        assert_eq!(counting.slot(0), (1, 1), "what was there stays");
    }
}
