// Sixteen queries that share a head of the cache go through it together, a block of 32 rows at a
// time, and the softmax is kept up as they come: with each block that raises the largest score, what
// was summed so far is scaled down. Heads are taken 64 elements at a time.
//
// Constants: CHUNKS and VALUE_CHUNKS, 64 elements of keys and values, and SPLITS, the workgroups that share the rows of a tile.
// Where tokens of several sequences meet in a tile, the rows of one sequence come after those of another.
// Query number i of a head of the cache is token i / share, head i % share of those that use it.
const QUERIES = 16u;
const KEYS = 32u;
const CHUNK = 16u; // quads
const PITCH = CHUNK + 1u; // against conflicts of banks
const THREADS = 128u;
var<workgroup> queries: array<vec4<f32>, QUERIES * PITCH>;
var<workgroup> rows: array<vec4<f32>, KEYS * PITCH>;
var<workgroup> weights: array<f32, QUERIES * (KEYS + 1u)>;

fn q_four(at: u32, d: u32, head: u32) -> vec4<f32> {
    var four = vec4<f32>();
    for (var i = 0u; i < 4u; i++) {
        if (d + i < head) { four[i] = get_q(at + d + i); }
    }
    return four;
}

fn k_four(at: u32, d: u32, head: u32) -> vec4<f32> {
    var four = vec4<f32>();
    for (var i = 0u; i < 4u; i++) {
        if (d + i < head) { four[i] = get_k(at + d + i); }
    }
    return four;
}

fn v_four(at: u32, d: u32, head: u32) -> vec4<f32> {
    var four = vec4<f32>();
    for (var i = 0u; i < 4u; i++) {
        if (d + i < head) { four[i] = get_v(at + d + i); }
    }
    return four;
}

