
// Barriers keep this dispatch apart from others.
const COUNTED = false;
fn wait_for_inputs(lid: u32, group: vec3<u32>, word: u32) {}

@compute @workgroup_size(WG)
fn main(@builtin(local_invocation_index) lid: u32, @builtin(workgroup_id) group: vec3<u32>) {
    work(lid, group);
}
