// The live page: what the model expects after a beginning, cluster by cluster and word by word.

const PAUSE = 150; // milliseconds of no typing before the model is asked
let asked = 0, opened = null;

async function ask(path, body) {
  const answer = await fetch(path, { method: "POST", headers: { "content-type": "application/json" }, body: JSON.stringify(body) });
  const told = await answer.json().catch(() => ({}));
  if (!answer.ok) throw new Error(typeof told.detail === "string" ? told.detail : `the server answered ${answer.status}`);
  return told;
}

function startLive() {
  $("#live").hidden = false;
  const field = $("#beginning");
  let timer = 0;
  field.addEventListener("input", () => {
    clearTimeout(timer);
    opened = null;
    timer = setTimeout(predict, PAUSE);
  });
  predict();
}

async function predict() {
  const mine = ++asked, text = $("#beginning").value;
  try {
    const told = await ask("api/predict", { text });
    if (mine !== asked) return; // a later question is on its way
    $("#read").replaceChildren(...readAs(told.read));
    opened ??= told.clusters[0]?.cluster ?? null; // the most probable, if none was chosen
    await answer(told, text, mine);
  } catch (error) {
    if (mine === asked) $("#answer").replaceChildren(el("p", { class: "fault", role: "alert" }, error.message));
  }
}

// How the text was split into words; those the model does not know are marked.
function readAs(read) {
  if (!read.length) return ["Nothing typed yet: what the model expects anywhere."];
  const tail = read.slice(-40);
  return ["read as ", tail.length < read.length ? "… " : "", ...tail.flatMap((one) => [one.known ? wordEl(one.word) : el("s", { title: "not in the vocabulary" }, wordEl(one.word)), " "])];
}

// A line with a bar behind it: a button, if there is something to press it for.
function bar(share, most, content, note, press, chosen) {
  const button = press && { type: "button", onclick: press, "aria-pressed": chosen === undefined ? null : String(chosen) };
  const made = el(press ? "button" : "div", { class: "bar", ...button }, el("span", { class: "said" }, content), el("span", { class: "value" }, note));
  made.style.setProperty("--share", Math.min(1, share / most));
  return el("li", {}, made);
}

function list(title, note, bars) {
  return el("div", { class: "list" }, el("h4", {}, title), el("p", { class: "facts" }, note), el("ol", { class: "plain" }, bars));
}

async function answer(told, text, mine) {
  const parts = [];
  if (told.clusters.length) {
    const first = told.clusters.slice(0, 12), most = first[0].p;
    const together = (all) => percent(all.reduce((sum, one) => sum + one.p, 0));
    const others = [
      told.clusters.length > 12 ? `${plural(told.clusters.length - 12, "other cluster")}: ${together(told.clusters.slice(12))}` : "all clusters",
      ...(told.alone.length ? [`${plural(told.alone.length, "word")} that stand alone: ${together(told.alone)}`] : []),
    ];
    const inside = await ask("api/open", { text, cluster: opened });
    if (mine !== asked) return;
    const called = (number) => (model && model.at.has(number) ? wordsEl(model.label(number)) : [`cluster ${number}`]);
    const bars = first.map((one) => bar(one.p, most, called(one.cluster), percent(one.p), () => { opened = one.cluster; predict(); }, one.cluster === opened));
    parts.push(list("First a cluster: P(c|h)", others.join("; "), bars));
    const words = inside.words.slice(0, 20);
    parts.push(list("then a word in it: P(w|c,h)", `${plural(inside.words.length, "word")} in the cluster, which is worth ${percent(inside.p)}`,
      words.map((one) => bar(one.p, words[0].p, wordEl(one.word, 32), percent(one.p), () => take(one.word)))));
  }
  parts.push(list("Most probable words: P(w|h)", `the first ${told.words.length}${model ? ` of ${whole.format(model.words.length)}` : ""}`,
    told.words.slice(0, 20).map((one) => bar(one.p, told.words[0].p, wordEl(one.word, 32), percent(one.p), () => take(one.word)))));
  $("#answer").replaceChildren(...parts);
  say(`most probable word: ${cut(told.words[0].word)}, ${percent(told.words[0].p)}`);
}

function take(word) {
  const field = $("#beginning");
  field.value = `${field.value.replace(/\s+$/, "")} ${word} `.replace(/^\s+/, "");
  opened = null;
  predict();
  field.focus();
}
