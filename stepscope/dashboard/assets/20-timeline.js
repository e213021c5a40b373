// How does one look around in a time line? Wheel or + and - zoom, drag or arrows pan, double click or 0 shows all.
"use strict";
(() => {
  const { element, TimelinePicture } = window.stepscope;
  const SETTLE_MS = 90; // a tile is asked for once the view has rested this long
  const PAGE_REST_MS = 350; // a wheel turn this soon after the page scrolled belongs to the page
  const RANKS_A_PAGE = 64;
  const MIN_SPAN_NS = 200;

  let pageScrolledAt = -Infinity;
  window.addEventListener("scroll", () => { pageScrolledAt = performance.now(); }, { passive: true });

  class Timeline extends TimelinePicture {
    constructor(host) {
      super();
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
      let width = this.host.clientWidth;
      this.sizes = new ResizeObserver(() => {
        if (width && this.host.clientWidth === width) return; // the observer also reports once at its start
        width = this.host.clientWidth;
        this.draw();
        if (width) this.loadSoon();
      });
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
        if (!answer.ok) this.fail(await this.reason(answer));
        else this.accept(await answer.json(), whole);
      } catch (error) {
        if (error.name === "AbortError") return;
        console.debug(error);
        this.fail(error instanceof SyntaxError ? "the server's answer is not JSON." : "the server does not answer.");
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

    /** The message of a refusal; the status of one that is not ours, such as a proxy's page. */
    async reason(answer) {
      try {
        return (await answer.json()).error.message;
      } catch (error) {
        if (error.name === "AbortError") throw error;
        return `the server answers with status ${answer.status}.`;
      }
    }

    fail(message) {
      this.host.dataset.state = "failed";
      this.status.className = "ss-timeline-error";
      const again = element("button", "ss-retry", "Try again");
      again.type = "button";
      again.addEventListener("click", () => {
        this.status.replaceChildren("Loading…");
        this.load(!this.overview);
      });
      this.status.replaceChildren(`The time line cannot be shown: ${message} `, again);
      if (!this.overview) this.canvas.height = 0; // else the last picture stays, only coarse
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
      const by = ((this.drag.x - event.clientX) / (this.host.clientWidth - this.labelWidth)) * (this.drag.end - this.drag.start);
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
  }

  // Pages come and go without a reload: mount on what appears, close what has gone.
  const mounted = new Map();
  function mount() {
    for (const [host, timeline] of mounted) if (!host.isConnected) { timeline.close(); mounted.delete(host); }
    for (const host of document.querySelectorAll("[data-timeline]")) if (!mounted.has(host)) mounted.set(host, new Timeline(host));
  }
  new MutationObserver(mount).observe(document.documentElement, { childList: true, subtree: true });
})();
