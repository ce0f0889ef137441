// The schedule on a canvas: columns of groups, boxes of dispatches, barriers between. Only what is in sight
// is drawn, so the cost of a frame depends on the window and not on the list.
const TOP = 22; // numbers of groups and marks of barriers
const MIN_SCALE_TEXT = 46;

class Lanes {
  constructor(canvas, overview, { select, hover }) {
    Object.assign(this, { canvas, overview, select, hover });
    this.x = 0; // page pixels left of the window
    this.scale = 40; // pixels of a column
    this.selected = null; // { kind: "dispatch" | "barrier", at }
    this.hits = null;
    this.paint = painter(() => { this.draw(); this.drawOverview(); });
    this.listen();
  }

  show(view) {
    this.view = view;
    this.selected = null;
    // Large enough to read; the strip below shows all of it.
    this.scale = Math.max(this.least, Math.min(124, Math.max(this.width / 8, 112)));
    this.move(0);
  }

  get width() { return this.canvas.clientWidth || 800; }
  get height() { return TOP + Math.max(130, Math.min(400, this.view.lanes * 64 + 10)); }
  get laneHeight() { return (this.height - TOP - 8) / this.view.lanes; }
  get least() { return Math.min(40, this.width / Math.max(1, this.view.groups)); }

  fit() { this.x = 0; this.scale = Math.max(this.least, 1e-4); this.paint(); }

  zoom(factor, at = this.width / 2) {
    const group = (this.x + at) / this.scale;
    this.scale = Math.min(220, Math.max(this.least, this.scale * factor));
    this.move(group * this.scale - at);
  }

  move(x) {
    const end = this.view.groups * this.scale + 8 - this.width;
    this.x = Math.max(0, Math.min(x, Math.max(0, end)));
    this.paint();
  }

  /** Brings a group into sight, large enough to read. */
  reveal(group) {
    if (this.scale < MIN_SCALE_TEXT) this.scale = 110;
    const left = group * this.scale;
    if (left < this.x + 40 || left + this.scale > this.x + this.width - 40) this.move(left - this.width / 2 + this.scale / 2);
    else this.paint();
  }

  draw() {
    const { view, scale } = this;
    const { ctx, width, height } = surface(this.canvas, this.height);
    Object.assign(this.canvas.dataset, { scale: String(scale), x: String(this.x), top: String(TOP) });
    const first = Math.max(0, Math.floor(this.x / scale));
    const last = Math.min(view.groups - 1, Math.floor((this.x + width) / scale));
    // Several groups in a pixel: one of them stands for all.
    const step = Math.max(1, Math.floor(1 / scale));
    ctx.font = FONT;
    ctx.textBaseline = "middle";
    // Under the boxes, so that words stay readable.
    this.drawFlow(ctx);
    for (let group = first - (first % step); group <= last; group += step) this.drawGroup(ctx, group);
    if (scale >= 5) this.drawBarriers(ctx, first, last, height);
    this.drawNumbers(ctx, first, last);
  }

  box(place) {
    const { view, scale, laneHeight } = this;
    const gap = scale > 12 ? Math.min(8, scale * 0.12) : 0;
    const pad = laneHeight > 8 ? 3 : 0;
    return {
      x: view.group[place] * scale - this.x + gap,
      y: TOP + 4 + view.lane[place] * laneHeight + pad / 2,
      w: Math.max(1, scale - 2 * gap),
      h: Math.max(1, laneHeight - pad),
    };
  }

  drawGroup(ctx, group) {
    const { view } = this;
    for (let place = view.starts[group]; place < view.starts[group + 1]; place += 1) {
      const row = view.row(place);
      const { x, y, w, h } = this.box(place);
      const faint = this.hits && !this.hits.has(place);
      ctx.globalAlpha = faint ? 0.22 : 1;
      ctx.fillStyle = palette[family(row.op)];
      if (w > 8 && h > 8) { ctx.beginPath(); ctx.roundRect(x, y, w, h, 3); ctx.fill(); } else ctx.fillRect(x, y, w, h);
      if (w >= MIN_SCALE_TEXT - 10 && h >= 13) this.drawWords(ctx, row, x, y, w, h);
      ctx.globalAlpha = 1;
      if (this.hits && this.hits.has(place)) this.outline(ctx, x, y, w, h, palette.ink, 1.5);
      if (this.selected && this.selected.kind === "dispatch" && this.selected.at === place) this.outline(ctx, x, y, w, h, palette.mark, 2.5);
    }
  }

