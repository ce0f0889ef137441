// The report, and the views of it: the list as compiled, and the same with one switch turned.
const report = JSON.parse($("report").textContent);

const FAMILIES = [
  ["product", "products", /^matmul/],
  ["attention", "attention and softmax", /^(attention|softmax|rope)/],
  ["norm", "norms", /norm/],
  ["route", "routing and choice", /^(router|expert_sum|arg_max|top_k)/],
  ["memory", "moves and caches", /^(gather|kv_write|copy|concat|fill)/],
  ["element", "element-wise", /^(add|mul|scale|silu|gelu|soft_cap)/],
  ["other", "kernels of the user", /./],
];
const families = new Map();
function family(op) {
  let found = families.get(op);
  if (!found) {
    found = FAMILIES.find(([, , test]) => test.test(op))[0];
    families.set(op, found);
  }
  return found;
}

/** How a dispatch is called. */
const nameOf = (row) => (row ? `${row.op} ${row.label || `#${row.id}`}` : "a dispatch of another list");

const TITLES = {
  compiled: "Compiled", reordered: "Reordered", in_order: "In order",
  without_reuse: "Without reuse", without_fusion: "Without fusion",
};

class View {
  constructor(key, summary, rows, order, group, lane, barriers, values, slabs, groupNs) {
    Object.assign(this, { key, summary, rows, order, group, lane, barriers, values, slabs, groupNs });
    this.title = TITLES[key] || key;
    this.groups = groupNs.length;
    this.lanes = 1 + lane.reduce((most, at) => Math.max(most, at), 0);
    // Places in `order` where each group starts, and where a row of the list stands.
    this.starts = new Uint32Array(this.groups + 1);
    for (const g of group) this.starts[g + 1] += 1;
    for (let g = 0; g < this.groups; g += 1) this.starts[g + 1] += this.starts[g];
    this.placeOf = new Map(order.map((row, place) => [row, place]));
    // Barriers in front of each group; the one at the very end is in front of a group that is not there.
    this.barrierAt = new Map();
    barriers.forEach((barrier, at) => this.barrierAt.set(barrier.after_group, at));
    this.slabBase = slabs.reduce((bases, size) => [...bases, bases[bases.length - 1] + size], [0]);
  }

  row(place) { return this.rows[this.order[place]]; }

  /** What a barrier is for, in words. */
  reason(barrier) {
    const [earlier, later] = [this.rows[barrier.earlier], this.rows[barrier.later]];
    if (barrier.hazard) {
      const words = hazardText(barrier.hazard, nameOf(earlier), nameOf(later));
      const where = `${bufferText(barrier.buf)}, bytes ${count(barrier.p0)} to ${count(barrier.p1)} (${bytes(barrier.p1 - barrier.p0)})`;
      const replay = barrier.reason === "replay" ? "The next run starts before this one is read out: " : "";
      return `${replay}${words}: ${where}.`;
    }
    return {
      unannotated: `${nameOf(earlier)} touches unknown memory, so nothing runs beside it.`,
      memory: "What follows lies over what died before: the price of the byte budget.",
      requested: "Asked for: a barrier after every dispatch.",
    }[barrier.reason] || barrier.reason;
  }

  /** Values that lie in the bytes of another next, in the order they come. */
  reusedBy(value) {
    const end = value.offset + value.bytes;
    const after = this.values
      .filter((other) => other !== value && other.slab === value.slab && other.offset < end
        && value.offset < other.offset + other.bytes && other.first >= value.last && other.last > value.first)
      .sort((a, b) => a.first - b.first || a.id - b.id);
    let open = [[value.offset, end]];
    const found = [];
    for (const other of after) {
      const [from, to] = [other.offset, other.offset + other.bytes];
      const left = open.flatMap(([a, b]) => (to <= a || b <= from ? [[a, b]] : [[a, Math.max(a, from)], [Math.min(b, to), b]].filter(([x, y]) => x < y)));
      const size = (spans) => spans.reduce((sum, [a, b]) => sum + b - a, 0);
      if (size(left) < size(open)) found.push(other);
      open = left;
      if (open.length === 0) break;
    }
    return found;
  }
}

function hazardText(hazard, earlier, later) {
  const verbs = { RAW: ["reads", "writes"], WAR: ["overwrites", "reads"], WAW: ["overwrites", "writes"] };
  const [second, first] = verbs[hazard];
  return `${later} ${second} what ${earlier} ${first}`;
}

/** A value by its maker, a buffer by its name. */
function bufferText(buf) {
  if (!buf) return "memory";
  if (buf.startsWith("@")) return report.buffers[buf] ? `${short(report.buffers[buf])} (${buf})` : `buffer ${buf}`;
  const value = valueById.get(Number(buf.slice(1)));
  return value && value.name ? `value ${buf} of ${short(value.name)}` : `value ${buf}`;
}

const valueById = new Map(report.value_list.map((value) => [value.id, value]));

function baseView() {
  const rows = report.dispatch_list;
  return new View(
    "compiled", report, rows, rows.map((_, index) => index), rows.map((row) => row.group), rows.map((row) => row.lane),
    report.barrier_list, report.value_list, report.slab_bytes,
    report.group_list.map((group) => group.measured_ns ?? group.estimated_ns),
  );
}

function otherView(data) {
  const rows = report[data.list];
  const values = data.placed.map(([id, slab, offset, size, first, last, writer]) => {
    const known = valueById.get(id) || {};
    const name = writer === null ? known.name || "" : rows[writer].label;
    return { id, slab, offset, bytes: size, first, last, name, input: Boolean(known.input), output: Boolean(known.output) };
  });
  return new View(data.key, data, rows, data.order, data.group, data.lane, data.barrier_list, values, data.slab_bytes, data.group_ns);
}

const views = new Map([["compiled", baseView()], ...report.views.map((data) => [data.key, otherView(data)])]);
const viewItems = [...views.values()].map((view) => [view.key, view.title]);
const measured = report.measured;
