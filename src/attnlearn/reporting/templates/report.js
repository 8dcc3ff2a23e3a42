"use strict";
(() => {
  const root = document.documentElement;
  root.classList.add("js");
  const all = (selector, within) => Array.from((within || document).querySelectorAll(selector));
  const result = JSON.parse(document.getElementById("result").textContent);
  const lookup = (path) => path.split(".").reduce((value, key) => (value == null ? value : value[key]), result);
  const short = (value) => (value == null ? "–" : String(Number(Number(value).toPrecision(4))));

  // Theme: what the system says, until the reader says otherwise.
  const themes = ["auto", "dark", "light"];
  const theme = document.getElementById("theme");
  theme.addEventListener("click", () => {
    const next = themes[(themes.indexOf(root.dataset.theme || "auto") + 1) % themes.length];
    root.dataset.theme = next;
    theme.textContent = "Theme: " + next;
  });

  // One head at a time; arrow keys move between heads.
  const tabs = all("[role=tab]");
  const panels = all("[role=tabpanel]");
  const choose = (index, focus) => {
    tabs.forEach((tab, i) => {
      tab.setAttribute("aria-selected", String(i === index));
      tab.tabIndex = i === index ? 0 : -1;
    });
    panels.forEach((panel, i) => panel.classList.toggle("chosen", i === index));
    if (focus) tabs[index].focus();
  };
  tabs.forEach((tab, index) => {
    tab.addEventListener("click", () => choose(index, false));
    tab.addEventListener("keydown", (event) => {
      const last = tabs.length - 1;
      const next = { ArrowRight: index === last ? 0 : index + 1, ArrowLeft: index ? index - 1 : last, Home: 0, End: last }[event.key];
      if (next === undefined) return;
      event.preventDefault();
      choose(next, true);
    });
  });

  // Numbers under the pointer.
  const tip = document.getElementById("tip");
  const show = (text, event) => {
    tip.textContent = text;
    tip.hidden = false;
    const left = Math.min(event.clientX + 14, innerWidth - tip.offsetWidth - 8);
    const above = event.clientY - tip.offsetHeight - 12;
    tip.style.left = Math.max(8, left) + "px";
    tip.style.top = (above < 8 ? event.clientY + 18 : above) + "px";
  };
  const cellAt = (image, event) => {
    const box = image.getBoundingClientRect();
    const rows = Number(image.dataset.rows);
    const columns = Number(image.dataset.columns);
    const row = Math.min(rows - 1, Math.max(0, Math.floor(((event.clientY - box.top) / box.height) * rows)));
    const column = Math.min(columns - 1, Math.max(0, Math.floor(((event.clientX - box.left) / box.width) * columns)));
    return [row, column];
  };
  const nearest = (svg, event) => {
    const points = svg.points || (svg.points = all("circle.point", svg));
    let best = null;
    let least = 30 * 30;
    for (const point of points) {
      const box = point.getBoundingClientRect();
      const across = box.left + box.width / 2 - event.clientX;
      const along = box.top + box.height / 2 - event.clientY;
      const apart = across * across + along * along;
      if (apart < least) [least, best] = [apart, point];
    }
    return best;
  };
  let lit = null;
  const light = (point) => {
    if (lit) lit.classList.remove("lit");
    lit = point;
    if (point) point.classList.add("lit");
  };
  const hover = (event) => {
    const svg = event.currentTarget;
    const target = event.target;
    if (target.matches("image.cells")) {
      const [row, column] = cellAt(target, event);
      const matrix = lookup(target.dataset.source);
      const name = target.dataset.names;
      const words = target.dataset.words ? lookup(target.dataset.words) : null;
      const place = (cell, cells, size) => {
        const first = Math.floor((cell * size) / cells);
        const last = Math.max(first, Math.floor(((cell + 1) * size) / cells) - 1);
        return first === last ? String(first) : first + " to " + last;
      };
      const across = place(column, Number(target.dataset.columns), Number(target.dataset.wide));
      const along = place(row, Number(target.dataset.rows), Number(target.dataset.high));
      const where = words ? words[row] + " attends to " + words[column]
        : name ? name + " " + row + " and " + column : "row " + along + ", column " + across;
      return matrix ? show(where + ": " + short(matrix[row][column]), event) : undefined;
    }
    const point = target.dataset.tip ? target : nearest(svg, event);
    light(point && point.matches("circle") ? point : null);
    if (point) show(point.dataset.tip, event);
    else tip.hidden = true;
  };
  all(".canvas svg").forEach((svg) => {
    svg.addEventListener("pointermove", hover);
    svg.addEventListener("pointerdown", hover);
    svg.addEventListener("pointerleave", () => {
      tip.hidden = true;
      light(null);
    });
  });
  all("button.glance").forEach((button) =>
    button.addEventListener("click", () => {
      choose(Number(button.dataset.head), true);
      document.querySelector(".switcher").scrollIntoView({ block: "start" });
    })
  );
  all("image.cells[data-names=head]").forEach((image) =>
    image.addEventListener("click", (event) => {
      const [row] = cellAt(image, event);
      if (row < tabs.length) {
        choose(row, true);
        document.querySelector(".switcher").scrollIntoView({ block: "start" });
      }
    })
  );

  // Large tables are made when they are opened.
  const row = (values, kind) => {
    const line = document.createElement("tr");
    values.forEach((value) => (line.appendChild(document.createElement(kind)).textContent = value));
    return line;
  };
  all("details.numbers[data-source]").forEach((details) =>
    details.addEventListener("toggle", () => {
      const place = details.querySelector(".scroll");
      const matrix = lookup(details.dataset.source);
      if (!details.open || place.firstElementChild || !matrix) return;
      const table = document.createElement("table");
      table.createTHead().appendChild(row(["", ...matrix[0].map((_, i) => i)], "th"));
      const body = table.createTBody();
      matrix.forEach((values, i) => body.appendChild(row([i, ...values.map(short)], "td")));
      place.appendChild(table);
    })
  );

  // Downloads are made from what is in this file.
  const save = (text, kind, name) => {
    const link = document.createElement("a");
    link.href = URL.createObjectURL(new Blob([text], { type: kind }));
    link.download = name;
    link.click();
    setTimeout(() => URL.revokeObjectURL(link.href), 1000);
  };
  const quoted = (text) => (/[",\n]/.test(text) ? '"' + text.replace(/"/g, '""') + '"' : text);
  all("button.csv").forEach((button) =>
    button.addEventListener("click", () => {
      const lines = all("tr", button.closest("details")).map((line) =>
        all("th,td", line).map((entry) => quoted(entry.textContent)).join(",")
      );
      save(lines.join("\n") + "\n", "text/csv", button.dataset.name.replace(/[^A-Za-z0-9]+/g, "-").toLowerCase() + ".csv");
    })
  );
  document.getElementById("download").addEventListener("click", () =>
    save(JSON.stringify(result, null, 2) + "\n", "application/json", "result.json")
  );
})();
