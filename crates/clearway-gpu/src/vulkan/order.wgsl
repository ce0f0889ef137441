// Each number becomes that of another place, and one more. Workgroups take unevenly long.
struct Params { sizes: vec4<u32>, sync: vec4<u32> }
@group(0) @binding(0) @coherent var<storage, read> source: array<u32>;
@group(0) @binding(1) @coherent var<storage, read_write> target_numbers: array<u32>;
@group(0) @binding(2) var<storage, read_write> b_counters: array<atomic<u32>>;
@group(0) @binding(3) var<storage, read_write> b_fault: array<atomic<u32>>;
@group(0) @binding(4) var<uniform> params: Params;

const WG = 128u;
fn sync_words() -> vec4<u32> { return params.sync; }

fn work(lid: u32, group: vec3<u32>) {
    wait_for_inputs(lid, group, 0u);
    let workgroups = params.sizes.x;
    let numbers = params.sizes.y;
    var busy = group.x * 747796405u + 2891336453u;
    for (var i = 0u; i < busy % 97u; i++) {
        busy = busy * 1664525u + 1013904223u - busy % 97u;
    }
    for (var i = group.x * WG + lid; i < numbers; i += workgroups * WG) {
        // `busy` is never 1 and even at once, which no compiler knows.
        let more = select(1u, 2u, (busy & 3u) == 1u && (busy & 1u) == 0u);
        target_numbers[i] = source[(i * 8191u + 77u) % numbers] + more;
    }
}
