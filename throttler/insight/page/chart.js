"use strict";

// Charts go back from LEAST to KEEP milliseconds: as far as there are samples.
const LEAST = 60 * 1000, KEEP = 5 * LEAST;

// make makes an element. Text is set as text, so that no key becomes markup.
function make(name, className, text) {
  const e = document.createElement(name);
  if (className) e.className = className;
  if (text !== undefined) e.textContent = text;
  return e;
}

function shape(name, attributes) {
  const e = document.createElementNS("http://www.w3.org/2000/svg", name);
  for (const [k, v] of Object.entries(attributes)) e.setAttribute(k, v);
  return e;
}

const decimals = new Intl.NumberFormat("en", { maximumFractionDigits: 1 });
const number = (n) => decimals.format(n);

// ceiling is the least round number that is not below n.
function ceiling(n) {
  if (n <= 1) return 1;
  const power = 10 ** Math.floor(Math.log10(n));
  return [1, 2, 3, 4, 6, 8, 10].map((f) => f * power).find((c) => c >= n);
}

// History holds samples {at, values} of the last minutes. A sample without values is a gap: nothing is drawn up to it.
class History {
  samples = [];

  add(at, values) {
    this.samples.push({ at, values });
    while (this.samples[0].at < at - KEEP) this.samples.shift();
  }

  // draw draws the areas of the names, stacked in this order, under a largest value.
  draw(svg, names, classes, top) {
    const end = this.samples.at(-1).at, span = this.span();
    const x = (at) => (1000 * (1 - (end - at) / span)).toFixed(1);
    const y = (n) => (100 * (1 - n / top)).toFixed(2);
    const drawn = [];
    const below = new Map();
    for (const [i, name] of names.entries()) {
      let outline = "";
      for (const run of this.runs()) {
        const upper = [], lower = [];
        for (const s of run) {
          const base = below.get(s) ?? 0, sum = base + (s.values[name] ?? 0);
          lower.unshift(`${x(s.at)} ${y(base)}`);
          upper.push(`${x(s.at)} ${y(sum)}`);
          below.set(s, sum);
        }
        outline += `M${upper.concat(lower).join("L")}Z`;
      }
      drawn.push(shape("path", { d: outline, class: classes[i] }));
    }
    for (const s of this.samples) {
      if (s.values === null) {
        drawn.push(shape("line", { x1: x(s.at), x2: x(s.at), y1: 0, y2: 100, class: "restart", "vector-effect": "non-scaling-stroke" }));
      }
    }
    svg.replaceChildren(...drawn);
  }

  // span is the time that is drawn, in milliseconds.
  span() {
    return Math.max(LEAST, this.samples.at(-1).at - this.samples[0].at);
  }

  nearest(at) {
    return this.samples.reduce((best, s) => (Math.abs(s.at - at) < Math.abs(best.at - at) ? s : best));
  }

  // runs are the samples between gaps.
  runs() {
    const all = [[]];
    for (const s of this.samples) {
      if (s.values === null) all.push([]);
      else all.at(-1).push(s);
    }
    return all.filter((run) => run.length > 1);
  }

  max(names) {
    let most = 0;
    for (const s of this.samples) {
      if (s.values) most = Math.max(most, names.reduce((sum, name) => sum + (s.values[name] ?? 0), 0));
    }
    return most;
  }
}

function canvas(label) {
  return shape("svg", { viewBox: "0 0 1000 100", preserveAspectRatio: "none", role: "img", "aria-label": label });
}

// Chart draws stacked areas with a scale, and a legend with the latest values or those under the pointer.
class Chart {
  history = new History();

  constructor(figure, names) {
    this.names = Object.keys(names);
    this.classes = Object.values(names);
    this.svg = canvas(figure.querySelector("figcaption").textContent);
    this.top = make("span");
    this.begin = make("span");
    this.end = make("span");
    const above = make("div", "scale"), under = make("div", "scale"), legend = make("ul", "legend");
    above.append(this.top);
    under.append(this.begin, this.end);
    this.entries = this.names.map((name, i) => {
      const entry = make("li"), value = make("b", "", "–");
      entry.append(make("i", this.classes[i]), `${name.replace("_", " ")} `, value);
      legend.append(entry);
      return { entry, value };
    });
    figure.append(above, this.svg, under, legend);
    this.svg.addEventListener("pointermove", (e) => {
      const box = this.svg.getBoundingClientRect();
      this.pointer = (e.clientX - box.left) / box.width;
      this.label();
    });
    this.svg.addEventListener("pointerleave", () => {
      this.pointer = null;
      this.label();
    });
  }

  add(at, values) {
    this.history.add(at, values);
    const top = ceiling(this.history.max(this.names));
    this.top.textContent = number(top);
    this.begin.textContent = `${Math.round(this.history.span() / 1000)} s ago`;
    this.history.draw(this.svg, this.names, this.classes, top);
    this.names.forEach((name, i) => {
      this.entries[i].entry.hidden = !this.history.samples.some((s) => s.values?.[name] > 0);
    });
    this.label();
  }

  // label writes the values of the sample under the pointer, or of the latest.
  label() {
    const latest = this.history.samples.at(-1);
    if (!latest) return;
    const { at, values } = this.pointer == null ? latest : this.history.nearest(latest.at - (1 - this.pointer) * this.history.span());
    this.end.textContent = this.pointer == null ? "now" : new Date(at).toLocaleTimeString();
    this.names.forEach((name, i) => {
      this.entries[i].value.textContent = values ? number(values[name] ?? 0) : "–";
    });
  }
}
