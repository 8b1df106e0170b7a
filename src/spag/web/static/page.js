// What HTML and htmx cannot say: Enter sends an utterance, the newest words stay in view, a server that is gone is named, the overview
// waits while it is read by keyboard or selected, and a phone shows the games before all the filters.
document.addEventListener("keydown", (event) => {
  if (event.target.id === "utterance" && event.key === "Enter" && !event.shiftKey && !event.isComposing) {
    event.preventDefault();
    event.target.form.requestSubmit();
  }
});

document.addEventListener("htmx:afterSettle", (event) => {
  if (event.target.closest("#match") || event.target.id === "reply") {
    const last = document.querySelector("#match .verdict, #match .notice, #match .speak, #reply");
    if (last) last.scrollIntoView({ block: "nearest" });
  }
});

const offline = document.getElementById("offline");
document.addEventListener("htmx:sendError", () => { offline.hidden = false; });
document.addEventListener("htmx:beforeSwap", (event) => {
  offline.hidden = true;
  if (event.target.id === "overview" && isInUse(event.target)) event.preventDefault();
});

// The new overview would come without the keyboard's focus and the selection; the next poll brings it.
function isInUse(overview) {
  const selection = document.getSelection();
  return overview.querySelector(":focus-visible") || (!selection.isCollapsed && selection.containsNode(overview, true));
}

const filters = document.querySelector("details.more");
if (filters && window.matchMedia("(max-width: 46rem)").matches) filters.open = false;
