// QUERIES queries that share a head of the cache go through it together, a block of 32 rows at a
// time, and the softmax is kept up as they come: with each block that raises the largest score, what
// was summed so far is scaled down. Heads are taken 64 elements at a time. An invocation has OWN of the
// queries, with seven others: what it fetches from workgroup memory serves all of them.
//
// Query number i of a head of the cache is token i / share, head i % share of those that use it.
// Constants: CHUNKS of a head, OWN, HELD (all chunks of the queries stay in workgroup memory).
const QUERIES = 16u * OWN;
const KEYS = 32u;
const CHUNK = 16u; // quads
const PITCH = CHUNK + 1u; // against conflicts of banks
const THREADS = 128u;
var<workgroup> queries: array<vec4<f32>, QUERIES * PITCH * HELD>;
var<workgroup> rows: array<vec4<f32>, KEYS * PITCH>;
var<workgroup> weights: array<f32, QUERIES * (KEYS + 1u)>;

// Rows of the cache a token sees: from, and one past the last.
fn seen_by(token: u32) -> vec2<u32> {
    let position = get_positions(token);
    let window = arg(1u);
    let end = select(P.k.shape.y, position + 1u, position < P.k.shape.y);
    return vec2<u32>(select(0u, position - window + 1u, window > 0u && position >= window), end);
}

fn stage_queries(chunk: u32, first: u32, last: u32, share: u32, kv_head: u32, head: u32) {
    for (var i = thread; i < QUERIES * CHUNK; i += THREADS) {
        let q = min(first + i / CHUNK, last);
        let at = at_q(vec4<u32>(0u, q / share, kv_head * share + q % share, 0u));
        let place = (chunk % HELD * QUERIES + i / CHUNK) * PITCH + i % CHUNK;
        queries[place] = q_four(at, (chunk * CHUNK + i % CHUNK) * 4u, head);
    }
}

