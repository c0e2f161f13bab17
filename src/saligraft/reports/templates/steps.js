"use strict";
// The paper's steps and the other methods, as pure functions in double precision; each names its twin in Python.
// A map or mask is { rows, columns, values }, row by row; a mask's values are 0 to 1, the source's share.

const FLOAT32_EPSILON = 2 ** -23; // maps come from networks in float32

const total = (values) => values.reduce((sum, value) => sum + value, 0);
const norm = (values) => Math.sqrt(total(values.map((value) => value * value)));
const like = (map, values) => ({ rows: map.rows, columns: map.columns, values });
// JSON has no NaN: null stands for what is not finite.
const mapOf = (rows) => ({ rows: rows.length, columns: rows[0].length, values: rows.flat().map((value) => value ?? NaN) });

// Uniform numbers in [0, 1) by mulberry32: the same seed always gives the same numbers.
function uniforms(seed, count) {
  let state = seed >>> 0;
  return Array.from({ length: count }, () => {
    state = (state + 0x6d2b79f5) >>> 0;
    let bits = Math.imul(state ^ (state >>> 15), state | 1);
    bits ^= bits + Math.imul(bits ^ (bits >>> 7), bits | 61);
    return ((bits ^ (bits >>> 14)) >>> 0) / 2 ** 32;
  });
}

// resize_saliency: average pooling where an axis shrinks, linear interpolation where it grows.
function resize(map, grid) {
  const [down, across] = [resampling(map.rows, grid), resampling(map.columns, grid)];
  const values = down.flatMap((vertical) =>
    across.map((horizontal) =>
      total(vertical.map(([y, a]) => a * total(horizontal.map(([x, b]) => b * map.values[y * map.columns + x])))),
    ),
  );
  return { rows: grid, columns: grid, values };
}

// For each of `grid` cells, which of `size` cells it is made of, and their weights.
function resampling(size, grid) {
  return Array.from({ length: grid }, (_, cell) => {
    if (size >= grid) {
      const start = Math.floor((cell * size) / grid);
      const end = Math.ceil(((cell + 1) * size) / grid);
      return Array.from({ length: end - start }, (_, i) => [start + i, 1 / (end - start)]);
    }
    const position = Math.min(Math.max(((cell + 0.5) * size) / grid - 0.5, 0), size - 1);
    const low = Math.floor(position);
    return [[low, 1 - (position - low)], [Math.min(low + 1, size - 1), position - low]];
  });
}

// scale_maps: values divided by the peak; a map that is not finite, or negative somewhere, is not usable.
function scaled(map) {
  const [peak, lowest] = [Math.max(...map.values), Math.min(...map.values)];
  const values = map.values.map((value) => value / peak);
  return { values, peak, lowest, norm: norm(values), usable: lowest >= 0 && peak < Infinity };
}

// Each map over T less its peak, as _below_peak: the logarithm of S' up to a constant.
function logits(map, { temperature, normalize }) {
  const { values, peak, lowest, norm: length } = scaled(map);
  if (lowest >= peak * (1 - 8 * FLOAT32_EPSILON)) return values.map(() => 0); // flat
  const scale = {
    none: peak,
    l2: 1 / length,
    sum: 1 / total(values),
    max: 1,
    minmax: 1 / (1 - lowest / peak),
  }[normalize];
  return values.map((value) => ((value - 1) * scale) / temperature);
}

// S' of Eq. 3: the softmax share of each cell.
function softmax(map, settings) {
  const powers = logits(map, settings).map(Math.exp);
  const sum = total(powers);
  return like(map, powers.map((power) => power / sum));
}

// salient_regions, S'' of Eq. 4: S' > threshold / (h w), compared in log space.
function salientRegions(map, settings) {
  const { threshold } = settings;
  if (!scaled(map).usable) return like(map, map.values.map(() => 0));
  if (threshold === 0) return like(map, map.values.map(() => 1));
  const below = logits(map, settings);
  const mean = Math.log1p(total(below.map(Math.expm1)) / below.length);
  const least = threshold === 1 ? mean : mean + Math.log(threshold);
  return like(map, below.map((value) => (value > least ? 1 : 0)));
}

