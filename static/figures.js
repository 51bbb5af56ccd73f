// Figures as files: an SVG or a PNG of a figure as it stands on the page, under a name that says what it is.
// Made in the browser; without this script a figure's data is still there as CSV and JSON.
"use strict";
(() => {
  const WIDTH = 900, HEIGHT = 480, SCALE = 2;
  // What the style sheet gives a drawing, and a file must say itself.
  const DRAWN = ["fill", "fill-opacity", "stroke", "stroke-width", "stroke-dasharray", "stroke-linecap", "opacity",
    "font-family", "font-size", "font-weight", "text-anchor"];

  const paper = () => getComputedStyle(document.documentElement).getPropertyValue("--paper").trim();

  // A Plotly figure on the page's paper, so that dark figures are not light text on nothing.
  const plotted = async (place) => {
    const colour = paper();
    const figure = { data: place.data, layout: { ...place.layout, paper_bgcolor: colour, plot_bgcolor: colour } };
    const height = Math.max(HEIGHT, place.layout.height || 0);
    const address = await Plotly.toImage(figure, { format: "svg", width: WIDTH, height });
    return { text: decodeURIComponent(address.slice(address.indexOf(",") + 1)), width: WIDTH, height };
  };

  // A drawing of the page with its style written into it, on the page's paper.
  const drawn = async (svg) => {
    const copy = svg.cloneNode(true);
    const theirs = [svg, ...svg.querySelectorAll("*")], ours = [copy, ...copy.querySelectorAll("*")];
    theirs.forEach((element, index) => {
      const style = getComputedStyle(element);
      for (const name of DRAWN) ours[index].setAttribute(name, style.getPropertyValue(name));
      ours[index].removeAttribute("class");
      const leads = element.getAttribute("href");
      if (leads) ours[index].setAttribute("href", new URL(leads, location));
    });
    const { width, height } = svg.getBoundingClientRect();
    copy.setAttribute("xmlns", "http://www.w3.org/2000/svg");
    copy.setAttribute("width", width);
    copy.setAttribute("height", height);
    const sheet = document.createElementNS("http://www.w3.org/2000/svg", "rect");
    sheet.setAttribute("width", "100%");
    sheet.setAttribute("height", "100%");
    sheet.setAttribute("fill", paper());
    copy.prepend(sheet);
    return { text: new XMLSerializer().serializeToString(copy), width, height };
  };

  const picture = ({ text, width, height }) => new Promise((resolve, reject) => {
    const image = new Image();
    image.onload = () => {
      const canvas = document.createElement("canvas");
      canvas.width = Math.ceil(width * SCALE);
      canvas.height = Math.ceil(height * SCALE);
      canvas.getContext("2d").drawImage(image, 0, 0, canvas.width, canvas.height);
      canvas.toBlob((blob) => (blob ? resolve(blob) : reject(new Error("no picture"))), "image/png");
    };
    image.onerror = () => reject(new Error("no picture"));
    image.src = `data:image/svg+xml,${encodeURIComponent(text)}`;
  });

  const save = (blob, name) => {
    const link = document.createElement("a");
    link.href = URL.createObjectURL(blob);
    link.download = name;
    document.body.append(link);
    link.click();
    link.remove();
    setTimeout(() => URL.revokeObjectURL(link.href), 10_000);
  };

  const exported = async (make, name, form) => {
    const figure = await make();
    const blob = form === "svg" ? new Blob([figure.text], { type: "image/svg+xml" }) : await picture(figure);
    save(blob, `${name}.${form}`);
  };

  // The drawings beside a row, looked for when they are asked for: a page may have exchanged them meanwhile.
  const drawings = (row) => {
    const around = row.closest("figure, [data-part]");
    const plot = around.querySelector("[data-plotly]");
    if (plot) return window.Plotly ? [() => plotted(plot)] : [];
    // The bars of a table are hidden from readers, for the numbers stand beside them: no figures.
    return [...around.querySelectorAll("svg:not([aria-hidden])")].map((svg) => () => drawn(svg));
  };

  const button = (row, form, index, several) => {
    const made = document.createElement("button");
    const number = several ? `${index + 1}` : "";
    made.type = "button";
    made.className = "chip";
    made.textContent = `${form.toUpperCase()}${several ? ` ${number}` : ""}`;
    made.addEventListener("click", async () => {
      const said = document.getElementById("said"), name = `${row.dataset.export}${several ? `-${number}` : ""}`;
      try {
        await exported(drawings(row)[index], name, form);
        if (said) said.textContent = `${name}.${form} saved`;
      } catch {
        if (said) said.textContent = "This browser could not make the picture.";
        made.textContent = `${form.toUpperCase()}: not here`;
      }
    });
    row.append(made);
  };

  const offer = () => {
    document.querySelectorAll("[data-export]").forEach((row) => {
      if (row.querySelector("button")) return;
      const count = drawings(row).length;
      for (let index = 0; index < count; index++) {
        for (const form of ["svg", "png"]) button(row, form, index, count > 1);
      }
    });
  };

  window.addEventListener("load", offer);
  document.addEventListener("htmx:after:swap", offer);
})();
