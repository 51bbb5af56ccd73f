"""The training loop: a run is a folder, may be interrupted anywhere, and goes on exactly where it was.

    RUN/recipe.json     what it does            RUN/log.jsonl     one line per step
    RUN/tokenizer.json  its tokenizer           RUN/state/        the last good state (weights, optimiser, guard)
    RUN/decay-<tokens>/ a decay branch, with the same files; its state/ holds the weights to ship

The rate warms up, stays constant to the recipe's end, and each decay branch takes it linearly to zero from the state it
started at: one long run serves every size that ships.
"""

from __future__ import annotations

import json
import math
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from tokenizers import Tokenizer
from torch import Tensor

from legible_core.checkpoint import load
from legible_core.errors import Conflict, LegibleError
from legible_core.model import Transformer
from legible_core.registry import Checkpoint
from legible_core.training.data import Order, tokenise, train_tokenizer
from legible_core.training.guard import Guard
from legible_core.training.optimiser import Optimiser
from legible_core.training.recipe import Recipe
from legible_core.training.revive import revive
from legible_core.training.state import read_state, write_state
from legible_core.training.step import train_step


class Diverged(LegibleError):
    """The guard stopped the run; the message says why and which state is kept."""

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

    text: the training text. device: where to train. Raises `Conflict` when the folder belongs to another recipe.
    """

    def __init__(
        self,
        recipe: Recipe,
        folder: Path,
        text: Path,
        *,
        tokenizer: Path | None = None,
        cache: Path | None = None,
        device: str = "cpu",
        progress: Callable[[int, int], None] | None = None,
    ) -> None:
        self.recipe, self.folder, self.device = recipe, folder, torch.device(device)
        self._check_owner()
        folder.mkdir(parents=True, exist_ok=True)
        self.tokenizer = self._tokenizer(text, tokenizer)
        if (size := self.tokenizer.get_vocab_size()) != recipe.data.vocab_size:
            made = tokenizer is None and not (folder / "tokenizer.json").exists()
            raise Conflict(
                f"The tokenizer has {size} entries but the recipe's data.vocab_size is {recipe.data.vocab_size}; "
                + (f"this text gives no more, so make that {size}." if made else "make them equal.")
            )
        ids = tokenise(text, self.tokenizer, cache or folder / "tokens", progress)
        self.order = Order(ids, recipe.model.context, recipe.data.order_seed, recipe.data.held_out_tokens)
        self.model = Transformer(recipe.model.config(recipe.data.vocab_size))
        self._claim(tokenizer)

    def train(self, on_step: Callable[[Step], bool], *, save_seconds: float = 240.0) -> bool:
        """The warm-up and constant part. `on_step` returns False to stop after saving; True when the end was reached.

        Raises `Diverged` when the guard stops it.
        """
        return self._go(self.folder, self.recipe.steps, on_step, save_seconds, decay_from=None)

    def decay(self, on_step: Callable[[Step], bool], *, tokens: int | None = None, save_seconds: float = 240.0) -> Path:
        """Branch off the run's present state and take the rate to zero over `tokens`; the branch's folder.

        The run's own state stays as it is, so that it can go on afterwards. Resumable like the run itself.
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
        if read_state(branch / "state") is None:
            branch.mkdir(parents=True, exist_ok=True)
            write_state(branch / "state", weights, optimiser, meta)
        if not self._go(branch, meta["step"] + steps, on_step, save_seconds, decay_from=meta["step"]):
            raise KeyboardInterrupt
        return branch

    def begin_from(self, checkpoint: Checkpoint, tokens: int) -> None:
        """Start a fresh run from a checkpoint's weights, as if `tokens` had been trained: text and stages go on there.

        The optimiser starts anew, so the rate warms up again from that step. Does nothing when the run has a state.
        Raises `Conflict` when the checkpoint has another shape or tokenizer than the recipe.
        """
        if read_state(self.folder / "state") is not None:
            return
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
        write_state(self.folder / "state", dict(model.named_parameters()), optimiser.empty_state(), meta)

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

    def _go(
        self, folder: Path, last: int, on_step: Callable[[Step], bool], save_seconds: float, decay_from: int | None
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
            model.load_state_dict(weights)
            optimiser.load_state({name: value.to(self.device) for name, value in buffers.items()})
            guard.load(meta["guard"])
            step = meta["step"]
        _cut_log(folder / "log.jsonl", step)

        def save() -> None:
            meta = {"step": step, "tokens": step * size, "guard": guard.to_json(), "decay_from": decay_from}
            meta |= begun
            write_state(folder / "state", dict(model.named_parameters()), optimiser.state(), meta)

        saved = time.monotonic()
        with (folder / "log.jsonl").open("a", encoding="utf-8") as log:
            while step < last:
                started = time.monotonic()
                if step * size in recipe.schedule.revive_tokens and decay_from is None:
                    self._revive(optimiser, step)
                factor = _factor(recipe, step, decay_from, last, begun.get("warm_from", 0))
                loss, pressure, norm = self._step(optimiser, step, factor)
                reason = guard.observe(loss)
                if reason is None and not math.isfinite(norm):
                    reason = f"the gradient of step {step} is not finite"
                if reason is not None:
                    raise Diverged(
                        f"Training stopped: {reason}. The last good state is kept in {folder / 'state'}; "
                        "lower the learning rates or the pressures and start again from it."
                    )
                step += 1
                took = time.monotonic() - started
                done = Step(step, last, step * size, loss, pressure, norm, factor, guard.perplexity, took)
                log.write(json.dumps(done.to_json()) + "\n")
                log.flush()
                go_on = on_step(done)
                # A state is replaced only by a healthy one, so that a divergence leaves what was good before it.
                if not go_on or step == last or time.monotonic() - saved > save_seconds:
                    if guard.healthy:
                        save()
                    saved = time.monotonic()
                if not go_on:
                    return step == last
        return True

    def _revive(self, optimiser: Optimiser, step: int) -> None:
        """Give dead operands a new start, judged on the next four steps' text; a run that resumes does the same."""
        rows = self.recipe.schedule.batch_tokens // self.recipe.model.context
        batches = [self.order.batch((step + i) * rows, rows)[:, :-1].to(self.device) for i in range(4)]
        counts = revive(self.model, optimiser, batches, torch.Generator().manual_seed(self.recipe.seed + step))
        line = json.dumps({"number": step, "revived": counts})
        _cut_log(self.folder / "revived.jsonl", step - 1)
        with (self.folder / "revived.jsonl").open("a", encoding="utf-8") as file:
            file.write(line + "\n")

    def _step(self, optimiser: Optimiser, step: int, factor: float) -> tuple[float, float, float]:
        """The loss, the penalty and the gradient's norm before the clip of step number `step`."""
        size = self.recipe.schedule.batch_tokens
        rows = size // self.recipe.model.context
        batch = self.order.batch(step * rows, rows).to(self.device)
        return train_step(self.model, optimiser, self.recipe, batch, step * size, factor)

    def _check_owner(self) -> None:
        """Refuse a folder that holds another recipe's run; a run's length may be changed later, nothing else."""
        path = self.folder / "recipe.json"
        if not path.exists():
            return
        mine = json.loads(json.dumps(self.recipe.to_json()))
        try:
            theirs = json.loads(path.read_text(encoding="utf-8"))
            for data in (mine, theirs):
                for name in ("tokens", "decay_tokens"):
                    data["schedule"].pop(name, None)
                data.pop("note", None)
        except (ValueError, KeyError, TypeError, AttributeError):
            raise Conflict(f"{path} is not what a run writes; give --out another folder.") from None
        if mine != theirs:
            raise Conflict(f"{self.folder} holds a run of another recipe; give --out another folder.")

    def _claim(self, tokenizer: Path | None) -> None:
        """Mark the folder as this recipe's. Only after every check, so that a recipe that was refused can be mended."""
        own = self.folder / "tokenizer.json"
        if not own.exists() and tokenizer is not None:
            own.write_bytes(tokenizer.read_bytes())
        elif not own.exists():
            self.tokenizer.save(str(own))
        text = json.dumps(self.recipe.to_json(), indent=1) + "\n"
        (self.folder / "recipe.json").write_text(text, encoding="utf-8")

    def _tokenizer(self, text: Path, given: Path | None) -> Tokenizer:
        """The run's own where it has one, else the given one, else one trained on the text."""
        own = self.folder / "tokenizer.json"
        path = own if own.exists() else given
        if path is not None:
            try:
                return Tokenizer.from_file(str(path))
            except Exception as error:  # the library raises nothing narrower
                raise LegibleError(
                    f"The tokenizer {path} cannot be used: {error}.", code="bad_tokenizer",
                    hint="Give a tokenizer.json that the tokenizers library wrote.",
                ) from None  # fmt: skip
        return train_tokenizer(text, self.recipe.data.vocab_size)


def _factor(recipe: Recipe, step: int, decay_from: int | None, last: int, warm_from: int = 0) -> float:
    """Learning-rate factor of a step: linear warm-up, then 1, then linear to 0 on a decay branch."""
    if decay_from is not None and step >= decay_from:
        return (last - step) / (last - decay_from)
    warmup = recipe.schedule.warmup_tokens // recipe.schedule.batch_tokens
    return min(1.0, (step - warm_from + 1) / (warmup + 1))


def _cut_log(path: Path, step: int) -> None:
    """Drop the lines that a killed run logged after its last saved state, so that every step stands there once."""
    if not path.exists():
        return
    kept = []
    for line in path.read_text(encoding="utf-8").splitlines():
        try:
            if json.loads(line)["number"] <= step:
                kept.append(line)
        except (ValueError, KeyError):
            continue
    path.write_text("".join(line + "\n" for line in kept), encoding="utf-8")
