// Figures as files: an SVG or a PNG of a Plotly figure as it stands on the page, under a name that says what it is.
// Made in the browser; without this script a figure's data is still there as CSV and JSON.
"use strict";
(() => {
  const WIDTH = 900, HEIGHT = 480, SCALE = 2;

  // The drawing on the page's paper, so that dark figures are not light text on nothing.
  const drawing = async (place) => {
    const paper = getComputedStyle(document.documentElement).getPropertyValue("--paper").trim();
    const figure = { data: place.data, layout: { ...place.layout, paper_bgcolor: paper, plot_bgcolor: paper } };
    const address = await Plotly.toImage(figure, { format: "svg", width: WIDTH, height: HEIGHT });
    return decodeURIComponent(address.slice(address.indexOf(",") + 1));
  };

  const picture = (svg) => new Promise((resolve, reject) => {
    const image = new Image();
    image.onload = () => {
      const canvas = document.createElement("canvas");
      canvas.width = WIDTH * SCALE;
      canvas.height = HEIGHT * SCALE;
      canvas.getContext("2d").drawImage(image, 0, 0, canvas.width, canvas.height);
      canvas.toBlob((blob) => (blob ? resolve(blob) : reject(new Error("no picture"))), "image/png");
    };
    image.onerror = () => reject(new Error("no picture"));
    image.src = `data:image/svg+xml,${encodeURIComponent(svg)}`;
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

  const exported = async (place, name, form) => {
    const svg = await drawing(place);
    save(form === "svg" ? new Blob([svg], { type: "image/svg+xml" }) : await picture(svg), `${name}.${form}`);
  };

  window.addEventListener("load", () => {
    if (!window.Plotly) return;
    document.querySelectorAll("[data-export]").forEach((row) => {
      const place = row.closest("figure").querySelector("[data-plotly]");
      if (!place) return;
      for (const form of ["svg", "png"]) {
        const button = document.createElement("button");
        button.type = "button";
        button.className = "chip";
        button.textContent = form.toUpperCase();
        button.addEventListener("click", async () => {
          const said = document.getElementById("said");
          try {
            await exported(place, row.dataset.export, form);
            if (said) said.textContent = `${row.dataset.export}.${form} saved`;
          } catch {
            if (said) said.textContent = "This browser could not make the picture.";
            button.textContent = `${form.toUpperCase()}: not here`;
          }
        });
        row.append(button);
      }
    });
  });
})();
