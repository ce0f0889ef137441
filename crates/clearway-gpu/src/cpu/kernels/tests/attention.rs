use super::*;

/// Attention of one query whose scores are all 0, over values that are powers of two: the mean shows
/// which rows were seen.
fn seen_rows(cache: DType, rows: usize, position: u32, window: u32) -> Vec<usize> {
    let mut rig = Rig::new(2);
    let q = rig.f32(&[0.0], &[1, 1, 1]);
    let k = rig.random(cache, &[rows, 1, 1]);
    let values: Vec<f32> = (0..rows).map(|row| (1u32 << row) as f32).collect();
    let v = rig.tensor(cache, &values, &[rows, 1, 1]);
    let (at, y) = (rig.u32(&[position], &[1]), rig.output(DType::F32, &[1, 1, 1]));
    rig.op(Kind::Attention, &[q, k, v, at, y], &[1f32.to_bits(), window, 0, 0]).run();
    let mean = rig.floats(y)[0];
    // The number of rows is not known, but only one makes the sum a whole number of that many bits.
    (0..=rows as u32)
        .map(|count| (count, (mean * count as f32).round() as u32))
        .find(|&(count, sum)| sum.count_ones() == count && sum as f32 / count.max(1) as f32 == mean)
        .map(|(_, sum)| (0..rows).filter(|row| sum >> row & 1 == 1).collect())
        .unwrap_or_else(|| panic!("no set of rows has mean {mean}"))
}

#[test]
fn a_token_sees_the_rows_up_to_its_own_and_no_further_back_than_its_window() {
    for cache in [DType::F32, DType::F16] {
        assert_eq!(seen_rows(cache, 8, 0, 0), [0]);
        assert_eq!(seen_rows(cache, 8, 5, 0), [0, 1, 2, 3, 4, 5]);
        assert_eq!(seen_rows(cache, 8, 5, 1), [5]);
        assert_eq!(seen_rows(cache, 8, 5, 3), [3, 4, 5]);
        assert_eq!(seen_rows(cache, 8, 5, 100), [0, 1, 2, 3, 4, 5]);
    }
}

#[test]
fn positions_beyond_the_cache_see_what_is_there() {
    assert_eq!(seen_rows(DType::F32, 4, 9, 0), [0, 1, 2, 3]);
    assert_eq!(seen_rows(DType::F32, 4, u32::MAX, 0), [0, 1, 2, 3]);
    assert_eq!(seen_rows(DType::F32, 4, 5, 4), [2, 3]);
    assert_eq!(seen_rows(DType::F32, 4, 9, 3), [0usize; 0], "zeros, not NaN");
}

#[test]
fn a_row_that_is_masked_as_a_whole_is_zeros() {
    let low = f32::NEG_INFINITY;
    let mut rig = Rig::new(2);
    let x = rig.f32(&[1.0, 2.0, 3.0, 4.0], &[2, 2]);
    let mask = rig.f32(&[low, low, 0.0, low], &[2, 2]);
    let y = rig.output(DType::F32, &[2, 2]);
    rig.op(Kind::Softmax, &[x, mask, y], &bits(&[1.0])).run();
    assert_eq!(rig.floats(y), [0.0, 0.0, 1.0, 0.0]);
}

#[test]
fn softmax_of_large_scores_does_not_overflow_and_shows_nan() {
    let mut rig = Rig::new(2);
    let x = rig.f32(&[3e38, 3e38, 1.0, f32::NAN, f32::NEG_INFINITY, f32::NAN], &[3, 2]);
    let mask = rig.f32(&[0.0; 6], &[3, 2]);
    let y = rig.output(DType::F32, &[3, 2]);
    rig.op(Kind::Softmax, &[x, mask, y], &bits(&[1.0])).run();
    let y = rig.floats(y);
    assert_eq!(y[..2], [0.5, 0.5]);
    assert!(y[2..].iter().all(|y| y.is_nan()), "{y:?}");
}

#[test]
fn the_softmax_of_attention_keeps_up_when_later_blocks_raise_the_largest_score() {
    // Scores rise by 10 with each row: the last row has all the weight but 4e-5.
    let rows = 70;
    let mut rig = Rig::new(2);
    let keys: Vec<f32> = (0..rows).map(|row| row as f32 * 10.0).collect();
    let values: Vec<f32> = (0..rows).map(|row| row as f32).collect();
    let (q, k) = (rig.f32(&[1.0], &[1, 1, 1]), rig.f32(&keys, &[rows, 1, 1]));
    let v = rig.f32(&values, &[rows, 1, 1]);
    let (at, y) = (rig.u32(&[69], &[1]), rig.output(DType::F32, &[1, 1, 1]));
    rig.op(Kind::Attention, &[q, k, v, at, y], &[1f32.to_bits(), 0, 0, 0]).run();
    let e = (-10f32).exp();
    let expected = 69.0 - e / (1.0 - e);
    assert!((rig.floats(y)[0] - expected).abs() < 1e-5, "{:?}", rig.floats(y));
}

