"use strict";
// Fills the sections of the page, and connects the choice of an input.
(() => {
  const { element, make } = Tables;
  const { runs } = contents;
  const several = runs.length > 1;
  const chosen = () => Number(byId("run").value); // 0 if there is one run, and nothing to choose

  // --- static content ---

  function fillDecision() {
    const { sentences, table } = contents.decision;
    byId("decision-body").replaceChildren(
      ...sentences.map(([title, text]) => element("p", {}, element("strong", {}, `${title}: `), text)),
      ...(table ? [make(table)] : []),
    );
    byId("monitor").hidden = !contents.monitor;
    if (contents.monitor) byId("monitor-body").replaceChildren(Tables.paragraph(contents.monitor.verdict, "verdict"));
    const copy = element("button", { type: "button", id: "copy" }, "Copy");
    const status = element("span", { role: "status", className: "note" });
    copy.addEventListener("click", async () => {
      try {
        await navigator.clipboard.writeText(contents.methods);
        status.textContent = " Copied.";
      } catch {
        getSelection().selectAllChildren(byId("methods-text")); // without permission: for Ctrl+C
        status.textContent = " Selected: press Ctrl+C.";
      }
    });
    byId("methods-body").replaceChildren(
      element("p", { id: "methods-text" }, contents.methods),
      element("div", { className: "screen" }, copy, status),
    );
  }

  function fillModels() {
    byId("metrics-body").replaceChildren(...contents.metrics.map(make));
    if (!several) return;
    const verdicts = runs.map((run) =>
      element("li", {}, element("strong", {}, element("bdi", {}, run.name)), ` – ${run.verdict}`),
    );
    const list = element("ul", { className: "verdicts" }, ...verdicts);
    byId("metrics-body").append(
      element("details", { id: "verdicts", open: runs.length <= 8 }, element("summary", {}, "Verdict on each model"), list),
    );
    byId("run").replaceChildren(...runs.map((run, i) => element("option", { value: i }, run.name)));
    byId("chooser").hidden = false;
    byId("run").addEventListener("change", () => {
      fillRun();
      drawRun();
    });
  }

  // The sections on the chosen model.
  function fillRun() {
    const run = runs[chosen()];
    for (const place of document.querySelectorAll(".of-run"))
      place.replaceChildren(...(several ? [" – ", element("bdi", {}, run.name)] : []));
    byId("calibrators-body").replaceChildren(
      ...(run.advice ? [Tables.paragraph(run.advice, "verdict")] : []),
      ...(run.calibrators ? [make(run.calibrators)] : []),
      ...(run.how ? [Tables.paragraph(run.how, "note")] : []),
      ...run.remarks.map((text) => Tables.paragraph(text, "note")),
      ...run.metrics.map(make),
    );
    byId("classes-body").replaceChildren(
      make(run.classes),
      ...(run.classesNote ? [Tables.paragraph(run.classesNote, "note")] : []),
    );
    fillMistakes(run.mistakes);
    byId("groups-note").textContent = run.groupsNote;
    byId("recipe-body").replaceChildren(...recipe(run), make(run.about));
  }

  function recipe(run) {
    const between = contents.recipes ? [make(contents.recipes)] : [];
    if (!run.recipe) return between;
    const { summary, preset, table, json } = run.recipe;
    const same = `All settings are those of the preset ${preset}.`;
    return [
      Tables.paragraph(summary),
      table.rows.length ? make(table) : Tables.paragraph(same, "note"),
      element("details", {}, element("summary", {}, "Recipe as JSON"), element("pre", { tabIndex: 0 }, json)),
      ...between,
    ];
  }

  function fillMistakes({ items, total, note }) {
    const cards = items.map((item) => {
      const card = element("li");
      const picture = contents.images[item.image];
      if (picture)
        card.append(element("img", { src: picture, alt: `Image of sample ${item.place}`, width: 96, height: 96 }));
      card.append(
        element(
          "div",
          {},
          element("strong", {}, element("bdi", {}, item.predicted)),
          element("span", {}, ` with ${Charts.percent(item.confidence, 2)}`),
          element(
            "div",
            {},
            "true class: ",
            element("bdi", {}, item.true),
            element("span", { className: "muted" }, ` (${Charts.percent(item.ofTrue, 2)})`),
          ),
          element("small", {}, `sample ${item.place.toLocaleString("en")}`),
        ),
      );
      return card;
    });
    const shown = items.length
      ? `The ${items.length} most confident of ${total.toLocaleString("en")} wrong predictions: ` +
        "predicted class and its confidence, then true class and its probability."
      : "No prediction is wrong.";
    byId("mistakes-body").replaceChildren(
      Tables.paragraph(shown, "note"),
      element("ol", { className: "mistakes" }, ...cards),
      ...(note ? [Tables.paragraph(note, "note")] : []),
    );
  }

  // --- redrawn content ---

  function drawCurves() {
    const trained = runs.filter((run) => run.curves);
    byId("training").hidden = !trained.length;
    if (!trained.length) return;
    const charts = { error: element("div"), nll: element("div"), ece: element("div") };
    byId("curves-body").replaceChildren(...Object.values(charts));
    for (const [metric, place] of Object.entries(charts)) {
      place.className = "chart";
      const chart = Charts.curve(runs, metric, chosen(), Charts.widthOf(place));
      if (chart) place.append(chart);
    }
    const parts = new Set(trained.flatMap((run) => Object.keys(run.curves.series).map((name) => name.split("_")[0])));
    const only = parts.has("val") ? "Validation split." : "Test split.";
    const notes = [parts.size > 1 ? "Solid: test split. Dashed: validation split." : only];
    if (trained.some((run) => run.curves.drops.length)) notes.push("Dotted: the learning rate falls.");
    const most = Math.max(...trained.map((run) => run.curves.step));
    if (most > 1) notes.push(`For long runs, every ${most}th epoch is drawn.`);
    byId("curves-note").textContent = notes.join(" ");
    const key = runs
      .map((run, i) => [run, i])
      .filter(([run, i]) => several && run.curves && (runs.length <= 8 || i === chosen()));
    byId("curves-key").replaceChildren(
      ...key.map(([run, i]) => {
        const swatch = element("span", { className: "swatch" });
        swatch.style.background = Charts.colourOf(i, runs.length, chosen());
        return element("li", {}, swatch, element("bdi", {}, run.name));
      }),
    );
  }

  function setUpTheme() {
    const root = document.documentElement,
      button = byId("theme");
    const dark = () =>
      (root.dataset.theme ?? (matchMedia("(prefers-color-scheme: dark)").matches ? "dark" : "light")) === "dark";
    const say = () => {
      button.textContent = dark() ? "Light theme" : "Dark theme";
    };
    button.addEventListener("click", () => {
      root.dataset.theme = dark() ? "light" : "dark";
      say();
    });
    matchMedia("(prefers-color-scheme: dark)").addEventListener("change", say);
    say();
  }

  // Draw what depends on the chosen model or on the width of the page.
  function drawRun() {
    Figures.drawChosen(chosen());
    drawCurves();
  }

  function draw() {
    Decision.draw(contents.decision);
    Live.draw();
    Figures.drawAll(chosen());
    drawRun();
  }

  let resizing = null;
  addEventListener("resize", () => {
    clearTimeout(resizing);
    resizing = setTimeout(draw, 150);
  });

  addEventListener("beforeprint", () => {
    for (const folded of document.querySelectorAll("#verdicts")) folded.open = true;
  });

  setUpTheme();
  Terms.setUp(contents.glossary);
  byId("json").addEventListener("click", () =>
    Frame.save("dualfocal-report.json", JSON.stringify(contents.results, null, 1), "application/json"),
  );
  fillDecision();
  fillModels();
  fillRun();
  Live.setUp();
  draw();
  Frame.listContents();
  byId("version").textContent = contents.version;
})();
