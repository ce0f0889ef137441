//! Where the tensors lie that a graph only names.

use clearway_gpu::Buffer;
use clearway_graph::TensorView;
use clearway_graph::place::Address;
use rustc_hash::FxHashMap;

/// Buffers for the tensors that a graph names without memory: weights, caches, inputs of each step. A
/// [`Recorder`](clearway_gpu::Recorder) declares such tensors with
/// [`external`](clearway_gpu::Recorder::external).
#[derive(Clone, Debug, Default)]
pub struct Bindings {
    by_tensor: FxHashMap<usize, Place>,
}

#[derive(Clone, Debug)]
struct Place {
    buffer: Buffer,
    offset: u64,
}

impl Bindings {
    /// No bindings yet.
    pub fn new() -> Self {
        Self::default()
    }

    /// Puts a tensor at the start of a buffer. Tensors of one declaration share its place.
    pub fn bind(&mut self, tensor: TensorView, buffer: &Buffer) {
        self.bind_at(tensor, buffer, 0);
    }

    /// Puts a tensor at a byte of a buffer.
    pub fn bind_at(&mut self, tensor: TensorView, buffer: &Buffer, offset: u64) {
        self.by_tensor.insert(tensor.buf_id, Place { buffer: buffer.clone(), offset });
    }

    /// The buffer of a tensor and where it starts in it.
    pub fn place(&self, tensor: TensorView) -> Option<(&Buffer, u64)> {
        self.by_tensor.get(&tensor.buf_id).map(|place| (&place.buffer, place.offset))
    }

    /// How many tensors have a place.
    pub fn len(&self) -> usize {
        self.by_tensor.len()
    }

    /// Whether none has.
    pub fn is_empty(&self) -> bool {
        self.by_tensor.is_empty()
    }

    /// Addresses by the identity that the graph knows the tensors under.
    pub(crate) fn addresses(&self) -> FxHashMap<usize, Address> {
        let address = |place: &Place| {
            let (buf_id, buf_len) = (place.buffer.id(), place.buffer.len());
            Address { buf_id, offset: place.offset, buf_len }
        };
        self.by_tensor.iter().map(|(&id, place)| (id, address(place))).collect()
    }
}
