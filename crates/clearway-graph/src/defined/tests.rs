use super::*;
use crate::testkit::{Touch, graph_of};
use crate::{DType, DispatchId, Layout};

const V: usize = NodeId(0).buf_id();
const W: usize = NodeId(1).buf_id();

/// Two rows of four f16 elements, eight elements apart.
fn rows() -> Layout {
    Layout::new(DType::F16, &[2, 4]).unwrap().with_strides(&[8, 1]).unwrap()
}

fn undefined(dispatch: u32, p0: u64, p1: u64) -> Result<()> {
    Err(GraphError::UndefinedRead { dispatch: DispatchId(dispatch), value: NodeId(0), p0, p1 })
}

#[test]
fn a_value_is_read_only_where_it_was_written() {
    let write = Touch::write(V, 32, 8, 16);
    assert_eq!(check(&graph_of(&[&[write], &[Touch::read(V, 32, 8, 16)]])), Ok(()));
    assert_eq!(check(&graph_of(&[&[write], &[Touch::read(V, 32, 0, 16)]])), undefined(1, 0, 8));
    assert_eq!(check(&graph_of(&[&[write], &[Touch::read(V, 32, 8, 20)]])), undefined(1, 16, 20));
    assert_eq!(check(&graph_of(&[&[Touch::read(V, 32, 8, 8)]])), Ok(()));
    // A dispatch defines nothing for itself, and an update reads what it updates.
    assert_eq!(check(&graph_of(&[&[write, Touch::read(V, 32, 8, 16)]])), undefined(0, 8, 16));
    assert_eq!(check(&graph_of(&[&[Touch::update(V, 32, 0, 4)]])), undefined(0, 0, 4));
    // A real buffer is defined by its owner.
    assert_eq!(check(&graph_of(&[&[Touch::read(7, 32, 0, 32)]])), Ok(()));
}

#[test]
fn an_input_and_a_kept_value_are_there_from_the_start() {
    let mut graph = graph_of(&[&[Touch::read(V, 32, 0, 32), Touch::write(W, 4, 0, 4)]]);
    assert_eq!(check(&graph), undefined(0, 0, 32));
    let mut input = graph.clone();
    input.mark_input(NodeId(0)).unwrap();
    assert_eq!(check(&input), Ok(()));
    graph.mark_kept(NodeId(0)).unwrap();
    assert_eq!(check(&graph), Ok(()));
}

#[test]
fn a_write_with_gaps_defines_its_elements_alone() {
    let left = Touch::write(V, 32, 0, 0).of_tensor(rows());
    let right = Touch::write(V, 32, 8, 8).of_tensor(rows());
    let all = Touch::read(V, 32, 0, 32);
    assert_eq!(check(&graph_of(&[&[left], &[all]])), undefined(1, 8, 16));
    assert_eq!(check(&graph_of(&[&[left], &[right], &[all]])), Ok(()));
    // The bytes it keeps are not read.
    assert_eq!(check(&graph_of(&[&[left]])), Ok(()));
    // A read through the same layout needs no more than the elements.
    let again = Touch::read(V, 32, 0, 0).of_tensor(rows());
    assert_eq!(check(&graph_of(&[&[left], &[again]])), Ok(()));
    let shifted = Touch::read(V, 32, 2, 2).of_tensor(rows());
    assert_eq!(check(&graph_of(&[&[left], &[shifted]])), undefined(1, 8, 10));
}

#[test]
fn a_broadcast_reads_few_bytes() {
    let row = Layout::new(DType::F16, &[8, 4]).unwrap().with_strides(&[0, 1]).unwrap();
    let read = Touch::read(V, 32, 0, 0).of_tensor(row);
    assert_eq!(check(&graph_of(&[&[Touch::write(V, 32, 0, 8)], &[read]])), Ok(()));
    assert_eq!(check(&graph_of(&[&[Touch::write(V, 32, 0, 6)], &[read]])), undefined(1, 6, 8));
}

#[test]
fn an_output_is_written_whole() {
    let mut graph = graph_of(&[&[Touch::write(V, 32, 0, 24)]]);
    graph.mark_output(NodeId(0)).unwrap();
    let error = GraphError::UndefinedOutput { value: NodeId(0), p0: 24, p1: 32 };
    assert_eq!(check(&graph), Err(error));
    let mut graph = graph_of(&[&[Touch::write(V, 32, 0, 24)], &[Touch::write(V, 32, 20, 32)]]);
    graph.mark_output(NodeId(0)).unwrap();
    assert_eq!(check(&graph), Ok(()));
}

#[test]
fn runs_that_touch_become_one() {
    let mut defined = Defined::Nothing;
    for (p0, p1) in [(8, 12), (0, 4), (20, 24), (4, 8), (12, 20)] {
        defined.define(p0, p1, 32);
    }
    let Defined::Some(runs) = &defined else { panic!("a part is defined") };
    assert_eq!(runs.iter().collect::<Vec<_>>(), [(&0, &24)]);
    assert_eq!(defined.gap(4, 30), Some((24, 30)));
    assert_eq!(defined.gap(4, 8), None);
    defined.define(24, 32, 32);
    assert!(matches!(defined, Defined::All));
}
