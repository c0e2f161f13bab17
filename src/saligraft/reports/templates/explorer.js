// The interactive view: settings in, pictures and labels out. `explorer.show(changes)` sets any of them from a console.

const explorer = (() => {
  const byId = (id) => document.getElementById(id);
  const data = JSON.parse(byId("x-data").textContent);
  const size = { height: data.height, width: data.width };
  const maps = data.images.map((image) => mapOf(image.saliency));
  const objects = data.images.map((image) => image.object && unpacked(image.object));
  const TEMPERATURES = [0.01, 0.02, 0.03, 0.05, 0.07, 0.1, 0.15, 0.2, 0.3, 0.5, 0.7, 1, 2, 5, 10];
  const GRIDS = [2, 3, 4, 5, 6, 7, 8, 10, 12, 14, 16].filter((grid) => grid <= Math.min(size.height, size.width));
  const DEFAULTS = {
    source: 0, destination: 1, temperature: 0.2, threshold: 1, probability: 0.5,
    grid: Math.max(...GRIDS.filter((grid) => grid <= 8)), normalize: "l2", seed: 0,
  };
  const COLOURS = { source: "rgb(240, 110, 20)", line: "rgba(255, 255, 255, 0.16)" };
  const INFERNO = "000004 0b0724 210c4a 3d0965 57106e 71196e 8a226a a32c61 bc3754 d24644 e45a31 f1731d f98e09 fcac11 f9cb35 f2ea69 fcffa4"
    .split(" ").map((hex) => [0, 2, 4].map((at) => parseInt(hex.slice(at, at + 2), 16)));
  const FACTOR = Math.max(1, Math.round(256 / Math.max(size.height, size.width)));
  const percent = (share) => `${Math.round(100 * share)} %`;

  let settings = { ...DEFAULTS };
  let pixels = []; // of every image, RGBA
  let result = null;

  function unpacked(text) {
    const bytes = Uint8Array.from(atob(text), (letter) => letter.charCodeAt(0));
    return Array.from({ length: size.height * size.width }, (_, i) => (bytes[i >> 3] >> (7 - (i & 7))) & 1);
  }

  // ---- pictures -------------------------------------------------------------------------------------------------

  // Fill a canvas pixel by pixel, enlarged; colour(y, x, i) returns [r, g, b].
  function paint(canvas, colour) {
    const { height, width } = size;
    const small = new OffscreenCanvas(width, height);
    const image = new ImageData(width, height);
    for (let i = 0; i < height * width; i++) image.data.set([...colour(Math.floor(i / width), i % width, i), 255], 4 * i);
    small.getContext("2d").putImageData(image, 0, 0);
    Object.assign(canvas, { width: width * FACTOR, height: height * FACTOR });
    const context = canvas.getContext("2d");
    context.imageSmoothingEnabled = false;
    context.drawImage(small, 0, 0, canvas.width, canvas.height);
    return context;
  }

  const rgb = (image, i) => [0, 1, 2].map((channel) => pixels[image][4 * i + channel]);
  const grey = (image, i) => total(rgb(image, i)) / 3;
  const mixed = (a, b, share) => a.map((value, i) => value * share + b[i] * (1 - share));
  // The first pixel of a cell: the inverse of cellAt.
  const edge = (cell, cells, length) => Math.ceil((cell * length) / cells) * FACTOR;

  function heatColour(value) {
    const place = Math.min(Math.max(value, 0), 1) * (INFERNO.length - 1);
    const low = Math.min(Math.floor(place), INFERNO.length - 2);
    return mixed(INFERNO[low + 1], INFERNO[low], place - low);
  }

  function eachCell(map, visit) {
    for (let row = 0; row < map.rows; row++)
      for (let column = 0; column < map.columns; column++) {
        const [top, left] = [edge(row, map.rows, size.height), edge(column, map.columns, size.width)];
        const [bottom, right] = [edge(row + 1, map.rows, size.height), edge(column + 1, map.columns, size.width)];
        visit(row, column, top, left, bottom - top, right - left);
      }
  }

  function drawLines(context, map) {
    context.fillStyle = COLOURS.line;
    eachCell(map, (row, column, top, left, height, width) => {
      if (row) context.fillRect(left, top, width, 1);
      if (column) context.fillRect(left, top, 1, height);
    });
  }

  // Outline the cells of a mask; the picture's edge counts as border.
  function outline(context, mask) {
    const inside = (row, column) =>
      row >= 0 && column >= 0 && row < mask.rows && column < mask.columns && mask.values[row * mask.columns + column] > 0.5;
    context.fillStyle = COLOURS.source;
    eachCell(mask, (row, column, top, left, height, width) => {
      if (!inside(row, column)) return;
      if (!inside(row - 1, column)) context.fillRect(left, top, width, 3);
      if (!inside(row + 1, column)) context.fillRect(left, top + height - 3, width, 3);
      if (!inside(row, column - 1)) context.fillRect(left, top, 3, height);
      if (!inside(row, column + 1)) context.fillRect(left + width - 3, top, 3, height);
    });
  }

  // Stripe the cells that the graft covers.
  function hatch(context, mask) {
    context.save();
    context.beginPath();
    eachCell(mask, (row, column, top, left, height, width) => {
      if (mask.values[row * mask.columns + column] > 0.5) context.rect(left, top, width, height);
    });
    context.clip();
    context.fillStyle = "rgba(0, 0, 0, 0.5)";
    context.fillRect(0, 0, context.canvas.width, context.canvas.height);
    context.strokeStyle = COLOURS.source;
    for (let x = -context.canvas.height; x < context.canvas.width; x += 10) {
      context.beginPath();
      context.moveTo(x, context.canvas.height);
      context.lineTo(x + context.canvas.height, 0);
      context.stroke();
    }
    context.restore();
    outline(context, mask);
  }

  const plain = (canvas, image) => paint(canvas, (y, x, i) => rgb(image, i));

  function heat(canvas, image, map, covered) {
    const peak = Math.max(...map.values);
    const context = paint(canvas, (y, x, i) => {
      const value = peak > 0 ? map.values[cellAt(map, y, x, size.height, size.width)] / peak : 0;
      return mixed([0, 1, 2].map(() => grey(image, i)), heatColour(value), 0.3);
    });
    drawLines(context, map);
    if (covered) hatch(context, covered);
  }

  // Only the chosen cells in colour; those that could have been chosen are dimmed, the others dark.
  function cells(canvas, image, chosen, among) {
    const context = paint(canvas, (y, x, i) => {
      const cell = cellAt(chosen, y, x, size.height, size.width);
      if (chosen.values[cell]) return rgb(image, i);
      const half = among && among.values[cell];
      return rgb(image, i).map((value) => (half ? 0.4 * value + 0.12 * grey(image, i) + 15 : 0.16 * grey(image, i) + 24));
    });
    drawLines(context, chosen);
    outline(context, chosen);
  }

  function drawChosen(canvas, { chosen, source }) {
    const context = paint(canvas, (y, x) =>
      chosen[cellAt(source, y, x, size.height, size.width)] ? [240, 110, 20] : [46, 50, 58]);
    drawLines(context, source);
  }

  function grafted(canvas, source, destination, mask) {
    const context = paint(canvas, (y, x, i) =>
      mixed(rgb(source, i), rgb(destination, i), mask.values[cellAt(mask, y, x, size.height, size.width)]));
    if (mask.values.length > 1) outline(context, mask);
  }

  // ---- methods --------------------------------------------------------------------------------------------------

  // Every method on the chosen pair: its mask, the weight of the source's label, and a note.
  function methods() {
    const { source, destination, probability, seed } = settings;
    const { height, width } = size;
    const [y, x] = uniforms(seed * 1009 + 7, 2);
    const boxes = {
      CutMix: [boxMask(probability, [Math.floor(y * height), Math.floor(x * width)], height, width), "a random box, by area"],
      SaliencyMix: [boxMask(probability, data.images[source].peak, height, width), "a box around the peak, by area"],
    };
    const out = [{ title: "Saliency Grafting", mask: result.mask, weight: result.calibrated, note: "random salient cells, by saliency" }];
    if (Math.min(height, width) >= 7)
      boxes["Attentive CutMix"] = [topK(resize(maps[source], 7), 6), "the top 6 of 7 × 7 cells, by area"];
    for (const [title, [mask, note]] of Object.entries(boxes))
      out.push({ title, mask, weight: pixelArea(mask, height, width), note });
    out.push({ title: "Mixup", mask: { rows: 1, columns: 1, values: [probability] }, weight: probability, note: "a blend, by its ratio" });
    const solved = data.puzzle && data.puzzle.pairs[`${source}-${destination}`];
    if (solved) {
      const mask = { rows: data.puzzle.grid, columns: data.puzzle.grid, values: solved[0].map((level) => level / 2) };
      out.push({ title: "PuzzleMix", mask, weight: pixelArea(mask, height, width), note: "the best mask, blocks moved", blocks: solved.slice(1) });
    }
    return out;
  }

  // PuzzleMix shows each image with its blocks moved.
  function drawPuzzle(canvas, { mask, blocks }) {
    const { height, width } = size;
    paint(canvas, (y, x) => {
      const cell = cellAt(mask, y, x, height, width);
      const [a, b] = blocks.map((numbers) => movedPixel(numbers[cell], mask, y, x, height, width));
      return mixed(rgb(settings.source, a), rgb(settings.destination, b), mask.values[cell]);
    });
  }

  // ---- the page -------------------------------------------------------------------------------------------------

  const names = () => [data.images[settings.source].name, data.images[settings.destination].name];

  function element(tag, attributes, ...children) {
    const out = Object.assign(document.createElement(tag), attributes);
    out.append(...children);
    return out;
  }

  // A figure with a canvas, made once and found again by its title.
  function figure(parent, title, kind = "") {
    const old = [...parent.children].find((child) => child.dataset.title === title);
    if (old) return { canvas: old.querySelector("canvas"), caption: old.querySelector(".caption"), figure: old };
    const [canvas, caption] = [element("canvas"), element("span", { className: "caption" })];
    canvas.setAttribute("role", "img");
    const out = element("figure", { className: kind }, canvas, element("figcaption", {}, element("b", { textContent: title }), caption));
    out.dataset.title = title;
    parent.append(out);
    return { canvas, caption, figure: out };
  }

  function panel(title, detail, draw, kind, parent = "x-panels") {
    const { canvas, caption } = figure(byId(parent), title, kind);
    caption.textContent = detail;
    canvas.setAttribute("aria-label", `${title}: ${detail}`);
    draw(canvas);
  }

  // A label's shares in words, in the colours of their classes, and its bar.
  function shares(weight) {
    const [own, other] = names();
    const whole = own === other;
    const first = Math.round(100 * weight);
    const parts = whole ? [["source", own, 100]] : [["source", own, first], ["destination", other, 100 - first]];
    const words = element("div", { className: "words" });
    const texts = parts.map(([, name, share]) => `${name}\u00a0${share}\u00a0%`);
    parts.forEach(([kind], i) => words.append(i ? " " : "", element("span", { className: kind, textContent: texts[i] })));
    const fill = element("i");
    fill.style.width = `${whole ? 100 : 100 * weight}%`;
    const bar = element("div", { className: "bar" }, fill);
    bar.setAttribute("role", "img");
    bar.setAttribute("aria-label", texts.join(" · "));
    return [words, bar];
  }

  function drawLabels() {
    const [own, other] = names();
    const { area, calibrated, shown, kept, visible } = result;
    const labels = [
      ["by area", area, `λ = ${area.toFixed(4)}`, "other"],
      ["calibrated by saliency", calibrated, `λ = ${shown.toFixed(3)} / (${shown.toFixed(3)} + ${kept.toFixed(3)}) = ${calibrated.toFixed(4)}`, ""],
    ];
    if (visible)
      labels.push(["object really visible", visible.weight, `${percent(visible.shown)} of the ${own}, ${percent(visible.kept)} of the ${other}`, "other"]);
    byId("x-labels").replaceChildren(...labels.map(([name, weight, detail, kind]) =>
      element("div", { className: `label ${kind}` }, element("div", { className: "how", textContent: name }),
        ...(Number.isNaN(weight) ? [element("div", { className: "words", textContent: "neither object" })] : shares(weight)),
        element("div", { className: "weight", textContent: detail }))));
  }

  function drawMethods() {
    for (const method of methods()) {
      const { canvas, caption } = figure(byId("x-methods"), method.title);
      if (method.blocks) drawPuzzle(canvas, method);
      else grafted(canvas, settings.source, settings.destination, method.mask);
      const lines = [...shares(method.weight), element("small", { textContent: method.note })];
      const pair = [objects[settings.source], objects[settings.destination]];
      if (pair.every(Boolean)) {
        const { weight } = visibleObjects(...pair, method.mask, size.height, size.width, method.blocks);
        lines.push(element("small", { textContent: Number.isNaN(weight) ? "neither object visible" : `really visible: ${names()[0]} ${percent(weight)}` }));
      }
      caption.replaceChildren(...lines);
      canvas.setAttribute("aria-label", `${method.title}: ${lines[1].getAttribute("aria-label")}`);
    }
    const puzzle = byId("x-methods").querySelector("[data-title=PuzzleMix]");
    if (puzzle) puzzle.hidden = !(data.puzzle && data.puzzle.pairs[`${settings.source}-${settings.destination}`]);
  }

  function draw() {
    const { source, destination, grid, probability } = settings;
    const [own, other] = names();
    const { shares: softmaxShares, salient, mask, chosen } = result;
    const [salientCells, drawn] = [total(salient.values), total(mask.values)];
    panel("Source", own, (canvas) => plain(canvas, source), "source");
    panel("Destination", other, (canvas) => plain(canvas, destination), "destination narrow");
    panel("Saliency S", `${grid} × ${grid} cells`, (canvas) => heat(canvas, source, result.source));
    panel("Softmax S′", `largest share ${(100 * Math.max(...softmaxShares.values)).toFixed(1)} %`, (canvas) => heat(canvas, source, softmaxShares));
    panel("Salient S″", `${salientCells} of ${grid * grid}`, (canvas) => cells(canvas, source, salient));
    panel("Draws P", `${total(chosen)} of ${grid * grid}, seed ${settings.seed}`, (canvas) => drawChosen(canvas, result));
    panel("Mask M", `${drawn} of ${salientCells} salient`, (canvas) => cells(canvas, source, mask, salient));
    panel("Destination’s saliency", `${other}; striped: lost`, (canvas) => heat(canvas, destination, result.destination, mask), "destination");
    panel("Grafted", "the network’s input", (canvas) => grafted(canvas, source, destination, mask), "", "x-grafted");
    const are = (number) => `${number} ${number === 1 ? "is" : "are"}`;
    byId("x-sentence").textContent =
      `Of ${grid * grid} cells, ${are(salientCells)} salient and ${are(drawn)} grafted: ` +
      (own === other
        ? `the source covers ${percent(result.area)} of the pixels, and the whole label is ${own}.`
        : `the ${own} covers ${percent(result.area)} of the pixels and has ${percent(result.calibrated)} of the label.`);
    drawLabels();
    drawMethods();
    const written = {
      temperature: settings.temperature, threshold: settings.threshold.toFixed(2), probability: probability.toFixed(2), grid,
    };
    for (const [name, text] of Object.entries(written)) {
      byId(`x-${name}-value`).textContent = text;
      byId(`x-${name}`).setAttribute("aria-valuetext", text);
    }
    const nearest = (values, value) => values.reduce((best, other, i) => (Math.abs(other - value) < Math.abs(values[best] - value) ? i : best), 0);
    byId("x-temperature").value = nearest(TEMPERATURES, settings.temperature);
    byId("x-grid").value = nearest(GRIDS, grid);
    byId("x-threshold").value = settings.threshold;
    byId("x-probability").value = probability;
    byId("x-normalize").value = settings.normalize;
    for (const side of ["source", "destination"]) byId(`x-${side}`).querySelectorAll("input")[settings[side]].checked = true;
  }

  // Change settings and return everything that the page shows of them.
  function show(changes = {}) {
    const next = { ...settings, ...changes };
    // Two different images: choosing the other side's image swaps the two.
    if (next.source === next.destination) {
      if ("source" in changes) next.destination = settings.source;
      else next.source = settings.destination;
    }
    settings = next;
    const [source, destination] = [settings.source, settings.destination];
    const known = objects[source] && objects[destination];
    result = graftPair(maps[source], maps[destination], settings, size);
    result.visible = known ? visibleObjects(objects[source], objects[destination], result.mask, size.height, size.width) : null;
    draw();
    return { settings, ...result };
  }

  function choices(side) {
    data.images.forEach((image, i) => {
      const input = element("input", { type: "radio", name: side, value: i });
      input.setAttribute("aria-label", `${side} ${i + 1}: ${image.name}`);
      input.addEventListener("change", () => show({ [side]: i }));
      byId(`x-${side}`).append(element("label", { title: image.name }, input, element("img", { src: image.picture, alt: "" })));
    });
  }

  async function start() {
    pixels = await Promise.all(data.images.map(async (image) => {
      const picture = Object.assign(new Image(), { src: image.picture });
      await picture.decode();
      const context = new OffscreenCanvas(size.width, size.height).getContext("2d");
      context.drawImage(picture, 0, 0);
      return context.getImageData(0, 0, size.width, size.height).data;
    }));
    ["source", "destination"].forEach(choices);
    byId("x-grid").max = GRIDS.length - 1;
    byId("x-temperature").max = TEMPERATURES.length - 1;
    const on = (id, event, act) => byId(id).addEventListener(event, act);
    on("x-temperature", "input", (event) => show({ temperature: TEMPERATURES[event.target.value] }));
    on("x-threshold", "input", (event) => show({ threshold: +event.target.value }));
    on("x-probability", "input", (event) => show({ probability: +event.target.value }));
    on("x-grid", "input", (event) => show({ grid: GRIDS[event.target.value] }));
    on("x-normalize", "change", (event) => show({ normalize: event.target.value }));
    const redraw = () => show({ seed: settings.seed + 1 });
    const swap = () => show({ source: settings.destination, destination: settings.source });
    on("x-redraw", "click", redraw);
    on("x-swap", "click", swap);
    on("x-reset", "click", () => show(DEFAULTS));
    document.addEventListener("keydown", (event) => {
      if (event.ctrlKey || event.metaKey || event.altKey || event.target.matches("select, textarea, input[type=text]")) return;
      ({ r: redraw, s: swap })[event.key.toLowerCase()]?.();
    });
    show();
  }

  return { show, methods, ready: start() };
})();
