//! What the fuse stage did and what it refused, as data.

use std::fmt;

use serde::{Serialize, Serializer};
use smallvec::SmallVec;

use crate::ids::{DispatchId, buf_name, serialize_buf};
use crate::layout::{Layout, TensorView};
use crate::node::Hazard;
use crate::op::CapturedOpKind;

/// What the fuse stage did.
///
/// Each firing takes one dispatch out of the list, except where a producer was repeated: the list
/// got shorter by the firings less [`repeats`](Self::repeats).
#[derive(Clone, Debug, Default, PartialEq, Serialize)]
pub struct FuseReport {
    /// How often each rule fired, in the order of the rule table.
    pub rules: Vec<RuleCount>,
    /// Every firing, in the order they happened. A fusion may be a member of a later one.
    pub fusions: Vec<Fusion>,
    /// Every pair that a rule names and that is still apart, with the reason, in list order.
    pub refusals: Vec<RefusedPair>,
    /// Barriers taken out because the dispatches around them changed; none if nothing fired.
    pub stripped_barriers: u32,
    /// Firings that took in a copy of a producer which another firing took in already.
    pub repeats: u32,
}

/// How often a rule fired.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
pub struct RuleCount {
    /// Name of the rule.
    pub rule: &'static str,
    /// Firings.
    pub fired: u32,
}

/// Two dispatches that became one.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct Fusion {
    /// Name of the rule.
    pub rule: &'static str,
    /// The dispatch that takes their place: it has the consumer's id.
    pub result: DispatchId,
    /// Recorded dispatches it stands for, each behind those whose results it reads.
    #[serde(serialize_with = "as_slice")]
    pub members: SmallVec<[DispatchId; 4]>,
    /// Whether the intermediate is still written, because something else needs it.
    pub kept: bool,
    /// Where it stands.
    pub place: Place,
    /// Whether its producer is also carried out in other fused dispatches, a copy in each.
    #[serde(skip_serializing_if = "is_false")]
    pub repeated: bool,
}

/// Whose position a fused dispatch took.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum Place {
    /// The consumer's.
    Consumer,
    /// The producer's, since something between needs its result.
    Producer,
}

/// Two dispatches that a rule names and that stayed apart.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct RefusedPair {
    /// Name of the rule.
    pub rule: &'static str,
    /// The dispatch that writes the intermediate.
    pub producer: DispatchId,
    /// The dispatch that reads it.
    pub consumer: DispatchId,
    /// Value or buffer of the intermediate.
    #[serde(rename = "buf", serialize_with = "serialize_buf")]
    pub buf_id: usize,
    /// Why.
    pub reason: Refusal,
}