@compute @workgroup_size(THREADS)
fn main(
    @builtin(local_invocation_index) index: u32,
    @builtin(workgroup_id) id: vec3<u32>,
    @builtin(num_workgroups) count: vec3<u32>,
) {
    enter(index, id, count);
    let head = P.q.shape.w;
    let share = P.q.shape.z / P.k.shape.z;
    let total = P.q.shape.y * share;
    let tiles = (total - 1u) / QUERIES + 1u;
    let kv_head = group / tiles;
    if (kv_head >= P.k.shape.z) { return; }
    let first = group % tiles * QUERIES;
    let last = min(first + QUERIES, total) - 1u;

    // What any query of the tile sees.
    var from_row = 0xffffffffu;
    var end_row = 0u;
    for (var token = first / share; token <= last / share; token++) {
        let seen = seen_by(token);
        if (seen.x < seen.y) {
            from_row = min(from_row, seen.x);
            end_row = max(end_row, seen.y);
        }
    }
    // The queries of this invocation, one of eight that share them, are 16 apart; beyond the last one
    // comes the last again.
    let own = thread / 8u;
    let part = thread % 8u;
    var own_seen: array<vec2<u32>, OWN>;
    var largest: array<f32, OWN>;
    var sum: array<f32, OWN>;
    var out: array<vec4<f32>, OWN * 2u * CHUNKS>;
    for (var o = 0u; o < OWN; o++) {
        own_seen[o] = seen_by(min(first + own + 16u * o, last) / share);
        largest[o] = LEAST;
        sum[o] = 0.0;
        for (var i = 0u; i < 2u * CHUNKS; i++) { out[o * 2u * CHUNKS + i] = vec4<f32>(); }
    }
    for (var chunk = 0u; chunk < HELD && HELD == CHUNKS; chunk++) {
        stage_queries(chunk, first, last, share, kv_head, head);
    }

    // Blocks start at multiples of their length, so that the order of a sum depends on positions alone.
    for (var block = from_row / KEYS * KEYS; block < end_row; block += KEYS) {
        var scores: array<vec4<f32>, OWN>;
        for (var o = 0u; o < OWN; o++) { scores[o] = vec4<f32>(); }
        for (var chunk = 0u; chunk < CHUNKS; chunk++) {
            if (HELD != CHUNKS) {
                stage_queries(chunk, first, last, share, kv_head, head);
            }
            for (var i = thread; i < KEYS * CHUNK; i += THREADS) {
                let row = block + i / CHUNK;
                var four = vec4<f32>();
                if (row >= from_row && row < end_row) {
                    let at = at_k(vec4<u32>(0u, row, kv_head, 0u));
                    four = k_four(at, (chunk * CHUNK + i % CHUNK) * 4u, head);
                }
                rows[i / CHUNK * PITCH + i % CHUNK] = four;
            }
            workgroupBarrier();
            var dots: array<vec4<f32>, OWN * 4u>;
            for (var i = 0u; i < OWN * 4u; i++) { dots[i] = vec4<f32>(); }
            for (var d = 0u; d < CHUNK; d++) {
                var keys: array<vec4<f32>, 4>;
                for (var i = 0u; i < 4u; i++) { keys[i] = rows[(part + 8u * i) * PITCH + d]; }
                for (var o = 0u; o < OWN; o++) {
                    let q = queries[(chunk % HELD * QUERIES + own + 16u * o) * PITCH + d];
                    for (var i = 0u; i < 4u; i++) { dots[o * 4u + i] = fma(q, keys[i], dots[o * 4u + i]); }
                }
            }
            for (var o = 0u; o < OWN; o++) {
                for (var i = 0u; i < 4u; i++) {
                    let d = dots[o * 4u + i];
                    scores[o][i] += (d.x + d.y) + (d.z + d.w);
                }
            }
            workgroupBarrier();
        }
        let cap = argf(2u);
        for (var o = 0u; o < OWN; o++) {
            for (var i = 0u; i < 4u; i++) {
                let key = part + 8u * i;
                var score = scores[o][i] * argf(0u);
                if (cap > 0.0) { score = soft_cap(score, cap); }
                let row = block + key;
                let hidden = row < own_seen[o].x || row >= own_seen[o].y;
                weights[(own + 16u * o) * (KEYS + 1u) + key] = select(score, LEAST, hidden);
            }
        }
        workgroupBarrier();
        var highest: array<f32, OWN>;
        for (var o = 0u; o < OWN; o++) {
            let at = (own + 16u * o) * (KEYS + 1u);
            highest[o] = largest[o];
            for (var key = 0u; key < KEYS; key++) { highest[o] = max(highest[o], weights[at + key]); }
        }
        workgroupBarrier();
        for (var o = 0u; o < OWN; o++) {
            for (var i = 0u; i < 4u; i++) {
                let at = (own + 16u * o) * (KEYS + 1u) + part + 8u * i;
                // A query that has seen nothing has no weights, though all differences are 0.
                weights[at] = select(exp_of(weights[at] - highest[o]), 0.0, weights[at] <= LEAST);
            }
            let shrink = exp_of(largest[o] - highest[o]);
            largest[o] = highest[o];
            sum[o] *= shrink;
            for (var i = 0u; i < 2u * CHUNKS; i++) { out[o * 2u * CHUNKS + i] *= shrink; }
        }
        workgroupBarrier();
        for (var o = 0u; o < OWN; o++) {
            let at = (own + 16u * o) * (KEYS + 1u);
            for (var key = 0u; key < KEYS; key++) { sum[o] += weights[at + key]; }
        }
        for (var chunk = 0u; chunk < CHUNKS; chunk++) {
            for (var i = thread; i < KEYS * CHUNK; i += THREADS) {
                let row = block + i / CHUNK;
                var four = vec4<f32>();
                if (row >= from_row && row < end_row) {
                    let at = at_v(vec4<u32>(0u, row, kv_head, 0u));
                    four = v_four(at, (chunk * CHUNK + i % CHUNK) * 4u, head);
                }
                rows[i / CHUNK * PITCH + i % CHUNK] = four;
            }
            workgroupBarrier();
            for (var key = 0u; key < KEYS; key++) {
                let near = rows[key * PITCH + part];
                let far = rows[key * PITCH + 8u + part];
                for (var o = 0u; o < OWN; o++) {
                    let weight = vec4<f32>(weights[(own + 16u * o) * (KEYS + 1u) + key]);
                    let at = o * 2u * CHUNKS + 2u * chunk;
                    out[at] = fma(weight, near, out[at]);
                    out[at + 1u] = fma(weight, far, out[at + 1u]);
                }
            }
            workgroupBarrier();
        }
    }
    for (var o = 0u; o < OWN; o++) {
        let query = first + own + 16u * o;
        if (query > last) { return; }
        let at = at_y(vec4<u32>(0u, query / share, kv_head * share + query % share, 0u));
        let divisor = select(1.0, sum[o], sum[o] != 0.0);
        for (var i = 0u; i < 2u * CHUNKS; i++) {
            let four = out[o * 2u * CHUNKS + i] / divisor;
            let d = (i * 8u + part) * 4u;
            for (var j = 0u; j < 4u; j++) {
                if (d + j < head) { put_y(at + d + j, four[j]); }
            }
        }
    }
}
