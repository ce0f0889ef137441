// The summary, and the start of everything.
function tile(key, title, value, note, share) {
  const big = el("span", { class: "big", "data-key": key, "data-value": report[key] }, value);
  const meter = share === undefined ? null : el("div", { class: "meter", role: "presentation" }, el("i", { style: { width: `${Math.min(100, 100 * share)}%` } }));
  return el("div", { class: "tile" }, el("dt", {}, title), el("dd", {}, big), meter ?? "", el("dd", { class: "note" }, note));
}

function summary() {
  const r = report;
  const bound = r.arena_bytes === r.arena_lower_bound ? "the lower bound itself" : `lower bound ${bytes(r.arena_lower_bound)}`;
  const own = views.get("without_reuse");
  const tiles = [
    tile("dispatches", "Dispatches", count(r.dispatches), `${count(r.recorded)} recorded`),
    tile("fusions", "Fusions", count(r.fusions), `${count(r.refused_fusions.length)} refused`),
    tile("groups", "Groups", count(r.groups), r.groups === r.longest_chain ? "as few as the longest chain" : `longest chain ${count(r.longest_chain)}`),
    tile("longest_chain", "Longest chain", count(r.longest_chain), "no order has fewer groups"),
    tile("barriers", "Barriers", count(r.barriers), r.false_barriers === 0 ? "none because memory is shared" : `${count(r.false_barriers)} because memory is shared`),
    tile("moved", "Moved earlier", count(r.moved), "dispatches, against the recorded order"),
  ];
  if (r.phases_per_layer !== null) tiles.push(tile("phases_per_layer", "Phases per layer", count(r.phases_per_layer), "groups, over all layers"));
  tiles.push(
    tile("arena_bytes", "Arena", bytes(r.arena_bytes), own ? `${bound}; ${bytes(own.summary.arena_bytes)} without reuse` : bound, r.arena_lower_bound / Math.max(1, r.arena_bytes)),
    tile("arena_lower_bound", "Arena, lower bound", bytes(r.arena_lower_bound), "most bytes live in one group"),
    tile("estimated_ns", "Estimated time", time(r.estimated_ns), `${count(r.cost.bytes_per_ns)} GB/s, ${time(r.cost.barrier_ns)} a barrier`),
    r.measured_ns === null ? tile("measured_ns", "Measured time", "–", "not measured; --measure runs it")
      : tile("measured_ns", "Measured time", time(r.measured_ns), measured.device),
  );
  $("tiles").replaceChildren(...tiles);
  const [head, rest] = [r.name.slice(0, 300).split(": ")[0], r.name.slice(0, 300).split(": ").slice(1).join(": ")];
  $("title").textContent = rest ? head : r.name || "A compiled graph";
  $("subtitle").textContent = [rest, r.device ? `device ${r.device}` : "", `compiled and proven in ${(r.seconds * 1e3).toFixed(1)} ms`].filter(Boolean).join(" · ");
  document.title = `${short(r.name.split(":")[0] || "graph", 60)} · Clearway inspector`;
  const off = Object.entries({ fuse: "fusion", reorder: "reordering", elide: "barrier elision", reuse: "reuse of memory" }).filter(([key]) => !r.options[key]).map(([, word]) => word);
  $("foot").textContent = `Every list shown was proven before it was reported: no conflict inside a group, every byte read was written by the dispatch that wrote it when recorded, and both hold when it is replayed.${off.length > 0 ? ` Switched off: ${off.join(", ")}.` : ""} Report format ${r.version}.`;
}

function redraw() {
  palette.read();
  schedule.lanes.move(schedule.lanes.x);
  arena.paint();
  compare.paint();
  if (front.draw) front.draw();
}

palette.read();
summary();
schedule.start();
reasons.start();
arena.start();
compare.start();
tracked.start();
front.start();
times.start();

// The schedule's view is also the memory's: a schedule and its memory belong together.
$("views").addEventListener("click", () => { if (arena.view !== schedule.view) arena.show(schedule.view.key); });
$("views").addEventListener("keydown", () => { if (arena.view !== schedule.view) arena.show(schedule.view.key); });
matchMedia("(prefers-color-scheme: dark)").addEventListener("change", redraw);
addEventListener("resize", redraw);
addEventListener("beforeprint", redraw);
const sections = [...document.querySelectorAll("main section")];
const spy = new IntersectionObserver((entries) => {
  for (const entry of entries) {
    if (!entry.isIntersecting) continue;
    for (const link of document.querySelectorAll(".bar a")) {
      if (link.hash === `#${entry.target.id}`) link.setAttribute("aria-current", "true"); else link.removeAttribute("aria-current");
    }
  }
}, { rootMargin: "-30% 0px -60% 0px" });
for (const section of sections) spy.observe(section);
document.documentElement.dataset.ready = "true";
