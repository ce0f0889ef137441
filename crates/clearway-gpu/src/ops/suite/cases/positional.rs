//! Rotary embedding, the KV cache, attention.

use clearway_graph::{CapturedOpKind as Kind, DType};

use super::{ACTIVATIONS, Fill, List, OperandSpec, Place, input, normal, output};

pub(super) fn add(list: &mut List) {
    rope(list);
    rope_kv_write(list);
    kv_write(list);
    attention(list);
    attention_interleaved(list);
    attention_in_blocks(list);
}

/// Tokens, heads, head size, elements of a head that turn, first position.
const HEADS: [(usize, usize, usize, u32, u32); 9] = [
    (1, 1, 2, 2, 0),
    (1, 4, 64, 64, 17),
    (2, 1, 7, 4, 3),
    (3, 2, 33, 32, 40),
    (7, 3, 128, 64, 0),
    (33, 9, 64, 64, 5),
    (1, 2, 256, 256, 4000),
    (3, 5, 80, 20, 100),
    (2, 33, 128, 128, 1023),
];

pub(super) const NO_FACTORS: Fill = Fill::Uniform { low: 1.0, high: 1.0 };
pub(super) const FACTORS: Fill = Fill::Uniform { low: 1.0, high: 8.0 };

/// Constants of a rotation: the usual ones, those of long contexts, and a stretched one that is longer too.
pub(super) fn rotation(index: usize, n_dims: u32, mode: u32) -> [u32; 5] {
    let (base, scale, magnitude) =
        [(1e4_f32, 1.0_f32, 1.0_f32), (5e5, 1.0, 1.0), (1e4, 0.25, 1.19)][index % 3];
    [n_dims, mode, base.to_bits(), scale.to_bits(), magnitude.to_bits()]
}

fn rope(list: &mut List) {
    for dtype in ACTIVATIONS {
        for (index, &(t, h, d, n_dims, start)) in HEADS.iter().enumerate() {
            for mode in [0, 1] {
                for (flip, factors) in [NO_FACTORS, FACTORS].into_iter().enumerate() {
                    let operands = [
                        normal(dtype, &[t, h, d]),
                        input(DType::U32, &[t], Fill::Positions { start }),
                        input(DType::F32, &[n_dims as usize / 2], factors),
                        output(dtype, &[t, h, d]),
                    ];
                    let params = rotation(index + flip, n_dims, mode);
                    list.push_strided_and(Kind::Rope, &operands, &params, index + flip);
                }
            }
        }
    }
}

fn rope_kv_write(list: &mut List) {
    for x in ACTIVATIONS {
        for cache in ACTIVATIONS {
            for (index, &(t, h, d, n_dims, start)) in HEADS.iter().enumerate() {
                for mode in [0, 1] {
                    let rows = t + 5;
                    let operands = [
                        normal(x, &[t, h, d]),
                        input(DType::U32, &[t], Fill::Positions { start }),
                        input(DType::F32, &[n_dims as usize / 2], FACTORS),
                        input(DType::U32, &[t], cache_rows(index, rows)),
                        normal(cache, &[rows, h, d]),
                    ];
                    let params = rotation(index, n_dims, mode);
                    let place = Place::cycle(index + mode as usize);
                    list.push(Kind::RopeKvWrite, &operands, &params, place);
                }
            }
        }
    }
}

/// Rows of a cache: in the middle, anywhere, or partly beyond its end.
pub(super) fn cache_rows(index: usize, rows: usize) -> Fill {
    match index % 3 {
        0 => Fill::Positions { start: 3 },
        1 => Fill::DistinctIds { below: rows as u32 },
        _ => Fill::Positions { start: rows as u32 - 2 },
    }
}

fn kv_write(list: &mut List) {
    // Tokens, heads, head size, cache rows.
    let sizes = [
        (1, 1, 1, 4),
        (1, 4, 64, 33),
        (2, 3, 7, 9),
        (3, 2, 33, 64),
        (7, 8, 16, 7),
        (33, 2, 65, 127),
        (33, 4, 128, 256),
    ];
    for x in ACTIVATIONS {
        for cache in ACTIVATIONS {
            for (index, &(t, h, d, rows)) in sizes.iter().enumerate() {
                let operands = [
                    normal(x, &[t, h, d]),
                    input(DType::U32, &[t], cache_rows(index, rows)),
                    normal(cache, &[rows, h, d]),
                ];
                list.push_everywhere(Kind::KvWrite, &operands, &[]);
            }
        }
    }
}

