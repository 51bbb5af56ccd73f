"""The training loop: a run is a folder, may be interrupted anywhere, and goes on exactly where it was.

    RUN/recipe.json     what it does            RUN/log.jsonl     one line per step
    RUN/tokenizer.json  its tokenizer           RUN/state/        the last good state (weights, optimiser, guard)
    RUN/telemetry.jsonl readings of the model   RUN/events.jsonl  spikes, and why the guard stopped it (telemetry.py)
    RUN/sittings.jsonl  where each was made     RUN/snapshots/    weights kept on the way (snapshots.py)
    RUN/decay-<tokens>/ a decay branch, with the same files; its state/ holds the weights to ship

Whose the folder is, is in folder.py. Of several processes (distributed.py) only the first writes.

The rate warms up, stays constant to the recipe's end, and each decay branch takes it linearly to zero from the state it
started at: one long run serves every size that ships.
"""

from __future__ import annotations

import math
import time
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any, Literal

import torch
from tokenizers import Tokenizer
from torch import Tensor

from legible_core.checkpoint import load
from legible_core.errors import Conflict, LegibleError
from legible_core.model import Transformer
from legible_core.registry import Checkpoint
from legible_core.training.batches import Batches
from legible_core.training.data import Order, Progress
from legible_core.training.distributed import agree, any_of, first_alone, losing, rank, same_everywhere, share, world
from legible_core.training.fit import check_fits
from legible_core.training.folder import check_owner, claim, find_corpus, find_tokenizer
from legible_core.training.guard import Guard
from legible_core.training.optimiser import Optimiser
from legible_core.training.recipe import Recipe
from legible_core.training.revive import revive
from legible_core.training.snapshots import Snapshots
from legible_core.training.sources import Files, Source
from legible_core.training.state import append, cut_log, has_state, kept, read_meta, read_state, unreadable, write_state
from legible_core.training.step import Objective, Precision, over_processes, train_step
from legible_core.training.telemetry import EVERY_STEPS, Telemetry


class Diverged(LegibleError):
    """The guard stopped the run or does not take its end for one; the message says why and which state is kept."""

    code = "diverged"
    status = 500


@dataclass(frozen=True)
class Step:
    """What one step reports: `loss` is the next-token loss in nats, `pressure` the penalties added to it."""

    number: int
    last: int
    tokens: int
    loss: float
    pressure: float
    gradient_norm: float
    factor: float
    perplexity: float
    seconds: float

    def to_json(self) -> dict[str, Any]:
        return dict(vars(self))


