"use strict";
// The evidence of a monitor over time.
const Evidence = (() => {
  const { count, signed, MARGINS, percentAxis } = Charts;

  // Evidence of a monitor over time, and below it the gap of each period.
  function draw(monitor, width) {
    const periods = monitor.time.map((time, i) => ({
      time,
      first: monitor.first[i],
      last: monitor.last[i],
      count: monitor.count[i],
      evidence: monitor.evidence[i],
      gap: monitor.gap[i],
      low: monitor.gap[i] - monitor.error[i],
      high: monitor.gap[i] + monitor.error[i],
    }));
    const gap = monitor.positive ? "probability − frequency" : "confidence − accuracy";
    const sheet = Sheet.make(width);
    const top = Sheet.legend(sheet, [
      { text: "evidence against calibration", colour: "var(--under)" },
      { text: `alarm at ${count(1 / monitor.alpha)}`, colour: "var(--over)", dash: "7,3" },
      ...(monitor.alarm ? [{ text: `first alarm: ${monitor.alarm.time}`, colour: "var(--over)", kind: "dot" }] : []),
      { text: `${gap}, two standard errors`, colour: "var(--ink)", kind: "dot" },
      ...(monitor.tolerance ? [{ text: "tolerance", colour: "var(--muted)", kind: "area", opacity: 0.35 }] : []),
    ]);
    const x = timeAxis(periods, width);
    const [high, low] = [Math.max(2, ...monitor.evidence), Math.min(-1, ...monitor.evidence)];
    const upper = Plot.plot({
      ...MARGINS,
      width,
      height: 220,
      x: { ...x, axis: null },
      y: { label: "evidence (factor)", domain: [low, 1.04 * high], ticks: 6, tickFormat: power, grid: true },
      marks: [
        Plot.ruleY([monitor.limit], { stroke: "var(--over)", strokeDasharray: "7,3", strokeWidth: 1.5 }),
        Plot.line(periods, { x: "last", y: "evidence", stroke: "var(--under)", strokeWidth: 2 }),
        Plot.dot(periods.length <= 120 ? periods : [], { x: "last", y: "evidence", fill: "var(--under)", r: 2.5 }),
        Plot.dot(monitor.alarm ? [monitor.alarm] : [], { x: "period", y: "evidence", fill: "var(--over)", r: 6 }),
      ],
    });
    const lower = Plot.plot({
      ...MARGINS,
      marginBottom: 62,
      width,
      height: 200,
      x,
      y: percentAxis(`${gap} (points)`, { grid: true, nice: true }),
      marks: [
        ...(monitor.tolerance
          ? [Plot.rect([monitor.tolerance], { y1: (t) => -t, y2: (t) => t, fill: "var(--muted)", fillOpacity: 0.35 })]
          : []),
        Plot.ruleY([0]),
        Plot.ruleX(periods, { x: "last", y1: "low", y2: "high", strokeOpacity: 0.6 }),
        Plot.dot(periods, { x: "last", y: "gap", fill: "currentColor", r: 2.5 }),
      ],
    });
    const at = Sheet.put(sheet, upper, 0, top);
    const below = Sheet.put(sheet, lower, 0, top + 220);
    Sheet.grow(sheet, top + 420);
    const name = ({ time, first, last }) => (first === last ? time : `${time} and ${last - first} more periods`);
    const describe = (period) =>
      `${name(period)}\n${count(period.count)} samples\nevidence ${factor(period.evidence)}\n` +
      `${gap} ${signed(period.gap)} points (±${(50 * (period.high - period.low)).toFixed(1)})`;
    return {
      node: Readout.attach(sheet, [
        periods.map((period) => ({ ...at(period.last, period.evidence), text: () => describe(period) })),
        periods.map((period) => ({ ...below(period.last, period.gap), text: () => describe(period) })),
      ]),
      label:
        `${count(monitor.samples)} samples; evidence at the end ${factor(monitor.evidence.at(-1))}; ` +
        (monitor.alarm ? `first alarm at ${monitor.alarm.time}` : "no alarm"),
      rows: periods.map((p) => ({
        time: p.time,
        "first period": p.first,
        "last period": p.last,
        samples: p.count,
        "log10 of the evidence": p.evidence,
        gap: p.gap,
        "gap low": p.low,
        "gap high": p.high,
      })),
    };
  }

  function timeAxis(periods, width) {
    const most = Math.max(2, Math.min(8, Math.floor(width / 80)));
    const step = Math.max(1, Math.ceil((periods.length - 1) / (most - 1)));
    const shown = periods.filter((_, i) => i % step === 0);
    const days = shown.map(({ time }) => time.slice(0, 10));
    const dated = shown.every(({ time }) => "T ".includes(time.charAt(10) || "x")) && new Set(days).size === days.length;
    const names = new Map(shown.map(({ last, time }, i) => [last, dated ? days[i] : Sheet.cut(time, 16)]));
    const ends = [periods[0].last - 0.5, periods.at(-1).last + 0.5];
    return { domain: ends, label: "period", ticks: [...names.keys()], tickFormat: (k) => names.get(k), tickRotate: -30 };
  }

  // Label of a tick: only whole powers of ten have one.
  function power(k) {
    if (!Number.isInteger(k)) return "";
    return { 0: "1", 1: "10" }[k] ?? `10${superscript(k)}`;
  }
  const superscript = (k) => [...String(k)].map((c) => (c === "-" ? "⁻" : "⁰¹²³⁴⁵⁶⁷⁸⁹"[c])).join("");
  const factor = (exponent) =>
    Math.abs(exponent) < 5
      ? (10 ** exponent).toLocaleString("en", { maximumSignificantDigits: 3 })
      : `10${superscript(Math.round(exponent))}`;

  return { draw };
})();
