"use strict";
// A sheet: one SVG element with a legend and one or several diagrams, so that a download has all of them.
const Sheet = (() => {
  const NAMESPACE = "http://www.w3.org/2000/svg";
  const LETTER = 6.3; // mean width of a letter of 11 px
  const INHERITED = ["fill", "font-size", "text-anchor", "font-variant"];
  const DASHES = ["", "7,3", "2,2", "9,3,2,3", "4,2", "12,3", "1,3", "6,2,1,2,1,2"]; // of the series, beside their colours

  const cut = (text, most) => (text.length <= most ? text : `${text.slice(0, Math.max(1, most - 1))}…`);

  function node(name, attributes = {}, ...children) {
    const made = set(document.createElementNS(NAMESPACE, name), attributes);
    made.append(...children);
    return made;
  }

  function set(node, attributes) {
    for (const [key, value] of Object.entries(attributes)) node.setAttribute(key, value);
    return node;
  }

  // An empty sheet; `grow` sets its height once it is known.
  function make(width) {
    return node("svg", { width, fill: "currentColor", "font-size": 11, viewBox: `0 0 ${width} 1` });
  }

  function grow(sheet, height) {
    return set(sheet, { height, viewBox: `0 0 ${sheet.getAttribute("width")} ${height}` });
  }

  // Move a diagram of Plot onto the sheet; return a function from values to pixels of the sheet.
  function put(sheet, plot, x, y) {
    const [across, up] = [plot.scale("x"), plot.scale("y")];
    const group = node("g", { transform: `translate(${x},${y})` });
    for (const name of INHERITED) if (plot.hasAttribute(name)) group.setAttribute(name, plot.getAttribute(name));
    group.append(...[...plot.childNodes].filter((child) => child.nodeName !== "style"));
    sheet.append(group);
    return (a, b) => ({ x: x + across.apply(a), y: y + up.apply(b), left: x });
  }

  function text(sheet, words, x, y, attributes = {}) {
    sheet.append(node("text", { x, y, ...attributes }, words));
  }

  // Draw entries {text, colour, dash, kind: "line" | "area" | "dot"} in rows; return the height of the legend.
  function legend(sheet, entries) {
    const width = Number(sheet.getAttribute("width"));
    let [x, bottom] = [0, 14];
    for (const { text: words, colour, dash = "", kind = "line", opacity = 1 } of entries) {
      const shown = cut(words, Math.floor((width - 30) / LETTER));
      const length = 26 + LETTER * shown.length + 14;
      if (x > 0 && x + length > width) [x, bottom] = [0, bottom + 16];
      sheet.append(sample(kind, x, bottom - 4, colour, dash, opacity));
      text(sheet, shown, x + 26, bottom);
      x += length;
    }
    return bottom + 6;
  }

  function sample(kind, x, y, colour, dash, opacity) {
    const filled = { fill: colour, "fill-opacity": opacity };
    if (kind === "dot") return node("circle", { cx: x + 10, cy: y, r: 4, ...filled });
    if (kind === "area") return node("rect", { x: x + 6, y: y - 5, width: 10, height: 10, ...filled });
    const stroke = { stroke: colour, "stroke-width": 2, "stroke-dasharray": dash || "none" };
    return node("line", { x1: x, x2: x + 20, y1: y, y2: y, ...stroke });
  }

  return { make, grow, put, text, legend, node, set, cut, DASHES };
})();
