    let rows = ROWS;
    let down = (rows + TILE_T - 1u) / TILE_T;
    if (tile >= across * down) {
        return;
    }
    // Tiles that run at the same time share rows of weights and rows of activations: BAND tiles down, then to the right.
    let band = tile / (BAND * across);
    let height = min(BAND, down - band * BAND);
    let in_band = tile - band * BAND * across;
    let t0 = (band * BAND + in_band % height) * TILE_T;
    let n0 = in_band / height * TILE_N;
    let end = rows;
    let w_first = 0u;
