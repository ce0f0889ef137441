// Ends a step of many sequences: the token that a slot chose becomes its next input.
// o0: the chosen ids; o1: the slot of each row; o2: the slots; o3: the blocks of each slot; o4 to o7: token, position,
// sequence and cache row of each row, for the next step; o8: what the host reads.
// A slot that stops, and one whose token the host chooses, writes nothing from then on.
// Written in front: NO_INDEX, SLOTS, WORDS, TOKEN, POSITION, END, STATE, STOPS, STOP, RUNNING, STOPPED, FAILED, BLOCK, RING.

@compute @workgroup_size(64)
fn main(@builtin(global_invocation_id) place: vec3<u32>) {
    let row = place.x;
    if (row >= P.o1.shape.w) { return; }
    let slot = get_o1(row);
    if (slot >= SLOTS) { return; }
    let at = slot * WORDS;
    if (get_o2(at + STATE) != RUNNING) { return; }
    let id = get_o0(row);
    var position = get_o2(at + POSITION);
    var state = RUNNING;
    put_o8(slot * RING + position % RING, id);
    if (id == NO_INDEX) {
        state = FAILED;
    } else {
        position += 1u;
        put_o2(at + TOKEN, id);
        put_o2(at + POSITION, position);
        if (position >= get_o2(at + END)) { state = ENDED; }
        let stops = min(get_o2(at + STOPS), WORDS - STOP);
        for (var i = 0u; i < stops; i++) {
            if (get_o2(at + STOP + i) == id) { state = STOPPED; }
        }
    }
    put_o2(at + STATE, state);
    put_o8(SLOTS * RING + 2u * slot, position);
    put_o8(SLOTS * RING + 2u * slot + 1u, state);
    if (state != RUNNING) {
        put_o6(row, NO_INDEX);
        put_o7(row, NO_INDEX);
        return;
    }
    put_o4(row, id);
    put_o5(row, position);
    let block = get_o3(slot * P.o3.shape.w + min(position / BLOCK, P.o3.shape.w - 1u));
    put_o7(row, block * BLOCK + position % BLOCK);
}
