"use strict";
(() => {
  const form = document.getElementById("filter");
  const shown = document.getElementById("shown");
  const fields = { q: form.elements.q, hw: form.elements.hw, show: form.elements.show };
  const rows = [...document.querySelectorAll("[data-row]")];
  const texts = new Map(rows.map((row) => [row, `${row.textContent} ${row.dataset.tests ?? ""}`.toLowerCase()]));
  let at = "";

  // -- the filter: its state is the page's address after the #, so that it can be sent to somebody --

  // A row of the verdicts has a cell for each hardware; other rows are about one.
  const parts = (row) => (row.dataset.hw === undefined ? [...row.querySelectorAll("[data-hw]")] : [row]);
  const fits = (part, hw, show) =>
    (!hw || part.dataset.hw.split(" ").includes(hw)) &&
    (!show || part.dataset.is === undefined || part.dataset.is.split(" ").includes(show));

  function apply() {
    const { q, hw, show } = state();
    const wanted = q.toLowerCase().split(/\s+/).filter(Boolean);
    let count = 0;
    for (const row of rows) {
      row.hidden = !(
        wanted.every((word) => texts.get(row).includes(word)) && parts(row).some((part) => fits(part, hw, show))
      );
      count += !row.hidden;
    }
    for (const cell of document.querySelectorAll("[data-col]")) cell.hidden = Boolean(hw) && cell.dataset.col !== hw;
    for (const part of document.querySelectorAll("[data-only]")) part.hidden = !fits(part, hw, "");
    for (const note of document.querySelectorAll(".emptied")) {
      const table = note.previousElementSibling?.matches(".scroller") ? note.previousElementSibling : null;
      const some = [...(table ?? note.parentElement).querySelectorAll("[data-row]")];
      note.hidden = !some.length || some.some((row) => !row.hidden);
      if (table) table.hidden = !note.hidden;
    }
    shown.textContent = count === rows.length ? `${count} rows` : `${count} of ${rows.length} rows shown`;
  }

  function state() {
    return Object.fromEntries(Object.entries(fields).map(([name, field]) => [name, field.value.trim()]));
  }

  function address() {
    const entries = Object.entries({ ...state(), at }).filter(([, value]) => value);
    return entries.length === 1 && at ? `#${at}` : `#${new URLSearchParams(entries)}`;
  }

  function read() {
    const hash = decodeURI(location.hash.slice(1));
    const wanted = hash.includes("=") ? new URLSearchParams(hash) : new URLSearchParams({ at: hash });
    for (const [name, field] of Object.entries(fields)) {
      field.value = wanted.get(name) ?? "";
      if (field.selectedIndex === -1) field.value = ""; // what another night's page has
    }
    at = wanted.get("at") ?? "";
    apply();
    if (at) go(at);
  }

  function go(id) {
    const target = document.getElementById(id);
    if (!target) return;
    if (target.hidden) clear(); // better than a link that leads nowhere
    if (target.matches("details")) target.open = true;
    target.scrollIntoView();
    (target.querySelector("summary") ?? target).focus({ preventScroll: true });
  }

  function clear() {
    for (const field of Object.values(fields)) field.value = "";
    apply();
  }

  form.addEventListener("input", () => {
    at = "";
    apply();
    history.replaceState(null, "", address());
  });
  form.addEventListener("submit", (event) => event.preventDefault());
  form.addEventListener("reset", (event) => {
    event.preventDefault();
    clear();
    history.replaceState(null, "", address());
  });
  document.addEventListener("click", (event) => {
    const link = event.target.closest('a[href^="#"]');
    if (!link || event.ctrlKey || event.metaKey || event.shiftKey) return;
    event.preventDefault();
    at = link.hash.slice(1);
    go(at);
    history.pushState(null, "", address());
  });
  window.addEventListener("popstate", read);
  for (const one of document.querySelectorAll("[data-with-script]")) one.hidden = false;

  // -- copying: from a file:// page there may be no clipboard but the old way --

  function copyOldWay(code) {
    getSelection().selectAllChildren(code);
    return document.execCommand("copy");
  }
  for (const button of document.querySelectorAll(".copy")) {
    button.addEventListener("click", async () => {
      const code = button.previousElementSibling;
      const copied = await (navigator.clipboard?.writeText(code.textContent) ?? Promise.reject()).then(
        () => true,
        () => copyOldWay(code),
      );
      button.textContent = copied ? "Copied" : "Selected";
      shown.textContent = copied ? "Copied to the clipboard" : "Selected: copy it with the keyboard";
      setTimeout(() => (button.textContent = "Copy"), 2000);
    });
  }

  read();
})();
