"use strict";
// Places the figures in the sections of the page.
const Figures = (() => {
  const { element, make, paragraph } = Tables;
  const { runs } = contents;
  const words = { ...Charts.wordsOf(contents), positive: contents.positive };
  const PANELS = 24; // classes that are shown at first, and added at a time
  const MOST_HISTOGRAMS = 8; // with more models, only the chosen one
  const state = { shares: false, sorted: false, panels: PANELS, highlighted: 0 };
  const { count } = Charts;

  // Width of a figure in a section; a wide one takes the whole row.
  function widthIn(id, wide) {
    const place = byId(id);
    const probe = element("div", { className: wide ? "wide" : "" });
    place.append(probe);
    const width = Charts.widthOf(probe);
    probe.remove();
    return width;
  }

  function framed(id, title, explanation, drawn, wide = false) {
    const figure = Frame.figure({ id, title, explanation, ...drawn });
    figure.classList.toggle("wide", wide);
    return figure;
  }

  // --- all models ---

  function drawAll(chosen = 0) {
    state.highlighted = chosen;
    drawSelective(chosen);
    drawMonitor();
  }

  function drawSelective(chosen) {
    byId("selective").hidden = false;
    const place = byId("selective-figures");
    place.replaceChildren(element("div", {}), element("div", {})); // as many columns as with figures
    const [half, whole] = [widthIn("selective-figures", false), widthIn("selective-figures", true)];
    const shown = runs.length <= MOST_HISTOGRAMS ? runs : [runs[chosen]];
    const left = runs.length - shown.length;
    const binary = runs.some((run) => run.figures.roc);
    const several = shown.length > 1;
    place.replaceChildren(
      framed(
        "coverage",
        "Risk and coverage",
        "The error that remains if only the most confident samples are answered. Lower is better; dots: 80, 90 and 95 % coverage.",
        Curves.coverage(runs, chosen, half),
      ),
      ...(binary
        ? [
            framed(
              "roc",
              "ROC curve",
              "How well the probability of class 1 separates the two classes, for every threshold. A perfect model reaches the upper left corner. " +
                areaNote(),
              Curves.roc(runs, chosen, half),
            ),
          ]
        : []),
      framed(
        "histograms",
        words.positive ? "Probabilities by true class" : "Confidence of right and wrong predictions",
        (words.positive
          ? "The two classes should lie at different ends. "
          : "Wrong predictions should have low confidence. Bars at the right below the line are confident mistakes. ") +
          "Each group adds up to 100 %." +
          (left ? ` Of ${runs.length} models only the chosen one is shown.` : ""),
        Curves.histograms(shown, words, several || binary ? whole : half),
        several || binary,
      ),
    );
    byId("selective-body").replaceChildren(make(contents.selective));
  }

  function areaNote() {
    const roc = runs.map((run) => run.figures.roc).find((r) => r);
    return (
      "AUROC is the area under the curve: the probability that a sample of class 1 has a higher probability than one of class 0" +
      (roc.interval
        ? `; in parentheses, DeLong's ${Number((100 * roc.level).toFixed(2))} % confidence interval in percent.`
        : ". Of weighted samples, it has no interval.")
    );
  }

  function drawMonitor() {
    byId("monitor").hidden = !contents.monitor;
    if (!contents.monitor) return;
    const place = byId("monitor-figures");
    place.replaceChildren(
      framed(
        "evidence",
        "Evidence over time",
        "Upper part: evidence against calibration after each period, as a factor on a logarithmic scale. Lower part: gap of each period alone.",
        Evidence.draw(contents.monitor, widthIn("monitor-figures", true)),
        true,
      ),
    );
  }

  // --- the chosen model ---

  function drawChosen(i) {
    const run = runs[i];
    // With many models, only the chosen one has a colour in the diagrams of all models.
    if (runs.length > MOST_HISTOGRAMS && i !== state.highlighted) {
      state.highlighted = i;
      drawSelective(i);
      Live.draw();
    }
    const effect = run.figures.designEffect;
    const caution = effect
      ? ` The 90 % ranges allow for the clusters by the design effect of all samples, ${effect.toFixed(1)}.`
      : "";
    drawOverlay(run.figures.overlay, effect ? " The range allows for the clusters by the design effect." : "");
    drawClasses(run.figures.classReliability, caution);
    drawConfusion(run.figures.confusion);
    drawGroups(run.groups);
  }

  function drawOverlay(overlay, caution) {
    const place = byId("calibrators-figures");
    if (!overlay) return place.replaceChildren();
    const samples = overlay.heldOut ? "the held-out samples" : `cross-validated${overlay.repeats > 1 ? ", first repeat" : ""}`;
    place.replaceChildren(
      framed(
        "overlay",
        `Before and after: ${overlay.method}`,
        `Reliability without and with the recommended calibrator (${samples}). Points should lie on the diagonal, up to chance.${caution}`,
        Reliability.overlay(overlay, words, widthIn("calibrators-figures", false)),
      ),
    );
  }

  function drawClasses({ classes, numClasses }, caution) {
    const place = byId("classes-figures");
    const shown = classes.slice(0, state.panels);
    const figure = framed(
      "classes",
      "Reliability of each class, worst first",
      "Probability of a class beside the share of samples that belong to it, for all samples. Classes are sorted by how far their " +
        "one-vs-rest ECE exceeds its noise floor. " +
        (numClasses === 2
          ? "With two classes, class 0 is the complement of class 1."
          : shown.length < numClasses
            ? `The worst ${count(shown.length)} of ${count(numClasses)} classes are shown.`
            : `All ${numClasses} classes are shown.`) +
        caution,
      Reliability.classes(shown, widthIn("classes-figures", true)),
      true,
    );
    if (shown.length < classes.length) {
      const next = Math.min(PANELS, classes.length - shown.length);
      const button = element("button", { type: "button", id: "more-classes", className: "screen" }, `Show ${next} more classes`);
      button.addEventListener("click", () => {
        state.panels += PANELS;
        drawClasses({ classes, numClasses }, caution);
        (byId("more-classes") ?? byId("figure-classes").querySelector("svg")).focus();
      });
      figure.append(button);
    }
    const missing = numClasses - classes.length;
    if (missing > 0 && numClasses > 2 && shown.length === classes.length)
      figure.append(paragraph(`The other ${count(missing)} classes are left out to limit the size of the page.`, "note"));
    place.replaceChildren(figure);
  }

  function drawConfusion(matrix) {
    byId("confusion").hidden = false;
    const place = byId("confusion-figures");
    const n = matrix.names.length,
      restricted = n < matrix.numClasses;
    const explanation = restricted
      ? `Of ${count(matrix.numClasses)} classes, the matrix shows the ${n} of the most confused pairs. It contains ` +
        `${count(matrix.shownErrors)} of ${count(matrix.errors)} wrong predictions; the last column, grey, counts predictions as any other class.`
      : `${count(matrix.errors)} wrong predictions of ${n} classes. Blue: right; orange: wrong; the stronger the colour, the ` +
        `${state.shares ? "larger the share of the true class" : "more samples"}.`;
    place.replaceChildren(controls(matrix));
    const drawn = Confusion.draw(matrix, state, widthIn("confusion-figures", true));
    place.append(framed("confusion", state.shares ? "Confusion matrix, shares of each row (%)" : "Confusion matrix, number of samples", explanation, drawn, true));
    if (matrix.pairs) place.append(element("div", { className: "wide" }, make(matrix.pairs)));
  }

  function controls(matrix) {
    const choice = (name, words, checked, type, change) => {
      const input = element("input", { type, id: `confusion-${name}`, name: type === "radio" ? "confusion" : name, checked });
      input.addEventListener("change", () => {
        change();
        drawConfusion(matrix);
        byId(input.id).focus();
      });
      return element("label", {}, input, ` ${words}`);
    };
    return element(
      "div",
      { className: "controls wide screen", role: "group", "aria-label": "Settings of the confusion matrix" },
      element(
        "fieldset",
        {},
        element("legend", {}, "Cells"),
        choice("counts", "counts", !state.shares, "radio", () => (state.shares = false)),
        choice("shares", "row shares", state.shares, "radio", () => (state.shares = true)),
      ),
      element(
        "fieldset",
        {},
        element("legend", {}, "Order"),
        choice("sorted", "most confused classes first", state.sorted, "checkbox", () => (state.sorted = !state.sorted)),
      ),
    );
  }

  function drawGroups(groups) {
    byId("groups").hidden = !groups?.rows.length;
    if (!groups?.rows.length) return;
    const part = groups.rows.length < groups.total ? ` The first ${groups.rows.length} of ${count(groups.total)} groups are shown.` : "";
    const place = byId("groups-figures");
    place.replaceChildren(
      framed(
        "groups",
        `Calibration by ${groups.column}`,
        `Intervals of the miscalibration of each group, worst first: first its size, then its direction (above 0: ${words.over}).${part}`,
        Groups.draw(groups, widthIn("groups-figures", true)),
        true,
      ),
    );
    byId("groups-body").replaceChildren(make(groups.table));
  }

  return { drawAll, drawChosen };
})();
