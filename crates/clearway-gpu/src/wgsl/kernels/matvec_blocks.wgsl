
// A few rows of activations times block weights, through packed 8-bit dots.
//
// The workgroup rounds the activations to 8 bits with a scale for each 32, as the weights have it;
// then teams of TEAM lanes take ROWS rows of weights each, a chunk of 32 to a lane. With a norm in
// front, activations are multiplied by its weight on the way in and by 1 / rms at the end.
// Constants: K, COLS, TILE (chunks in workgroup memory at a time), WG, TEAM, ROWS, UNROLL, SUBGROUP.
const CHUNKS = K / 32u;
const TEAMS = WG / TEAM;
const WAVES = WG / SUBGROUP;

var<workgroup> quants: array<vec4<u32>, COLS * TILE * 2u>;
// Scale, scale times the sum of the first half, of the second half.
var<workgroup> scales: array<vec4<f32>, COLS * TILE>;
var<workgroup> squares: array<f32, COLS * WAVES>;

fn load_x(first: u32, count: u32, lane: u32, expert_row: u32, sums: ptr<function, array<f32, COLS>>) {
    for (var i = lane; i < COLS * count * 8u; i += WG) {
        let col = i / (count * 8u);
        let word = i % (count * 8u);
        let k = first * 32u + word * 4u;
        var v = x_four(x_row(col, expert_row) + k);
        if (NORM) {
            (*sums)[col] += dot(v, v);
            v *= norm_weight(k);
        }
        let a = abs(v);
        var top = max(max(a.x, a.y), max(a.z, a.w));
        top = max(top, subgroupShuffleXor(top, 1u));
        top = max(top, subgroupShuffleXor(top, 2u));
        top = max(top, subgroupShuffleXor(top, 4u));
        let scale = top / 127.0;
        let inverse = select(0.0, 127.0 / top, top > 0.0);
        let q = vec4<i32>(round(v * inverse));
        let packed = u32(q.x & 255) | (u32(q.y & 255) << 8u) | (u32(q.z & 255) << 16u) | (u32(q.w & 255) << 24u);
        var sum = q.x + q.y + q.z + q.w;
        sum += subgroupShuffleXor(sum, 1u);
        sum += subgroupShuffleXor(sum, 2u);
        let other = subgroupShuffleXor(sum, 4u);
        let chunk = col * TILE + word / 8u;
        quants[chunk * 2u + (word % 8u) / 4u][word % 4u] = packed;
        if (word % 8u == 0u) {
            scales[chunk] = vec4<f32>(scale, scale * f32(sum), scale * f32(other), 0.0);
        }
    }
    if (NORM) {
        for (var t = 0u; t < COLS; t++) {
            var sum = (*sums)[t];
            for (var step = SUBGROUP / 2u; step > 0u; step /= 2u) {
                sum += subgroupShuffleXor(sum, step);
            }
            if (lane % SUBGROUP == 0u) {
                squares[t * WAVES + lane / SUBGROUP] = sum;
            }
        }
    }
}

fn norm_factor(t: u32) -> f32 {
    if (!NORM) {
        return 1.0;
    }
    var sum = 0.0;
    for (var i = 0u; i < WAVES; i++) {
        sum += squares[t * WAVES + i];
    }
    return inverseSqrt(sum / f32(K) + argf(0u));
}

fn dot16(a: vec4<u32>, b: vec4<u32>) -> i32 {
    return dot4I8Packed(a.x, b.x) + dot4I8Packed(a.y, b.y) + dot4I8Packed(a.z, b.z) + dot4I8Packed(a.w, b.w);
}

