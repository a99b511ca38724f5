"use strict";
// Read-outs of figures: the nearest point is marked and described on hover, tap and by the arrow keys.
const Readout = (() => {
  const { element } = Tables;
  const GAP = 10; // pixels between a point and its description

  // Return a box with the SVG element and its read-out.
  //   lines: points of each line, [[{x, y, text}]], in pixels of the SVG; `text` is a string or a function. A point with
  //   `size` is a cell, which is marked by a square of that size instead of a circle.
  // Left and right arrows move along a line, up and down arrows to the nearest point of another line.
  function attach(svg, lines) {
    const some = lines.filter((line) => line.length);
    const tip = element("output", { className: "readout screen", hidden: true });
    const box = element("div", { className: "readable" }, svg, tip);
    if (!some.length) return box;
    svg.setAttribute("tabindex", "0");
    let [line, index, mark] = [0, 0, null];

    function show(newLine, newIndex) {
      [line, index] = [newLine, newIndex];
      const point = some[line][index];
      mark?.remove();
      mark = svg.appendChild(markOf(point));
      tip.textContent = typeof point.text === "function" ? point.text() : point.text;
      tip.hidden = false;
      const scale = svg.getBoundingClientRect().width / svg.viewBox.baseVal.width;
      const [x, y, away] = [scale * point.x, scale * point.y, GAP + (point.size ?? 0) / 2];
      const left = Math.max(0, Math.min(x - tip.offsetWidth / 2, box.clientWidth - tip.offsetWidth));
      // Above the point, or below it if that is outside of the window.
      const above = y - away - tip.offsetHeight;
      const outside = box.getBoundingClientRect().top + above < 0;
      Object.assign(tip.style, { left: `${left}px`, top: `${outside ? y + away : above}px` });
    }

    function hide() {
      mark?.remove();
      mark = null;
      tip.hidden = true;
    }

    function nearest(event) {
      const area = svg.getBoundingClientRect(),
        scale = svg.viewBox.baseVal.width / area.width;
      const [x, y] = [(event.clientX - area.left) * scale, (event.clientY - area.top) * scale];
      let best = [0, 0, Infinity];
      some.forEach((points, l) =>
        points.forEach((point, i) => {
          const distance = (point.x - x) ** 2 + (point.y - y) ** 2;
          if (distance < best[2]) best = [l, i, distance];
        }),
      );
      show(best[0], best[1]);
    }

    function move(event) {
      const last = some[line].length - 1;
      const along = { ArrowLeft: index - 1, ArrowRight: index + 1, Home: 0, End: last }[event.key];
      const across = { ArrowUp: -1, ArrowDown: 1 }[event.key];
      if (event.key === "Escape") return hide();
      if (along === undefined && across === undefined) return;
      event.preventDefault();
      if (across === undefined) return show(line, Math.max(0, Math.min(along, last)));
      const other = Math.max(0, Math.min(line + across, some.length - 1));
      if (other !== line) show(other, closest(some[other], some[line][index]));
    }

    for (const kind of ["pointermove", "pointerdown"]) svg.addEventListener(kind, nearest);
    svg.addEventListener("pointerleave", (event) => event.pointerType !== "touch" && hide());
    svg.addEventListener("keydown", move);
    svg.addEventListener("focus", () => show(line, index));
    svg.addEventListener("blur", hide);
    return box;
  }

  // The point of a line that is closest in the horizontal direction; panels side by side: within the panel.
  function closest(points, { x, left = 0 }) {
    const distance = (point) => Math.abs(point.x - (point.left ?? 0) - (x - left));
    return points.reduce((best, point, i) => (distance(point) < distance(points[best]) ? i : best), 0);
  }

  function markOf({ x, y, size }) {
    const look = { fill: "none", stroke: "currentColor", "stroke-width": 2, "data-mark": "tip", "pointer-events": "none" };
    return size
      ? Sheet.node("rect", { x: x - size / 2, y: y - size / 2, width: size, height: size, ...look })
      : Sheet.node("circle", { cx: x, cy: y, r: 6, ...look });
  }

  return { attach };
})();
