// A product of many rows on cooperative matrices. A workgroup takes TILE_T rows of activations by TILE_N
// rows of weights; a subgroup takes DOWN by RIGHT matrices of that. Both sides pass through workgroup
// memory as f16, STEP columns at a time, in two slices: one is multiplied while the other is filled, so
// there is one barrier a step. What fills a slice was asked for two steps before, since memory takes
// longer than a step; weights come for two steps at once, which makes better use of what memory gives.
//
// Fetches stand in branches of their own: without them compilers move them to where they are used.
//
// Constants: TILE_T, TILE_N, THREADS, STEP, ACROSS (subgroups side by side).
const EIGHTS = STEP / 8u;
const ROW = EIGHTS + 1u; // against conflicts of banks
const WEIGHTS = TILE_T * ROW;
const SLICE = (TILE_T + TILE_N) * ROW;
// Results of a subgroup on their way to memory: 16 columns and a gap.
const RESULT_ROW = 5u;

// Matrices of f16, as bits; results as f32.
var<workgroup> staged: array<vec4<f32>, 2u * SLICE>;

// Where the activations of an invocation are, without the column of the step.
fn x_places(t0: u32, end: u32, lid: u32) -> array<u32, X_UNITS> {
    var at: array<u32, X_UNITS>;
    //# for e in X_UNITS
    at[$e] = x_row(min(t0 + (lid + $eu * THREADS) / EIGHTS, end - 1u)) + lid % EIGHTS * 8u;
    //# end
    return at;
}

fn stage_x(x: FetchedX, slice: u32, lid: u32) {
    //# for e in X_UNITS
    staged[slice + (lid + $eu * THREADS) / EIGHTS * ROW + lid % EIGHTS] = bitcast<vec4<f32>>(x_halves$e(x));
    //# end
}

@compute @workgroup_size(THREADS)
fn main(
    @builtin(local_invocation_index) lid: u32,
    @builtin(workgroup_id) group: vec3<u32>,
    @builtin(num_workgroups) size: vec3<u32>,
) {
    let inner = P.w.shape.w;
    let outer = P.w.shape.z;
    let across = (outer + TILE_N - 1u) / TILE_N;
    let tile = group.x + size.x * (group.y + size.y * group.z);
    // The rows of this workgroup, from t0 to end, and the first row of its weights.
    // PART
    let subgroup = lid / 32u;
    let t_in = subgroup / ACROSS * (16u * DOWN);
    let n_in = subgroup % ACROSS * (16u * RIGHT);
    //# for i in DOWN
    //# for j in RIGHT
    var c$i$j = coop_mat16x16<f32, C>();
    //# end
    //# end
    let x_at = x_places(t0, end, lid);
    let w_at = weight_places(w_first, n0, lid);
    var even = fetch_x(x_at, 0u);
    var odd = even;
    var w = fetch_weights(w_at, 0u, inner);
    if (STEP < inner) {
        odd = fetch_x(x_at, STEP);
    }
    stage_x(even, 0u, lid);
    stage_weights(w, 0u, w_at, 0u, 0u, lid);
    let xs = t_in * ROW;
    let ws = WEIGHTS + n_in * ROW;
    for (var k = 0u; k < inner; k += 2u * STEP) {
        workgroupBarrier();
        var next = w;
        if (k + 2u * STEP < inner) {
            even = fetch_x(x_at, k + 2u * STEP);
            next = fetch_weights(w_at, k + 2u * STEP, inner);
        }
        //# for s in 2
        //# for i in DOWN
        let a0_$s$i = coopLoadT<coop_mat16x16<f16, A>>(&staged[xs + 16u * $iu * ROW + 2u * $su], ROW);
        //# end
        //# for j in RIGHT
        let b0_$s$j = coopLoad<coop_mat16x16<f16, B>>(&staged[ws + 16u * $ju * ROW + 2u * $su], ROW);
        //# for i in DOWN
        c$i$j = coopMultiplyAdd(a0_$s$i, b0_$s$j, c$i$j);
        //# end
        //# end
        //# end
        if (k + STEP >= inner) {
            break;
        }
        stage_x(odd, SLICE, lid);
        stage_weights(w, 1u, w_at, k + STEP, SLICE, lid);
        workgroupBarrier();
        if (k + 3u * STEP < inner) {
            odd = fetch_x(x_at, k + 3u * STEP);
        }
        //# for s in 2
        //# for i in DOWN
        let a1_$s$i = coopLoadT<coop_mat16x16<f16, A>>(&staged[SLICE + xs + 16u * $iu * ROW + 2u * $su], ROW);
        //# end
        //# for j in RIGHT
        let b1_$s$j = coopLoad<coop_mat16x16<f16, B>>(&staged[SLICE + ws + 16u * $ju * ROW + 2u * $su], ROW);
        //# for i in DOWN
        c$i$j = coopMultiplyAdd(a1_$s$i, b1_$s$j, c$i$j);
        //# end
        //# end
        //# end
        if (k + 2u * STEP < inner) {
            stage_x(even, 0u, lid);
            stage_weights(next, 0u, w_at, k + 2u * STEP, 0u, lid);
        }
        w = next;
    }
    workgroupBarrier();
    let mine = subgroup * 16u * RESULT_ROW;
    let lane = lid % 32u;
    //# for i in DOWN
    //# for j in RIGHT
    coopStoreT(c$i$j, &staged[mine], RESULT_ROW);
    subgroupBarrier();
    for (var e = 0u; e < 2u; e++) {
        let t = t0 + t_in + 16u * $iu + e * 8u + lane / 4u;
        let n = n0 + n_in + 16u * $ju + lane % 4u * 4u;
        if (t < end) {
            finish(t, n, outer, staged[mine + (e * 8u + lane / 4u) * RESULT_ROW + lane % 4u]);
        }
    }
    subgroupBarrier();
    //# end
    //# end
}
