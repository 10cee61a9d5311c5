"use strict";
// Reads the tables that the charts stand above; the page is whole without it.
(() => {
  const $ = (selector, root = document) => [...root.querySelectorAll(selector)];
  const tip = document.getElementById("tip");
  const said = document.getElementById("said");
  const visible = (g) => g === undefined || (document.getElementById("t" + g)?.checked ?? true);
  const tableOf = (plot) => plot.closest("figure").querySelector("table");
  const numbers = (text) => text.split(" ").map(Number);
  const make = (name, className, text = "") => {
    const element = document.createElement(name);
    element.className = className;
    element.textContent = text;
    return element;
  };
  const number = (cell) => (cell && cell.textContent !== "" ? Number(cell.textContent) : NaN);

  // A line chart's series: one a group, with the places of its values.
  const lines = (plot) => {
    const table = tableOf(plot);
    const found = new Map();
    let common = null;
    [...table.tHead.rows[0].cells].forEach((head, column) => {
      const values = [...table.tBodies[0].rows].map((row) => number(row.cells[column]));
      const { r: role, g } = head.dataset;
      if (g === undefined) { common = values; return; }
      if (!found.has(g)) found.set(g, { g, name: "", x: common });
      const series = found.get(g);
      if (role === "mean") series.name = head.textContent.replace(/: mean$/, "");
      series[role] = values;
    });
    return [...found.values()];
  };

  const nearest = (values, wanted, held) => {
    let best = -1;
    values.forEach((v, i) => {
      if (Number.isFinite(v) && Number.isFinite(held[i]) &&
          (best < 0 || Math.abs(v - wanted) < Math.abs(values[best] - wanted))) best = i;
    });
    return best;
  };

  const readers = {
    lines(plot) {
      const all = lines(plot);
      const [low, high] = numbers(plot.dataset.x), [bottom, top] = numbers(plot.dataset.y);
      const unit = plot.dataset.unit;
      const axis = plot.querySelector(".axis").textContent;
      const shown = () => all.filter((s) => visible(s.g));
      return {
        // Where a key leads: from value to value of the first series that is switched on.
        step(now, dx) {
          const xs = shown()[0]?.x.filter(Number.isFinite) ?? [];
          if (!xs.length) return null;
          const at = now === null ? (dx < 0 ? xs.length : -1) : xs.reduce((b, v, i) => Math.abs(v - now) < Math.abs(xs[b] - now) ? i : b, 0);
          return xs[Math.max(0, Math.min(xs.length - 1, at + dx))];
        },
        at: (fx) => low + fx * (high - low),
        show(x) {
          const rows = [];
          let place = x;
          for (const s of shown()) {
            const i = nearest(s.x, x, s.mean);
            if (i < 0) continue;
            if (!rows.length) place = s.x[i];
            const spread = s.std && Number.isFinite(s.std[i]) ? " ± " + s.std[i] : "";
            const own = s.x !== all[0].x ? ` at ${s.x[i]}` : "";
            rows.push({ g: s.g, name: s.name, value: s.mean[i], text: s.mean[i] + spread + unit + own,
              fx: (s.x[i] - low) / (high - low), fy: 1 - (s.mean[i] - bottom) / (top - bottom) });
          }
          rows.sort((a, b) => b.value - a.value);
          return { title: `${axis} ${place}`, rows, fx: (place - low) / (high - low), cursor: true };
        },
      };
    },
    bars(plot) {
      const count = Number(plot.dataset.columns);
      const rows = [...tableOf(plot).tBodies[0].rows];
      const axis = plot.querySelector(".axis").textContent;
      return {
        step: (now, dx) => Math.max(0, Math.min(count - 1, (now ?? (dx < 0 ? count : -1)) + dx)),
        at: (fx) => Math.max(0, Math.min(count - 1, Math.floor(fx * count))),
        show: (i) => ({ title: `${axis} ${rows[i].cells[0].textContent}: ${rows[i].cells[1].textContent}`,
          rows: [], fx: (i + 0.5) / count, cursor: true }),
      };
    },
    heat(plot) {
      const n = Number(plot.dataset.rows), m = Number(plot.dataset.columns);
      const table = tableOf(plot);
      const [rowName, columnName] = table.tHead.rows[0].cells[0].textContent.split(" \\ ");
      const keep = (v, most) => Math.max(0, Math.min(most - 1, v));
      return {
        step: (now, dx, dy) => now === null ? [0, 0] : [keep(now[0] + dx, m), keep(now[1] + dy, n)],
        at: (fx, fy) => [keep(Math.floor(fx * m), m), keep(Math.floor(fy * n), n)],
        show([j, i]) {
          const row = table.tBodies[0].rows[i];
          const head = table.tHead.rows[0].cells[j + 1].textContent;
          return { title: `${rowName} ${row.cells[0].textContent}, ${columnName} ${head}: ` +
            (row.cells[j + 1].textContent || "not recorded") + plot.dataset.unit,
            rows: [], fx: (j + 0.5) / m, fy: (i + 0.5) / n, cell: [j / m, i / n, 1 / m, 1 / n] };
        },
      };
    },
  };

  const clear = (plot) => {
    $(".cursor, .dot, .cell", plot).forEach((e) => e.remove());
    tip.hidden = true;
  };

  let active = null, drawnAt = 0;
  const draw = (plot, found) => {
    clear(plot);
    [active, drawnAt] = [plot, scrollY];
    if (found.cursor) {
      const cursor = make("i", "cursor");
      cursor.style.left = 100 * found.fx + "%";
      plot.append(cursor);
    }
    if (found.cell) {
      const [left, top, width, height] = found.cell;
      const cell = make("i", "cell");
      Object.assign(cell.style, { left: 100 * left + "%", top: 100 * top + "%", width: 100 * width + "%", height: 100 * height + "%" });
      plot.append(cell);
    }
    tip.replaceChildren(make("strong", "", found.title));
    for (const row of found.rows) {
      const dot = make("i", "dot c" + (row.g % 6));
      dot.style.left = 100 * row.fx + "%";
      dot.style.top = 100 * row.fy + "%";
      plot.append(dot);
      const line = make("div", "");
      line.append(document.querySelector(`#t${row.g} + .swatch`).cloneNode(true), make("span", "", row.name), make("b", "", row.text));
      tip.append(line);
    }
    tip.hidden = false;
    const box = plot.getBoundingClientRect(), mine = tip.getBoundingClientRect();
    const x = box.left + found.fx * box.width;
    const left = x + 14 + mine.width < innerWidth ? x + 14 : x - 14 - mine.width;
    const y = box.top + (found.fy ?? 0.1) * box.height + 10;
    tip.style.left = Math.max(4, left) + "px";
    tip.style.top = Math.max(4, Math.min(y, innerHeight - mine.height - 4)) + "px";
  };

  for (const plot of $(".plot")) {
    let reader = null, now = null;
    const ready = () => (reader ??= readers[plot.dataset.kind](plot));
    const move = (event) => {
      const box = plot.getBoundingClientRect();
      const fx = (event.clientX - box.left) / box.width, fy = (event.clientY - box.top) / box.height;
      if (fx < -0.02 || fx > 1.02 || fy < 0 || fy > 1) { clear(plot); return; }
      now = ready().at(fx, fy);
      draw(plot, ready().show(now));
    };
    plot.addEventListener("pointermove", move);
    plot.addEventListener("pointerdown", move);
    plot.addEventListener("pointerleave", () => clear(plot));
    plot.addEventListener("blur", () => { clear(plot); now = null; });
    plot.addEventListener("keydown", (event) => {
      const far = 1e6;
      const way = { ArrowLeft: [-1, 0], ArrowRight: [1, 0], ArrowUp: [0, -1], ArrowDown: [0, 1],
        PageUp: [-10, 0], PageDown: [10, 0], Home: [-far, 0], End: [far, 0] }[event.key];
      if (event.key === "Escape") clear(plot);
      if (!way || event.ctrlKey || event.metaKey || event.altKey) return;
      if (way[1] && plot.dataset.kind !== "heat") return; // up and down scroll the page
      event.preventDefault();
      const next = ready().step(now, ...way);
      if (next === null) return;
      now = next;
      const found = ready().show(now);
      draw(plot, found);
      said.textContent = [found.title, ...found.rows.map((r) => `${r.name} ${r.text}`)].join("; ");
    });
  }
  // The read-out stands on the screen, the chart on the page.
  addEventListener("scroll", () => { if (active && Math.abs(scrollY - drawnAt) > 2) clear(active); }, { passive: true });

  // Comma-separated values of a table: a mean and its deviation in a column each, numbers without what parts
  // thousands. A text that a spreadsheet would take for a formula is quoted.
  const numeric = /^[+-]?[\d.,]+(e[+-]?\d+)?( ?%)?$/;
  const value = (text) => {
    if (/^[+-]?\d{1,3}(,\d{3})+(\.\d+)?$/.test(text)) text = text.replaceAll(",", "");
    if (/^[=+\-@\t\r]/.test(text) && !numeric.test(text)) text = "'" + text;
    return /[",\n\r]/.test(text) ? '"' + text.replaceAll('"', '""') + '"' : text;
  };
  const csv = (table) => {
    const rows = [...table.rows].map((row) => [...row.cells].map((cell) => cell.textContent.trim()));
    const parts = (text) => /^([+-]?[\d.,]+(?:e[+-]?\d+)?) ± ([\d.,]+(?:e[+-]?\d+)?)$/.exec(text);
    const spread = new Set(rows.flatMap((row) => row.flatMap((text, i) => parts(text) ? [i] : [])));
    return rows.map((row, n) => row.flatMap((text, i) => {
      if (!spread.has(i)) return [text];
      const found = parts(text);
      return found ? found.slice(1) : n ? [text, ""] : [text, text + ", std"];
    }).map(value).join(",")).join("\r\n") + "\r\n";
  };

  for (const button of $(".csv")) {
    button.hidden = false;
    button.addEventListener("click", () => {
      const link = document.createElement("a");
      link.href = URL.createObjectURL(new Blob([csv(button.closest("figure").querySelector("table"))], { type: "text/csv" }));
      link.download = button.dataset.name + ".csv";
      link.click();
      setTimeout(() => URL.revokeObjectURL(link.href), 10_000);
    });
  }

  const theme = document.getElementById("theme");
  const modes = ["auto", "light", "dark"];
  let mode = "auto";
  const wear = (wanted) => {
    mode = modes.includes(wanted) ? wanted : "auto";
    if (mode === "auto") delete document.documentElement.dataset.theme;
    else document.documentElement.dataset.theme = mode;
    theme.textContent = "Theme: " + mode;
  };
  theme.hidden = false;
  theme.addEventListener("click", () => {
    wear(modes[(modes.indexOf(mode) + 1) % modes.length]);
    try { localStorage.setItem("fedrecall-theme", mode); } catch { /* a page from disk may have no storage */ }
  });
  try { wear(localStorage.getItem("fedrecall-theme")); } catch { /* the same */ }
})();
