// Who moved when: the moves of a run, replayed once.

class Moves {
  constructor(held, words) {
    const size = held.moves.reduce((sum, move) => sum + move.words.length, 0);
    this.steps = [held.start.step, ...held.moves.map((move) => move.step)];
    this.every = held.every;
    this.start = held.start.clusters;
    this.when = new Uint32Array(size); // which reorganization, from 1
    this.word = new Uint32Array(size);
    this.from = new Uint32Array(size);
    this.to = new Uint32Array(size);
    this.moved = new Uint32Array(words); // how often each word did
    this.last = new Uint32Array(words); // and when for the last time; 0: never
    const now = Uint32Array.from(held.start.clusters);
    let n = 0;
    held.moves.forEach((move, place) => {
      let word = 0;
      move.words.forEach((gap, at) => {
        word += gap;
        this.when[n] = place + 1;
        this.word[n] = word;
        this.from[n] = now[word];
        this.to[n] = now[word] = move.clusters[at];
        this.moved[word] += 1;
        this.last[word] = place + 1;
        n += 1;
      });
    });
  }

  // For each reorganization that touched a cluster, latest first: who came and who left.
  ofCluster(number) {
    const found = new Map();
    for (let n = 0; n < this.when.length; n++) {
      if (this.to[n] !== number && this.from[n] !== number) continue;
      const when = this.when[n];
      if (!found.has(when)) found.set(when, { step: this.steps[when], came: [], left: [] });
      found.get(when)[this.to[n] === number ? "came" : "left"].push(this.word[n]);
    }
    return Array.from(found.values()).reverse();
  }

  // The way of a word: where it was from which update on, latest first.
  ofWord(word) {
    const way = [{ step: this.steps[0], cluster: this.start[word] }];
    for (let n = 0; n < this.when.length; n++) {
      if (this.word[n] === word) way.push({ step: this.steps[this.when[n]], cluster: this.to[n] });
    }
    return way.reverse();
  }
}
