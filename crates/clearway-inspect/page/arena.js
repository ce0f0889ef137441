// The arena over time.
const ARENA_HEIGHT = 320;

const arena = {
  start() {
    this.canvas = $("arena");
    this.paint = painter(() => this.draw());
    this.listen();
    this.table = new Table($("value-table"), "Values of the arena", [
      { title: "Value", text: (v) => `%${v.id}`, key: (v) => v.id },
      { title: "Made by", name: true, text: (v) => short(v.name) || (v.input ? "the host" : ""), key: (v) => v.name },
      { title: "Bytes", num: true, text: (v) => bytes(v.bytes), key: (v) => v.bytes },
      { title: "Offset", num: true, text: (v) => count(v.offset), key: (v) => v.offset },
      { title: "First group", num: true, text: (v) => count(v.first), key: (v) => v.first },
      { title: "Last group", num: true, text: (v) => count(v.last), key: (v) => v.last },
    ], { pick: (value) => this.select(value) });
    this.show("compiled");
  },

  show(key) {
    this.view = views.get(key);
    this.selected = this.hover = null;
    // Large values below, so that small ones drawn later stay visible and are found first.
    this.order = [...this.view.values].sort((a, b) => b.bytes * (b.last - b.first + 1) - a.bytes * (a.last - a.first + 1));
    this.byLife = [...this.view.values].sort((a, b) => a.first - b.first || a.offset - b.offset);
    this.live = this.liveBytes();
    this.fit();
    this.peak = this.live.reduce((best, size, at) => (size > this.live[best] ? at : best), 0);
    this.table.show(this.byLife);
    const { summary } = this.view;
    const spare = summary.arena_bytes - summary.arena_lower_bound;
    const facts = [
      `${this.view.title}: ${bytes(summary.arena_bytes)} in ${plural(this.view.slabs.length, "slab")} for ${plural(this.view.values.length, "value")}.`,
      spare === 0 ? "That is the lower bound: no arena for these groups is smaller." : `The lower bound is ${bytes(summary.arena_lower_bound)}.`,
      this.live.length > 0 ? `Peak: ${bytes(this.live[this.peak])} in use in group ${count(this.peak)}.` : "",
    ];
    $("arena-facts").textContent = facts.join(" ");
    this.canvas.setAttribute("aria-label", facts.join(" "));
    $("arena-detail").replaceChildren(el("p", { class: "quiet" }, "Point at a value, or choose one, to see its size, its life and who lies there next."));
    this.paint();
  },

  /** Bytes in use by group: those of the report for the compiled view, else the same from the places. */
  liveBytes() {
    if (this.view.key === "compiled") return report.group_list.map((group) => group.live_bytes);
    const change = Array.from({ length: this.view.groups }, () => []);
    for (const value of this.view.values) for (let g = value.first; g <= value.last && g < change.length; g += 1) change[g].push(value);
    return change.map((values) => {
      let [end, sum] = [0, 0];
      const spans = values.map((v) => this.span(v)).sort((a, b) => a[0] - b[0]);
      for (const [from, to] of spans) { sum += Math.max(0, to - Math.max(from, end)); end = Math.max(end, to); }
      return sum;
    });
  },

  span(value) {
    const start = this.view.slabBase[value.slab] + value.offset;
    return [start, start + value.bytes];
  },

  fit() {
    [this.from, this.groups] = [0, Math.max(1, this.view.groups)];
    this.paint();
  },

  /** Shows more or fewer groups around a point of the window, given as a share of its width. */
  zoom(factor, at = 0.5) {
    const middle = this.from + this.groups * at;
    this.groups = Math.max(4, Math.min(Math.max(1, this.view.groups), this.groups / factor));
    this.move(middle - this.groups * at);
  },

  move(from) {
    this.from = Math.max(0, Math.min(from, this.view.groups - this.groups));
    this.paint();
  },

  scales(width) {
    const [left, right, top, bottom] = [64, 10, 14, 22];
    const perGroup = (width - left - right) / this.groups;
    const inSight = (value) => value.last >= this.from && value.first < this.from + this.groups;
    const height = this.order.reduce((most, value) => (inSight(value) ? Math.max(most, this.span(value)[1]) : most), 1);
    const perByte = (ARENA_HEIGHT - top - bottom) / height;
    return { left, top, perGroup, perByte, height, floor: ARENA_HEIGHT - bottom, end: width - right };
  },

  rect(value, s) {
    const [from, to] = this.span(value);
    const left = Math.max(s.left, s.left + (value.first - this.from) * s.perGroup);
    const right = Math.min(s.end, s.left + (value.last + 1 - this.from) * s.perGroup);
    return [left, s.floor - to * s.perByte, right < left ? 0 : Math.max(1, right - left), Math.max(1, (to - from) * s.perByte)];
  },

  draw() {
    const { ctx, width } = surface(this.canvas, ARENA_HEIGHT);
    const s = this.scales(width);
    this.axes(ctx, s);
    for (const value of this.order) {
      const [x, y, w, h] = this.rect(value, s);
      if (w === 0) continue;
      ctx.fillStyle = value.input || value.output ? palette.attention : palette.product;
      ctx.globalAlpha = value === this.hover || value === this.selected ? 1 : 0.62;
      ctx.fillRect(x, y, w, h);
      ctx.globalAlpha = 1;
      if (w > 3 && h > 3) { ctx.strokeStyle = palette.panel; ctx.lineWidth = 1; ctx.strokeRect(x + 0.5, y + 0.5, w - 1, h - 1); }
    }
    const chosen = this.hover || this.selected;
    if (chosen) {
      const outline = (value, colour) => {
        const [x, y, w, h] = this.rect(value, s);
        ctx.strokeStyle = colour;
        ctx.lineWidth = 2;
        if (w > 0) ctx.strokeRect(x, y, Math.max(2, w), Math.max(2, h));
      };
      for (const next of this.view.reusedBy(chosen)) outline(next, palette.accent);
      outline(chosen, palette.mark);
    }
    const x = s.left + (this.peak + 0.5 - this.from) * s.perGroup;
    if (this.live.length > 0 && x >= s.left && x <= s.end) {
      ctx.strokeStyle = palette.mark;
      ctx.lineWidth = 1;
      ctx.setLineDash([4, 3]);
      ctx.beginPath(); ctx.moveTo(x, s.top - 6); ctx.lineTo(x, s.floor); ctx.stroke();
      ctx.setLineDash([]);
    }
  },

  axes(ctx, s) {
    ctx.font = FONT;
    ctx.fillStyle = palette.quiet;
    ctx.strokeStyle = palette.line;
    ctx.lineWidth = 1;
    ctx.textBaseline = "middle";
    ctx.textAlign = "right";
    for (let at = 0; at <= 4; at += 1) {
      const size = (s.height * at) / 4;
      const y = Math.round(s.floor - size * s.perByte) + 0.5;
      ctx.beginPath(); ctx.moveTo(s.left, y); ctx.lineTo(s.end, y); ctx.stroke();
      ctx.fillText(bytes(Math.round(size)), s.left - 6, y);
    }
    ctx.textAlign = "center";
    const every = [1, 2, 5, 10, 20, 50, 100, 200, 500, 1000, 2000, 5000, 10000].find((n) => n * s.perGroup >= 50) || 20000;
    const start = Math.ceil(this.from / every) * every;
    for (let group = start; group < this.from + this.groups && group < this.view.groups; group += every) {
      ctx.fillText(String(group), s.left + (group + 0.5 - this.from) * s.perGroup, s.floor + 12);
    }
    ctx.textAlign = "left";
  },

  at(x, y) {
    const s = this.scales(this.canvas.clientWidth);
    for (let index = this.order.length - 1; index >= 0; index -= 1) {
      const [left, top, w, h] = this.rect(this.order[index], s);
      if (x >= left && x < left + w && y >= top && y < top + h) return this.order[index];
    }
    return null;
  },

  words(value) {
    const lines = [`%${value.id} ${short(value.name)}`.trim(), bytes(value.bytes),
      `groups ${value.first} to ${value.last}`, ...this.notes(value)];
    return lines.join("\n");
  },

  notes(value) {
    const next = this.view.reusedBy(value);
    const named = next.slice(0, 4).map((v) => `%${v.id} ${short(v.name, 40)}`.trim()).join(", ");
    return [value.input ? "uploaded by the host" : "", value.output ? "read by the host" : "",
      next.length > 0 ? `then reused by ${named}${next.length > 4 ? ` and ${count(next.length - 4)} more` : ""}` : "not reused"].filter(Boolean);
  },

  select(value) {
    this.selected = value;
    if (value.last < this.from || value.first >= this.from + this.groups) this.move((value.first + value.last - this.groups) / 2);
    const pair = (title, text) => el("span", {}, el("b", {}, title), text);
    $("arena-detail").replaceChildren(
      el("h3", {}, `Value %${value.id} ${short(value.name, 200)}`),
      el("div", { class: "pairs" }, pair("size", bytes(value.bytes)), pair("bytes", `${count(value.offset)} to ${count(value.offset + value.bytes)}`),
        pair("life", value.first === value.last ? `group ${count(value.first)}` : `groups ${count(value.first)} to ${count(value.last)}`)),
      el("p", {}, this.notes(value).join(", ") + "."));
    this.table.reveal(value);
    this.paint();
  },

  listen() {
    const { canvas } = this;
    let drag = null;
    $("arena-in").addEventListener("click", () => this.zoom(1.6));
    $("arena-out").addEventListener("click", () => this.zoom(1 / 1.6));
    $("arena-fit").addEventListener("click", () => this.fit());
    canvas.addEventListener("pointerdown", (event) => { drag = { x: event.clientX, from: this.from, moved: false }; canvas.setPointerCapture(event.pointerId); });
    canvas.addEventListener("pointermove", (event) => {
      if (drag) {
        const by = event.clientX - drag.x;
        drag.moved = drag.moved || Math.abs(by) > 3;
        if (drag.moved) { tip.hide(); this.move(drag.from - (by / canvas.clientWidth) * this.groups); }
        return;
      }
      const value = this.at(event.offsetX, event.offsetY);
      if (value !== this.hover) { this.hover = value; this.paint(); }
      canvas.style.cursor = value ? "pointer" : "grab";
      if (value) tip.show(this.words(value), event); else tip.hide();
    });
    canvas.addEventListener("pointerup", (event) => {
      const value = drag && !drag.moved && this.at(event.offsetX, event.offsetY);
      drag = null;
      if (value) this.select(value);
    });
    canvas.addEventListener("pointercancel", () => { drag = null; });
    canvas.addEventListener("pointerleave", () => { this.hover = null; tip.hide(); this.paint(); });
    canvas.addEventListener("wheel", (event) => {
      if (!event.ctrlKey && !event.metaKey) return;
      event.preventDefault();
      this.zoom(Math.exp(-event.deltaY / 240), Math.max(0, event.offsetX - 64) / Math.max(1, canvas.clientWidth - 74));
    }, { passive: false });
    canvas.addEventListener("keydown", (event) => this.key(event));
  },

  key(event) {
    const zoom = { "+": 1.6, "=": 1.6, "-": 1 / 1.6 }[event.key];
    if (zoom && !event.ctrlKey && !event.metaKey) { event.preventDefault(); this.zoom(zoom); return; }
    const step = { ArrowRight: 1, ArrowDown: 1, ArrowLeft: -1, ArrowUp: -1 }[event.key];
    if (!step || this.byLife.length === 0) return;
    event.preventDefault();
    const now = this.byLife.indexOf(this.selected);
    this.select(this.byLife[Math.max(0, Math.min(this.byLife.length - 1, now + step))]);
  },
};
