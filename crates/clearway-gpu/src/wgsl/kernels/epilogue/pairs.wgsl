// A pair of elements of a head to a team: TURNED of them turn, the others stay as they are.
fn pair_of(place: u32, team: u32) -> u32 { return (place * TEAMS + team) % (HEAD / 2u); }
fn head_of(place: u32, team: u32) -> u32 { return (place * TEAMS + team) / (HEAD / 2u); }
fn weight_row(place: u32, team: u32, r: u32) -> u32 {
    return head_of(place, team) * HEAD + element(pair_of(place, team), r);
}
fn has_row(place: u32, team: u32, r: u32) -> bool {
    return (place * TEAMS + team) * 2u < P.w.shape.z;
}
fn turn_early(place: u32, team: u32, t: u32, e: ptr<function, Early>) {
    (*e).position = get_positions(t);
    (*e).factor = get_factors(min(pair_of(place, team), TURNED - 1u));
}
// Sine and cosine.
fn prepare(place: u32, team: u32, e: ptr<function, Early>) {
    let pair = pair_of(place, team);
    (*e).turn = vec2<f32>(0.0, 1.0);
    if (pair < TURNED) {
        (*e).turn = angle_of(pair, (*e).position, (*e).factor);
    }
}
fn finish_team(t: u32, place: u32, team: u32, ends: ptr<function, Ends>, e: ptr<function, Early>, expert: Expert) {
    if (!has_row(place, team, 0u)) {
        return;
    }
    var a = (*ends).sums[0];
    var b = (*ends).sums[1];
    if (EXTRA) {
        a += (*e).extra[0];
        b += (*e).extra[1];
    }
    let pair = pair_of(place, team);
    let head = head_of(place, team);
    let turned = pair < TURNED;
    let turn = (*e).turn;
    store(t, head, element(pair, 0u), select(a, fma(a, turn.y, -(b * turn.x)), turned), (*e).row);
    store(t, head, element(pair, 1u), select(b, fma(a, turn.x, b * turn.y), turned), (*e).row);
}
