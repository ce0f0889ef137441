// Ends a step. o0: the chosen id; o1: the input token; o2: the position; o3: the ring that the host reads.
// A step that chose no token leaves token and position as they are: the steps behind it compute the same
// step again and choose none either, so no cache row after it is written.
// NO_INDEX is written in front.

@compute @workgroup_size(1)
fn main() {
    let id = get_o0(0u);
    let position = get_o2(0u);
    put_o3(position % P.o3.shape.w, id);
    if (id == NO_INDEX) { return; }
    put_o2(0u, position + 1u);
    put_o1(0u, id);
}