  outline(ctx, x, y, w, h, colour, line) {
    ctx.strokeStyle = colour;
    ctx.lineWidth = line;
    ctx.strokeRect(x + 0.5, y + 0.5, Math.max(1, w - 1), Math.max(1, h - 1));
  }

  drawWords(ctx, row, x, y, w, h) {
    ctx.fillStyle = palette.boxInk;
    const dot = row.label.lastIndexOf(".");
    const lines = [row.op, row.label.slice(dot + 1), row.shape, this.costs(row)];
    const room = Math.max(1, Math.min(lines.length, Math.floor((h - 3) / 13)));
    const start = y + (h - room * 13) / 2 + 6.5;
    for (let line = 0; line < room; line += 1) fillCut(ctx, lines[line], x + 5, start + line * 13, w - 9);
  }

  costs(row) {
    const size = bytes(row.read_bytes + row.write_bytes);
    return row.serialised_ns === undefined ? size : `${size} · ${time(row.serialised_ns)}`;
  }

  drawBarriers(ctx, first, last, height) {
    for (const [group, at] of this.view.barrierAt) {
      if (group < first || group > last + 1) continue;
      const x = group * this.scale - this.x;
      const chosen = this.selected && this.selected.kind === "barrier" && this.selected.at === at;
      ctx.strokeStyle = chosen ? palette.mark : palette.line;
      ctx.lineWidth = chosen ? 2.5 : 1;
      ctx.beginPath(); ctx.moveTo(x, TOP - 4); ctx.lineTo(x, height); ctx.stroke();
      if (this.scale < 14) continue;
      ctx.fillStyle = chosen ? palette.mark : palette.quiet;
      ctx.beginPath(); ctx.moveTo(x, TOP - 12); ctx.lineTo(x + 4, TOP - 8); ctx.lineTo(x, TOP - 4); ctx.lineTo(x - 4, TOP - 8); ctx.fill();
    }
  }

  drawNumbers(ctx, first, last) {
    const every = [1, 2, 5, 10, 20, 50, 100, 200, 500, 1000, 2000, 5000, 10000].find((n) => n * this.scale >= 44) || 20000;
    ctx.fillStyle = palette.quiet;
    ctx.textAlign = "center";
    for (let group = first - (first % every); group <= last; group += every) {
      const x = (group + 0.5) * this.scale - this.x;
      if (x > 12) ctx.fillText(String(group), x, 9);
    }
    ctx.textAlign = "left";
  }

  /** Lines from what the chosen dispatch waits for, and to what waits for it. */
  drawFlow(ctx) {
    if (!this.selected || this.selected.kind !== "dispatch") return;
    const { before, after } = this.neighbours(this.selected.at);
    const own = this.box(this.selected.at);
    const line = (from, to) => {
      const [x0, y0, x1, y1] = [from.x + from.w, from.y + from.h / 2, to.x, to.y + to.h / 2];
      const bend = Math.max(12, Math.min(60, Math.abs(x1 - x0) / 2));
      ctx.beginPath(); ctx.moveTo(x0, y0); ctx.bezierCurveTo(x0 + bend, y0, x1 - bend, y1, x1, y1); ctx.stroke();
    };
    ctx.strokeStyle = palette.mark;
    ctx.lineWidth = 1.5;
    for (const place of before) line(this.box(place), own);
    for (const place of after) line(own, this.box(place));
  }

  /** Places of the dispatches a place waits for, and of those that wait for it. */
  neighbours(place) {
    const { view } = this;
    const index = view.order[place];
    if (view.rows !== report.dispatch_list) return { before: [], after: [] };
    const places = (rows) => rows.map((row) => view.placeOf.get(row)).filter((found) => found !== undefined);
    return { before: places(view.rows[index].after), after: places(waiting[index]) };
  }

