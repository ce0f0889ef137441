// A few rows of activations that came quantised, times block weights, through packed 8-bit dots.
//
// Teams of TEAM lanes take ROWS rows of weights each, a chunk of 32 to a lane. A chunk of activations is loaded once
// for all rows of the team. Weights of the next step are under way while those of this one are multiplied. A team sees
// all activations of a row, so it has what they are to be divided by.
// Constants: K, COLS (rows of activations), WG, TEAM, ROWS.
const CHUNKS = K / 32u;
// 16-byte units of a row of activations.
const X_ROW = 8u * CHUNKS;
// The first divisor among the sums: one for each row of activations.
const DIVISOR = SUMS - COLS;

@compute @workgroup_size(WG)
fn main(@builtin(local_invocation_index) lid: u32, @builtin(workgroup_id) group: vec3<u32>) {
    let expert = expert_of(group);
    let place = group_row(group);
    let team = lid / TEAM;
    let lane = lid % TEAM;
    var sums: array<f32, SUMS>;
    for (var i = 0u; i < SUMS; i++) {
        sums[i] = 0.0;
    }
    var rows: array<u32, ROWS>;
    var w: array<Raw, ROWS>;
    var u: array<Raw, ROWS>;
    for (var r = 0u; r < ROWS; r++) {
        // A team without a row of its own reads once more what it has.
        let row = weight_row(place, team, select(0u, r, has_row(place, team, r)));
        rows[r] = min(row, P.w.shape.z - 1u) * CHUNKS;
        w[r] = fetch_w(rows[r] + min(lane, CHUNKS - 1u));
        if (GATED) {
            u[r] = fetch_u(rows[r] + min(lane, CHUNKS - 1u));
        }
    }
    var ends_early = early(place, team, lane);
    let closing = close_early(place, lid);
    for (var base = 0u; base < CHUNKS; base += TEAM) {
        let j = base + lane;
        // Beyond the end the last chunk stands in and counts nothing.
        let c = min(j, CHUNKS - 1u);
        var chunks: array<Chunk, ROWS>;
        var others: array<Chunk, ROWS>;
        for (var r = 0u; r < ROWS; r++) {
            chunks[r] = decode(w[r], rows[r] + c);
            if (GATED) {
                others[r] = decode(u[r], rows[r] + c);
            }
        }
        // A branch of its own: without it compilers move the fetches to where they are used.
        if (base + TEAM < CHUNKS) {
            let next = min(j + TEAM, CHUNKS - 1u);
            for (var r = 0u; r < ROWS; r++) {
                w[r] = fetch_w(rows[r] + next);
                if (GATED) {
                    u[r] = fetch_u(rows[r] + next);
                }
            }
        }
        for (var t = 0u; t < COLS; t++) {
            let at = t * X_ROW + c;
            let first = b_x[at];
            let second = b_x[at + CHUNKS];
            let scales = bitcast<vec4<f32>>(b_x[at + 2u * CHUNKS]);
            sums[DIVISOR + t] += select(0.0, scales.w, j < CHUNKS);
            for (var r = 0u; r < ROWS; r++) {
                let part = dot_rounded(chunks[r], first, second, scales);
                sums[r * COLS + t] += select(0.0, part, j < CHUNKS);
                if (GATED) {
                    let other = dot_rounded(others[r], first, second, scales);
                    sums[(ROWS + r) * COLS + t] += select(0.0, other, j < CHUNKS);
                }
            }
        }
        if (base == 0u) {
            prepare(place, team, &ends_early);
        }
    }
    team_sums(&sums, lid);
    for (var t = 0u; t < COLS; t++) {
        let factor = inverseSqrt(sums[DIVISOR + t] / f32(CHUNKS));
        finish_row(t, factor, &sums, place, lid, &ends_early, expert);
    }
    close_group(place, lid, closing);
}
