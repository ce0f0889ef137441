
// Attention of single tokens, split over the cache: a workgroup takes SPLIT rows of one head of the
// cache, or a multiple where there are more than MAX_SPLITS times as many. Teams of TEAM lanes take a row at a time, 8 elements to a
// lane, and keep the softmax up as rows come, with scores as powers of two; the teams of a subgroup are joined by shuffles, the
// subgroups in workgroup memory, and the splits by the workgroup that arrives last.
// A workgroup has all SHARE queries that use its head of the cache. Up to FEW splits leave most of the device idle: then each
// query has a workgroup of its own, though they load the same rows.
// Constants: HEAD, SHARE, FEW, SPLIT, MAX_SPLITS, WG, TEAM, SUBGROUP.
const LOG2_E = 1.44269504;
const TEAMS = WG / TEAM;
const SUBGROUPS = WG / SUBGROUP;
// What a query leaves for others: a row of sums, the largest score and the sum of weights.
const ENTRY = HEAD + 2u;

var<workgroup> joined: array<f32, SUBGROUPS * SHARE * ENTRY>;
var<workgroup> last: u32;

fn eight(q: vec4<u32>) -> array<vec4<f32>, 2> {
    return array<vec4<f32>, 2>(
        vec4<f32>(unpack2x16float(q.x), unpack2x16float(q.y)),
        vec4<f32>(unpack2x16float(q.z), unpack2x16float(q.w)),
    );
}

// Rows that a token sees, the first of a split, rows of a split and how many splits there are.
struct Range { begin: u32, end: u32, base: u32, span: u32, count: u32 }

fn work(lid: u32, group: vec3<u32>) {
    wait_for_inputs(lid, group, 0u);
    let token = group.z;
    let seen_rows = seen_by(token);
    // What the token sees may be nothing; then one split writes zeros.
    let base = seen_rows.x / SPLIT * SPLIT;
    let length = max(seen_rows.y, base + 1u) - base;
    let span = ((length - 1u) / (SPLIT * MAX_SPLITS) + 1u) * SPLIT;
    let count = (length - 1u) / span + 1u;
    let alone = count <= FEW;
    let split = select(group.x, group.x / SHARE, alone);
    if (split >= count) {
        return;
    }
    let head = group.y * SHARE;
    let range = Range(seen_rows.x, seen_rows.y, base + split * span, span, count);
    if (alone) {
        attend_one(lid, token, head + group.x % SHARE, split, range);
    } else {
        attend_all(lid, token, head, split, range);
    }
}

fn write(token: u32, head: u32, d: u32, total: f32, weight: f32, highest: f32) {
    let at = token * P.y.stride.y + head * P.y.stride.z + d;
    put_y(at, mean_of(total, weight, highest, head));
}

