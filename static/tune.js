// The page of sliders: a move is sent as the form that it is, and the numbers that come back are put where the old ones
// stood. One request is under way at a time; the latest move goes next. Without this script the form submits.
"use strict";
(() => {
  const PAUSE = 40, LOOK = 60, REST = 350; // milliseconds: after a move, between looks at a job, until a slider rests
  const byId = (id) => document.getElementById(id);
  const text = (id, value) => { const place = byId(id); if (place) place.textContent = value; };

  const drawn = (width) => {
    const made = (name, attributes) => {
      const element = document.createElementNS("http://www.w3.org/2000/svg", name);
      Object.entries(attributes).forEach(([key, value]) => element.setAttribute(key, value));
      return element;
    };
    const svg = made("svg", { viewBox: "0 0 100 10", preserveAspectRatio: "none", "aria-hidden": "true" });
    svg.append(made("rect", { width, height: 10 }));
    return svg;
  };

  const start = (form) => {
    if (form.dataset.ready) return;
    form.dataset.ready = "1";
    const controls = () => [...form.elements].filter((e) => e.name && e.type !== "hidden");
    const state = () => controls().map((e) => (e.type === "radio" ? e.checked : e.value));
    const sliders = [...form.querySelectorAll("input[type=range]")];
    const numberOf = (slider) => form.elements[slider.dataset.for];
    const follow = () => {
      sliders.forEach((s) => { s.value = numberOf(s).value === "" ? 1 : numberOf(s).value; });
      form.querySelectorAll("select").forEach((choice) => {
        const id = choice.name.slice("choice:".length);
        form.elements[`low:${id}`].hidden = !["set", "clamp"].includes(choice.value);
        form.elements[`high:${id}`].hidden = choice.value !== "clamp";
      });
    };
    const restore = (kept) => {
      controls().forEach((e, index) => { if (e.type === "radio") e.checked = kept[index]; else e.value = kept[index]; });
      follow();
    };
    sliders.forEach((s) => { s.hidden = false; });
    follow();
    const undo = byId("tune-undo"), reset = byId("tune-reset");
    undo.hidden = reset.hidden = false;

    let past = [], settled = state();
    let busy = false, again = false, timer = 0, resting = 0;

    const put = (data) => {
      const body = byId("tune-chances").tBodies[0];
      body.replaceChildren(...data.chances.map((row) => {
        const tr = document.createElement("tr");
        if (row.target) tr.setAttribute("aria-current", "true");
        const name = document.createElement("td"), chip = document.createElement("span");
        chip.className = "t";
        chip.textContent = row.display;
        name.append(chip);
        tr.append(name);
        for (const side of ["before", "after"]) {
          const bar = document.createElement("td");
          bar.className = "gauge";
          bar.append(drawn(row[`bar_${side}`]));
          const n = document.createElement("td");
          n.className = "n";
          n.textContent = row[side] === null ? "–" : row[`said_${side}`];
          tr.append(bar, n);
        }
        return tr;
      }));
      for (const side of ["before", "after"]) {
        const said = data.said[side];
        text(`tune-${side}-probability`, said.probability);
        text(`tune-${side}-rank`, said.rank);
        text(`tune-${side}-logit`, said.logit.toFixed(2).replace("-", "−"));
        text(`tune-${side}-text`, said.text + (said.complete ? "" : " …"));
      }
      const edits = byId("tune-edits");
      edits.replaceChildren(...data.edits.flatMap((edit) => {
        const code = document.createElement("code");
        code.textContent = edit;
        return [code, " "];
      }));
      if (!data.edits.length) edits.textContent = "none";
    };

    // Once the sliders rest, what they made is said: a table that is redrawn at every move would never stop speaking.
    const speak = (after) => {
      const target = byId("tune-after-probability").closest("dd").querySelector(".t").textContent;
      text("said", `${target}: probability ${after.probability}, rank ${after.rank}`);
    };

    const draw = async (rest) => {
      if (busy) { again = true; return; }
      busy = true;
      again = false;
      const body = new URLSearchParams(new FormData(form));
      if (rest) body.set("resting", "1");
      try {
        for (;;) {
          const answer = await fetch(form.dataset.redraw, { method: "POST", body, headers: { accept: "application/json" } });
          const data = await answer.json();
          if (answer.status === 202) {
            if (again) break;
            text("tune-state", data.said);
            await new Promise((done) => { setTimeout(done, LOOK); });
            continue;
          }
          if (answer.ok) { put(data); text("tune-state", ""); } else text("tune-state", data.error.message);
          if (answer.ok && rest) speak(data.said.after);
          break;
        }
      } catch {
        text("tune-state", "The server does not answer; the numbers are those of the last move that it knew.");
      }
      busy = false;
      if (again) draw(false);
      else if (!rest) { clearTimeout(resting); resting = setTimeout(() => draw(true), REST); }
    };

    const moved = () => {
      clearTimeout(timer);
      clearTimeout(resting);
      timer = setTimeout(() => draw(false), PAUSE);
    };
    const keep = () => {
      const now = state();
      if (now.join("\n") === settled.join("\n")) return;
      past.push(settled);
      settled = now;
      undo.disabled = false;
    };

    form.addEventListener("input", (event) => {
      const box = event.target;
      if (box.dataset.for) numberOf(box).value = String(Number(box.value));
      // A choice without its number yet: nothing to ask.
      const id = /^choice:(.*)$/.exec(box.name || "")?.[1];
      if (id && ["set", "clamp"].includes(box.value)) {
        if (form.elements[`low:${id}`].value === "") form.elements[`low:${id}`].value = box.value === "set" ? "1" : "0";
        if (box.value === "clamp" && form.elements[`high:${id}`].value === "") form.elements[`high:${id}`].value = "0.5";
      }
      follow();
      moved();
    });
    form.addEventListener("change", keep);
    undo.addEventListener("click", () => {
      if (!past.length) return;
      settled = past.pop();
      restore(settled);
      undo.disabled = !past.length;
      moved();
    });
    reset.addEventListener("click", () => {
      controls().forEach((e) => {
        if (e.name.startsWith("scale:")) e.value = "1";
        else if (e.name.startsWith("choice:")) e.selectedIndex = 0;
        else if (e.type !== "radio") e.value = "";
      });
      follow();
      keep();
      moved();
    });
  };

  const look = () => { const form = byId("tune"); if (form) start(form); };
  look();
  document.addEventListener("htmx:after:swap", look);
})();
