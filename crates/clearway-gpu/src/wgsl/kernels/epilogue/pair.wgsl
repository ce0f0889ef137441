// An element of a pair of a head: TURNED pairs turn, the others stay as they are.
fn element(pair: u32, r: u32) -> u32 {
    return select(2u * pair + r, pair + r * TURNED, pair < TURNED && !NEIGHBOURS);
}