fn dot_chunk(w: Chunk, x: u32) -> f32 {
    let lo = dot16(w.lo, quants[2u * x]);
    let hi = dot16(w.hi, quants[2u * x + 1u]);
    let s = scales[x];
    var sum: f32;
    if (HALVES) {
        sum = s.x * (w.d.x * f32(lo) + w.d.y * f32(hi));
    } else {
        sum = s.x * w.d.x * f32(lo + hi);
    }
    if (MINIMUM) {
        if (HALVES) {
            sum += w.m.x * s.y + w.m.y * s.z;
        } else {
            sum += w.m.x * (s.y + s.z);
        }
    }
    return sum;
}

fn team_sum(value: f32) -> f32 {
    var sum = value;
    for (var step = TEAM / 2u; step > 0u; step /= 2u) {
        sum += subgroupShuffleXor(sum, step);
    }
    return sum;
}

// Chunks of one turn: UNROLL steps of ROWS rows.
struct Turn { w: array<Chunk, UNROLL * ROWS>, u: array<Chunk, UNROLL * ROWS> }

fn load_turn(rows: array<u32, ROWS>, first: u32, end: u32) -> Turn {
    var turn: Turn;
    for (var i = 0u; i < UNROLL; i++) {
        let step = min(first + i * TEAM, end - 1u);
        for (var r = 0u; r < ROWS; r++) {
            turn.w[i * ROWS + r] = load_chunk_w(rows[r] + step);
            if (GATED) {
                turn.u[i * ROWS + r] = load_chunk_u(rows[r] + step);
            }
        }
    }
    return turn;
}

@compute @workgroup_size(WG)
fn main(@builtin(local_invocation_index) lid: u32, @builtin(workgroup_id) group: vec3<u32>) {
    let expert = expert_of(group);
    let outer = P.w.shape.z;
    let team = lid / TEAM;
    let lane = lid % TEAM;
    let row0 = (group_row(group) * TEAMS + team) * ROWS;
    var sums: array<f32, ROWS * COLS>;
    var gates: array<f32, ROWS * COLS>;
    for (var i = 0u; i < ROWS * COLS; i++) {
        sums[i] = 0.0;
        gates[i] = 0.0;
    }
    var rows: array<u32, ROWS>;
    for (var r = 0u; r < ROWS; r++) {
        rows[r] = (expert.first + min(row0 + r, outer - 1u)) * CHUNKS;
    }
    var square_sums: array<f32, COLS>;
    for (var t = 0u; t < COLS; t++) {
        square_sums[t] = 0.0;
    }
    for (var first = 0u; first < CHUNKS; first += TILE) {
        let end = min(first + TILE, CHUNKS);
        // Weights depend on nothing that was just computed: they are under way while the activations
        // are loaded, and one turn ahead from then on.
        var turn = load_turn(rows, first + lane, end);
        if (first > 0u) {
            workgroupBarrier();
        }
        load_x(first, end - first, lid, expert.row, &square_sums);
        workgroupBarrier();
        for (var base = first; base < end; base += UNROLL * TEAM) {
            let next = base + UNROLL * TEAM;
            var ahead: Turn;
            if (next < end) {
                ahead = load_turn(rows, next + lane, end);
            }
            for (var i = 0u; i < UNROLL; i++) {
                let j = base + i * TEAM + lane;
                if (j < end) {
                    for (var r = 0u; r < ROWS; r++) {
                        for (var t = 0u; t < COLS; t++) {
                            let x = t * TILE + j - first;
                            sums[r * COLS + t] += dot_chunk(turn.w[i * ROWS + r], x);
                            if (GATED) {
                                gates[r * COLS + t] += dot_chunk(turn.u[i * ROWS + r], x);
                            }
                        }
                    }
                }
            }
            turn = ahead;
        }
    }
    for (var i = 0u; i < ROWS * COLS; i++) {
        let t = i % COLS;
        let factor = norm_factor(t);
        let sum = team_sum(sums[i]) * factor;
        var other = 0.0;
        if (GATED) {
            other = team_sum(gates[i]) * factor;
        }
        let row = row0 + i / COLS;
        if (lane == 0u && row < outer) {
            finish(t, row, sum, other, expert);
        }
    }
}
