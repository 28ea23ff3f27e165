// The explorer: search, the map, and beside it the cluster or the word that was chosen.

const FIRST = 48; // words of a cluster before one asks for all
const EVENTS = 6; // reorganizations of a cluster before one asks for all

const explorable = summary.runs.map((_, run) => run).filter((run) => document.getElementById(`explorer-${run}`));
let model = null, moves = null, map = null;
let movesReady = Promise.resolve();

async function openExplorer(run) {
  const held = await unpack(`explorer-${run}`);
  map?.remove();
  model = new Model(run, held);
  moves = null;
  map = new ClusterMap($("#map"), model, (number) => go({ cluster: number }));
  $("#map").dataset.run = $("#which select").value = run;
  $("#random").hidden = !model.random;
  map.measure = $("#measure :checked").value;
  map.place();
  movesReady = unpack(`history-${run}`).then((history) => {
    moves = history && new Moves(history, model.words.length);
    fillRestless();
  });
  follow();
}

// -- where one is: kept in the address, so that a view can be linked to and left again ---------------------------

function go(what) {
  const wanted = new URLSearchParams();
  if (model.run !== explorable[0]) wanted.set("run", model.run);
  for (const [name, value] of Object.entries(what)) wanted.set(name, value);
  if (location.hash === `#${wanted}`) follow();
  else location.hash = wanted;
}

function follow() {
  const asked = new URLSearchParams(location.hash.slice(1));
  if (!model) return;
  const run = Number(asked.get("run") ?? explorable[0]);
  if (run !== model.run && explorable.includes(run)) return openExplorer(run);
  const word = asked.has("word") ? Number(asked.get("word")) : -1;
  const number = asked.has("cluster") ? Number(asked.get("cluster")) : -1;
  if (word in model.words) showWord(word);
  else if (model.at.has(number)) showCluster(number);
  else if (asked.has("alone") && model.own.members.length) showAlone();
  else showNothing();
}

function showNothing() {
  map.choose(null);
  const largest = model.clusters.slice().sort((a, b) => b.members.length - a.members.length).slice(0, 1);
  const own = model.own.members.length;
  $("#detail").replaceChildren(
    el("p", { class: "kind" }, `${plural(model.words.length - own, "word")} in ${plural(model.clusters.length, "cluster")}`),
    own ? el("p", {}, aloneLink(`${plural(own, "frequent word")} that ${own === 1 ? "stands" : "stand"} alone`)) : "",
    el("p", {}, "Choose a cluster on the map, or find a word."),
    el("h4", {}, "For example"),
    el("div", { class: "chips" }, largest.flatMap((cluster) => cluster.typical).map((word) => chip(word))));
}

// -- pieces ------------------------------------------------------------------------------------------------------

function chip(word) {
  return el("button", { type: "button", class: "chip", onclick: () => go({ word }) }, wordEl(model.words[word], 40));
}

function swatch(number) {
  const found = el("span", { class: "swatch", "aria-hidden": "true" });
  const cluster = model.cluster(number);
  found.style.setProperty("--hue", cluster ? cluster.hue : 0);
  found.style.setProperty("--strength", cluster ? cluster.strength : 0);
  return found;
}

function aloneLink(label) {
  return el("button", { type: "button", class: "cluster", onclick: () => go({ alone: 1 }) }, swatch(model.alone), el("span", {}, label));
}

function clusterLink(number) {
  const label = wordsEl(model.label(number));
  if (number === model.alone) return aloneLink("It stands alone");
  if (!model.at.has(number)) return el("span", { class: "cluster" }, swatch(number), label);
  return el("button", { type: "button", class: "cluster", onclick: () => go({ cluster: number }) }, swatch(number), el("span", {}, label));
}

// The first few of many, and a button for the rest.
function some(items, most, make, wrap) {
  const list = wrap();
  list.append(...items.slice(0, most).map(make));
  if (items.length <= most) return [list];
  const all = el("button", { type: "button", class: "more" }, `show all ${whole.format(items.length)}`);
  all.addEventListener("click", () => {
    list.append(...items.slice(most).map(make));
    all.remove();
  });
  return [list, all];
}

