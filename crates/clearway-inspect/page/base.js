// Small things everything else uses. Text from the report enters the page through text nodes only.
const $ = (id) => document.getElementById(id);

/** An element with properties and children; strings become text nodes. */
function el(tag, props = {}, ...children) {
  const node = document.createElement(tag);
  for (const [key, value] of Object.entries(props)) {
    if (value === undefined || value === null || value === false) continue;
    if (key === "class") node.className = value;
    else if (key === "on") for (const [event, run] of Object.entries(value)) node.addEventListener(event, run);
    else if (key === "style") Object.assign(node.style, value);
    else node.setAttribute(key, value === true ? "" : String(value));
  }
  node.append(...children.filter((child) => child !== undefined && child !== null));
  return node;
}

const grouped = new Intl.NumberFormat("en", { maximumFractionDigits: 2 });
const count = (n) => grouped.format(n);
const plural = (n, word) => `${count(n)} ${word}${n === 1 ? "" : word.endsWith("ch") ? "es" : "s"}`;

function bytes(n) {
  if (n < 1024) return `${n} B`;
  const units = ["KiB", "MiB", "GiB", "TiB"];
  let value = n / 1024, unit = 0;
  while (value >= 1024 && unit + 1 < units.length) { value /= 1024; unit += 1; }
  return `${value.toFixed(value < 10 ? 2 : 1)} ${units[unit]}`;
}

function time(ns) {
  if (ns < 1e3) return `${Math.round(ns)} ns`;
  if (ns < 1e6) return `${(ns / 1e3).toFixed(2)} µs`;
  if (ns < 1e9) return `${(ns / 1e6).toFixed(2)} ms`;
  return `${(ns / 1e9).toFixed(2)} s`;
}

const percent = (share) => `${(100 * share).toFixed(share < 0.1 ? 1 : 0)} %`;

/** A name that may be of any length, cut for places that have little room. */
function short(text, most = 80) {
  const chars = Array.from(text.slice(0, 2 * most + 2));
  return chars.length > most ? chars.slice(0, most - 1).join("") + "…" : text;
}

/** Buttons of which one is chosen; arrow keys move the choice. */
function segmented(host, items, chosen, choose) {
  const buttons = items.map(([key, title]) => el("button", { type: "button", role: "radio", "data-key": key }, title));
  const set = (key) => {
    for (const button of buttons) {
      const on = button.dataset.key === key;
      button.setAttribute("aria-checked", String(on));
      button.tabIndex = on ? 0 : -1;
    }
  };
  const pick = (key) => { set(key); choose(key); };
  buttons.forEach((button, at) => {
    button.addEventListener("click", () => pick(button.dataset.key));
    button.addEventListener("keydown", (event) => {
      const step = { ArrowRight: 1, ArrowDown: 1, ArrowLeft: -1, ArrowUp: -1 }[event.key];
      if (!step) return;
      event.preventDefault();
      const next = buttons[(at + step + buttons.length) % buttons.length];
      next.focus();
      pick(next.dataset.key);
    });
  });
  host.replaceChildren(...buttons);
  set(chosen);
  return set;
}

/** Colours of the style sheet, read again when the scheme changes. */
const palette = {
  read() {
    const style = getComputedStyle(document.documentElement);
    for (const name of ["bg", "panel", "ink", "quiet", "line", "soft", "accent", "mark", "product", "attention", "norm", "element", "memory", "route", "other"]) {
      this[name] = style.getPropertyValue(`--${name}`).trim();
    }
    this.boxInk = style.getPropertyValue("--box-ink").trim();
    this.accentSoft = style.getPropertyValue("--accent-soft").trim();
  },
};

/** A canvas in device pixels; answers the context and the size in page pixels. */
function surface(canvas, height) {
  const ratio = window.devicePixelRatio || 1;
  const width = canvas.clientWidth || canvas.parentElement.clientWidth;
  canvas.style.height = `${height}px`;
  const [w, h] = [Math.max(1, Math.round(width * ratio)), Math.max(1, Math.round(height * ratio))];
  if (canvas.width !== w || canvas.height !== h) { canvas.width = w; canvas.height = h; }
  const ctx = canvas.getContext("2d");
  ctx.setTransform(ratio, 0, 0, ratio, 0, 0);
  ctx.clearRect(0, 0, width, height);
  return { ctx, width, height };
}

/** Runs a drawing once before the next frame, however often it is asked for. */
function painter(draw) {
  let asked = false;
  return () => {
    if (asked) return;
    asked = true;
    requestAnimationFrame(() => { asked = false; draw(); });
  };
}

const FONT = '11px system-ui, -apple-system, "Segoe UI", Roboto, "Noto Sans", sans-serif';

/** Text cut to a width. Letters are about six pixels wide at this size; measuring decides. */
function fillCut(ctx, text, x, y, width) {
  if (width < 14) return;
  let cut = text.length > width / 3 ? text.slice(0, Math.ceil(width / 3)) : text;
  if (ctx.measureText(cut).width > width) {
    let low = 0, high = cut.length;
    while (low < high) {
      const middle = (low + high + 1) >> 1;
      if (ctx.measureText(cut.slice(0, middle) + "…").width <= width) low = middle;
      else high = middle - 1;
    }
    if (low === 0) return;
    cut = cut.slice(0, low) + "…";
  }
  ctx.fillText(cut, x, y);
}

const tip = {
  show(text, event) {
    const node = $("tip");
    node.textContent = text;
    node.hidden = false;
    const { width, height } = node.getBoundingClientRect();
    const left = Math.min(event.clientX + 14, innerWidth - width - 8);
    const below = event.clientY + 18;
    node.style.left = `${Math.max(8, left)}px`;
    node.style.top = `${below + height < innerHeight ? below : event.clientY - height - 12}px`;
  },
  hide() { $("tip").hidden = true; },
};