/// What an attention case is made of.
#[derive(Clone, Copy)]
struct Heads {
    tokens: usize,
    heads: usize,
    kv_heads: usize,
    head: usize,
    cache_rows: usize,
    start: u32,
    window: u32,
    softcap: f32,
}

#[rustfmt::skip] // a table reads by columns
const ATTENTION: [Heads; 23] = [
    Heads { tokens: 1,  heads: 1,  kv_heads: 1, head: 1,   cache_rows: 1,   start: 0,   window: 0,  softcap: 0.0 },
    Heads { tokens: 1,  heads: 4,  kv_heads: 4, head: 64,  cache_rows: 33,  start: 20,  window: 0,  softcap: 0.0 },
    Heads { tokens: 1,  heads: 9,  kv_heads: 3, head: 64,  cache_rows: 256, start: 255, window: 0,  softcap: 0.0 },
    Heads { tokens: 2,  heads: 6,  kv_heads: 1, head: 33,  cache_rows: 65,  start: 30,  window: 0,  softcap: 0.0 },
    Heads { tokens: 3,  heads: 2,  kv_heads: 2, head: 7,   cache_rows: 9,   start: 0,   window: 0,  softcap: 50.0 },
    Heads { tokens: 7,  heads: 4,  kv_heads: 2, head: 16,  cache_rows: 64,  start: 0,   window: 0,  softcap: 0.0 },
    Heads { tokens: 33, heads: 4,  kv_heads: 1, head: 64,  cache_rows: 64,  start: 0,   window: 0,  softcap: 0.0 },
    Heads { tokens: 33, heads: 2,  kv_heads: 1, head: 128, cache_rows: 127, start: 90,  window: 0,  softcap: 0.0 },
    Heads { tokens: 1,  heads: 8,  kv_heads: 4, head: 256, cache_rows: 127, start: 100, window: 64, softcap: 50.0 },
    Heads { tokens: 7,  heads: 3,  kv_heads: 3, head: 65,  cache_rows: 40,  start: 12,  window: 5,  softcap: 0.0 },
    Heads { tokens: 33, heads: 4,  kv_heads: 2, head: 32,  cache_rows: 64,  start: 3,   window: 1,  softcap: 0.0 },
    Heads { tokens: 2,  heads: 4,  kv_heads: 2, head: 64,  cache_rows: 64,  start: 7,   window: 9,  softcap: 20.0 },
    // Positions beyond the cache: all of it is seen, then by the window a part, then nothing.
    Heads { tokens: 3,  heads: 2,  kv_heads: 1, head: 33,  cache_rows: 20,  start: 19,  window: 0,  softcap: 0.0 },
    Heads { tokens: 7,  heads: 2,  kv_heads: 1, head: 33,  cache_rows: 20,  start: 19,  window: 4,  softcap: 0.0 },
    Heads { tokens: 1,  heads: 4,  kv_heads: 2, head: 64,  cache_rows: 2048, start: 2000, window: 0, softcap: 0.0 },
    Heads { tokens: 33, heads: 4,  kv_heads: 2, head: 80,  cache_rows: 600, start: 400, window: 0,  softcap: 0.0 },
    // Heads and shares of the families, with windows and caps, for kernels that take many tokens at once.
    Heads { tokens: 37, heads: 6,  kv_heads: 2, head: 256, cache_rows: 90,  start: 50,  window: 24, softcap: 30.0 },
    Heads { tokens: 70, heads: 7,  kv_heads: 1, head: 64,  cache_rows: 300, start: 220, window: 0,  softcap: 0.0 },
    Heads { tokens: 19, heads: 8,  kv_heads: 8, head: 96,  cache_rows: 64,  start: 40,  window: 7,  softcap: 0.0 },
    Heads { tokens: 21, heads: 4,  kv_heads: 1, head: 128, cache_rows: 30,  start: 25,  window: 6,  softcap: 0.0 },
    // Long caches, whose rows several workgroups share.
    Heads { tokens: 24, heads: 8,  kv_heads: 2, head: 128, cache_rows: 2600, start: 2500, window: 0, softcap: 0.0 },
    Heads { tokens: 40, heads: 3,  kv_heads: 1, head: 64,  cache_rows: 900, start: 700, window: 200, softcap: 30.0 },
    Heads { tokens: 33, heads: 2,  kv_heads: 1, head: 256, cache_rows: 400, start: 100, window: 0,  softcap: 0.0 },
];

