"use strict";
// The forest plot of the result: the difference of each model from the best one, with its interval.
const Decision = (() => {
  const ROW = 26; // pixels
  const COLOURS = { better: "var(--under)", worse: "var(--over)", equal: "var(--muted)" };

  function draw({ forest, best }) {
    const place = byId("decision-figures");
    if (!forest.length) return;
    const metrics = [...new Set(forest.map((row) => row.metric))];
    const panels = Tables.element("div", { className: "panels" });
    const words = { better: `${best} is better`, worse: `${best} is worse`, equal: "not significant" };
    place.replaceChildren(
      Frame.figure({
        id: "comparison",
        title: `Differences from ${best}`,
        explanation:
          `Right of 0: ${best} is better. Lines are intervals of the paired differences; grey: not significant.`,
        node: panels,
        rows: forest,
      }),
    );
    place.firstElementChild.classList.add("wide");
    const width = Math.max(220, Math.min(480, Math.floor(panels.clientWidth / (panels.clientWidth > 640 ? 2 : 1)) - 24));
    for (const metric of metrics) panels.append(panel(forest.filter((row) => row.metric === metric), metric, width, words));
  }

  const LABELS = 0.36; // share of the width for the names of the models
  // Cut in the middle: names of runs often differ only at the end, such as in the seed.
  function short(name, width) {
    const most = Math.floor((LABELS * width - 12) / 7),
      start = Math.floor(most / 3);
    return name.length <= most ? name : `${name.slice(0, start)}…${name.slice(start + 1 - most)}`;
  }

  function panel(rows, metric, width, words) {
    const finite = rows.filter((row) => [row.difference, row.low, row.high].every((x) => x !== null));
    const ends = finite.flatMap((row) => [row.low, row.high, 0]);
    const [low, high] = ends.length ? [Math.min(...ends), Math.max(...ends)] : [-1, 1];
    const pad = 0.06 * (high - low || 1);
    const svg = Plot.plot({
      width,
      height: ROW * rows.length + 66,
      marginLeft: LABELS * width,
      marginTop: 26,
      marginBottom: 36,
      x: { domain: [low - pad, high + pad], label: `difference (${rows[0].unit})`, labelAnchor: "center",
           labelArrow: "none", ticks: 4 },
      y: { type: "band", domain: rows.map((row) => row.model), label: null, tickSize: 0,
           tickFormat: (name) => short(name, width) },
      marks: [
        Plot.text([metric], { frameAnchor: "top-left", dy: -20, dx: 0, text: (d) => d, fontWeight: 600, fontSize: 12 }),
        Plot.ruleX([0], { stroke: "currentColor", strokeOpacity: 0.6 }),
        Plot.ruleY(finite, { y: "model", x1: "low", x2: "high", stroke: (row) => COLOURS[row.outcome], strokeWidth: 3 }),
        Plot.dot(finite, { y: "model", x: "difference", fill: (row) => COLOURS[row.outcome], r: 5,
          title: (row) => `${row.model}: ${text(row)}, ${words[row.outcome]}` }),
      ],
    });
    const label = rows.map((row) => `${row.model}: ${text(row)}, ${words[row.outcome]}`).join("; ");
    return Tables.describe(svg, `${metric}: ${label}`);
  }

  function text(row) {
    if (row.difference === null) return "not finite";
    const digits = row.unit === "nats" ? 4 : 2;
    const ends = [row.low, row.high].map((x) => (x === null ? "?" : x.toFixed(digits)));
    return `${row.difference.toFixed(digits)} ${row.unit} (${ends.join(" to ")})`;
  }

  return { draw };
})();
