// Puts the page together.

function theme() {
  const chosen = document.documentElement.dataset.theme;
  return chosen ?? (matchMedia("(prefers-color-scheme: dark)").matches ? "dark" : "light");
}

function startTheme() {
  try {
    const kept = localStorage.getItem("coterie-theme");
    if (kept === "dark" || kept === "light") document.documentElement.dataset.theme = kept;
  } catch { /* a page opened from the disk may not be allowed to remember */ }
  $("#theme").addEventListener("click", () => {
    const next = theme() === "dark" ? "light" : "dark";
    document.documentElement.dataset.theme = next;
    try { localStorage.setItem("coterie-theme", next); } catch { /* as above */ }
    drawCharts();
  });
  matchMedia("(prefers-color-scheme: dark)").addEventListener("change", drawCharts);
}

const FACTS = [
  ["perplexity", "perplexity"], ["cluster_perplexity", "of the cluster"], ["in_cluster_perplexity", "inside the cluster"],
  ["words", "words"], ["clusters", "clusters"], ["alone", "words that stand alone"], ["updates", "updates"], ["minutes", "minutes of training"], ["words_per_second", "words a second"],
];

function fact(run, key) {
  if (key === "minutes") return run.facts.seconds === undefined ? undefined : run.facts.seconds / 60;
  return run.facts[key];
}

function startHeadline() {
  const held = FACTS.filter(([key]) => summary.runs.some((run) => fact(run, key) !== undefined));
  if (summary.runs.length > 1) {
    const rows = summary.runs.map((run) => [cut(run.name), cut(run.head), ...held.map(([key]) => number(fact(run, key)))]);
    $("#headline").append(tableEl("Perplexities are the best on the development text", ["run", "head", ...held.map(([, label]) => label)], rows));
    return;
  }
  const [run] = summary.runs;
  const state = run.facts.finished === false ? ", not finished" : "";
  $("#headline").append(
    el("p", { class: "lead" }, wordEl(run.name), `, the head ${cut(run.head)}${state}; perplexities are the best on the development text.`),
    el("dl", { class: "facts-list" }, held.map(([key, label]) => el("div", { class: `fact ${key}` }, el("dt", {}, label), el("dd", {}, number(fact(run, key)))))));
}

function flat(given, before = "") {
  return Object.entries(given).flatMap(([key, value]) =>
    value !== null && typeof value === "object" && !Array.isArray(value) ? flat(value, `${before}${key}.`) : [[before + key, value]]);
}

function startSettings() {
  for (const run of summary.runs) {
    const rows = flat({ ...run.settings }).concat(flat(run.environment)).map(([key, value]) =>
      [key.replaceAll("_", " "), el("span", { class: "setting" }, value === null ? "–" : typeof value === "string" ? value : JSON.stringify(value))]);
    $("#settings").append(el("details", { open: summary.runs.length === 1 }, el("summary", {}, cut(run.name)), tableEl("Settings and machine", ["", ""], rows)));
  }
}

function startNavigation() {
  const shown = Array.from(document.querySelectorAll("main > section")).filter((section) => !section.hidden);
  $("nav").replaceChildren(...shown.map((section) => el("button", { type: "button", onclick: () => section.scrollIntoView({ behavior: "smooth" }) }, section.querySelector("h2").textContent)));
}

async function start() {
  startTheme();
  startHeadline();
  startSettings();
  if (explorable.length) {
    $("#explorer").hidden = false;
    $("#which").hidden = explorable.length === 1;
    const select = $("#which select");
    select.append(...explorable.map((run) => el("option", { value: run }, cut(summary.runs[run].name))));
    select.addEventListener("change", () => { location.hash = new URLSearchParams({ run: select.value }); });
    const asked = Number(new URLSearchParams(location.hash.slice(1)).get("run") ?? explorable[0]);
    await openExplorer(explorable.includes(asked) ? asked : explorable[0]);
    performance.mark("explorer");
    startSearch();
    $("#measure").addEventListener("change", (event) => { map.measure = event.target.value; map.place(); });
    addEventListener("hashchange", follow);
  }
  if (summary.live === "language model") startLive();
  if (summary.live === "summarizer") startBeam();
  startNavigation();
  // The charts come last: the words are there while they are drawn.
  requestAnimationFrame(() => setTimeout(() => drawCharts().then(() => { document.documentElement.dataset.ready = "yes"; movesReady.then(startNavigation); })));
}

start();
