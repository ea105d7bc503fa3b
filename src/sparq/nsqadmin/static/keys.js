// Keyboard shortcuts; `?` lists them, from the table in base.html.
const GO_MILLISECONDS = 1500;
const typed = "input, select, textarea, [contenteditable]";
let goUntil = 0;

function rows() {
  return [...document.querySelectorAll("main tbody tr")].filter((row) => row.querySelector("a[href]"));
}

function step(by) {
  const all = rows();
  if (!all.length) return;
  const here = all.findIndex((row) => row.contains(document.activeElement));
  const next = here < 0 ? (by > 0 ? 0 : all.length - 1) : Math.min(Math.max(here + by, 0), all.length - 1);
  const link = all[next].querySelector("a[href]");
  link.focus();
  link.scrollIntoView({ block: "nearest" });
}

function search() {
  const field = document.querySelector("main input[type=search]");
  if (field) field.focus();
  else document.querySelector("[data-search]")?.click();
}

const keys = {
  "/": search,
  j: () => step(1),
  k: () => step(-1),
  x: () => document.activeElement?.closest("tr")?.querySelector("input[type=checkbox]")?.click(),
  g: () => (goUntil = performance.now() + GO_MILLISECONDS),
  "?": () => document.querySelector("#keys").togglePopover(),
};

// On a phone the menu is one line, longer than the screen: scroll to the current entry. Not with
// scrollIntoView: since Chromium 150 the first Tab then goes to the link after that entry.
const entry = document.querySelector(".menu [aria-current]");
if (entry) {
  const line = entry.closest("ul");
  const at = entry.getBoundingClientRect();
  const around = line.getBoundingClientRect();
  line.scrollLeft += at.left + at.width / 2 - around.left - around.width / 2;
}

document.addEventListener("keydown", (event) => {
  if (event.ctrlKey || event.metaKey || event.altKey) return;
  if (event.target.matches?.(typed) && !event.target.matches("[type=checkbox], [type=radio]")) {
    if (event.key === "Escape") event.target.blur();
    return;
  }
  const isGoing = performance.now() < goUntil;
  goUntil = 0;
  if (isGoing) {
    const link = document.querySelector(`[data-key="${CSS.escape(event.key)}"]`);
    if (link) link.click();
  } else if (Object.hasOwn(keys, event.key)) {
    event.preventDefault();
    keys[event.key]();
  }
});