  drawOverview() {
    const { view } = this;
    const { ctx, width, height } = surface(this.overview, 44);
    const bars = Math.min(width, view.groups);
    let most = 0;
    const sums = new Float64Array(Math.max(1, Math.floor(bars)));
    for (let group = 0; group < view.groups; group += 1) {
      const at = Math.min(sums.length - 1, Math.floor((group * sums.length) / view.groups));
      sums[at] = Math.max(sums[at], view.groupNs[group]);
      most = Math.max(most, view.groupNs[group]);
    }
    ctx.fillStyle = palette.other;
    const w = width / sums.length;
    for (let at = 0; at < sums.length; at += 1) {
      // Square root: one long group must not hide all the others.
      const h = most > 0 ? Math.max(1, (height - 8) * Math.sqrt(sums[at] / most)) : 1;
      ctx.fillRect(at * w, height - h, Math.max(0.5, w - (w > 3 ? 1 : 0)), h);
    }
    const all = view.groups * this.scale;
    const [left, span] = [(this.x / all) * width, Math.min(1, this.width / all) * width];
    ctx.fillStyle = palette.accent;
    ctx.globalAlpha = 0.16;
    ctx.fillRect(left, 0, span, height);
    ctx.globalAlpha = 1;
    ctx.strokeStyle = palette.accent;
    ctx.strokeRect(left + 0.5, 0.5, Math.max(2, span - 1), height - 1);
  }

  /** What lies under a point of the canvas. */
  at(x, y) {
    const { view, scale } = this;
    const edge = Math.round((x + this.x) / scale);
    const near = Math.abs(edge * scale - this.x - x) <= (y < TOP ? Math.max(8, scale / 2) : Math.min(5, scale / 6));
    if (near && view.barrierAt.has(edge)) return { kind: "barrier", at: view.barrierAt.get(edge) };
    const group = Math.floor((x + this.x) / scale);
    if (group < 0 || group >= view.groups || y < TOP) return null;
    const lane = Math.floor((y - TOP - 4) / this.laneHeight);
    for (let place = view.starts[group]; place < view.starts[group + 1]; place += 1) {
      if (view.lane[place] === lane) return { kind: "dispatch", at: place };
    }
    return null;
  }

  listen() {
    let drag = null;
    const { canvas, overview } = this;
    canvas.addEventListener("pointerdown", (event) => { drag = { from: event.clientX, x: this.x, moved: false }; canvas.setPointerCapture(event.pointerId); });
    canvas.addEventListener("pointermove", (event) => {
      if (drag) {
        const by = event.clientX - drag.from;
        if (Math.abs(by) > 3) drag.moved = true;
        if (drag.moved) { canvas.style.cursor = "grabbing"; tip.hide(); this.move(drag.x - by); }
        return;
      }
      const found = this.at(event.offsetX, event.offsetY);
      canvas.style.cursor = found ? "pointer" : "grab";
      if (found) tip.show(this.hover(found), event); else tip.hide();
    });
    canvas.addEventListener("pointerup", (event) => {
      const clicked = drag && !drag.moved;
      drag = null;
      canvas.style.cursor = "grab";
      const found = clicked && this.at(event.offsetX, event.offsetY);
      if (found) this.select(found);
    });
    canvas.addEventListener("pointercancel", () => { drag = null; });
    canvas.addEventListener("pointerleave", () => tip.hide());
    canvas.addEventListener("wheel", (event) => {
      const sideways = Math.abs(event.deltaX) > Math.abs(event.deltaY) ? event.deltaX : event.shiftKey ? event.deltaY : 0;
      if (event.ctrlKey || event.metaKey) { event.preventDefault(); this.zoom(Math.exp(-event.deltaY / 240), event.offsetX); }
      else if (sideways) { event.preventDefault(); this.move(this.x + sideways); }
    }, { passive: false });
    const jump = (event) => this.move((event.offsetX / overview.clientWidth) * this.view.groups * this.scale - this.width / 2);
    overview.addEventListener("pointerdown", (event) => { overview.setPointerCapture(event.pointerId); jump(event); });
    overview.addEventListener("pointermove", (event) => { if (event.buttons) jump(event); });
  }
}

/** For each dispatch of the compiled list those that wait for it. */
const waiting = report.dispatch_list.map(() => []);
report.dispatch_list.forEach((row, index) => row.after.forEach((pred) => waiting[pred].push(index)));
