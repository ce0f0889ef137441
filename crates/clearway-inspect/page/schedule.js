// The schedule section: the view switch, search, zoom, what is chosen, and the same as a table.
const schedule = {
  start() {
    this.lanes = new Lanes($("lanes"), $("overview"), { select: (found) => this.select(found), hover: (found) => this.hint(found) });
    segmented($("views"), viewItems, "compiled", (key) => this.show(key));
    $("zoom-in").addEventListener("click", () => this.lanes.zoom(1.6));
    $("zoom-out").addEventListener("click", () => this.lanes.zoom(1 / 1.6));
    $("zoom-fit").addEventListener("click", () => this.lanes.fit());
    $("query").addEventListener("input", () => this.search());
    $("query").addEventListener("keydown", (event) => {
      if (event.key === "Enter") { event.preventDefault(); this.step(event.shiftKey ? -1 : 1); }
    });
    $("hit-next").addEventListener("click", () => this.step(1));
    $("hit-back").addEventListener("click", () => this.step(-1));
    $("lanes").addEventListener("keydown", (event) => this.key(event));
    this.table = new Table($("dispatch-table"), "Dispatches in execution order", [
      { title: "Dispatch", text: (at) => `#${this.view.row(at).id}`, key: (at) => this.view.row(at).id },
      { title: "Group", num: true, text: (at) => count(this.view.group[at]), key: (at) => this.view.group[at] },
      { title: "Op", text: (at) => this.view.row(at).op, key: (at) => this.view.row(at).op },
      { title: "Label", name: true, text: (at) => short(this.view.row(at).label), key: (at) => this.view.row(at).label },
      { title: "Writes", text: (at) => this.view.row(at).shape },
      { title: "Bytes", num: true, text: (at) => bytes(this.moved(at)), key: (at) => this.moved(at) },
      { title: measured ? "Time (serialised)" : "Time (estimate)", num: true, text: (at) => this.alone(at), key: (at) => this.aloneNs(at) },
    ], { pick: (at) => this.select({ kind: "dispatch", at }) });
    const used = new Set(report.dispatch_list.map((row) => family(row.op)));
    $("legend").replaceChildren(...FAMILIES.filter(([key]) => used.has(key)).map(([key, title]) =>
      el("li", {}, el("i", { style: { background: `var(--${key})` } }), title)));
    this.show("compiled");
  },

  show(key) {
    this.view = views.get(key);
    this.lanes.hits = null;
    this.lanes.show(this.view);
    this.words = Array.from(this.view.order, (_, at) => {
      const row = this.view.row(at);
      return `${row.op} ${row.label} ${row.shape} #${row.id}`.toLowerCase();
    });
    const places = Array.from(this.view.order, (_, at) => at);
    this.table.show(places);
    $("lanes").dataset.view = key;
    this.search();
    this.tellNothing();
    this.label();
  },

  label(chosen = "") {
    const { view } = this;
    const what = `${view.title}: ${plural(view.order.length, "dispatch")} in ${plural(view.groups, "group")}, ${plural(view.barriers.length, "barrier")}.`;
    $("lanes").setAttribute("aria-label", chosen ? `${what} Selected: ${chosen}` : what);
  },

  moved(at) { const row = this.view.row(at); return row.read_bytes + row.write_bytes; },
  aloneNs(at) {
    const row = this.view.row(at);
    const moved = (row.read_bytes + row.write_bytes) / report.cost.bytes_per_ns;
    return row.serialised_ns ?? row.estimated_ns ?? Math.max(moved, report.cost.dispatch_ns);
  },
  alone(at) { return time(this.aloneNs(at)); },

  search() {
    const query = $("query").value.trim().toLowerCase();
    const words = query.split(/\s+/).filter(Boolean);
    this.found = [];
    if (words.length > 0) {
      this.words.forEach((text, at) => { if (words.every((word) => text.includes(word))) this.found.push(at); });
    }
    this.hit = -1;
    this.lanes.hits = words.length > 0 ? new Set(this.found) : null;
    $("hits").textContent = words.length > 0 ? (this.found.length > 0 ? `${count(this.found.length)} found` : "none found") : "";
    $("hit-next").disabled = $("hit-back").disabled = this.found.length === 0;
    this.lanes.paint();
  },

  step(by) {
    if (this.found.length === 0) return;
    this.hit = this.hit < 0 ? (by > 0 ? 0 : this.found.length - 1) : (this.hit + by + this.found.length) % this.found.length;
    $("hits").textContent = `${count(this.hit + 1)} of ${count(this.found.length)}`;
    this.select({ kind: "dispatch", at: this.found[this.hit] });
  },

  hint(found) {
    if (found.kind === "barrier") {
      const barrier = this.view.barriers[found.at];
      return `Barrier after group ${barrier.after_group - 1}\n${short(this.view.reason(barrier), 240)}`;
    }
    const row = this.view.row(found.at);
    return `${row.op} ${short(row.label)}\n${row.shape}\n${bytes(row.read_bytes)} read, ${bytes(row.write_bytes)} written\n${this.alone(found.at)} alone, ${measured && row.serialised_ns !== undefined ? "measured" : "estimated"}`;
  },

  /** Chooses a dispatch or a barrier, by its place in this view. */
  select(found) {
    this.lanes.selected = found;
    const barrier = found.kind === "barrier" ? this.view.barriers[found.at] : null;
    this.lanes.reveal(barrier ? Math.min(barrier.after_group, this.view.groups - 1) : this.view.group[found.at]);
    if (barrier) this.tellBarrier(barrier, found.at); else this.tellDispatch(found.at);
  },

  tellNothing() {
    const node = $("detail");
    node.classList.remove("barrier");
    node.replaceChildren(el("p", { class: "quiet" }, "Choose a box or a barrier to see what it does and what it waits for."));
  },

  tellDispatch(at) {
    const { view } = this;
    const row = view.row(at);
    const { before, after } = this.lanes.neighbours(at);
    const node = $("detail");
    node.classList.remove("barrier");
    const pair = (title, value) => el("span", {}, el("b", {}, title), value);
    const links = (title, places) => places.length === 0 ? null
      : el("p", {}, `${title} `, ...places.slice(0, 12).flatMap((place, n) => [n > 0 ? ", " : "", this.link(place)]),
        places.length > 12 ? ` and ${count(places.length - 12)} more` : "");
    const times = [row.serialised_ns === undefined ? null : pair("alone, measured serialised", time(row.serialised_ns)),
      pair(measured ? "estimate" : "time, estimated", time(row.estimated_ns ?? this.aloneNs(at)))];
    const group = view.key === "compiled" ? report.group_list[view.group[at]] : null;
    node.replaceChildren(
      el("h3", {}, `${row.op} ${row.label}`),
      el("div", { class: "pairs" },
        pair("dispatch", `#${row.id}`), pair("group", count(view.group[at])), pair("lane", count(view.lane[at])), pair("result", row.shape),
        pair("reads", bytes(row.read_bytes)), pair("writes", bytes(row.write_bytes)), ...times,
        ...(group && group.measured_ns !== undefined ? [
          pair("its group, measured", time(group.measured_ns)),
          pair("bandwidth of the group", percent(group.bandwidth_share ?? 0)),
          group.barrier_share === undefined ? null : pair("barrier of the group", percent(group.barrier_share)),
          row.waits && row.waits.counted ? pair("longest wait for a counter", `${time(row.waits.longest_wait_ns)}, ${count(row.waits.waited)} of ${plural(row.waits.workgroups, "workgroup")}`) : null,
        ] : group ? [pair("its group, estimated", time(group.estimated_ns))] : []),
        row.kernel ? pair("kernel", row.kernel) : null),
      row.moot ? el("p", {}, "Nothing to do: its parts already lie side by side, so it is left out.") : "",
      row.origins && row.origins.length > 0 ? el("p", {}, `Fused from ${row.origins.map((id) => nameOf(recordedById.get(id))).join(" + ")}.`) : "",
      links("Waits for", before) ?? "", links("Waited for by", after) ?? "", this.barrierLine(view.group[at]) ?? "",
      // Bindings of another view lie elsewhere.
      ...(view.key === "compiled" ? this.kernels(row) : []));
    this.label(nameOf(row));
  },

  /** The WGSL of a dispatch, with what it binds on top. */
  kernels(row) {
    if (row.no_kernel) return [el("p", { class: "quiet" }, `No WGSL for ${report.kernel_target}: ${row.no_kernel}`)];
    return (row.kernels ?? []).map((used) => {
      const { file, source } = report.kernel_list[used.kernel];
      const title = `WGSL ${file}, workgroups ${used.groups.join(" × ")}${used.note ? `, ${used.note}` : ""}`;
      return el("details", { class: "wgsl", open: true }, el("summary", {}, title),
        el("p", { class: "quiet" }, `For ${report.kernel_target}`),
        el("ul", {}, ...used.bindings.map((binding) => el("li", {}, binding))),
        el("pre", { tabindex: "0", "aria-label": `Text of ${file}` }, el("code", {}, source)));
    });
  },

  barrierLine(group) {
    const at = this.view.barrierAt.get(group);
    if (at === undefined) return null;
    const open = el("button", { type: "button", class: "link", on: { click: () => this.select({ kind: "barrier", at }) } }, "Barrier in front");
    return el("p", {}, open, `: ${short(this.view.reason(this.view.barriers[at]), 400)}`);
  },

  tellBarrier(barrier, at) {
    const { view } = this;
    const node = $("detail");
    node.classList.add("barrier");
    const ends = [["earlier", barrier.earlier], ["later", barrier.later]].filter(([, row]) => row !== undefined && view.placeOf.has(row));
    node.replaceChildren(
      el("h3", {}, `Barrier ${at}: ${barrier.hazard ? `${barrier.hazard}${barrier.reason === "replay" ? ", replay" : ""}` : barrier.reason}`),
      el("p", { id: "barrier-reason" }, view.reason(barrier)),
      el("p", {}, ...ends.flatMap(([word, row], n) => [n > 0 ? "  ·  " : "", `${word}: `, this.link(view.placeOf.get(row))])));
    this.label(`barrier ${at}, ${view.reason(barrier)}`);
    if (view.key === "compiled") reasons.mark(barrier);
  },

  link(place) {
    const row = this.view.row(place);
    return el("button", { type: "button", class: "link", on: { click: () => this.select({ kind: "dispatch", at: place }) } }, short(nameOf(row)));
  },

  key(event) {
    const { view, lanes } = this;
    const zoom = { "+": 1.6, "=": 1.6, "-": 1 / 1.6 }[event.key];
    if (zoom && !event.ctrlKey && !event.metaKey) { event.preventDefault(); lanes.zoom(zoom); return; }
    if (event.key === "0" && !event.ctrlKey && !event.metaKey) { event.preventDefault(); lanes.fit(); return; }
    const now = lanes.selected;
    const place = now && now.kind === "dispatch" ? now.at : now ? view.starts[Math.min(view.barriers[now.at].after_group, view.groups - 1)] : -1;
    if (event.key === "b" || event.key === "B") {
      const at = place >= 0 ? view.barrierAt.get(view.group[place]) : undefined;
      if (at !== undefined) { event.preventDefault(); this.select({ kind: "barrier", at }); }
      return;
    }
    if (!["ArrowLeft", "ArrowRight", "ArrowUp", "ArrowDown", "Home", "End"].includes(event.key) || view.order.length === 0) return;
    event.preventDefault();
    if (event.key === "Home" || place < 0) { this.select({ kind: "dispatch", at: 0 }); return; }
    if (event.key === "End") { this.select({ kind: "dispatch", at: view.order.length - 1 }); return; }
    const group = view.group[place];
    if (event.key === "ArrowUp" || event.key === "ArrowDown") {
      const next = place + (event.key === "ArrowDown" ? 1 : -1);
      if (next >= view.starts[group] && next < view.starts[group + 1]) this.select({ kind: "dispatch", at: next });
      return;
    }
    const other = group + (event.key === "ArrowRight" ? 1 : -1);
    if (other >= 0 && other < view.groups) this.select({ kind: "dispatch", at: view.starts[other] });
  },
};

const recordedById = new Map(report.recorded_list.map((row) => [row.id, row]));
