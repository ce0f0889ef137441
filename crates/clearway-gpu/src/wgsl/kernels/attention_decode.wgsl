
// Attention of single tokens, split over the cache: a workgroup takes SPLIT rows of one head of the
// cache, or a multiple where there are more than MAX_SPLITS times as many. Teams of TEAM lanes take a row at a time, 8 elements to a
// lane, and keep the softmax up as rows come, with scores as powers of two; the teams of a subgroup are joined by shuffles, the
// subgroups in workgroup memory, and the splits by the workgroup that arrives last.
// Scores of several rows and queries are summed over a team together: each exchange halves their number, and in the end every lane
// has scores of its own and computes their weights alone.
// A workgroup has all SHARE queries that use its head of the cache. Up to FEW splits leave most of the device idle: then each
// query has a workgroup of its own, though they load the same rows.
// Constants: HEAD, SHARE, FEW, SPLIT, MAX_SPLITS, WG, TEAM, SUBGROUP. `eight` gives eight elements of the cache as floats; those of a
// cache of 8 bits are still to be multiplied by their scales.
const LOG2_E = 1.44269504;
const TEAMS = WG / TEAM;
const SUBGROUPS = WG / SUBGROUP;
// What a query leaves for others: a row of sums, the largest score and the sum of weights.
const ENTRY = HEAD + 2u;

