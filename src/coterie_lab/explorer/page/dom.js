// Elements from data. Words come from strangers: they become text nodes, never markup.

const $ = (selector) => document.querySelector(selector);

// An element; `properties` are attributes, but for `on…`, which are listeners. Children are elements or text.
function el(tag, properties = {}, ...children) {
  const made = document.createElement(tag);
  for (const [name, value] of Object.entries(properties)) {
    if (value === undefined || value === null || value === false) continue;
    if (name.startsWith("on")) made.addEventListener(name.slice(2), value);
    else made.setAttribute(name, value === true ? "" : String(value));
  }
  made.append(...children.flat().filter((child) => child !== null && child !== undefined));
  return made;
}

const LONGEST = 60; // characters of a word that are shown where there are many words

function cut(text, most = LONGEST) {
  const letters = text.length > most ? Array.from(text.slice(0, 2 * most)) : text;
  return letters.length > most ? letters.slice(0, most - 1).join("") + "…" : text;
}

// A word, kept apart from the direction in which its neighbours are written.
function wordEl(text, most = LONGEST) {
  return el("bdi", { class: "word", title: text.length > most ? cut(text, 500) : null }, cut(text, most));
}

function wordsEl(texts, most = 24) {
  return texts.flatMap((text, n) => (n ? [el("span", { class: "dot" }, " · "), wordEl(text, most)] : [wordEl(text, most)]));
}

const whole = new Intl.NumberFormat("en", { maximumFractionDigits: 0 });

function number(value, digits = 1) {
  if (value === null || value === undefined) return "–";
  if (Math.abs(value) >= 1000 || Number.isInteger(value)) return whole.format(value);
  return value.toFixed(digits);
}

function percent(share) {
  const value = share * 100;
  return value === 0 ? "0%" : value < 0.01 ? "< 0.01%" : `${value.toFixed(value < 10 ? 2 : 1)}%`;
}

function plural(n, one, many = one + "s") {
  return `${whole.format(n)} ${n === 1 ? one : many}`;
}

function row(cells, tag = "td") {
  return el("tr", {}, cells.map((cell, n) =>
    n === 0 && tag === "td" ? el("th", { scope: "row" }, cell) : el(tag, tag === "th" ? { scope: "col" } : {}, cell)));
}

function tableEl(caption, head, rows) {
  return el("div", { class: "scroll", tabindex: "0", role: "region", "aria-label": caption },
    el("table", {}, el("caption", {}, caption), el("thead", {}, row(head, "th")), el("tbody", {}, rows.map((cells) => row(cells)))));
}

// Says a short thing to those who listen to the page.
function say(text) {
  $("#said").textContent = text;
}
