// What the page holds: a summary of every run, and packed beside it the words and moves of those with clusters.

const summary = JSON.parse(document.getElementById("summary").textContent);

function fromBase64(text) {
  if (Uint8Array.fromBase64) return Uint8Array.fromBase64(text);
  const letters = atob(text), bytes = new Uint8Array(letters.length);
  for (let n = 0; n < letters.length; n++) bytes[n] = letters.charCodeAt(n);
  return bytes;
}

async function unpack(name) {
  const held = document.getElementById(name);
  if (!held) return null;
  const bytes = fromBase64(held.textContent);
  const stream = new Blob([bytes]).stream().pipeThrough(new DecompressionStream("gzip"));
  return JSON.parse(await new Response(stream).text());
}

// The words and clusters of one run, with what follows from them.
class Model {
  constructor(run, held) {
    Object.assign(this, held);
    this.run = run;
    this.total = this.counts.reduce((sum, count) => sum + count, 0) || 1;
    this.lower = this.words.map((word) => word.toLowerCase());
    this.byCount = Uint32Array.from(this.words.keys()).sort((a, b) => this.counts[b] - this.counts[a] || a - b);
    this.rank = new Uint32Array(this.words.length);
    this.byCount.forEach((word, rank) => { this.rank[word] = rank + 1; });
    this.at = new Map(this.clusters.map((cluster, place) => [cluster.number, place]));
    for (const cluster of this.clusters) Object.assign(cluster, { members: [], mass: 0 });
    this.own = { members: [], mass: 0 }; // words that stand alone, in no cluster
    this.clusterOf.forEach((number, word) => {
      const cluster = number === this.alone ? this.own : this.cluster(number);
      cluster.members.push(word); // ascending, as the neighbours count them
      cluster.mass += this.counts[word];
    });
  }

  cluster(number) {
    return this.clusters[this.at.get(number)];
  }

  // How a cluster is called, by the words most typical of it.
  label(number, n = 3) {
    if (number === this.alone) return ["(stands alone)"];
    const cluster = this.cluster(number);
    return cluster ? cluster.typical.slice(0, n).map((word) => this.words[word]) : ["(empty now)"];
  }

  called(number) {
    return this.label(number).map((word) => cut(word, 24)).join(", ");
  }

  frequent(cluster) {
    return cluster.members.slice().sort((a, b) => this.rank[a] - this.rank[b]);
  }

  nearest(word) {
    const width = this.neighbours.length / this.words.length;
    const members = this.cluster(this.clusterOf[word]).members;
    const places = this.neighbours.slice(word * width, (word + 1) * width);
    return places.filter((place) => place >= 0).map((place) => members[place]);
  }

  runnersUp(word) {
    const width = this.nextBest.length / this.words.length;
    return this.nextBest.slice(word * width, (word + 1) * width).filter((number) => number >= 0);
  }

  // The words that contain the letters: the word itself, then those that begin with them, then frequent ones.
  search(text, most = 12) {
    const wanted = text.trim().toLowerCase();
    if (!wanted) return [];
    const found = [[], [], []];
    for (const word of this.byCount) {
      const candidate = this.lower[word];
      if (!candidate.includes(wanted)) continue;
      const kind = candidate === wanted ? 0 : candidate.startsWith(wanted) ? 1 : 2;
      if (found[kind].length < most) found[kind].push(word);
    }
    return found.flat().slice(0, most);
  }
}