var<workgroup> joined: array<f32, SUBGROUPS * SHARE * ENTRY>;
var<workgroup> last: u32;

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
// As many queries as `$share`, from `first_head` on. A team has `$scores` scores at a time: those of `$unroll` rows for each of its queries,
// padded to a power of two. A lane has `$per` of them in the end, and `$copies` lanes have the same.
fn attend_$name(lid: u32, token: u32, first_head: u32, split: u32, range: Range) {
    let sequence = sequence_of(token);
    let kv_head = first_head / SHARE;
    let team = lid / TEAM;
    let lane = lid % TEAM;
    // Lanes of a query, and the first lane of the team in its subgroup.
    const LANES = $scores / $unroll;
    const OF_QUERY = TEAM / LANES;
    let first_lane = lid % SUBGROUP - lane;

    var q: array<vec4<f32>, 2u * $share>;
    for (var g = 0u; g < $share; g++) {
        let at = token * P.q.stride.y + (first_head + g) * P.q.stride.z + lane * 8u;
        q[2u * g] = q_four(at);
        q[2u * g + 1u] = q_four(at + 4u);
    }
    // Of the own query: the largest score, and the sum of the own weights.
    var largest = LEAST;
    var sum = 0.0;
    var out: array<vec4<f32>, 2u * $share>;
    for (var g = 0u; g < $share; g++) {
        out[2u * g] = vec4<f32>();
        out[2u * g + 1u] = vec4<f32>();
    }
    let cap = argf(2u);
    let from_row = max(range.begin, range.base);
    let end_row = min(range.end, range.base + range.span);
    // All lanes of a subgroup take every turn, so that shuffles never meet a lane that left.
    for (var turn = range.base; turn < end_row; turn += $unroll * TEAMS) {
        var k: array<$raw, $unroll>;
        var v: array<$raw, $unroll>;$more_scales
        for (var i = 0u; i < $unroll; i++) {
            // Where there is no row to see, one that is seen anyway: what others hold is no business of this token,
            // and even without weight it would matter where it is NaN.
            let row = cache_row(sequence, min(max(turn + i * TEAMS + team, from_row), end_row - 1u));
            k[i] = b_k[(row * P.k.stride.y + kv_head * P.k.stride.z) / 8u + lane];
            v[i] = b_v[(row * P.v.stride.y + kv_head * P.v.stride.z) / 8u + lane];$fetch_scales
        }
        var dots: array<f32, $scores>;
        for (var i = 0u; i < $unroll; i++) {
            let keys = eight(k[i]);
            for (var g = 0u; g < $share; g++) {
                dots[g * $unroll + i] = (dot(keys[0], q[2u * g]) + dot(keys[1], q[2u * g + 1u]))$of_key;
            }
        }
        $folds
        var highest = largest;
        for (var r = 0u; r < $per; r++) {
            var score = dots[r] * argf(0u);
            if (cap > 0.0) {
                score = soft_cap(score, cap);
            }
            let row = turn + (lane / $copies * $per + r) % $unroll * TEAMS + team;
            let seen = row >= from_row && row < end_row;
            dots[r] = select(LEAST, score * LOG2_E, seen);
            highest = max(highest, dots[r]);
        }
        for (var step = OF_QUERY / 2u; step > 0u; step /= 2u) {
            highest = max(highest, subgroupShuffleXor(highest, step));
        }
        let shrink = exp2(largest - highest);
        largest = highest;
        sum *= shrink;
        for (var r = 0u; r < $per; r++) {
            // A query that has seen nothing has no weights, though all differences are 0.
            dots[r] = select(exp2(dots[r] - highest), 0.0, dots[r] <= LEAST);
            sum += select(0.0, dots[r], lane % $copies == 0u);
        }
        if (subgroupAny(shrink != 1.0)) {
            for (var g = 0u; g < $share; g++) {
                let factor = subgroupShuffle(shrink, first_lane + g * OF_QUERY);
                out[2u * g] *= factor;
                out[2u * g + 1u] *= factor;
            }
        }
        for (var i = 0u; i < $unroll; i++) {
            let values = eight(v[i]);
            for (var g = 0u; g < $share; g++) {
                let score = g * $unroll + i;
                let weight = vec4<f32>(subgroupShuffle(dots[score % $per], first_lane + score / $per * $copies)$of_value);
                out[2u * g] = fma(weight, values[0], out[2u * g]);
                out[2u * g + 1u] = fma(weight, values[1], out[2u * g + 1u]);
            }
        }
    }
    let subgroup = lid / SUBGROUP;
    var highest = largest;
    for (var step = TEAM; step < SUBGROUP; step *= 2u) {
        highest = max(highest, subgroupShuffleXor(highest, step));
    }
    let factor = exp2(largest - highest);
    var weight = sum * factor;
    for (var step = OF_QUERY / 2u; step > 0u; step /= 2u) {
        weight += subgroupShuffleXor(weight, step);
    }
    for (var step = TEAM; step < SUBGROUP; step *= 2u) {
        weight += subgroupShuffleXor(weight, step);
    }
    for (var g = 0u; g < $share; g++) {
        let own = subgroupShuffle(factor, first_lane + g * OF_QUERY);
        var low = out[2u * g] * own;
        var high = out[2u * g + 1u] * own;
        for (var step = TEAM; step < SUBGROUP; step *= 2u) {
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
        if (lid % SUBGROUP == g * OF_QUERY) {
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
        let entry = start + i / HEAD * ENTRY;
        let d = i % HEAD;
        var joint = vec3<f32>(LEAST, 0.0, 0.0); // the largest score, the sum of weights, and the own element
        // Loads of eight splits are under way at a time.
        for (var s = 0u; s < range.count; s += 8u) {
            var scores: array<f32, 8>;
            var weights: array<f32, 8>;
            var sums: array<f32, 8>;
            var most = joint.x;
            for (var j = 0u; j < 8u; j++) {
                let at = entry + min(s + j, range.count - 1u) * ($share * ENTRY);
                scores[j] = b_scratch[at + HEAD];
                weights[j] = b_scratch[at + HEAD + 1u];
                sums[j] = b_scratch[at + d];
            }
            for (var j = 0u; j < 8u; j++) {
                most = max(most, scores[j]);
            }
            joint = vec3<f32>(most, joint.yz * exp2(joint.x - most));
            for (var j = 0u; j < 8u; j++) {
                let factor = select(0.0, exp2(scores[j] - most), s + j < range.count);
                joint.y = fma(weights[j], factor, joint.y);
                joint.z = fma(sums[j], factor, joint.z);
            }
        }
        write(token, first_head + i / HEAD, d, joint.z, joint.y, joint.x);
    }
    if (lid == 0u) {
        atomicStore(&b_tickets[ticket], 0u);
    }
}

//# piece exchange
        // Half of the scores go to the lane $mask away, which keeps the other half.
        {
            let is_upper = (lane & $masku) != 0u;
            //# for j in $half
            {
                let given = select(dots[$ju + $halfu], dots[$ju], is_upper);
                let kept = select(dots[$ju], dots[$ju + $halfu], is_upper);
                dots[$ju] = kept + subgroupShuffleXor(given, $masku);
            }
            //# end
        }

//# piece sum
        dots[0u] += subgroupShuffleXor(dots[0u], $masku);

