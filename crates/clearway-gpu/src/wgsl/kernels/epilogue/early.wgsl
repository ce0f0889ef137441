// What a team can ask for before it has anything to compute, so that it need not wait for it at the end: for the
// row of activations whose sums a lane will finish. `prepare` computes with it while weights are under way.
struct Ends { sums: array<f32, ROWS>, gates: array<f32, ROWS> }
struct Early { extra: array<f32, ROWS>, row: u32, position: u32, factor: f32, turn: vec2<f32> }
// Whether each row of activations has a lane.
const LANE_EACH = COLS <= TEAM;
fn early(place: u32, team: u32, lane: u32) -> Early {
    let t = min(lane, COLS - 1u);
    var e: Early;
    //# for r in ROWS
    if (EXTRA && LANE_EACH && has_row(place, team, $ru)) {
        e.extra[$r] = extra_of(t, weight_row(place, team, $ru));
    }
    //# end
    e.row = cache_row(t);
    turn_early(place, team, t, &e);
    return e;
}
