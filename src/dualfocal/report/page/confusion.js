"use strict";
// The confusion matrix: a heat map with a read-out for every cell.
const Confusion = (() => {
  const { percent, count } = Charts;
  const LEAST_LABEL = 9, // pixels of a cell with a label beside it
    LEAST_NUMBER = 27; // pixels of a cell with a number in it
  const OTHER = "other classes";

  // Rows of counts in the order wanted; the last column has predictions as classes that are not shown.
  function tableOf(matrix, sorted) {
    const n = matrix.names.length;
    const counts = Array.from({ length: n }, () => new Float64Array(n));
    for (let k = 0; k < matrix.cells.length; k += 3)
      counts[matrix.cells[k]][matrix.cells[k + 1]] = matrix.cells[k + 2];
    const order = matrix.names.map((_, i) => i);
    const errors = (i) => matrix.samples[i] - counts[i][i];
    if (sorted) order.sort((a, b) => errors(b) - errors(a) || a - b);
    const restricted = n < matrix.numClasses;
    const rows = order.map((i) => {
      const row = order.map((j) => counts[i][j]);
      return restricted ? [...row, matrix.samples[i] - row.reduce((a, b) => a + b, 0)] : row;
    });
    return { rows, names: order.map((i) => matrix.names[i]), samples: order.map((i) => matrix.samples[i]), restricted };
  }

  // `shares`: whether cells show the share of their row instead of counts.
  function draw(matrix, { shares, sorted }, width) {
    const { rows, names, samples, restricted } = tableOf(matrix, sorted);
    const columns = restricted ? [...names, OTHER] : names;
    const room = (words) => Math.min(0.3 * width, 6.4 * Math.min(16, Math.max(...words.map((name) => name.length))) + 8);
    const label = room(names);
    const size = Math.min(46, Math.max(3, (Math.min(width, 900) - label - 18) / columns.length));
    const labelled = size >= LEAST_LABEL;
    const [left, top] = labelled ? [label + 16, room(columns) + 18] : [18, 20];
    const numbered = size >= LEAST_NUMBER;
    const sheet = Sheet.make(width);
    const height = top + size * rows.length + 4;
    const box = { x: left, y: top, width: size * columns.length, height: size * rows.length };
    sheet.append(Sheet.node("rect", { ...box, fill: "none", stroke: "var(--line)" }));
    Sheet.text(sheet, "predicted class →", left, 11, { fill: "var(--muted)" });
    Sheet.text(sheet, "← true class", -top - size * rows.length, 11, { fill: "var(--muted)", transform: "rotate(-90)" });
    const lines = rows.map((row, i) =>
      row.map((n, j) => ({
        x: left + (j + 0.5) * size,
        y: top + (i + 0.5) * size,
        left: 0,
        size,
        text: () =>
          `true class: ${names[i]}\npredicted as: ${columns[j]}${i === j ? " (right)" : ""}\n${count(n)} samples, ` +
          `${percent(samples[i] ? n / samples[i] : NaN)} of the true class`,
      })),
    );
    const scale = colouring(rows, names.length, samples, shares, numbered);
    rows.forEach((row, i) =>
      row.forEach((n, j) => {
        if (!n) return;
        const right = i === j,
          other = j === names.length;
        sheet.append(
          Sheet.node("rect", {
            x: left + j * size,
            y: top + i * size,
            width: size - (size > 8 ? 1 : 0),
            height: size - (size > 8 ? 1 : 0),
            fill: other ? "var(--muted)" : right ? "var(--under)" : "var(--over)",
            "fill-opacity": (other ? 0.5 * (n / samples[i]) : scale(n, i, right)).toFixed(3),
          }),
        );
        if (numbered) cellText(sheet, lines[i][j], shares ? (100 * n) / samples[i] : n, shares, size);
      }),
    );
    if (labelled) labels(sheet, names, columns, { left, top, size });
    Sheet.grow(sheet, height);
    return {
      node: Readout.attach(sheet, lines),
      label: `Confusion matrix of ${names.length} of ${matrix.numClasses} classes: ${count(matrix.errors)} wrong predictions`,
      rows: names.map((name, i) => Object.fromEntries([["true class", name], ...columns.map((column, j) => [`predicted as ${column}`, rows[i][j]])])),
    };
  }

  // Opacity of a cell: the root of its share, so that rare confusions are visible. Cells with numbers stay light enough
  // for the text to be readable. Predictions as classes that are not shown do not count.
  function colouring(rows, shown, samples, shares, numbered) {
    const strongest = numbered ? 0.5 : 1;
    const most = [false, true].map((right) =>
      Math.max(1e-9, ...rows.flatMap((row, i) => [...row].filter((_, j) => j < shown && (i === j) === right))),
    );
    return (n, i, right) => Math.max(0.07, strongest * Math.sqrt(shares ? n / samples[i] : n / most[Number(right)]));
  }

  function cellText(sheet, { x, y }, value, shares, size) {
    const words = shares ? (value < 0.95 ? "<1" : value.toFixed(0)) : short(value);
    Sheet.text(sheet, words, x - 0.5, y + 4, { "text-anchor": "middle", "font-size": Math.min(11, size / 3) });
  }

  const short = (n) => (n < 10_000 ? count(n) : n < 1e6 ? `${Math.round(n / 1e3)}k` : `${(n / 1e6).toFixed(1)}M`);

  function labels(sheet, names, columns, { left, top, size }) {
    const look = { "font-size": Math.min(11, size), "text-anchor": "end" };
    names.forEach((name, i) => Sheet.text(sheet, Sheet.cut(name, 16), left - 4, top + (i + 0.5) * size + 3.5, look));
    columns.forEach((name, j) => {
      const [x, y] = [left + (j + 0.5) * size + 3.5, top - 4];
      Sheet.text(sheet, Sheet.cut(name, 16), x, y, { ...look, "text-anchor": "start", transform: `rotate(-90 ${x} ${y})` });
    });
  }

  return { draw };
})();
