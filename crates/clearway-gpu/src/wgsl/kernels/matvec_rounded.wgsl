// One row of activations that came rounded, times block weights, through packed 8-bit dots.
//
// Teams of TEAM lanes take ROWS rows of weights each, a chunk of 32 to a lane. Activations are few enough
// to come from the cache of the processor, so that nothing is shared and nobody waits. A team sees all of
// them, so it has what they are to be divided by.
// Constants: K, WG, TEAM, ROWS, UNROLL (chunks of each row under way).
const CHUNKS = K / 32u;
const DIVISOR = SUMS - 1u;

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
        rows[r] = min(row, P.w.shape.z - 1u) * CHUNKS;
    }
    var ends_early: Early;
    var closing: vec4<f32>;
    for (var base = 0u; base < CHUNKS; base += UNROLL * TEAM) {
        // Weights come from far away: all of them are under way before the first is looked at.
        var w: array<Raw, UNROLL * ROWS>;
        var u: array<Raw, UNROLL * ROWS>;
        for (var i = 0u; i < UNROLL; i++) {
            let c = min(base + i * TEAM + lane, CHUNKS - 1u);
            for (var r = 0u; r < ROWS; r++) {
                w[i * ROWS + r] = fetch_w(rows[r] + c);
                if (GATED) {
                    u[i * ROWS + r] = fetch_u(rows[r] + c);
                }
            }
        }
        if (base == 0u) {
            $wait
            stage_x(lid);
            ends_early = early(place, team, lane);
            closing = close_early(place, lid);
        }
        for (var i = 0u; i < UNROLL; i++) {
            let j = base + i * TEAM + lane;
            // Beyond the end the last chunk stands in and counts nothing.
            let c = min(j, CHUNKS - 1u);
            let first = x_quad(c);
            let second = x_quad(CHUNKS + c);
            let scales = bitcast<vec4<f32>>(x_quad(2u * CHUNKS + c));
            sums[DIVISOR] += select(0.0, scales.w, j < CHUNKS);
            for (var r = 0u; r < ROWS; r++) {
                let part = dot_rounded(decode(w[i * ROWS + r], rows[r] + c), first, second, scales);
                sums[r] += select(0.0, part, j < CHUNKS);
                if (GATED) {
                    let other = dot_rounded(decode(u[i * ROWS + r], rows[r] + c), first, second, scales);
                    sums[ROWS + r] += select(0.0, other, j < CHUNKS);
                }
            }
        }
        if (base == 0u) {
            prepare(place, team, &ends_early);
        }
    }
    team_sums(&sums, lid);
    let factor = inverseSqrt(sums[DIVISOR] / f32(CHUNKS));
    finish_row(0u, factor, &sums, place, lid, &ends_early, expert);
    close_group(place, lid, closing);
}
