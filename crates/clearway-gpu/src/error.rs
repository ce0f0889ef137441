//! What can go wrong on the way from an op call to a finished device.

use clearway_graph::{DType, DispatchId, GraphError};

use crate::profile::ProfileMode;

/// An error of devices, ops and backends.
#[derive(Debug, Clone, PartialEq, thiserror::Error)]
#[non_exhaustive]
pub enum GpuError {
    /// The graph core refused its input.
    #[error(transparent)]
    Graph(#[from] GraphError),
    /// An op got tensors whose shapes do not fit together.
    #[error("{op}: `{binding}` is {found}, but {expected}")]
    Shape {
        /// Op name.
        op: &'static str,
        /// Name of the offending operand.
        binding: &'static str,
        /// Its layout.
        found: String,
        /// What the op needs.
        expected: String,
    },
    /// An op got a tensor of an element type it does not take.
    #[error("{op}: `{binding}` is {found}, but {expected}")]
    DType {
        /// Op name.
        op: &'static str,
        /// Name of the offending operand.
        binding: &'static str,
        /// Its element type.
        found: DType,
        /// What the op takes.
        expected: String,
    },
    /// An op got too few or too many tensors or constants.
    #[error("{op}: {found} {what} given, {expected} needed")]
    Arity {
        /// Op name.
        op: &'static str,
        /// `operands` or `constants`.
        what: &'static str,
        /// How many were given.
        found: usize,
        /// How many are needed.
        expected: usize,
    },
    /// A constant of an op is out of its range.
    #[error("{op}: constant `{param}` is {found}, but {expected}")]
    Param {
        /// Op name.
        op: &'static str,
        /// Name of the constant.
        param: &'static str,
        /// Its value.
        found: String,
        /// What the op takes.
        expected: String,
    },
    /// An output of a dispatch lies over memory it also reads or writes through another operand.
    #[error(
        "{kernel} ({dispatch}): operand {written} writes bytes that operand {other} also covers; \
         give the output memory of its own"
    )]
    OperandOverlap {
        /// Kernel name.
        kernel: String,
        /// The dispatch.
        dispatch: DispatchId,
        /// Operand that is written.
        written: usize,
        /// Operand it overlaps.
        other: usize,
    },
    /// A dispatch differs from what the contract of the kernel that would run makes of it.
    #[error(
        "{kernel} ({dispatch}): its {what} differ from what the kernel's contract gives for its operands; \
         record it with the contract that the kernel is registered with"
    )]
    WrongContract {
        /// Kernel name.
        kernel: String,
        /// The dispatch.
        dispatch: DispatchId,
        /// What differs.
        what: &'static str,
    },
    /// A contract declares a part of an operand, but the device can only hand out all of it.
    #[error(
        "the contract of kernel `{kernel}` declares a part of operand {operand}, but `{device}` hands kernels \
         whole views; bind a view of that part, or declare the whole view"
    )]
    PartialExtent {
        /// Kernel name.
        kernel: String,
        /// Index of the operand.
        operand: usize,
        /// Device name.
        device: String,
    },
    /// A kernel was asked for that the registry does not have.
    #[error("kernel `{kernel}` is not registered; register it with the executor first")]
    UnknownKernel {
        /// Kernel name.
        kernel: String,
    },
    /// The registry already has a kernel of this name.
    #[error("kernel `{kernel}` is registered already; choose another name")]
    DuplicateKernel {
        /// Kernel name.
        kernel: String,
    },
    /// A registered kernel has no implementation for this device.
    #[error("kernel `{kernel}` has no implementation for device `{device}`")]
    KernelNotForDevice {
        /// Kernel name.
        kernel: String,
        /// Device name.
        device: String,
    },
    /// A view names a buffer this device does not have: made by another device, or freed.
    #[error(
        "buffer {buf_id} does not belong to device `{device}`: it was made by another device or has been freed"
    )]
    ForeignBuffer {
        /// Identity of the buffer.
        buf_id: usize,
        /// Device name.
        device: String,
    },
    /// A view starts at an address its element type cannot be read from.
    #[error("{dtype} tensor at byte {offset} of buffer {buf_id} is not aligned to {align} bytes")]
    Misaligned {
        /// Identity of the buffer.
        buf_id: usize,
        /// First byte.
        offset: u64,
        /// Element type.
        dtype: DType,
        /// Alignment needed.
        align: u64,
    },
    /// A view of packed weights that is written, or is not whole rows of them.
    #[error(
        "buffer {buf_id} holds weights in the device's own order: only ops that take weights may read \
         it, as whole rows of its tensor"
    )]
    PackedWeights {
        /// Identity of the buffer.
        buf_id: usize,
    },
    /// A host transfer reaches outside its buffer.
    #[error(
        "transfer of bytes {offset}..{offset}+{len} reaches outside buffer {buf_id} of {buf_len} bytes"
    )]
    TransferOutOfBounds {
        /// Identity of the buffer.
        buf_id: usize,
        /// First byte.
        offset: u64,
        /// Bytes to move.
        len: u64,
        /// Bytes in the buffer.
        buf_len: u64,
    },
    /// A host transfer has the wrong number or type of elements.
    #[error("{what}: {found} given, {expected} needed")]
    TransferMismatch {
        /// What was transferred.
        what: &'static str,
        /// What was given.
        found: String,
        /// What is needed.
        expected: String,
    },
    /// The device cannot hold what was asked for.
    #[error("out of memory on `{device}`: {wanted} bytes wanted, {available} available")]
    OutOfMemory {
        /// Device name.
        device: String,
        /// Bytes wanted.
        wanted: u64,
        /// Bytes available, as far as the device tells.
        available: u64,
    },
    /// No device of this kind can be opened.
    #[error(
        "no Vulkan device: {reason}; install a driver (Debian: mesa-vulkan-drivers), or use `--device cpu`"
    )]
    NoDevice {
        /// What is missing.
        reason: String,
    },
    /// wgpu finds no adapter that can be opened.
    #[error("no wgpu adapter: {reason}; install a driver, or use `--device cpu`")]
    NoAdapter {
        /// What is missing.
        reason: String,
    },
    /// The device cannot do something that is needed.
    #[error(
        "device `{device}` cannot be used: {missing} is missing; use another device or `--device cpu`"
    )]
    Unsupported {
        /// Device name.
        device: String,
        /// What it lacks.
        missing: &'static str,
    },
    /// A call of the driver failed.
    #[error("{call} failed on `{device}`: {reason}")]
    Driver {
        /// Device name.
        device: String,
        /// The call.
        call: &'static str,
        /// What the driver said.
        reason: String,
    },
    /// The device stopped: a fault, a reset, or it was unplugged. What it held is lost.
    #[error("device `{device}` was lost ({call}); open it again to go on")]
    DeviceLost {
        /// Device name.
        device: String,
        /// The call that found out.
        call: &'static str,
    },
    /// Workgroups waited in vain for others of the same list, which no device promises to start in order. What the last runs
    /// computed is not to be used. The program does without such waits from now on: run them again.
    #[error(
        "device `{device}` did not start workgroups in order; the last runs must be done again"
    )]
    Stalled {
        /// Device name.
        device: String,
    },
    /// The device did not finish in time.
    #[error("device `{device}` did not finish within {seconds} s")]
    Timeout {
        /// Device name.
        device: String,
        /// How long it was waited for.
        seconds: u64,
    },
    /// A kernel does not compile.
    #[error("kernel `{kernel}` does not compile for `{device}`: {message}")]
    KernelCompile {
        /// Kernel name.
        kernel: String,
        /// Device name.
        device: String,
        /// What the compiler said.
        message: String,
    },
    /// A tensor is larger than one binding of the device may be.
    #[error("`{operand}` of {kernel} covers {bytes} bytes, but `{device}` binds at most {limit}")]
    BindingTooLarge {
        /// Kernel name.
        kernel: String,
        /// Name of the operand.
        operand: &'static str,
        /// Device name.
        device: String,
        /// Bytes the operand covers.
        bytes: u64,
        /// Bytes one binding may cover.
        limit: u64,
    },
    /// A dispatch asks for no workgroups, or for more than the device starts.
    #[error(
        "kernel `{kernel}` asks for {found:?} workgroups, but `{device}` starts from 1 to {limit:?}; \
         give each workgroup more to do, or fold them into other dimensions"
    )]
    GroupCount {
        /// Kernel name.
        kernel: String,
        /// Device name.
        device: String,
        /// Workgroups asked for in each dimension.
        found: [u32; 3],
        /// The most the device starts in each dimension.
        limit: [u32; 3],
    },
    /// A workgroup of a kernel is larger than the device allows.
    #[error(
        "a workgroup of kernel `{kernel}` has {found} {what}, but `{device}` allows from 1 to {limit}"
    )]
    WorkgroupTooLarge {
        /// Kernel name.
        kernel: String,
        /// Device name.
        device: String,
        /// What there is too much of.
        what: &'static str,
        /// How much of it the text asks for.
        found: u64,
        /// How much the device allows.
        limit: u64,
    },
    /// The text of a kernel does something its contract does not say, so the proof would not know of it.
    #[error("kernel `{kernel}` does not keep to its contract: `{binding}` {reason}")]
    ContractMismatch {
        /// Kernel name.
        kernel: String,
        /// The variable in the text.
        binding: String,
        /// What is wrong with it, and what to do.
        reason: &'static str,
    },
    /// The list is not proven, so it does not run.
    #[error("the list was not run, because it is wrong: {0}")]
    Unverified(String),
    /// The device cannot time the parts of a program.
    #[error(
        "this device cannot time its {}; leave --measure away, or measure on another device",
        match mode { ProfileMode::Groups => "groups", ProfileMode::Serialised => "dispatches" }
    )]
    ProfileUnsupported {
        /// What was to be timed.
        mode: ProfileMode,
    },
    /// Nobody waits for counters in this program, or nothing can tell how long.
    #[error("the device `{device}` cannot tell how long workgroups of this list wait: {reason}")]
    NoWaits {
        /// Device name.
        device: String,
        /// Why not.
        reason: &'static str,
    },
    /// A kernel asked the device that runs it for a transfer or for another run.
    #[error(
        "a kernel cannot use the device `{device}` that runs it; transfer before or after the program, or \
         bind the buffer"
    )]
    DeviceBusy {
        /// Device name.
        device: String,
    },
    /// A kernel panicked while it ran; the device stays usable.
    #[error("kernel `{kernel}` failed while it ran: {message}")]
    KernelFailed {
        /// Kernel name.
        kernel: String,
        /// What it said.
        message: String,
    },
}

/// Shorthand for results of this crate.
pub type Result<T, E = GpuError> = std::result::Result<T, E>;