/// Why two dispatches stayed apart.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "snake_case")]
#[non_exhaustive]
pub enum Refusal {
    /// The intermediate lies in a real buffer, so others may look at it.
    NotAValue,
    /// The host uploads the intermediate, which then must stay.
    IsInput,
    /// The host reads the intermediate at the end.
    IsOutput,
    /// Another dispatch writes the intermediate, too.
    OtherWriter {
        /// That dispatch.
        writer: DispatchId,
    },
    /// The producer leaves bytes of the intermediate as they were.
    PartialWrite {
        /// First byte written.
        p0: u64,
        /// One past the last.
        p1: u64,
        /// Bytes of the value.
        bytes: u64,
    },
    /// Somebody else reads the intermediate; the consumer itself, if it reads it twice. Where a
    /// rule repeats the producer, that reader cannot take in a copy.
    SecondReader {
        /// That dispatch.
        reader: DispatchId,
    },
    /// A dispatch of unknown access binds the intermediate.
    BoundUnannotated {
        /// That dispatch.
        dispatch: DispatchId,
    },
    /// The consumer reads other element types than the producer wrote.
    DType {
        /// As written.
        written: Layout,
        /// As read.
        read: Layout,
    },
    /// The consumer reads from another byte on than the producer wrote.
    Offset {
        /// First byte written.
        written: u64,
        /// First byte read.
        read: u64,
    },
    /// The consumer reads another shape than the producer wrote. Leading extents of one do not
    /// count; nothing else may differ, unless the rule lets rows be read in parts.
    Shape {
        /// As written.
        written: Layout,
        /// As read.
        read: Layout,
    },
    /// The intermediate does not lie densely, as written or as read.
    Stride {
        /// As written.
        written: Layout,
        /// As read.
        read: Layout,
    },
    /// The intermediate or another operand is not what the fused kernel can pair with the result.
    Operand {
        /// The tensor that does not fit.
        operand: Layout,
        /// The consumer's result, or the intermediate where that is what it must fit.
        result: Layout,
    },
    /// The two read different tensors where the fused kernel reads one.
    NotSame {
        /// What the producer and what the consumer reads.
        reads: Box<[TensorView; 2]>,
    },
    /// The fused kernel would write bytes that it still reads, or writes by another binding.
    OutputOverlapsInput {
        /// Its binding that writes.
        output: u16,
        /// Its other binding.
        input: u16,
        /// The buffer.
        #[serde(rename = "buf", serialize_with = "serialize_buf")]
        buf_id: usize,
        /// First shared byte.
        p0: u64,
        /// One past the last.
        p1: u64,
    },
    /// Something between must come after the producer, and something between before the consumer.
    Crosses {
        /// What keeps the producer from standing as late as the consumer.
        producer: Hazard,
        /// What keeps the consumer from standing as early as the producer.
        consumer: Hazard,
    },
    /// The producer would be carried out in several places, and at this one it is too late to read
    /// what it read.
    CopyTooLate {
        /// What keeps the producer from standing as late as the consumer.
        hazard: Hazard,
    },
    /// A dispatch of unknown access stands between.
    CrossesUnannotated {
        /// That dispatch.
        dispatch: DispatchId,
    },
    /// A dispatch that keeps its place stands between.
    CrossesPinned {
        /// That dispatch.
        dispatch: DispatchId,
    },
    /// A dispatch does not bind what its op binds.
    Bindings {
        /// That dispatch.
        dispatch: DispatchId,
        /// Tensors it binds.
        bound: usize,
    },
    /// An access of a member has no counterpart in the fused kernel.
    Uncarried {
        /// The recorded dispatch.
        dispatch: DispatchId,
        /// Index into its accesses.
        access: u16,
    },
    /// The device has no such kernel.
    NoKernel {
        /// What was asked for.
        kind: CapturedOpKind,
    },
    /// The kernel's contract does not give the accesses of the members.
    Contract {
        /// The kernel.
        kernel: String,
    },
}

impl FuseReport {
    /// How many rules fired, counted by firing.
    pub fn fired(&self) -> u32 {
        self.rules.iter().map(|count| count.fired).sum()
    }

    /// How often the rule of this name fired.
    pub fn fired_by(&self, rule: &str) -> u32 {
        let named = self.rules.iter().filter(|count| count.rule == rule);
        named.map(|count| count.fired).sum()
    }
}

impl Refusal {
    /// Other dispatches the reason rests on: it may no longer hold once they change.
    pub(super) fn rests_on(&self) -> SmallVec<[DispatchId; 2]> {
        match self {
            Self::OtherWriter { writer } => SmallVec::from_slice(&[*writer]),
            Self::SecondReader { reader } => SmallVec::from_slice(&[*reader]),
            Self::CopyTooLate { hazard } => SmallVec::from_slice(&[hazard.later]),
            Self::Crosses { producer, consumer } => {
                SmallVec::from_slice(&[producer.later, consumer.earlier])
            }
            _ => SmallVec::new(),
        }
    }
}

fn as_slice<S: Serializer>(ids: &[DispatchId], serializer: S) -> Result<S::Ok, S::Error> {
    ids.serialize(serializer)
}

/// A flag that most entries do not carry is left out of their data.
fn is_false(flag: &bool) -> bool {
    !flag
}

