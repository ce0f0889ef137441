// The best elements of a long row, some hundred at a time. The worst of them is found byte by byte,
// first of its key, then of its index, whose complement rises as the order wants it; each byte takes a
// count of all elements that agree so far. Those from it on are collected and ranked.
var<workgroup> counts: array<atomic<u32>, 256>;
var<workgroup> found_keys: array<u32, CAPACITY>;
var<workgroup> found_ids: array<u32, CAPACITY>;
var<workgroup> found_count: atomic<u32>;
var<workgroup> picked_byte: u32;
var<workgroup> picked_above: u32;
var<workgroup> last_key: u32;
var<workgroup> last_id: u32;

fn is_before(key: u32, id: u32, other_key: u32, other_id: u32) -> bool {
    return key > other_key || (key == other_key && id < other_id);
}

fn choose(start: u32, cols: u32, wanted: u32) {
    var done = 0u;
    // What was chosen last: everything comes after this.
    var key_bound = 0xffffffffu;
    var id_bound = 0u;
    while (done < wanted) {
        let some = min(wanted - done, CAPACITY);
        var missing = some;
        var worst_key = 0u;
        var worst_rest = 0u; // complement of the index
        for (var level = 0u; level < 8u; level++) {
            let shift = 24u - level % 4u * 8u;
            for (var i = thread; i < 256u; i += WIDTH) { atomicStore(&counts[i], 0u); }
            workgroupBarrier();
            // Bits above the byte, in the key or in the index.
            let above = select(~((2u << (shift + 7u)) - 1u), 0u, shift == 24u);
            for (var col = thread; col < cols; col += WIDTH) {
                let key = key_of(get_input(start + col));
                var agrees = is_before(key_bound, id_bound, key, col);
                if (level < 4u) {
                    agrees = agrees && ((key ^ worst_key) & above) == 0u;
                } else {
                    agrees = agrees && key == worst_key && ((~col ^ worst_rest) & above) == 0u;
                }
                if (agrees) { atomicAdd(&counts[(select(~col, key, level < 4u) >> shift) & 255u], 1u); }
            }
            workgroupBarrier();
            for (var i = thread; i < 256u; i += WIDTH) {
                var more = 0u;
                for (var j = i + 1u; j < 256u; j++) { more += atomicLoad(&counts[j]); }
                if (more < missing && more + atomicLoad(&counts[i]) >= missing) {
                    picked_byte = i;
                    picked_above = more;
                }
            }
            workgroupBarrier();
            missing -= picked_above;
            if (level < 4u) {
                worst_key |= picked_byte << shift;
            } else {
                worst_rest |= picked_byte << shift;
            }
        }
        if (thread == 0u) { atomicStore(&found_count, 0u); }
        workgroupBarrier();
        for (var col = thread; col < cols; col += WIDTH) {
            let key = key_of(get_input(start + col));
            let worse = is_before(worst_key, ~worst_rest, key, col);
            if (!worse && is_before(key_bound, id_bound, key, col)) {
                let slot = min(atomicAdd(&found_count, 1u), CAPACITY - 1u);
                found_keys[slot] = key;
                found_ids[slot] = col;
            }
        }
        workgroupBarrier();
        for (var i = thread; i < some; i += WIDTH) {
            let key = found_keys[i];
            let place = found_ids[i];
            var rank = 0u;
            for (var j = 0u; j < some; j++) {
                rank += select(0u, 1u, is_before(found_keys[j], found_ids[j], key, place));
            }
            put_choice(done + rank, place, get_input(start + place));
            if (rank == some - 1u) {
                last_key = key;
                last_id = place;
            }
        }
        workgroupBarrier();
        key_bound = last_key;
        id_bound = last_id;
        done += some;
    }
}
