// A chain of products in one dispatch: x becomes x + W[p] x for every phase p. Workgroups share the rows of
// W and meet after each phase, because the next one needs all of x.
//
// A team of TEAM lanes takes a row at a time, 8 weights (16 bytes) to a load. All loads of a phase are under
// way before the first is used, in registers: a line with `$h` stands for every load of a lane (`$q` is the
// row of the team it belongs to), one with `$t` for every row of a team, one with `$s` for every number of x
// that an invocation brings to workgroup memory.
//
// Memory. x has two places that take turns. Who writes to the one read a phase ago knows that everybody has
// read it: all of x has come since, and no workgroup leaves a part of it before it has read all of the last one.
//
// With a counter, x goes through `b_scratch`, which is coherent, so that loads and stores do not stop at a cache
// of the processor. `storageBarrier()` is a control barrier of the workgroup with acquire and release
// semantics for storage memory at the scope of the device; atomics are relaxed. At the end of a phase every
// invocation that wrote a part of x passes such a barrier, and only then the first invocation counts its
// workgroup in: this releases the writes of all of them. The first invocation sees the count of all
// workgroups (additions continue one another's release), and then all pass another such barrier: this acquires
// the writes of all workgroups for every invocation behind it.
//
// With TAGGED, x goes through atomic words, and the two lowest bits of each say which phase it is for. Nothing
// but the word itself is handed over, so relaxed atomics are enough. An invocation reads the same words in every
// phase and therefore never sees an older value again once it has seen a newer one: two tags in turn tell a
// number from the one that was there before it.
//
// Waiting ends only if all workgroups are resident. After LIMIT looks an invocation gives up and sets the
// highest bit of the counter, which is more than anybody waits for: all others go on at once or soon, every workgroup
// still counts itself in as often as always, and the host sees the bit.
//
// Constants: N, PHASES, GROUPS, WG, TEAM, TURNS (rows of a team), LOADS (of a lane for a row), SHARE (numbers
// of x for an invocation), AHEAD (the weights of the next phase are fetched before waiting), TAGGED, LIMIT.
const STEPS = N / 8u;
const TEAMS = WG / TEAM;
const ROWS_FIT = TURNS * TEAMS * GROUPS == N;
const STEPS_FIT = LOADS * TEAM == STEPS;
const SHARES_FIT = SHARE * WG == N;
const GAVE_UP = 0x80000000u;
// Tickets: the counter, workgroups that are done, and tagged numbers behind those.
const NUMBERS = 2u;
const TAG = 3u;

// x of this phase and of the one before, which other subgroups may still read. First halves of all eights,
// then second halves: lanes side by side read words side by side.
var<workgroup> xs: array<vec4<f32>, 4u * STEPS>;
// Subgroups have 4 invocations at least.
var<workgroup> meeting: array<f32, WG / 4u * TURNS>;
var<workgroup> done: u32;

// Neighbouring rows belong to different workgroups, so that all have some where rows are few.
fn row_of(turn: u32, team: u32, group: u32) -> u32 {
    return (turn * TEAMS + team) * GROUPS + group;
}

// Where element `i` of x lies in workgroup memory.
fn quad_of(now: u32, i: u32) -> u32 {
    return now * 2u * STEPS + i / 4u % 2u * STEPS + i / 8u;
}

fn eight(w: vec4<u32>, now: u32, step: u32) -> f32 {
    let at = now * 2u * STEPS + min(step, STEPS - 1u);
    let low = vec4<f32>(unpack2x16float(w.x), unpack2x16float(w.y));
    let high = vec4<f32>(unpack2x16float(w.z), unpack2x16float(w.w));
    return dot(low, xs[at]) + dot(high, xs[at + STEPS]);
}

fn lanes_sum(value: f32, lanes: u32) -> f32 {
    var sum = value;
    for (var step = lanes / 2u; step > 0u; step /= 2u) {
        sum += subgroupShuffleXor(sum, step);
    }
    return sum;
}

