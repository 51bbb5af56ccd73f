// The keyboard: / to search, j and k through rows, Enter opens (the row's link has the focus), ? lists the keys; arrows
// walk within a figure or a text.
"use strict";
(() => {
  const help = document.getElementById("keys");
  const box = document.getElementById("search");
  const opener = document.getElementById("keys-open");
  // A row's link, past the ? of a word; one in a closed fold cannot take the focus.
  const leads = (row) => [...row.querySelectorAll("a:not(.help)")].find((link) => link.checkVisibility?.() ?? true);
  const rows = () => [...document.querySelectorAll("#main table tbody tr")].filter(leads);

  const walk = (step) => {
    const all = rows();
    if (!all.length) return false;
    const here = all.indexOf(document.activeElement.closest?.("tr"));
    const next = all[here < 0 ? (step > 0 ? 0 : all.length - 1) : here + step];
    if (!next) return true;
    leads(next).focus();
    next.scrollIntoView({ block: "nearest" });
    return true;
  };
  const follow = (rel) => {
    const link = document.querySelector(`#main a[rel="${rel}"]`);
    link?.click();
    return !!link;
  };
  const keys = {
    "/": () => { box?.focus(); box?.select(); return !!box; },
    "?": () => { help?.showModal(); return !!help; },
    j: () => walk(1),
    k: () => walk(-1),
    n: () => follow("next"),
    p: () => follow("prev"),
  };

  // In a box a key is a letter; with Ctrl, Alt or Meta it is the browser's.
  const typing = (place) => place.matches?.("input:not([type=radio]):not([type=checkbox]), textarea, select, [contenteditable]");
  document.addEventListener("keydown", (event) => {
    if (event.ctrlKey || event.metaKey || event.altKey || event.isComposing || event.defaultPrevented) return;
    if (typing(event.target)) {
      if (event.key === "Escape" && event.target === box) box.blur();
      return;
    }
    if (help?.open) return; // the dialog closes itself with Escape
    if (arrow(event.target, event.key)) return event.preventDefault();
    if (!letters()) return;
    if (Object.hasOwn(keys, event.key) && keys[event.key]()) event.preventDefault();
  });

  // Who speaks to the computer, or types by accident, can do without keys that are one letter.
  const chosen = document.getElementById("keys-letters");
  const letters = () => {
    try {
      return localStorage.getItem("legible-keys") !== "off";
    } catch {
      return true; // storage may be forbidden
    }
  };
  if (chosen) {
    chosen.checked = letters();
    chosen.addEventListener("change", () => {
      try {
        localStorage.setItem("legible-keys", chosen.checked ? "on" : "off");
      } catch { /* they stay */ }
    });
  }

  // A figure, and a text whose tokens are links, is one stop for Tab, at what is chosen; arrows walk within it.
  const GROUPS = "svg, .strip, .gen";
  const linksOf = (group) => [...group.querySelectorAll("a[href]")];
  const stopAt = (group, link) => linksOf(group).forEach((one) => one.setAttribute("tabindex", one === link ? "0" : "-1"));
  const oneStopEach = () => {
    document.querySelectorAll(GROUPS).forEach((group) => {
      const all = linksOf(group);
      const focused = all.find((link) => link === document.activeElement);
      if (all.length > 1) stopAt(group, focused || all.find((link) => link.hasAttribute("aria-current")) || all[0]);
    });
  };
  document.addEventListener("focusin", (event) => {
    const link = event.target.closest?.("a[href]");
    const group = link?.closest(GROUPS);
    if (group) stopAt(group, link);
  });
  // The nearest link of the row above or below, as they stand on the screen.
  const beyond = (all, link, down) => {
    const at = link.getBoundingClientRect();
    const far = (box) => [down ? box.top - at.bottom : at.top - box.bottom, Math.abs(box.left + box.right - at.left - at.right)];
    const found = all.map((one) => [one, ...far(one.getBoundingClientRect())]).filter(([, rows]) => rows > -2);
    const row = Math.min(...found.map(([, rows]) => rows));
    return found.filter(([, rows]) => rows < row + 4).sort((one, other) => one[2] - other[2])[0]?.[0];
  };
  const arrow = (place, key) => {
    const link = place.closest?.("a[href]");
    const group = link?.closest(GROUPS);
    let next;
    if (group) {
      const all = linksOf(group), at = all.indexOf(link);
      next = { ArrowRight: all[at + 1], ArrowLeft: all[at - 1], Home: all[0], End: all[all.length - 1] }[key];
      if (key === "ArrowDown" || key === "ArrowUp") next = beyond(all, link, key === "ArrowDown");
    } else {
      // Dense tables: up and down walk from row to row.
      const row = link?.closest(".dense tr");
      const down = { ArrowDown: "nextElementSibling", ArrowUp: "previousElementSibling" }[key];
      next = row && down ? row[down]?.querySelector("a") : null;
    }
    next?.focus();
    return !!next;
  };
  oneStopEach();
  document.addEventListener("htmx:after:swap", oneStopEach);

  if (opener && help) {
    opener.hidden = false;
    opener.addEventListener("click", () => help.showModal());
    help.addEventListener("click", (event) => { if (event.target === help) help.close(); });
  }
})();
