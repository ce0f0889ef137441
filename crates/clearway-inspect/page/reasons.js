// The reasons section: barriers, refused fusions, refused moves, counted by reason.
const reasons = {
  start() {
    const kinds = [
      ["barriers", `Barriers (${count(report.barrier_list.length)})`],
      ["fusions", `Refused fusions (${count(report.refused_fusions.length)})`],
      ["moves", `Refused moves (${count(report.refused_moves.length)})`],
    ];
    this.choose = segmented($("reason-kinds"), kinds, "barriers", (key) => this.show(key));
    this.byId = new Map(report.dispatch_list.map((row, index) => [row.id, index]));
    this.show("barriers");
  },

  show(kind) {
    this.kind = kind;
    const { rows, reason, columns, pick, label } = this[kind]();
    const tally = new Map();
    for (const row of rows) tally.set(reason(row), (tally.get(reason(row)) || 0) + 1);
    this.table = new Table($("reason-table"), label, columns, { rows, pick });
    const chips = [...tally].sort((a, b) => b[1] - a[1]).map(([name, number]) => el("button", {
      type: "button", "aria-pressed": "false", "data-reason": name,
      on: {
        click: (event) => {
          const on = event.currentTarget.getAttribute("aria-pressed") !== "true";
          for (const chip of chips) chip.setAttribute("aria-pressed", "false");
          event.currentTarget.setAttribute("aria-pressed", String(on));
          this.table.show(on ? rows.filter((row) => reason(row) === name) : rows);
        },
      },
    }, `${name} ${count(number)}`));
    $("reason-filter").replaceChildren(...chips);
  },

  barriers() {
    const view = views.get("compiled");
    const at = new Map(report.barrier_list.map((row, index) => [row, index]));
    const name = (place) => (place === undefined ? "" : short(nameOf(view.rows[place])));
    return {
      label: "Barriers", rows: report.barrier_list,
      reason: (row) => (row.reason === "hazard" ? row.hazard : row.hazard ? `${row.reason} ${row.hazard}` : row.reason),
      pick: (row) => this.open({ kind: "barrier", at: at.get(row) }),
      columns: [
        { title: "Barrier", text: (row) => String(at.get(row)), key: (row) => at.get(row) },
        { title: "After group", num: true, text: (row) => count(row.after_group - 1), key: (row) => row.after_group },
        { title: "Hazard", text: (row) => `${row.hazard || ""}${row.reason === "hazard" ? "" : ` ${row.reason}`}`.trim(), key: (row) => row.hazard || row.reason },
        { title: "Earlier", name: true, text: (row) => name(row.earlier) },
        { title: "Later", name: true, text: (row) => name(row.later) },
        { title: "Memory", name: true, text: (row) => (row.buf ? bufferText(row.buf) : "") },
        { title: "Bytes", num: true, text: (row) => (row.buf ? bytes(row.p1 - row.p0) : ""), key: (row) => (row.buf ? row.p1 - row.p0 : 0) },
      ],
    };
  },

  fusions() {
    const name = (id) => short(nameOf(report.dispatch_list[this.byId.get(id)] || recordedById.get(id)));
    return {
      label: "Refused fusions", rows: report.refused_fusions, reason: (row) => row.reason.replaceAll("_", " "),
      pick: (row) => this.byId.has(row.consumer) && this.open({ kind: "dispatch", at: this.byId.get(row.consumer) }),
      columns: [
        { title: "Rule", text: (row) => row.rule, key: (row) => row.rule },
        { title: "Producer", name: true, text: (row) => name(row.producer) },
        { title: "Consumer", name: true, text: (row) => name(row.consumer) },
        { title: "Between them", name: true, text: (row) => bufferText(row.buf) },
        { title: "Why not", name: true, text: (row) => row.text, key: (row) => row.reason },
      ],
    };
  },

  moves() {
    const name = (index) => (index === undefined ? "" : short(nameOf(report.dispatch_list[index])));
    const why = (row) => {
      if (row.hazard) return `${hazardText(row.hazard, name(row.earlier), name(row.dispatch))}: ${bufferText(row.buf)}, ${bytes(row.p1 - row.p0)}`;
      return {
        crosses_unannotated: `it would cross ${name(row.earlier)}, whose memory is unknown`,
        crosses_pinned: `it would cross ${name(row.earlier)}, which keeps its place`,
        immovable: "it keeps its own place",
      }[row.reason];
    };
    return {
      label: "Refused moves", rows: report.refused_moves, reason: (row) => row.hazard || row.reason.replaceAll("_", " "),
      pick: (row) => this.open({ kind: "dispatch", at: row.dispatch }),
      columns: [
        { title: "Dispatch", text: (row) => `#${report.dispatch_list[row.dispatch].id}`, key: (row) => report.dispatch_list[row.dispatch].id },
        { title: "Name", name: true, text: (row) => name(row.dispatch), key: (row) => name(row.dispatch) },
        { title: "Group", num: true, text: (row) => count(report.dispatch_list[row.dispatch].group), key: (row) => report.dispatch_list[row.dispatch].group },
        { title: "Why not earlier", name: true, text: why },
      ],
    };
  },

  /** Shows a row's subject in the schedule, which then stands in the compiled view. */
  open(found) {
    if (schedule.view.key !== "compiled") $("views").querySelector('[data-key="compiled"]').click();
    schedule.select(found);
    $("detail").scrollIntoView({ block: "nearest" });
  },

  mark(barrier) {
    if (this.kind === "barriers") this.table.reveal(barrier);
  },
};
