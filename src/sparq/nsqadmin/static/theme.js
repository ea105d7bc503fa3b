// Applies the user's theme before the first paint, so that pages do not flash, and handles the
// three buttons that select it. Without a selection the system's theme applies.
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
    return null; // the browser may forbid storage
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
    // without storage, the theme lasts as long as the page
  }
  show(button.dataset.choose);
  document.dispatchEvent(new Event("sparq:theme"));
});
