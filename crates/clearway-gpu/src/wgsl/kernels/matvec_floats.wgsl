
// A few rows of activations times weights of 16 or 32 bits. Teams of TEAM lanes take ROWS rows of
// weights each, 8 weights to a lane; UNROLL loads of each row are under way at a time. With a norm in
// front, activations are multiplied by its weight on the way in and by 1 / rms at the end: a team sees
// all of a row of activations, so it has the sum of squares itself.
// Constants: K, COLS, WG, TEAM, ROWS, UNROLL.
const STEPS = K / 8u;
const SQUARES = select(ROWS, 2u * ROWS, GATED) * COLS;

fn work(lid: u32, group: vec3<u32>) {
    let expert = expert_of(group);
    let place = group_row(group);
    let team = lid / TEAM;
    let lane = lid % TEAM;
    // The squares of the activations come last.
    var sums: array<f32, SUMS>;
    for (var i = 0u; i < SUMS; i++) {
        sums[i] = 0.0;
    }
    var at: array<u32, ROWS>;
    for (var r = 0u; r < ROWS; r++) {
        // A team without a row of its own reads once more what it has.
        let row = weight_row(place, team, select(0u, r, has_row(place, team, r)));
        at[r] = (expert.first + min(row, P.w.shape.z - 1u)) * STEPS;
    }
    // Weights depend on nothing that was just computed: the first are under way before the wait for the activations.
    var w: array<Eight, ROWS * UNROLL>;
    var u: array<Eight, ROWS * UNROLL>;
    for (var i = 0u; COUNTED && i < UNROLL; i++) {
        let step = min(lane + i * TEAM, STEPS - 1u);
        for (var r = 0u; r < ROWS; r++) {
            w[i * ROWS + r] = load_eight_w(at[r] + step);
            if (GATED) {
                u[i * ROWS + r] = load_eight_u(at[r] + step);
            }
        }
    }
    $wait
    stage_x(lid);
    var ends_early = early(place, team, lane);
    var start: array<u32, COLS>;
    for (var t = 0u; t < COLS; t++) {
        start[t] = x_row(t, expert.row);
    }
    var j = lane;
    for (; j + (UNROLL - 1u) * TEAM < STEPS; j += UNROLL * TEAM) {
        if (!COUNTED || j > lane) {
            for (var i = 0u; i < UNROLL; i++) {
                for (var r = 0u; r < ROWS; r++) {
                    w[i * ROWS + r] = load_eight_w(at[r] + j + i * TEAM);
                    if (GATED) {
                        u[i * ROWS + r] = load_eight_u(at[r] + j + i * TEAM);
                    }
                }
            }
        }
        for (var i = 0u; i < UNROLL; i++) {
            let k = (j + i * TEAM) * 8u;
            for (var t = 0u; t < COLS; t++) {
                var x = array<vec4<f32>, 2>(x_four(start[t] + k), x_four(start[t] + k + 4u));
                if (NORM) {
                    sums[SQUARES + t] += dot(x[0], x[0]) + dot(x[1], x[1]);
                    x[0] *= norm_weight(k);
                    x[1] *= norm_weight(k + 4u);
                }
                for (var r = 0u; r < ROWS; r++) {
                    let v = values(w[i * ROWS + r]);
                    sums[r * COLS + t] += dot(v[0], x[0]) + dot(v[1], x[1]);
                    if (GATED) {
                        let g = values(u[i * ROWS + r]);
                        sums[(ROWS + r) * COLS + t] += dot(g[0], x[0]) + dot(g[1], x[1]);
                    }
                }
            }
        }
    }
    for (; j < STEPS; j += TEAM) {
        let k = j * 8u;
        for (var t = 0u; t < COLS; t++) {
            var x = array<vec4<f32>, 2>(x_four(start[t] + k), x_four(start[t] + k + 4u));
            if (NORM) {
                sums[SQUARES + t] += dot(x[0], x[0]) + dot(x[1], x[1]);
                x[0] *= norm_weight(k);
                x[1] *= norm_weight(k + 4u);
            }
            for (var r = 0u; r < ROWS; r++) {
                let v = values(load_eight_w(at[r] + j));
                sums[r * COLS + t] += dot(v[0], x[0]) + dot(v[1], x[1]);
                if (GATED) {
                    let g = values(load_eight_u(at[r] + j));
                    sums[(ROWS + r) * COLS + t] += dot(g[0], x[0]) + dot(g[1], x[1]);
                }
            }
        }
    }
    prepare(place, team, &ends_early);
    team_sums(&sums, lid);
    for (var t = 0u; t < COLS; t++) {
        var factor = 1.0;
        if (NORM) {
            factor = inverseSqrt(sums[SQUARES + t] / f32(K) + argf(0u));
        }
        finish_row(t, factor, &sums, place, lid, &ends_early, expert);
    }
    close_group(place, lid, vec4<f32>());
}