//# piece attend
// As many queries as `$share`, from `first_head` on.
fn attend_$name(lid: u32, token: u32, first_head: u32, split: u32, range: Range) {
    let sequence = sequence_of(token);
    let kv_head = first_head / SHARE;
    let team = lid / TEAM;
    let lane = lid % TEAM;

    var q: array<vec4<f32>, 2u * $share>;
    for (var g = 0u; g < $share; g++) {
        let at = token * P.q.stride.y + (first_head + g) * P.q.stride.z + lane * 8u;
        q[2u * g] = q_four(at);
        q[2u * g + 1u] = q_four(at + 4u);
    }
    var largest: array<f32, $share>;
    var sum: array<f32, $share>;
    var out: array<vec4<f32>, 2u * $share>;
    for (var g = 0u; g < $share; g++) {
        largest[g] = LEAST;
        sum[g] = 0.0;
        out[2u * g] = vec4<f32>();
        out[2u * g + 1u] = vec4<f32>();
    }
    let cap = argf(2u);
    let from_row = max(range.begin, range.base);
    let end_row = min(range.end, range.base + range.span);
    // All lanes of a subgroup take every turn, so that shuffles never meet a lane that left.
    for (var turn = range.base; turn < end_row; turn += $unroll * TEAMS) {
        var k: array<vec4<u32>, $unroll>;
        var v: array<vec4<u32>, $unroll>;
        for (var i = 0u; i < $unroll; i++) {
            // Where there is no row to see, one that is seen anyway: what others hold is no business of this token,
            // and even without weight it would matter where it is NaN.
            let row = cache_row(sequence, min(max(turn + i * TEAMS + team, from_row), end_row - 1u));
            k[i] = b_k[(row * P.k.stride.y + kv_head * P.k.stride.z) / 8u + lane];
            v[i] = b_v[(row * P.v.stride.y + kv_head * P.v.stride.z) / 8u + lane];
        }
        for (var g = 0u; g < $share; g++) {
            var scores: array<f32, $unroll>;
            var highest = largest[g];
            for (var i = 0u; i < $unroll; i++) {
                let keys = eight(k[i]);
                var dots = dot(keys[0], q[2u * g]) + dot(keys[1], q[2u * g + 1u]);
                for (var step = TEAM / 2u; step > 0u; step /= 2u) {
                    dots += subgroupShuffleXor(dots, step);
                }
                var score = dots * argf(0u);
                if (cap > 0.0) {
                    score = soft_cap(score, cap);
                }
                let row = turn + i * TEAMS + team;
                let seen = row >= from_row && row < end_row;
                scores[i] = select(LEAST, score * LOG2_E, seen);
                highest = max(highest, scores[i]);
            }
            let shrink = exp2(largest[g] - highest);
            largest[g] = highest;
            sum[g] *= shrink;
            out[2u * g] *= shrink;
            out[2u * g + 1u] *= shrink;
            for (var i = 0u; i < $unroll; i++) {
                // A query that has seen nothing has no weights, though all differences are 0.
                let weight = select(exp2(scores[i] - highest), 0.0, scores[i] <= LEAST);
                let values = eight(v[i]);
                sum[g] += weight;
                out[2u * g] = fma(vec4<f32>(weight), values[0], out[2u * g]);
                out[2u * g + 1u] = fma(vec4<f32>(weight), values[1], out[2u * g + 1u]);
            }
        }
    }
    let subgroup = lid / SUBGROUP;
    for (var g = 0u; g < $share; g++) {
        var highest = largest[g];
        for (var step = TEAM; step < SUBGROUP; step *= 2u) {
            highest = max(highest, subgroupShuffleXor(highest, step));
        }
        let factor = exp2(largest[g] - highest);
        var weight = sum[g] * factor;
        var low = out[2u * g] * factor;
        var high = out[2u * g + 1u] * factor;
        for (var step = TEAM; step < SUBGROUP; step *= 2u) {
            weight += subgroupShuffleXor(weight, step);
            low += subgroupShuffleXor(low, step);
            high += subgroupShuffleXor(high, step);
        }
        let at = subgroup * ($share * ENTRY) + g * ENTRY;
        if (lid % SUBGROUP < TEAM) {
            for (var i = 0u; i < 4u; i++) {
                joined[at + lane * 8u + i] = low[i];
                joined[at + lane * 8u + 4u + i] = high[i];
            }
        }
        if (lid % SUBGROUP == 0u) {
            joined[at + HEAD] = highest;
            joined[at + HEAD + 1u] = weight;
        }
    }
    workgroupBarrier();
    let ticket = token * P.q.shape.z + first_head;
    let place = (ticket * MAX_SPLITS + split * $share) * ENTRY;
    for (var i = lid; i < $share * HEAD; i += WG) {
        let g = i / HEAD;
        let d = i % HEAD;
        var highest = LEAST;
        for (var t = 0u; t < SUBGROUPS; t++) {
            highest = max(highest, joined[t * ($share * ENTRY) + g * ENTRY + HEAD]);
        }
        var total = 0.0;
        var weight = 0.0;
        for (var t = 0u; t < SUBGROUPS; t++) {
            let at = t * ($share * ENTRY) + g * ENTRY;
            let factor = exp2(joined[at + HEAD] - highest);
            total = fma(joined[at + d], factor, total);
            weight = fma(joined[at + HEAD + 1u], factor, weight);
        }
        if (range.count == 1u) {
            write(token, first_head + g, d, total, weight, highest);
        } else {
            b_scratch[place + g * ENTRY + d] = total;
            if (d == 0u) {
                b_scratch[place + g * ENTRY + HEAD] = highest;
                b_scratch[place + g * ENTRY + HEAD + 1u] = weight;
            }
        }
    }
    if (range.count == 1u) {
        return;
    }
    storageBarrier();
    if (lid == 0u) {
        last = u32(atomicAdd(&b_tickets[ticket], 1u) == range.count - 1u);
    }
    workgroupBarrier();
    if (last == 0u) {
        return;
    }
    storageBarrier();
    let start = ticket * MAX_SPLITS * ENTRY;
    for (var i = lid; i < $share * HEAD; i += WG) {
        let g = i / HEAD;
        let d = i % HEAD;
        var highest = LEAST;
        for (var s = 0u; s < range.count; s++) {
            highest = max(highest, b_scratch[start + s * ($share * ENTRY) + g * ENTRY + HEAD]);
        }
        var total = 0.0;
        var weight = 0.0;
        for (var s = 0u; s < range.count; s++) {
            let at = start + s * ($share * ENTRY) + g * ENTRY;
            let factor = exp2(b_scratch[at + HEAD] - highest);
            total = fma(b_scratch[at + d], factor, total);
            weight = fma(b_scratch[at + HEAD + 1u], factor, weight);
        }
        write(token, first_head + g, d, total, weight, highest);
    }
    if (lid == 0u) {
        atomicStore(&b_tickets[ticket], 0u);
    }
}
