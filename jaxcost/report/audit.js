// Where the cost is: a flame graph and a tree over the same nodes, by module or by source, in one of four columns.
// Reads the JSON of #audit-data. Every name goes through textContent or title, never through markup.
// The address may say what to show: #tree=calls&column=bytes&node=12&search=attn
"use strict";
(() => {
  const element = (id) => document.getElementById(id);
  const box = element("places"), source = element("audit-data");
  if (!box || !source) return;
  const data = JSON.parse(source.textContent);
  const flame = element("flame"), crumbs = element("crumbs"), told = element("told"), body = element("tree-body");
  const search = element("search"), found = element("found"), pruned = element("pruned");
  const [PARENT, NAME, KIND, WHERE, TOTAL, OWN] = [0, 1, 2, 3, 4, 5];
  const ROW = 21, LEAST = 0.0007;
  const state = { tree: 0, column: 0, focus: 0, row: 0, search: "" };

  for (const tree of data.trees) {
    tree.below = tree.nodes.map(() => []);
    tree.nodes.forEach((node, i) => { if (node[PARENT] !== null) tree.below[node[PARENT]].push(i); });
    tree.depth = [];
    tree.nodes.forEach((node, i) => { tree.depth[i] = node[PARENT] === null ? 0 : tree.depth[node[PARENT]] + 1; });
    tree.open = new Set([0]);
  }
  const tree = () => data.trees[state.tree], column = () => data.columns[state.column];

  // A value is a number, a text of digits (too large for a number to be exact), or [least, most]; most may be null.
  const size = (value) => Array.isArray(value) ? Number(value[1] === null ? value[0] : value[1]) : Number(value);
  const total = (i, at = state.column) => size(tree().nodes[i][TOTAL][at]);
  const own = (i, at = state.column) => size(tree().nodes[i][OWN][at]);
  const grouped = (digits) => String(digits).replace(/\B(?=(\d{3})+(?!\d))/g, ",");

  function rounded(n, unit) {
    const [base, names] = unit === "bytes" ? [1024, ["B", "KiB", "MiB", "GiB", "TiB", "PiB", "EiB"]]
      : [1000, ["", "k", "M", "G", "T", "P", "E", "Z"]];
    let step = 0;
    while (n >= base && step < names.length - 1) { n /= base; step += 1; }
    const text = step === 0 ? String(n) : n.toFixed(n < 100 ? 2 : 0);
    return `${text} ${names[step]}${unit === "bytes" ? "" : "FLOP"}`.replace(/ $/, "");
  }
  function shown(value, unit, make = (v) => rounded(Number(v), unit)) {
    if (!Array.isArray(value)) return make(value);
    return value[1] === null ? `${make(value[0])} + unknown` : `${make(value[0])} to ${make(value[1])}`;
  }
  const exactly = (value, unit) => `${shown(value, unit, grouped)} ${unit}`;
  const percent = (part, whole) => whole && part ? `${(100 * part / whole).toFixed(part / whole < 0.0995 ? 2 : 1)}%` : "";

  function order(i) { return [...tree().below[i]].sort((a, b) => total(b) - total(a) || a - b); }
  function path(i) {
    const names = [];
    for (let at = i; at !== null; at = tree().nodes[at][PARENT]) names.unshift(at);
    return names;
  }
  function hit(i) {
    if (!state.search) return false;
    const node = tree().nodes[i];
    return `${node[NAME]} ${node[WHERE]}`.toLowerCase().includes(state.search);
  }
  function hue(text) {
    let hash = 7;
    for (let i = 0; i < text.length; i += 1) hash = (hash * 31 + text.charCodeAt(i)) % 360;
    return hash;
  }
  function make(name, kind, text) {
    const node = document.createElement(name);
    if (kind) node.className = kind;
    if (text !== undefined) node.textContent = text;
    return node;
  }

  // The flame graph: the way to what is in focus as whole rows, below it what it is made of.
  function frame(i, left, width, row) {
    const node = tree().nodes[i], made = make("div", `frame ${node[KIND]}`);
    made.style.left = `${100 * left}%`;
    made.style.width = `${100 * width}%`;
    made.style.top = `${ROW * row}px`;
    made.style.setProperty("--hue", hue(node[NAME]));
    made.dataset.node = i;
    made.tabIndex = -1;
    made.setAttribute("role", "treeitem");
    made.setAttribute("aria-level", row + 1);
    const value = node[TOTAL][state.column];
    const label = `${node[NAME]}: ${shown(value, column().unit)}, ${percent(total(i), total(0))}`;
    made.setAttribute("aria-label", label);
    made.title = `${label}${node[WHERE] ? `\n${node[WHERE]}` : ""}`;
    if (width > 0.012) made.append(make("span", "", node[NAME]));
    if (state.search) made.classList.add(hit(i) ? "hit" : "miss");
    if (Array.isArray(value) && value[1] === null) made.classList.add("unknown-part");
    return made;
  }
  function drawFlame() {
    flame.replaceChildren();
    const whole = total(0), above = path(state.focus);
    element("nothing").hidden = whole > 0;
    let rows = above.length;
    above.forEach((i, row) => {
      const made = frame(i, 0, 1, row);
      if (i !== state.focus) made.classList.add("above");
      flame.append(made);
    });
    const waiting = total(state.focus) > 0 ? [[state.focus, 0, 1, above.length]] : [];
    while (waiting.length) {
      const [i, left, width, row] = waiting.pop();
      const below = order(i), inside = below.reduce((sum, child) => sum + total(child), 0);
      const scale = width / Math.max(total(i), inside, 1);
      let at = left;
      for (const child of below) {
        const wide = total(child) * scale;
        if (wide < LEAST) break;
        flame.append(frame(child, at, wide, row));
        rows = Math.max(rows, row + 1);
        waiting.push([child, at, wide, row + 1]);
        at += wide;
      }
    }
    flame.style.height = `${ROW * rows}px`;
    const first = flame.querySelector(`[data-node="${state.focus}"]`);
    if (first) first.tabIndex = 0;
    crumbs.replaceChildren();
    above.forEach((i, at) => {
      const button = make("button", "", tree().nodes[i][NAME]);
      button.type = "button";
      button.disabled = i === state.focus;
      button.addEventListener("click", () => zoom(i));
      if (at) crumbs.append(" / ");
      crumbs.append(button);
    });
    tell(state.focus);
  }
  function tell(i) {
    const node = tree().nodes[i], unit = column().unit;
    told.replaceChildren(make("b", "", node[NAME]), ` ${shown(node[TOTAL][state.column], unit)}`);
    told.append(make("span", "dim", ` (${exactly(node[TOTAL][state.column], unit)}), ${percent(total(i), total(0))} of all`));
    if (own(i) && tree().below[i].length) told.append(`, ${shown(node[OWN][state.column], unit)} of its own`);
    if (node[WHERE]) told.append(" ", make("code", "", node[WHERE]));
  }

  // The tree: one row for each node that is not folded away.
  function drawTree() {
    body.replaceChildren();
    const waiting = [0];
    while (waiting.length) {
      const i = waiting.pop(), node = tree().nodes[i], below = tree().below[i], row = make("tr", node[KIND]);
      row.dataset.node = i;
      row.tabIndex = i === state.row ? 0 : -1;
      row.setAttribute("role", "row");
      row.setAttribute("aria-level", tree().depth[i] + 1);
      if (below.length) row.setAttribute("aria-expanded", tree().open.has(i));
      if (i === state.focus) row.setAttribute("aria-selected", "true");
      if (state.search) row.classList.add(hit(i) ? "hit" : "miss");
      const name = make("td", "name");
      name.setAttribute("role", "rowheader");
      name.style.paddingLeft = `${Math.min(tree().depth[i], 30) * 1.05}em`;
      name.append(make("span", "fold", below.length ? (tree().open.has(i) ? "▾" : "▸") : ""));
      name.append(make("span", "label", node[NAME]));
      if (node[WHERE]) name.append(" ", make("small", "dim", node[WHERE]));
      row.append(name);
      const share = make("td", "share"), bar = make("i");
      bar.style.width = `${Math.min(100, 100 * total(i) / Math.max(total(0), 1))}%`;
      share.append(bar, make("span", "", percent(total(i), total(0))));
      row.append(share);
      data.columns.forEach((one, at) => {
        const value = node[TOTAL][at], cell = make("td", at === state.column ? "n chosen" : "n");
        cell.textContent = size(value) || Array.isArray(value) ? shown(value, one.unit) : "-";
        if (size(value)) cell.title = `${exactly(value, one.unit)}, ${percent(total(i, at), total(0, at))}; own ${exactly(node[OWN][at], one.unit)}`;
        row.append(cell);
      });
      for (const cell of row.cells) if (!cell.getAttribute("role")) cell.setAttribute("role", "gridcell");
      body.append(row);
      if (tree().open.has(i)) waiting.push(...order(i).reverse());
    }
  }
  function fold(i, open) {
    if (!tree().below[i].length || tree().open.has(i) === open) return;
    if (open) tree().open.add(i); else tree().open.delete(i);
    go(i);
  }
  function go(i) {
    state.row = i;
    drawTree();
    const row = body.querySelector(`[data-node="${i}"]`);
    if (row) row.focus();
  }
  function opening() {
    const all = tree(), waiting = [0];
    for (let rows = 1; waiting.length && rows < 40;) {
      const i = waiting.shift();
      if (!all.below[i].length || total(i) < 0.2 * total(0)) continue;
      all.open.add(i);
      rows += all.below[i].length;
      waiting.push(...order(i));
    }
  }

  function zoom(i) {
    state.focus = state.row = i;
    for (const at of path(i)) tree().open.add(at);
    draw();
  }
  function look(text) {
    state.search = text.trim().toLowerCase();
    const matches = [], covered = new Set();
    tree().nodes.forEach((node, i) => {
      const above = node[PARENT];
      if (above !== null && covered.has(above)) covered.add(i);
      if (!hit(i)) return;
      if (!covered.has(i)) matches.push(i);
      covered.add(i);
    });
    found.textContent = state.search ? `${matches.length} found, ${percent(matches.reduce((sum, i) => sum + total(i), 0), total(0)) || "0%"} of ${column().title}` : "";
    for (const i of matches.slice(0, 40)) for (const at of path(i).slice(0, -1)) tree().open.add(at);
  }
  function draw() {
    element("tree").setAttribute("aria-label", `${column().title} by ${tree().title}`);
    pruned.textContent = tree().note;
    document.querySelectorAll("#tree th.n").forEach((head, at) => head.classList.toggle("chosen", at === state.column));
    look(search.value);
    drawFlame();
    drawTree();
    const words = new URLSearchParams({ tree: tree().key, column: column().key });
    if (state.focus) words.set("node", state.focus);
    if (search.value) words.set("search", search.value);
    try { history.replaceState(null, "", `#${words}`); } catch (error) { /* an address that may not change */ }
  }
  function fromAddress() {
    const words = new URLSearchParams(location.hash.slice(1));
    state.tree = Math.max(0, data.trees.findIndex((one) => one.key === words.get("tree")));
    state.column = Math.max(0, data.columns.findIndex((one) => one.key === words.get("column")));
    if (!words.get("column") && !total(0)) state.column = Math.max(0, data.columns.findIndex((one, at) => total(0, at)));
    const node = Number(words.get("node"));
    state.focus = state.row = Number.isInteger(node) && node > 0 && node < tree().nodes.length ? node : 0;
    search.value = words.get("search") || "";
    element(`by-${tree().key}`).checked = element(`of-${column().key}`).checked = true;
    opening();
    zoom(state.focus);
  }

  const nodeOf = (event) => { const at = event.target.closest("[data-node]"); return at ? Number(at.dataset.node) : null; };
  flame.addEventListener("click", (event) => { const i = nodeOf(event); if (i !== null) zoom(i); });
  flame.addEventListener("pointerover", (event) => { const i = nodeOf(event); if (i !== null) tell(i); });
  flame.addEventListener("pointerleave", () => tell(state.focus));
  flame.addEventListener("focusin", (event) => { const i = nodeOf(event); if (i !== null) tell(i); });
  flame.addEventListener("keydown", (event) => {
    const i = nodeOf(event);
    if (i === null) return;
    const above = tree().nodes[i][PARENT], drawn = (n) => flame.querySelector(`[data-node="${n}"]`);
    const beside = above === null ? [i] : order(above).filter(drawn), at = beside.indexOf(i);
    const next = {
      ArrowLeft: beside[at - 1], ArrowRight: beside[at + 1], ArrowUp: above, ArrowDown: order(i).find(drawn),
    };
    if (event.key in next) {
      const to = next[event.key];
      if (to !== undefined && to !== null && drawn(to)) drawn(to).focus();
    } else if (event.key === "Enter" || event.key === " ") {
      zoom(i);
      drawn(i).focus();
    } else if (event.key === "Escape") {
      zoom(0);
      drawn(0).focus();
    } else return;
    event.preventDefault();
  });
  body.addEventListener("click", (event) => {
    const i = nodeOf(event);
    if (i === null) return;
    if (event.target.closest(".fold")) fold(i, !tree().open.has(i));
    else if (event.target.closest(".label")) { zoom(i); go(i); }
    else go(i);
  });
  body.addEventListener("keydown", (event) => {
    const i = nodeOf(event);
    if (i === null) return;
    const rows = [...body.rows], at = rows.findIndex((row) => Number(row.dataset.node) === i);
    const to = { ArrowUp: rows[at - 1], ArrowDown: rows[at + 1], Home: rows[0], End: rows[rows.length - 1] };
    if (event.key in to) { if (to[event.key]) go(Number(to[event.key].dataset.node)); }
    else if (event.key === "ArrowRight") {
      if (tree().below[i].length && !tree().open.has(i)) fold(i, true);
      else if (tree().below[i].length) go(order(i)[0]);
    } else if (event.key === "ArrowLeft") {
      if (tree().below[i].length && tree().open.has(i)) fold(i, false);
      else if (tree().nodes[i][PARENT] !== null) go(tree().nodes[i][PARENT]);
    } else if (event.key === "Enter" || event.key === " ") { zoom(i); go(i); }
    else return;
    event.preventDefault();
  });
  search.addEventListener("input", draw);
  for (const [group, name] of [["trees", "tree"], ["columns", "column"]]) {
    data[group].forEach((one, at) => element(`${name === "tree" ? "by" : "of"}-${one.key}`).addEventListener("change", () => {
      state[name] = at;
      if (name === "tree") state.focus = state.row = 0;
      opening();
      draw();
    }));
  }
  element("all-open").addEventListener("click", () => { tree().nodes.forEach((node, i) => tree().open.add(i)); drawTree(); });
  element("all-shut").addEventListener("click", () => { tree().open = new Set([0]); state.row = 0; drawTree(); });
  addEventListener("hashchange", fromAddress);
  box.hidden = false;
  fromAddress();
})();
