// The map: a button for each cluster, where the report has laid it out; the arrow keys move across it.

const pen = document.createElement("canvas").getContext("2d");

// The words that fit into so many lines of a width, broken between words. The first must be there, cut if it has to be;
// of the others those too long are left out.
function fitting(words, width, lines, size, font) {
  const found = [];
  let line = 1, used = 0;
  for (const word of words) {
    pen.font = `${found.length ? "" : "600 "}${size}px ${font}`;
    const wide = pen.measureText(`${cut(word)} `).width;
    if (found.length && wide > width) continue;
    const next = used && used + wide > width ? line + 1 : line;
    if (next > lines || width < 4 * size / 2) break;
    [line, used] = [next, next > line ? wide : used + wide];
    found.push(word);
  }
  return found;
}

class ClusterMap {
  constructor(target, model, open) {
    Object.assign(this, { target, model, open, measure: "mass", tiles: [] });
    this.tiles = model.clusters.map((cluster) => {
      const share = percent(cluster.mass / model.total);
      const says = `${model.called(cluster.number)}: ${plural(cluster.members.length, "word")}, ${share} of the text`;
      const tile = el("button", { type: "button", class: "tile", tabindex: "-1", "aria-label": `Cluster ${says}`, "data-cluster": cluster.number });
      tile.style.setProperty("--hue", cluster.hue);
      tile.style.setProperty("--strength", cluster.strength);
      tile.addEventListener("click", () => open(cluster.number));
      tile.addEventListener("pointerenter", () => this.hint(`${says}, cluster ${cluster.number}`));
      tile.addEventListener("focus", () => this.hint(`${says}, cluster ${cluster.number}`));
      return tile;
    });
    target.replaceChildren(...this.tiles);
    if (this.tiles.length) this.tiles[0].tabIndex = 0;
    target.onkeydown = (event) => this.key(event);
    this.watch = new ResizeObserver(() => this.place());
    this.watch.observe(target);
  }

  remove() {
    this.watch.disconnect();
    this.target.replaceChildren();
  }

  hint(text) {
    $("#hint").textContent = text;
  }

  // Seats the tiles, and writes as many typical words on each as it has room for.
  place() {
    const shape = window.innerWidth < 700 ? "tall" : "wide";
    const { clientWidth: width, clientHeight: height } = this.target;
    const key = [shape, this.measure, width, height].join();
    if (key === this.placed || !width) return;
    this.placed = key;
    const found = this.model.maps[shape][this.measure], font = style("--font");
    this.target.classList.toggle("tall", shape === "tall");
    this.boxes = this.tiles.map((tile, n) => {
      const [left, top, w, h] = found.slice(4 * n, 4 * n + 4);
      Object.assign(tile.style, { left: `${left}%`, top: `${top}%`, width: `${w}%`, height: `${h}%` });
      const [wide, high] = [w * width / 100, h * height / 100];
      const size = Math.max(10, Math.min(17, Math.sqrt(wide * high) / 7.5));
      tile.style.fontSize = `${size}px`;
      const words = fitting(this.model.label(Number(tile.dataset.cluster), 6), wide - 8, Math.min(4, Math.floor((high - 6) / (size * 1.22))), size, font);
      tile.replaceChildren(el("span", {}, words.flatMap((word) => [wordEl(word), " "])));
      return { left, top, x: left + w / 2, y: top + h / 2 };
    });
  }

  choose(number) {
    this.tiles.forEach((tile) => {
      const here = number !== null && Number(tile.dataset.cluster) === number;
      tile.classList.toggle("chosen", here);
      tile.setAttribute("aria-pressed", here);
      if (here) this.roam(tile);
    });
  }

  // One tile at a time is in the order of the Tab key.
  roam(tile) {
    for (const other of this.tiles) other.tabIndex = other === tile ? 0 : -1;
  }

  key(event) {
    const way = { ArrowLeft: [-1, 0], ArrowRight: [1, 0], ArrowUp: [0, -1], ArrowDown: [0, 1] }[event.key];
    const from = this.tiles.indexOf(document.activeElement);
    if (!way || from < 0) return;
    event.preventDefault();
    const [dx, dy] = way, here = this.boxes[from];
    let best = -1, least = Infinity;
    this.boxes.forEach((box, n) => {
      const ahead = (box.x - here.x) * dx + (box.y - here.y) * dy;
      const aside = Math.abs((box.x - here.x) * dy) + Math.abs((box.y - here.y) * dx);
      if (ahead > 0.01 && ahead + 2 * aside < least) [best, least] = [n, ahead + 2 * aside];
    });
    if (best < 0) return;
    this.roam(this.tiles[best]);
    this.tiles[best].focus();
  }
}
