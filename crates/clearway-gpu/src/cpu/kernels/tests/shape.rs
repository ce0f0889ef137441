use super::*;

#[test]
fn a_row_that_is_not_in_the_table_is_zeros() {
    let mut rig = Rig::new(2);
    let table = rig.f32(&[1.0, 2.0, 3.0, 4.0], &[2, 2]);
    let ids = rig.u32(&[1, 2, u32::MAX, 0], &[4]);
    let y = rig.output(DType::F32, &[4, 2]);
    rig.op(Kind::Gather, &[table, ids, y], &bits(&[2.0])).run();
    assert_eq!(rig.floats(y), [6.0, 8.0, 0.0, 0.0, 0.0, 0.0, 2.0, 4.0]);
}

#[test]
fn cache_rows_out_of_range_are_skipped_and_the_last_writer_wins() {
    for cache_type in [DType::F32, DType::F16] {
        let mut rig = Rig::new(2);
        let x: Vec<f32> = (0..10).map(|i| i as f32).collect();
        let x = rig.f32(&x, &[5, 2, 1]);
        let positions = rig.u32(&[2, 4, 0, u32::MAX, 2], &[5]);
        let cache = rig.output(cache_type, &[3, 2, 1]);
        rig.op(Kind::KvWrite, &[x, positions, cache], &[]).run();
        assert_eq!(rig.floats(cache), [4.0, 5.0, -77.0, -77.0, 8.0, 9.0]);
    }
}

#[test]
fn every_lane_writes_its_rows_of_a_large_cache() {
    // Enough elements for several lanes, at positions that jump.
    let (tokens, heads, head, rows) = (300, 3, 64, 311);
    let mut rig = Rig::new(2);
    let x = rig.random(DType::F32, &[tokens, heads, head]);
    let positions: Vec<u32> = (0..tokens as u32).map(|t| t * 37 % rows as u32).collect();
    let at = rig.u32(&positions, &[tokens]);
    let cache = rig.output(DType::F32, &[rows, heads, head]);
    let grid = super::super::shape::lanes(&x.layout);
    assert!(grid.pieces() > 2, "the case is too small: {grid:?}");
    rig.op(Kind::KvWrite, &[x, at, cache], &[]).run();
    let (x, cache) = (rig.floats(x), rig.floats(cache));
    let row = heads * head;
    for (token, &position) in positions.iter().enumerate() {
        let written = &cache[position as usize * row..][..row];
        assert_eq!(written, &x[token * row..][..row], "token {token}");
    }
    assert_eq!(cache.iter().filter(|&&x| x == -77.0).count(), (rows - tokens) * row);
}

#[test]
fn copies_read_and_write_any_layout() {
    let mut rig = Rig::new(2);
    let x: Vec<f32> = (0..6).map(|i| i as f32).collect();
    let x = rig.f32(&x, &[2, 3]);
    let transposed = strided(x, &[3, 2], &[1, 3]);
    let (dense, half, back) = (
        rig.output(DType::F32, &[3, 2]),
        rig.output(DType::F16, &[3, 2]),
        rig.output(DType::BF16, &[2, 3]),
    );
    rig.op(Kind::Copy, &[transposed, dense], &[]);
    rig.op(Kind::Copy, &[dense, half], &[]);
    rig.op(Kind::Copy, &[half, strided(back, &[3, 2], &[1, 3])], &[]).run();
    assert_eq!(rig.floats(dense), [0.0, 3.0, 1.0, 4.0, 2.0, 5.0]);
    assert_eq!(rig.floats(half), rig.floats(dense));
    let back: Vec<f32> = rig.elems::<half::bf16>(back).iter().map(|x| x.to_f32()).collect();
    assert_eq!(back, rig.floats(x));
}

#[test]
fn wide_rows_of_a_block_type_are_copied_in_tiles() {
    // No multiple of four blocks: tiles of equal width would start inside one.
    let cols = 256 * 301;
    let mut rig = Rig::new(2);
    let x = rig.random(DType::Q6_K, &[1, cols]);
    let y = rig.output(DType::F32, &[1, cols]);
    let grid = super::super::shape::copy_grid(&[x, y], &[]);
    assert!(grid.pieces() > 2, "the case is too small: {grid:?}");
    rig.op(Kind::Copy, &[x, y], &[]).run();
    let mut expected = vec![0.0; cols];
    quant::decode(DType::Q6_K, &rig.elems::<u8>(x), &mut expected).unwrap();
    assert_eq!(rig.floats(y), expected);
}

#[test]
fn gaps_of_strided_outputs_are_left_alone() {
    for dtype in [DType::F32, DType::F16] {
        let mut rig = Rig::new(2);
        let y = rig.output(dtype, &[12]);
        rig.op(Kind::Fill, &[strided(y, &[2, 2], &[6, 2])], &bits(&[5.0])).run();
        let gap = -77.0;
        let expected = [5.0, gap, 5.0, gap, gap, gap, 5.0, gap, 5.0, gap, gap, gap];
        assert_eq!(rig.floats(y), expected);
        let (a, b) =
            (rig.tensor(dtype, &[1.0, 2.0], &[2, 1]), rig.tensor(dtype, &[3.0; 4], &[2, 2]));
        let y = rig.output(dtype, &[8]);
        rig.op(Kind::Concat, &[a, b, strided(y, &[2, 3], &[5, 1])], &[]).run();
        assert_eq!(rig.floats(y), [1.0, 3.0, 3.0, gap, gap, 2.0, 3.0, 3.0]);
    }
}
