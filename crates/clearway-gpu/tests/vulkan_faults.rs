//! What goes wrong on Vulkan is a typed error, and the process goes on: a new device can be opened.
#![allow(clippy::unwrap_used, clippy::panic)] // shared functions are not tests in clippy's eyes

use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::Duration;

use clearway_gpu::cpu::CpuDevice;
use clearway_gpu::vulkan::{Counting, Tuning, VulkanDevice, VulkanOptions};
use clearway_gpu::{
    Buffer, CustomKernel, Device, GpuError, KernelRegistry, Result, Upload, record,
};
use clearway_graph::{
    BindingContract, BindingRole, CapturedOpKind as Kind, ComputeGraph, DType, KernelContract,
    Layout,
};

const PLAIN: VulkanOptions = VulkanOptions {
    validate: false,
    checks: false,
    disk_cache: false,
    max_binding: None,
    processors: None,
    matrices: true,
    read_ahead: None,
    counting: Counting::Never,
    tuning: Tuning::Hardware,
    statistics: false,
    float_activations: false,
    patience: None,
    memory_limit: None,
};

#[path = "common/kernel_of_kind.rs"]
mod kernel_of_kind;
mod vulkan;
use vulkan::open;

/// Doubles some numbers on a device.
fn doubled(device: &dyn Device) -> Result<Vec<f32>> {
    let layout = Layout::new(DType::F32, &[4])?;
    let x = device.upload(&[1.0_f32, 2.0, 3.0, 4.0])?;
    let y = device.alloc(16)?;
    let mut graph = ComputeGraph::new();
    let views = [x.view(0, layout)?, y.view(0, layout)?];
    record(&mut graph, Kind::SCALE, &views, &[2.0_f32.to_bits()], "")?;
    run(device, &graph, &KernelRegistry::new())?;
    y.read_vec(0, 4)
}

fn run(device: &dyn Device, graph: &ComputeGraph, kernels: &KernelRegistry) -> Result<()> {
    let mut encoder = device.encoder(kernels);
    graph.encode_with_barriers(&mut *encoder)?;
    encoder.into_program()?.run()
}

/// The device still works, and another one can be opened.
#[track_caller]
fn assert_goes_on(device: &VulkanDevice) {
    assert_eq!(doubled(device).unwrap(), [2.0, 4.0, 6.0, 8.0]);
    let another = VulkanDevice::open(PLAIN).unwrap();
    assert_eq!(doubled(&another).unwrap(), [2.0, 4.0, 6.0, 8.0]);
}

#[test]
fn more_memory_than_there_is() {
    let Some(device) = open(PLAIN) else { return };
    let (name, all) = (device.info().name.clone(), device.info().memory_bytes);
    let held: Buffer = device.alloc(1 << 20).unwrap();
    for bytes in [all + (1 << 30), u64::MAX / 2, u64::MAX - 300, u64::MAX] {
        match device.alloc(bytes) {
            Err(GpuError::OutOfMemory { device, wanted, available }) => {
                assert_eq!(device, name);
                assert!(wanted >= bytes, "{wanted} of {bytes}");
                assert!(available <= all, "{available} of {all}");
            }
            other => panic!("{bytes} bytes: {other:?}"),
        }
    }
    assert_eq!(held.len(), 1 << 20);
    assert_goes_on(&device);
}

/// A pass that calls a kernel with this body.
fn call(device: &VulkanDevice, body: &str) -> Result<Vec<f32>> {
    let contract = KernelContract::new(
        "mine",
        [
            BindingContract::new("x", BindingRole::Read),
            BindingContract::new("y", BindingRole::Write),
        ],
    );
    let mut kernels = KernelRegistry::new();
    kernels.register(CustomKernel::new(contract.clone()).with_wgsl(body, |_, _| [1, 1, 1]))?;
    let layout = Layout::new(DType::F32, &[4])?;
    let (x, y) = (device.upload(&[1.0_f32, 2.0, 3.0, 4.0])?, device.alloc(16)?);
    let mut graph = ComputeGraph::new();
    let views = [x.view(0, layout)?, y.view(0, layout)?];
    graph.dispatch(Kind::Custom, &contract, &views, &[], "")?;
    run(device, &graph, &kernels)?;
    y.read_vec(0, 4)
}