@compute @workgroup_size(WG)
fn main(
    @builtin(local_invocation_index) lid: u32,
    @builtin(workgroup_id) id: vec3<u32>,
    @builtin(subgroup_size) subgroup: u32,
) {
    let group = id.x;
    let team = lid / TEAM;
    let lane = lid % TEAM;
    let row_$t = row_of($tu, team, group);
    let step_$h = lane + $hu % LOADS * TEAM;
    let has_$h = (ROWS_FIT || row_$q < N) && (STEPS_FIT || step_$h < STEPS);
    let at_$h = row_$q * STEPS + step_$h;
    let item_$s = lid + $su * WG;
    var w_$h = vec4<u32>();
    var gave_up = false;

    for (var p = 0u; p < PHASES; p++) {
        let now = p % 2u;
        if (!AHEAD || p == 0u) {
            if (has_$h) { w_$h = b_o0[p * N * STEPS + at_$h]; }
        }
        var x_$s = 0.0;
        if (p == 0u) {
            if (SHARES_FIT || item_$s < N) { x_$s = get_o1(item_$s); }
        } else if (TAGGED) {
            var bits_$s = tag_of(p);
            for (var look = 0u; !gave_up; look++) {
                if (SHARES_FIT || item_$s < N) { bits_$s = atomicLoad(&b_tickets[NUMBERS + now * N + item_$s]); }
                var ready = true;
                ready = ready && (bits_$s & TAG) == tag_of(p);
                if (ready) {
                    break;
                }
                // As below. Here it is enough that the weights may be looked at: the loop does not wait for them.
                if (AHEAD && look == LIMIT / 2u) {
                    var ones = 0xffffffffu;
                    ones &= w_$h.x;
                    if (ones == 0xffffffffu) {
                        atomicOr(&b_tickets[0], 0u);
                    }
                }
                if (look >= LIMIT || (look % 256u == 255u && atomicLoad(&b_tickets[0]) != 0u)) {
                    atomicOr(&b_tickets[0], GAVE_UP);
                    gave_up = true;
                }
            }
            x_$s = bitcast<f32>(bits_$s & ~TAG);
        } else {
            if (SHARES_FIT || item_$s < N) { x_$s = b_scratch[now * N + item_$s]; }
        }
        if (SHARES_FIT || item_$s < N) { xs[quad_of(now, item_$s)][item_$s % 4u] = x_$s; }
        workgroupBarrier();

        var sum_$t = 0.0;
        sum_$q += eight(w_$h, now, step_$h);
        sum_$t = lanes_sum(sum_$t, min(TEAM, subgroup));
        if (TEAM > subgroup) {
            if (lid % subgroup == 0u) { meeting[lid / subgroup * TURNS + $tu] = sum_$t; }
            workgroupBarrier();
            let subgroups = TEAM / subgroup;
            sum_$t = 0.0;
            for (var k = 0u; k < subgroups; k++) {
                sum_$t += meeting[(team * subgroups + k) * TURNS + $tu];
            }
        }
        let last = p + 1u == PHASES;
        if (lane == $tu && (ROWS_FIT || row_$t < N)) { leave(row_$t, sum_$t, p); }
        if (last) {
            break;
        }

        if (!TAGGED) {
            storageBarrier();
            if (lid == 0u) {
                atomicAdd(&b_tickets[0], 1u);
            }
        }
        if (AHEAD) {
            if (has_$h) { w_$h = b_o0[(p + 1u) * N * STEPS + at_$h]; }
        }
        if (TAGGED) {
            // A subgroup that waits may keep others of its workgroup from running.
            workgroupBarrier();
        } else {
            if (AHEAD) {
                // A look at every load, or the compiler may put them behind the barrier. No finite weights are
                // all ones.
                var ones = 0xffffffffu;
                ones &= w_$h.x;
                if (ones == 0xffffffffu) {
                    atomicOr(&b_tickets[0], 0u);
                }
            }
            if (lid == 0u) {
                wait(GROUPS * (p + 1u));
            }
            storageBarrier();
        }
    }

    // The workgroup that is done last says how it went and makes room for the next run.
    storageBarrier();
    if (lid == 0u) {
        done = atomicAdd(&b_tickets[1], 1u) + 1u;
    }
    workgroupBarrier();
    if (done < GROUPS) {
        return;
    }
    storageBarrier();
    if (lid == 0u) {
        put_o3(0u, atomicExchange(&b_tickets[0], 0u));
        atomicStore(&b_tickets[1], 0u);
    }
    if (TAGGED) {
        for (var i = lid; i < 2u * N; i += WG) {
            atomicStore(&b_tickets[NUMBERS + i], 0u);
        }
    }
}

// What a phase leaves of a row for the next one.
fn leave(row: u32, sum: f32, p: u32) {
    let now = p % 2u;
    let x = xs[quad_of(now, row)][row % 4u] + sum;
    if (p + 1u == PHASES) {
        put_o2(row, x);
    } else if (TAGGED) {
        // Halves go to the even side: over many phases the other way would add up.
        let bits = bitcast<u32>(x);
        let even = (bits + 1u + ((bits >> 2u) & 1u)) & ~TAG;
        atomicStore(&b_tickets[NUMBERS + (1u - now) * N + row], even | tag_of(p + 1u));
    } else {
        b_scratch[(1u - now) * N + row] = x;
    }
}

// The tag of what phase `p` reads; never 0, which is there at first.
fn tag_of(p: u32) -> u32 {
    return 1u + p / 2u % 2u;
}

fn wait(goal: u32) {
    for (var look = 0u; atomicLoad(&b_tickets[0]) < goal; look++) {
        if (look >= LIMIT) {
            atomicOr(&b_tickets[0], GAVE_UP);
            break;
        }
    }
}
