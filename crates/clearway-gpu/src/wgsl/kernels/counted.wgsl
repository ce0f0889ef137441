
// A barrier in front of this dispatch and one behind it, as counters (`lowering/waits.rs`).
//
// Words of `b_counters`: 0 is not zero once a workgroup has waited in vain, and then nobody waits for long; 1 is how
// often to look; then the counters. `subgroupBarrier` stands for a fence of one invocation (`vulkan/spirv/fences.rs`).
const COUNTED = true;

// `word` depends on all weights that were asked for: without a use here the compiler asks for them after the wait.
fn wait_for_inputs(lid: u32, group: vec3<u32>, word: u32) {
    if (lid == 0u) {
        let sync = sync_words();
        var found = atomicLoad(&b_counters[sync.x]);
        for (var polls = 1u; found < sync.y; polls++) {
            if (polls % 64u == 0u && (atomicLoad(&b_counters[0]) != 0u || polls > atomicLoad(&b_counters[1]) - (word & 1u))) {
                break;
            }
            found = atomicLoad(&b_counters[sync.x]);
        }
        // However the loop ended: some drivers end long ones themselves.
        if (found < sync.y) {
            atomicStore(&b_counters[0], 1u);
            atomicStore(&b_fault[0], 1u);
        }
        // All that waited for that counter are done.
        if (sync.w != 0u && all(group == vec3<u32>())) {
            atomicStore(&b_counters[sync.w], 0u);
        }
    }
    // What the list writes is read through coherent bindings, so nothing has to be made visible.
    workgroupBarrier();
}

fn count_done(lid: u32) {
    workgroupBarrier();
    if (lid == 0u) {
        let sync = sync_words();
        if (sync.z != 0u) {
            subgroupBarrier();
            atomicAdd(&b_counters[sync.z], 1u);
        }
    }
}

@compute @workgroup_size(WG)
fn main(@builtin(local_invocation_index) lid: u32, @builtin(workgroup_id) group: vec3<u32>) {
    work(lid, group);
    count_done(lid);
}
