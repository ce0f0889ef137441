// Two views side by side, the front of bytes against barriers, and the measured times.
const FIGURES = [
  ["dispatches", "Dispatches", count], ["groups", "Groups", count], ["barriers", "Barriers", count],
  ["false_barriers", "Barriers for memory alone", count], ["longest_chain", "Longest chain", count],
  ["fusions", "Fusions", count], ["moved", "Dispatches moved earlier", count],
  ["arena_bytes", "Arena", bytes], ["arena_lower_bound", "Arena, lower bound", bytes], ["estimated_ns", "Estimated time", time],
];
const LESS_IS_BETTER = new Set(["dispatches", "groups", "barriers", "false_barriers", "arena_bytes", "estimated_ns"]);

const compare = {
  start() {
    const other = views.has("in_order") ? "in_order" : viewItems[viewItems.length - 1][0];
    [this.left, this.right] = ["compiled", other];
    segmented($("left-view"), viewItems, this.left, (key) => { this.left = key; this.show(); });
    segmented($("right-view"), viewItems, this.right, (key) => { this.right = key; this.show(); });
    this.paint = painter(() => this.draw());
    this.canvases = ["left", "right"].map((side) => el("canvas", { "data-side": side, role: "img" }));
    this.captions = this.canvases.map(() => el("figcaption"));
    $("compare-strips").replaceChildren(...this.canvases.map((canvas, at) =>
      el("figure", {}, this.captions[at], el("div", { class: "stage" }, canvas))));
    this.show();
  },

  show() {
    const [a, b] = [views.get(this.left), views.get(this.right)];
    const change = ([key, , form]) => {
      const by = b.summary[key] - a.summary[key];
      if (!Number.isFinite(by) || by === 0) return el("span", { class: "quiet" }, "same");
      const tone = LESS_IS_BETTER.has(key) ? (by < 0 ? "better" : "worse") : undefined;
      return el("span", { class: tone }, `${by > 0 ? "+" : "−"}${form(Math.abs(by))}`);
    };
    new Table($("compare-table"), `${a.title} against ${b.title}`, [
      { title: "Figure", text: ([, title]) => title },
      { title: a.title, num: true, text: ([key, , form]) => form(a.summary[key]) },
      { title: b.title, num: true, text: ([key, , form]) => form(b.summary[key]) },
      { title: "Difference", num: true, node: change },
    ], { rows: FIGURES });
    this.moved = this.differing(a, b);
    const note = this.moved === null
      ? "The two lists hold different dispatches, so groups are not compared one by one."
      : this.moved.size === 0 ? "All dispatches run beside the same others."
        : `${plural(this.moved.size, "dispatch")} run${this.moved.size === 1 ? "s" : ""} beside others than in the first, highlighted.`;
    [a, b].forEach((view, at) => {
      this.captions[at].textContent = `${view.title}: ${plural(view.groups, "group")}${at === 1 ? `. ${note}` : ""}`;
      this.canvases[at].setAttribute("aria-label", this.captions[at].textContent);
    });
    $("compare-strips").dataset.differing = this.moved === null ? "" : String(this.moved.size);
    this.paint();
  },

  /** Rows whose group holds other dispatches in the second view; nothing if the lists are not the same. */
  differing(a, b) {
    if (a.rows !== b.rows) return null;
    const company = (view) => {
      const groups = Array.from({ length: view.groups }, (_, g) => Array.from(view.order.slice(view.starts[g], view.starts[g + 1])).sort((x, y) => x - y).join());
      return (row) => groups[view.group[view.placeOf.get(row)]];
    };
    const [left, right] = [company(a), company(b)];
    return new Set(a.order.filter((row) => left(row) !== right(row)));
  },

  draw() {
    const pair = [views.get(this.left), views.get(this.right)];
    const groups = Math.max(...pair.map((view) => view.groups), 1);
    pair.forEach((view, at) => {
      const { ctx, width, height } = surface(this.canvases[at], 74);
      // One scale for both: the shorter list ends earlier.
      const scale = width / groups;
      const lane = (height - 4) / view.lanes;
      view.order.forEach((row, place) => {
        const [x, y] = [view.group[place] * scale, 2 + view.lane[place] * lane];
        const [w, h] = [Math.max(1, scale - (scale > 4 ? 1 : 0)), Math.max(1, lane - (lane > 4 ? 1 : 0))];
        const moved = this.moved && this.moved.has(row);
        ctx.globalAlpha = this.moved && !moved ? 0.45 : 1;
        ctx.fillStyle = palette[family(view.rows[row].op)];
        ctx.fillRect(x, y, w, h);
        if (moved && w > 3) { ctx.strokeStyle = palette.mark; ctx.strokeRect(x + 0.5, y + 0.5, w - 1, h - 1); }
      });
      ctx.globalAlpha = 1;
    });
  },
};

