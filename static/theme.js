// Light or dark: by the system, or as this person chose, remembered in this browser. Loaded before anything is drawn,
// so that a page never flashes in the other theme.
"use strict";
(() => {
  const CHOICES = ["system", "light", "dark"];
  const root = document.documentElement;
  const stored = () => {
    try {
      const found = localStorage.getItem("legible-theme");
      return CHOICES.includes(found) ? found : "system";
    } catch {
      return "system"; // storage may be forbidden; the system's theme then stays
    }
  };
  const apply = (choice) => {
    if (choice === "system") delete root.dataset.theme;
    else root.dataset.theme = choice;
    document.dispatchEvent(new Event("legible:theme"));
  };
  apply(stored());

  document.addEventListener("DOMContentLoaded", () => {
    const menu = document.getElementById("theme");
    if (!menu) return;
    menu.value = stored();
    menu.closest("[hidden]")?.removeAttribute("hidden");
    menu.addEventListener("change", () => {
      try {
        localStorage.setItem("legible-theme", menu.value);
      } catch { /* it holds for this page */ }
      apply(menu.value);
    });
    // Another tab's choice, and a page that Back brings up as it was left.
    const again = () => { menu.value = stored(); apply(menu.value); };
    addEventListener("storage", (event) => { if (event.key === "legible-theme") again(); });
    addEventListener("pageshow", (event) => { if (event.persisted) again(); });
  });
})();
