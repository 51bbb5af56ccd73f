// The keyboard: / to search, j and k through rows, Enter opens (the row's link has the focus), ? lists the keys.
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
    if (Object.hasOwn(keys, event.key) && keys[event.key]()) event.preventDefault();
  });

  if (opener && help) {
    opener.hidden = false;
    opener.addEventListener("click", () => help.showModal());
    help.addEventListener("click", (event) => { if (event.target === help) help.close(); });
  }
})();
