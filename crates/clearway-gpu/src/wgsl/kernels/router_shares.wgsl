// Weights of the experts that were chosen for a row: `ids` is where their numbers begin, the largest logit first where
// weights are a softmax.
fn weigh(row: u32, start: u32, ids: u32, cols: u32, used: u32) {
    let mode = arg(0u);
    let largest = max(LEAST, get_logits(start + get_ids(ids)));
    var part = 0.0;
    if (mode == 0u) {
        for (var col = thread; col < cols; col += WIDTH) {
            part += exp_of(get_logits(start + col) - largest);
        }
    } else if (mode == 1u) {
        for (var slot = thread; slot < used; slot += WIDTH) {
            part += exp_of(get_logits(start + get_ids(ids + slot)) - largest);
        }
    }
    let all = sum_of_all(part);
    // A comparison with NaN is false either way, and a sum that is NaN must stay one.
    let divisor = select(all, 1.0, all == 0.0);
    part = 0.0;
    for (var slot = thread; slot < used; slot += WIDTH) {
        part += share(start, ids + slot, mode, largest, divisor);
    }
    let chosen = sum_of_all(part);
    // Weights that are all 0 are not scaled to sum to 1.
    let whole = select(1.0, chosen, arg(1u) == 1u && !(chosen == 0.0));
    for (var slot = thread; slot < used; slot += WIDTH) {
        let weight = share(start, ids + slot, mode, largest, divisor);
        put_weights(row_weights(row) + slot, weight / whole * argf(2u));
    }
}

// Weight of the expert in a slot, before it is scaled.
fn share(start: u32, slot: u32, mode: u32, largest: f32, divisor: f32) -> f32 {
    let logit = get_logits(start + get_ids(slot));
    if (mode == 2u) { return sigmoid(logit); }
    return exp_of(logit - largest) / divisor;
}
