// Which small things do the pages need from the browser? The title, and shared formatting.
"use strict";
window.stepscope = {
  /** 1234567 ns -> "1.23 ms": three significant digits, the unit that fits. */
  formatNs(ns) {
    const units = [["s", 1e9], ["ms", 1e6], ["µs", 1e3], ["ns", 1]];
    const size = Math.abs(ns);
    const [unit, factor] = units.find((entry) => size >= entry[1] * 0.9995) || units[3];
    const value = ns / factor;
    const digits = unit === "ns" || Math.abs(value) >= 99.95 ? 0 : Math.abs(value) >= 9.995 ? 1 : 2;
    return `${value.toFixed(digits)}\u202f${unit}`;
  },

  /** 0.314 -> "31.4%" */
  formatShare(share) {
    return share > 0 && share < 0.0005 ? "<0.1%" : `${(share * 100).toFixed(1)}%`;
  },

  /** An element with a class and a text; texts are never parsed as HTML. */
  element(tag, className, text) {
    const node = document.createElement(tag);
    if (className) node.className = className;
    if (text !== undefined) node.textContent = text;
    return node;
  },
};

window.dash_clientside = Object.assign({}, window.dash_clientside, {
  stepscope: {
    setTitle(title) {
      if (title) document.title = title;
      return window.dash_clientside.no_update;
    },

    /** What a live page asks for at each tick; nothing in a hidden tab. */
    askAgain() {
      if (document.hidden) return window.dash_clientside.no_update;
      return { path: location.pathname, query: location.search, time: Date.now() };
    },
  },
});

// A tick replaces what is in the slots of a live page: keyboard focus in there goes to what stands in the same place now.
(() => {
  const CAN_FOCUS = "a[href], button, summary, [tabindex='0']";
  let last = null;
  document.addEventListener("pointerdown", () => (last = null));
  document.addEventListener("focusin", (event) => {
    const slot = event.target.closest('[id^="{\\"live\\""]');
    last = slot && { id: slot.id, node: event.target, place: [...slot.querySelectorAll(CAN_FOCUS)].indexOf(event.target) };
  });
  new MutationObserver(() => {
    if (!last || last.node.isConnected || document.activeElement !== document.body) return;
    document.getElementById(last.id)?.querySelectorAll(CAN_FOCUS)[last.place]?.focus({ preventScroll: true });
  }).observe(document.documentElement, { childList: true, subtree: true });
})();
