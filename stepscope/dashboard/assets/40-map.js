// How does the map of all GPUs get on the page? From one byte a GPU, on a canvas; places come once, bytes every few seconds.
"use strict";
(() => {
  const { element } = window.stepscope;
  const POLL_MS = 5000;
  const FULL = 200;
  const [NOT_COMPARED, NO_VALUE, NO_ANSWER] = [253, 254, 255];
  const SIZES = [22, 18, 15, 12, 10, 8, 7, 6, 5, 4];
  const MAX_HEIGHT = 560;
  const UNNAMED_BLOCK = 16;

  class GpuMap {
    constructor(host) {
      this.host = host;
      this.canvas = element("canvas");
      this.canvas.tabIndex = 0;
      this.canvas.setAttribute("role", "img");
      this.canvas.setAttribute("aria-label", host.dataset.label);
      this.canvas.setAttribute("aria-describedby", "gpu-map-status");
      this.tip = element("div", "ss-tip");
      this.tip.hidden = true;
      this.status = element("p", "ss-map-status ss-note");
      this.status.id = "gpu-map-status";
      this.status.setAttribute("role", "status");
      this.table = element("details", "ss-map-table ss-ask");
      this.table.append(element("summary", "", "Table"), element("div", "ss-scroll"));
      this.table.addEventListener("toggle", () => this.fillTable());
      host.append(this.canvas, this.tip, this.status, this.table);
      this.number = 0;
      this.layout = "";
      this.places = null;
      this.bytes = new Uint8Array(0);
      this.marks = [];
      this.selected = -1;
      this.words = new Map();
      this.status.textContent = "Reading the map…";
      this.canvas.addEventListener("pointermove", (event) => this.hover(event));
      this.canvas.addEventListener("pointerleave", () => this.hideTip());
      this.canvas.addEventListener("click", (event) => this.select(this.cellAt(event)));
      this.canvas.addEventListener("keydown", (event) => this.onKey(event));
      this.resized = new ResizeObserver(() => this.draw());
      this.resized.observe(host);
      this.themed = new MutationObserver(() => this.draw());
      this.themed.observe(document.documentElement, { attributeFilter: ["data-mantine-color-scheme"] });
      this.onVisible = () => document.hidden || this.load();
      document.addEventListener("visibilitychange", this.onVisible);
      this.timer = setInterval(() => document.hidden || this.load(), POLL_MS);
      this.load();
    }

    end() {
      clearInterval(this.timer);
      this.resized.disconnect();
      this.themed.disconnect();
      document.removeEventListener("visibilitychange", this.onVisible);
      this.request?.abort();
    }

    /** Another metric: nothing of the old one stays. */
    restart() {
      this.request?.abort();
      this.request = null;
      this.number = 0;
      this.words.clear();
      this.host.dataset.state = "loading";
      this.load();
    }

    async load() {
      if (this.request) return;
      const request = (this.request = new AbortController());
      const url = `${this.host.dataset.map}&layout=${this.layout}&since=${this.number}`;
      try {
        const answer = await fetch(url, { signal: request.signal });
        if (answer.status === 503) setTimeout(() => this.host.isConnected && this.load(), 1000);
        else if (answer.status !== 204) {
          if (!answer.ok) throw new Error(`the server answers with status ${answer.status}`);
          this.take(await answer.json());
        }
      } catch (error) {
        if (error.name !== "AbortError") this.say(`The map cannot be read: ${error.message}. It is asked for again in some seconds.`, true);
      } finally {
        if (this.request === request) this.request = null;
      }
    }

    take(map) {
      if (map.places) {
        this.places = map.places;
        this.selected = -1;
      }
      this.layout = map.layout;
      this.number = map.number;
      this.bytes = Uint8Array.from(atob(map.values), (letter) => letter.charCodeAt(0));
      this.marks = map.marks;
      this.isStale = map.is_stale;
      this.words.clear();
      this.host.dataset.state = "ready";
      this.draw();
      this.fillTable();
      if (this.selected < 0) this.say("Point at a cell, or use the arrow keys, to read it.");
      else this.select(this.selected);
    }

    say(text, isError = false) {
      this.status.textContent = text;
      this.status.classList.toggle("ss-error", isError);
    }

    /** Blocks of nodes, one for a rack; nodes without a rack are cut into blocks. */
    blocks() {
      const { racks, gpus } = this.places;
      const made = [];
      let [node, cell] = [0, 0];
      for (const [name, number] of racks) {
        for (let first = 0; first < number; first += name ? number : UNNAMED_BLOCK) {
          const nodes = [];
          for (let place = first; place < Math.min(number, first + (name ? number : UNNAMED_BLOCK)); place++) {
            nodes.push({ node, cell, gpus: gpus[node] });
            cell += gpus[node];
            node += 1;
          }
          made.push({ name, nodes, width: Math.max(1, ...nodes.map((one) => one.gpus)) });
        }
      }
      return made;
    }

    /** Places of all nodes on the canvas, in CSS pixels. */
    arrange(width) {
      const blocks = this.blocks();
      const hasNames = blocks.some((block) => block.name);
      let arranged = null;
      for (const size of SIZES) {
        const gap = size >= 10 ? 2 : 1;
        const pitch = size + gap;
        const label = size >= 15 ? 128 : 0;
        const title = hasNames ? 16 : 0;
        const nodes = [];
        const titles = [];
        let [x, y, height] = [0, 0, 0];
        for (const block of blocks) {
          const blockWidth = label + block.width * pitch;
          if (x > 0 && x + blockWidth > width) [x, y, height] = [0, y + height + 10, 0];
          if (block.name) titles.push({ text: block.name, x, y: y + 11, width: blockWidth });
          block.nodes.forEach((one, row) => nodes.push({ ...one, x: x + label, y: y + title + row * pitch }));
          height = Math.max(height, title + block.nodes.length * pitch);
          x += blockWidth + (size >= 10 ? 24 : 11);
        }
        arranged = { size, pitch, label, nodes, titles, height: y + height + 1 };
        if (arranged.height <= MAX_HEIGHT) break;
      }
      return arranged;
    }

    draw() {
      const width = this.host.clientWidth;
      if (!this.places || !width) return;
      const shape = (this.shape = this.arrange(width));
      const ratio = window.devicePixelRatio || 1;
      this.canvas.width = Math.round(width * ratio);
      this.canvas.height = Math.round(shape.height * ratio);
      this.canvas.style.height = `${shape.height}px`;
      const context = this.canvas.getContext("2d");
      context.scale(ratio, ratio);
      const style = getComputedStyle(document.documentElement);
      const colour = (name) => style.getPropertyValue(name).trim();
      const isDeviation = /colour=deviation/.test(this.host.dataset.map);
      const palette = makePalette(
        (isDeviation ? ["low", "middle", "high"] : ["least", "half", "most"]).map((name) => colour(`--ss-map-${name}`)),
      );
      const [soft, line, bad] = ["--ss-text-soft", "--ss-map-line", "--ss-bad"].map(colour);
      context.font = `11px ${getComputedStyle(document.body).fontFamily}`;
      context.fillStyle = soft;
      const prefix = commonPrefix(shape.titles.map((title) => title.text));
      for (const { text, x, y, width } of shape.titles) {
        const isTooLong = context.measureText(text).width > width;
        context.fillText(fitting(context, isTooLong ? text.slice(prefix) : text, width), x, y);
      }
      if (shape.label) {
        for (const one of shape.nodes) {
          context.fillText(fitting(context, this.places.nodes[one.node], shape.label - 8), one.x - shape.label, one.y + shape.size / 2 + 4);
        }
      }
      const [marks, rings] = [new Set(this.marks), []];
      for (const one of shape.nodes) {
        for (let gpu = 0; gpu < one.gpus; gpu++) {
          const [x, y, byte] = [one.x + gpu * shape.pitch, one.y, this.bytes[one.cell + gpu]];
          drawCell(context, x, y, shape.size, byte, palette, line, soft);
          if (marks.has(one.cell + gpu)) rings.push([x, y]);
        }
      }
      for (const [x, y] of rings) drawMark(context, x, y, shape.size, bad);
      this.canvas.classList.toggle("ss-map-stale", Boolean(this.isStale));
      if (this.selected >= 0) this.drawFrame(context, this.selected, colour("--ss-text"));
    }

    drawFrame(context, cell, colour) {
      const one = this.nodeOf(cell);
      if (!one) return;
      const { size, pitch } = this.shape;
      context.strokeStyle = colour;
      context.lineWidth = 2;
      context.strokeRect(one.x + (cell - one.cell) * pitch - 1.5, one.y - 1.5, size + 3, size + 3);
    }

    nodeOf(cell) {
      return this.shape.nodes.find((one) => cell >= one.cell && cell < one.cell + one.gpus);
    }

    cellAt(event) {
      if (!this.shape) return -1;
      const box = this.canvas.getBoundingClientRect();
      const [x, y] = [event.clientX - box.left, event.clientY - box.top];
      const { pitch } = this.shape;
      const one = this.shape.nodes.find((node) => y >= node.y && y < node.y + pitch && x >= node.x && x < node.x + node.gpus * pitch);
      return one ? one.cell + Math.floor((x - one.x) / pitch) : -1;
    }

    hover(event) {
      const cell = this.cellAt(event);
      if (cell < 0) return this.hideTip();
      const box = this.canvas.getBoundingClientRect();
      const [x, y] = [event.clientX - box.left, event.clientY - box.top];
      this.tip.style.left = `${Math.min(x + 14, Math.max(0, box.width - 330))}px`;
      this.tip.style.top = `${y + 16}px`;
      if (this.hovered === cell && !this.tip.hidden) return undefined;
      this.hovered = cell;
      this.tip.hidden = false;
      const one = this.nodeOf(cell);
      this.tip.replaceChildren(element("strong", "", `${this.places.nodes[one.node]} GPU ${cell - one.cell}`));
      clearTimeout(this.asking);
      this.asking = setTimeout(async () => {
        const words = await this.read(cell);
        if (words && this.hovered === cell) this.tip.replaceChildren(...describe(words));
      }, 60);
      return undefined;
    }

    hideTip() {
      this.tip.hidden = true;
      this.hovered = -1;
      clearTimeout(this.asking);
    }

    /** What the server says of a GPU; null if it cannot be read. */
    async read(cell) {
      if (!this.words.has(cell)) {
        const metric = new URLSearchParams(this.host.dataset.query).get("metric");
        try {
          const answer = await fetch(`/api/v1/cluster/gpus/${cell}?metric=${encodeURIComponent(metric)}`);
          if (!answer.ok) return null;
          this.words.set(cell, await answer.json());
        } catch {
          return null;
        }
      }
      return this.words.get(cell);
    }

    async select(cell) {
      if (cell < 0 || cell >= this.bytes.length) return;
      this.selected = cell;
      this.draw();
      const words = await this.read(cell);
      if (words && this.selected === cell) this.say(sentence(words));
    }

    onKey(event) {
      if (!this.shape || event.altKey || event.ctrlKey || event.metaKey) return;
      const nodes = this.shape.nodes.filter((node) => node.gpus);
      const place = nodes.findIndex((node) => this.selected >= node.cell && this.selected < node.cell + node.gpus);
      const one = nodes[Math.max(place, 0)];
      if (!one) return;
      const beside = (step) => {
        const next = nodes[Math.min(nodes.length - 1, Math.max(0, place + step))];
        return next.cell + Math.min(this.selected - one.cell, next.gpus - 1);
      };
      const moves = {
        ArrowLeft: () => Math.max(0, this.selected - 1),
        ArrowRight: () => Math.min(this.bytes.length - 1, this.selected + 1),
        ArrowUp: () => beside(-1),
        ArrowDown: () => beside(1),
        Home: () => 0,
        End: () => this.bytes.length - 1,
      };
      if (event.key === "Escape") {
        this.hideTip();
        return;
      }
      if (!moves[event.key]) return;
      event.preventDefault();
      this.select(place < 0 ? one.cell : moves[event.key]());
    }

    /** The map as a table, made when it is opened: a row a node. */
    fillTable() {
      if (!this.table.open || !this.places) return;
      const table = element("table", "ss-table ss-map-cells");
      table.append(element("caption", "ss-sr", "The map's scale in percent, a row a node"));
      const most = Math.max(0, ...this.places.gpus);
      const head = element("tr");
      head.append(...["Rack", "Node", ...Array.from({ length: most }, (_, gpu) => `GPU ${gpu}`)].map((title) => {
        const cell = element("th", "", title);
        cell.scope = "col";
        return cell;
      }));
      const section = element("thead");
      section.append(head);
      const body = element("tbody");
      const isDeviation = /colour=deviation/.test(this.host.dataset.map);
      for (const block of this.blocks()) {
        for (const one of block.nodes) {
          const row = element("tr");
          const name = element("th", "", this.places.nodes[one.node]);
          name.scope = "row";
          row.append(element("td", "", block.name || "–"), name);
          for (let gpu = 0; gpu < one.gpus; gpu++) row.append(element("td", "ss-num", byteWords(this.bytes[one.cell + gpu], isDeviation)));
          body.append(row);
        }
      }
      table.append(section, body);
      this.table.querySelector(".ss-scroll").replaceChildren(
        element("p", "ss-note", isDeviation ? "Share of the scale above: −100% and +100% are its ends." : "Share of the scale above: 0% and 100% are its ends."),
        table,
      );
    }
  }

  function byteWords(byte, isDeviation) {
    if (byte === NO_ANSWER) return "no answer";
    if (byte === NO_VALUE) return "no value";
    if (byte === NOT_COMPARED) return "no job";
    const share = isDeviation ? (byte - FULL / 2) / (FULL / 2) : byte / FULL;
    return `${isDeviation && share > 0 ? "+" : ""}${Math.round(share * 100)}%`.replace("-", "−");
  }

  function describe(words) {
    const lines = [element("strong", "", `${words.node} GPU ${words.gpu}`)];
    if (words.job) lines.push(element("div", "ss-note", `Job ${words.job}`));
    for (const line of words.why.length ? words.why : [words.value]) lines.push(element("div", "", line));
    lines.push(element("div", "ss-note", [words.rack, words.uuid].filter(Boolean).join(", ")));
    return lines;
  }

  function sentence(words) {
    const place = `${words.node} GPU ${words.gpu}${words.rack ? ` in ${words.rack}` : ""}`;
    return [place, words.job ? `job ${words.job}` : "no job", ...(words.why.length ? words.why : [words.value])].join(". ");
  }

  /** Length of what all names begin with, up to a sign between words: narrow titles do without it. */
  function commonPrefix(names) {
    if (names.length < 2) return 0;
    let end = 0;
    while (names.every((name) => end < name.length && name[end] === names[0][end])) end += 1;
    while (end > 0 && /[\p{L}\p{N}]/u.test(names[0][end - 1])) end -= 1;
    return end;
  }

  function fitting(context, text, width) {
    if (context.measureText(text).width <= width) return text;
    let end = text.length - 1;
    while (end > 1 && context.measureText(`${text.slice(0, end)}…`).width > width) end -= 1;
    return `${text.slice(0, end)}…`;
  }

  function drawCell(context, x, y, size, byte, palette, line, soft) {
    if (byte <= FULL) {
      context.fillStyle = palette[byte];
      context.fillRect(x, y, size, size);
      return;
    }
    context.strokeStyle = line;
    context.lineWidth = 1;
    context.strokeRect(x + 0.5, y + 0.5, size - 1, size - 1);
    context.strokeStyle = soft;
    context.fillStyle = soft;
    if (byte === NO_ANSWER) {
      context.beginPath();
      context.moveTo(x + 1, y + size - 1);
      context.lineTo(x + size - 1, y + 1);
      context.moveTo(x + 1, y + 1);
      context.lineTo(x + size - 1, y + size - 1);
      context.stroke();
    } else if (byte === NOT_COMPARED) {
      const dot = Math.max(1, Math.round(size / 5));
      context.fillRect(x + (size - dot) / 2, y + (size - dot) / 2, dot, dot);
    }
  }

  function drawMark(context, x, y, size, colour) {
    context.strokeStyle = colour;
    context.lineWidth = 2;
    context.beginPath();
    context.arc(x + size / 2, y + size / 2, size / 2 + 2, 0, 2 * Math.PI);
    context.stroke();
  }

  /** 201 colours through three. */
  function makePalette(stops) {
    const [low, middle, high] = stops.map((text) => [1, 3, 5].map((place) => parseInt(text.slice(place, place + 2), 16)));
    return Array.from({ length: FULL + 1 }, (_, byte) => {
      const share = byte / (FULL / 2);
      const [from, to, part] = share <= 1 ? [low, middle, share] : [middle, high, share - 1];
      return `rgb(${from.map((value, place) => Math.round(value + (to[place] - value) * part)).join(" ")})`;
    });
  }

  const maps = new Map();
  document.addEventListener("click", (event) => {
    const button = event.target.closest(".ss-find");
    const map = [...maps.values()][0];
    if (!button || !map) return;
    map.select(Number(button.dataset.cell));
    map.canvas.scrollIntoView({ block: "center" });
    map.canvas.focus({ preventScroll: true });
  });

  new MutationObserver((changes) => {
    for (const [host, map] of maps) {
      if (!host.isConnected) {
        map.end();
        maps.delete(host);
      }
    }
    for (const host of document.querySelectorAll("[data-map]")) if (!maps.has(host)) maps.set(host, new GpuMap(host));
    for (const change of changes) if (change.type === "attributes") maps.get(change.target)?.restart();
  }).observe(document.documentElement, { childList: true, subtree: true, attributeFilter: ["data-map"] });
})();
