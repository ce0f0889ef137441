// The best elements of a long row, found by SPLITS workgroups.
//
// A row is cut into sets of SET elements, one to an invocation. The best WANTED elements lie in the WANTED sets whose own best are
// first in the order: an element of another set comes behind all of those. Each workgroup finds the best of its sets. The one
// that arrives last looks for a bound that hardly more than WANTED of them reach, bit by bit, first of the key, then of the place,
// whose complement rises as the order wants it. It reads those sets again, keeps the elements that reach the bound's key, and
// ranks them.
// Constants: WIDTH, SPLITS, SET, SPAN (elements of a workgroup), KEPT (sets of an invocation), WANTED, MOST_SETS.
const SETS = SPLITS * WIDTH;
// Sets at which the search ends: a closer bound costs more than a few elements more.
const ENOUGH = min(WANTED + WANTED / 4u, MOST_SETS);
// Invocations that share the comparisons of an element.
const RANKERS = 16u;

var<workgroup> reached: array<atomic<u32>, 64>;
var<workgroup> chosen_sets: array<u32, MOST_SETS>;
var<workgroup> chosen_count: atomic<u32>;
var<workgroup> found_keys: array<u32, MOST_SETS * SET>;
var<workgroup> found_ids: array<u32, MOST_SETS * SET>;
var<workgroup> found_ranks: array<atomic<u32>, MOST_SETS * SET>;
var<workgroup> found_count: atomic<u32>;
var<workgroup> largest_key: atomic<u32>;
var<workgroup> is_last: u32;
var<private> lane: u32;

// Element `i` of a set.
fn element_of(chosen: u32, i: u32) -> u32 {
    return chosen / WIDTH * SPAN + i * WIDTH + chosen % WIDTH;
}

// How many sets reach a bound, for all invocations. Each bit has a counter of its own, so one barrier is enough.
fn count_sets(own: u32, bit: u32) -> u32 {
    let some = subgroupAdd(own);
    if (lane == 0u && some > 0u) { atomicAdd(&reached[bit], some); }
    workgroupBarrier();
    return atomicLoad(&reached[bit]);
}

@compute @workgroup_size(WIDTH)
fn main(
    @builtin(local_invocation_index) index: u32,
    @builtin(workgroup_id) id: vec3<u32>,
    @builtin(num_workgroups) count: vec3<u32>,
    @builtin(subgroup_invocation_id) lane_id: u32,
) {
    enter(index, id, count);
    lane = lane_id;
    let row = group / SPLITS;
    let split = group % SPLITS;
    if (row >= P.x.shape.z) { return; }
    let start = row_x(row);
    let cols = P.x.shape.w;

    // The best of the own set; one without elements has key 0, which no element has.
    var best = vec2<u32>();
    for (var some = 0u; some < SET; some += 8u) {
        var keys: array<u32, 8>; // all loads under way before the first is looked at
        for (var i = 0u; i < 8u; i++) {
            let col = element_of(split * WIDTH + thread, some + i);
            keys[i] = select(0u, key_of(get_x(start + min(col, cols - 1u))), col < cols);
        }
        for (var i = 0u; i < 8u; i++) {
            if (keys[i] > best.x) { best = vec2<u32>(keys[i], element_of(split * WIDTH + thread, some + i)); }
        }
    }
    let sets = row * 2u * SETS;
    b_scratch[sets + split * WIDTH + thread] = best.x;
    b_scratch[sets + SETS + split * WIDTH + thread] = best.y;
    storageBarrier();
    if (thread == 0u) { is_last = u32(atomicAdd(&b_tickets[row], 1u) == SPLITS - 1u); }
    workgroupBarrier();
    if (is_last == 0u) { return; }
    storageBarrier();

    var keys: array<u32, KEPT>;
    var largest = 0u;
    for (var i = 0u; i < KEPT; i++) { keys[i] = b_scratch[sets + i * WIDTH + thread]; }
    for (var i = 0u; i < KEPT; i++) { largest = max(largest, keys[i]); }
    for (var i = thread; i < 64u; i += WIDTH) { atomicStore(&reached[i], 0u); }
    if (thread == 0u) {
        atomicStore(&largest_key, 0u);
        atomicStore(&chosen_count, 0u);
        atomicStore(&found_count, 0u);
    }
    workgroupBarrier();
    largest = subgroupMax(largest);
    if (lane == 0u) { atomicMax(&largest_key, largest); }
    workgroupBarrier();
    largest = atomicLoad(&largest_key);
    var key_bound = 0u;
    var rest_bound = 0u; // complement of the place
    var number = SETS;
    for (var bit = 0u; bit < 64u && number > ENOUGH; bit++) {
        var own = 0u;
        let step = 1u << (31u - bit % 32u);
        // Nobody reaches that.
        if (bit < 32u && (key_bound | step) > largest) { continue; }
        if (bit < 32u) {
            for (var i = 0u; i < KEPT; i++) { own += u32(keys[i] >= (key_bound | step)); }
        } else {
            // Many sets with the same best key.
            for (var i = 0u; i < KEPT; i++) {
                let rest = ~b_scratch[sets + SETS + i * WIDTH + thread];
                own += u32(keys[i] > key_bound || (keys[i] == key_bound && rest >= (rest_bound | step)));
            }
        }
        let more = count_sets(own, bit);
        if (more >= WANTED) {
            number = more;
            if (bit < 32u) { key_bound |= step; } else { rest_bound |= step; }
        }
    }
    for (var i = 0u; i < KEPT; i++) {
        if (keys[i] >= key_bound) {
            let rest = ~b_scratch[sets + SETS + i * WIDTH + thread];
            if (keys[i] > key_bound || rest >= rest_bound) {
                chosen_sets[min(atomicAdd(&chosen_count, 1u), MOST_SETS - 1u)] = i * WIDTH + thread;
            }
        }
    }
    workgroupBarrier();
    let elements = min(atomicLoad(&chosen_count), MOST_SETS) * SET;
    for (var i = thread; i < elements; i += WIDTH) {
        let col = element_of(chosen_sets[i / SET], i % SET);
        if (col < cols) {
            let key = key_of(get_x(start + col));
            if (key >= key_bound) {
                let slot = atomicAdd(&found_count, 1u);
                found_keys[slot] = key;
                found_ids[slot] = col;
                atomicStore(&found_ranks[slot], 0u);
            }
        }
    }
    workgroupBarrier();
    let found = atomicLoad(&found_count);
    for (var i = thread / RANKERS; i < found; i += WIDTH / RANKERS) {
        let key = found_keys[i];
        let col = found_ids[i];
        var before = 0u;
        for (var j = thread % RANKERS; j < found; j += RANKERS) {
            before += u32(found_keys[j] > key || (found_keys[j] == key && found_ids[j] < col));
        }
        if (before > 0u) { atomicAdd(&found_ranks[i], before); }
    }
    workgroupBarrier();
    for (var i = thread; i < found; i += WIDTH) {
        let rank = atomicLoad(&found_ranks[i]);
        if (rank < WANTED) {
            put_values(row_values(row) + rank, get_x(start + found_ids[i]));
            put_ids(row_ids(row) + rank, found_ids[i]);
        }
    }
    if (thread == 0u) { atomicStore(&b_tickets[row], 0u); }
}
