// A product of a few rows on cooperative matrices. A workgroup takes TILE_T rows of activations by 16 rows of weights for
// each of its subgroups, in blocks of BLOCK chunks of 32 columns. Activations are staged for all subgroups, weights by
// the subgroup that multiplies them. Activations of the next block and weights of the one after it are asked for before
// this one is multiplied. Lanes side by side fetch what lies side by side in a row, since memory gives lines.
//
// Fetches stand in branches of their own: without them compilers move them to where they are used.
//
// Constants: TILE_T, SUBGROUPS, BLOCK, SPLITS (workgroups that share the columns), CHUNKS (of a row).
const THREADS = 32u * SUBGROUPS;
const TILE_N = 16u * SUBGROUPS;
const CHUNK = 5u; // 16-byte units of 32 f16, and one against conflicts of banks
const ROW = BLOCK * CHUNK + 1u;
const RESULT_ROW = 5u;
// Results of a subgroup take the place of its weights.
const_assert DOWN * RESULT_ROW <= ROW;

// Matrices of f16, as bits; results as f32.
var<workgroup> staged: array<vec4<f32>, (TILE_T + TILE_N) * ROW>;

// Where the activations of an invocation are, without the chunk. All of them belong to one chunk of a block.
fn x_places(t0: u32, rows: u32, lid: u32) -> array<u32, X_UNITS> {
    var at: array<u32, X_UNITS>;
    //# for e in X_UNITS
    at[$e] = row_x(min(t0 + (lid + THREADS * $eu) / (4u * BLOCK), rows - 1u)) + lid % 4u * 8u;
    //# end
    return at;
}

// Columns behind the last count nothing.
fn stage_x(x: FetchedX, exists: bool, lid: u32) {
    let place = lid % (4u * BLOCK) / 4u * CHUNK + lid % 4u;
    //# for e in X_UNITS
    staged[(lid + THREADS * $eu) / (4u * BLOCK) * ROW + place] = bitcast<vec4<f32>>(select(vec4<u32>(), x_halves$e(x), exists));
    //# end
}

@compute @workgroup_size(THREADS)
fn main(@builtin(local_invocation_index) lid: u32, @builtin(workgroup_id) group: vec3<u32>) {
    let outer = P.w.shape.z;
    let rows = P.x.shape.x * P.x.shape.y * P.x.shape.z;
    let lane = lid % 32u;
    let subgroup = lid / 32u;
    let t0 = group.z * TILE_T;
    let n0 = group.x * TILE_N + 16u * subgroup;
    let ws = (TILE_T + 16u * subgroup) * ROW;
    let share = ((CHUNKS - 1u) / (BLOCK * SPLITS) + 1u) * BLOCK;
    let first = group.y * share;
    let end = min(first + share, CHUNKS);
    let x_chunk = lid % (4u * BLOCK) / 4u;
    //# for i in DOWN
    var c$i = coop_mat16x16<f32, C>();
    //# end
    let x_at = x_places(t0, rows, lid);
    let w_at = weight_places(n0, outer, lane);
    // Bounds that compilers do not know: a loop that is not written out is a short text, and fetching a text that runs for
    // some microseconds takes a good part of them.
    let blocks = min(BLOCK, outer);
    let quads = min(2u * DOWN, outer);
    var x: FetchedX;
    //# for s in 2
    var w$s: Fetched;
    if (first + $su * BLOCK < end) {
        w$s = fetch_weights(w_at, first + $su * BLOCK, lane);
    }
    //# end
    if (first < end) {
        x = fetch_x(x_at, 32u * min(first + x_chunk, CHUNKS - 1u));
    }
    for (var c = first; c < end; c += 2u * BLOCK) {
        //# for s in 2
        let at$s = c + $su * BLOCK;
        if (at$s >= end) {
            break;
        }
        stage_x(x, at$s + x_chunk < end, lid);
        stage_weights(w$s, w_at, at$s, ws, lane);
        workgroupBarrier();
        if (at$s + 2u * BLOCK < end) {
            w$s = fetch_weights(w_at, at$s + 2u * BLOCK, lane);
        }
        if (at$s + BLOCK < end) {
            x = fetch_x(x_at, 32u * min(at$s + BLOCK + x_chunk, CHUNKS - 1u));
        }
        for (var k = 0u; k < blocks; k++) {
            //# for h in 2
            let b$h = coopLoad<coop_mat16x16<f16, B>>(&staged[ws + k * CHUNK + 2u * $hu], ROW);
            //# for i in DOWN
            c$i = coopMultiplyAdd(coopLoadT<coop_mat16x16<f16, A>>(&staged[16u * $iu * ROW + k * CHUNK + 2u * $hu], ROW), b$h, c$i);
            //# end
            //# end
        }
        workgroupBarrier();
        //# end
    }
    //# for i in DOWN
    coopStoreT(c$i, &staged[ws + $iu * 16u * RESULT_ROW], RESULT_ROW);
    //# end
    subgroupBarrier();
    for (var e = 0u; e < quads; e++) {
        let quad = lane + 32u * e;
        let sums = staged[ws + quad / 4u * RESULT_ROW + quad % 4u];
        leave(group, quad / 4u, 16u * subgroup + quad % 4u * 4u, sums, rows, outer);
    }
    join(group, lid, rows, outer);
}
