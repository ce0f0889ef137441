fn weight_row(place: u32, team: u32, r: u32) -> u32 { return place * SPAN + r * TEAMS + team; }
fn has_row(place: u32, team: u32, r: u32) -> bool {
    let i = r * TEAMS + team;
    return i < SPAN && place * SPAN + i < P.w.shape.z;
}
fn turn_early(place: u32, team: u32, t: u32, e: ptr<function, Early>) {}
fn prepare(place: u32, team: u32, e: ptr<function, Early>) {}
fn finish_team(t: u32, place: u32, team: u32, ends: ptr<function, Ends>, e: ptr<function, Early>, expert: Expert) {
    //# for r in ROWS
    if (has_row(place, team, $ru)) {
        let n = weight_row(place, team, $ru);
        var extra = (*e).extra[$r];
        if (!LANE_EACH) {
            extra = extra_of(t, n);
        }
        finish(t, n, (*ends).sums[$r], (*ends).gates[$r], extra, (*e).row, expert);
    }
    //# end
}
