"use strict";
// Intervals of each group: debiased RMS error and over-confidence.
const Groups = (() => {
  const { percent, count, hundredfold, signed } = Charts;
  const ROW = 22;

  function draw({ rows, level, positive, column }, width) {
    const sheet = Sheet.make(width);
    const gap = positive ? "probability − share of class 1" : "confidence − accuracy";
    const interval = `${hundredfold(level)} % interval`;
    const top = Sheet.legend(sheet, [
      { text: "significant (adjusted p ≤ 0.05)", colour: "var(--over)", kind: "dot" },
      { text: "not significant", colour: "var(--muted)", kind: "dot" },
      { text: interval, colour: "var(--ink)" },
    ]);
    const stacked = width < 560;
    const names = Math.min(0.34 * width, 7 * Math.min(26, Math.max(...rows.map((row) => row.name.length))) + 16);
    const height = ROW * rows.length + 56;
    const panels = [
      { title: "debiased RMS error (points)", value: "debiased", low: "debiasedLow", high: "debiasedHigh", zero: true },
      { title: `${gap} (points)`, value: "gap", low: "gapLow", high: "gapHigh", zero: false },
    ];
    const each = stacked ? width : (width - names) / 2;
    const lines = [];
    panels.forEach((panel, k) => {
      const labelled = stacked || k === 0;
      const margin = labelled ? names : 12;
      const plot = Plot.plot({
        width: labelled ? (stacked ? width : each + names) : each,
        height,
        marginLeft: margin,
        marginRight: 14,
        marginTop: 22,
        marginBottom: 34,
        x: { label: panel.title, labelAnchor: "center", labelArrow: "none", tickFormat: hundredfold, ticks: 5, grid: true, zero: true, nice: true },
        y: {
          type: "point",
          domain: rows.map((_, i) => i),
          label: null,
          axis: labelled ? "left" : null,
          tickFormat: (i) => Sheet.cut(rows[i].name, Math.floor((names - 14) / 6.4)),
          tickSize: 0,
        },
        marks: [
          Plot.ruleX([0], { strokeOpacity: 0.6 }),
          Plot.ruleY(rows, { x1: panel.low, x2: panel.high, y: (_, i) => i, stroke: colour, strokeWidth: 2 }),
          Plot.dot(rows, { x: panel.value, y: (_, i) => i, fill: colour, r: 4 }),
        ],
      });
      const at = Sheet.put(sheet, plot, stacked || k === 0 ? 0 : each + names, stacked ? top + k * height : top);
      rows.forEach((row, i) => lines.push([{ ...at(row[panel.value], i), left: 0, text: () => describe(row, gap, interval) }]));
    });
    Sheet.grow(sheet, top + height * (stacked ? 2 : 1));
    // Left and right arrows go to the other interval of the same group.
    const n = rows.length;
    const grid = stacked ? lines : rows.map((_, i) => [lines[i][0], lines[n + i][0]]);
    return {
      node: Readout.attach(sheet, grid),
      label: `${n} groups by ${column}, worst first: ${rows[0].name}, debiased RMS error ${percent(rows[0].debiasedLow, 1)} to ${percent(rows[0].debiasedHigh, 1)}`,
      rows: rows.map((row) => ({
        [column || "group"]: row.name,
        samples: row.count,
        error: row.error,
        "debiased RMS error": row.debiased,
        "debiased low": row.debiasedLow,
        "debiased high": row.debiasedHigh,
        [gap]: row.gap,
        [`${gap} low`]: row.gapLow,
        [`${gap} high`]: row.gapHigh,
        "adjusted p": row.p,
      })),
    };
  }

  const colour = ({ p }) => (p <= 0.05 ? "var(--over)" : "var(--muted)");

  function describe(row, gap, interval) {
    const points = (x) => (100 * x).toFixed(1);
    return (
      `${row.name}: ${count(row.count)} samples, error ${percent(row.error)}\n` +
      `debiased RMS error ${points(row.debiased)} points (${interval} ${points(row.debiasedLow)} to ${points(row.debiasedHigh)})\n` +
      `${gap} ${signed(row.gap)} points (${signed(row.gapLow)} to ${signed(row.gapHigh)})\nadjusted p ` +
      (row.p < 0.001 ? "< 0.001" : row.p.toFixed(3))
    );
  }

  return { draw };
})();