#[test]
fn a_kernel_that_does_not_compile() {
    let Some(device) = open(PLAIN) else { return };
    let good = "@compute @workgroup_size(4) fn main(@builtin(local_invocation_index) i: u32) {
    put_o1(i, get_o0(i) + 1.0);
}";
    let bad = [
        ("a missing brace", good.replace('}', "")),
        ("an unknown name", good.replace("get_o0", "get_o7")),
        ("a wrong type", good.replace("1.0", "true")),
        ("no entry point", good.replace("main", "other")),
        ("nothing", String::new()),
    ];
    for (what, body) in bad {
        match call(&device, &body) {
            Err(GpuError::KernelCompile { kernel, device: name, message }) => {
                assert_eq!((kernel.as_str(), &name), ("mine", &device.info().name), "{what}");
                assert!(!message.is_empty(), "{what}");
            }
            other => panic!("{what}: {other:?}"),
        }
    }
    assert_eq!(call(&device, good).unwrap(), [2.0, 3.0, 4.0, 5.0]);
    assert_goes_on(&device);
}

#[test]
fn a_device_that_is_not_there() {
    let Some(device) = open(PLAIN) else { return };
    let count = VulkanDevice::list().unwrap().len();
    for index in [count, 99, usize::MAX] {
        match VulkanDevice::open_index(index, PLAIN) {
            Err(GpuError::NoDevice { reason }) => {
                assert!(reason.contains(&format!("vulkan:{index}")), "{reason}");
            }
            Err(other) => panic!("{other}"),
            Ok(_) => panic!("vulkan:{index} of {count} was opened"),
        }
    }
    assert_goes_on(&device);
}

/// Keeps the device busy.
const COUNTS: &str =
    "@compute @workgroup_size(1) fn main(@builtin(workgroup_id) group: vec3<u32>) {
    var x = group.x;
    for (var i = 0u; i < get_o0(0u); i++) {
        x = x * 1664525u + 1013904223u;
    }
    put_o1(group.x, x);
}";
/// Says that it was run, after what wrote its first operand.
const SAYS: &str = "@compute @workgroup_size(1) fn main() { put_o1(0u, get_o0(0u) | 1u); }";

/// Rounds, as many as a software driver lets a loop have, and workgroups: together they take longer than
/// the patience of the test, and then come to an end.
const ROUNDS: u32 = 60_000;
const GROUPS: usize = 200;

#[test]
fn what_a_device_may_still_use_after_a_timeout_is_not_freed() {
    let patience = Some(Duration::from_millis(5));
    let Some(device) = open(VulkanOptions { patience, ..PLAIN }) else { return };
    if !device.is_software() {
        return println!("skipped: how long a real device takes is not known");
    }
    let mut kernels = KernelRegistry::new();
    let contracts = [("counts", COUNTS, GROUPS), ("says", SAYS, 1)].map(|(name, body, groups)| {
        let read = BindingContract::new("x", BindingRole::Read);
        let contract =
            KernelContract::new(name, [read, BindingContract::new("y", BindingRole::Write)]);
        let kernel = CustomKernel::new(contract.clone());
        kernels.register(kernel.with_wgsl(body, move |_, _| [groups as u32, 1, 1])).unwrap();
        contract
    });
    // Anything may take longer than the patience on a machine that has much to do.
    let patiently = |what: &mut dyn FnMut() -> Result<()>| loop {
        match what() {
            Err(GpuError::Timeout { .. }) => {}
            other => return other.unwrap(),
        }
    };
    let (rounds, x) = (device.alloc(4).unwrap(), device.alloc(4 * GROUPS as u64).unwrap());
    let mut done = None;
    patiently(&mut || {
        done = Some(device.alloc_host_visible(4)?);
        Ok(())
    });
    let done = done.unwrap();
    patiently(&mut || rounds.write_slice(0, &[ROUNDS]));
    let words = |buffer: &Buffer| {
        let count = buffer.len() as usize / 4;
        buffer.tensor(DType::U32, &[count]).unwrap()
    };
    let mut graph = ComputeGraph::new();
    for (contract, views) in contracts.iter().zip([[&rounds, &x], [&x, &done]]) {
        graph.dispatch(Kind::Custom, contract, &views.map(words), &[], "").unwrap();
    }
    let mut program = None;
    patiently(&mut || {
        let mut encoder = device.encoder(&kernels);
        graph.encode_with_barriers(&mut *encoder)?;
        program = Some(encoder.into_program()?);
        Ok(())
    });
    let mut program = program.unwrap();
    let outcome = program.run();
    assert!(matches!(outcome, Err(GpuError::Timeout { .. })), "{outcome:?}");
    assert_eq!(done.peek_vec::<u32>(0, 1).unwrap(), [0], "the kernel is under way");
    let held = device.allocated_bytes();
    assert!(held > 0);
    drop((program, rounds, x));
    assert_eq!(done.peek_vec::<u32>(0, 1).unwrap(), [0], "dropping does not wait for it");
    assert_eq!(device.allocated_bytes(), held, "all of it stays");
    // The device comes back, and so does what is made of it later.
    while done.peek_vec::<u32>(0, 1).unwrap() == [0] {
        std::thread::sleep(Duration::from_millis(20));
    }
    patiently(&mut || {
        assert_eq!(doubled(&device)?, [2.0, 4.0, 6.0, 8.0]);
        Ok(())
    });
    assert_eq!(device.allocated_bytes(), held, "the program's memory is never given back");
}

