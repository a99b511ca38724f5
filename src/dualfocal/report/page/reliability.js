"use strict";
// Reliability diagrams of several models, before and after a calibrator, and of each class.
const Reliability = (() => {
  const { percent, count, hundredfold, diagonal, range, unitSquare } = Charts;
  const { look, legendOf, line } = Curves;
  const HEAD = 44; // pixels above a small diagram, for name, ECE and the label of its axis

  // Columns of Python as a list of bins.
  const binsOf = (columns) =>
    columns.count.map((_, i) => Object.fromEntries(Object.entries(columns).map(([name, values]) => [name, values[i]])));

  function describe(bin, words) {
    return (
      `${words.forecast} ${percent(bin.low)} to ${percent(bin.high)}\n${count(bin.count)} samples\n` +
      `mean ${words.forecast} ${percent(bin.confidence)}\n${words.outcome} ${percent(bin.accuracy)} ` +
      `(calibrated: ±${(100 * bin.chance).toFixed(1)} points)`
    );
  }

  const rowsOf = (name, bins, words) =>
    bins.map((bin) => ({
      series: name,
      above: bin.low,
      to: bin.high,
      samples: bin.count,
      [`mean ${words.forecast}`]: bin.confidence,
      [words.outcome]: bin.accuracy,
      "90 % range of a calibrated model": bin.chance,
    }));

  // Lines of several series {name, bins, colour, dash, strong, r, hollow} in one diagram.
  function lines(series, words, width, entries, ranges) {
    const side = Math.min(width, 520);
    const sheet = Sheet.make(side);
    const top = Sheet.legend(sheet, entries);
    const plot = Plot.plot({
      ...unitSquare(words, side),
      marks: [
        diagonal(),
        ...ranges.map(range),
        ...series.flatMap(({ bins, colour, dash, strong, hollow }) => [
          line(bins, { colour, dash, strong }, "confidence", "accuracy"),
          Plot.dot(strong ? bins : [], {
            x: "confidence",
            y: "accuracy",
            fill: hollow ? "var(--paper)" : colour,
            stroke: colour,
            strokeWidth: 1.5,
            r: 3.5,
          }),
        ]),
      ],
    });
    const at = Sheet.put(sheet, plot, 0, top);
    Sheet.grow(sheet, top + Number(plot.getAttribute("height")));
    const points = series.map(({ name, bins }) =>
      bins.map((bin) => ({ ...at(bin.confidence, bin.accuracy), text: () => `${name}\n${describe(bin, words)}` })),
    );
    return { node: Readout.attach(sheet, points), rows: series.flatMap(({ name, bins }) => rowsOf(name, bins, words)) };
  }

  // All models in one diagram; `results` are those of Calibration.evaluate.
  function together(runs, results, chosen, words, width) {
    const series = runs.map((run, i) => ({
      ...look(i, runs.length, chosen),
      name: run.name,
      bins: results[i].bins.filter((bin) => bin.count),
    }));
    const ece = (run) => `${run.name}: ECE ${percent(results[runs.indexOf(run)].ece, 2)}`;
    return {
      ...lines(series, words, width, legendOf(runs, chosen, ece), []),
      label: runs.map(ece).join("; "),
    };
  }

  // Before and after the recommended calibrator.
  function overlay({ method, before, after }, words, width) {
    const series = [
      { name: "uncalibrated", ...before, colour: "var(--over)", dash: "7,3", strong: true, hollow: true },
      { name: method, ...after, colour: "var(--under)", dash: "", strong: true },
    ].map((curve) => ({ ...curve, bins: binsOf(curve.bins) }));
    const nats = ({ nll }) => (nll === null ? "infinite" : nll.toFixed(4));
    const caption = ({ name, ece }) => `${name}: ECE ${percent(ece, 2)}`;
    const entries = [
      ...series.map((curve) => ({ ...curve, text: caption(curve) })),
      { text: `90 % range if calibrated, ${method}`, colour: "var(--muted)", kind: "area", opacity: 0.4 },
    ];
    return {
      ...lines(series, words, width, entries, [series[1].bins]),
      label: `${series.map(caption).join("; ")}; NLL ${nats(before)} before, ${nats(after)} after`,
    };
  }

  // Small diagrams of the first classes, on one sheet.
  function classes(shown, width) {
    const columns = Math.max(2, Math.min(Math.floor(width / 165), shown.length)),
      gap = 14,
      each = Math.min(300, Math.floor((width + gap) / columns) - gap),
      height = each + HEAD;
    const sheet = Sheet.make(width);
    const top = Sheet.legend(sheet, [
      { text: "probability too high", colour: "var(--over)", kind: "dot" },
      { text: "too low", colour: "var(--under)", kind: "dot" },
      { text: "90 % range of a calibrated model", colour: "var(--muted)", kind: "area", opacity: 0.4 },
    ]);
    const words = { forecast: "probability", outcome: "share" };
    const digits = shown[0].ece < 0.002 ? 3 : 2; // of many classes, each has a small error
    const points = shown.map(({ name, ece, floor, bins: columnsOfBins }, i) => {
      const [x, y] = [(i % columns) * (each + gap), top + Math.floor(i / columns) * (height + gap)];
      const bins = binsOf(columnsOfBins);
      const colour = (b) => (b.confidence > b.accuracy ? "var(--over)" : "var(--under)");
      const title = /^\d+$/.test(name) ? `class ${name}` : name;
      Sheet.text(sheet, Sheet.cut(title, Math.floor(each / 7)), x, y + 11, { "font-weight": 600 });
      Sheet.text(sheet, `ECE ${percent(ece, digits)}, floor ${(100 * floor).toFixed(digits)}`, x, y + 25, { fill: "var(--muted)", "font-size": 10 });
      const first = i % columns === 0,
        last = i + columns >= shown.length;
      const plot = Plot.plot({
        width: each,
        height: each,
        marginLeft: 26,
        marginRight: 4,
        marginTop: 6,
        marginBottom: 28,
        x: { domain: [0, 1], label: last ? "probability (%)" : null, labelArrow: "none", ticks: [0, 0.5, 1], tickFormat: hundredfold, labelAnchor: "center" },
        y: { domain: [0, 1], label: null, ticks: [0, 0.5, 1], tickFormat: hundredfold, grid: true },
        marks: [
          diagonal(),
          range(bins),
          Plot.ruleX(bins, { x: "confidence", y1: "confidence", y2: "accuracy", stroke: colour, strokeWidth: 1.5 }),
          Plot.dot(bins, { x: "confidence", y: "accuracy", fill: colour, r: 2.5 }),
        ],
      });
      const at = Sheet.put(sheet, plot, x, y + HEAD);
      if (first) Sheet.text(sheet, "↑ share of the class (%)", x, y + 41, { "font-size": 10 });
      return bins.map((bin) => ({ ...at(bin.confidence, bin.accuracy), text: () => `${title}\n${describe(bin, words)}` }));
    });
    Sheet.grow(sheet, top + Math.ceil(shown.length / columns) * (height + gap) - gap);
    const worst = shown[0];
    return {
      node: Readout.attach(sheet, points),
      label: `Reliability of ${shown.length} classes, worst first: ${worst.name}, ECE ${percent(worst.ece, 2)}, noise floor ${percent(worst.floor, 2)}`,
      rows: shown.flatMap(({ name, bins }) => rowsOf(name, binsOf(bins), words)),
    };
  }

  return { together, overlay, classes };
})();
