"""The commands that compare heads: `coterie demo`, `coterie bench` and `coterie reproduce`."""

from importlib.util import find_spec
from pathlib import Path
from typing import Annotated, Any

import typer
from rich.console import Console
from typer import Argument, Option

from coterie_lab.bench.names import NAMES, PACKAGES
from coterie_lab.commands.language import OnDevice
from coterie_lab.commands.parameters import takes
from coterie_lab.commands.training import check_given
from coterie_lab.demo.settings import Setting
from coterie_lab.options import pairs
from coterie_lab.training.settings import TrainingSettings


@takes(Setting)
def demo(
    out: Annotated[Path, Option(help="the file for all figures")] = Path("runs/demo.json"),
    *,
    given: dict[str, Any],
) -> None:
    """Train a small language model with a full softmax and with the layer, on a generated language."""
    from coterie_lab.demo.show import show

    show(Console(), Setting(**given), out)


def bench(
    out: Annotated[Path, Option(help="the folder for bench.json, bench.md and bench.png")] = Path("runs/bench"),
    shapes: Annotated[
        list[str] | None, Option("--shape", help="V,d,tokens; repeat it", show_default="a few for this device")
    ] = None,
    heads: Annotated[str, Option(help="with commas between; also others of `coterie lm train`")] = ", ".join(NAMES),
    sweep: Annotated[bool, Option(help="also time V from 2^14 to 2^20")] = True,
    device: OnDevice = "auto",
    seconds: Annotated[float, Option(min=0.01, help="time for each measurement")] = 1.0,
    redraw: Annotated[Path | None, Option(help="measure nothing: write tables and plot of this bench.json")] = None,
) -> None:
    """Time heads side by side: forward, training step, memory and top-k, against what the device allows."""
    from coterie_lab.bench import report
    from coterie_lab.bench.methods import check_name
    from coterie_lab.bench.shapes import STANDARD, SWEEP, Shape
    from coterie_lab.training.device import choose_device

    if redraw is not None:
        report.write(out, *report.read(redraw))
    else:
        on = choose_device(device)  # type: ignore[arg-type]
        names = [name.strip() for name in heads.split(",")]
        for name in names:
            check_name(name)
        for name in names if heads != ", ".join(NAMES) else ():
            if name in PACKAGES and find_spec(PACKAGES[name]) is None:
                typer.echo(f"{name} is left out: it needs the package {PACKAGES[name].replace('_', '-')}")
        chosen = [Shape.parse(text) for text in shapes or ()] or STANDARD[on.type]
        report.compare(out, names, chosen, SWEEP[on.type] if sweep else (), on, seconds, typer.echo)
    typer.echo(f"written to {out}")


@takes(TrainingSettings, "each head's own", only=("epochs", "updates", "evaluate_every", "device"))
def reproduce(
    experiment: Annotated[
        str, Argument(metavar="EXPERIMENT", help="text8, wikitext2, generated, transformer or summarization")
    ],
    out: Annotated[Path, Option(metavar="DIR", help="the folder for runs and report")],
    source: Annotated[str | None, Argument(metavar="SRC", help="text or pairs, raw or prepared; or text8")] = None,
    heads: Annotated[
        str | None,
        Option(
            help="what to compare, with commas between",
            show_default="full,self-organized; of a transformer also others",
        ),
    ] = None,
    seeds: Annotated[str, Option(help="with commas between; every head is trained with each")] = "0",
    setting: Annotated[list[str] | None, Option(metavar="NAME=VALUE", help="a setting of all runs; repeat it")] = None,
    preset: Annotated[str, Option(help="summarization: best, or paper, as printed there")] = "best",
    duc: Annotated[Path | None, Option(metavar="DIR", help="summarization: a folder with DUC-2004's files")] = None,
    max_vocab: Annotated[
        int | None, Option(min=3, help="transformer and summarization, raw text or pairs: size of the vocabulary")
    ] = None,
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
    known = EXPERIMENTS.get(experiment)
    heads = heads if heads is not None else known.heads if known else "full,self-organized"
    names, numbers = [name.strip() for name in heads.split(",")], seeds.split(",")
    if not all(number.strip().isdigit() for number in numbers):
        raise ValueError(f"--seeds takes whole numbers with commas between; got {seeds!r}")
    each = [int(number) for number in numbers]
    if len(set(each)) < len(each) or len(set(names)) < len(names):
        raise ValueError(f"give every head and every seed once; got --heads {heads} --seeds {seeds}")
    extra = pairs(setting or [])
    if taken := [name for name in extra if name in ("head", "seed", "preset", *given)]:
        raise ValueError(f"--setting {taken[0]}: every row has its own, or another option gave it already")
    given |= extra
    check_given(given)
    own: dict[str, object] = {"--preset": preset != "best", "--duc": duc, "--source-words": source_words}
    if not (known and known.equal_updates):
        own["--max-vocab"] = max_vocab
    if known and (name := next((name for name, said in own.items() if said), None)):
        raise ValueError(f"{name} is an option of `reproduce summarization`; {experiment} has no use for it")
    console = Listening()
    report: object
    if experiment == "summarization":
        from coterie_lab.experiments.summarization.reproduce import Plan
        from coterie_lab.experiments.summarization.reproduce import reproduce as compare_summarizers

        if source is None:
            raise ValueError("summarization needs pairs: give files, a folder, or what `summarize prepare` wrote")
        plan = Plan(preset=preset, max_vocab=max_vocab, source_words=source_words, duc=duc)
        report = compare_summarizers(source, out, names, each, console, plan, **given)
    else:
        assert known is not None
        report = compare(source, out, names, each, console, experiment=known, max_vocab=max_vocab, **given)
    if report is None:
        console.print("stopped; repeat the command to continue")
        raise typer.Exit(130)
    typer.echo(f"written to {out / 'report.md'}")
