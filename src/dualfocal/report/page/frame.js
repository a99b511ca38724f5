"use strict";
// The frame of the page: figures with their downloads, and the contents list.
// Downloads are Blob URLs, which the Content-Security-Policy of the page allows; nothing is requested.
const Frame = (() => {
  const { element } = Tables;

  // --- figures ---

  // Return a figure with heading, explanation and download buttons.
  //   id: unique name in lower case; the element gets the id `figure-${id}`, files are named after it.
  //   title: heading, which may have a data set's or a model's name in it.
  //   explanation: one or two sentences on how to read the figure (optional).
  //   node: an SVG element, a canvas, or an element that holds several SVG elements.
  //   label: what a screen reader says instead of the picture: the main numbers (default: the title).
  //   rows: data of the figure as objects, [{name: value}], for CSV (optional).
  function figure({ id, title, explanation = "", node, label = title, rows = null }) {
    const heading = `figure-${id}-title`;
    for (const svg of svgsOf(node)) describe(svg, label);
    if (node instanceof HTMLCanvasElement) describe(node, label);
    return element(
      "figure",
      { id: `figure-${id}`, className: "framed", "aria-labelledby": heading },
      element("h3", { id: heading }, element("bdi", {}, title)),
      ...(explanation ? [Tables.paragraph(explanation, "note")] : []),
      element("div", { className: "chart" }, node),
      downloads({ id, title, picture: () => node, rows: rows && (() => rows) }),
    );
  }

  // Return the download buttons of a figure that is drawn elsewhere. `picture` returns the current node of the figure,
  // `rows` (optional) its current data.
  function downloads({ id, title, picture, rows = null }) {
    const name = `dualfocal-${id}`;
    const button = (kind, action) => Tables.saveButton(kind, title, action);
    const vector = !(picture() instanceof HTMLCanvasElement);
    return element(
      "div",
      { className: "downloads screen", role: "group", "aria-label": `Downloads of ${title}` },
      ...(vector ? [button("SVG", () => save(`${name}.svg`, svgText(picture()), "image/svg+xml"))] : []),
      button("PNG", async () => saveBlob(`${name}.png`, await pngOf(picture()))),
      ...(rows ? [button("CSV", () => save(`${name}.csv`, Tables.csvOfObjects(rows()), "text/csv"))] : []),
    );
  }

  // A picture that has a label of its own keeps it.
  function describe(node, label) {
    Tables.describe(node, (node.getAttribute("role") === "img" && node.getAttribute("aria-label")) || label);
  }

  const svgsOf = (node) =>
    node instanceof SVGElement ? [node] : [...node.querySelectorAll("svg")].filter((svg) => !svg.parentElement.closest("svg"));

  // Return the SVG elements of a node as one file: colours of the current theme are written out.
  function svgText(node) {
    const svgs = svgsOf(node);
    if (!svgs.length) throw new Error("the figure has no SVG element");
    const boxes = svgs.map((svg) => svg.getBoundingClientRect());
    const left = Math.min(...boxes.map((box) => box.left)),
      top = Math.min(...boxes.map((box) => box.top));
    const width = Math.ceil(Math.max(...boxes.map((box) => box.right)) - left),
      height = Math.ceil(Math.max(...boxes.map((box) => box.bottom)) - top);
    const style = getComputedStyle(document.documentElement);
    const copies = svgs.map((svg, i) => {
      const copy = svg.cloneNode(true);
      for (const tip of copy.querySelectorAll("[data-mark=tip]")) tip.remove();
      const { left: x, top: y, width: across, height: down } = boxes[i];
      return Sheet.set(copy, { x: x - left, y: y - top, width: across, height: down });
    });
    const whole = Sheet.node(
      "svg",
      {
        width,
        height,
        viewBox: `0 0 ${width} ${height}`,
        color: style.color,
        fill: "currentColor",
        "font-family": getComputedStyle(svgs[0]).fontFamily,
        "font-size": 11,
      },
      Sheet.node("rect", { width: "100%", height: "100%", fill: style.backgroundColor }),
      ...copies,
    );
    const text = new XMLSerializer().serializeToString(whole);
    const colours = {};
    return text.replace(/var\((--[\w-]+)(?:,[^()]*)?\)/g, (_, name) => (colours[name] ??= colourOf(name)));
  }

  // The colour of a CSS variable in the current theme.
  function colourOf(name) {
    const probe = element("span");
    probe.style.color = `var(${name})`;
    document.body.append(probe);
    const { color } = getComputedStyle(probe);
    probe.remove();
    return color;
  }

  const SCALE = 2; // pixels of a PNG per pixel of the page

  async function pngOf(node) {
    let canvas = node;
    if (!(node instanceof HTMLCanvasElement)) {
      const text = svgText(node);
      const image = new Image();
      image.src = `data:image/svg+xml;charset=utf-8,${encodeURIComponent(text)}`;
      await image.decode();
      canvas = element("canvas", { width: SCALE * image.width, height: SCALE * image.height });
      canvas.getContext("2d").drawImage(image, 0, 0, canvas.width, canvas.height);
    }
    return new Promise((resolve) => canvas.toBlob(resolve, "image/png"));
  }

  const save = (name, text, type) => saveBlob(name, new Blob([text], { type: `${type};charset=utf-8` }));
  const saveBlob = Tables.saveBlob;

  // --- contents ---

  // List the sections that are not hidden, and give each heading a link to itself.
  function listContents() {
    const sections = [...document.querySelectorAll("main > section")].filter((section) => !section.hidden);
    const titleOf = (section) => byId(`${section.id}-title`).firstChild.textContent;
    byId("contents-list").replaceChildren(
      element(
        "ol",
        {},
        ...sections.map((section) => element("li", {}, element("a", { href: `#${section.id}` }, titleOf(section)))),
      ),
    );
    for (const section of sections) {
      if (section.querySelector(":scope > a.anchor")) continue;
      const label = `Link to the section ${titleOf(section)}`;
      byId(`${section.id}-title`).after(
        element("a", { className: "anchor screen", href: `#${section.id}`, "aria-label": label }, "#"),
      );
    }
  }

  return { figure, downloads, save, listContents };
})();
