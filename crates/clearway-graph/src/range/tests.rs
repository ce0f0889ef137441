use super::*;

struct Slice {
    buf_id: usize,
    buf_len: u64,
    offset: u64,
    len: u64,
}

impl View for Slice {
    fn buf_id(&self) -> usize {
        self.buf_id
    }
    fn buf_len(&self) -> u64 {
        self.buf_len
    }
    fn byte_offset(&self) -> u64 {
        self.offset
    }
    fn byte_len(&self) -> u64 {
        self.len
    }
}

fn slice(offset: u64, len: u64) -> Slice {
    Slice { buf_id: 4, buf_len: 1024, offset, len }
}

fn src(p0: u64, p1: u64) -> BufferRange {
    BufferRange::new(1, p0, p1, MemRangeRole::Src).unwrap()
}

fn dst(p0: u64, p1: u64) -> BufferRange {
    BufferRange::new(1, p0, p1, MemRangeRole::Dst).unwrap()
}

#[test]
fn touching_ranges_do_not_conflict_in_either_direction() {
    assert!(!dst(0, 16).conflicts_with(&dst(16, 32)));
    assert!(!dst(16, 32).conflicts_with(&dst(0, 16)));
    assert!(!dst(0, 16).conflicts_with(&src(16, 32)));
    assert!(!src(16, 32).conflicts_with(&dst(0, 16)));
    assert!(dst(0, 17).conflicts_with(&src(16, 32)));
    assert!(src(16, 32).conflicts_with(&dst(0, 17)));
}

#[test]
fn an_empty_range_conflicts_with_nothing() {
    assert!(!dst(8, 8).conflicts_with(&dst(0, 16)));
    assert!(!dst(0, 16).conflicts_with(&dst(8, 8)));
    assert!(!dst(8, 8).conflicts_with(&dst(8, 8)));
}

#[test]
fn a_slice_ends_where_the_slice_ends() {
    let range = BufferRange::from_buffer(&slice(64, 128), MemRangeRole::Src).unwrap();
    assert_eq!((range.buf_id, range.p0, range.p1), (4, 64, 192));
}

#[test]
fn two_slices_of_one_buffer_conflict_only_where_their_bytes_overlap() {
    let role = MemRangeRole::Dst;
    let left = BufferRange::from_buffer(&slice(0, 512), role).unwrap();
    let right = BufferRange::from_buffer(&slice(512, 512), role).unwrap();
    let middle = BufferRange::from_buffer(&slice(511, 2), role).unwrap();
    assert_eq!(left.buf_id, right.buf_id);
    assert!(!left.conflicts_with(&right));
    assert_eq!(left.overlap(&middle), Some((511, 512)));
    assert_eq!(right.overlap(&middle), Some((512, 513)));
}

#[test]
fn read_after_read_never_conflicts_and_every_pair_with_a_write_does() {
    assert!(!src(0, 16).conflicts_with(&src(0, 16)));
    assert!(dst(0, 16).conflicts_with(&src(0, 16)));
    assert!(src(0, 16).conflicts_with(&dst(0, 16)));
    assert!(dst(0, 16).conflicts_with(&dst(0, 16)));
}

#[test]
fn other_buffers_never_conflict() {
    let other = BufferRange::new(2, 0, 16, MemRangeRole::Dst).unwrap();
    assert!(!dst(0, 16).conflicts_with(&other));
}

#[test]
fn a_view_outside_its_buffer_is_an_error_with_the_facts() {
    let error = BufferRange::from_buffer(&slice(1000, 25), MemRangeRole::Src).unwrap_err();
    assert_eq!(
        error,
        GraphError::ViewOutOfBounds { buf_id: 4, offset: 1000, len: 25, buf_len: 1024 }
    );
    assert!(BufferRange::from_buffer(&slice(1000, 24), MemRangeRole::Src).is_ok());
    assert!(BufferRange::from_buffer(&slice(8, u64::MAX), MemRangeRole::Src).is_err());
}

#[test]
fn an_inverted_range_is_an_error_with_the_facts() {
    let error = BufferRange::new(9, 8, 7, MemRangeRole::Dst).unwrap_err();
    let expected = GraphError::InvertedRange { buf_id: 9, p0: 8, p1: 7 };
    assert_eq!(error, expected);
}
