// How are runs found and ordered? By the search field and the buttons in the table's head; the URL holds both.
"use strict";
(() => {
  const table = () => document.getElementById("runs-table");
  const field = () => document.querySelector("input#runs-search");

  function remember(name, value) {
    const query = new URLSearchParams(location.search);
    if (value) query.set(name, value);
    else query.delete(name);
    const text = query.toString();
    history.replaceState(history.state, "", location.pathname + (text ? `?${text}` : ""));
  }

  function search(words) {
    const wanted = words.toLowerCase().split(/\s+/).filter(Boolean);
    const rows = [...table().tBodies[0].rows];
    for (const row of rows) row.hidden = !wanted.every((word) => row.textContent.toLowerCase().includes(word));
    const shown = rows.filter((row) => !row.hidden).length;
    const noun = rows.length === 1 ? "run" : "runs";
    document.getElementById("runs-count").textContent = wanted.length ? `${shown} of ${rows.length} ${noun}` : `${rows.length} ${noun}`;
    document.getElementById("runs-none").hidden = shown > 0;
  }

  function sort(column, direction) {
    const body = table().tBodies[0];
    const isNumber = column === 1 || table().tHead.rows[0].cells[column].classList.contains("ss-num");
    const value = (row) => (column === 0 ? row.cells[0].textContent : row.cells[column].dataset.value) || "";
    const compare = (a, b) => {
      const [first, second] = [value(a), value(b)];
      if (!first || !second) return (first ? 0 : 1) - (second ? 0 : 1); // unknown values stay last either way
      const order = isNumber ? Number(first) - Number(second) : first.localeCompare(second, undefined, { numeric: true });
      return direction === "descending" ? -order : order;
    };
    [...body.rows].sort(compare).forEach((row) => body.append(row));
    [...table().tHead.rows[0].cells].forEach((cell, place) => {
      if (place === column) cell.setAttribute("aria-sort", direction);
      else cell.removeAttribute("aria-sort");
    });
  }

  document.addEventListener("input", (event) => {
    if (event.target !== field() || !table()) return;
    search(event.target.value);
    remember("q", event.target.value);
  });

  document.addEventListener("click", (event) => {
    const button = event.target.closest("#runs-table .ss-sort");
    if (!button) return;
    const head = button.closest("th");
    const direction = head.getAttribute("aria-sort") === "descending" ? "ascending" : "descending";
    sort(head.cellIndex, direction);
    remember("sort", `${head.cellIndex}.${direction}`);
  });

  // The table appears after this script: apply the URL's search and order once to each new table.
  const prepared = new WeakSet();
  new MutationObserver(() => {
    if (!table() || !field() || prepared.has(table())) return;
    prepared.add(table());
    const query = new URLSearchParams(location.search);
    const order = /^([0-6])\.(ascending|descending)$/.exec(query.get("sort") || "");
    if (order) sort(Number(order[1]), order[2]);
    const words = query.get("q");
    if (!words) return;
    const set = Object.getOwnPropertyDescriptor(HTMLInputElement.prototype, "value").set;
    set.call(field(), words); // React keeps the value itself; it learns of a new one by the native setter and an event
    field().dispatchEvent(new Event("input", { bubbles: true }));
  }).observe(document.documentElement, { childList: true, subtree: true });
})();