@compute @workgroup_size(THREADS)
fn main(
    @builtin(local_invocation_index) index: u32,
    @builtin(workgroup_id) id: vec3<u32>,
    @builtin(num_workgroups) count: vec3<u32>,
) {
    enter(index, id, count);
    let head = P.q.shape.w;
    let value = P.v.shape.w;
    let share = P.q.shape.z / P.k.shape.z;
    let total = P.q.shape.y * share;
    let tiles = (total - 1u) / QUERIES + 1u;
    let unit = group / SPLITS;
    let split = group % SPLITS;
    let kv_head = unit / tiles;
    if (kv_head >= P.k.shape.z) { return; }
    let first = unit % tiles * QUERIES;
    let last = min(first + QUERIES, total) - 1u;

    // The query of this invocation, one of eight that share it; beyond the last one, the last again.
    let own = thread / 8u;
    let part = thread % 8u;
    let query = min(first + own, last);

    let start = start_of(kv_head * share + query % share);
    var largest = start.x;
    var sum = start.y;
    var out: array<vec4<f32>, 2u * VALUE_CHUNKS>;
    for (var i = 0u; i < 2u * VALUE_CHUNKS; i++) { out[i] = vec4<f32>(); }

    // Tokens of one sequence share its rows; one run of them after another.
    var next = 0u;
    for (var from_token = first / share; from_token <= last / share; from_token = next) {
        next = run_end(from_token, last / share);
        let sequence = sequence_of(from_token);
        // What any query of the run sees.
        var from_row = 0xffffffffu;
        var end_row = 0u;
        for (var token = from_token; token < next; token++) {
            let seen = seen_by(token);
            if (seen.x < seen.y) {
                from_row = min(from_row, seen.x);
                end_row = max(end_row, seen.y);
            }
        }
        let rows_here = part_of(split, from_row, end_row);
        from_row = rows_here.x;
        end_row = rows_here.y;
        let in_run = query / share >= from_token && query / share < next;
        let own_seen = select(vec2<u32>(), seen_by(query / share), in_run);

        // Blocks start at multiples of their length, so that the order of a sum depends on positions alone.
        for (var block = from_row / KEYS * KEYS; block < end_row; block += KEYS) {
            var scores = vec4<f32>();
            for (var chunk = 0u; chunk < CHUNKS; chunk++) {
                for (var i = thread; i < QUERIES * CHUNK; i += THREADS) {
                    let q = min(first + i / CHUNK, last);
                    let at = at_q(vec4<u32>(0u, q / share, kv_head * share + q % share, 0u));
                    queries[i / CHUNK * PITCH + i % CHUNK] = q_four(at, (chunk * CHUNK + i % CHUNK) * 4u, head);
                }
                for (var i = thread; i < KEYS * CHUNK; i += THREADS) {
                    let row = block + i / CHUNK;
                    var four = vec4<f32>();
                    if (row >= from_row && row < end_row) {
                        let at = at_k(vec4<u32>(0u, cache_row(sequence, row), kv_head, 0u));
                        four = k_four(at, (chunk * CHUNK + i % CHUNK) * 4u, head);
                    }
                    rows[i / CHUNK * PITCH + i % CHUNK] = four;
                }
                workgroupBarrier();
                var dots = array<vec4<f32>, 4>();
                for (var d = 0u; d < CHUNK; d++) {
                    let q = queries[own * PITCH + d];
                    dots[0] = fma(q, rows[part * PITCH + d], dots[0]);
                    dots[1] = fma(q, rows[(part + 8u) * PITCH + d], dots[1]);
                    dots[2] = fma(q, rows[(part + 16u) * PITCH + d], dots[2]);
                    dots[3] = fma(q, rows[(part + 24u) * PITCH + d], dots[3]);
                }
                for (var i = 0u; i < 4u; i++) {
                    scores[i] += (dots[i].x + dots[i].y) + (dots[i].z + dots[i].w);
                }
                workgroupBarrier();
            }
            let cap = argf(2u);
            for (var i = 0u; i < 4u; i++) {
                let key = part + 8u * i;
                var score = scores[i] * argf(0u);
                if (cap > 0.0) { score = soft_cap(score, cap); }
                let row = block + key;
                let hidden = row < own_seen.x || row >= own_seen.y;
                weights[own * (KEYS + 1u) + key] = select(score, LEAST, hidden);
            }
            workgroupBarrier();
            var highest = largest;
            for (var key = 0u; key < KEYS; key++) { highest = max(highest, weights[own * (KEYS + 1u) + key]); }
            workgroupBarrier();
            for (var i = 0u; i < 4u; i++) {
                let at = own * (KEYS + 1u) + part + 8u * i;
                // A query that has seen nothing has no weights, though all differences are 0.
                weights[at] = select(exp_of(weights[at] - highest), 0.0, weights[at] <= LEAST);
            }
            let shrink = exp_of(largest - highest);
            largest = highest;
            sum *= shrink;
            for (var i = 0u; i < 2u * VALUE_CHUNKS; i++) { out[i] *= shrink; }
            workgroupBarrier();
            for (var key = 0u; key < KEYS; key++) { sum += weights[own * (KEYS + 1u) + key]; }
            for (var chunk = 0u; chunk < VALUE_CHUNKS; chunk++) {
                for (var i = thread; i < KEYS * CHUNK; i += THREADS) {
                    let row = block + i / CHUNK;
                    var four = vec4<f32>();
                    if (row >= from_row && row < end_row) {
                        let at = at_v(vec4<u32>(0u, cache_row(sequence, row), kv_head, 0u));
                        four = v_four(at, (chunk * CHUNK + i % CHUNK) * 4u, value);
                    }
                    rows[i / CHUNK * PITCH + i % CHUNK] = four;
                }
                workgroupBarrier();
                for (var key = 0u; key < KEYS; key++) {
                    let weight = vec4<f32>(weights[own * (KEYS + 1u) + key]);
                    out[2u * chunk] = fma(weight, rows[key * PITCH + part], out[2u * chunk]);
                    out[2u * chunk + 1u] = fma(weight, rows[key * PITCH + 8u + part], out[2u * chunk + 1u]);
                }
                workgroupBarrier();
            }
        }
    }
    // JOIN
    if (first + own > last) { return; }
    let at = at_y(vec4<u32>(0u, query / share, kv_head * share + query % share, 0u));
    let divisor = select(sum, 1.0, sum == 0.0);
    for (var i = 0u; i < 2u * VALUE_CHUNKS; i++) {
        let four = out[i] / divisor;
        let d = (i * 8u + part) * 4u;
        for (var j = 0u; j < 4u; j++) {
            if (d + j < value) { put_y(at + d + j, four[j]); }
        }
    }
}
