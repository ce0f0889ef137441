// Sums over teams: lanes of a subgroup shuffle, subgroups of a team meet in workgroup memory.
// Constants: WG, TEAM, LANES (of a team in one subgroup), SUMS (numbers to sum: for every row of weights one
// of each row of activations, then those of the second weights of a gated product, then what a kernel adds).
const TEAMS = WG / TEAM;
const MEETING = select(1u, WG / LANES * SUMS, TEAM > LANES);
var<workgroup> meeting: array<f32, MEETING>;

// Every lane of a team gets the sums.
fn team_sums(values: ptr<function, array<f32, SUMS>>, lid: u32) {
    //# for i in SUMS
    {
        var sum = (*values)[$i];
        for (var step = LANES / 2u; step > 0u; step /= 2u) {
            sum += subgroupShuffleXor(sum, step);
        }
        (*values)[$i] = sum;
    }
    //# end
    if (TEAM > LANES) {
        if (lid % LANES == 0u) {
            //# for i in SUMS
            meeting[lid / LANES * SUMS + $iu] = (*values)[$i];
            //# end
        }
        workgroupBarrier();
        //# for i in SUMS
        {
            var sum = 0.0;
            for (var k = 0u; k < TEAM / LANES; k++) {
                sum += meeting[(lid / TEAM * (TEAM / LANES) + k) * SUMS + $iu];
            }
            (*values)[$i] = sum;
        }
        //# end
    }
}

// What becomes of the sums of row `t` of activations: one lane of the team sees to it.
fn finish_row(
    t: u32,
    factor: f32,
    sums: ptr<function, array<f32, SUMS>>,
    place: u32,
    lid: u32,
    early: ptr<function, Early>,
    expert: Expert,
) {
    var ends: Ends;
    //# for r in ROWS
    ends.sums[$r] = (*sums)[$ru * COLS + t] * factor;
    if (GATED) {
        ends.gates[$r] = (*sums)[(ROWS + $ru) * COLS + t] * factor;
    }
    //# end
    if (lid % TEAM == t % TEAM) {
        finish_team(t, place, lid / TEAM, &ends, early, expert);
    }
}
