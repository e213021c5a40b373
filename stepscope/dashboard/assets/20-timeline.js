// How does one look around in a time line? Wheel or + and - zoom, drag or arrows pan, double click or 0 shows all.
"use strict";
(() => {
  const { element, formatNs, formatShare, paint } = window.stepscope;
  const SETTLE_MS = 90; // a tile is asked for once the view has rested this long
  const PAGE_REST_MS = 350; // a wheel turn this soon after the page scrolled belongs to the page
  const AXIS = 40;
  const LABEL = 54;
  const RANKS_A_PAGE = 64;
  const MIN_SPAN_NS = 200;

  let pageScrolledAt = -Infinity;
  window.addEventListener("scroll", () => { pageScrolledAt = performance.now(); }, { passive: true });

  class Timeline {
    constructor(host) {
      this.host = host;
      this.url = host.dataset.timeline;
      this.ranks = JSON.parse(host.dataset.ranks);
      this.words = JSON.parse(host.dataset.words);
      this.page = 0;
      this.overview = this.detail = null;
      this.window = 0;
      this.view = null;
      this.build();
      this.observe();
      this.load(true);
    }

    build() {
      this.canvas = element("canvas");
      this.canvas.tabIndex = 0;
      this.canvas.setAttribute("role", "application");
      this.canvas.setAttribute("aria-label", this.host.dataset.label);
      this.tip = element("div", "ss-tip");
      this.tip.hidden = true;
      const bar = element("div", "ss-timeline-bar");
      this.status = element("span", "", "Loading…");
      this.status.setAttribute("role", "status");
      bar.append(this.status, element("span", "", "Wheel or + − zoom · drag or ← → pan · double click or 0 shows all"));
      if (this.ranks.length > RANKS_A_PAGE) this.host.append(this.pageSelect());
      this.host.append(this.canvas, bar, this.tip);
    }

    pageSelect() {
      const select = element("select", "ss-timeline-pages");
      select.setAttribute("aria-label", "Ranks shown");
      for (let first = 0; first < this.ranks.length; first += RANKS_A_PAGE) {
        const last = Math.min(first + RANKS_A_PAGE, this.ranks.length) - 1;
        select.append(element("option", "", `ranks ${this.ranks[first]}–${this.ranks[last]}`));
      }
      select.addEventListener("change", () => {
        this.page = select.selectedIndex;
        this.overview = this.detail = null;
        this.load(true);
      });
      return select;
    }

    observe() {
      this.stop = new AbortController();
      const on = (target, name, handler, options) =>
        target.addEventListener(name, handler.bind(this), { ...options, signal: this.stop.signal });
      on(this.canvas, "wheel", this.onWheel, { passive: false });
      on(this.canvas, "pointerdown", this.onDown);
      on(this.canvas, "pointermove", this.onMove);
      on(this.canvas, "pointerup", this.onUp);
      on(this.canvas, "pointercancel", this.onUp);
      on(this.canvas, "pointerleave", () => { this.tip.hidden = true; });
      on(this.canvas, "dblclick", () => this.show(0, this.window));
      on(this.canvas, "keydown", this.onKey);
      this.sizes = new ResizeObserver(() => { this.draw(); this.loadSoon(); });
      this.sizes.observe(this.host);
      this.themes = new MutationObserver(() => this.draw());
      this.themes.observe(document.documentElement, { attributeFilter: ["data-mantine-color-scheme"] });
    }

    close() {
      this.stop.abort();
      this.sizes.disconnect();
      this.themes.disconnect();
      if (this.request) this.request.abort();
      clearTimeout(this.timer);
    }

    shownRanks() {
      return this.ranks.slice(this.page * RANKS_A_PAGE, (this.page + 1) * RANKS_A_PAGE);
    }

    plotWidth() {
      return Math.max(1, Math.round((this.host.clientWidth - LABEL) * devicePixelRatio));
    }

    async load(whole) {
      if (!this.host.clientWidth) return; // behind the other tab; the size observer calls again
      if (this.request) this.request.abort();
      const request = (this.request = new AbortController());
      const query = new URLSearchParams(this.shownRanks().map((rank) => ["rank", rank]));
      query.set("width", Math.min(this.plotWidth(), 8192));
      if (!whole) {
        query.set("start_ns", Math.max(0, Math.floor(this.view.start)));
        query.set("end_ns", Math.ceil(this.view.end));
      }
      try {
        const answer = await fetch(`${this.url}?${query}`, { signal: request.signal });
        const document_ = await answer.json();
        if (!answer.ok) throw new Error(document_.error ? document_.error.message : `HTTP ${answer.status}`);
        this.accept(document_, whole);
      } catch (error) {
        if (error.name !== "AbortError") this.fail(error.message);
      }
    }

    accept(answer, whole) {
      this.detail = answer;
      if (whole) {
        this.overview = answer;
        this.window = answer.window_ns;
        if (!this.view) this.view = this.viewFromUrl();
        if (this.view.start > 0 || this.view.end < this.window) this.loadSoon();
      }
      this.host.dataset.state = "ready";
      this.draw();
    }

    fail(message) {
      this.host.dataset.state = "failed";
      this.status.className = "ss-timeline-error";
      this.status.textContent = `The time line cannot be shown: ${message}`;
      this.canvas.height = 0;
    }

    viewFromUrl() {
      const query = new URLSearchParams(location.search);
      const [start, end] = [Number(query.get("t0")) * 1e6, Number(query.get("t1")) * 1e6];
      const fits = start >= 0 && end > start && end <= this.window * 1.0001;
      return fits ? { start, end: Math.min(end, this.window) } : { start: 0, end: this.window };
    }

    rememberView() {
      const query = new URLSearchParams(location.search);
      const whole = this.view.start <= 0 && this.view.end >= this.window;
      for (const [name, time] of [["t0", this.view.start], ["t1", this.view.end]]) {
        if (whole) query.delete(name);
        else query.set(name, (time / 1e6).toFixed(4));
      }
      const text = query.toString();
      history.replaceState(history.state, "", location.pathname + (text ? `?${text}` : "") + location.hash);
    }

    show(start, end) {
      const span = Math.min(Math.max(end - start, MIN_SPAN_NS), this.window);
      const from = Math.min(Math.max(start, 0), this.window - span);
      this.view = { start: from, end: from + span };
      this.tip.hidden = true;
      this.draw();
      this.loadSoon();
    }

    zoom(factor, at) {
      const { start, end } = this.view;
      this.show(at - (at - start) * factor, at + (end - at) * factor);
    }

    loadSoon() {
      clearTimeout(this.timer);
      this.timer = setTimeout(() => {
        if (!this.view) { this.load(true); return; }
        this.rememberView();
        this.load(false);
      }, SETTLE_MS);
    }

    isFine() {
      const { detail, view } = this;
      return Math.abs(detail.start_ns - view.start) <= 1 && Math.abs(detail.end_ns - view.end) <= 1;
    }

    // ---- drawing

    draw() {
      const width = this.host.clientWidth;
      if (!this.view || !this.overview || !width) return;
      const ratio = devicePixelRatio;
      const ranks = this.shownRanks();
      this.row = ranks.length <= 16 ? 30 : ranks.length <= 32 ? 20 : 12;
      const height = AXIS + ranks.length * this.row;
      this.canvas.style.height = `${height}px`;
      this.canvas.width = Math.round(width * ratio);
      this.canvas.height = Math.round(height * ratio);
      const context = this.canvas.getContext("2d");
      const colours = paint.readColours(this.overview.headings);
      const view = { ...this.view, left: Math.round(LABEL * ratio), width: this.plotWidth(), ratio };
      this.drawAxis(context, view, colours);
      ranks.forEach((rank, place) => this.drawRank(context, view, colours, rank, place));
      this.drawSteps(context, view, colours);
      this.status.className = "";
      const note = this.isFine() ? "" : " · refining…";
      this.status.textContent =
        `${formatNs(this.view.start)} to ${formatNs(this.view.end)} of ${formatNs(this.window)}${note}`;
    }

    drawAxis(context, view, colours) {
      const { ratio } = view;
      const step = paint.tickStep(view.end - view.start, Math.max(2, view.width / (110 * ratio)));
      context.font = `${11 * ratio}px system-ui, sans-serif`;
      context.textBaseline = "alphabetic";
      context.textAlign = "center";
      const right = view.left + view.width;
      for (let time = Math.ceil(view.start / step) * step; time <= view.end; time += step) {
        const x = Math.round(paint.position(time, view));
        context.fillStyle = colours.line;
        context.fillRect(x, 14 * ratio, ratio, this.canvas.height);
        context.fillStyle = colours.soft;
        if (x > view.left + 14 * ratio && x < right - 26 * ratio) context.fillText(formatNs(time), x, 11 * ratio);
      }
    }

    drawRank(context, view, colours, rank, place) {
      const { ratio } = view;
      const top = Math.round((AXIS + place * this.row) * ratio);
      const height = Math.round((this.row - (this.row > 14 ? 6 : 2)) * ratio);
      context.fillStyle = colours.track;
      context.fillRect(view.left, top, view.width, height);
      const clip = (from, to, answer) => {
        const x0 = Math.round(Math.max(paint.position(from, view), view.left));
        const x1 = Math.round(Math.min(paint.position(to, view), view.left + view.width));
        if (x1 <= x0) return;
        context.save();
        context.beginPath();
        context.rect(x0, top, x1 - x0, height);
        context.clip();
        paint.paintRow(context, answer.ranks[place], answer, view, top, height, colours, this.words);
        context.restore();
      };
      // The sharp tile where it reaches, the overview beside it until the next one is there.
      clip(view.start, this.detail.start_ns, this.overview);
      clip(this.detail.start_ns, this.detail.end_ns, this.detail);
      clip(this.detail.end_ns, view.end, this.overview);
      context.fillStyle = colours.soft;
      context.font = `${Math.min(12, this.row - 2) * ratio}px system-ui, sans-serif`;
      context.textAlign = "right";
      context.textBaseline = "middle";
      context.fillText(this.row > 14 ? `rank ${rank}` : `${rank}`, view.left - 10 * ratio, top + height / 2);
    }

    drawSteps(context, view, colours) {
      const { ratio } = view;
      const right = view.left + view.width;
      this.overview.ranks.forEach((tile, place) => {
        let labelled = -Infinity;
        const top = Math.round((AXIS + place * this.row - 2) * ratio);
        for (const [time, index] of tile.steps) {
          const x = Math.round(paint.position(time, view));
          if (x < view.left || x > right) continue;
          context.fillStyle = colours.text;
          context.fillRect(x - Math.floor(ratio / 2), top, Math.max(1, Math.round(1.5 * ratio)), this.row * ratio);
          if (place === 0 && x - labelled > 52 * ratio) {
            context.font = `600 ${11 * ratio}px system-ui, sans-serif`;
            context.textAlign = "left";
            context.textBaseline = "alphabetic";
            context.fillText(`step ${index}`, x + 3 * ratio, (AXIS - 10) * ratio);
            context.fillRect(x - Math.floor(ratio / 2), (AXIS - 20) * ratio, Math.max(1, Math.round(1.5 * ratio)), 20 * ratio);
            labelled = x;
          }
        }
      });
    }

    // ---- hands

    timeAt(event) {
      const x = event.clientX - this.canvas.getBoundingClientRect().left - LABEL;
      const share = x / (this.host.clientWidth - LABEL);
      return this.view.start + share * (this.view.end - this.view.start);
    }

    onWheel(event) {
      if (!this.view) return;
      const zoomsOut = event.deltaY > 0;
      const isWhole = this.view.end - this.view.start >= this.window;
      const sideways = Math.abs(event.deltaX) > Math.abs(event.deltaY);
      const pageIsMoving = performance.now() - pageScrolledAt < PAGE_REST_MS;
      if (pageIsMoving || (isWhole && (zoomsOut || sideways))) return; // the page scrolls on
      event.preventDefault();
      if (sideways) this.pan(event.deltaX / this.host.clientWidth);
      else this.zoom(Math.exp(Math.sign(event.deltaY) * Math.min(Math.abs(event.deltaY), 120) * 0.0025), this.timeAt(event));
    }

    pan(share) {
      const by = share * (this.view.end - this.view.start);
      this.show(this.view.start + by, this.view.end + by);
    }

    onDown(event) {
      if (!this.view || event.button !== 0) return;
      this.canvas.setPointerCapture(event.pointerId);
      this.canvas.classList.add("ss-dragging");
      this.drag = { x: event.clientX, start: this.view.start, end: this.view.end };
    }

    onMove(event) {
      if (!this.view) return;
      if (!this.drag) { this.explain(event); return; }
      const by = ((this.drag.x - event.clientX) / (this.host.clientWidth - LABEL)) * (this.drag.end - this.drag.start);
      if (by) this.show(this.drag.start + by, this.drag.end + by);
    }

    onUp() {
      this.drag = null;
      this.canvas.classList.remove("ss-dragging");
    }

    onKey(event) {
      if (!this.view || event.ctrlKey || event.metaKey || event.altKey) return;
      const middle = (this.view.start + this.view.end) / 2;
      const actions = {
        "+": () => this.zoom(0.6, middle), "=": () => this.zoom(0.6, middle),
        "-": () => this.zoom(1 / 0.6, middle), "_": () => this.zoom(1 / 0.6, middle),
        ArrowLeft: () => this.pan(-0.15), ArrowRight: () => this.pan(0.15),
        0: () => this.show(0, this.window), Home: () => this.show(0, this.window),
      };
      if (!actions[event.key]) return;
      event.preventDefault();
      actions[event.key]();
    }

    // ---- hover

    explain(event) {
      const box = this.canvas.getBoundingClientRect();
      const place = Math.floor((event.clientY - box.top - AXIS) / this.row);
      const time = this.timeAt(event);
      const rank = this.shownRanks()[place];
      const found = rank === undefined || time < this.view.start ? null : this.lookUp(place, time);
      this.tip.hidden = !found;
      if (!found) return;
      this.tip.replaceChildren(
        element("strong", "", `Rank ${rank}${this.stepAt(place, time)}`),
        ...found.rows.map((row) => this.tipRow(row)),
        element("div", "ss-note", found.when),
      );
      const x = event.clientX - box.left;
      const flips = x > box.width - 260;
      this.tip.style.left = flips ? "" : `${x + 16}px`;
      this.tip.style.right = flips ? `${box.width - x + 16}px` : "";
      this.tip.style.top = `${this.canvas.offsetTop + AXIS + (place + 1) * this.row}px`;
    }

    tipRow([name, text]) {
      const row = element("div", "ss-tip-row");
      const [words, pattern] = this.words[name];
      row.append(element("span", `ss-swatch ss-h-${name} ss-p-${pattern}`), element("span", "", words), element("span", "", text));
      return row;
    }

    lookUp(place, time) {
      const inside = time >= this.detail.start_ns && time <= this.detail.end_ns;
      const answer = inside ? this.detail : this.overview;
      const tile = answer.ranks[place];
      if (tile.slices) {
        const slice = tile.slices.find(([start, end]) => time >= start && time < end);
        if (!slice) return null;
        return { rows: [[answer.headings[slice[2]], formatNs(slice[1] - slice[0])]], when: `at ${formatNs(time)}` };
      }
      const span = (answer.end_ns - answer.start_ns) / answer.width;
      const column = Math.min(answer.width - 1, Math.floor((time - answer.start_ns) / span));
      const rows = Object.entries(tile.shares)
        .map(([code, shares]) => [answer.headings[code], shares[column] / answer.share_unit])
        .filter((row) => row[1] > 0)
        .sort((a, b) => b[1] - a[1])
        .slice(0, 5)
        .map(([name, share]) => [name, formatShare(share)]);
      return rows.length ? { rows, when: `of ${formatNs(span)} at ${formatNs(time)}` } : null;
    }

    stepAt(place, time) {
      const before = this.overview.ranks[place].steps.filter(([start]) => start <= time);
      return before.length ? `, step ${before[before.length - 1][1]}` : "";
    }
  }

  // Pages come and go without a reload: mount on what appears, close what has gone.
  const mounted = new Map();
  function mount() {
    for (const [host, timeline] of mounted) if (!host.isConnected) { timeline.close(); mounted.delete(host); }
    for (const host of document.querySelectorAll("[data-timeline]")) if (!mounted.has(host)) mounted.set(host, new Timeline(host));
  }
  new MutationObserver(mount).observe(document.documentElement, { childList: true, subtree: true });
})();