class Run:
    """A recipe, its data and its folder.

    text: the training text (`sources.find_source`, or a path). device: where to train; of several processes, each has
    its own. precision, compiled: as `step.Objective` has them.
    begin: a checkpoint and how many tokens it was trained on; a run without a state begins from its weights, as if so
    many had been trained: text and stages go on there. The optimiser starts anew, so the rate warms up again.

    Raises `Conflict` when the folder belongs to another recipe, tokenizer or text, and when the checkpoint to begin
    from has another shape or tokenizer; the folder is no run's then.
    """

    def __init__(
        self,
        recipe: Recipe,
        folder: Path,
        text: Path | Source,
        *,
        tokenizer: Path | None = None,
        cache: Path | None = None,
        device: str | torch.device = "cpu",
        progress: Progress | None = None,
        telemetry_every: int = EVERY_STEPS,
        precision: Precision = "float32",
        compiled: bool = False,
        begin: tuple[Checkpoint, int] | None = None,
    ) -> None:
        self.recipe, self.folder, self.device = recipe, folder, torch.device(device)
        self.telemetry_every, self.precision, self.compiled = telemetry_every, precision, compiled
        _check_share(recipe)
        check_fits(recipe, self.device, precision)
        check_owner(folder, recipe)
        folder.mkdir(parents=True, exist_ok=True)
        source = Files(text) if isinstance(text, Path) else text
        self.tokenizer = find_tokenizer(folder, recipe, source, tokenizer)
        corpus = find_corpus(folder, recipe, source, self.tokenizer, cache, progress)
        self.order = Order(corpus.ids, recipe.model.context, recipe.data.order_seed, recipe.data.held_out_tokens)
        self.model = Transformer(recipe.model.config(recipe.data.vocab_size))
        with first_alone() as first:
            if first:
                beginning = None if begin is None or has_state(folder / "state") else self._beginning(*begin)
                claim(folder, recipe, self.tokenizer, tokenizer, corpus)
                if beginning is not None:
                    write_state(folder / "state", *beginning)

    def train(
        self,
        on_step: Callable[[Step], bool],
        *,
        save_seconds: float = 240.0,
        steps: int | None = None,
        snapshot_every: int | None = None,
    ) -> bool:
        """The warm-up and constant part, to step number `steps` of the run (default: the recipe's end).

        `on_step` returns False to stop after saving; True when the end was reached and is saved. snapshot_every: tokens
        between two snapshots besides the recipe's. Raises `Diverged` when the guard stops it or it ends on a rise,
        `ProcessLost` when another process of the run ends.
        """
        last = self.recipe.steps if steps is None else steps
        snapshots = Snapshots(self.recipe, self.folder, snapshot_every, last)
        return self._go(self.folder, last, on_step, save_seconds, None, snapshots)

    def decay(self, on_step: Callable[[Step], bool], *, tokens: int | None = None, save_seconds: float = 240.0) -> Path:
        """Branch off the run's present state and take the rate to zero over `tokens`; the branch's folder.

        The run's own state stays as it is, so that it can go on afterwards. Resumable like the run itself, and raises
        what `train` raises: the branch that is given back was decayed to its end.
        """
        size = self.recipe.schedule.batch_tokens
        steps = (tokens or self.recipe.schedule.decay_tokens) // size
        if steps < 1:
            raise LegibleError("The decay needs at least one batch; set schedule.decay_tokens or --decay-tokens.")
        loaded = read_state(self.folder / "state")
        if loaded is None:
            raise LegibleError("This run has no state yet to decay from; train it first.")
        weights, optimiser, meta = loaded
        branch = self.folder / f"decay-{meta['step'] * size}"
        last = meta["step"] + steps
        # A branch keeps its length: the rate would jump up again on its way to a later zero.
        known = (read_meta(branch / "state") or {}).get("decay_to")
        if known not in (None, last):
            raise Conflict(
                f"{branch} is a decay over {(known - meta['step']) * size:,} tokens, and this one would take "
                f"{steps * size:,}; give --decay-tokens that number, or remove the folder to decay anew."
            )
        with first_alone() as first:
            if first and not has_state(branch / "state"):
                branch.mkdir(parents=True, exist_ok=True)
                write_state(branch / "state", weights, optimiser, meta | {"decay_to": last})
        if not self._go(branch, last, on_step, save_seconds, decay_from=meta["step"]):
            raise KeyboardInterrupt
        return branch

    @torch.no_grad()
    def held_out_loss(self, batch: int = 16) -> Tensor:
        """Next-token loss of every token of the held-out slice, in order, float32: pair two runs for a difference."""
        losses = []
        for rows in self.order.held_out_batches(batch):
            rows = rows.to(self.device)
            logits = self.model(rows[:, :-1])
            losses.append(
                torch.nn.functional.cross_entropy(logits.flatten(0, 1), rows[:, 1:].flatten(), reduction="none")
            )
        return torch.cat(losses)

    def load(self, folder: Path) -> dict[str, Any]:
        """Put a saved state's weights into the model and return its meta."""
        loaded = read_state(folder / "state")
        if loaded is None:
            raise LegibleError(f"There is no training state in {folder}.")
        self.model.load_state_dict(loaded[0])
        return loaded[2]

    # ---- inside --------------------------------------------------------------------------------------------------

    def _beginning(self, checkpoint: Checkpoint, tokens: int) -> tuple[dict[str, Tensor], dict[str, Tensor], Any]:
        """The state that a run has which begins from a checkpoint: weights, an optimiser's empty buffers, and meta."""
        model = load(checkpoint)
        if model.config != self.model.config:
            raise Conflict(
                f"{checkpoint.path} has another shape than the recipe's [model]; give a checkpoint of the same recipe."
            )
        theirs = Tokenizer.from_file(str(checkpoint.tokenizer_path))
        if theirs.to_str() != self.tokenizer.to_str():
            raise Conflict(
                f"{checkpoint.path} has another tokenizer than the run; give its own with --tokenizer "
                f"{checkpoint.tokenizer_path}."
            )
        step = tokens // self.recipe.schedule.batch_tokens
        if step < 1:
            raise LegibleError("Say how many tokens the checkpoint was trained on, at least one batch: --from-tokens.")
        optimiser = Optimiser(model, self.recipe.optimiser)
        guard = Guard()
        guard.settle = self.recipe.schedule.warmup_tokens // self.recipe.schedule.batch_tokens + 2 * guard.horizon
        meta = {
            "step": step, "tokens": step * self.recipe.schedule.batch_tokens, "guard": guard.to_json(),
            "decay_from": None, "warm_from": step, "begun_from": checkpoint.hash,
        }  # fmt: skip
        return dict(model.named_parameters()), optimiser.empty_state(), meta

    def _go(
        self,
        folder: Path,
        last: int,
        on_step: Callable[[Step], bool],
        save_seconds: float,
        decay_from: int | None,
        snapshots: Snapshots | None = None,
    ) -> bool:
        recipe, size = self.recipe, self.recipe.schedule.batch_tokens
        model = self.model.to(self.device)
        model.initialise(torch.Generator().manual_seed(recipe.seed))
        optimiser, guard, step = Optimiser(model, recipe.optimiser), Guard(), 0
        loaded = read_state(folder / "state")
        begun: dict[str, Any] = {}
        if loaded is not None:
            weights, buffers, meta = loaded
            begun = {key: meta[key] for key in ("warm_from", "begun_from") if key in meta}
            try:
                guard.load(meta.get("guard"))
                model.load_state_dict(weights)
            except (ValueError, RuntimeError) as error:
                raise unreadable(folder / "state", str(error).partition("\n")[0].rstrip(":")) from None
            optimiser.load_state({name: self._placed(name, value) for name, value in buffers.items()})
            step = meta["step"]
        first = rank() == 0
        if first:
            for name in ("log.jsonl", "telemetry.jsonl", "events.jsonl"):
                cut_log(folder / name, step)
            if step < last:
                append(folder / "sittings.jsonl", self._sitting(step))
        telemetry = Telemetry(folder, model, self.telemetry_every)

        def save() -> None:
            if not agree(model.parameters()):
                raise Diverged(
                    "Training stopped: the processes of this run no longer hold the same weights. "
                    f"{kept(folder)} The same command goes on from there."
                )
            meta = {"step": step, "tokens": step * size, "guard": guard.to_json(), "decay_from": decay_from}
            meta |= begun | ({} if decay_from is None else {"decay_to": last})
            if first:
                write_state(folder / "state", dict(model.named_parameters()), optimiser.state(), meta)

        saved = time.monotonic()
        with losing(folder), Batches(self._share, self.device) as batches:
            objective = over_processes(Objective(model, recipe, self.precision, self.compiled))
            if first and snapshots is not None and step == 0:
                snapshots.after(step, model)
            while step < last:
                started = time.monotonic()
                if decay_from is None and step * size in recipe.schedule.revive_tokens:
                    self._revive(optimiser, step, "random")
                if decay_from is None and step * size in recipe.schedule.revive_data_tokens:
                    self._revive(optimiser, step, "data")
                factor = _factor(recipe, step, decay_from, last, begun.get("warm_from", 0))
                batch = batches.take(step)
                loss, pressure, norm = train_step(model, optimiser, recipe, batch, step * size, factor, objective)
                reason = guard.observe(loss)
                if reason is None and not math.isfinite(norm):
                    reason = f"the gradient of step {step} is not finite"
                if reason is not None:
                    if first:
                        telemetry.event(step + 1, "diverged", reason)
                    raise Diverged(
                        f"Training stopped: {reason}. {kept(folder)} Lower the learning rates or the pressures and "
                        "start again from there."
                    )
                step += 1
                took = time.monotonic() - started
                done = Step(step, last, step * size, loss, pressure, norm, factor, guard.perplexity, took)
                if first:
                    append(folder / "log.jsonl", done.to_json())
                    telemetry.after(step, last, guard, partial(self._contexts, step - 1))
                    if snapshots is not None:
                        snapshots.after(step, model)
                stop = any_of(not on_step(done))
                # A state is replaced only by a healthy one, so that a divergence leaves what was good before it. The
                # last one is also saved while a spike still stands in the mean: no later step could save it.
                if stop or step == last or any_of(first and time.monotonic() - saved > save_seconds):
                    if guard.healthy or (step == last and not guard.rising):
                        save()
                    elif step == last:
                        reason = (
                            f"by its last step, {step}, the cumulative perplexity has risen to {guard.perplexity:.1f}, "
                            f"more than {guard.tolerance:.0%} above its lowest, and the last steps stand as high"
                        )
                        if first:
                            telemetry.event(step + 1, "diverged", reason)
                        raise Diverged(
                            f"The training is not finished: {reason}. {kept(folder)} Train for longer, or lower the "
                            "learning rates or the pressures and start again from there."
                        )
                    saved = time.monotonic()
                if stop:
                    return step == last
        return True

    def _revive(self, optimiser: Optimiser, step: int, rows: Literal["random", "data"]) -> None:
        """Give dead operands a new start, judged on the next four steps' text; a run that resumes does the same.

        Every process does it on the same text, and then takes the first one's outcome.
        """
        batches = [self._contexts(step + i)[:, :-1].to(self.device) for i in range(4)]
        counts = revive(self.model, optimiser, batches, torch.Generator().manual_seed(self.recipe.seed + step), rows)
        same_everywhere([*(p.data for p in self.model.parameters()), *optimiser.state().values()])
        if rank() == 0:
            cut_log(self.folder / "revived.jsonl", step - 1)
            append(self.folder / "revived.jsonl", {"number": step, "rows": rows, "revived": counts})

    def _contexts(self, step: int, count: int | None = None) -> Tensor:
        """The contexts of step number `step`, or the first `count` of them, each with the token that follows it."""
        rows = self.recipe.schedule.batch_tokens // self.recipe.model.context
        return self.order.batch(step * rows, min(rows, count or rows))

    def _share(self, step: int) -> Tensor:
        """What this process takes of a step's contexts."""
        schedule = self.recipe.schedule
        micro = (schedule.micro_batch_tokens or schedule.batch_tokens) // self.recipe.model.context
        return share(self._contexts(step), micro)

    def _placed(self, name: str, value: Tensor) -> Tensor:
        """A buffer where the optimiser has it: on the device, but AdamW counts its steps on the host."""
        return value if name.startswith("adam.step.") else value.to(self.device)

    def _sitting(self, step: int) -> dict[str, Any]:
        """Where and how the steps from here on are made; another place may differ in the last bits."""
        device = torch.cuda.get_device_name(self.device) if self.device.type == "cuda" else self.device.type
        return {
            "number": step, "device": device, "processes": world(), "precision": self.precision,
            "compiled": self.compiled, "threads": torch.get_num_threads(), "torch": torch.__version__,
            "time": time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime()),
        }  # fmt: skip


def _check_share(recipe: Recipe) -> None:
    """Every process must get the same number of a micro-batch's contexts."""
    micro = (recipe.schedule.micro_batch_tokens or recipe.schedule.batch_tokens) // recipe.model.context
    if micro % world():
        raise LegibleError(
            f"A micro-batch of {micro} contexts cannot be shared equally by {world()} processes; give "
            "schedule.micro_batch_tokens (or batch_tokens) a multiple of context times processes.",
            code="bad_options",
        )


def _factor(recipe: Recipe, step: int, decay_from: int | None, last: int, warm_from: int = 0) -> float:
    """Learning-rate factor of a step: linear warm-up, then 1, then linear to 0 on a decay branch."""
    if decay_from is not None and step >= decay_from:
        return (last - step) / (last - decay_from)
    warmup = recipe.schedule.warmup_tokens // recipe.schedule.batch_tokens
    return min(1.0, (step - warm_from + 1) / (warmup + 1))
