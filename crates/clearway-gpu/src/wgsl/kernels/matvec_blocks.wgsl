
// A few rows of activations times block weights, through packed 8-bit dots.
//
// The workgroup rounds the activations to 8 bits with a scale for each 32, as the weights have it;
// then teams of TEAM lanes take ROWS rows of weights each, a chunk of 32 to a lane. With a norm in
// front, activations are multiplied by its weight on the way in and by 1 / rms at the end.
// Constants: K, COLS, TILE (chunks in workgroup memory at a time), WG, TEAM, ROWS, UNROLL (chunks of each
// row under way), SUBGROUP, SHARE (quads of activations of an invocation).
const CHUNKS = K / 32u;
const SUBGROUPS = WG / SUBGROUP;

// First halves of all chunks, then second halves: lanes side by side read words side by side.
var<workgroup> quants: array<vec4<u32>, COLS * TILE * 2u>;
// Scale, scale times the sum of the first half, of the second half.
var<workgroup> scales: array<vec4<f32>, COLS * TILE>;
var<workgroup> squares: array<f32, COLS * SUBGROUPS>;

// Rounds this invocation's share of the activations of a tile. All loads are under way before the first
// is used.
fn load_x(first: u32, count: u32, lane: u32, expert_row: u32, sums: ptr<function, array<f32, COLS>>) {
    var loaded: array<vec4<f32>, SHARE>;
    var gains: array<vec4<f32>, SHARE>;
    for (var n = 0u; n < SHARE; n++) {
        let i = min(lane + n * WG, COLS * count * 8u - 1u);
        let at = first * 32u + i % (count * 8u) * 4u;
        loaded[n] = x_four(x_row(i / (count * 8u), expert_row) + at);
        if (NORM) {
            gains[n] = norm_weight(at);
        }
    }
    for (var n = 0u; n < SHARE; n++) {
        let i = lane + n * WG;
        // Eight lanes share a chunk, so that they leave together.
        if (i < COLS * count * 8u) {
            round_four(loaded[n], gains[n], i / (count * 8u), i % (count * 8u), sums);
        }
    }
    if (NORM) {
        for (var t = 0u; t < COLS; t++) {
            var sum = (*sums)[t];
            for (var step = SUBGROUP / 2u; step > 0u; step /= 2u) {
                sum += subgroupShuffleXor(sum, step);
            }
            if (lane % SUBGROUP == 0u) {
                squares[t * SUBGROUPS + lane / SUBGROUP] = sum;
            }
        }
    }
}

fn round_four(x: vec4<f32>, gain: vec4<f32>, col: u32, word: u32, sums: ptr<function, array<f32, COLS>>) {
    var v = x;
    if (NORM) {
        (*sums)[col] += dot(v, v);
        v *= gain;
    }
    let r = round_quad(v);
    let chunk = col * TILE + word / 8u;
    quants[chunk + (word % 8u) / 4u * COLS * TILE][word % 4u] = r.quants;
    if (word % 8u == 0u) {
        scales[chunk] = r.scales;
    }
}

fn norm_factor(t: u32) -> f32 {
    if (!NORM) {
        return 1.0;
    }
    var sum = 0.0;
    for (var i = 0u; i < SUBGROUPS; i++) {
        sum += squares[t * SUBGROUPS + i];
    }
    return inverseSqrt(sum / f32(K) + argf(0u));
}

fn dot_chunk(w: Chunk, x: u32) -> f32 {
    return dot_rounded(w, quants[x], quants[x + COLS * TILE], scales[x]);
}

fn work(lid: u32, group: vec3<u32>) {
    let expert = expert_of(group);
    let place = group_row(group);
    let team = lid / TEAM;
    let lane = lid % TEAM;
    var sums: array<f32, SUMS>;
    for (var i = 0u; i < SUMS; i++) {
        sums[i] = 0.0;
    }
    var rows: array<u32, ROWS>;
    for (var r = 0u; r < ROWS; r++) {
        // A team without a row of its own reads once more what it has.
        let row = weight_row(place, team, select(0u, r, has_row(place, team, r)));
        rows[r] = (expert.first + min(row, P.w.shape.z - 1u)) * CHUNKS;
    }
    var square_sums: array<f32, COLS>;
    for (var t = 0u; t < COLS; t++) {
        square_sums[t] = 0.0;
    }
    var ends_early: Early;
    var closing: vec4<f32>;
    for (var first = 0u; first < CHUNKS; first += TILE) {
        let end = min(first + TILE, CHUNKS);
        // Weights depend on nothing that was just computed: they are under way while the activations
        // are loaded. They stay as memory gave them until they are used: whatever looks at them waits.
        var w: array<Raw, UNROLL * ROWS>;
        var u: array<Raw, UNROLL * ROWS>;
        for (var i = 0u; i < UNROLL; i++) {
            let step = min(first + i * TEAM + lane, end - 1u);
            for (var r = 0u; r < ROWS; r++) {
                w[i * ROWS + r] = fetch_w(rows[r] + step);
                if (GATED) {
                    u[i * ROWS + r] = fetch_u(rows[r] + step);
                }
            }
        }
        if (first > 0u) {
            workgroupBarrier();
        } else {
            $wait
            ends_early = early(place, team, lane);
            closing = close_early(place, lid);
        }
        load_x(first, end - first, lid, expert.row, &square_sums);
        workgroupBarrier();
        if (first == 0u) {
            prepare(place, team, &ends_early);
        }
        for (var base = first; base < end; base += UNROLL * TEAM) {
            for (var i = 0u; i < UNROLL; i++) {
                let j = base + i * TEAM + lane;
                // Beyond the end the last chunk stands in for weights and counts nothing.
                let c = min(j, end - 1u);
                let step = min(j + UNROLL * TEAM, end - 1u);
                for (var r = 0u; r < ROWS; r++) {
                    let chunk = decode(w[i * ROWS + r], rows[r] + c);
                    for (var t = 0u; t < COLS; t++) {
                        let part = dot_chunk(chunk, t * TILE + c - first);
                        sums[r * COLS + t] += select(0.0, part, j < end);
                    }
                    if (base + UNROLL * TEAM < end) {
                        w[i * ROWS + r] = fetch_w(rows[r] + step);
                    }
                    if (GATED) {
                        let other = decode(u[i * ROWS + r], rows[r] + c);
                        for (var t = 0u; t < COLS; t++) {
                            let part = dot_chunk(other, t * TILE + c - first);
                            sums[(ROWS + r) * COLS + t] += select(0.0, part, j < end);
                        }
                        if (base + UNROLL * TEAM < end) {
                            u[i * ROWS + r] = fetch_u(rows[r] + step);
                        }
                    }
                }
            }
        }
    }
    team_sums(&sums, lid);
    for (var t = 0u; t < COLS; t++) {
        let factor = norm_factor(t);
        finish_row(t, factor, &sums, place, lid, &ends_early, expert);
    }
    close_group(place, lid, closing);
}
