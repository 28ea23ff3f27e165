"""The training loop: updates, evaluations, early stopping, checkpoints, and resuming bit for bit."""

import math
import time
from dataclasses import asdict, dataclass, field
from functools import partial
from typing import Any

import torch

from coterie.metrics import perplexity
from coterie_lab.training import checkpoint, optimizers
from coterie_lab.training.device import choose_precision, precise
from coterie_lab.training.distributed import World
from coterie_lab.training.graph import graphed
from coterie_lab.training.interrupt import Interrupt
from coterie_lab.training.logs import Bar, Board, Journal
from coterie_lab.training.moves import MovesJournal
from coterie_lab.training.run import Run
from coterie_lab.training.settings import TrainingSettings
from coterie_lab.training.task import Task
from coterie_lab.training.update import Update

# A checkpoint at the end of an epoch comes sooner, but not so often that short epochs go mostly into writing.
EPOCH_SHARE = 0.05
# On a GPU the first updates of a sitting compile kernels and record a graph, which says nothing about the others.
STARTING = 5


@dataclass
class Progress:
    """The progress of a run, as stored in a checkpoint."""

    step: int = 0
    seconds: float = 0.0  # spent on updates alone, but for those that start a sitting on a GPU
    starting: float = 0.0  # spent on these
    memory: int = 0  # the most bytes of a GPU that updates have needed
    summed: int = 0  # updates whose losses are summed for the next line of the log
    best: dict[str, Any] = field(default_factory=dict)  # the evaluation of the model that is kept
    lowest: float = math.inf  # the lowest loss of an evaluation
    stale: int = 0  # evaluations since then
    finished: bool = False


