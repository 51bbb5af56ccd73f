// The first run's tour: a few sentences beside what they speak of, one at a time; dismissed once, it never comes back by
// itself. It takes no focus and covers nothing that is needed: it stands in the page, before what it explains.
"use strict";
(() => {
  const KEY = "legible-tour";
  const place = document.getElementById("tour");
  if (!place) return;
  const steps = [...place.querySelectorAll("[data-step]")];
  const opener = document.getElementById("tour-open");
  const count = place.querySelector(".count");
  const [back, next] = [place.querySelector("[data-back]"), place.querySelector("[data-next]")];
  let at = 0;

  const seen = () => {
    try {
      return localStorage.getItem(KEY) === "seen";
    } catch {
      return true; // it could not be remembered that it was dismissed, so it must be asked for
    }
  };
  const show = (step) => {
    at = step;
    steps.forEach((text, index) => { text.hidden = index !== at; });
    count.textContent = `${at + 1} of ${steps.length}`;
    back.disabled = at === 0;
    next.textContent = at === steps.length - 1 ? "done" : "next";
  };
  const close = () => {
    place.hidden = true;
    try {
      localStorage.setItem(KEY, "seen");
    } catch { /* asked for again, it opens again */ }
    if (opener) opener.hidden = false;
  };
  const open = () => { place.hidden = false; show(0); if (opener) opener.hidden = true; };

  back.addEventListener("click", () => show(Math.max(0, at - 1)));
  next.addEventListener("click", () => {
    if (at < steps.length - 1) return show(at + 1);
    close();
    opener?.focus();
  });
  place.querySelector("[data-close]").addEventListener("click", () => { close(); opener?.focus(); });
  place.addEventListener("keydown", (event) => { if (event.key === "Escape") { close(); opener?.focus(); } });
  opener?.addEventListener("click", () => { open(); next.focus(); });
  if (seen()) { if (opener) opener.hidden = false; } else open();
})();
