"use strict";
// Figures with one line per model, and histograms; all numbers come from Python, computed from all samples.
const Curves = (() => {
  const { percent, count, colourOf, hundredfold, MARGINS, percentAxis } = Charts;
  const MOST_SERIES = 8;

  // Look of the series of a model; with many models, only the chosen one has a colour.
  function look(i, models, chosen) {
    const plain = models > MOST_SERIES;
    return {
      colour: colourOf(i, models, chosen),
      dash: plain ? "" : Sheet.DASHES[i],
      strong: !plain || i === chosen,
    };
  }

  const legendOf = (runs, chosen, words) =>
    runs
      .map((run, i) => ({ ...look(i, runs.length, chosen), text: words(run) }))
      .filter(({ strong }) => strong)
      .concat(runs.length > MOST_SERIES ? [{ colour: "var(--muted)", text: `${runs.length - 1} other models` }] : []);

  const line = (data, { colour, dash, strong }, x = "x", y = "y") =>
    Plot.line(data, {
      x,
      y,
      stroke: colour,
      strokeWidth: strong ? 2 : 1,
      strokeOpacity: strong ? 1 : 0.5,
      strokeDasharray: dash || "none",
    });

  // A diagram with a line per model. `curves` has the points {x, y, threshold} of each model, `entries` the legend,
  // `describe` returns the read-out of a point, `row` its columns in the CSV file.
  function diagram(runs, chosen, curves, { width, height, x, y, below = [], above = [], entries, describe, row }) {
    const several = runs.length > 1;
    const sheet = Sheet.make(width);
    const top = entries.length ? Sheet.legend(sheet, entries) : 0;
    const lines = curves.map((curve, i) => line(curve, look(i, runs.length, chosen)));
    const plot = Plot.plot({ ...MARGINS, width, height, x, y, marks: [...below, ...lines, ...above] });
    const at = Sheet.put(sheet, plot, 0, top);
    Sheet.grow(sheet, top + height);
    const points = curves.map((curve, i) =>
      curve.map((point) => ({
        ...at(point.x, point.y),
        text: () => (several ? `${runs[i].name}\n` : "") + describe(point),
      })),
    );
    return {
      node: Readout.attach(sheet, points),
      rows: curves.flatMap((curve, i) => curve.map((point) => ({ model: runs[i].name, ...row(point) }))),
    };
  }

  // Error among the most confident samples, by their share.
  function coverage(runs, chosen, width) {
    const curves = runs.map(({ figures: { coverage: c } }) =>
      c.coverage.map((x, i) => ({ x, y: c.risk[i], threshold: c.threshold[i] })),
    );
    const dots = runs.flatMap(({ figures }, i) => {
      const { colour, strong } = look(i, runs.length, chosen);
      return strong ? figures.coverage.selective.slice(0, -1).map(([x, y]) => ({ x, y, colour })) : [];
    });
    const errors = ({ name, figures }) =>
      `${name}: ${figures.coverage.selective.map(([c, r]) => `error ${percent(r, 2)} at ${percent(c, 0)} coverage`).join(", ")}`;
    return {
      ...diagram(runs, chosen, curves, {
        width,
        height: Math.max(220, 0.66 * width),
        x: percentAxis("coverage: share of the samples that are answered (%)", { domain: [0, 1], labelAnchor: "right" }),
        y: percentAxis("error among them (%)", { zero: true, nice: true, grid: true }),
        below: [Plot.ruleX([0.8, 0.9, 0.95], { stroke: "var(--muted)", strokeDasharray: "2,4" })],
        above: [
          Plot.dot(dots, { x: "x", y: "y", fill: "colour", r: 3.5 }),
          Plot.ruleY([0], { strokeOpacity: 0.4 }),
        ],
        entries: runs.length > 1 ? legendOf(runs, chosen, (run) => run.name) : [],
        describe: ({ x, y, threshold }) =>
          `${percent(x)} of the samples are answered\nerror ${percent(y, 2)}\nconfidence at least ${percent(threshold, 2)}`,
        row: ({ x, y, threshold }) => ({ coverage: x, error: y, threshold }),
      }),
      label: runs.slice(0, MOST_SERIES).map(errors).join("; "),
    };
  }

  // Confidences of right and of wrong predictions: one panel for each model, right ones up, wrong ones down.
  function histograms(runs, words, width) {
    const sheet = Sheet.make(width);
    const [right, wrong] = words.positive ? ["class 1", "class 0"] : ["right", "wrong"];
    const top = Sheet.legend(sheet, [
      { text: words.positive ? "class 1 (up)" : "right predictions (up)", colour: "var(--under)", kind: "area", opacity: 0.75 },
      { text: words.positive ? "class 0 (down)" : "wrong predictions (down)", colour: "var(--over)", kind: "area", opacity: 0.75 },
      { text: "mean of each", colour: "currentColor", dash: "3,3" },
    ]);
    const columns = Math.max(1, Math.min(runs.length, Math.floor(width / 250)));
    const each = Math.floor((width + 16) / columns) - 16,
      height = Math.max(190, Math.min(280, 0.6 * each)),
      title = runs.length > 1 ? 18 : 0;
    const lines = runs.map(({ name, figures: { histogram: h } }, i) => {
      const [x, y] = [(i % columns) * (each + 16), top + Math.floor(i / columns) * (height + title + 8)];
      if (title) Sheet.text(sheet, Sheet.cut(name, Math.floor(each / 6.5)), x, y + 12, { "font-weight": 600 });
      const bins = binsOf(h);
      const plot = Plot.plot({
        ...MARGINS,
        width: each,
        height,
        x: percentAxis(`${words.forecast} (%)`, { domain: [0, 1], labelAnchor: "right" }),
        y: percentAxis("share of each group (%)", { tickFormat: (v) => hundredfold(Math.abs(v)), grid: true, nice: true }),
        marks: [
          bar(bins, (b) => b.rightShare, "var(--under)"),
          bar(bins, (b) => -b.wrongShare, "var(--over)"),
          Plot.ruleY([0]),
          ...mean(h.means[0], 0, Math.max(...bins.map((b) => b.rightShare))),
          ...mean(h.means[1], -Math.max(...bins.map((b) => b.wrongShare)), 0),
        ],
      });
      const at = Sheet.put(sheet, plot, x, y + title);
      return bins
        .filter((b) => b.right || b.wrong)
        .map((b) => ({
          ...at((b.low + b.high) / 2, b.rightShare),
          text: () =>
            `${runs.length > 1 ? `${name}\n` : ""}${words.forecast} ${percent(b.low)} to ${percent(b.high)}\n` +
            `${count(b.right)} ${right} (${percent(b.rightShare)} of these)\n` +
            `${count(b.wrong)} ${wrong} (${percent(b.wrongShare)} of these)`,
        }));
    });
    Sheet.grow(sheet, top + Math.ceil(runs.length / columns) * (height + title + 8) - 8);
    return {
      node: Readout.attach(sheet, lines),
      label: runs
        .map(({ name, figures: { histogram: h } }) =>
          `${name}: mean ${words.forecast} of ${right} ${percent(h.means[0] ?? NaN)}, of ${wrong} ${percent(h.means[1] ?? NaN)}`,
        )
        .join("; "),
      rows: runs.flatMap(({ name, figures }) =>
        binsOf(figures.histogram).map((b) => ({ model: name, above: b.low, to: b.high, [right]: b.right, [wrong]: b.wrong })),
      ),
    };
  }

  function binsOf({ right, wrong }) {
    const sum = (values) => values.reduce((a, b) => a + b, 0) || 1;
    const [rights, wrongs] = [sum(right), sum(wrong)];
    return right.map((r, b) => ({
      low: b / right.length,
      high: (b + 1) / right.length,
      right: r,
      wrong: wrong[b],
      rightShare: r / rights,
      wrongShare: wrong[b] / wrongs,
    }));
  }

  const bar = (bins, y, fill) =>
    Plot.rect(bins, { x1: "low", x2: "high", y1: 0, y2: y, fill, fillOpacity: 0.75, insetLeft: 0.5, insetRight: 0.5 });
  const mean = (x, y1, y2) =>
    x === null ? [] : [Plot.ruleX([x], { y1, y2, strokeWidth: 1.5, strokeDasharray: "3,3" })];

  // ROC curves of two classes.
  function roc(runs, chosen, width) {
    const side = Math.min(width, 460);
    const curves = runs.map(({ figures: { roc: r } }) =>
      (r?.fpr ?? []).map((x, i) => ({ x, y: r.tpr[i], threshold: r.threshold[i] })),
    );
    const area = ({ figures: { roc: r } }) => {
      const ends = r?.interval ? ` (${r.interval.map((x) => (100 * x).toFixed(1)).join(" to ")})` : "";
      return `AUROC ${r ? percent(r.auroc) : "–"}${ends}`;
    };
    const named = (run) => `${run.name}: ${area(run)}`;
    return {
      ...diagram(runs, chosen, curves, {
        width: side,
        height: side,
        x: percentAxis("false positive rate: class 0 called class 1 (%)", { domain: [0, 1], labelAnchor: "right" }),
        y: percentAxis("true positive rate: class 1 found (%)", { domain: [0, 1], grid: true }),
        below: [Charts.diagonal()],
        entries: legendOf(runs, chosen, runs.length > 1 ? named : area),
        describe: ({ x, y, threshold }) =>
          `probability of class 1 at least ${percent(threshold, 2)}:\nfinds ${percent(y)} of class 1,\n` +
          `takes ${percent(x)} of class 0 for it`,
        row: ({ x, y, threshold }) => ({ "false positive rate": x, "true positive rate": y, threshold }),
      }),
      label: runs.map(named).join("; "),
    };
  }

  return { coverage, histograms, roc, look, legendOf, line };
})();
