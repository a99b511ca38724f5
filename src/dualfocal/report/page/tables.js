"use strict";
// Elements, tables and their files. Whatever comes from data is set as text, never parsed as HTML.
const byId = (id) => document.getElementById(id);
const contents = JSON.parse(byId("contents").textContent);

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

  // Make a table from a specification of report/tables.py: a box that scrolls on narrow pages, and a button for CSV.
  function make(spec) {
    const head = element("tr"),
      body = element("tbody");
    const caption = element("caption", {}, element("span", {}, spec.caption));
    const table = element("table", {}, caption, element("thead", {}, head), body);
    let sort = spec.sort ?? null;
    const headings = spec.columns.map((column, i) => {
      const cell = element("th", { scope: "col", className: column.numeric ? "number" : "" });
      if (spec.sortable) {
        const button = element("button", { type: "button", className: "sort" }, column.title);
        button.addEventListener("click", () => {
          // First click: numbers descending, names ascending.
          sort = sort && sort[0] === i ? [i, !sort[1]] : [i, column.numeric];
          fill();
        });
        cell.append(explain(button, column));
      } else cell.append(column.help || column.term ? term(column.title, column) : column.title);
      if (column.help) cell.append(element("span", { className: "hidden" }, ` (${column.help})`));
      return cell;
    });
    head.append(...headings);

    function sorted() {
      const rows = [...spec.rows];
      if (!sort) return rows;
      const [i, descending] = sort;
      return rows.sort((a, b) => compare(valueOf(a[i]), valueOf(b[i]), descending, spec.columns[i].numeric));
    }

    function fill() {
      headings.forEach((cell, i) => {
        if (spec.sortable)
          cell.setAttribute("aria-sort", sort?.[0] !== i ? "none" : sort[1] ? "descending" : "ascending");
      });
      body.replaceChildren(
        ...sorted().map((row) => element("tr", {}, ...row.map((cell, i) => makeCell(cell, i, spec.columns[i])))),
      );
    }

    fill();
    const box = element("div", { className: "scroll", tabIndex: 0, role: "region", "aria-label": spec.caption }, table);
    const button = saveButton("CSV", spec.caption, () =>
      saveBlob(`dualfocal-${slug(spec.caption)}.csv`, new Blob([csv(spec, sorted())], { type: "text/csv;charset=utf-8" })),
    );
    return element("div", { className: "block" }, box, element("div", { className: "downloads screen" }, button));
  }

  function makeCell(cell, i, column) {
    const node =
      i === 0 ? element("th", { scope: "row" }) : element("td", { className: column.numeric ? "number" : "" });
    const [text, , remark, key] = Array.isArray(cell) ? cell : [cell];
    node.append(key ? term(text, { term: key }) : element("bdi", {}, text));
    if (remark) node.append(element("small", {}, remark));
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

  // --- terms, which terms.js explains on hover, tap and focus ---

  // Return a word with an explanation: `term` is a key of the glossary, `help` a text.
  function term(text, explanation) {
    return explain(element("button", { type: "button", className: "term" }, text), explanation);
  }

  function explain(node, { term = "", help = "" }) {
    if (term) {
      node.dataset.term = term;
      node.setAttribute("aria-describedby", `term-${term}`); // the glossary's text
    }
    if (help) node.dataset.tip = help;
    return node;
  }

  // Give a picture the text that a screen reader says. Names of marks inside it would be read as well: they move.
  function describe(picture, text) {
    picture.setAttribute("role", "img");
    picture.setAttribute("aria-label", text);
    for (const mark of picture.querySelectorAll("[aria-label]")) {
      mark.dataset.mark = mark.getAttribute("aria-label");
      mark.removeAttribute("aria-label");
    }
    return picture;
  }

  // --- files ---

  const slug = (text) => text.toLowerCase().replace(/[^a-z0-9]+/g, "-").replace(/^-|-$/g, "").slice(0, 60) || "table";

  function saveButton(kind, title, action) {
    const label = `Download ${title} as ${kind}`;
    const button = element("button", { type: "button", className: "save", "aria-label": label }, kind);
    button.addEventListener("click", action);
    return button;
  }

  function saveBlob(name, blob) {
    const url = URL.createObjectURL(blob);
    element("a", { href: url, download: name }).click();
    setTimeout(() => URL.revokeObjectURL(url), 60_000);
  }

  // A text that starts like a formula would be computed by a spreadsheet: an apostrophe makes it a text.
  function csvField(value) {
    if (value === null || value === undefined || (typeof value === "number" && !Number.isFinite(value))) return "";
    if (typeof value === "number") return String(value);
    const text = /^[=+\-@\t\r]/.test(value) ? `'${value}` : String(value);
    return /[",\n\r]/.test(text) ? `"${text.replaceAll('"', '""')}"` : text;
  }

  const csvLines = (lines) => lines.map((line) => line.map(csvField).join(",") + "\r\n").join("");

  // Numbers are written in full; what stands below a number gets a column of its own.
  function csv(spec, rows) {
    const remarked = spec.columns.map((_, i) => rows.some((row) => Array.isArray(row[i]) && row[i][2]));
    const cells = (row) =>
      row.flatMap((cell, i) => {
        const exact = spec.columns[i].numeric && Array.isArray(cell) && typeof cell[1] === "number";
        return [exact ? cell[1] : textOf(cell), ...(remarked[i] ? [(Array.isArray(cell) && cell[2]) || ""] : [])];
      });
    const titles = spec.columns.flatMap(({ title }, i) => [title, ...(remarked[i] ? [`${title} (remark)`] : [])]);
    return csvLines([titles, ...rows.map(cells)]);
  }

  function csvOfObjects(rows) {
    const names = [...new Set(rows.flatMap((row) => Object.keys(row)))];
    return csvLines([names, ...rows.map((row) => names.map((name) => row[name]))]);
  }

  return { element, make, paragraph, describe, saveButton, saveBlob, csvOfObjects };
})();
