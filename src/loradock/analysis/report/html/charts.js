"use strict";
(() => {
  const said = (value) => {
    if (Math.abs(value) >= 1000) return Math.round(value).toLocaleString("en");
    return String(Number(value.toPrecision(4)));
  };

  const nearest = (places, x) => {
    let low = 0, high = places.length - 1;
    while (high - low > 1) {
      const middle = (low + high) >> 1;
      if (places[middle] <= x) low = middle; else high = middle;
    }
    return x - places[low] <= places[high] - x ? low : high;
  };

  const hidden = new Set();

  const chart = (figure) => {
    const points = JSON.parse(figure.querySelector(".points").textContent);
    const field = figure.querySelector(".field");
    const slider = figure.querySelector(".slider");
    const readout = figure.querySelector(".readout");
    const line = figure.querySelector(".cursor");
    const reach = points.x.high - points.x.low;
    let places = [];

    const shown = () => points.series.filter((each) => !hidden.has(each.run));

    const reset = () => {
      places = [...new Set(shown().flatMap((each) => each.xs))].sort((one, other) => one - other);
      slider.max = String(Math.max(0, places.length - 1));
      slider.disabled = places.length === 0;
    };

    const textAt = (x) => {
      const found = shown().flatMap((each) => {
        const index = nearest(each.xs, x);
        const isInside = x >= each.xs[0] && x <= each.xs[each.xs.length - 1];
        if (!isInside) return [];
        const where = each.xs[index] === x ? "" : ` (at ${said(each.xs[index])})`;
        return [`${each.name} ${said(each.ys[index])}${where}`];
      });
      return `${points.x.name} ${said(x)}: ${found.join("; ")}`;
    };

    const show = () => {
      if (!places.length) return;
      const x = places[Number(slider.value)];
      const across = 1000 * (x - points.x.low) / reach;
      line.setAttribute("x1", across);
      line.setAttribute("x2", across);
      line.setAttribute("visibility", "visible");
      readout.textContent = textAt(x);
      slider.setAttribute("aria-valuetext", readout.textContent);
    };

    reset();
    slider.hidden = false;
    slider.value = slider.max;
    slider.setAttribute("aria-valuetext", places.length ? textAt(places[places.length - 1]) : "");
    slider.addEventListener("input", show);
    slider.addEventListener("focus", show);
    field.addEventListener("pointermove", (event) => {
      if (!places.length) return;
      const box = field.getBoundingClientRect();
      slider.value = String(nearest(places, points.x.low + reach * (event.clientX - box.left) / box.width));
      show();
    });
    figure.addEventListener("runs-changed", () => {
      const before = places[Number(slider.value)];
      reset();
      if (!places.length) return;
      slider.value = String(nearest(places, before ?? places[places.length - 1]));
      if (line.getAttribute("visibility") === "visible") show();
    });
  };

  const apply = (root) => {
    for (const element of root.querySelectorAll("[data-run]")) {
      element.classList.toggle("is-off", hidden.has(Number(element.dataset.run)));
    }
    for (const figure of root.querySelectorAll(".chart")) figure.dispatchEvent(new Event("runs-changed"));
  };

  const start = (root) => {
    for (const hint of root.querySelectorAll(".hint, .toggles")) hint.hidden = false;
    for (const figure of root.querySelectorAll(".chart")) chart(figure);
    for (const box of root.querySelectorAll("[data-toggle]")) {
      const run = Number(box.dataset.toggle);
      box.checked = !hidden.has(run);
      box.addEventListener("change", () => {
        if (box.checked) hidden.delete(run); else hidden.add(run);
        apply(root);
      });
    }
    if (hidden.size) apply(root);
  };

  start(document);
  document.addEventListener("loradock-refreshed", () => start(document));
})();