impl Heads {
    fn operands(&self, q: DType, kv: DType, fill: Fill) -> [OperandSpec; 5] {
        let queries = [self.tokens, self.heads, self.head];
        let cache = [self.cache_rows, self.kv_heads, self.head];
        [
            input(q, &queries, fill),
            normal(kv, &cache),
            normal(kv, &cache),
            input(DType::U32, &[self.tokens], Fill::Positions { start: self.start }),
            output(q, &queries),
        ]
    }

    fn params(&self) -> [u32; 4] {
        let scale = 1.0 / (self.head as f32).sqrt();
        [scale.to_bits(), self.window, self.softcap.to_bits(), 0]
    }
}

/// Scores of heads that count beside those of rows.
pub(super) fn sinks(heads: usize) -> OperandSpec {
    input(DType::F32, &[heads], Fill::Normal { mean: 1.0, deviation: 2.0 })
}

/// Attention of these operands, without sinks and with them.
fn attend(list: &mut List, operands: [OperandSpec; 5], params: &[u32], index: usize) {
    list.push_strided_and(Kind::Attention, &operands, params, index);
    let [q, k, v, positions, y] = operands;
    let heads = q.shape[1];
    let operands = [q, k, v, positions, sinks(heads), y];
    list.push_strided_and(Kind::AttentionSinks, &operands, params, index);
}

fn attention(list: &mut List) {
    for q in ACTIVATIONS {
        for kv in ACTIVATIONS {
            for (index, heads) in ATTENTION.iter().enumerate() {
                attend(list, heads.operands(q, kv, Fill::NORMAL), &heads.params(), index);
            }
            // Scores so far apart that all but one row vanish.
            let steep = Fill::Normal { mean: 0.0, deviation: 40.0 };
            let heads = &ATTENTION[5];
            let operands = heads.operands(q, kv, steep);
            list.push(Kind::Attention, &operands, &heads.params(), Place::Dense);
            let [q, k, v, positions, y] = operands;
            let operands = [q, k, v, positions, sinks(heads.heads), y];
            list.push(Kind::AttentionSinks, &operands, &heads.params(), Place::Dense);
        }
    }
}

/// Many sequences in one cache: rows of a block, blocks of a sequence, tokens of a sequence that stand together. There is
/// one sequence less than runs of tokens, so that the last run sees nothing.
#[rustfmt::skip] // a table reads by columns
const IN_BLOCKS: [(Heads, u32, usize, u32); 11] = [
    (Heads { tokens: 1,  heads: 4,  kv_heads: 2, head: 64,  cache_rows: 64,   start: 37,   window: 0,  softcap: 0.0 }, 16, 3, 1),
    (Heads { tokens: 5,  heads: 4,  kv_heads: 2, head: 64,  cache_rows: 96,   start: 40,   window: 0,  softcap: 0.0 }, 16, 4, 1),
    (Heads { tokens: 9,  heads: 8,  kv_heads: 2, head: 128, cache_rows: 640,  start: 300,  window: 0,  softcap: 0.0 }, 32, 12, 1),
    (Heads { tokens: 6,  heads: 6,  kv_heads: 2, head: 64,  cache_rows: 2048, start: 1500, window: 0,  softcap: 0.0 }, 32, 60, 1),
    (Heads { tokens: 7,  heads: 8,  kv_heads: 4, head: 256, cache_rows: 256,  start: 90,   window: 33, softcap: 30.0 }, 16, 7, 1),
    (Heads { tokens: 10, heads: 3,  kv_heads: 3, head: 33,  cache_rows: 21,   start: 9,    window: 0,  softcap: 0.0 }, 7, 3, 3),
    (Heads { tokens: 40, heads: 4,  kv_heads: 1, head: 64,  cache_rows: 160,  start: 50,   window: 0,  softcap: 0.0 }, 16, 6, 13),
    (Heads { tokens: 70, heads: 8,  kv_heads: 2, head: 128, cache_rows: 320,  start: 100,  window: 0,  softcap: 0.0 }, 32, 6, 70),
    (Heads { tokens: 45, heads: 4,  kv_heads: 2, head: 128, cache_rows: 192,  start: 60,   window: 20, softcap: 40.0 }, 32, 4, 30),
    (Heads { tokens: 60, heads: 4,  kv_heads: 2, head: 128, cache_rows: 1024, start: 600,  window: 0,  softcap: 0.0 }, 32, 30, 17),
    (Heads { tokens: 50, heads: 3,  kv_heads: 1, head: 64,  cache_rows: 512,  start: 400,  window: 150, softcap: 0.0 }, 16, 28, 23),
];

