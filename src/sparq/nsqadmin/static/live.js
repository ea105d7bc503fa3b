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

// Adds the local time to each <time>, unless its zone is UTC now; the style sheet shows it. The
// attribute survives a live update (`morphIgnore`), so it is set again when `datetime` changes.
// charts.js uses it too; an import would load this file again, as its address has a hash there.
window.localTime = (at) => {
  const minutes = -at.getTimezoneOffset();
  if (!minutes) return "";
  const [date, clock] = new Date(at.getTime() + minutes * 60000).toISOString().split(/[T.]/);
  const [hours, rest] = [Math.floor(Math.abs(minutes) / 60), Math.abs(minutes) % 60];
  const zone = `UTC${minutes < 0 ? "\u2212" : "+"}${hours}${rest ? `:${String(rest).padStart(2, "0")}` : ""}`;
  return `${date === at.toISOString().slice(0, 10) ? "" : `${date} `}${clock} ${zone}`;
};

function addLocalTimes() {
  for (const time of document.querySelectorAll("time[datetime]:not(.ago)")) {
    time.dataset.local = localTime(new Date(time.dateTime));
  }
}

new MutationObserver(addLocalTimes).observe(document.body, { subtree: true, childList: true, attributes: true, attributeFilter: ["datetime"] });
addLocalTimes();
document.addEventListener("pointerover", (event) => {
  const time = event.target.closest?.("time.ago");
  const text = time && localTime(new Date(time.dateTime));
  if (text) time.title = `${time.dateTime.slice(0, 19).replace("T", " ")} UTC, ${text}`;
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
