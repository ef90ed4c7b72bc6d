
// Draws the curves of the runs that are chosen in the table.
for (const overlay of document.querySelectorAll(".overlay")) {
  const data = JSON.parse(overlay.querySelector("script").textContent);
  const COLOURS = 6, DASHES = ["", "7 4", "2 3", "9 3 2 3", "4 2", "12 4"];
  const HEIGHT = 250, TOP = 10, BOTTOM = 38, RIGHT = 12, LETTER = 7;
  const names = Object.keys(data.charts);
  const slots = new Map();  // of each chosen run, which decides on its colour and dashes
  const boxes = new Map();

  const html = (tag, attributes = {}, ...content) => {
    const made = Object.assign(document.createElement(tag), attributes);
    made.append(...content);
    return made;
  };
  const svg = (tag, attributes = {}, ...content) => {
    const made = document.createElementNS("http://www.w3.org/2000/svg", tag);
    for (const [name, value] of Object.entries(attributes)) made.setAttribute(name, value);
    made.append(...content);
    return made;
  };
  const box = (text, checked, change) => {
    const input = html("input", { type: "checkbox", checked });
    input.addEventListener("change", () => change(input.checked));
    return [html("label", {}, input, text), input];
  };
  const dash = (slot) => DASHES[(slot + Math.floor(slot / COLOURS)) % DASHES.length];
  const choose = (run, wanted) => {
    if (wanted && !slots.has(run)) {
      const used = new Set(slots.values());
      let free = 0;
      while (used.has(free)) free += 1;
      slots.set(run, free);
    } else if (!wanted) slots.delete(run);
    for (const { input, swatch } of boxes.get(run) ?? []) {
      input.checked = wanted;
      const slot = slots.get(run);
      const line = slot === undefined ? [] : [svg("line", { class: "line", x1: 0, x2: 26, y1: 5, y2: 5, "stroke-dasharray": dash(slot) })];
      swatch.replaceChildren(svg("g", { class: `s${(slot ?? 0) % COLOURS}` }, ...line));
    }
  };

  // The table: a box and a sample of the line in the cell of each run.
  const rows = [];
  for (const cell of document.querySelectorAll("td[data-run]")) {
    const run = Number(cell.dataset.run);
    const swatch = svg("svg", { class: "swatch", viewBox: "0 0 26 10", "aria-hidden": "true" });
    const [label, input] = box("", false, (wanted) => { choose(run, wanted); draw(); });
    label.append(swatch, html("span", {}, ...cell.childNodes));
    cell.append(label);
    cell.closest("table").classList.add("choosing");
    rows.push({ run, row: cell.parentElement, text: cell.parentElement.textContent.toLowerCase() });
    boxes.set(run, [...(boxes.get(run) ?? []), { input, swatch }]);
  }

  // The controls.
  const axis = html("select", {}, html("option", { value: "0" }, "step"), html("option", { value: "1" }, "training time"));
  const smooth = html("input", { type: "range", min: 0, max: 0.99, step: 0.01, value: 0 });
  const share = html("span", {}, "0");
  const [logXLabel, logX] = box("log x", false, () => draw());
  const [logYLabel, logY] = box("log y", false, () => draw());
  const search = html("input", { type: "search", placeholder: "filter the table" });
  search.setAttribute("aria-label", "filter the table");
  const button = (text, wanted) => {
    const made = html("button", { type: "button" }, text);
    made.addEventListener("click", () => { for (const { run, row } of rows) if (!row.hidden) choose(run, wanted); draw(); });
    return made;
  };
  axis.addEventListener("change", () => draw());
  smooth.addEventListener("input", () => { share.textContent = smooth.value; draw(); });
  search.addEventListener("input", () => { for (const each of rows) each.row.hidden = !each.text.includes(search.value.toLowerCase()); });
  const charts = html("div", { className: "charts" });
  const figures = new Map();
  const fieldset = html("fieldset", {}, html("legend", {}, "charts"));
  for (const name of names) {
    const figure = html("figure", { hidden: !data.shown.includes(name) }, html("figcaption", {}, name));
    const drawing = html("div"), output = html("output");
    figure.append(drawing, output);
    charts.append(figure);
    figures.set(name, { figure, drawing, output });
    fieldset.append(box(name, !figure.hidden, (wanted) => { figure.hidden = !wanted; draw(); })[0]);
  }
  overlay.append(
    html("div", { className: "controls" }, html("label", {}, "x axis", axis), html("label", {}, "smoothing", smooth, share),
      logXLabel, logYLabel, button("choose all", true), button("choose none", false), search),
    fieldset, charts);

  // A running mean, corrected for its start at zero.
  const smoothed = (values, kept) => {
    let sum = 0, weight = 0;
    return values.map((value) => {
      if (value === null) return null;
      sum = kept * sum + (1 - kept) * value;
      weight = kept * weight + (1 - kept);
      return sum / weight;
    });
  };
  const range = (values, log) => {
    let low = Infinity, high = -Infinity;
    for (const value of values) if (value !== null && (!log || value > 0)) { low = Math.min(low, value); high = Math.max(high, value); }
    if (low > high) return log ? [1, 10] : [0, 1];
    if (log) return high < low * 1.5 ? [low / 1.5, high * 1.5] : [low, high];
    if (low === high) return [low - (Math.abs(low) / 10 || 1), high + (Math.abs(high) / 10 || 1)];
    return [low, high];
  };
  const ticks = ([low, high], log, most) => {
    const found = [];
    if (log) {
      const first = Math.floor(Math.log10(low)), last = Math.ceil(Math.log10(high));
      const factors = last - first <= 2 ? [1, 2, 5] : [1];
      const every = Math.max(1, Math.floor((last - first) / most));
      for (let power = first; power <= last; power += every) for (const f of factors) found.push(f * 10 ** power);
    } else {
      const rough = (high - low) / most, power = 10 ** Math.floor(Math.log10(rough));
      const step = [1, 2, 5, 10].map((f) => f * power).find((each) => each >= rough * (1 - 1e-9));
      for (let n = Math.ceil(low / step - 1e-6); n * step <= high + step * 1e-6; n += 1) found.push(n * step);
    }
    const inside = found.filter((value) => value >= low - 1e-9 * Math.abs(low) && value <= high + 1e-9 * Math.abs(high));
    return log && inside.length < 2 ? ticks([low, high], false, most) : inside;  // a narrow range
  };
  const short = (value) => {
    const size = Math.abs(value);
    if (size >= 1e9) return `${+(value / 1e9).toPrecision(4)}G`;
    if (size >= 1e6) return `${+(value / 1e6).toPrecision(4)}M`;
    if (size >= 1e4) return `${+(value / 1e3).toPrecision(4)}k`;
    return size && size < 1e-3 ? (+value.toPrecision(3)).toExponential() : String(+value.toPrecision(4));
  };
  const scale = ([low, high], log, start, end) => {
    const place = log ? Math.log10 : Number;
    return (value) => start + (place(value) - place(low)) / (place(high) - place(low)) * (end - start);
  };

  const drawOne = (name, { figure, drawing, output }) => {
    const kept = Number(smooth.value);
    const drawable = [...slots].filter(([run]) => data.charts[name][run]).sort(([one], [other]) => one - other);
    const lines = drawable.map(([run, slot]) => {
      const [steps, seconds, values] = data.charts[name][run];
      return { run, slot, xs: axis.value === "1" ? seconds : steps, raw: values, ys: kept ? smoothed(values, kept) : values };
    });
    output.textContent = "";
    if (!lines.length) {
      drawing.replaceChildren(html("p", { className: "none" }, slots.size ? "The chosen runs have no such numbers." : "Choose runs in the table."));
      return;
    }
    const width = Math.max(240, figure.clientWidth), bottom = HEIGHT - BOTTOM;
    const yRange = range(lines.flatMap((line) => line.ys), logY.checked), yTicks = ticks(yRange, logY.checked, 5);
    const left = 12 + LETTER * Math.max(...yTicks.map((tick) => short(tick).length), 1);
    const xRange = range(lines.flatMap((line) => line.xs), logX.checked), xTicks = ticks(xRange, logX.checked, Math.max(2, Math.floor(width / 90)));
    const x = scale(xRange, logX.checked, left, width - RIGHT), y = scale(yRange, logY.checked, bottom, TOP);
    const parts = [];
    for (const tick of yTicks) {
      parts.push(svg("line", { class: "grid", x1: left, x2: width - RIGHT, y1: y(tick), y2: y(tick) }));
      parts.push(svg("text", { class: "soft", x: left - 6, y: y(tick) + 4, "text-anchor": "end" }, short(tick)));
    }
    for (const tick of xTicks) {
      const text = short(tick);
      parts.push(svg("text", { class: "soft", x: Math.min(x(tick), width - LETTER * text.length / 2), y: bottom + 16, "text-anchor": "middle" }, text));
    }
    parts.push(svg("text", { class: "soft", x: (left + width - RIGHT) / 2, y: bottom + 33, "text-anchor": "middle" }, axis.value === "1" ? "seconds of training" : "optimizer step"));
    const places = [];
    for (const line of lines) {
      const path = (values, kind, dashes, keep) => {
        let text = "", pen = "M";
        values.forEach((value, index) => {
          const at = line.xs[index];
          if (value === null || (logY.checked && value <= 0) || (logX.checked && at <= 0)) { pen = "M"; return; }
          const point = [x(at), y(value)];
          if (keep) places.push({ line, point, at, value });
          text += `${pen}${point[0].toFixed(1)} ${point[1].toFixed(1)}`;
          pen = "L";
        });
        return svg("path", { class: kind, d: text, "stroke-dasharray": dashes });
      };
      const group = svg("g", { class: `s${line.slot % COLOURS}` });
      if (kept) group.append(path(line.raw, "line raw", ""));
      group.append(path(line.ys, "line", dash(line.slot), true));
      if (line.ys.length === 1) for (const { line: own, point } of places) if (own === line) group.append(svg("circle", { cx: point[0], cy: point[1], r: 3.5 }));
      parts.push(group);
    }
    const spot = svg("g");
    const clip = `clip-${names.indexOf(name)}`;
    const area = svg("clipPath", { id: clip }, svg("rect", { x: left - 4, y: TOP - 5, width: width - RIGHT - left + 8, height: bottom - TOP + 10 }));
    const plot = svg("g", { "clip-path": `url(#${clip})` }, ...parts.filter((part) => part.tagName === "g"), spot);
    const made = svg("svg", { viewBox: `0 0 ${width} ${HEIGHT}`, role: "img", "aria-label": `${name} of ${lines.length} runs` },
      area, ...parts.filter((part) => part.tagName !== "g"), plot);
    made.addEventListener("pointermove", (event) => {
      const at = made.getBoundingClientRect(), ratio = width / at.width;
      const [px, py] = [(event.clientX - at.left) * ratio, (event.clientY - at.top) * ratio];
      let best = null, least = Infinity;
      for (const place of places) {
        const apart = (place.point[0] - px) ** 2 + (place.point[1] - py) ** 2;
        if (apart < least) [best, least] = [place, apart];
      }
      if (!best) return;
      spot.replaceChildren(svg("g", { class: `s${best.line.slot % COLOURS}` }, svg("circle", { cx: best.point[0], cy: best.point[1], r: 4 })));
      output.textContent = `${data.runs[best.line.run]}, ${axis.value === "1" ? `${short(best.at)} s` : `step ${best.at}`}: ${+best.value.toPrecision(5)}`;
    });
    made.addEventListener("pointerleave", () => { spot.replaceChildren(); output.textContent = ""; });
    drawing.replaceChildren(made);
  };
  const draw = () => { for (const [name, parts] of figures) if (!parts.figure.hidden) drawOne(name, parts); };

  for (const run of data.chosen) choose(run, true);
  draw();
  let drawnAt = overlay.clientWidth;
  new ResizeObserver(() => { if (overlay.clientWidth !== drawnAt) { drawnAt = overlay.clientWidth; requestAnimationFrame(draw); } }).observe(overlay);
}
