// Attention over blocks of a cache, which a table finds for each sequence.
// Constants: BLOCK, the rows of a block.
fn sequence_of(token: u32) -> u32 { return get_sequences(token); }

// Rows that a sequence can have.
fn rows_of(sequence: u32) -> u32 { return select(P.blocks.shape.w * BLOCK, 0u, sequence >= P.blocks.shape.z); }

// Where a row of a sequence lies in the cache.
fn cache_row(sequence: u32, row: u32) -> u32 {
    let block = get_blocks(sequence * P.blocks.stride.z + row / BLOCK);
    return min(block, P.k.shape.y / BLOCK - 1u) * BLOCK + row % BLOCK;
}

// One past the last token of those from `token` to `last` that belong to the same sequence.
fn run_end(token: u32, last: u32) -> u32 {
    let sequence = sequence_of(token);
    var next = token + 1u;
    while (next <= last) {
        if (sequence_of(next) != sequence) { break; }
        next++;
    }
    return next;
}
