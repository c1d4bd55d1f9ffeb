"use strict";
(() => {
  const EVERY = 2000;
  const live = document.getElementById("live");
  let version = document.documentElement.dataset.live;

  const FOCUSABLE = "a, summary, input, [tabindex]";

  const focused = () => {
    const within = document.activeElement?.closest("main [id]");
    return within && { id: within.id, index: [...within.querySelectorAll(FOCUSABLE)].indexOf(document.activeElement) };
  };

  const kept = () => ({
    open: [...document.querySelectorAll("details[id]")].filter((each) => each.open).map((each) => each.id),
    sliders: [...document.querySelectorAll(".chart")].map((each) => {
      const slider = each.querySelector(".slider");
      const isShown = each.querySelector(".cursor").getAttribute("visibility") === "visible";
      return { id: each.id, value: Number(slider.value), isLast: slider.value === slider.max, isShown };
    }),
    focus: focused(),
    scrolled: [window.scrollX, window.scrollY],
  });

  const give = (state) => {
    for (const id of state.open) {
      const details = document.getElementById(id);
      if (details) details.open = true;
    }
    for (const before of state.sliders) {
      const slider = document.getElementById(before.id)?.querySelector(".slider");
      if (!slider || !before.isShown) continue;
      slider.value = before.isLast ? slider.max : String(before.value);
      slider.dispatchEvent(new Event("input"));
    }
    const within = state.focus && document.getElementById(state.focus.id);
    within?.querySelectorAll(FOCUSABLE)[state.focus.index]?.focus({ preventScroll: true });
    window.scrollTo({ left: state.scrolled[0], top: state.scrolled[1], behavior: "instant" });
  };

  const refresh = async () => {
    const answer = await fetch("/version", { cache: "no-store" });
    if (!answer.ok) throw new Error(answer.statusText);
    const newest = await answer.text();
    if (newest !== version) {
      const text = await (await fetch("/", { cache: "no-store" })).text();
      const page = new DOMParser().parseFromString(text, "text/html");
      const state = kept();
      for (const part of ["nav", "main", "header h1"]) {
        document.querySelector(part).replaceChildren(...page.querySelector(part).childNodes);
      }
      version = page.documentElement.dataset.live;
      document.title = page.title;
      document.dispatchEvent(new Event("loradock-refreshed"));
      give(state);
    }
    live.textContent = `live, looked at ${new Date().toLocaleTimeString()}`;
  };

  const again = async () => {
    try {
      await refresh();
    } catch {
      live.textContent = "not live any more: loradock report --watch has ended";
    }
    setTimeout(again, EVERY);
  };
  setTimeout(again, EVERY);
})();