impl fmt::Display for FuseReport {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "fused {}", self.fired())?;
        if self.repeats > 0 {
            write!(f, " ({} by a copy of the producer)", self.repeats)?;
        }
        let mut separator = ": ";
        for count in self.rules.iter().filter(|count| count.fired > 0) {
            write!(f, "{separator}{} {}", count.rule, count.fired)?;
            separator = ", ";
        }
        for fusion in &self.fusions {
            write!(f, "\n  {fusion}")?;
        }
        for refused in &self.refusals {
            write!(f, "\n  {refused}")?;
        }
        Ok(())
    }
}

impl fmt::Display for Fusion {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let members: Vec<_> = self.members.iter().map(ToString::to_string).collect();
        write!(f, "{}: {} -> {}", self.rule, members.join("+"), self.result)?;
        f.write_str(if self.kept { ", intermediate kept" } else { "" })?;
        f.write_str(if self.repeated { ", producer repeated" } else { "" })?;
        match self.place {
            Place::Consumer => Ok(()),
            Place::Producer => f.write_str(", at the producer's place"),
        }
    }
}

impl fmt::Display for RefusedPair {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { rule, producer, consumer, buf_id, reason } = self;
        write!(f, "{rule}: {producer} and {consumer} by {} refused: {reason}", buf_name(*buf_id))
    }
}

impl fmt::Display for Refusal {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::NotAValue => f.write_str("it lies in a real buffer"),
            Self::IsInput => f.write_str("the host uploads it"),
            Self::IsOutput => f.write_str("the host reads it"),
            Self::OtherWriter { writer } => write!(f, "{writer} writes it, too"),
            Self::PartialWrite { p0, p1, bytes } => {
                write!(f, "only {p0}..{p1} of its {bytes} bytes are written")
            }
            Self::SecondReader { reader } => write!(f, "{reader} reads it, too"),
            Self::BoundUnannotated { dispatch } => {
                write!(f, "{dispatch}, whose access is unknown, binds it")
            }
            Self::DType { written, read } => {
                write!(f, "element types differ, {written} written, {read} read")
            }
            Self::Offset { written, read } => {
                write!(f, "written from byte {written} on, read from byte {read} on")
            }
            Self::Shape { written, read } => {
                write!(f, "shapes differ, {written} written, {read} read")
            }
            Self::Stride { written, read } => {
                write!(f, "it is not dense, {written} written, {read} read")
            }
            Self::Operand { operand, result } => {
                write!(f, "an operand {operand} does not fit the result {result}")
            }
            Self::NotSame { reads } => {
                let [producer, consumer] = reads.each_ref().map(|view| {
                    format!(
                        "{} of {} from byte {} on",
                        view.layout,
                        buf_name(view.buf_id),
                        view.offset
                    )
                });
                write!(f, "the two read different tensors, {producer} and {consumer}")
            }
            Self::OutputOverlapsInput { output, input, buf_id, p0, p1 } => {
                let buf = buf_name(*buf_id);
                write!(f, "binding {output} would write {buf} {p0}..{p1} of binding {input}")
            }
            Self::Crosses { producer, consumer } => {
                write!(f, "held apart by {producer} and {consumer}")
            }
            Self::CopyTooLate { hazard } => {
                write!(f, "a copy of the producer would come too late, {hazard}")
            }
            Self::CrossesUnannotated { dispatch } => {
                write!(f, "{dispatch}, whose access is unknown, stands between")
            }
            Self::CrossesPinned { dispatch } => {
                write!(f, "{dispatch}, which keeps its place, stands between")
            }
            Self::Bindings { dispatch, bound } => {
                write!(f, "{dispatch} binds {bound} tensors, which is not what its op binds")
            }
            Self::Uncarried { dispatch, access } => {
                write!(f, "access {access} of {dispatch} has no place in the fused kernel")
            }
            Self::NoKernel { kind } => write!(f, "the device has no {kind} for these tensors"),
            Self::Contract { kernel } => {
                write!(f, "the contract of `{kernel}` does not give the accesses of the members")
            }
        }
    }
}
