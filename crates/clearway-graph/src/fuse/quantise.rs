//! Results that exist only quantised: who may read them, and how they do.

use smallvec::SmallVec;

use super::list::List;
use super::matcher::{Pair, Plan};
use super::report::Refusal;
use crate::contract::KernelCatalog;
use crate::error::Result;
use crate::graph::Value;
use crate::ids::NodeId;
use crate::node::Dispatch;
use crate::quantise::{ACTIVATIONS, may_read, with_layout};

/// Those who read a result, by index in the list.
pub(super) type Reads = SmallVec<[u32; 4]>;

/// The same, with what stands for each of them from now on.
pub(super) type Readers = SmallVec<[(u32, Dispatch); 1]>;

/// Whether some product could read what a pair gives. Nobody asks for the reason where none could.
pub(super) fn is_worthwhile(list: &List<'_>, pair: &Pair<'_>) -> bool {
    let mut readers = list.result(pair.consumer).into_iter().flat_map(|v| list.readers(v));
    readers.any(|reader| list.kind(reader).is_some_and(may_read))
}

/// Gives the result of a planned pair its quantised layout; or says why it cannot have it. It is a value that
/// the consumer alone writes, and whole, that nobody outside the list sees, and that products behind read
/// once each, as their activations and as it was written.
pub(super) fn check(
    list: &List<'_>,
    pair: &Pair<'_>,
    plan: &mut Plan,
) -> std::result::Result<Reads, Refusal> {
    let Some(result) = plan.bindings.last_mut() else { return Err(Refusal::NotAValue) };
    let value: NodeId = result.value().ok_or(Refusal::NotAValue)?;
    let entry: &Value = list.value(value).ok_or(Refusal::NotAValue)?;
    if let Some(writer) = list.other_writer(value, pair.consumer) {
        return Err(Refusal::OtherWriter { writer });
    }
    if let Some(dispatch) = list.unknown_user(value) {
        return Err(Refusal::BoundUnannotated { dispatch });
    }
    if entry.lasts() {
        return Err(Refusal::IsInput);
    }
    if entry.output {
        return Err(Refusal::IsOutput);
    }
    let range = pair.second.writes().find(|range| range.buf_id == value.buf_id());
    let (p0, p1) = range.map_or((0, 0), |range| (range.p0, range.p1));
    if (p0, p1) != (0, entry.bytes) {
        return Err(Refusal::PartialWrite { p0, p1, bytes: entry.bytes });
    }
    let layout = result.layout.quantised().ok_or(Refusal::NoKernel { kind: pair.rule.fused })?;
    let mut reads = Reads::new();
    for index in list.readers(value) {
        let reader = list.at(index).ok_or(Refusal::NotAValue)?;
        let behind = list.slot(index) > list.slot(pair.consumer);
        let by = |view: &&crate::TensorView| view.buf_id == result.buf_id;
        let once = reader.bindings.iter().filter(by).count() == 1 && !reads.contains(&index);
        let read = &reader.bindings[usize::from(ACTIVATIONS)];
        if !may_read(reader.kind) || !behind || !once || !by(&read) {
            return Err(Refusal::SecondReader { reader: reader.id });
        }
        if read != result {
            return Err(Refusal::Shape { written: result.layout, read: read.layout });
        }
        reads.push(index);
    }
    result.layout = layout;
    Ok(reads)
}

/// What stands for those who read the result of a fused dispatch; or why one of them cannot.
pub(super) fn readers<C: KernelCatalog>(
    list: &List<'_>,
    fused: &Dispatch,
    reads: &Reads,
    catalog: &mut C,
    device: &C::Device,
) -> Result<std::result::Result<Readers, Refusal>> {
    let mut readers = Readers::new();
    for &index in reads {
        let (Some(reader), Some(result)) = (list.at(index), fused.bindings.last()) else {
            return Ok(Err(Refusal::NotAValue));
        };
        match with_layout(reader, ACTIVATIONS, result.layout, catalog, device)? {
            Ok(fresh) => readers.push((index, fresh)),
            Err(reason) => return Ok(Err(reason)),
        }
    }
    Ok(Ok(readers))
}