fn attention_in_blocks(list: &mut List) {
    for q in ACTIVATIONS {
        for kv in ACTIVATIONS {
            for (index, case) in IN_BLOCKS.iter().enumerate() {
                attend_in_blocks(list, case, [q, kv], index);
            }
        }
    }
}

/// Attention over blocks, without sinks and with them, of queries and caches of these types.
fn attend_in_blocks(
    list: &mut List,
    &(heads, block, entries, run): &(Heads, u32, usize, u32),
    [q, kv]: [DType; 2],
    index: usize,
) {
    let [q, k, v, positions, y] = heads.operands(q, kv, Fill::NORMAL);
    let sequences = (heads.tokens.div_ceil(run as usize) - 1).max(1);
    let in_cache = heads.cache_rows as u32 / block;
    let blocks = match index % 3 {
        2 => Fill::IdsBeyond { below: in_cache },
        _ => Fill::Ids { below: in_cache },
    };
    let of_token = input(DType::U32, &[heads.tokens], Fill::Runs { run });
    let table = input(DType::U32, &[sequences, entries], blocks);
    let [scale, window, cap, ..] = heads.params();
    let params = [scale, window, cap, block];
    let operands = [q, k, v, positions, of_token, table, y];
    list.push_strided_and(Kind::Attention, &operands, &params, index);
    let [q, k, v, positions, of_token, table, y] = operands;
    let operands = [q, k, v, positions, of_token, table, sinks(heads.heads), y];
    list.push_strided_and(Kind::AttentionSinks, &operands, &params, index);
}

/// Tokens, heads, heads of the cache, sizes of heads of keys and of values, rows, first position, window.
const OTHER_VALUES: [([usize; 6], u32, u32); 10] = [
    ([1, 4, 1, 12, 8, 20], 13, 0),
    ([1, 16, 1, 576, 512, 70], 66, 0),
    ([5, 3, 1, 40, 64, 33], 20, 0),
    ([9, 4, 2, 80, 16, 50], 30, 7),
    ([37, 2, 1, 192, 128, 64], 20, 0),
    ([1, 2, 2, 64, 128, 300], 290, 0),
    ([20, 4, 4, 128, 64, 90], 60, 0),
    ([3, 40, 1, 24, 7, 40], 30, 0),
    // Sixteen heads and more of one token, whose rows workgroups share.
    ([3, 32, 2, 24, 40, 300], 250, 0),
    ([2, 16, 1, 40, 24, 400], 380, 100),
];

/// Attention whose values have heads of another size than its keys: caches of their own, and values that begin inside the rows
/// of a wider cache.
pub(super) fn add_other_values(list: &mut List) {
    for q in ACTIVATIONS {
        for kv in ACTIVATIONS {
            for (index, &(sizes, start, window)) in OTHER_VALUES.iter().enumerate() {
                let [t, heads, kv_heads, head, value, rows] = sizes;
                let operands = [
                    normal(q, &[t, heads, head]),
                    normal(kv, &[rows, kv_heads, head]),
                    normal(kv, &[rows, kv_heads, value]),
                    input(DType::U32, &[t], Fill::Positions { start }),
                    output(q, &[t, heads, value]),
                ];
                let params = [(head as f32).powf(-0.5).to_bits(), window, 0, 0];
                list.push_strided_and(Kind::Attention, &operands, &params, index);
                let [q, k, v, positions, y] = operands;
                let operands = [q, k, v, positions, sinks(heads), y];
                list.push(Kind::AttentionSinks, &operands, &params, Place::cycle(index));
                let [q, k, v, positions, _, y] = operands;
                let of_token = input(DType::U32, &[t], Fill::Runs { run: 2 });
                let blocks = Fill::Ids { below: rows as u32 / 10 };
                let table = input(DType::U32, &[t.div_ceil(2), rows / 10], blocks);
                if rows.is_multiple_of(10) {
                    let params = [params[0], window, 0, 10];
                    let operands = [q, k, v, positions, of_token, table, y];
                    list.push_strided_and(Kind::Attention, &operands, &params, index);
                }
            }
        }
    }
}

