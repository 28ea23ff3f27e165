"""The training loop: updates, evaluations, early stop, checkpoints, and going on as if nothing had happened."""

import math
import time
from dataclasses import asdict, dataclass, field
from functools import partial
from typing import Any, Protocol

import torch
from torch import Tensor

from coterie.metrics import perplexity
from coterie_lab.training import checkpoint, optimizers, schedules
from coterie_lab.training.device import choose_precision
from coterie_lab.training.distributed import World
from coterie_lab.training.graph import graphed
from coterie_lab.training.interrupt import Interrupt
from coterie_lab.training.logs import Board, Display, Journal
from coterie_lab.training.moves import MovesJournal
from coterie_lab.training.run import Run
from coterie_lab.training.settings import TrainingSettings
from coterie_lab.training.update import Learner, Update

# After an epoch a checkpoint is made sooner, but not so soon that short epochs are spent on writing.
EPOCH_SHARE = 0.05


class Task(Learner, Protocol):
    """What is trained, and on what."""

    steps_per_epoch: int
    words_per_step: int  # in all processes together
    building: float  # seconds it took to build the model, and what its head is made from, such as clusters
    graphable: bool  # whether an update waits for nothing, and batches have few shapes

    def groups(self) -> list[optimizers.Group]:
        """All parameters, in groups that are trained alike."""
        ...

    def batch(self, step: int) -> tuple[Tensor, ...]:
        """The batch of an update, counted from 0 over the whole run, on the device."""
        ...

    def start_epoch(self) -> None: ...

    def updated(self) -> dict[str, Any] | None:
        """Called after every update; says what was reorganised, if anything was."""
        ...

    def evaluate(self) -> dict[str, float]:
        """What the model is worth now; "loss" is what is to be small."""
        ...

    def state(self) -> dict[str, Any]:
        """What a checkpoint must hold of this process beside the model and the optimizer."""
        ...

    def load_state(self, state: dict[str, Any]) -> None: ...


@dataclass
class Progress:
    """How far a run is."""

    step: int = 0
    seconds: float = 0.0  # spent on updates alone
    summed: int = 0  # updates whose losses are summed for the next line of the log
    best: dict[str, Any] = field(default_factory=dict)  # the evaluation of the model that is kept
    lowest: float = math.inf  # the lowest loss of an evaluation
    stale: int = 0  # evaluations since then
    finished: bool = False


