
// A few rows of activations times weights of 16 or 32 bits. Teams of TEAM lanes take ROWS rows of
// weights each, 8 weights to a lane; UNROLL loads of each row are under way at a time.
// Constants: K, N, COLS, WG, TEAM, ROWS, UNROLL.
const STEPS = K / 8u;
const TEAMS = WG / TEAM;

@compute @workgroup_size(WG)
fn main(@builtin(local_invocation_index) lid: u32, @builtin(workgroup_id) group: vec3<u32>) {
    let expert = expert_of(group);
    let team = lid / TEAM;
    let lane = lid % TEAM;
    let row0 = (group_row(group) * TEAMS + team) * ROWS;
    var sums: array<f32, ROWS * COLS>;
    for (var i = 0u; i < ROWS * COLS; i++) {
        sums[i] = 0.0;
    }
    var at: array<u32, ROWS>;
    for (var r = 0u; r < ROWS; r++) {
        at[r] = (expert.first + min(row0 + r, N - 1u)) * STEPS;
    }
    var start: array<u32, COLS>;
    for (var t = 0u; t < COLS; t++) {
        start[t] = x_row(t, expert.row);
    }
    var j = lane;
    for (; j + (UNROLL - 1u) * TEAM < STEPS; j += UNROLL * TEAM) {
        var w: array<Eight, ROWS * UNROLL>;
        for (var u = 0u; u < UNROLL; u++) {
            for (var r = 0u; r < ROWS; r++) {
                w[u * ROWS + r] = load_eight(at[r] + j + u * TEAM);
            }
        }
        for (var u = 0u; u < UNROLL; u++) {
            for (var t = 0u; t < COLS; t++) {
                let x = load_x(start[t] + (j + u * TEAM) * 8u);
                for (var r = 0u; r < ROWS; r++) {
                    let v = values(w[u * ROWS + r]);
                    sums[r * COLS + t] += dot(v[0], x[0]) + dot(v[1], x[1]);
                }
            }
        }
    }
    for (; j < STEPS; j += TEAM) {
        for (var t = 0u; t < COLS; t++) {
            let x = load_x(start[t] + j * 8u);
            for (var r = 0u; r < ROWS; r++) {
                let v = values(load_eight(at[r] + j));
                sums[r * COLS + t] += dot(v[0], x[0]) + dot(v[1], x[1]);
            }
        }
    }
    for (var i = 0u; i < ROWS * COLS; i++) {
        var sum = sums[i];
        for (var step = TEAM / 2u; step > 0u; step /= 2u) {
            sum += subgroupShuffleXor(sum, step);
        }
        let row = row0 + i / COLS;
        if (lane == 0u && row < N) {
            finish(i % COLS, row, sum, expert);
        }
    }
}
