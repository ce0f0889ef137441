// Rows of its sequence that a token sees: from, and one past the last.
fn seen_by(token: u32) -> vec2<u32> {
    let position = get_positions(token);
    let window = arg(1u);
    let rows = rows_of(sequence_of(token));
    let end = select(rows, position + 1u, position < rows);
    return vec2<u32>(select(0u, position - window + 1u, window > 0u && position >= window), end);
}
