"use strict";
// The reliability section: its controls, and the table and diagrams that they change.
const Live = (() => {
  const { element, make } = Tables;
  const { runs, settings } = contents;
  const several = runs.length > 1;
  const data = runs.map((run, i) => Calibration.decode(byId(`values-${i}`).textContent, run.data));

  const words = Charts.wordsOf(contents);
  // A loss of extreme logits could have hundreds of digits.
  function nats(x) {
    if (Number.isNaN(x)) return "–";
    if (x === Infinity) return "∞";
    return x < 1e7 ? x.toFixed(4) : x.toExponential(3);
  }
  const columns = [
    ["count", "samples", (x) => x.toLocaleString("en")],
    ["temperature", "T", (x) => x.toFixed(3)],
    ["ece", "ECE", (x) => Charts.percent(x, 2)],
    ["chance", "noise floor", (x) => Charts.percent(x, 2)],
    ["nll", "NLL", nats],
    ["error", "error", (x) => Charts.percent(x, 2)],
    ["confidence", words.forecast, (x) => Charts.percent(x, 2)],
    ["accuracy", words.outcome, (x) => Charts.percent(x, 2)],
  ];

  function wanted(i) {
    const fitted = byId("fitted").checked && runs[i].temperature !== null;
    return {
      temperature: fitted ? runs[i].temperature : 2 ** Number(byId("temperature").value),
      numBins: Number(byId("bins").value),
      scheme: document.querySelector("input[name=scheme]:checked").value,
      ofClass: byId("class").value === "" ? null : Number(byId("class").value),
    };
  }

  function setUp() {
    byId("live-head").append(
      element("th", { scope: "col" }, "input"),
      ...columns.map(([, title]) => element("th", { scope: "col", className: "number" }, title)),
    );
    runs.forEach((run, i) => {
      byId("live-body").append(
        element(
          "tr",
          { id: `live-${i}` },
          element("th", { scope: "row" }, element("bdi", {}, run.name)),
          ...columns.map(([name]) => element("td", { className: "number", "data-figure": name })),
        ),
      );
      const bins = element(
        "details",
        {},
        element("summary", {}, "Table of the bins"),
        element("div", { id: `bins-${i}` }),
      );
      const title = `Reliability${several ? `, ${run.name}` : ""}`;
      byId("panels").append(
        element(
          "figure",
          { id: `panel-${i}`, "aria-label": title },
          ...(several ? [element("h3", {}, element("bdi", {}, run.name))] : []),
          element(
            "div",
            { className: "pair" },
            element("div", { className: "chart reliability" }),
            element("div", { className: "chart histogram" }),
          ),
          element("figcaption", {}),
          element("div", { className: "saves" }),
          bins,
        ),
      );
    });
    byId("panels").classList.toggle("several", several);
    Object.assign(byId("bins"), { max: Math.max(50, settings.numBins), value: settings.numBins });
    const slider = byId("temperature");
    const coarse = data.some((block) => block.kind === "log_sums");
    Object.assign(slider, {
      min: -settings.octaves,
      max: settings.octaves,
      step: coarse ? 1 / settings.steps : 1 / 64,
      value: 0,
    });
    byId("class").append(
      element("option", { value: "" }, "all"),
      ...contents.classNames.map((name, c) => element("option", { value: c }, name)),
    );
    byId("class-control").hidden = !contents.classNames.length;
    byId("fitted-control").hidden = runs.every((run) => run.temperature === null);
    byId("fitted-text").textContent = several ? "fitted T of each input, from " : "fitted T, from ";
    byId("fitted-text").append([...new Set(runs.map((run) => run.temperatureFrom))].join(" or "));
    for (const id of ["bins", "temperature", "class", "fitted"]) byId(id).addEventListener("input", redraw);
    for (const radio of document.querySelectorAll("input[name=scheme]")) radio.addEventListener("input", redraw);
    byId("reset").addEventListener("click", () => {
      Object.assign(slider, { value: 0 });
      byId("bins").value = settings.numBins;
      byId("fitted").checked = false;
      byId("class").value = "";
      byId("equal-width").checked = true;
      redraw();
    });
    byId("sample-note").replaceChildren(...sampleNotes().map((text) => Tables.paragraph(text, "note")));
    byId("filter-note").textContent = contents.classNames.length
      ? "The class filter selects samples by their predicted class."
      : `There is no class filter: ${contents.noFilter}.`;
    if (contents.positive) {
      byId("reliability-meaning").textContent =
        "What this means: of the samples with a probability of 80 %, 80 % should be of class 1. " +
        "Bars below the diagonal: the probabilities are too high. Bars above it: too low.";
      byId("key-over").textContent = "probability too high, or class 0";
      byId("key-under").textContent = "probability too low, or class 1";
    }
    byId("key-lines").textContent = `Lines in the histogram: mean ${words.forecast} (solid), ${words.outcome} (dotted).`;
  }

  function sampleNotes() {
    const parts = data
      .filter((block) => block.count < block.total)
      .map((block) => `${block.count.toLocaleString("en")} of ${block.total.toLocaleString("en")} samples`);
    const notes = [];
    if (parts.length)
      notes.push(
        "The numbers and diagrams of this section are computed from a random subset, " +
          `${[...new Set(parts)].join("; ")}, to limit the size of the page. ` +
          "All other tables use all samples.",
      );
    if (data.some((block) => block.input === "probs"))
      notes.push("The input contains probabilities: the temperature scales their logarithms.");
    if (contents.positive) notes.push("Probabilities are those of class 1; the error is that of the predicted class.");
    if (data.some((block) => block.weighted)) notes.push("All numbers are weighted; sums of weights are scaled to the number of samples.");
    if (runs.some((run) => run.figures.designEffect))
      notes.push("Ranges and noise floors allow for the clusters by the design effect of all samples.");
    if (data.some((block) => block.clipped))
      notes.push("Some logits are more than 3.4e38 below the largest; at other temperatures this difference is set to 3.4e38.");
    return notes;
  }

  let waiting = false;
  function redraw() {
    if (waiting) return;
    waiting = true;
    requestAnimationFrame(() => {
      waiting = false;
      draw();
    });
  }

  function draw() {
    const temperature = byId("fitted").checked
      ? "fitted T"
      : `T = ${(2 ** Number(byId("temperature").value)).toFixed(3)}`;
    byId("bins-value").textContent = byId("bins").value;
    byId("temperature-value").textContent = temperature;
    byId("temperature").setAttribute("aria-valuetext", temperature);
    byId("temperature").disabled = byId("fitted").checked;
    // Also as text, since a printed page has no controls.
    const scheme = byId("equal-mass").checked ? "equal mass" : "equal width",
      filter = byId("class").selectedOptions[0];
    byId("live-caption").replaceChildren(
      `Computed in the browser: ${byId("bins").value} bins of ${scheme}, ${temperature}, `,
      ...(filter.value === "" ? ["all samples"] : ["samples predicted as ", element("bdi", {}, filter.textContent)]),
    );
    const results = runs.map((_, i) => Calibration.evaluate(data[i], wanted(i)));
    if (several) drawTogether(results);
    results.forEach(drawPanel);
  }

  // The row of the table and the diagrams of the i-th model.
  function drawPanel(live, i) {
    for (const [name, , show] of columns) {
      const cell = document.querySelector(`#live-${i} [data-figure=${name}]`);
      cell.textContent = show(live[name]);
      cell.dataset.value = live[name];
    }
    const { name } = runs[i];
    const panel = byId(`panel-${i}`),
      caption = panel.querySelector("figcaption"),
      saves = panel.querySelector(".saves");
    const [diagram, bars] = panel.querySelectorAll(".chart");
    if (!live.count) {
      diagram.replaceChildren(Tables.paragraph("No sample is predicted as this class.", "note"));
      for (const place of [bars, caption, saves, byId(`bins-${i}`)]) place.replaceChildren();
      return;
    }
    diagram.replaceChildren(Charts.reliability(live, name, Charts.widthOf(diagram)));
    // Charts side by side have the same height.
    const [width, beside] = [Charts.widthOf(bars), diagram.offsetTop === bars.offsetTop];
    const height = beside ? diagram.clientHeight : Math.max(150, width * 0.5);
    bars.replaceChildren(Charts.histogram(live, name, width, height));
    caption.textContent =
      `ECE ${Charts.percent(live.ece, 2)} (noise floor ${Charts.percent(live.chance, 2)}), NLL ` +
      `${nats(live.nll)} at T = ${live.temperature.toFixed(3)}`;
    byId(`bins-${i}`).replaceChildren(make(binTable(live, name)));
    saves.replaceChildren(
      Frame.downloads({
        id: several ? `reliability-${i + 1}` : "reliability",
        title: `Reliability of ${name}`,
        picture: () => panel.querySelector(".pair"),
      }),
    );
  }

  // All models in one diagram, with the same settings as the diagrams of each model.
  function drawTogether(results) {
    const place = byId("reliability-figures"),
      chosen = Number(byId("run").value);
    const drawn = Reliability.together(runs, results, chosen, words, Math.min(620, Charts.widthOf(place)));
    const figure = Frame.figure({
      id: "together",
      title: "All models in one diagram",
      explanation: `Mean ${words.forecast} and ${words.outcome} of each bin, with the settings below. Points below the diagonal: ${words.over}.`,
      ...drawn,
    });
    place.replaceChildren(figure);
  }

  function binTable(live, name) {
    const cell = (x) => [Charts.percent(x, 2), Number.isFinite(x) ? x : null];
    return {
      caption: `Bins of ${name}`,
      sortable: true,
      columns: ["above", "to", "samples", words.forecast, words.outcome, "difference", "90 % range ±"].map((title) => ({
        title,
        help: "",
        numeric: true,
      })),
      rows: live.bins
        .filter((bin) => bin.count)
        .map((bin) => [
          cell(bin.low),
          cell(bin.high),
          [Charts.count(bin.count), bin.count],
          cell(bin.confidence),
          cell(bin.accuracy),
          cell(bin.gap / bin.count),
          cell(bin.chance),
        ]),
    };
  }

  return { setUp, draw };
})();
