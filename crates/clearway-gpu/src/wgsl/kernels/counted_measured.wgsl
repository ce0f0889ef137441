
// As `counted.wgsl`, and each workgroup notes when it started, how long it waited and when it was done (`vulkan/measured.rs`).
//
// Two more words of `b_counters`: 2 is where the notes begin, 3 is subtracted from every time. A step has a line of notes; its number
// is in the low bits of the counters, which are whole lines apart. The sum of `NOTE_CLOCK` stands for the device's clock
// (`vulkan/spirv/clock.rs`).
const COUNTED = true;
const NOTE_CLOCK = vec2<u32>(0x636c6f63u, 0x6b3a2d29u);
const NOTE_LINE = 31u;

var<private> note_started: u32;
var<private> note_asked: u32;
var<private> note_released: u32;
var<private> note_looked: u32;

fn note_now() -> u32 {
    return subgroupAdd(NOTE_CLOCK).x - atomicLoad(&b_counters[3]);
}

fn wait_for_inputs(lid: u32, group: vec3<u32>, word: u32) {
    if (lid == 0u) {
        let sync = sync_words();
        let wait = sync.x & ~NOTE_LINE;
        let reset = sync.w & ~NOTE_LINE;
        note_asked = note_now();
        var found = atomicLoad(&b_counters[wait]);
        var polls = 1u;
        for (; found < sync.y; polls++) {
            if (polls % 64u == 0u && (atomicLoad(&b_counters[0]) != 0u || polls > atomicLoad(&b_counters[1]) - (word & 1u))) {
                break;
            }
            found = atomicLoad(&b_counters[wait]);
        }
        note_looked = polls - 1u;
        note_released = note_now();
        if (found < sync.y) {
            atomicStore(&b_counters[0], 1u);
            atomicStore(&b_fault[0], 1u);
        }
        if (reset != 0u && all(group == vec3<u32>())) {
            atomicStore(&b_counters[reset], 0u);
        }
    }
    workgroupBarrier();
}

fn count_done(lid: u32, group: vec3<u32>) {
    workgroupBarrier();
    if (lid == 0u) {
        let sync = sync_words();
        let done = note_now();
        let add = sync.z & ~NOTE_LINE;
        if (add != 0u) {
            subgroupBarrier();
            atomicAdd(&b_counters[add], 1u);
        }
        // Nobody waits for the notes.
        let step = (sync.x & NOTE_LINE) | ((sync.z & NOTE_LINE) << 5u) | ((sync.w & NOTE_LINE) << 10u);
        let at = atomicLoad(&b_counters[2]) + (NOTE_LINE + 1u) * step;
        atomicMin(&b_counters[at], note_started);
        atomicMax(&b_counters[at + 1u], note_started);
        atomicMax(&b_counters[at + 2u], done);
        if (all(group == vec3<u32>())) {
            atomicStore(&b_counters[at + 3u], note_started);
        }
        if (note_looked > 0u) {
            let waited = note_released - note_asked;
            atomicMin(&b_counters[at + 4u], note_released);
            atomicMax(&b_counters[at + 5u], waited);
            let low = atomicAdd(&b_counters[at + 6u], waited);
            if (low + waited < low) {
                atomicAdd(&b_counters[at + 7u], 1u);
            }
            atomicAdd(&b_counters[at + 8u], 1u);
            atomicAdd(&b_counters[at + 9u], note_looked);
            atomicMax(&b_counters[at + 10u], note_looked);
        }
    }
}

@compute @workgroup_size(WG)
fn main(@builtin(local_invocation_index) lid: u32, @builtin(workgroup_id) group: vec3<u32>) {
    if (lid == 0u) {
        note_started = note_now();
    }
    work(lid, group);
    count_done(lid, group);
}
