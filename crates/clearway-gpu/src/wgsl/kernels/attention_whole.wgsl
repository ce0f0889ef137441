// Attention over a cache that is one sequence: its rows are the cache's.
fn sequence_of(token: u32) -> u32 { return 0u; }

// Rows that a sequence can have.
fn rows_of(sequence: u32) -> u32 { return P.k.shape.y; }

// Where a row of a sequence lies in the cache.
fn cache_row(sequence: u32, row: u32) -> u32 { return row; }

// One past the last token of those from `token` to `last` that belong to the same sequence.
fn run_end(token: u32, last: u32) -> u32 { return last + 1u; }
