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
    byId("origin-body").replaceChildren(Tables.paragraph(run.origin));
  }

  function fillMistakes({ items, total }) {
    const cards = items.map((item) => {
      const card = element("li");
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