class Trainer:
    """Trains a task by its settings and maintains the run's folder."""

    def __init__(self, task: Task, settings: TrainingSettings, run: Run, device: torch.device, world: World) -> None:
        self.task, self.settings, self.run, self.device, self.world = task, settings, run, device, world
        self.optimizer = optimizers.build(settings, task.groups())
        self.precision = choose_precision(settings.precision, device)
        self.update = Update(task, self.optimizer, settings.clip, device, self.precision)
        self.total = task.total
        self.progress = Progress()
        self.positions: dict[str, int] = {}  # bytes of each journal at the last checkpoint
        self.started, self.started_up = 0.0, device.type != "cuda"
        self.looks = {int(update) for update in settings.evaluate_at.split(",") if update}
        if settings.evaluate_moves:
            task.around_reorganizations(self._aside)

    def resume(self) -> None:
        """Continues from the last checkpoint, if there is one."""
        if not self.run.checkpoint.exists():
            return
        content = checkpoint.load(self.run.checkpoint)
        if "ranks" not in content:
            raise ValueError(
                f"{self.run.checkpoint} is a model, not a checkpoint to resume from: put back the one that was there, "
                "or start again with --force"
            )
        ranks = content["ranks"]
        if len(ranks) != self.world.size:
            raise ValueError(
                f"{self.run.path} was trained by {len(ranks)} process(es), now there are {self.world.size}: resume it "
                "with as many as before"
            )
        self.progress = Progress(**content["progress"])
        self.positions = content["positions"]
        self.task.model.load_state_dict(content["model"])
        self.optimizer.resume(content["optimizer"])
        own = ranks[self.world.rank]
        self.task.load_state(own["task"])
        self.update.loss_sum.copy_(own["loss_sum"])
        checkpoint.set_random_state(own["random"], self.device)

    def fit(self, bar: Bar) -> Progress:
        """Trains to the end, or until the user or early stopping ends it."""
        self.bar = bar
        with Interrupt() as interrupt:
            self.world.by_main(self._open)
            try:
                self._loop(interrupt)
            finally:
                self._close()
        return self.progress

    # -- inside -------------------------------------------------------------------------------------------------

    def _loop(self, interrupt: Interrupt) -> None:
        task, settings, progress = self.task, self.settings, self.progress
        step_once = graphed(self.update, settings.graph, task.graphable and self.world.size == 1, self.bar.say)
        begun = progress.step
        self._go()
        saved_at, applied = self.started, math.nan
        while progress.step < self.total and not progress.finished:
            if progress.step % task.steps_per_epoch == 0:
                task.start_epoch()
            factor = optimizers.factor(
                settings.schedule, progress.step, self.total, task.steps_per_epoch, settings.warmup
            )
            if factor != applied:
                self.optimizer.set_learning_rate(factor)
                applied = factor
            step_once(*task.batch(progress.step))
            progress.step += 1
            progress.summed += 1
            if not self.started_up and progress.step - begun == STARTING:
                self._pause()
                self.started_up, self.started = True, time.perf_counter()
            if (moved := task.updated()) is not None:
                self.world.by_main(partial(self._reorganized, {"step": progress.step, **moved}))
            epoch_over = progress.step % task.steps_per_epoch == 0
            often = bool(settings.evaluate_every and progress.step % settings.evaluate_every == 0)
            look = epoch_over or often or progress.step == self.total
            logged = look or progress.step % settings.log_every == 0
            if logged:
                self._log(factor)
            if look:
                self._evaluate()
            elif progress.step in self.looks:
                self._aside("aside")
            if self.world.size == 1 or logged:  # processes exchange this only now and then
                stop = any(self.world.everyone(interrupt.asked))
                since = time.perf_counter() - saved_at
                due = since >= settings.checkpoint_every * (EPOCH_SHARE if epoch_over else 1.0)
                over = progress.finished or progress.step == self.total
                if stop or over or any(self.world.everyone(due)):
                    self._save()
                    saved_at = time.perf_counter()
                if stop:
                    return
        progress.finished = True

    def _go(self) -> None:
        if self.device.type == "cuda":
            torch.cuda.reset_peak_memory_stats(self.device)
        self.started = time.perf_counter()
        self.timed = (self.progress.step, self.started)

    def _pause(self) -> None:
        """Stops the training clock; synchronises with the device."""
        progress = self.progress
        if self.device.type == "cuda":
            torch.cuda.synchronize(self.device)
            progress.memory = max(progress.memory, torch.cuda.max_memory_allocated(self.device))
        passed = time.perf_counter() - self.started
        if self.started_up:
            progress.seconds += passed
        else:
            progress.starting += passed

    def _log(self, factor: float) -> None:
        progress = self.progress
        sums = self.world.everyone(float(self.update.loss_sum))  # synchronises
        loss = sum(sums) / len(sums) / progress.summed
        self.update.loss_sum.zero_()
        progress.summed = 0
        if not math.isfinite(loss):
            raise self._diverged(loss)
        before, then = self.timed
        now = time.perf_counter()
        self.timed = (progress.step, now)
        rate = (progress.step - before) * self.task.words_per_step / max(now - then, 1e-9)
        self.bar.advance(progress.step, perplexity(loss), rate)
        self._note(
            "train", loss=loss, perplexity=perplexity(loss), learning_rate=self.settings.learning_rate * factor,
            words_per_second=rate, seconds=progress.seconds + (now - self.started if self.started_up else 0.0),
        )  # fmt: skip

    def _look(self, event: str) -> dict[str, Any]:
        """Stops the clock, measures the model, and returns the line of the log."""
        self._pause()
        with precise(self.device, self.precision):
            measured, *_ = self.world.everyone(self.task.evaluate() if self.world.main else None)
        record = self._note(event, **measured, seconds=self.progress.seconds)
        if self.world.main:
            told = ", ".join(f"{key.replace('_', ' ')} {value:.4g}" for key, value in measured.items() if key != "loss")
            when = f", {event} a reorganization" if event in ("before", "after") else ""
            self.bar.say(f"update {self.progress.step:,}{when}: {told}")
        return record

    def _aside(self, event: str) -> None:
        """An evaluation that decides nothing."""
        (step, then), begun = self.timed, time.perf_counter()
        self._look(event)
        self._go()
        self.timed = step, then + self.started - begun

    def _evaluate(self) -> None:
        progress, record = self.progress, self._look("evaluate")
        loss = record["loss"]
        # In this form a loss of NaN is never the lowest.
        better = not progress.best or loss < progress.lowest
        progress.stale = 0 if better else progress.stale + 1
        if loss < progress.lowest:
            progress.lowest = loss
        if better or (self.settings.keep == "last" and math.isfinite(loss)):
            progress.best = record
            content = {"model": self.task.model.state_dict(), "evaluation": record}
            self.world.by_main(lambda: checkpoint.save(self.run.best, content))
        if self.settings.patience is not None and progress.stale >= self.settings.patience:
            progress.finished = True
            self.bar.say(f"stopped early: the last {progress.stale} evaluations were no better")
        self._go()

    def _note(self, event: str, **measured: float) -> dict[str, Any]:
        """Writes a record to the log and to TensorBoard; returns the line of the log."""
        step = self.progress.step
        record = {"event": event, "step": step, "epoch": step / self.task.steps_per_epoch, **measured}

        def write() -> None:
            self.log.write(record)
            self.board.write(event, record)

        self.world.by_main(write)
        return record

    def _reorganized(self, record: dict[str, Any]) -> None:
        self.reorganizations.write(record)
        self.moves.reorganized(record["step"])
        self.board.write("reorganization", record)

    def _diverged(self, loss: float) -> ValueError:
        return ValueError(
            f"the loss is {loss} at update {self.progress.step}: lower the learning rate or the clipping norm"
            + (". The last checkpoint is unharmed" if self.run.checkpoint.exists() else "")
        )

    def _save(self) -> None:
        self._pause()
        loss = sum(self.world.everyone(float(self.update.loss_sum)))
        if not math.isfinite(loss):  # never save a state that is not worth resuming
            raise self._diverged(loss)
        random = checkpoint.random_state(self.device)
        own = {"task": self.task.state(), "random": random, "loss_sum": self.update.loss_sum}
        ranks = self.world.everyone(own)

        def save() -> None:
            positions = {journal.path.name: journal.position() for journal in self.journals}
            content = {
                "progress": asdict(self.progress), "positions": positions, "ranks": ranks,
                "model": self.task.model.state_dict(), "optimizer": self.optimizer.state_dict(),
            }  # fmt: skip
            checkpoint.save(self.run.checkpoint, content)

        self.world.by_main(save)
        self._go()

    def _open(self) -> None:
        run, step, at = self.run, self.progress.step, self.positions
        self.log = Journal(run.log, at.get(run.log.name, 0))
        self.reorganizations = Journal(run.reorganizations, at.get(run.reorganizations.name, 0))
        self.moves = MovesJournal(run.moves, at.get(run.moves.name, 0), self.task.model.head)
        self.journals = (self.log, self.reorganizations, self.moves)
        self.board = Board(run.path / "tensorboard", step)
        if not step:
            self.log.write({"event": "built", "step": 0, "seconds": self.task.building})

    def _close(self) -> None:
        if self.world.main:
            for journal in self.journals:
                journal.close()
            self.board.close()
