// What the pages do beyond HTML: live updates, details beside the page, keys, and values under the mouse.
// Pages work without it; it never builds markup from data, it only moves what the server has rendered.

const $ = (selector, root = document) => root.querySelector(selector);
const $$ = (selector, root = document) => [...root.querySelectorAll(selector)];

// --- live updates: an event announces a change; the parts of the page that differ are exchanged --------------------

async function page(address) {
  const response = await fetch(address, { headers: { Accept: "text/html" } });
  return new DOMParser().parseFromString(await response.text(), "text/html");
}

function exchange(fresh) {
  const open = new Set($$("details[open]").map(nameOf));
  const ticked = new Set($$("main input:checked").map((box) => box.value));
  for (const old of $$("[data-part]")) {
    const next = fresh.getElementById(old.id);
    if (!next || old.isEqualNode(next)) continue;
    const focus = old.contains(document.activeElement) ? document.activeElement.getAttribute("href") : null;
    const scrolled = $$(".scroll", old).map((box) => [box.scrollLeft, box.scrollTop]);
    old.replaceWith(document.adoptNode(next));
    $$(".scroll", next).forEach((box, place) => scrolled[place] && box.scrollTo(...scrolled[place]));
    if (focus) $(`[href="${CSS.escape(focus)}"]`, next)?.focus({ preventScroll: true });
  }
  for (const details of $$("details")) if (open.has(nameOf(details))) details.open = true;
  for (const box of $$("main input[type=checkbox]")) box.checked = ticked.has(box.value);
  const main = $("main"), other = $("main", fresh);
  if (other.dataset.version) main.dataset.version = other.dataset.version;
  if (!other.dataset.live) delete main.dataset.live;
  select(chosen, false);
}

const nameOf = (details) => `${details.closest("[id]")?.id}:${$("summary", details)?.textContent}:${details.parentElement.textContent.slice(0, 30)}`;

function follow() {
  const main = $("main[data-live]"), sign = $("#live-state");
  if (!main) return;
  const source = new EventSource(`/live/${main.dataset.live}?seen=${encodeURIComponent(main.dataset.version || "")}`);
  let busy = false, again = false;
  const refresh = async () => {
    if (busy) { again = true; return; }
    busy = true;
    try {
      exchange(await page(location.href));
      if (!$("main[data-live]")) { source.close(); sign.textContent = "finished"; sign.className = ""; }
    } finally {
      busy = false;
      if (again) { again = false; setTimeout(refresh, 100); }
    }
  };
  source.addEventListener("changed", refresh);
  source.onopen = () => { sign.textContent = "live"; sign.className = "on"; };
  source.onerror = () => { sign.textContent = "not connected"; sign.className = "off"; };
  addEventListener("pagehide", () => source.close());
}

// --- approvals: the arguments as they stand in the form, or a rejection ------------------------------------------

async function decide(event) {
  const form = event.target.closest("form[data-approve]");
  if (!form) return;
  event.preventDefault();
  const sign = $("[role=status]", form), approved = event.submitter?.value !== "false";
  const body = { task: form.dataset.task, approved };
  try {
    if (approved) body.args = JSON.parse(form.elements.args.value);
  } catch (error) {
    sign.textContent = `The arguments are not JSON: ${error.message}`;
    return;
  }
  const response = await fetch(form.dataset.approve, {
    method: "POST", headers: { "Content-Type": "application/json" }, body: JSON.stringify(body),
  });
  sign.textContent = response.ok ? (approved ? "approved" : "rejected") : (await response.json()).error?.message ?? response.statusText;
  if (response.ok) exchange(await page(location.href));
}

document.addEventListener("submit", decide);

// --- details beside the page -------------------------------------------------------------------------------------

async function show(address) {
  const panel = $("#panel"), body = $("#panel-body");
  const detail = $("#detail", await page(address));
  if (!detail) { location.href = address; return; }
  body.replaceChildren(document.adoptNode(detail));
  panel.hidden = false;
  panel.scrollTop = 0;
  body.focus({ preventScroll: true });
}

function hide() {
  const panel = $("#panel");
  if (!panel || panel.hidden) return false;
  panel.hidden = true;
  $$(".lit").forEach((one) => one.classList.remove("lit"));
  return true;
}

function light(node) {
  $$(".lit").forEach((one) => one.classList.remove("lit"));
  if (node) $$(`[data-node="${CSS.escape(node)}"]`).forEach((one) => one.classList.add("lit"));
}

addEventListener("click", (event) => {
  const link = event.target.closest("a[data-panel]");
  if (link && !event.ctrlKey && !event.metaKey && !event.shiftKey && event.button === 0) {
    const address = link.getAttribute("href");
    if (address.startsWith("#")) return;
    event.preventDefault();
    light(link.dataset.node);
    show(address);
  } else if (event.target.closest("[data-close]")) {
    hide();
  } else if (event.target.closest("[data-keys]")) {
    $("#keys").showModal();
  } else if (event.target.closest("[data-copy]")) {
    const button = event.target.closest("[data-copy]");
    navigator.clipboard?.writeText($("code", button.parentElement).textContent);
    button.textContent = "Copied";
  } else if (event.target.closest("[data-post]")) {
    act(event.target.closest("[data-post]"));
  } else if (event.target.closest("[data-score]")) {
    score(event.target.closest("[data-score]"));
  } else {
    for (const open of $$("details.how[open]")) if (!open.contains(event.target)) open.open = false;
  }
});

// --- keys --------------------------------------------------------------------------------------------------------

let chosen = -1, going = false;

