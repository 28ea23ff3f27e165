"""Runs the demonstration in a terminal: progress bars, then a table."""

from dataclasses import asdict
from functools import partial
from pathlib import Path

import torch
from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TaskID, TextColumn, TimeRemainingColumn
from rich.table import Table

from coterie_lab.data.grammar import default_grammar
from coterie_lab.demo.run import contents, heads, some_clusters, train
from coterie_lab.demo.settings import Setting
from coterie_lab.explorer import page as pages
from coterie_lab.models.language import batches
from coterie_lab.training.environment import describe
from coterie_lab.training.run import write_json, write_whole


def advance(progress: Progress, task: TaskID, done: int, perplexity: float) -> None:
    progress.update(task, completed=done, perplexity=perplexity)


def show(console: Console, setting: Setting, out: Path) -> None:
    """Trains both heads, prints the results and writes them to a JSON file."""
    if out.is_dir():
        raise ValueError(f"--out {out} is a folder: give the name of a file, such as {out / 'demo.json'}")
    out.parent.mkdir(parents=True, exist_ok=True)
    grammar = default_grammar()
    text = grammar.write(setting.words, seed=setting.seed + 1)
    dev = grammar.write(setting.dev_words, seed=setting.seed + 2)
    counts = torch.bincount(text, minlength=len(grammar.words))
    console.print(
        f"A generated language: {len(grammar.words):,} words in {len(grammar.class_names)} classes; "
        f"{setting.words:,} words to learn from. A model that knew the grammar would reach a perplexity of "
        f"{grammar.perplexity:.1f}."
    )
    results = {}
    updates = setting.epochs * len(batches(text, setting.sequences, setting.length))
    columns = TextColumn("{task.description:<14}"), BarColumn(), MofNCompleteColumn(), TimeRemainingColumn()
    with Progress(*columns, TextColumn("perplexity {task.fields[perplexity]:.0f}"), console=console) as progress:
        for name, build in heads(grammar, setting, counts).items():
            torch.manual_seed(setting.seed)
            task = progress.add_task(name, total=updates, perplexity=len(grammar.words))
            results[name] = train(build(), grammar, setting, text, dev, partial(advance, progress, task))

    table = Table(title=f"After {updates:,} updates each, on {setting.dev_words:,} words not seen")
    table.add_column("")
    full, ours = results["full"], results["self-organized"]
    measures, organized = ours.measures, ours.organized
    assert measures is not None
    assert organized is not None
    for column in (*results, "the grammar itself"):
        table.add_column(column, justify="right")
    for epoch in range(setting.epochs):
        last = epoch == setting.epochs - 1
        label = "perplexity" if last else f"  after epoch {epoch + 1}"
        best = f"{grammar.perplexity:.1f}" if last else ""
        table.add_row(label, f"{full.perplexity[epoch]:.1f}", f"{ours.perplexity[epoch]:.1f}", best)
    table.add_row("cluster perplexity", "", f"{measures.cluster_perplexity:.1f}", "")
    table.add_row("in-cluster perplexity", "", f"{measures.in_cluster_perplexity:.1f}", "")
    table.add_row("training, seconds", f"{full.seconds:.1f}", f"{ours.seconds:.1f}", "")
    table.add_row("speed", "1×", f"{full.seconds / ours.seconds:.1f}×", "")
    console.print(table)
    recovered = " → ".join(f"{abs(value):.2f}" if abs(value) < 0.005 else f"{value:.2f}" for value in ours.agreement)
    console.print(
        f"Clusters against the grammar's classes (adjusted mutual information, 1 is perfect): {recovered}. "
        f"{ours.alone} frequent words stand alone, and count as a class of their own."
    )
    clusters = Table(title="Some clusters")
    clusters.add_column("mostly")
    clusters.add_column("most frequent words")
    for label, words in some_clusters(organized, grammar, n=6, length=5):
        clusters.add_row(label, " ".join(words))
    console.print(clusters)
    content = {
        "environment": describe(),
        "setting": asdict(setting),
        "grammar_perplexity": grammar.perplexity,
        "results": {name: result.to_dict() for name, result in results.items()},
    }
    write_json(out, content)
    console.print(f"All figures are in {out}")
    page = out.with_suffix(".html")
    try:
        write_whole(page, pages.build(contents(results, setting, grammar.words, counts)))
    except ImportError as error:
        console.print(f"There is no page to look at: {error}")
    else:
        console.print(f"To look at them and at the clusters, open {page.resolve().as_uri()}", soft_wrap=True)
