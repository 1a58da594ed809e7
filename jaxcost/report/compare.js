// Memory over the schedule: one stacked area per column, and what is live under the cursor beside it.
// Reads the JSON of #schedule-data; moved by the pointer, by the range input, or by the arrow keys on it.
"use strict";
(() => {
  const all = JSON.parse(document.getElementById("schedule-data").textContent);
  const box = document.getElementById("schedule");
  if (!box || !all.columns.length) return;
  const SVG = "http://www.w3.org/2000/svg";
  const W = 960, H = 330, LEFT = 66, RIGHT = 12, TOP = 22, BOTTOM = 40;
  const plot = document.getElementById("plot"), range = document.getElementById("cursor");
  const head = document.getElementById("live-head"), body = document.getElementById("live");
  const sums = document.getElementById("live-classes"), whole = (n) => n.toLocaleString("en-US");
  let column = all.columns[0], points = [], x, y, line;

  const unit = (most) => [[2 ** 30, "GiB"], [2 ** 20, "MiB"], [2 ** 10, "KiB"], [1, "B"]].find(([step]) => most >= step) || [1, "B"];
  const size = (n) => { const [step, name] = unit(Math.abs(n)); return `${(n / step).toFixed(step === 1 ? 0 : 2)} ${name}`; };

  function node(name, attributes, text) {
    const made = document.createElementNS(SVG, name);
    for (const [key, value] of Object.entries(attributes)) made.setAttribute(key, value);
    if (text !== undefined) made.textContent = text;
    return made;
  }

  function cell(row, text, kind, title) {
    const made = document.createElement("td");
    made.textContent = text;
    if (kind) made.className = kind;
    if (title) made.title = title;
    row.append(made);
    return made;
  }

  // A round distance between grid lines, so that there are about five of them.
  function tick(most) {
    const [step] = unit(most), rough = most / step / 5, power = 10 ** Math.floor(Math.log10(rough));
    return step * power * [1, 2, 5, 10].find((factor) => factor * power >= rough);
  }

  function area(lower, upper) {
    const there = [], back = [];
    points.forEach((point, i) => {
      const from = x(point.step), to = i + 1 < points.length ? x(points[i + 1].step) : W - RIGHT;
      there.push(`${from},${y(upper[i])} ${to},${y(upper[i])}`);
      back.unshift(`${to},${y(lower[i])} ${from},${y(lower[i])}`);
    });
    return `M${there.join(" L")} L${back.join(" L")} Z`;
  }

  function draw() {
    points = column.timeline.points;
    const first = points[0].step, last = Math.max(points[points.length - 1].step, first + 1);
    const highest = Math.max(...points.map((point) => point.bytes));
    const limits = Object.entries(column.limits).filter(([, value]) => value !== null && value < 3 * highest);
    const most = 1.06 * Math.max(highest, ...limits.map(([, value]) => value));
    x = (step) => LEFT + (W - LEFT - RIGHT) * (step - first) / (last - first);
    y = (bytes) => H - BOTTOM - (H - TOP - BOTTOM) * bytes / most;
    plot.replaceChildren();
    plot.setAttribute("aria-label", `memory over the schedule of ${column.label}, at most ${whole(highest)} bytes`);
    for (let at = 0; at <= most; at += tick(most)) {
      plot.append(node("line", { x1: LEFT, x2: W - RIGHT, y1: y(at), y2: y(at), class: "grid" }));
      plot.append(node("text", { x: LEFT - 6, y: y(at) + 4, "text-anchor": "end" }, at ? size(at).replace(/\.00 /, " ") : "0"));
    }
    let lower = points.map(() => 0);
    for (const name of all.classes) {
      const upper = points.map((point, i) => lower[i] + (point.by_class[name] || 0));
      if (upper.some((value, i) => value > lower[i])) {
        const shape = node("path", { d: area(lower, upper), class: `c-${name}` });
        shape.append(node("title", {}, name));
        plot.append(shape);
      }
      lower = upper;
    }
    for (const [name, value] of limits) {
      for (const kind of ["under", "limit"]) {
        plot.append(node("line", { x1: LEFT, x2: W - RIGHT, y1: y(value), y2: y(value), class: kind }));
      }
      plot.append(node("text", { x: W - RIGHT - 4, y: y(value) - 4, "text-anchor": "end" }, `${name} of the device`));
    }
    let start = 0;
    points.forEach((point, i) => {
      const next = points[i + 1];
      if (next && next.moment === point.moment) return;
      const from = x(points[start].step), to = next ? x(next.step) : W - RIGHT;
      plot.append(node("line", { x1: from, x2: from, y1: H - BOTTOM, y2: H - BOTTOM + 6, class: "axis" }));
      if (to - from > 46) plot.append(node("text", { x: (from + to) / 2, y: H - BOTTOM + 18, "text-anchor": "middle" }, point.moment));
      start = i + 1;
    });
    plot.append(node("line", { x1: LEFT, x2: W - RIGHT, y1: H - BOTTOM, y2: H - BOTTOM, class: "axis" }));
    plot.append(node("text", { x: (LEFT + W) / 2, y: H - 6, "text-anchor": "middle" }, `steps of the schedule, ${whole(column.timeline.steps)} in all`));
    line = node("line", { y1: TOP - 8, y2: H - BOTTOM, class: "cursor" });
    plot.append(line);
    range.max = points.length - 1;
    const peak = points.findIndex((point) => point.step === column.timeline.peak_step);
    show(peak < 0 ? points.reduce((best, point, i) => (point.bytes > points[best].bytes ? i : best), 0) : peak);
  }

  function show(index) {
    const point = points[index], at = x(point.step);
    range.value = index;
    line.setAttribute("x1", at);
    line.setAttribute("x2", at);
    const place = [...new Set([point.moment, point.scope, point.phase])].filter(Boolean).join(", ");
    const most = point.step === column.timeline.peak_step ? " (the peak)" : "";
    range.setAttribute("aria-valuetext", `step ${point.step}, ${size(point.bytes)} live${most}, ${place}`);
    head.replaceChildren();
    const strong = document.createElement("b");
    strong.textContent = `${size(point.bytes)} live`;
    strong.title = `${whole(point.bytes)} bytes`;
    head.append(strong, `${most} at step ${whole(point.step)}: ${place || "no component"} `);
    const code = document.createElement("code");
    code.textContent = point.instruction;
    head.append(code);
    sums.replaceChildren();
    for (const name of all.classes) {
      if (!point.by_class[name]) continue;
      const item = document.createElement("span"), swatch = document.createElement("i");
      swatch.className = `s-${name}`;
      item.append(swatch, `${name.replaceAll("_", " ")} ${size(point.by_class[name])}`);
      item.title = `${whole(point.by_class[name])} bytes`;
      sums.append(item);
    }
    body.replaceChildren();
    for (const id of point.live) {
      const buffer = column.timeline.buffers[id], row = document.createElement("tr");
      const kind = cell(row, ""), swatch = document.createElement("i");
      swatch.className = `s-${buffer.class}`;
      kind.append(swatch, String(buffer.class).replaceAll("_", " "));
      cell(row, size(buffer.bytes), "n", `${whole(buffer.bytes)} bytes`);
      cell(row, buffer.shape);
      cell(row, [buffer.scope, buffer.phase].filter(Boolean).join(", ") || "-");
      cell(row, buffer.source || buffer.instruction, "dim");
      body.append(row);
    }
  }

  // The last point at or before the pointer: its bytes hold until the next one.
  function under(event) {
    const screen = plot.getBoundingClientRect(), at = (event.clientX - screen.left) * W / screen.width;
    let found = 0;
    points.forEach((point, i) => { if (x(point.step) <= at) found = i; });
    return found;
  }

  plot.addEventListener("pointermove", (event) => show(under(event)));
  range.addEventListener("input", () => show(Number(range.value)));
  document.getElementById("to-peak").addEventListener("click", draw);
  for (const choice of document.querySelectorAll("input[name=column]")) {
    choice.addEventListener("change", () => { column = all.columns[Number(choice.value)]; draw(); });
  }
  box.hidden = false;
  draw();
})();
