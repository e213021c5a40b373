// How are the rows of a table found and ordered? By the search field and the buttons in its head; the URL holds both.
"use strict";
(() => {
  const table = () => document.querySelector("table.ss-sortable");
  const part = (name) => document.getElementById(`${table().id.replace(/-table$/, "")}-${name}`);
  const count = () => document.querySelector(".ss-listing-count");
  const isField = (node) => table() && node instanceof HTMLInputElement && node === part("search");

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
    const noun = rows.length === 1 ? table().dataset.noun : table().dataset.nouns;
    if (wanted.length) count().textContent = `${shown} of ${rows.length} ${noun}`;
    else if (/ of /.test(count().textContent)) count().textContent = `${rows.length} ${noun}`;
    part("none").hidden = shown > 0;
  }

  function sort(column, direction) {
    const body = table().tBodies[0];
    const heads = [...table().tHead.rows[0].cells];
    if (!heads[column]) return;
    const isNumber = heads[column].dataset.sort === "number";
    const value = (row) => (column === 0 ? row.cells[0].textContent : row.cells[column].dataset.value) || "";
    const compare = (a, b) => {
      const [first, second] = [value(a), value(b)];
      if (!first || !second) return (first ? 0 : 1) - (second ? 0 : 1); // unknown values stay last either way
      const order = isNumber ? Number(first) - Number(second) : first.localeCompare(second, undefined, { numeric: true });
      return direction === "descending" ? -order : order;
    };
    const rows = [...body.rows];
    const sorted = [...rows].sort(compare);
    if (sorted.some((row, place) => row !== rows[place])) body.append(...sorted);
    heads.forEach((cell, place) => {
      if (place === column) cell.setAttribute("aria-sort", direction);
      else cell.removeAttribute("aria-sort");
    });
  }

  document.addEventListener("input", (event) => {
    if (!isField(event.target)) return;
    search(event.target.value);
    remember("q", event.target.value);
  });

  document.addEventListener("click", (event) => {
    const button = event.target.closest("table.ss-sortable .ss-sort");
    if (!button) return;
    const head = button.closest("th");
    const direction = head.getAttribute("aria-sort") === "descending" ? "ascending" : "descending";
    sort(head.cellIndex, direction);
    remember("sort", `${head.cellIndex}.${direction}`);
  });

  // The table appears after this script: apply the URL's search and order once to each new table.
  function prepare() {
    const query = new URLSearchParams(location.search);
    const order = /^(\d)\.(ascending|descending)$/.exec(query.get("sort") || "");
    if (order) sort(Number(order[1]), order[2]);
    const words = query.get("q");
    if (!words) return;
    const set = Object.getOwnPropertyDescriptor(HTMLInputElement.prototype, "value").set;
    set.call(part("search"), words); // React keeps the value itself; it learns of a new one by the native setter and an event
    part("search").dispatchEvent(new Event("input", { bubbles: true }));
  }

  // A live table gets new rows: its order and search stay as they are.
  function again() {
    const head = table().querySelector("th[aria-sort]");
    if (head) sort(head.cellIndex, head.getAttribute("aria-sort"));
    if (part("search").value) search(part("search").value);
  }

  const prepared = new WeakSet();
  let rows = null;
  new MutationObserver((changes) => {
    if (!table() || !part("search") || !count()) return;
    if (!prepared.has(table())) {
      prepared.add(table());
      rows = null;
      prepare();
    }
    const text = table().tBodies[0].textContent;
    if (rows !== null && rows !== text && changes.length) again();
    rows = table().tBodies[0].textContent;
  }).observe(document.documentElement, { childList: true, characterData: true, subtree: true });
})();
