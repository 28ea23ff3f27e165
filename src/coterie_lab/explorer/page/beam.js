// The live page of a summarizer: the titles of a sentence, and the beam that found them, step by step.

const NAMED = 3; // words of the sentence that are named as looked at
let turn = 0; // which question was the last
let written = null, title = 0, step = 0; // the answer to it, and what is shown of it

function startBeam() {
  $("#summarize").hidden = false;
  $("#asking").addEventListener("submit", (event) => { event.preventDefault(); findTitles(); });
  $("#sentence").addEventListener("keydown", (event) => {
    if (event.key !== "Enter" || event.shiftKey || event.isComposing) return;
    event.preventDefault();
    $("#asking").requestSubmit();
  });
}

async function findTitles() {
  const mine = ++turn, shown = $("#beam");
  shown.setAttribute("aria-busy", "true");
  say("looking for titles");
  try {
    const told = await ask("api/summarize", { text: $("#sentence").value, beam: $("#width").valueAsNumber });
    if (mine !== turn) return; // a later question is on its way
    written = told;
    choose(0, 0);
    say(`${plural(told.titles.length, "title")}; the best: ${cut(told.titles[0].text, 200) || "an empty one"}`);
  } catch (error) {
    if (mine === turn) shown.replaceChildren(el("p", { class: "fault", role: "alert" }, error.message));
  } finally {
    if (mine === turn) {
      shown.hidden = false;
      shown.removeAttribute("aria-busy");
    }
  }
}

// Shows a step of a title. What had the focus has it again, made anew.
function choose(newTitle, newStep) {
  const held = ["titles", "steps"].find((name) => $("#beam").querySelector(`.${name}`)?.contains(document.activeElement));
  title = newTitle;
  step = Math.max(0, Math.min(newStep, written.titles[title].path.length - 1));
  $("#beam").replaceChildren(titlesEl(), el("div", { class: "follow" }, stepsEl(), sentenceEl(), keptEl()));
  if (held) $(`#beam .${held} [aria-pressed="true"]`).focus();
}

function titlesEl() {
  const most = Math.exp(written.titles[0].log_prob);
  const bars = written.titles.map((one, n) => bar(Math.exp(one.log_prob), most, titleEl(one), one.log_prob.toFixed(2), () => choose(n, step), n === title));
  const made = list("Its titles, best first", "log P of each; the bar is P beside the best", bars);
  made.classList.add("titles");
  return made;
}

function titleEl(one) {
  return [wordEl(one.text || "(no word)", 300), one.ended ? null : el("span", { title: "no room for more words" }, " …")];
}

// The hypotheses of the chosen title, a step each.
function followed() {
  return written.titles[title].path.map((place, n) => written.steps[n][place]);
}

function named(one) {
  return one.ends ? el("i", { class: "end" }, "end") : wordEl(one.word, 32);
}

// The chosen title as a row of its words; the arrow keys move along it.
function stepsEl() {
  const words = followed().map((one, n) =>
    el("button", { type: "button", class: "step", "aria-pressed": String(n === step), tabindex: n === step ? "0" : "-1", onclick: () => choose(title, n) },
      named(one), el("span", { class: "value" }, percent(one.p))));
  const keys = { ArrowRight: () => step + 1, ArrowLeft: () => step - 1, Home: () => 0, End: () => words.length - 1 };
  const moved = (event) => {
    if (!(event.key in keys)) return;
    event.preventDefault();
    choose(title, keys[event.key]());
    say($("#beam .looked").textContent);
  };
  return el("div", {}, el("h4", {}, "Word by word: choose one"),
    el("div", { class: "steps", role: "group", "aria-label": "Words of the title; the arrow keys move along them", onkeydown: moved }, words));
}

// The sentence as it was read, each word as dark as it was looked at, and the same in words.
function sentenceEl() {
  const { looked } = followed()[step], most = Math.max(...looked);
  const words = written.read.flatMap((one, n) => {
    const made = el("span", { class: one.known ? "seen" : "seen unknown", title: `${percent(looked[n])}${one.known ? "" : ", not in the vocabulary"}` }, wordEl(one.word));
    made.style.setProperty("--share", looked[n] / most);
    return [made, " "];
  });
  const first = looked.map((share, n) => [share, n]).sort((a, b) => b[0] - a[0]).slice(0, NAMED);
  const told = first.flatMap(([share, n], at) => [at ? ", " : "", wordEl(written.read[n].word, 32), ` (${percent(share)})`]);
  return el("div", {}, el("h4", {}, "Where it looked"), el("p", { class: "sentence", dir: "auto" }, words),
    el("p", { class: "facts looked" }, "most at ", told),
    written.read.every((one) => one.known) ? null : el("p", { class: "facts" }, "underlined: not in the vocabulary, read as one unknown word"),
    written.unread ? el("p", { class: "facts" }, `${plural(written.unread, "word")} after these: too many, not read`) : null);
}

// The beam at the chosen step.
function keptEl() {
  const kept = written.steps[step], place = written.titles[title].path[step], most = Math.exp(kept[0].log_prob);
  const bars = kept.map((one, n) => {
    const made = bar(Math.exp(one.log_prob), most, [...beginning(step, n), el("b", {}, named(one))], `${percent(one.p)} · ${one.log_prob.toFixed(2)}`);
    if (n === place) {
      made.classList.add("followed");
      made.setAttribute("aria-current", "step");
    }
    return made;
  });
  const made = list(`The beam at step ${step + 1} of ${written.titles[title].path.length}`,
    "P of the last word · log P of all so far; the bar is P beside the best", bars);
  made.classList.add("kept");
  return made;
}

// The words of a hypothesis but for its last.
function beginning(at, place) {
  const words = [];
  for (let before = written.steps[at][place].before; before !== null; before = written.steps[at][before].before) {
    words.unshift(wordEl(written.steps[--at][before].word, 32), " ");
  }
  return words;
}
