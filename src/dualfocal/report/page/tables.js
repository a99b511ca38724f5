"use strict";
// Elements and tables. Whatever comes from data is set as text, never parsed as HTML.
const Tables = (() => {
  function element(name, properties = {}, ...children) {
    const node = document.createElement(name);
    for (const [key, value] of Object.entries(properties)) {
      if (key in node && !key.startsWith("aria")) node[key] = value;
      else node.setAttribute(key, value);
    }
    node.append(...children);
    return node;
  }

  const paragraph = (text, className = "") => element("p", { className }, text);

  const textOf = (cell) => (Array.isArray(cell) ? cell[0] : cell);
  const valueOf = (cell) => (Array.isArray(cell) ? cell[1] : cell);

  // Make a table from a specification of report/tables.py, inside a box that scrolls on narrow pages.
  function make(spec) {
    const head = element("tr"),
      body = element("tbody");
    const caption = element("caption", {}, element("span", {}, spec.caption));
    const table = element("table", {}, caption, element("thead", {}, head), body);
    let sort = spec.sort ?? null;
    const headings = spec.columns.map((column, i) => {
      const cell = element("th", { scope: "col", className: column.numeric ? "number" : "" });
      if (column.help) cell.title = column.help;
      if (spec.sortable) {
        const button = element("button", { type: "button" }, column.title);
        button.addEventListener("click", () => {
          // First click: numbers descending, names ascending.
          sort = sort && sort[0] === i ? [i, !sort[1]] : [i, column.numeric];
          fill();
        });
        cell.append(button);
      } else cell.append(column.title);
      if (column.help) cell.append(element("span", { className: "hidden" }, ` (${column.help})`));
      return cell;
    });
    head.append(...headings);

    function fill() {
      const rows = [...spec.rows];
      if (sort) {
        const [i, descending] = sort;
        rows.sort((a, b) => compare(valueOf(a[i]), valueOf(b[i]), descending, spec.columns[i].numeric));
      }
      headings.forEach((cell, i) => {
        if (spec.sortable)
          cell.setAttribute("aria-sort", sort?.[0] !== i ? "none" : sort[1] ? "descending" : "ascending");
      });
      body.replaceChildren(
        ...rows.map((row) => element("tr", {}, ...row.map((cell, i) => makeCell(cell, i, spec.columns[i])))),
      );
    }

    fill();
    return element("div", { className: "scroll", tabIndex: 0, role: "region", "aria-label": spec.caption }, table);
  }

  function makeCell(cell, i, column) {
    const node =
      i === 0 ? element("th", { scope: "row" }) : element("td", { className: column.numeric ? "number" : "" });
    node.append(element("bdi", {}, textOf(cell)));
    if (Array.isArray(cell) && cell[2]) node.append(element("small", {}, cell[2]));
    return node;
  }

  // Cells without a value come last in both directions.
  function compare(a, b, descending, numeric) {
    const none = (x) => x === null || x === "";
    if (none(a) || none(b)) return none(a) - none(b);
    const order =
      numeric || typeof a === "number" ? a - b : String(a).localeCompare(String(b), undefined, { numeric: true });
    return descending ? -order : order;
  }

  return { element, make, paragraph };
})();
