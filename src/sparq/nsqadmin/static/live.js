// Shared code of all live parts: one stream per visible tab, and an indicator of its state.
// htmx opens the streams (hx-sse:connect); a hidden tab has none.
const root = document.documentElement;
const isStream = (element) => element?.hasAttribute?.("hx-sse:connect");

function tell(state) {
  root.dataset.live = state;
}

// A tab opened in the background starts its stream when it becomes visible.
document.addEventListener("htmx:before:request", (event) => {
  if (isStream(event.target) && document.hidden) event.preventDefault();
});
document.addEventListener("visibilitychange", () => {
  if (!document.hidden) document.dispatchEvent(new Event("sparq:visible"));
});

document.addEventListener("htmx:sse:after:connection", () => tell("on"));
document.addEventListener("htmx:sse:error", () => tell("lost"));
document.addEventListener("htmx:sse:close", (event) => {
  // A list with a new filter opens its own stream, which is no loss of connection.
  if (event.detail.reason === "ended") tell("lost");
});

// A dialog closes when its request is answered; the answer is in #result and is read out.
document.addEventListener("htmx:finally:request", (event) => {
  const form = event.target.closest?.("form");
  if (form?.getAttribute("hx-target") !== "#result") return;
  for (const open of document.querySelectorAll("[popover]:popover-open")) open.hidePopover();
  document.querySelector("#result").scrollIntoView({ block: "nearest" });
});

// "Do nothing": a question in #result disappears.
document.addEventListener("click", (event) => {
  const id = event.target.closest?.("button[data-clear]")?.dataset.clear;
  if (id) document.getElementById(id).replaceChildren();
});

// A checkbox that checks or unchecks all checkboxes of its list.
document.addEventListener("change", (event) => {
  const all = event.target.closest?.("input[data-all]");
  if (!all) return;
  for (const box of document.querySelectorAll(`input[name="${CSS.escape(all.dataset.all)}"]`)) {
    box.checked = all.checked;
  }
});