/// Runs one of the ignored tests below in a process of its own: what it looks at is read from the
/// environment.
fn child(test: &str, variables: &[(&str, &Path)]) {
    let mut command = Command::new(std::env::current_exe().unwrap());
    command.args([test, "--exact", "--ignored", "--nocapture"]);
    let output = command.envs(variables.iter().copied()).output().unwrap();
    let text = String::from_utf8_lossy(&output.stdout);
    assert!(output.status.success() && text.contains("1 passed"), "{text}");
}

#[test]
fn no_driver_at_all() {
    let nowhere = Path::new("/nonexistent/driver.json");
    let variables = [("VK_ICD_FILENAMES", nowhere), ("VK_DRIVER_FILES", nowhere)];
    child("without_a_driver", &variables);
}

#[test]
#[ignore = "run by no_driver_at_all"]
fn without_a_driver() {
    for _ in 0..2 {
        for result in [VulkanDevice::open(PLAIN), VulkanDevice::open_index(0, PLAIN)] {
            assert!(matches!(result, Err(GpuError::NoDevice { .. })));
        }
        // Some loaders have no devices, others no instance.
        let list = VulkanDevice::list();
        assert!(
            matches!(&list, Ok(l) if l.is_empty())
                || matches!(list, Err(GpuError::NoDevice { .. }))
        );
    }
    assert_eq!(doubled(&CpuDevice::with_threads(1)).unwrap(), [2.0, 4.0, 6.0, 8.0]);
}

fn files(folder: &Path) -> Vec<PathBuf> {
    let mut found = Vec::new();
    for entry in std::fs::read_dir(folder).into_iter().flatten().flatten() {
        let path = entry.path();
        if path.is_dir() { found.extend(files(&path)) } else { found.push(path) }
    }
    found
}

#[test]
fn broken_cache_files_are_ignored_and_rewritten() {
    if open(PLAIN).is_none() {
        return;
    }
    let folder = std::env::temp_dir().join(format!("clearway-faults-{}", std::process::id()));
    let variables = [("CLEARWAY_CACHE", folder.as_path())];
    child("with_the_disk_cache", &variables);
    let kept = files(&folder);
    assert!(kept.len() >= 2, "kernels and the driver's cache: {kept:?}");
    let whole: Vec<Vec<u8>> = kept.iter().map(|file| std::fs::read(file).unwrap()).collect();
    let breaks: [fn(&mut Vec<u8>); 4] = [
        |bytes| bytes.clear(),
        |bytes| bytes.truncate(bytes.len() / 2),
        |bytes| *bytes.last_mut().unwrap() ^= 1,
        |bytes| bytes.fill(0xff),
    ];
    for break_it in breaks {
        for (file, bytes) in kept.iter().zip(&whole) {
            let mut bytes = bytes.clone();
            break_it(&mut bytes);
            std::fs::write(file, bytes).unwrap();
        }
        child("with_the_disk_cache", &variables);
        for (file, bytes) in kept.iter().zip(&whole) {
            let found = std::fs::read(file).unwrap();
            // What a driver keeps may differ from run to run; the text of kernels does not.
            let same = found == *bytes || file.components().any(|c| c.as_os_str() == "pipelines");
            assert!(same && found.starts_with(&bytes[..8]), "{}", file.display());
        }
    }
    std::fs::remove_dir_all(folder).unwrap();
}

#[test]
#[ignore = "run by broken_cache_files_are_ignored_and_rewritten"]
fn with_the_disk_cache() {
    let device = VulkanDevice::open(VulkanOptions { disk_cache: true, ..PLAIN }).unwrap();
    assert_eq!(doubled(&device).unwrap(), [2.0, 4.0, 6.0, 8.0]);
}

#[test]
fn a_kernel_of_another_kind_is_refused_before_it_runs() {
    let Some(device) = open(PLAIN) else { return };
    kernel_of_kind::check(&device);
}
