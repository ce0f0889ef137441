// Attention of many tokens whose rows are those of one workgroup.

//# piece part
fn first_block(split: u32, turns: u32, row: u32) -> u32 { return row / KEYS * KEYS; }
fn next_block(block: u32, turns: u32) -> u32 { return block + KEYS; }

//# piece finish
    let factor = factor_of(weight, reference, kv_head * SHARE + query % SHARE);
    let at = query / SHARE * P.y.stride.y + (kv_head * SHARE + query % SHARE) * P.y.stride.z;
    //# for d in HEAD_TILES
    subgroupBarrier();
    coopStoreT(sum$d, &scores[mine], SCORE_ROW);
    subgroupBarrier();
    if (exists) {
        y_eight(at + 16u * $du + 8u * half, scores[own + 2u * half] * factor, scores[own + 2u * half + 1u] * factor);
    }
    //# end
