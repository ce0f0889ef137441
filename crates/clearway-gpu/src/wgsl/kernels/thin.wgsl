// A product of a few rows on cooperative matrices. A workgroup takes TILE_T rows of activations by 16 * RIGHT rows of weights
// for each of its subgroups, in blocks of BLOCK chunks of 32 columns. Activations are staged for all subgroups, in two slices:
// one is multiplied while the other is filled, so there is one barrier of the workgroup for a block. Weights are staged by the
// subgroup that multiplies them. Weights of the next block and activations of the one after it are under way meanwhile. Lanes
// side by side fetch what lies side by side in a row, since memory gives lines.
//
// Fetches stand in branches of their own: without them compilers move them to where they are used.
//
// Constants: TILE_T, DOWN, RIGHT, SUBGROUPS, BLOCK, SPLITS (workgroups that share the columns), CHUNKS (of a row).
const THREADS = 32u * SUBGROUPS;
const TILE_N = 16u * RIGHT * SUBGROUPS;
const ROW = 4u * BLOCK + 1u; // 16-byte units of 8 f16, and one against conflicts of banks
const SLICE = TILE_T * ROW;
const RESULT_ROW = 5u;
// Quads of results of a subgroup, and of a workgroup.
const MINE = 64u * DOWN * RIGHT;
const ALL = MINE * SUBGROUPS;
// A matrix of results takes the place of the weights of its subgroup, one after another.
const_assert 16u * RESULT_ROW <= 16u * RIGHT * ROW;

// Matrices of f16, as bits; results as f32.
var<workgroup> staged: array<vec4<f32>, 2u * SLICE + TILE_N * ROW>;

// Where the activations of an invocation are, without the chunk. All of them belong to one chunk of a block.
fn x_places(t0: u32, rows: u32, lid: u32) -> array<u32, X_UNITS> {
    var at: array<u32, X_UNITS>;
    //# for e in X_UNITS
    at[$e] = row_x(min(t0 + (lid + THREADS * $eu) / (4u * BLOCK), rows - 1u)) + lid % 4u * 8u;
    //# end
    return at;
}

// Columns behind the last count nothing.
fn stage_x(x: FetchedX, exists: bool, slice: u32, lid: u32) {
    //# for e in X_UNITS
    if (lid + THREADS * $eu < TILE_T * 4u * BLOCK) {
        staged[slice + (lid + THREADS * $eu) / (4u * BLOCK) * ROW + lid % (4u * BLOCK)] = bitcast<vec4<f32>>(select(vec4<u32>(), in_order(x_halves$e(x)), exists));
    }
    //# end
}

@compute @workgroup_size(THREADS)
fn main(@builtin(local_invocation_index) lid: u32, @builtin(workgroup_id) group: vec3<u32>) {
    let outer = P.w.shape.z;
    let rows = P.x.shape.x * P.x.shape.y * P.x.shape.z;
    let lane = lid % 32u;
    let subgroup = lid / 32u;
    let t0 = group.z * TILE_T;
    let n0 = group.x * TILE_N + 16u * RIGHT * subgroup;
    let ws = 2u * SLICE + 16u * RIGHT * subgroup * ROW;
    let share = ((CHUNKS - 1u) / (BLOCK * SPLITS) + 1u) * BLOCK;
    let first = group.y * share;
    let end = min(first + share, CHUNKS);
    let x_chunk = lid % (4u * BLOCK) / 4u;
    //# for i in DOWN
    //# for j in RIGHT
    var c$i$j = coop_mat16x16<f32, C>();
    //# end
    //# end
    let x_at = x_places(t0, rows, lid);
    let w_at = weight_places(n0, outer, lane);
    var x: FetchedX;
    var w: Fetched;
    if (first < end) {
        w = fetch_weights(w_at, first, lane);
        x = fetch_x(x_at, 32u * min(first + x_chunk, CHUNKS - 1u));
        stage_x(x, first + x_chunk < end, 0u, lid);
    }
    if (first + BLOCK < end) {
        x = fetch_x(x_at, 32u * min(first + BLOCK + x_chunk, CHUNKS - 1u));
    }
    // A bound that compilers do not know: a loop that is not written out is a short text, and fetching a text that runs for
    // some microseconds takes a good part of them.
    let steps = min(BLOCK, outer);
    var slice = 0u;
    workgroupBarrier();
    for (var c = first; c < end; c += BLOCK) {
        stage_weights(w, w_at, c, ws, lane);
        if (c + BLOCK < end) {
            w = fetch_weights(w_at, c + BLOCK, lane);
        }
        subgroupBarrier();
        for (var k = 0u; k < steps; k++) {
            //# for h in 2
            //# for j in RIGHT
            let b$h$j = coopLoad<coop_mat16x16<f16, B>>(&staged[ws + 16u * $ju * ROW + 4u * k + 2u * $hu], ROW);
            //# end
            //# for i in DOWN
            let a$h$i = coopLoadT<coop_mat16x16<f16, A>>(&staged[slice + 16u * $iu * ROW + 4u * k + 2u * $hu], ROW);
            //# for j in RIGHT
            c$i$j = coopMultiplyAdd(a$h$i, b$h$j, c$i$j);
            //# end
            //# end
            //# end
        }
        subgroupBarrier();
        slice = SLICE - slice;
        if (c + BLOCK < end) {
            stage_x(x, c + BLOCK + x_chunk < end, slice, lid);
        }
        if (c + 2u * BLOCK < end) {
            x = fetch_x(x_at, 32u * min(c + 2u * BLOCK + x_chunk, CHUNKS - 1u));
        }
        workgroupBarrier();
    }
    //# for i in DOWN
    //# for j in RIGHT
    coopStoreT(c$i$j, &staged[ws], RESULT_ROW);
    subgroupBarrier();
    for (var e = 0u; e < 2u; e++) {
        let quad = lane + 32u * e;
        leave(group, MINE * subgroup + 64u * (RIGHT * $iu + $ju) + quad, staged[ws + quad / 4u * RESULT_ROW + quad % 4u], rows, outer);
    }
    subgroupBarrier();
    //# end
    //# end
    join(group, lid, rows, outer);
}

// Row and column of a quad of results of a workgroup.
fn place_of(group: vec3<u32>, quad: u32) -> vec2<u32> {
    let matrix = quad / 64u;
    let t = matrix / RIGHT % DOWN * 16u + quad % 64u / 4u;
    let n = (matrix / (RIGHT * DOWN) * RIGHT + matrix % RIGHT) * 16u + quad % 4u * 4u;
    return vec2<u32>(group.z * TILE_T + t, group.x * TILE_N + n);
}

fn finish_quad(group: vec3<u32>, quad: u32, sums: vec4<f32>, rows: u32, outer: u32) {
    let at = place_of(group, quad);
    if (at.x < rows) {
        finish(at.x, at.y, outer, sums);
    }
}
