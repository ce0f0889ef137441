// Attention of many tokens on cooperative matrices. A workgroup takes 16 queries for each of its
// subgroups, all of one head of the cache, and goes through the rows they see in blocks of KEYS:
//
//   scores = Q K^T, softmax of them, sums += P V
//
// A subgroup keeps its queries and its sums in matrices for the whole loop. Scores pass through workgroup
// memory, where two lanes share a row: they are masked, become weights (f16, in place) and are added up.
// Weights are powers of two relative to a reference of their row. It may lag behind the largest score by
// RAISE: only a score beyond that raises it, and then the sums are scaled down by way of workgroup memory.
//
// Query number i of a head of the cache is token i / SHARE, head i % SHARE of those that use it.
// Constants: HEAD, SHARE, SUBGROUPS, KEYS, SLICES. `first_block`, `next_block` and what stands in two places say which workgroups
// share the rows of a tile.
const THREADS = 32u * SUBGROUPS;
const QUERIES = 16u * SUBGROUPS;
const EIGHTS = HEAD / 8u; // 16 bytes of f16 in a row
const ROW = EIGHTS + 1u; // against conflicts of banks
const SLICE = 2u * KEYS * ROW; // keys, then values
const STAGED = max(SLICES * SLICE, QUERIES * ROW);
const SCORE_ROW = KEYS / 4u + 1u;
const LOG2_E = 1.44269504;
const RAISE = 8.0;
// Units of 16 bytes that an invocation stages of the keys of a block, and of the values.
const UNITS = (KEYS * EIGHTS + THREADS - 1u) / THREADS;

// Matrices of f16, as bits.
var<workgroup> staged: array<vec4<u32>, STAGED>;
var<workgroup> scores: array<vec4<f32>, QUERIES * SCORE_ROW>;

struct Rows { k: array<vec4<u32>, UNITS>, v: array<vec4<u32>, UNITS> }

// Keys and values of a block. Rows that no query of the tile sees are zeros: what they hold may be NaN.
fn fetch(sequence: u32, block: u32, range: vec2<u32>, kv_head: u32, lid: u32) -> Rows {
    var rows: Rows;
    for (var e = 0u; e < UNITS; e++) {
        let unit = lid + e * THREADS;
        let wanted = block + unit / EIGHTS;
        let row = min(max(wanted, range.x), range.y - 1u);
        let place = cache_row(sequence, row);
        let d = unit % EIGHTS * 8u;
        let seen = wanted == row;
        rows.k[e] = select(vec4<u32>(), k_eight(place * P.k.stride.y + kv_head * P.k.stride.z + d), seen);
        rows.v[e] = select(vec4<u32>(), v_eight(place * P.v.stride.y + kv_head * P.v.stride.z + d), seen);
    }
    return rows;
}

fn stage(rows: Rows, slice: u32, lid: u32) {
    for (var e = 0u; e < UNITS; e++) {
        let unit = lid + e * THREADS;
        if (KEYS * EIGHTS % THREADS != 0u && unit >= KEYS * EIGHTS) { break; }
        let at = slice + unit / EIGHTS * ROW + unit % EIGHTS;
        staged[at] = rows.k[e];
        staged[at + KEYS * ROW] = rows.v[e];
    }
}

