"use strict";
// Diagrams of computed results. Colours are CSS variables, so that themes and print need no redraw.
const Charts = (() => {
  const OVER = "var(--over)",
    UNDER = "var(--under)",
    MUTED = "var(--muted)";
  const COLOURS = Array.from({ length: 8 }, (_, k) => `var(--series-${k})`);
  const percent = (x, digits = 1) => (Number.isFinite(x) ? `${(100 * x).toFixed(digits)} %` : "–");
  const count = (x) => x.toLocaleString("en", { maximumFractionDigits: 1 }); // sums of weights are not whole
  const hundredfold = (x) => String(Number((100 * x).toFixed(6))); // not 7.000000000000001
  const signed = (x) => `${x < 0 ? "−" : "+"}${Math.abs(100 * x).toFixed(1)}`; // points
  // The width of the column in whole pixels; charts are redrawn when the window changes.
  const widthOf = (place) => Math.max(220, Math.floor(place.clientWidth));

  const MARGINS = { marginLeft: 42, marginRight: 14, marginTop: 22, marginBottom: 36 };
  const percentAxis = (label, more = {}) => ({ label, ticks: 5, tickFormat: hundredfold, ...more });
  const diagonal = () => Plot.line([[0, 0], [1, 1]], { strokeOpacity: 0.55, strokeDasharray: "4,4" });

  // The 90 % range of a calibrated model in each bin.
  const range = (bins) =>
    Plot.ruleX(bins, {
      x: "confidence",
      y1: (b) => Math.max(0, b.confidence - b.chance),
      y2: (b) => Math.min(1, b.confidence + b.chance),
      stroke: MUTED,
      strokeOpacity: 0.4,
      strokeWidth: 6,
    });

  // Frame of a reliability diagram.
  const unitSquare = (words, width) => ({
    ...MARGINS,
    width,
    height: width * 0.92,
    x: percentAxis(`${words.forecast} (%)`, { domain: [0, 1], labelAnchor: "right" }),
    y: percentAxis(`${words.outcome} (%)`, { domain: [0, 1], grid: true }),
  });

  // Points for the read-out of a diagram, by its scales.
  const placed = (svg, rows, x, y, text) => {
    const [across, up] = [svg.scale("x"), svg.scale("y")];
    return rows.map((row) => ({ x: across.apply(x(row)), y: up.apply(y(row)), text: () => text(row) }));
  };

  // Names of the axes; with two classes they may be the probability and the share of class 1.
  const wordsOf = ({ positive }) =>
    positive
      ? { forecast: "probability of class 1", outcome: "share of class 1", over: "too high", under: "too low" }
      : { forecast: "confidence", outcome: "accuracy", over: "over-confident", under: "under-confident" };

  function describe(bin, words) {
    const gap = Math.abs(bin.gap / bin.count);
    const points = `${(100 * gap).toFixed(1)} points`;
    return [
      `${words.forecast} ${percent(bin.low)} to ${percent(bin.high)}`,
      `${count(bin.count)} samples`,
      `mean ${words.forecast} ${percent(bin.confidence)}`,
      `${words.outcome} ${percent(bin.accuracy)}`,
      gap <= bin.chance
        ? `gap ${points}, within the 90 % range ±${(100 * bin.chance).toFixed(1)}`
        : `${bin.gap > 0 ? words.over : words.under} by ${points}, beyond the 90 % range ±${(100 * bin.chance).toFixed(1)}`,
    ].join("\n");
  }

  // Accuracy by confidence: bars, the diagonal, the 90 % range of a calibrated model, and the gap.
  function reliability(live, name, width) {
    const bins = live.bins.filter((bin) => bin.count),
      words = wordsOf(live);
    const colour = (bin) => (bin.gap > 0 ? OVER : UNDER);
    const svg = Plot.plot({
      ...unitSquare(words, width),
      marks: [
        Plot.rect(bins, { x1: "low", x2: "high", y1: 0, y2: "accuracy", fill: "var(--bar)", inset: 0.5 }),
        diagonal(),
        range(bins),
        Plot.ruleX(bins, { x: "confidence", y1: "confidence", y2: "accuracy", stroke: colour, strokeWidth: 2 }),
        Plot.dot(bins, { x: "confidence", y: "accuracy", fill: colour, r: 3.5 }),
      ],
    });
    Tables.describe(
      svg,
      `Reliability diagram of ${name}: ECE ${percent(live.ece, 2)}, mean ${words.forecast} ` +
        `${percent(live.confidence)}, ${words.outcome} ${percent(live.accuracy)}, ${live.count} samples`,
    );
    const points = placed(svg, bins, (b) => b.confidence, (b) => b.accuracy, (b) => describe(b, words));
    return Readout.attach(svg, [points]);
  }

  // Histogram of confidences, split into right and wrong predictions, or into the two classes.
  function histogram(live, name, width, height) {
    const words = wordsOf(live);
    const bars = live.histogram
      .filter((bin) => bin.count)
      .flatMap((bin) => [
        { ...bin, y1: 0, y2: bin.correct / live.count, fill: UNDER },
        { ...bin, y1: bin.correct / live.count, y2: bin.count / live.count, fill: OVER },
      ]);
    const svg = Plot.plot({
      ...MARGINS,
      width,
      height,
      x: percentAxis(`${words.forecast} (%)`, { domain: [0, 1], labelAnchor: "right" }),
      y: percentAxis("samples (%)", { ticks: 4, grid: true, zero: true, nice: true }),
      marks: [
        Plot.rect(bars, {
          x1: "low",
          x2: "high",
          y1: "y1",
          y2: "y2",
          fill: "fill",
          fillOpacity: 0.75,
          insetLeft: 0.5,
          insetRight: 0.5,
        }),
        Plot.ruleY([0], { strokeOpacity: 0.4 }),
        Plot.ruleX([live.confidence], { stroke: "currentColor", strokeWidth: 1.5 }),
        Plot.ruleX([live.accuracy], { stroke: "currentColor", strokeWidth: 1.5, strokeDasharray: "2,3" }),
      ],
    });
    Tables.describe(
      svg,
      `Histogram of the ${words.forecast}, ${name}: mean ${percent(live.confidence)}, ` +
        `${words.outcome} ${percent(live.accuracy)}`,
    );
    const text = (b) =>
      `${words.forecast} ${percent(b.low)} to ${percent(b.high)}\n${count(b.count)} samples, ` +
      (live.positive ? `${count(b.correct)} of class 1` : `${count(b.count - b.correct)} wrong`);
    const filled = live.histogram.filter((bin) => bin.count);
    return Readout.attach(svg, [placed(svg, filled, (b) => (b.low + b.high) / 2, (b) => b.count / live.count, text)]);
  }

  function colourOf(key, count, chosen) {
    if (count > COLOURS.length) return key === chosen ? COLOURS[0] : MUTED;
    return COLOURS[key];
  }

  return {
    reliability,
    histogram,
    colourOf,
    percent,
    count,
    hundredfold,
    signed,
    widthOf,
    wordsOf,
    MARGINS,
    percentAxis,
    diagonal,
    range,
    unitSquare,
  };
})();
