// What the pages need beyond htmx: chosen-in-the-address links, shift-click, copy, the prompt box, Plotly's colours.
"use strict";
(() => {
  const say = (text) => {
    const place = document.getElementById("said");
    if (place) place.textContent = text;
  };

  // A link marked data-desk opens beside the figure: the same address, the same page, only the desk is exchanged.
  // Works for SVG links too. Without this script the link simply opens.
  const openBeside = (link, url) => {
    const failures = silences;
    htmx.ajax("GET", url, {
      source: link.isConnected ? link : document.body, target: "#desk", select: "#desk", swap: "outerMorph", push: url,
    }).then(() => {
      const panel = document.getElementById("panel");
      if (silences > failures) offerAgain(panel, () => openBeside(link, url));
      const chosen = panel?.querySelector("h2");
      if (chosen && silences === failures) say(chosen.textContent.trim());
      // On a narrow screen the panel stands below the figure: bring it into sight.
      if (panel && panel.getBoundingClientRect().top > innerHeight * 0.7) panel.scrollIntoView({ block: "start" });
    });
  };

  // A server that does not answer: one sentence where the answer would have stood, and a button that asks again.
  // What polls goes on polling, and the sentence goes as soon as something was answered.
  let silences = 0;
  let why = "";
  const offerAgain = (place, again) => {
    document.getElementById("unreached")?.remove();
    const box = document.createElement("div");
    box.id = "unreached";
    if (place) box.dataset.asked = "";
    box.className = "state fault";
    box.setAttribute("role", "alert");
    const text = document.createElement("p");
    text.textContent = `${why} What is shown here is what was here before.`;
    const button = document.createElement("button");
    button.type = "button";
    button.textContent = "try again";
    button.addEventListener("click", again);
    box.append(text, button);
    (place || document.getElementById("main")).prepend(box);
  };
  const onSilence = (event) => {
    silences += 1;
    const status = event.detail?.ctx?.response?.status;
    why = status ? `The server answered with an error (${status}).` : "The server does not answer; it may have stopped.";
    // What a person asked for and did not get keeps its button, whatever goes on polling beside it.
    if (document.querySelector("#unreached[data-asked]")) return;
    const desk = event.detail?.ctx?.target?.id === "desk";
    offerAgain(desk ? document.getElementById("panel") : null, () => location.reload());
  };
  document.addEventListener("htmx:error", onSilence);
  document.addEventListener("htmx:response:error", onSilence);
  document.addEventListener("htmx:after:swap", (event) => {
    const told = document.getElementById("unreached");
    if (told && (told.dataset.asked === undefined || event.detail?.ctx?.target?.id === "desk")) told.remove();
  });

  // What was waited for and is there now is said once: what waits has its sentence with it (data-then).
  const waits = () => new Set([...document.querySelectorAll("[data-then]")].map((place) => place.dataset.then));
  let waited = waits();
  document.addEventListener("htmx:after:swap", (event) => {
    const still = waits();
    const there = [...waited].filter((then) => !still.has(then));
    waited = still;
    const place = document.getElementById(event.detail?.ctx?.target?.id) || document.getElementById("main");
    if (!there.length || place.querySelector('[role="alert"]')) return; // an alert speaks for itself
    const more = place.id === "main" ? place.querySelector("[data-said]")?.dataset.said : "";
    say([...there, more].filter(Boolean).join(" "));
  });

  document.addEventListener("click", (event) => {
    const link = event.target.closest("a[href]");
    if (!link || event.button !== 0 || event.ctrlKey || event.metaKey || event.altKey) return;
    if (event.shiftKey) {
      if (!link.dataset.contrast) return;
      event.preventDefault();
      location.assign(link.dataset.contrast);
      return;
    }
    if (!link.closest("[data-desk]") || !window.htmx) return;
    const href = link.getAttribute("href");
    if (!href.startsWith("?")) return;
    event.preventDefault();
    openBeside(link, location.pathname + href);
  });

  // Copy: the real text, also where the clipboard API is not allowed (plain http on another host).
  const copy = async (text) => {
    try {
      await navigator.clipboard.writeText(text);
    } catch {
      const box = document.createElement("textarea");
      box.value = text;
      box.className = "sr";
      document.body.append(box);
      box.select();
      document.execCommand("copy");
      box.remove();
    }
  };

  document.addEventListener("click", async (event) => {
    const button = event.target.closest("button[data-copy]");
    if (!button) return;
    await copy(button.hasAttribute("data-address") ? location.href : button.dataset.copy);
    const before = button.textContent;
    button.textContent = button.dataset.done || "copied";
    say(button.textContent);
    setTimeout(() => { button.textContent = before; }, 1500);
  });

  // Tokens copy as what they are: of a strip the bytes, so that a space, a line break and a character split over tokens
  // come out whole; of a part of one token its letters.
  const letters = { "·": " ", "↵": "\n", "⇥": "\t", "␍": "\r" };
  const spelt = (shown) => shown.replace(/[·↵⇥␍]/g, (sign) => letters[sign]);
  document.addEventListener("copy", (event) => {
    const selection = getSelection();
    if (!selection.rangeCount || selection.isCollapsed) return;
    const range = selection.getRangeAt(0);
    const chipOf = (node) => (node.nodeType === 1 ? node : node.parentElement)?.closest(".t");
    const part = range.cloneContents();
    const chips = [...part.querySelectorAll(".t")];
    const whole = chipOf(range.commonAncestorContainer);
    if (!chips.length && !whole) return;
    const bytes = [];
    const add = (shown, chip) => {
      const exact = chip?.dataset.b && chip.textContent === shown;
      const pairs = exact ? chip.dataset.b.match(/../g).map((two) => parseInt(two, 16)) : null;
      bytes.push(...(pairs ?? new TextEncoder().encode(spelt(shown))));
    };
    if (whole) {
      add(selection.toString(), whole);
    } else {
      const between = [...part.childNodes].some((node) => !node.matches?.(".t, .strip") && node.textContent.trim());
      if (between || part.querySelector("table, .prob")) return; // more than tokens: as it is shown
      const ends = [chipOf(range.startContainer), chipOf(range.endContainer)];
      chips.forEach((chip, index) => {
        const original = (index === 0 && ends[0]) || (index === chips.length - 1 && ends[1]) || chip;
        if (chip.textContent) add(chip.textContent, original);
      });
    }
    event.clipboardData.setData("text/plain", new TextDecoder().decode(new Uint8Array(bytes)));
    event.preventDefault();
  });

  // The prompt box: Enter reads, Shift+Enter is a new line.
  document.addEventListener("keydown", (event) => {
    const box = event.target;
    if (box.matches?.("textarea[data-enter]") && event.key === "Enter" && !event.shiftKey && !event.isComposing) {
      event.preventDefault();
      box.form.requestSubmit(box.form.querySelector("button.go"));
    }
    if (event.key === "Escape") {
      hide();
      openMenus().forEach((menu) => {
        if (menu.contains(document.activeElement)) menu.querySelector("summary").focus();
        menu.open = false;
      });
    }
  });

  // A menu closes when something else is clicked, and when the focus goes on to something else.
  const openMenus = () => document.querySelectorAll("details.menu[open]");
  const closeOthers = (place) => {
    openMenus().forEach((menu) => { if (!menu.contains(place)) menu.open = false; });
  };
  document.addEventListener("click", (event) => closeOthers(event.target));
  document.addEventListener("focusin", (event) => closeOthers(event.target));

  // The evidence of a name, while it is pointed at or focused; kept inside the window.
  const tip = document.createElement("div");
  tip.id = "tip";
  tip.hidden = true;
  const hide = () => { tip.hidden = true; };
  const show = (event) => {
    // What a token's title says to a mouse, the keyboard gets as well.
    const focused = event.type === "focusin" ? event.target.closest?.(".t[title], .chip[title]") : null;
    const name = event.target.closest?.("[data-ev]") || focused;
    if (!name) return hide();
    tip.textContent = name.dataset.ev || name.title;
    if (!tip.isConnected) document.body.append(tip);
    tip.hidden = false;
    const at = name.getBoundingClientRect();
    const below = at.bottom + 6 + tip.offsetHeight < innerHeight;
    tip.style.left = `${Math.max(8, Math.min(at.left, innerWidth - tip.offsetWidth - 8))}px`;
    tip.style.top = `${below ? at.bottom + 6 : Math.max(8, at.top - tip.offsetHeight - 6)}px`;
  };
  document.addEventListener("pointerover", show);
  document.addEventListener("focusin", show);
  document.addEventListener("focusout", hide);
  document.addEventListener("scroll", hide, { capture: true, passive: true });

  // A long prompt scrolls in its own strip: the read position is in sight from the start.
  document.querySelectorAll(".strip").forEach((strip) => {
    const token = strip.querySelector("[aria-current]");
    if (!token) return;
    const below = token.getBoundingClientRect().bottom - strip.getBoundingClientRect().bottom;
    if (below > 0) strip.scrollTop += below + 4;
  });

  // Plotly figures: data in a JSON block, colours from the page, redrawn when light turns dark, and in place when a
  // page that follows something has exchanged the data.
  const drawn = new WeakMap();
  const draw = (all) => {
    const style = getComputedStyle(document.documentElement);
    const colour = (name) => style.getPropertyValue(name).trim();
    document.querySelectorAll("[data-plotly]").forEach((place) => {
      const text = document.getElementById(place.dataset.plotly).textContent;
      if (!all && drawn.get(place) === text) return;
      drawn.set(place, text);
      const figure = JSON.parse(text);
      const axis = { gridcolor: colour("--line"), zerolinecolor: colour("--line"), linecolor: colour("--line") };
      figure.data.filter((trace) => trace.type === "heatmap").forEach((trace) => {
        trace.colorscale = [[0, colour("--raised")], [1, colour("--accent")]];
      });
      const axes = Object.keys(figure.layout).filter((name) => /^[xy]axis\d+$/.test(name));
      Plotly.react(place, figure.data, {
        ...figure.layout,
        title: { ...figure.layout.title, font: { size: 14 }, x: 0, xref: "paper", y: 0.98, yanchor: "top" },
        paper_bgcolor: "rgba(0,0,0,0)", plot_bgcolor: "rgba(0,0,0,0)",
        font: { family: style.getPropertyValue("--sans"), size: 12, color: colour("--ink") },
        margin: { l: 48, r: 12, t: 64, b: 44 }, height: figure.layout.height || 340, autosize: true,
        legend: { orientation: "h", x: 0, y: 1.02, yanchor: "bottom", traceorder: "normal", ...figure.layout.legend },
        xaxis: { ...axis, ...figure.layout.xaxis }, yaxis: { ...axis, ...figure.layout.yaxis },
        ...Object.fromEntries(axes.map((name) => [name, { ...axis, ...figure.layout[name] }])),
      }, { displayModeBar: false, responsive: true });
    });
  };
  window.addEventListener("load", () => {
    if (!window.Plotly) return;
    draw(true);
    matchMedia("(prefers-color-scheme: dark)").addEventListener("change", () => draw(true));
    document.addEventListener("legible:theme", () => draw(true));
    document.addEventListener("htmx:after:swap", () => draw(false));
  });
})();
