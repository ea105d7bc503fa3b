// What the live parts of all pages share: one stream per visible tab, and a sign of its state.
// The streams themselves are htmx's (hx-sse:connect); a tab that is hidden has none.
const root = document.documentElement;
const isStream = (element) => element?.hasAttribute?.("hx-sse:connect");

function tell(state) {
  root.dataset.live = state;
}

// A tab that was opened in the background waits until somebody looks at it.
document.addEventListener("htmx:before:request", (event) => {
  if (isStream(event.target) && document.hidden) event.preventDefault();
});
document.addEventListener("visibilitychange", () => {
  if (!document.hidden) document.dispatchEvent(new Event("sparq:visible"));
});

document.addEventListener("htmx:sse:after:connection", () => tell("on"));
document.addEventListener("htmx:sse:error", () => tell("lost"));
document.addEventListener("htmx:sse:close", (event) => {
  // A list that was filtered anew brings its own stream.
  if (event.detail.reason === "ended") tell("lost");
});

// What asked closes once it has its answer, which stands in #result and is read out.
document.addEventListener("htmx:finally:request", (event) => {
  const form = event.target.closest?.("form");
  if (form?.getAttribute("hx-target") !== "#result") return;
  for (const open of document.querySelectorAll("[popover]:popover-open")) open.hidePopover();
  document.querySelector("#result").scrollIntoView({ block: "nearest" });
});

// A box that stands for all the boxes of its list.
document.addEventListener("change", (event) => {
  const all = event.target.closest?.("input[data-all]");
  if (!all) return;
  for (const box of document.querySelectorAll(`input[name="${CSS.escape(all.dataset.all)}"]`)) {
    box.checked = all.checked;
  }
});