const WAYS = {
  own_barriers: "Vulkan: one arena, barriers of our own", one_buffer: "wgpu: one buffer", writes_apart: "wgpu: writes apart",
  groups_apart: "wgpu: groups apart", values_apart: "wgpu: a buffer for each value",
};

const tracked = {
  start() {
    if (report.tracked.length === 0) return;
    $("tracked-title").hidden = false;
    $("tracked-text").textContent = "wgpu follows whole buffers and places its own barriers. The more buffers values are spread over, the fewer it inserts.";
    new Table($("tracked-table"), "Barriers of Vulkan and wgpu", [
      { title: "Arena and barriers", text: (row) => WAYS[row.key] ?? row.key },
      { title: "Groups", num: true, text: (row) => count(row.groups) },
      { title: "Barriers", num: true, text: (row) => count(row.barriers) },
      { title: "Inside groups", num: true, text: (row) => count(row.inside_groups) },
      { title: "Buffers", num: true, text: (row) => count(row.slabs) },
      { title: "Arena", num: true, text: (row) => bytes(row.arena_bytes) },
    ], { rows: report.tracked });
  },
};

const front = {
  start() {
    const points = report.front;
    if (points.length === 0) {
      $("front-text").textContent = report.dispatch_list.length > 4000 ? "Lists of this length have no front: each point would plan all of it again." : "No front was computed for this list.";
      return;
    }
    const cuts = points.length - 1;
    $("front-text").textContent = `${cuts === 0 ? "No single barrier more would make the arena smaller." : `${plural(cuts, "schedule")} with fewer bytes and more barriers; the first point is the list as compiled.`} Hollow points are what other planners make of the same list.`;
    const peers = [["lives counted in nodes", report.node_order], ["free list in execution order", report.free_list]].filter(([, plan]) => plan);
    this.draw = () => $("front-plot").replaceChildren(this.plot(points, peers));
    this.draw();
    const rows = [...points.map((p, at) => ({ name: at === 0 ? "as compiled" : `cut ${at}`, ...p })),
      ...peers.map(([name, plan]) => ({ name, ...plan }))];
    new Table($("front-table"), "Points of the front", [
      { title: "Schedule", text: (row) => row.name },
      { title: "Groups", num: true, text: (row) => count(row.groups), key: (row) => row.groups },
      { title: "Arena", num: true, text: (row) => bytes(row.arena_bytes), key: (row) => row.arena_bytes },
      { title: "Estimated time", num: true, text: (row) => (row.estimated_ns === undefined ? "" : time(row.estimated_ns)) },
    ], { rows, size: 12 });
  },

  plot(points, peers) {
    const width = Math.max(300, Math.min(940, $("front-plot").clientWidth - 20));
    const [height, left, right, top, bottom] = [300, 78, 24, 18, 42];
    const all = [...points, ...peers.map(([, plan]) => plan)];
    const span = (values) => {
      const [low, high] = [Math.min(...values), Math.max(...values)];
      const pad = Math.max((high - low) * 0.08, high * 0.02, 1);
      return [Math.max(0, low - pad), high + pad];
    };
    const [g0, g1] = span(all.map((p) => p.groups));
    const [b0, b1] = span(all.map((p) => p.arena_bytes));
    const x = (groups) => left + ((groups - g0) / (g1 - g0)) * (width - left - right);
    const y = (size) => height - bottom - ((size - b0) / (b1 - b0)) * (height - top - bottom);
    const svg = (tag, props, ...children) => {
      const node = document.createElementNS("http://www.w3.org/2000/svg", tag);
      for (const [key, value] of Object.entries(props)) node.setAttribute(key, String(value));
      node.append(...children);
      return node;
    };
    const root = svg("svg", { viewBox: `0 0 ${width} ${height}`, role: "img", "aria-label": `Arena bytes against groups, ${plural(all.length, "point")}; the table below has the numbers` });
    for (let at = 0; at <= 4; at += 1) {
      const size = b0 + ((b1 - b0) * at) / 4;
      root.append(svg("line", { class: "axis", x1: left, x2: width - right, y1: y(size), y2: y(size) }),
        svg("text", { x: left - 8, y: y(size) + 4, "text-anchor": "end" }, bytes(Math.round(size))));
    }
    const marks = new Set((width < 500 ? [0, 2, 4] : [0, 1, 2, 3, 4]).map((at) => Math.round(g0 + ((g1 - g0) * at) / 4)).filter((groups) => groups >= g0 && groups <= g1));
    for (const groups of marks) root.append(svg("text", { x: x(groups), y: height - bottom + 18, "text-anchor": "middle" }, count(groups)));
    root.append(svg("text", { x: (left + width - right) / 2, y: height - 6, "text-anchor": "middle" }, "groups"));
    for (const [name, plan] of peers) {
      const end = x(plan.groups) > width / 2;
      root.append(svg("circle", { class: "peer", cx: x(plan.groups), cy: y(plan.arena_bytes), r: 5 }, svg("title", {}, `${name}: ${count(plan.groups)} groups, ${bytes(plan.arena_bytes)}`)),
        svg("text", { x: x(plan.groups) + (end ? -10 : 10), y: y(plan.arena_bytes) + 4, "text-anchor": end ? "end" : "start" }, name));
    }
    const steps = points.map((p, at) => (at === 0 ? `M${x(p.groups)} ${y(p.arena_bytes)}` : `H${x(p.groups)} V${y(p.arena_bytes)}`)).join(" ");
    root.append(svg("path", { class: "run", d: steps }));
    points.forEach((p, at) => root.append(svg("circle", { class: at === 0 ? "now" : "dot", cx: x(p.groups), cy: y(p.arena_bytes), r: at === 0 ? 6 : 4 },
      svg("title", {}, `${count(p.groups)} groups, ${bytes(p.arena_bytes)}, ${time(p.estimated_ns)}`))));
    const now = points[0];
    root.append(svg("text", { x: x(now.groups) + 11, y: y(now.arena_bytes) - 8 }, "as compiled"));
    return root;
  },
};

