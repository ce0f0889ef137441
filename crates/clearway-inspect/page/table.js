// Tables of any length: a page of rows at a time, sorted by any column.
const PAGE_ROWS = 15;

/**
 * columns: [{ title, text(row), num, key(row), node(row), name }]; pick(row) makes rows open something.
 */
class Table {
  constructor(host, label, columns, { pick, rows = [], size = PAGE_ROWS } = {}) {
    Object.assign(this, { host, label, columns, pick, size });
    this.sort = null;
    this.page = 0;
    this.chosen = null;
    this.build();
    this.show(rows);
  }

  build() {
    this.heads = this.columns.map((column, at) => {
      const head = el("th", { scope: "col", class: column.num ? "num" : undefined });
      if (!column.key) { head.append(column.title); return head; }
      head.append(el("button", { type: "button", class: "link", on: { click: () => this.sortBy(at) } }, column.title));
      return head;
    });
    this.body = el("tbody");
    this.caption = el("caption", { class: "hidden" }, this.label);
    const table = el("table", {}, this.caption, el("thead", {}, el("tr", {}, ...this.heads)), this.body);
    this.where = el("span");
    this.back = el("button", { type: "button", "aria-label": "Previous rows", on: { click: () => this.turn(-1) } }, "‹");
    this.next = el("button", { type: "button", "aria-label": "Next rows", on: { click: () => this.turn(1) } }, "›");
    this.pager = el("div", { class: "pager" }, this.back, this.next, this.where);
    this.host.replaceChildren(el("div", { class: "scroll", tabindex: "0", role: "region", "aria-label": this.label }, table), this.pager);
  }

  show(rows) {
    this.rows = rows;
    this.page = 0;
    this.order();
    this.draw();
  }

  sortBy(at) {
    const down = this.sort && this.sort.at === at ? !this.sort.down : Boolean(this.columns[at].num);
    this.sort = { at, down };
    this.page = 0;
    this.order();
    this.draw();
  }

  order() {
    this.sorted = this.rows;
    if (!this.sort) return;
    const key = this.columns[this.sort.at].key;
    const sign = this.sort.down ? -1 : 1;
    const compare = (a, b) => (typeof a === "number" ? a - b : String(a).localeCompare(String(b)));
    this.sorted = [...this.rows].sort((a, b) => sign * compare(key(a), key(b)));
  }

  turn(step) {
    this.page += step;
    this.draw();
  }

  /** Opens the page a row is on and marks it. */
  reveal(row) {
    this.chosen = row;
    const at = this.sorted.indexOf(row);
    if (at >= 0) this.page = Math.floor(at / this.size);
    this.draw();
  }

  draw() {
    const pages = Math.max(1, Math.ceil(this.sorted.length / this.size));
    this.page = Math.min(Math.max(0, this.page), pages - 1);
    const start = this.page * this.size;
    const rows = this.sorted.slice(start, start + this.size);
    this.body.replaceChildren(...rows.map((row) => this.line(row)));
    if (rows.length === 0) this.body.append(el("tr", {}, el("td", { colspan: this.columns.length, class: "quiet" }, "None.")));
    this.heads.forEach((head, at) => {
      const sorted = this.sort && this.sort.at === at;
      head.setAttribute("aria-sort", sorted ? (this.sort.down ? "descending" : "ascending") : "none");
    });
    this.where.textContent = this.sorted.length > 0
      ? `${count(start + 1)} to ${count(start + rows.length)} of ${count(this.sorted.length)}` : "";
    this.back.disabled = this.page === 0;
    this.next.disabled = this.page === pages - 1;
    this.pager.hidden = pages === 1;
  }

  line(row) {
    const cells = this.columns.map((column, at) => {
      const content = column.node ? column.node(row) : column.text(row);
      // The first cell opens the row for the keyboard; the mouse may click anywhere.
      const opened = this.pick && at === 0
        ? el("button", { type: "button", class: "link", on: { click: (event) => { event.stopPropagation(); this.choose(row); } } }, content)
        : content;
      return el("td", { class: column.num ? "num" : column.name ? "name" : undefined }, opened);
    });
    const chosen = this.pick ? String(row === this.chosen) : undefined;
    const line = el("tr", { class: this.pick ? "pick" : undefined, "aria-selected": chosen }, ...cells);
    if (this.pick) line.addEventListener("click", () => this.choose(row));
    return line;
  }

  choose(row) {
    this.chosen = row;
    this.pick(row);
    this.draw();
  }
}