function select(place, scroll = true) {
  const rows = $$("[data-row]");
  rows.forEach((row) => row.removeAttribute("aria-selected"));
  if (place < 0 || !rows.length) return;
  chosen = Math.max(0, Math.min(rows.length - 1, place));
  rows[chosen].setAttribute("aria-selected", "true");
  if (scroll) rows[chosen].scrollIntoView({ block: "nearest" });
}

const KEYS = {
  j: () => select(chosen + 1),
  k: () => select(chosen - 1),
  "/": () => ($("main [data-search]") || $("[data-search]"))?.focus(),
  "?": () => $("#keys")?.showModal(),
  g: () => { going = true; setTimeout(() => (going = false), 1200); },
  Enter: () => { const row = $$("[data-row]")[chosen]; (row?.matches("a") ? row : row && $("a[href]", row))?.click(); },
};

addEventListener("keydown", (event) => {
  if (event.ctrlKey || event.metaKey || event.altKey) return;
  if (event.key === "Escape" && hide()) return;
  if (event.target.closest("input, select, textarea, dialog")) {
    if (event.key === "Escape") event.target.blur();
    return;
  }
  if (event.key === "Enter" && event.target.closest("a, button, summary")) return;
  if (going) {
    going = false;
    const link = $(`nav [data-key="${CSS.escape(event.key)}"]`);
    if (link) { location.href = link.href; return; }
  }
  const act = KEYS[event.key];
  if (act) { event.preventDefault(); act(); }
});

// --- forms: filters apply at once, and comparing needs the right number -----------------------------------------------

addEventListener("change", (event) => {
  const form = event.target.closest("form[data-filters]");
  if (form && event.target.matches("select")) form.requestSubmit();
  const picking = event.target.closest("form[data-pick]");
  if (picking) {
    const count = $$("input:checked", picking).length;
    $("[data-pick-button]", picking).disabled = count < 2 || count > Number(picking.dataset.pick);
  }
});

addEventListener("submit", (event) => {
  if (!event.target.matches("form[data-filters]")) return;
  for (const field of event.target.elements) if (field.name && !field.value) field.disabled = true; // keeps addresses short
});

// --- thumbs: a score of the trace, in the name of whoever sits here ------------------------------------------------------

async function score(button) {
  const form = button.closest("[data-score-at]"), status = $("[role=status]", form);
  const response = await fetch(form.dataset.scoreAt, {
    method: "POST", headers: { "Content-Type": "application/json" }, body: JSON.stringify({ value: Number(button.dataset.score) }),
  }).catch(() => null);
  if (response?.ok) exchange(await page(location.href));
  else status.textContent = response ? (await response.json()).error.message : "The server does not respond.";
}

// --- rollouts: pause, promote, roll back ---------------------------------------------------------------------------------

async function act(button) {
  const form = button.closest("[data-post-at]"), status = $("[role=status]", form);
  const response = await fetch(`${form.dataset.postAt}/${button.dataset.post}`, {
    method: "POST", headers: { "Content-Type": "application/json" }, body: JSON.stringify({ why: "from the dashboard" }),
  }).catch(() => null);
  if (response?.ok) exchange(await page(location.href));
  else status.textContent = response ? (await response.json()).error.message : "The server does not respond.";
}

// --- charts: the values under the mouse ------------------------------------------------------------------------------

addEventListener("pointermove", (event) => {
  const chart = event.target.closest?.("svg[data-curves]");
  for (const mark of $$(".cross, .reading")) mark.remove();
  if (!chart) return;
  const [left, right, width, low, high] = JSON.parse(chart.dataset.frame);
  const box = chart.getBoundingClientRect();
  const at = ((event.clientX - box.left) / box.width) * width;
  if (at < left || at > width - right) return;
  const target = low + ((at - left) / (width - left - right)) * (high - low);
  const nearest = JSON.parse(chart.dataset.curves).map((curve) => curve.reduce((a, b) => (Math.abs(b[0] - target) < Math.abs(a[0] - target) ? b : a)));
  const [axis] = JSON.parse(chart.dataset.axes);
  const x = left + ((nearest[0][0] - low) / (high - low || 1)) * (width - left - right);
  const height = chart.viewBox.baseVal.height;
  draw(chart, "line", { class: "cross", x1: x, x2: x, y1: 14, y2: height - 34 });
  const words = `${axis} ${nearest[0][0].toLocaleString()}: ${nearest.map((point) => Number(point[1].toPrecision(4)).toLocaleString(undefined, { maximumSignificantDigits: 4 })).join(" · ")}`;
  draw(chart, "text", { class: "reading", x: Math.min(x + 6, width - 8), y: 22, "text-anchor": x > width / 2 ? "end" : "start" }).textContent = words;
});

function draw(chart, kind, values) {
  const element = document.createElementNS("http://www.w3.org/2000/svg", kind);
  for (const [name, value] of Object.entries(values)) element.setAttribute(name, value);
  return chart.appendChild(element);
}

// --- relative times ----------------------------------------------------------------------------------------------------

function ago(seconds) {
  if (seconds < 1) return "now";
  for (const [below, step, unit] of [[60, 1, "s"], [3600, 60, "min"], [86400, 3600, "h"], [60 * 86400, 86400, "d"]]) {
    if (seconds < below) return `${Math.floor(seconds / step)} ${unit} ago`;
  }
  return null;
}

function tick() {
  for (const moment of $$("time[datetime]")) {
    const then = new Date(moment.dateTime), words = ago((Date.now() - then) / 1000);
    if (words && moment.textContent !== words) moment.textContent = words;
    moment.title = `${then.toLocaleString()} (${moment.dateTime})`;
  }
}

setInterval(tick, 5000);
tick();
follow();