const chips = () => el("div", { class: "chips" });

function show(...content) {
  const detail = $("#detail");
  detail.replaceChildren(el("button", { type: "button", class: "close", "aria-label": "Close", onclick: () => go({}) }, "×"), ...content.flat());
  detail.scrollTop = 0;
  if (window.innerWidth < 1000) detail.scrollIntoView({ block: "nearest", behavior: "smooth" });
}

// -- a cluster ---------------------------------------------------------------------------------------------------

function showCluster(number) {
  const cluster = model.cluster(number);
  map.choose(number);
  say(`cluster ${model.called(number)}, ${plural(cluster.members.length, "word")}`);
  const past = el("div", { class: "past" });
  show(
    el("p", { class: "kind" }, swatch(number), `cluster ${number}`),
    el("h3", {}, wordsEl(model.label(number))),
    el("p", { class: "facts" }, `${plural(cluster.members.length, "word")}, ${percent(cluster.mass / model.total)} of the text`),
    el("h4", {}, "Its words, frequent ones first"),
    some(model.frequent(cluster), FIRST, chip, chips),
    past,
  );
  movesReady.then(() => past.replaceChildren(...clusterPast(number)));
}

function showAlone() {
  const { members, mass } = model.own;
  map.choose(null);
  say(`${plural(members.length, "word")} that stand alone`);
  show(
    el("p", { class: "kind" }, "no cluster"),
    el("h3", {}, "Words that stand alone"),
    el("p", { class: "facts" }, `${plural(members.length, "word")}, ${percent(mass / model.total)} of the text`),
    el("p", {}, "They are so frequent that the model predicts each beside the clusters. They never move."),
    el("h4", {}, "Frequent ones first"),
    some(model.frequent(model.own), FIRST, chip, chips),
  );
}

function clusterPast(number) {
  if (!moves) return [];
  const events = moves.ofCluster(number);
  const title = el("h4", {}, "Who came and who left");
  if (!events.length) return [title, el("p", {}, "Nobody moved in or out, from the first update on.")];
  const most = Math.max(...events.map((event) => Math.max(event.came.length, event.left.length)));
  const bars = el("div", { class: "bars", "aria-hidden": "true" });
  const byStep = new Map(events.map((event) => [event.step, event]));
  for (const step of moves.steps.slice(1)) {
    const event = byStep.get(step) ?? { came: [], left: [] };
    const bar = el("span", { title: `update ${whole.format(step)}: ${event.came.length} came, ${event.left.length} left` }, el("i"), el("i"));
    bar.children[0].style.height = `${50 * event.came.length / most}%`;
    bar.children[1].style.height = `${50 * event.left.length / most}%`;
    bars.append(bar);
  }
  const frequent = (words) => words.slice().sort((a, b) => model.rank[a] - model.rank[b]);
  const one = (event) => el("li", {},
    el("p", { class: "when" }, `update ${whole.format(event.step)}`),
    ["came", "left"].filter((way) => event[way].length).map((way) => el("div", { class: way },
      el("span", { class: "way" }, `${whole.format(event[way].length)} ${way}`), some(frequent(event[way]), 8, chip, chips))));
  return [title, bars, el("p", { class: "facts" }, "each bar a reorganization: up, words that came; down, words that left"), ...some(events, EVENTS, one, () => el("ol", { class: "events" }))];
}

// -- a word ------------------------------------------------------------------------------------------------------

