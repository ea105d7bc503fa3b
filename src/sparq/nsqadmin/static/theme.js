// Before the first paint: the theme that the reader chose, so that no page flashes.
// Afterwards: the three buttons that choose it. Nothing chosen: what the system says.
const key = "sparq-theme";
const root = document.documentElement;

function show(theme) {
  if (theme === "light" || theme === "dark") root.dataset.theme = theme;
  else delete root.dataset.theme;
  for (const button of document.querySelectorAll("[data-choose]")) {
    button.setAttribute("aria-pressed", String(button.dataset.choose === (root.dataset.theme ?? "auto")));
  }
}

function chosen() {
  try {
    return localStorage.getItem(key);
  } catch {
    return null; // storage may be forbidden
  }
}

show(chosen());
document.addEventListener("DOMContentLoaded", () => show(chosen()));
window.addEventListener("storage", (event) => event.key === key && show(event.newValue));
document.addEventListener("click", (event) => {
  const button = event.target.closest?.("[data-choose]");
  if (!button) return;
  try {
    localStorage.setItem(key, button.dataset.choose);
  } catch {
    // it lasts as long as the page then
  }
  show(button.dataset.choose);
  document.dispatchEvent(new Event("sparq:theme"));
});
