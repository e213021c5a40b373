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
  },
});