// top_k_regions; of equal cells the first.
function topK(map, k) {
  const order = map.values.map((_, i) => i).sort((a, b) => map.values[b] - map.values[a] || a - b);
  const chosen = new Set(order.slice(0, k));
  return like(map, map.values.map((_, i) => (chosen.has(i) ? 1 : 0)));
}

// spread: the cell of a map that a pixel shows.
const cellAt = (map, y, x, height, width) =>
  Math.floor((y * map.rows) / height) * map.columns + Math.floor((x * map.columns) / width);

// pixel_area: each cell counts by its number of pixels.
function pixelArea(mask, height, width) {
  let area = 0;
  for (let y = 0; y < height; y++)
    for (let x = 0; x < width; x++) area += mask.values[cellAt(mask, y, x, height, width)];
  return area / (height * width);
}

// importance: I(S, M) = ‖S ⊙ M‖ / ‖S‖.
function importance(map, visible) {
  const { values, norm: length } = scaled(map);
  return norm(values.map((value, i) => value * visible[i])) / length;
}

// calibrated_weight: λ of Eq. 5, and the area where that is 0/0.
function calibratedWeight(source, destination, mask, area) {
  const shown = importance(source, mask.values);
  const kept = importance(destination, mask.values.map((value) => 1 - value));
  const weight = shown / (shown + kept);
  return { shown, kept, weight: Number.isNaN(weight) ? area : weight };
}

// Of an image whose blocks PuzzleMix moves: the pixel that place (y, x) shows, where `block` is moved to.
function movedPixel(block, mask, y, x, height, width) {
  const [tall, wide] = [height / mask.rows, width / mask.columns];
  return (Math.floor(block / mask.columns) * tall + (y % tall)) * width + (block % mask.columns) * wide + (x % wide);
}

// visible_shares: how much of both objects a mask leaves to see, and the label that would be right. `blocks` are those
// of either image that PuzzleMix moves into each cell; of a pixel shown twice, the clearer one counts.
function visibleObjects(source, destination, mask, height, width, blocks) {
  const clearest = [0, 1].map(() => new Float64Array(height * width));
  for (let y = 0; y < height; y++)
    for (let x = 0; x < width; x++) {
      const cell = cellAt(mask, y, x, height, width);
      [mask.values[cell], 1 - mask.values[cell]].forEach((shown, i) => {
        const pixel = blocks ? movedPixel(blocks[i][cell], mask, y, x, height, width) : y * width + x;
        clearest[i][pixel] = Math.max(clearest[i][pixel], shown);
      });
    }
  const [shown, kept] = [source, destination].map((object, i) => {
    const seen = object.reduce((sum, inside, pixel) => sum + inside * clearest[i][pixel], 0);
    return seen / Math.max(total(object), 1);
  });
  return { shown, kept, weight: shown / (shown + kept) };
}

// Boxes as draws.boxes and peak_box size them: half a side, rounded down, to each side of the centre.
function boxMask(ratio, [row, column], height, width) {
  const half = [height, width].map((side) => Math.floor(Math.floor(Math.sqrt(ratio) * side) / 2));
  const inside = (y, x) => Math.abs(y - row + 0.5) < half[0] && Math.abs(x - column + 0.5) < half[1];
  const values = Array.from({ length: height * width }, (_, i) => +inside(Math.floor(i / width), i % width));
  return { rows: height, columns: width, values };
}

// graft_salient_regions for one pair, with every intermediate step; `size` is { height, width } of the images.
function graftPair(sourceMap, destinationMap, settings, size) {
  const { grid, probability, seed } = settings;
  const [source, destination] = [resize(sourceMap, grid), resize(destinationMap, grid)];
  const draws = uniforms(seed * 1009 + grid, grid * grid); // kept while p moves, so M only grows with p
  const chosen = draws.map((draw) => (draw < probability ? 1 : 0));
  const salient = salientRegions(source, settings);
  const usable = scaled(source).usable && scaled(destination).usable;
  const mask = like(source, salient.values.map((value, i) => (usable ? value * chosen[i] : 0)));
  const area = pixelArea(mask, size.height, size.width);
  const { shown, kept, weight } = calibratedWeight(source, destination, mask, area);
  const shares = softmax(source, settings);
  return { source, destination, shares, salient, draws, chosen, mask, area, shown, kept, calibrated: weight };
}