class Trainer:
    """Trains a task as the settings say, and keeps its run's folder."""

    def __init__(
        self, task: Task, settings: TrainingSettings, run: Run, device: torch.device, display: Display, world: World
    ) -> None:
        self.task, self.settings, self.run, self.device, self.display = task, settings, run, device, display
        self.world = world
        self.optimizer = optimizers.build(settings, task.groups())
        self.precision = choose_precision(settings.precision, device)
        self.update = Update(task, self.optimizer, settings.clip, device, self.precision)
        self.total = settings.epochs * task.steps_per_epoch
        self.progress = Progress()
        self.positions = [0, 0, 0]  # bytes of the journals at the last checkpoint

    def resume(self) -> None:
        """Goes on from the last checkpoint, if there is one."""
        if not self.run.checkpoint.exists():
            if self.run.result.exists():
                raise ValueError(
                    f"{self.run.path} is finished and its {self.run.checkpoint.name} is gone: there is nothing to go "
                    "on from; use the model as it is, or train again with --force"
                )
            return
        content = checkpoint.load(self.run.checkpoint)
        if "ranks" not in content:
            raise ValueError(
                f"{self.run.checkpoint} is not a checkpoint to go on from, as {self.run.best.name} is not either: put "
                "back the one that was there, or start again with --force"
            )
        ranks = content["ranks"]
        if len(ranks) != self.world.size:
            raise ValueError(
                f"{self.run.path} was trained by {len(ranks)} process(es), now there are {self.world.size}: go on with "
                "as many as before"
            )
        self.progress = Progress(**content["progress"])
        self.positions = (content["positions"] + [0])[:3]  # older checkpoints do not know of who moved
        self.task.model.load_state_dict(content["model"])
        optimizers.load(self.optimizer, content["optimizer"])
        own = ranks[self.world.rank]
        self.task.load_state(own["task"])
        self.update.loss_sum.copy_(own["loss_sum"])
        checkpoint.set_random_state(own["random"], self.device)

    def fit(self) -> Progress:
        """Trains to the end, or until the user or a lack of progress stops it."""
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
        step_once = graphed(self.update, settings.graph, task.graphable and self.world.size == 1, self.display.say)
        self._go()
        saved_at, applied = self.started, math.nan
        while progress.step < self.total and not progress.finished:
            if progress.step % task.steps_per_epoch == 0:
                task.start_epoch()
            factor = schedules.factor(
                settings.schedule, progress.step, task.steps_per_epoch, settings.epochs, settings.warmup
            )
            if factor != applied:
                optimizers.set_learning_rate(self.optimizer, factor)
                applied = factor
            step_once(*task.batch(progress.step))
            progress.step += 1
            progress.summed += 1
            if (moved := task.updated()) is not None:
                self.world.by_main(partial(self._reorganized, {"step": progress.step, **moved}))
            epoch_over = progress.step % task.steps_per_epoch == 0
            look = epoch_over or bool(settings.evaluate_every and progress.step % settings.evaluate_every == 0)
            if look or progress.step % settings.log_every == 0:
                self._log(factor)
            if look:
                self._evaluate()
            if self.world.size == 1 or look or progress.step % settings.log_every == 0:
                # Several processes ask each other, and that only now and then.
                stop = self.world.any(interrupt.asked, self.device)
                since = time.perf_counter() - saved_at
                due = since >= settings.checkpoint_every * (EPOCH_SHARE if epoch_over else 1.0)
                over = progress.finished or progress.step == self.total
                if stop or over or self.world.any(due, self.device):
                    self._save()
                    saved_at = time.perf_counter()
                if stop:
                    return
        progress.finished = True

    def _go(self) -> None:
        self.started = time.perf_counter()
        self.timed = (self.progress.step, self.started)

    def _pause(self) -> None:
        """Stops the clock of training; waits for the device."""
        if self.device.type == "cuda":
            torch.cuda.synchronize(self.device)
        self.progress.seconds += time.perf_counter() - self.started

    def _log(self, factor: float) -> None:
        progress = self.progress
        loss = float(self.world.mean(self.update.loss_sum)) / progress.summed  # waits for the device
        self.update.loss_sum.zero_()
        progress.summed = 0
        if not math.isfinite(loss):
            raise self._diverged(loss)
        before, then = self.timed
        now = time.perf_counter()
        self.timed = (progress.step, now)
        rate = (progress.step - before) * self.task.words_per_step / max(now - then, 1e-9)
        record = {
            "event": "train",
            "step": progress.step,
            "epoch": progress.step / self.task.steps_per_epoch,
            "loss": loss,
            "perplexity": perplexity(loss),
            "learning_rate": self.settings.learning_rate * factor,
            "words_per_second": rate,
            "seconds": progress.seconds + now - self.started,
        }
        self.display.advance(progress.step, perplexity(loss), rate)
        self.world.by_main(partial(self._note, "train", record))

    def _evaluate(self) -> None:
        self._pause()
        progress = self.progress
        measured = self.world.from_main(self.task.evaluate() if self.world.main else None)
        record = {"event": "evaluate", "step": progress.step, "epoch": progress.step / self.task.steps_per_epoch}
        record |= {**measured, "seconds": progress.seconds}
        loss = measured["loss"]
        # Written so that a loss that is not a number is never the lowest.
        better = not progress.best or loss < progress.lowest
        progress.stale = 0 if better else progress.stale + 1
        if loss < progress.lowest:
            progress.lowest = loss
        kept = better or (self.settings.keep == "last" and math.isfinite(loss))
        if kept:
            progress.best = record
        self.world.by_main(partial(self._note, "evaluate", record))
        if self.world.main:
            told = ", ".join(f"{key.replace('_', ' ')} {value:.4g}" for key, value in measured.items() if key != "loss")
            self.display.say(f"update {progress.step:,}: {told}")
        if kept:
            content = {"model": self.task.model.state_dict(), "evaluation": record}
            self.world.by_main(lambda: checkpoint.save(self.run.best, content))
        if self.settings.patience is not None and progress.stale >= self.settings.patience:
            progress.finished = True
            self.display.say(f"stopped early: the last {progress.stale} evaluations were no better")
        self._go()

    def _note(self, name: str, record: dict[str, Any]) -> None:
        """In the log, and on TensorBoard under a name."""
        self.journals[0].write(record)
        self.board.write(name, record)

    def _reorganized(self, record: dict[str, Any]) -> None:
        self.journals[1].write(record)
        self.journals[2].reorganized(record["step"])
        self.board.write("reorganisation", record)

    def _diverged(self, loss: float) -> ValueError:
        return ValueError(
            f"the loss is {loss} at update {self.progress.step}: lower the learning rate or the clipping norm"
            + (". The last checkpoint is unharmed" if self.run.checkpoint.exists() else "")
        )

    def _save(self) -> None:
        self._pause()
        loss = float(self.update.loss_sum)
        if self.world.any(not math.isfinite(loss), self.device):  # what is saved must be worth going on from
            raise self._diverged(loss)
        own = {
            "task": self.task.state(),
            "random": checkpoint.random_state(self.device),
            "loss_sum": self.update.loss_sum,
        }
        ranks = self.world.gather(own)

        def save() -> None:
            positions = [journal.position() for journal in self.journals]
            content = {
                "progress": asdict(self.progress), "positions": positions, "ranks": ranks,
                "model": self.task.model.state_dict(), "optimizer": self.optimizer.state_dict(),
            }  # fmt: skip
            checkpoint.save(self.run.checkpoint, content)

        self.world.by_main(save)
        self._go()

    def _open(self) -> None:
        run, (log, reorganizations, moves) = self.run, self.positions
        self.journals = (
            Journal(run.log, log), Journal(run.reorganizations, reorganizations),
            MovesJournal(run.moves, moves, self.task.model, self.progress.step),
        )  # fmt: skip
        self.board = Board(self.run.path / "tensorboard", self.progress.step)
        if not self.progress.step:
            self.journals[0].write({"event": "built", "step": 0, "seconds": self.task.building})

    def _close(self) -> None:
        if self.world.main:
            for journal in self.journals:
                journal.close()
            self.board.close()
