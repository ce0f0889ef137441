// A few rows of activations that came quantised, times block weights, through packed 8-bit dots.
//
// Teams of TEAM lanes take ROWS rows of weights each, a chunk of 32 to a lane. A chunk of weights is decoded once for all
// rows of activations. Activations pass through workgroup memory in two slices of TEAM chunks of every row: one is
// multiplied while the other is filled, so there is one barrier a step, and nobody waits for a load of activations in
// the middle of a step. Weights of the next step are under way while those of this one are multiplied. A team sees all
// activations of a row, so it has what they are to be divided by.
//
// Loops over rows are written out: compilers keep an array in registers only if they know every index.
//
// Constants: K, COLS (rows of activations), WG, TEAM, ROWS, GATES (1 with second weights, otherwise 0), UNITS (16-byte
// units of a slice that an invocation fetches).
const CHUNKS = K / 32u;
// 16-byte units of a row of activations.
const X_ROW = 8u * CHUNKS;
// Quants of the first and second halves of chunks, and their scales: TEAM units each, for every row.
const SLICE = 3u * COLS * TEAM;
// The first divisor among the sums: one for each row of activations.
const DIVISOR = SUMS - COLS;

var<workgroup> staged: array<vec4<u32>, 2u * SLICE>;

// Unit `i` of the slice that begins at this chunk. Scales of chunks beyond the end are zero, so they count nothing.
fn fetch_x(i: u32, base: u32) -> vec4<u32> {
    let part = i / TEAM % 3u;
    let chunk = base + i % TEAM;
    let unit = b_x[i / (3u * TEAM) * X_ROW + part * CHUNKS + min(chunk, CHUNKS - 1u)];
    return select(unit, vec4<u32>(), chunk >= CHUNKS && part == 2u);
}

fn work(lid: u32, group: vec3<u32>) {
    let expert = expert_of(group);
    let place = group_row(group);
    let team = lid / TEAM;
    let lane = lid % TEAM;
    //# for r in ROWS
    // A team without a row of its own reads once more what it has.
    let row$r = min(weight_row(place, team, select(0u, $ru, has_row(place, team, $ru))), P.w.shape.z - 1u) * CHUNKS;
    var w$r = fetch_w(row$r + min(lane, CHUNKS - 1u));
    //# for g in GATES
    var u$r = fetch_u(row$r + min(lane, CHUNKS - 1u));
    //# end
    //# end
    var word = 0u;
    //# for r in ROWS
    word ^= word_of(w$r);
    //# for g in GATES
    word ^= word_of(u$r);
    //# end
    //# end
    wait_for_inputs(lid, group, word);
    var ends_early = early(place, team, lane);
    let closing = close_early(place, lid);
    var sums: array<f32, SUMS>;
    //# for i in SUMS
    sums[$i] = 0.0;
    //# end
    //# for e in UNITS
    if (lid + $eu * WG < SLICE) {
        staged[lid + $eu * WG] = fetch_x(lid + $eu * WG, 0u);
    }
    //# end
    var slice = 0u;
    for (var base = 0u; base < CHUNKS; base += TEAM) {
        workgroupBarrier();
        // Beyond the end the last chunk stands in.
        let c = min(base + lane, CHUNKS - 1u);
        //# for r in ROWS
        let chunk$r = decode(w$r, row$r + c);
        //# for g in GATES
        let other$r = decode(u$r, row$r + c);
        //# end
        //# end
        //# for e in UNITS
        var x$e: vec4<u32>;
        //# end
        let more = base + TEAM < CHUNKS;
        // A branch of its own: without it compilers move the fetches to where they are used.
        if (more) {
            let next = min(base + TEAM + lane, CHUNKS - 1u);
            //# for r in ROWS
            w$r = fetch_w(row$r + next);
            //# for g in GATES
            u$r = fetch_u(row$r + next);
            //# end
            //# end
            //# for e in UNITS
            x$e = fetch_x(min(lid + $eu * WG, SLICE - 1u), base + TEAM);
            //# end
        }
        //# for t in COLS
        {
            let at = slice + 3u * TEAM * $tu + lane;
            let first = staged[at];
            let second = staged[at + TEAM];
            let scales = bitcast<vec4<f32>>(staged[at + 2u * TEAM]);
            sums[DIVISOR + $tu] += scales.w;
            //# for r in ROWS
            sums[$ru * COLS + $tu] += dot_rounded(chunk$r, first, second, scales);
            //# for g in GATES
            sums[(ROWS + $ru) * COLS + $tu] += dot_rounded(other$r, first, second, scales);
            //# end
            //# end
        }
        //# end
        slice = SLICE - slice;
        if (more) {
            //# for e in UNITS
            if (lid + $eu * WG < SLICE) {
                staged[slice + lid + $eu * WG] = x$e;
            }
            //# end
        }
        if (base == 0u) {
            prepare(place, team, &ends_early);
        }
    }
    team_sums(&sums, lid);
    if (LANE_EACH) {
        // Every lane picks the sums of its row of activations, and the text of the epilogue stands here once. As branches
        // compilers would write it out for each row, and a text that runs once costs the time to fetch it.
        var ends: Ends;
        var divisor = sums[DIVISOR];
        //# for t in COLS
        divisor = select(divisor, sums[DIVISOR + $tu], lane == $tu);
        //# end
        let factor = inverseSqrt(divisor / f32(CHUNKS));
        //# for r in ROWS
        {
            var sum = sums[$ru * COLS];
            //# for t in COLS
            sum = select(sum, sums[$ru * COLS + $tu], lane == $tu);
            //# end
            ends.sums[$r] = sum * factor;
        }
        //# for g in GATES
        {
            var sum = sums[(ROWS + $ru) * COLS];
            //# for t in COLS
            sum = select(sum, sums[(ROWS + $ru) * COLS + $tu], lane == $tu);
            //# end
            ends.gates[$r] = sum * factor;
        }
        //# end
        //# end
        if (lane < COLS) {
            finish_team(lane, place, team, &ends, &ends_early, expert);
        }
    } else {
        //# for t in COLS
        finish_row($tu, inverseSqrt(sums[DIVISOR + $tu] / f32(CHUNKS)), &sums, place, lid, &ends_early, expert);
        //# end
    }
    close_group(place, lid, closing);
}