@compute @workgroup_size(THREADS)
fn main(@builtin(local_invocation_index) lid: u32, @builtin(workgroup_id) group: vec3<u32>, @builtin(num_workgroups) count: vec3<u32>) {
    let kv_head = group.y;
    let total = P.q.shape.y * SHARE;
    // The last tile sees most: it begins first.
    let first = (count.x - 1u - group.x) * QUERIES;
    let last = min(first + QUERIES, total) - 1u;
    let lane = lid % 32u;
    let subgroup = lid / 32u;

    // NEEDED
    // Queries become matrices by way of the memory of keys and values.
    for (var i = lid; i < QUERIES * EIGHTS; i += THREADS) {
        let query = min(first + i / EIGHTS, last);
        let at = query / SHARE * P.q.stride.y + (kv_head * SHARE + query % SHARE) * P.q.stride.z + i % EIGHTS * 8u;
        let low = q_four(at);
        let high = q_four(at + 4u);
        staged[i / EIGHTS * ROW + i % EIGHTS] = bounded_halves(low, high);
    }
    workgroupBarrier();
    let own_queries = subgroup * 16u * ROW;
    //# for d in HEAD_TILES
    let q$d = coopLoadT<coop_mat16x16<f16, A>>(&staged[own_queries + 2u * $du], ROW);
    var sum$d = coop_mat16x16<f32, C>();
    //# end
    workgroupBarrier();

    // The row of this lane: its query, half of its scores.
    let mine = subgroup * 16u * SCORE_ROW;
    let own = mine + lane / 2u * SCORE_ROW;
    let half = lane % 2u;
    let query = min(first + subgroup * 16u + lane / 2u, last);
    let cap = argf(2u);
    var reference = LEAST;
    var weight = 0.0;

    var slice = 0u;
    var rows: Rows;
    // Tokens of one sequence share its rows; one run of them after another.
    var next = 0u;
    for (var from_token = first / SHARE; from_token <= last / SHARE; from_token = next) {
        next = run_end(from_token, last / SHARE);
        let sequence = sequence_of(from_token);
        // What any query of the run sees.
        var from_row = 0xffffffffu;
        var end_row = 0u;
        for (var token = from_token + lane; token < next; token += 32u) {
            let seen = seen_by(token);
            if (seen.x < seen.y) {
                from_row = min(from_row, seen.x);
                end_row = max(end_row, seen.y);
            }
        }
        let range = vec2<u32>(subgroupMin(from_row), subgroupMax(end_row));
        let in_run = query / SHARE >= from_token && query / SHARE < next;
        let own_seen = select(vec2<u32>(), seen_by(query / SHARE), in_run);

        let begin = first_block(group.z, count.z, range.x);
        if (begin < range.y) {
            rows = fetch(sequence, begin, range, kv_head, lid);
            stage(rows, slice, lid);
        }
        for (var block = begin; block < range.y; block = next_block(block, count.z)) {
            workgroupBarrier();
            if (SLICES == 2u && next_block(block, count.z) < range.y) {
                rows = fetch(sequence, next_block(block, count.z), range, kv_head, lid);
            }
            //# for j in KEY_TILES
            var score$j = coop_mat16x16<f32, C>();
            //# end
            //# for d in HEAD_TILES
            //# for j in KEY_TILES
            score$j = coopMultiplyAdd(q$d, coopLoad<coop_mat16x16<f16, B>>(&staged[slice + 16u * $ju * ROW + 2u * $du], ROW), score$j);
            //# end
            //# end
            //# for j in KEY_TILES
            coopStoreT(score$j, &scores[mine + 4u * $ju], SCORE_ROW);
            //# end
            subgroupBarrier();

            var own_scores: array<vec4<f32>, KEYS / 8u>;
            var highest = LEAST;
            for (var i = 0u; i < KEYS / 8u; i++) {
                var four = scores[own + half * (KEYS / 8u) + i] * argf(0u);
                if (cap > 0.0) {
                    four = vec4<f32>(soft_cap(four.x, cap), soft_cap(four.y, cap), soft_cap(four.z, cap), soft_cap(four.w, cap));
                }
                let row = vec4<u32>(block + half * (KEYS / 2u) + 4u * i) + vec4<u32>(0u, 1u, 2u, 3u);
                let seen = (row >= vec4<u32>(own_seen.x)) & (row < vec4<u32>(own_seen.y));
                four = select(vec4<f32>(LEAST), four * LOG2_E, seen);
                own_scores[i] = four;
                highest = max(highest, max(max(four.x, four.y), max(four.z, four.w)));
            }
            highest = max(highest, subgroupShuffleXor(highest, 1u));
            let raised = highest > reference + RAISE;
            let shrink = select(1.0, exp2(reference - highest), raised);
            let rescale = subgroupAny(raised && reference > LEAST);
            reference = select(reference, highest, raised);
            weight *= shrink;
            subgroupBarrier();
            // All lanes agree. A loop, since naga takes no branch on what a subgroup found as uniform.
            for (var due = rescale; due; due = false) {
                //# for d in HEAD_TILES
                coopStoreT(sum$d, &scores[mine], SCORE_ROW);
                subgroupBarrier();
                scores[own + 2u * half] *= shrink;
                scores[own + 2u * half + 1u] *= shrink;
                subgroupBarrier();
                sum$d = coopLoadT<coop_mat16x16<f32, C>>(&scores[mine], SCORE_ROW);
                subgroupBarrier();
                //# end
            }
            for (var i = 0u; i < KEYS / 16u; i++) {
                // A query that has seen nothing has no weights, though all differences are 0.
                let low = select(exp2(own_scores[2u * i] - reference), vec4<f32>(), own_scores[2u * i] <= vec4<f32>(LEAST));
                let high = select(exp2(own_scores[2u * i + 1u] - reference), vec4<f32>(), own_scores[2u * i + 1u] <= vec4<f32>(LEAST));
                let both = low + high;
                weight += (both.x + both.y) + (both.z + both.w);
                scores[own + half * (KEYS / 16u) + i] = bitcast<vec4<f32>>(halves(low, high));
            }
            subgroupBarrier();
            //# for j in KEY_TILES
            let weights$j = coopLoadT<coop_mat16x16<f16, A>>(&scores[mine + 2u * $ju], SCORE_ROW);
            //# end
            //# for j in KEY_TILES
            //# for d in HEAD_TILES
            sum$d = coopMultiplyAdd(weights$j, coopLoadT<coop_mat16x16<f16, B>>(&staged[slice + (KEYS + 16u * $ju) * ROW + 2u * $du], ROW), sum$d);
            //# end
            //# end
            if (SLICES == 2u) {
                slice = SLICE - slice;
            } else {
                workgroupBarrier();
            }
            if (next_block(block, count.z) < range.y) {
                if (SLICES == 1u) {
                    rows = fetch(sequence, next_block(block, count.z), range, kv_head, lid);
                }
                stage(rows, slice, lid);
            }
        }
    }
    weight += subgroupShuffleXor(weight, 1u);
    let exists = first + subgroup * 16u + lane / 2u <= last;
    let tile = group.x * count.y + kv_head;
    // FINISH
}