#[test]
fn tokens_give_the_same_bits_alone_and_together() {
    // Alone, a token is cut along the cache; together, tokens share blocks of it. The long cache has
    // several chunks, in some of which windows start. Heads are of one vector and of four, with a rest.
    let (tokens, heads, kv_heads) = (40, 6, 2);
    for (cache, rows, window, head) in [
        (DType::F32, 100, 37, 24),
        (DType::F16, 100, 37, 24),
        (DType::F16, 700, 0, 72),
        (DType::F32, 700, 300, 72),
    ] {
        let mut rig = Rig::new(2);
        let q = rig.random(DType::F32, &[tokens, heads, head]);
        let (k, v) = (
            rig.random(cache, &[rows, kv_heads, head]),
            rig.random(cache, &[rows, kv_heads, head]),
        );
        let positions: Vec<u32> = (0..tokens as u32).map(|t| (t * 229 + 3) % rows as u32).collect();
        let at = rig.u32(&positions, &[tokens]);
        let params = [0.3f32.to_bits(), window, 5f32.to_bits(), 0];
        let together = rig.output(DType::F32, &[tokens, heads, head]);
        let alone = rig.output(DType::F32, &[tokens, heads, head]);
        rig.op(Kind::Attention, &[q, k, v, at, together], &params);
        for token in 0..tokens {
            let one = |view: TensorView| {
                let layout = Layout::new(DType::F32, &[1, heads, head]).unwrap();
                view.reinterpret((token * heads * head * 4) as u64, layout).unwrap()
            };
            let layout = Layout::new(DType::U32, &[1]).unwrap();
            let at = at.reinterpret(token as u64 * 4, layout).unwrap();
            rig.op(Kind::Attention, &[one(q), k, v, at, one(alone)], &params);
        }
        rig.run();
        assert_eq!(rig.bits(together), rig.bits(alone), "{cache}, {rows} rows");
        assert!(rig.floats(alone).iter().all(|x| x.abs() < 1.0));
    }
}

#[test]
fn tokens_of_sequences_in_blocks_give_the_same_bits_alone_and_together() {
    // Alone, a token is cut along the blocks of its sequence. One token has no sequence.
    let (tokens, heads, kv_heads, head, block, entries) = (7, 6, 2, 24, 16, 30);
    let sequences = [2, 0, 1, 1, 3, 2, 0];
    let mut rig = Rig::new(2);
    let q = rig.random(DType::F32, &[tokens, heads, head]);
    let pool = 3 * entries * block;
    let [k, v] = [0, 1].map(|_| rig.random(DType::F16, &[pool, kv_heads, head]));
    let positions: Vec<u32> = (0..tokens as u32).map(|t| (t * 229 + 3) % 480).collect();
    let at = rig.u32(&positions, &[tokens]);
    let of = rig.u32(&sequences, &[tokens]);
    let table: Vec<u32> = (0..3 * entries as u32).map(|entry| entry * 7 % 90).collect();
    let table = rig.u32(&table, &[3, entries]);
    let params = [0.3f32.to_bits(), 0, 0, block as u32];
    let together = rig.output(DType::F32, &[tokens, heads, head]);
    let alone = rig.output(DType::F32, &[tokens, heads, head]);
    rig.op(Kind::Attention, &[q, k, v, at, of, table, together], &params);
    for token in 0..tokens {
        let one = |view: TensorView| {
            let layout = Layout::new(DType::F32, &[1, heads, head]).unwrap();
            view.reinterpret((token * heads * head * 4) as u64, layout).unwrap()
        };
        let word = |view: TensorView| {
            let layout = Layout::new(DType::U32, &[1]).unwrap();
            view.reinterpret(token as u64 * 4, layout).unwrap()
        };
        let operands = [one(q), k, v, word(at), word(of), table, one(alone)];
        rig.op(Kind::Attention, &operands, &params);
    }
    rig.run();
    assert_eq!(rig.bits(together), rig.bits(alone));
    let zeros = rig.floats(alone).iter().filter(|&&x| x == 0.0).count();
    assert_eq!(zeros, heads * head, "the token without a sequence");
}

#[test]
fn a_row_that_a_token_does_not_see_does_not_reach_it() {
    // Tokens that share a block of the cache, and one of its rows is not a number.
    let (tokens, rows, bad) = (40, 64, 37);
    let mut rig = Rig::new(2);
    let q = rig.random(DType::F32, &[tokens, 1, 1]);
    let mut elems = vec![0.5; rows];
    elems[bad] = f32::NAN;
    let (k, v) = (rig.f32(&elems, &[rows, 1, 1]), rig.f32(&elems, &[rows, 1, 1]));
    let at = rig.u32(&Vec::from_iter(0..tokens as u32), &[tokens]);
    let y = rig.output(DType::F32, &[tokens, 1, 1]);
    rig.op(Kind::Attention, &[q, k, v, at, y], &[1f32.to_bits(), 0, 0, 0]).run();
    let found: Vec<bool> = rig.floats(y).iter().map(|y| y.is_nan()).collect();
    assert_eq!(found, Vec::from_iter((0..tokens).map(|token| token >= bad)));
}

#[test]
fn more_heads_than_a_pass_holds_are_all_computed() {
    let (heads, rows) = (150, 3);
    let mut rig = Rig::new(2);
    let q = rig.random(DType::F32, &[2, heads, 2]);
    let (k, v) =
        (rig.f32(&[0.0; 6], &[rows, 1, 2]), rig.f32(&[1., 2., 3., 4., 5., 6.], &[rows, 1, 2]));
    let (at, y) = (rig.u32(&[0, 2], &[2]), rig.output(DType::F32, &[2, heads, 2]));
    rig.op(Kind::Attention, &[q, k, v, at, y], &[1f32.to_bits(), 0, 0, 0]).run();
    let expected: Vec<f32> = [[1.0, 2.0].repeat(heads), [3.0, 4.0].repeat(heads)].concat();
    assert_eq!(rig.floats(y), expected);
}
