@group(0) @binding(0) var<storage, read> weights: array<u32>;
@group(0) @binding(1) var<storage, read_write> sink: array<u32>;
// First word, sectors.
@group(0) @binding(2) var<uniform> part: vec4<u32>;

@compute @workgroup_size(256)
fn main(@builtin(local_invocation_index) lid: u32, @builtin(workgroup_id) group: vec3<u32>) {
    var seen = 0u;
    for (var k = 0u; k < 4u; k++) {
        let sector = group.x * 1024u + k * 256u + lid;
        if (sector < part.y) {
            seen ^= weights[part.x + sector * 8u];
        }
    }
    if (seen == 0x7e3a91c5u) {
        sink[0] = seen;
    }
}