const times = {
  start() {
    if (!measured) return;
    $("time").hidden = $("nav-time").hidden = false;
    const barrier = measured.barrier_ns === null ? "The device does not tell what a barrier costs." : `A barrier alone costs ${time(measured.barrier_ns)}, all of them ${percent(measured.barrier_ns * report.barriers / Math.max(1, measured.total_ns))} of a run.`;
    $("time-text").textContent = `One run takes ${time(measured.total_ns)} on ${measured.device}, by its ${measured.clock.toUpperCase()} clock, the median of ${plural(measured.runs, "run")}. ${barrier} Lost is what a group takes beyond the time of its bytes at ${measured.bytes_per_ns.toFixed(1)} GB/s. A run with a barrier after every dispatch takes ${time(measured.serialised_ns)}.`;
    const group = (row) => report.group_list[row.group];
    const names = (row) => report.dispatch_list.slice(group(row).first, group(row).first + group(row).dispatches).map((d) => short(d.label || d.op, 40)).join(", ");
    const share = (value) => (value === undefined || value === null ? "" : percent(value));
    new Table($("lost-table"), "Groups that lose the most time", [
      { title: "Group", text: (row) => count(row.group), key: (row) => row.group },
      { title: "Lost", num: true, text: (row) => time(row.lost_ns), key: (row) => row.lost_ns },
      { title: "Measured", num: true, text: (row) => time(row.measured_ns), key: (row) => row.measured_ns },
      { title: "Bandwidth", num: true, text: (row) => percent(group(row).bandwidth_share ?? 0), key: (row) => group(row).bandwidth_share ?? 0 },
      { title: "Barrier", num: true, text: (row) => share(group(row).barrier_share) },
      { title: "Dispatches", name: true, text: (row) => short(names(row), 160) },
    ], { rows: measured.top_lost, pick: (row) => reasons.open({ kind: "dispatch", at: group(row).first }) });
    new Table($("group-table"), "All groups", [
      { title: "Group", text: (at) => count(at), key: (at) => at },
      { title: "Dispatches", num: true, text: (at) => count(report.group_list[at].dispatches), key: (at) => report.group_list[at].dispatches },
      { title: "Bytes", num: true, text: (at) => bytes(report.group_list[at].bytes), key: (at) => report.group_list[at].bytes },
      { title: "Measured", num: true, text: (at) => time(report.group_list[at].measured_ns), key: (at) => report.group_list[at].measured_ns },
      { title: "Bandwidth", num: true, text: (at) => share(report.group_list[at].bandwidth_share), key: (at) => report.group_list[at].bandwidth_share ?? 0 },
      { title: "Barrier", num: true, text: (at) => share(report.group_list[at].barrier_share), key: (at) => report.group_list[at].barrier_share ?? 0 },
      { title: "Estimated", num: true, text: (at) => time(report.group_list[at].estimated_ns), key: (at) => report.group_list[at].estimated_ns },
    ], { rows: report.group_list.map((_, at) => at), pick: (at) => reasons.open({ kind: "dispatch", at: report.group_list[at].first }) });
    const slow = [...report.dispatch_list].sort((a, b) => b.serialised_ns - a.serialised_ns);
    new Table($("serial-table"), "Dispatches in the serialised mode", [
      { title: "Dispatch", text: (row) => `#${row.id}`, key: (row) => row.id },
      { title: "Op", text: (row) => row.op, key: (row) => row.op },
      { title: "Label", name: true, text: (row) => short(row.label), key: (row) => row.label },
      { title: "Time (serialised)", num: true, text: (row) => time(row.serialised_ns), key: (row) => row.serialised_ns },
      { title: "Bytes", num: true, text: (row) => bytes(row.read_bytes + row.write_bytes), key: (row) => row.read_bytes + row.write_bytes },
    ], { rows: slow, size: 12, pick: (row) => reasons.open({ kind: "dispatch", at: report.dispatch_list.indexOf(row) }) });
    this.waits();
  },

  /** Who waits for whom where counters stand for barriers. */
  waits() {
    const { waits, no_waits } = report;
    if (!waits && !no_waits) return;
    $("waits").hidden = false;
    if (!waits) { $("waits-text").textContent = `Not measured: ${no_waits}.`; return; }
    $("waits-text").textContent = `With counters in place of barriers a run takes ${time(waits.run_ns)}, with barriers ${time(waits.barrier_run_ns)}, by the host's clock over many runs. ${count(waits.waiting_groups)} of ${plural(report.groups, "group")} wait by counters. Workgroups of another run noted themselves when they started, waited and ended, by a clock whose smallest step seen was ${waits.clock_step_ns.toFixed(0)} ns; it took ${time(waits.total_ns)}.`;
    const rows = report.dispatch_list.filter((row) => row.waits && row.waits.counted).sort((a, b) => b.waits.longest_wait_ns - a.waits.longest_wait_ns);
    new Table($("waits-table"), "Waits of dispatches", [
      { title: "Dispatch", text: (row) => `#${row.id}`, key: (row) => row.id },
      { title: "Label", name: true, text: (row) => short(row.label || row.op), key: (row) => row.label },
      { title: "Longest wait", num: true, text: (row) => time(row.waits.longest_wait_ns), key: (row) => row.waits.longest_wait_ns },
      { title: "Mean wait", num: true, text: (row) => time(row.waits.mean_wait_ns), key: (row) => row.waits.mean_wait_ns },
      { title: "Waited", num: true, text: (row) => `${count(row.waits.waited)} of ${count(row.waits.workgroups)}`, key: (row) => row.waits.waited },
      { title: "Start", num: true, text: (row) => time(row.waits.start_ns), key: (row) => row.waits.start_ns },
      { title: "End", num: true, text: (row) => time(row.waits.end_ns), key: (row) => row.waits.end_ns },
      { title: "For", name: true, text: (row) => row.waits.waits_for === null ? "a barrier" : short(nameOf(report.dispatch_list[row.waits.waits_for])) },
    ], { rows, size: 12, pick: (row) => reasons.open({ kind: "dispatch", at: report.dispatch_list.indexOf(row) }) });
  },
};
