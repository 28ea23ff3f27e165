"""The command `coterie reproduce`: the paper's comparisons."""

from pathlib import Path
from typing import Annotated, Any

import typer
from typer import Argument, Option

from coterie_lab.commands.parameters import takes
from coterie_lab.options import pairs
from coterie_lab.training.settings import TrainingSettings


@takes(TrainingSettings, "each head's own", only=("epochs", "evaluate_every", "device"))
def reproduce(
    experiment: Annotated[
        str,
        Argument(metavar="EXPERIMENT", help="text8, wikitext2, summarization, or generated (an invented language)"),
    ],
    out: Annotated[Path, Option(metavar="DIR", help="the folder for runs and report")],
    source: Annotated[
        str | None, Argument(metavar="SRC", help="text or pairs, raw or prepared; or the name text8")
    ] = None,
    heads: Annotated[str, Option(help="heads and variants of them to compare, with commas between")] = (
        "full,self-organized"
    ),
    seeds: Annotated[str, Option(help="with commas between; every head is trained with each")] = "0",
    setting: Annotated[
        list[str] | None,
        Option(metavar="NAME=VALUE", help="a setting of all runs, as in `coterie lm train`; may be repeated"),
    ] = None,
    preset: Annotated[str, Option(help="summarization: best, or paper, as printed there")] = "best",
    duc: Annotated[
        Path | None, Option(metavar="DIR", help="summarization: DUC-2004's input.txt and task1_ref0.txt …")
    ] = None,
    max_vocab: Annotated[int | None, Option(min=3, help="summarization, raw pairs: size of the vocabulary")] = None,
    source_words: Annotated[
        bool, Option("--source-words", help="summarization, raw pairs: fill the vocabulary up from the sentences")
    ] = False,
    *,
    given: dict[str, Any],
) -> None:
    """Train several heads in the same trainer and write the paper's tables and figures as one report.

    Finished runs are not repeated; stopped ones are resumed.
    """
    from coterie_lab.experiments.language.experiments import EXPERIMENTS
    from coterie_lab.experiments.language.reproduce import reproduce as compare
    from coterie_lab.training.logs import Listening

    if experiment not in (*EXPERIMENTS, "summarization"):
        raise ValueError(
            f"there is no experiment {experiment!r}; there are: {', '.join((*EXPERIMENTS, 'summarization'))}"
        )
    if not all(seed.strip().isdigit() for seed in seeds.split(",")):
        raise ValueError(f"--seeds takes whole numbers with commas between; got {seeds!r}")
    extra = pairs(setting or [])
    if taken := [name for name in extra if name in ("head", "seed", "preset", *given)]:
        raise ValueError(f"--setting {taken[0]}: every row has its own, or another option gave it already")
    given |= extra
    console = Listening()
    names = [name.strip() for name in heads.split(",")]
    numbers = [int(seed) for seed in seeds.split(",")]
    if len(set(numbers)) < len(numbers) or len(set(names)) < len(names):
        raise ValueError(f"give every head and every seed once; got --heads {heads} --seeds {seeds}")
    report: object
    if experiment == "summarization":
        from coterie_lab.experiments.summarization.reproduce import Plan
        from coterie_lab.experiments.summarization.reproduce import reproduce as compare_summarizers

        if source is None:
            raise ValueError("summarization needs pairs: give files, a folder, or what `summarize prepare` wrote")
        plan = Plan(preset=preset, max_vocab=max_vocab, source_words=source_words, duc=duc)
        report = compare_summarizers(source, out, names, numbers, console, plan, **given)
    else:
        report = compare(source, out, names, numbers, console, experiment=EXPERIMENTS[experiment], **given)
    if report is None:
        console.print("stopped; repeat the command to continue")
        raise typer.Exit(130)
    typer.echo(f"written to {out / 'report.md'}")