/// Keys and values of one row side by side in one buffer, and written there too.
fn attention_interleaved(list: &mut List) {
    for kv in ACTIVATIONS {
        for heads in [ATTENTION[3], ATTENTION[7], ATTENTION[9]] {
            let mut operands = heads.operands(DType::F32, kv, Fill::NORMAL);
            let row = heads.kv_heads * heads.head;
            let strides = vec![2 * row, heads.head, 1];
            for (half, cache) in operands[1..3].iter_mut().enumerate() {
                cache.strides.clone_from(&strides);
                cache.buffer = 1;
                cache.offset = (half * row * kv.block_bytes()) as u64;
            }
            operands[3].buffer = 2;
            operands[4].buffer = 3;
            list.push_as_is(Kind::Attention, &operands, &heads.params());

            let mut cache = operands[2].clone();
            cache.buffer = 2;
            let tokens = heads.tokens;
            let x = normal(DType::F32, &[tokens, heads.kv_heads, heads.head]);
            let rows = Fill::DistinctIds { below: heads.cache_rows as u32 };
            let positions = OperandSpec { buffer: 1, ..input(DType::U32, &[tokens], rows) };
            list.push_as_is(Kind::KvWrite, &[x, positions, cache], &[]);
        }
    }
}

/// Caches of 8 bits: written, turned and written, looked at, and picked from.
pub(super) fn add_rounded_caches(list: &mut List) {
    // Tokens, heads, head size, cache rows.
    let sizes = [
        (1, 1, 32, 4),
        (1, 4, 64, 33),
        (2, 3, 96, 9),
        (7, 8, 64, 7),
        (33, 3, 32, 127),
        (33, 4, 128, 256),
        (3, 1, 256, 5),
    ];
    for x in ACTIVATIONS {
        for (index, &(t, h, d, rows)) in sizes.iter().enumerate() {
            let operands = [
                normal(x, &[t, h, d]),
                input(DType::U32, &[t], cache_rows(index, rows)),
                normal(DType::C8, &[rows, h, d]),
            ];
            list.push_everywhere(Kind::KvWrite, &operands, &[]);
            // No operand of it is of type `x`.
            if x == DType::F32 {
                let operands = [
                    normal(DType::C8, &[rows, h * d]),
                    input(DType::U32, &[t], Fill::IdsBeyond { below: rows as u32 }),
                    output(DType::F32, &[t, h * d]),
                ];
                list.push_strided_and(Kind::Gather, &operands, &[1.0_f32.to_bits()], index);
            }
        }
        for (index, &(t, h, d, n_dims, start)) in HEADS.iter().enumerate() {
            for mode in [0, 1].into_iter().filter(|_| d.is_multiple_of(32)) {
                let rows = t + 5;
                let operands = [
                    normal(x, &[t, h, d]),
                    input(DType::U32, &[t], Fill::Positions { start }),
                    input(DType::F32, &[n_dims as usize / 2], FACTORS),
                    input(DType::U32, &[t], cache_rows(index, rows)),
                    normal(DType::C8, &[rows, h, d]),
                ];
                let params = rotation(index, n_dims, mode);
                let place = Place::cycle(index + mode as usize);
                list.push(Kind::RopeKvWrite, &operands, &params, place);
            }
        }
        let rounded = |heads: &&Heads| heads.head.is_multiple_of(32);
        for (index, heads) in ATTENTION.iter().filter(rounded).enumerate() {
            attend(list, heads.operands(x, DType::C8, Fill::NORMAL), &heads.params(), index);
        }
        for (index, case) in IN_BLOCKS.iter().enumerate().filter(|(_, case)| rounded(&&case.0)) {
            attend_in_blocks(list, case, [x, DType::C8], index);
        }
    }
}
