// Groups are chosen by the scores of their best experts, then experts among those of the chosen groups. Softmaxes choose by
// logits, sigmoids by themselves plus a bias.
var<workgroup> keys: array<u32, CAPACITY>;
var<workgroup> scores: array<f32, CAPACITY>;
var<workgroup> group_keys: array<u32, CAPACITY>;

@compute @workgroup_size(WIDTH)
fn main(
    @builtin(local_invocation_index) index: u32,
    @builtin(workgroup_id) id: vec3<u32>,
    @builtin(num_workgroups) count: vec3<u32>,
    @builtin(subgroup_invocation_id) lane_id: u32,
    @builtin(subgroup_id) subgroup_id: u32,
    @builtin(num_subgroups) subgroup_count: u32,
) {
    enter(index, id, count);
    enter_subgroups(lane_id, subgroup_id, subgroup_count);
    if (group >= P.logits.shape.z) { return; }
    let row = group;
    let start = row_logits(row);
    let ids = row_ids(row);
    let cols = P.logits.shape.w;
    let used = P.ids.shape.w;
    let groups = arg(3u);
    let size = cols / groups;
    for (var col = thread; col < cols; col += WIDTH) {
        let logit = get_logits(start + col);
        var score = logit;
        if (arg(0u) == 2u) { score = sigmoid(logit) + bias_of(col); }
        scores[col] = score;
        keys[col] = key_of(score);
    }
    workgroupBarrier();
    for (var g = thread; g < groups; g += WIDTH) { group_keys[g] = key_of(score_of_group(g * size, size)); }
    workgroupBarrier();
    for (var col = thread; col < cols; col += WIDTH) {
        if (is_open(col / size, groups)) {
            // Each expert counts those before it, which is its place in the order.
            let own = keys[col];
            var rank = 0u;
            for (var g = 0u; g < groups; g++) {
                if (is_open(g, groups)) {
                    for (var other = g * size; other < (g + 1u) * size; other++) {
                        let before = keys[other] > own || (keys[other] == own && other < col);
                        rank += select(0u, 1u, before);
                    }
                }
            }
            if (rank < used) { put_ids(ids + rank, col); }
        }
    }
    storageBarrier();
    workgroupBarrier();
    weigh(row, start, ids, cols, used);
}

// The best score of a group, or the sum of the best two.
fn score_of_group(first: u32, size: u32) -> f32 {
    var best = first;
    for (var i = first + 1u; i < first + size; i++) {
        if (keys[i] > keys[best]) { best = i; }
    }
    if (arg(5u) < 2u) { return scores[best]; }
    var second = select(first, first + 1u, best == first);
    for (var i = second + 1u; i < first + size; i++) {
        if (i != best && keys[i] > keys[second]) { second = i; }
    }
    return scores[best] + scores[second];
}

// Whether fewer groups than are used are before a group.
fn is_open(g: u32, groups: u32) -> bool {
    var before = 0u;
    for (var other = 0u; other < groups; other++) {
        let is_before = group_keys[other] > group_keys[g] || (group_keys[other] == group_keys[g] && other < g);
        before += select(0u, 1u, is_before);
    }
    return before < arg(4u);
}
