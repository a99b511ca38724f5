"use strict";
// Explanations of terms: on hover, tap and keyboard focus; Escape hides them.
const Terms = (() => {
  const { element } = Tables;
  const DELAY = 150; // milliseconds in which the pointer may move from a term to its explanation
  let hiding = null,
    shown = null;

  // Fill the glossary: `terms` is {key: {label, meaning}}.
  function setUp(terms) {
    byId("glossary-list").replaceChildren(
      ...Object.entries(terms).flatMap(([key, { label, meaning }]) => [
        element("dt", {}, label),
        element("dd", { id: `term-${key}` }, meaning),
      ]),
    );
    const textOf = (node) => node.dataset.tip || terms[node.dataset.term]?.meaning || "";
    const termOf = (event) => event.target.closest?.("[data-term], [data-tip]");
    for (const kind of ["pointerover", "focusin", "click"])
      document.addEventListener(kind, (event) => {
        const node = termOf(event);
        if (node) show(node, textOf(node));
        else if (event.target.closest?.("#tip")) clearTimeout(hiding);
        else if (kind !== "focusin") hideSoon();
      });
    document.addEventListener("focusout", hideSoon);
    document.addEventListener("keydown", (event) => {
      if (event.key === "Escape") hide();
    });
    addEventListener("scroll", () => shown && place(shown), { passive: true });
  }

  function show(node, text) {
    clearTimeout(hiding);
    hiding = null;
    byId("tip").textContent = text;
    byId("tip").hidden = !text;
    shown = node;
    place(node);
  }

  // Below the term, or above it if there is no room; always inside the window.
  function place(node) {
    const tip = byId("tip"),
      box = node.getBoundingClientRect();
    const left = Math.max(8, Math.min(box.left, document.documentElement.clientWidth - tip.offsetWidth - 8));
    const below = box.bottom + 6;
    const top = below + tip.offsetHeight <= innerHeight ? below : Math.max(8, box.top - tip.offsetHeight - 6);
    Object.assign(tip.style, { left: `${left}px`, top: `${top}px` });
  }

  function hideSoon() {
    hiding ??= setTimeout(hide, DELAY);
  }

  function hide() {
    clearTimeout(hiding);
    hiding = null;
    shown = null;
    byId("tip").hidden = true;
  }

  return { setUp };
})();