function showWord(word) {
  const own = model.clusterOf[word], alone = own === model.alone;
  map.choose(own);
  say(`${cut(model.words[word])}, ${alone ? "which stands alone" : `in the cluster ${model.called(own)}`}`);
  const near = alone ? [] : model.nearest(word), others = model.runnersUp(word);
  const past = el("div", { class: "past" });
  show(
    el("p", { class: "kind" }, "word"),
    el("h3", { class: "long" }, wordEl(model.words[word], 2000)),
    el("p", { class: "facts" }, `occurs ${plural(model.counts[word], "time")}, number ${whole.format(model.rank[word])} by frequency`),
    el("h4", {}, "Its cluster"), clusterLink(own),
    near.length ? [el("h4", {}, "Nearest to it there"), el("div", { class: "chips" }, near.map(chip))] : [],
    others.length ? [el("h4", {}, "Clusters that would suit it next best"), el("ul", { class: "plain" }, others.map((number) => el("li", {}, clusterLink(number))))] : [],
    past,
  );
  movesReady.then(() => {
    if (!moves) return;
    const way = moves.ofWord(word);
    const step = (at) => el("li", {}, el("span", { class: "when" }, at.step ? `update ${whole.format(at.step)}` : "at the start"), clusterLink(at.cluster));
    const title = way.length === 1 ? "It never moved" : `Its way: ${plural(way.length - 1, "move")}`;
    past.replaceChildren(el("h4", {}, title), ...some(way, 8, step, () => el("ol", { class: "way-of" })));
  });
}

// -- search ------------------------------------------------------------------------------------------------------

function startSearch() {
  const input = $("#search"), list = $("#found");
  let found = [], active = -1;
  const close = () => {
    list.hidden = true;
    input.setAttribute("aria-expanded", "false");
    input.removeAttribute("aria-activedescendant");
  };
  const mark = (next) => {
    active = next;
    Array.from(list.children).forEach((option, n) => option.setAttribute("aria-selected", n === active));
    if (active >= 0) input.setAttribute("aria-activedescendant", `found-${active}`);
  };
  const pick = (n) => {
    if (!(n in found)) return;
    input.value = cut(model.words[found[n]], 200);
    close();
    go({ word: found[n] });
  };
  input.addEventListener("input", () => {
    found = model.search(input.value);
    list.replaceChildren(...found.map((word, n) => el("li", { id: `found-${n}`, role: "option", onpointerdown: (event) => { event.preventDefault(); pick(n); } },
      wordEl(model.words[word], 32), el("span", { class: "in" }, swatch(model.clusterOf[word]), wordsEl(model.label(model.clusterOf[word], 2), 16)))));
    if (!found.length && input.value.trim()) list.append(el("li", { class: "none" }, "no word contains this"));
    list.hidden = !list.children.length;
    input.setAttribute("aria-expanded", String(!list.hidden));
    mark(found.length ? 0 : -1);
    if (input.value.trim()) say(`${plural(found.length, "word")} found`);
  });
  input.addEventListener("keydown", (event) => {
    if (event.key === "ArrowDown" || event.key === "ArrowUp") {
      event.preventDefault();
      if (found.length) mark((active + (event.key === "ArrowDown" ? 1 : found.length - 1)) % found.length);
    } else if (event.key === "Enter") pick(active);
    else if (event.key === "Escape") close();
  });
  input.addEventListener("blur", close);
}

// -- settled and restless ----------------------------------------------------------------------------------------

function fillRestless() {
  $("#restless").hidden = !moves;
  if (!moves) return;
  const every = moves.every > 1 ? ` (each stands for ${moves.every.toFixed(1)} on average)` : "";
  $("#restless-lead").textContent = `In ${plural(moves.steps.length - 1, "reorganization")}${every} every word ${model.own.members.length ? "in a cluster " : ""}could move. Of words with the same record, frequent ones come first.`;
  const movable = model.byCount.filter((word) => model.clusterOf[word] !== model.alone);
  const restless = movable.slice().sort((a, b) => moves.moved[b] - moves.moved[a]).slice(0, 20);
  const settled = movable.slice().sort((a, b) => moves.last[a] - moves.last[b]).slice(0, 20);
  const rowOf = (word, told) => [chip(word), told, clusterLink(model.clusterOf[word])];
  $("#tables").replaceChildren(
    tableEl("The most settled", ["word", "there since update", "cluster"], Array.from(settled, (word) => rowOf(word, moves.last[word] ? whole.format(moves.steps[moves.last[word]]) : "the start"))),
    tableEl("The most restless", ["word", "moves", "cluster"], Array.from(restless, (word) => rowOf(word, whole.format(moves.moved[word])))),
  );
}
