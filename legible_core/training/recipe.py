"""A recipe: one TOML file that says everything a run does; unknown and contradictory entries are refused.

A recipe may name another as its `base` and say only what is particular to it: tables are merged entry by entry,
anything else is replaced. A path in a base is relative to the base's own folder.
"""

from __future__ import annotations

import dataclasses
import difflib
import math
import os
import tomllib
import types
import typing
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal

from legible_core.config import MAX_SIZE, Attention, FeedForward, ModelConfig, Value
from legible_core.errors import LegibleError, NotFound
from legible_core.training.angle import Angle
from legible_core.training.pressures import Pressure
from legible_core.units import Activation

# How many recipes may stand behind one another.
MAX_BASES = 8
MAX_NAME = 200  # bytes; folders take no more than 255
MAX_SEED = (1 << 53) - 1
# What a dataset's name begins with in place of a path.
HUB = "hf:"
# How many snapshots a run keeps.
MAX_SNAPSHOTS = 100
# Bytes of a recipe's file.
MAX_RECIPE = 1 << 20


@dataclass(frozen=True)
class ModelRecipe:
    """Sizes and axes; `special_fraction` of the heads of every layer use the bounded value.

    `gelu_fraction` is the share ρ of plain feed-forward units, whatever their `activation`.
    """

    n_layers: int
    d_model: int
    n_heads: int
    context: int
    value: Value = "linear"
    special_fraction: float = 1.0
    d_ff: int | None = None
    gelu_fraction: float = 1.0
    quantifier_fraction: float = 0.0
    activation: Activation = "gelu"

    @property
    def n_special(self) -> int:
        """Bounded heads of each layer."""
        return 0 if self.value == "linear" else round(self.n_heads * self.special_fraction)

    def check(self) -> None:
        """Raise `LegibleError` for axes that contradict each other; `config` checks the sizes."""
        for name in ("n_layers", "d_model", "n_heads", "context"):
            if not 1 <= getattr(self, name) <= MAX_SIZE:
                raise _bad(f"model.{name} is {getattr(self, name)}; it must be a whole number from 1 to {MAX_SIZE}")
        if not 0 < self.special_fraction <= 1:
            raise _bad(f"model.special_fraction is {self.special_fraction}; it must be above 0 and at most 1")
        if self.value == "linear" and self.special_fraction != 1.0:
            raise _bad("model.special_fraction divides bounded heads from linear ones, but model.value is linear")
        if self.value != "linear" and not self.n_special:
            raise _bad(f"model.special_fraction {self.special_fraction} of {self.n_heads} heads is none")
        if self.quantifier_fraction and self.gelu_fraction == 1.0:
            raise _bad("model.quantifier_fraction is a share of the named units; model.gelu_fraction 1 leaves none")

    def config(self, vocab_size: int) -> ModelConfig:
        return ModelConfig(
            n_layers=self.n_layers,
            d_model=self.d_model,
            n_heads=self.n_heads,
            context=self.context,
            vocab_size=vocab_size,
            attention=Attention(self.value, (self.n_special,) * self.n_layers),
            feed_forward=FeedForward(
                self.d_ff or 4 * self.d_model, self.gelu_fraction, self.quantifier_fraction, self.activation
            ),
        )


@dataclass(frozen=True)
class DataRecipe:
    """Text files (plain or xz; documents separated by a line `<|endoftext|>`) and the tokenizer.

    `tokenizer` names a tokenizer.json; without it one of `vocab_size` entries is trained on `train`. The last
    `held_out_tokens` of the training text are never trained on. Runs that share `order_seed` see the same tokens in the
    same order. `train` may also be a folder, or `hf:NAME` or `hf:NAME@REVISION`, a dataset of the Hugging Face hub, of
    which `dataset_config`, `dataset_split` and `dataset_column` say what to read. `max_tokens` takes the text's first.
    """

    train: str
    tokenizer: str | None = None
    vocab_size: int = 8192
    held_out_tokens: int = 262_144
    order_seed: int = 0
    max_tokens: int | None = None
    dataset_config: str | None = None
    dataset_split: str = "train"
    dataset_column: str = "text"


@dataclass(frozen=True)
class OptimiserRecipe:
    """`muon`: the layers' matrices on Muon at `matrix_lr`, the rest on AdamW at `lr`; `adamw`: everything at `lr`."""

    kind: Literal["muon", "adamw"] = "muon"
    lr: float = 3e-3
    theta_lr: float = 3e-3
    weight_decay: float = 0.1
    betas: tuple[float, float] = (0.9, 0.95)
    matrix_lr: float = 0.02
    matrix_weight_decay: float = 0.1
    momentum: float = 0.95
    clip: float = 1.0

    def check(self) -> None:
        """Raise `LegibleError` for a number with which no step makes sense; a rate of 0 holds its parameters."""
        for name in ("lr", "theta_lr", "matrix_lr", "weight_decay", "matrix_weight_decay"):
            value = getattr(self, name)
            if not (math.isfinite(value) and value >= 0):
                raise _bad(f"optimiser.{name} is {value}; it must be a finite number of at least 0")
        if not self.clip > 0:
            raise _bad(f"optimiser.clip is {self.clip}; it must be a number above 0")
        for name, value in (("momentum", self.momentum), *(("betas", beta) for beta in self.betas)):
            if not 0 <= value < 1:
                raise _bad(f"optimiser.{name} is {getattr(self, name)}; it must be at least 0 and below 1")


@dataclass(frozen=True)
class ScheduleRecipe:
    """Warm-up, constant, then a decay branch (linear to zero); all lengths in tokens.

    At each of `revive_tokens` the operands that are CONSTANT by then get a new start (`training/revive.py`) with
    random rows, at each of `revive_data_tokens` with rows read off the data; at each
    of `snapshot_tokens` the weights are kept (`training/snapshots.py`). `micro_batch_tokens` go through the model at
    once, over all processes together.
    """

    tokens: int
    warmup_tokens: int = 200_000
    decay_tokens: int = 0
    batch_tokens: int = 4096
    micro_batch_tokens: int | None = None
    revive_tokens: tuple[int, ...] = ()
    revive_data_tokens: tuple[int, ...] = ()
    snapshot_tokens: tuple[int, ...] = ()


@dataclass(frozen=True)
class Recipe:
    """One run. Raises `LegibleError` with the field's name when something is unknown, missing or contradictory."""

    name: str
    model: ModelRecipe
    data: DataRecipe
    schedule: ScheduleRecipe
    seed: int = 0
    optimiser: OptimiserRecipe = field(default_factory=OptimiserRecipe)
    attention_pressure: Pressure = field(default_factory=Pressure)
    feed_forward_pressure: Pressure = field(default_factory=Pressure)
    angle: Angle = field(default_factory=Angle)
    note: str = ""

    def __post_init__(self) -> None:
        odd = self.name in ("", "..") or Path(self.name).name != self.name or set(self.name) & {"\\", "\0"}
        if odd or len(self.name.encode()) > MAX_NAME:
            raise _bad(f"name is {self.name[:80]!r}; the run's folder is called so: it must be one folder's name")
        for key, seed in (("seed", self.seed), ("data.order_seed", self.data.order_seed)):
            if not 0 <= seed <= MAX_SEED:
                raise _bad(f"{key} must be a whole number from 0 to {MAX_SEED}")
        self.model.check()
        self.optimiser.check()
        context, schedule = self.model.context, self.schedule
        for name, at_least in (
            ("batch_tokens", 1),
            ("micro_batch_tokens", 1),
            ("warmup_tokens", 0),
            ("decay_tokens", 0),
        ):
            count = getattr(schedule, name)
            if count is not None and count < at_least:
                raise _bad(f"schedule.{name} is {count}; it must be at least {at_least}")
        if self.data.held_out_tokens <= context:
            raise _bad(
                f"data.held_out_tokens is {self.data.held_out_tokens}; it must be more than one context ({context}), "
                "since the held-out loss is measured on it"
            )
        micro = schedule.micro_batch_tokens or schedule.batch_tokens
        if schedule.batch_tokens % context:
            raise _bad(f"schedule.batch_tokens {schedule.batch_tokens} is no multiple of the context {context}")
        if micro % context or schedule.batch_tokens % micro:
            raise _bad("schedule.micro_batch_tokens must be a multiple of the context and divide batch_tokens")
        for name in ("revive_tokens", "revive_data_tokens"):
            if any(tokens <= 0 or tokens % schedule.batch_tokens for tokens in getattr(schedule, name)):
                raise _bad(f"schedule.{name} must be multiples of batch_tokens ({schedule.batch_tokens})")
        if any(tokens < 0 for tokens in schedule.snapshot_tokens) or len(schedule.snapshot_tokens) > MAX_SNAPSHOTS:
            raise _bad(f"schedule.snapshot_tokens must be at most {MAX_SNAPSHOTS} numbers of at least 0")
        if self.data.max_tokens is not None and self.data.max_tokens < 1:
            raise _bad("data.max_tokens must be at least 1")
        if schedule.tokens < schedule.batch_tokens:
            raise _bad(f"schedule.tokens must be at least one batch ({schedule.batch_tokens} tokens)")
        if self.attention_pressure.regime != "none" and self.model.value == "linear":
            raise _bad("attention_pressure needs a bounded value; model.value is linear")
        config = self.model.config(self.data.vocab_size)
        if self.feed_forward_pressure.regime != "none" and not config.feed_forward.n_bounded:
            raise _bad(
                "feed_forward_pressure presses memberships, and this feed-forward layer has none: model.gelu_fraction "
                f"is {self.model.gelu_fraction:g} and model.activation is {self.model.activation}, which has no rails"
            )
        if self.angle.weight and self.model.n_layers < 2:
            raise _bad("angle.weight needs at least two layers: the last one's decode is the prediction itself")
        for name in ("attention_pressure", "feed_forward_pressure"):
            for strength in getattr(self, name).strengths():
                if isinstance(strength, tuple) and len(strength) != self.model.n_layers:
                    raise _bad(f"{name} has {len(strength)} strengths; it needs one for each layer")

    @property
    def steps(self) -> int:
        """Optimiser steps of the constant run."""
        return self.schedule.tokens // self.schedule.batch_tokens

    def to_json(self) -> dict[str, Any]:
        return dataclasses.asdict(self)

    @classmethod
    def from_json(cls, data: Any) -> Recipe:
        """Read what `to_json` wrote, now or before there were as many entries; raises `LegibleError` like a recipe."""
        recipe: Recipe = _build(cls, data, "")
        return recipe


def load_recipe(path: Path) -> Recipe:
    """Read a TOML recipe with its bases; relative data paths are taken from the recipe's folder.

    Raises `NotFound` for a file that is missing and `LegibleError` for one that is not usable, in one sentence each.
    """
    recipe: Recipe = load_table(Recipe, path)
    return recipe


def load_table(kind: Any, path: Path) -> Any:
    """Read a TOML file, with its bases, as a dataclass; raises what `load_recipe` raises."""
    return _build(kind, _read(path, path.parent, ()), "")


def _read(path: Path, folder: Path, behind: tuple[Path, ...]) -> dict[str, Any]:
    """A recipe's entries over those of its base; data paths are made relative to `folder`, the first recipe's."""
    here = Path(os.path.normpath(path))
    if here in behind:
        raise _bad(f"the bases go round: {' → '.join(each.name for each in (*behind, here))}")
    if len(behind) > MAX_BASES:
        raise _bad(f"{behind[0]} has more than {MAX_BASES} bases behind one another")
    data = _parse(path, behind[-1] if behind else None)
    base = data.pop("base", None)
    if behind:
        stated = data.get("data")
        paths: dict[str, Any] = stated if isinstance(stated, dict) else {}
        for name in ("train", "tokenizer"):
            given = paths.get(name)
            if isinstance(given, str) and not given.startswith(HUB) and not Path(given).expanduser().is_absolute():
                paths[name] = Path(os.path.relpath(path.parent / given, folder)).as_posix()
    if base is None:
        return data
    if not isinstance(base, str):
        raise _bad(f"base in {path} is {base!r}; it must be the path of a recipe, from this recipe's folder")
    return _merge(_read(path.parent / base, folder, (*behind, here)), data)


def _merge(below: dict[str, Any], above: dict[str, Any]) -> dict[str, Any]:
    merged = dict(below)
    for key, value in above.items():
        old = merged.get(key)
        merged[key] = _merge(old, value) if isinstance(old, dict) and isinstance(value, dict) else value
    return merged


def _parse(path: Path, asked: Path | None) -> dict[str, Any]:
    """One TOML file; `asked` is the recipe that names it as its base."""
    try:
        with path.open("rb") as file:
            text = file.read(MAX_RECIPE + 1)
        if len(text) > MAX_RECIPE:
            raise _bad(f"{path} has more than {MAX_RECIPE:,} bytes; a recipe has a few hundred")
        return tomllib.loads(text.decode("utf-8-sig").replace("\r\n", "\n").replace("\r", "\n"))
    except FileNotFoundError:
        if asked is not None:
            raise NotFound(
                f"There is no recipe at {path}, which {asked} names as its base; a base's path is taken from the "
                "folder of the recipe that names it."
            ) from None
        raise NotFound(
            f"There is no recipe at {path}; give the path of a TOML file, such as those in recipes/."
        ) from None
    except (OSError, UnicodeDecodeError) as error:
        raise _bad(f"{path} cannot be read as UTF-8 text ({type(error).__name__})") from None
    except tomllib.TOMLDecodeError as error:
        raise _bad(f"{path} is not valid TOML: {error}") from None
    except (ValueError, RecursionError) as error:  # a NUL in the path, a number of thousands of digits, deep brackets
        raise _bad(f"{str(path)!r} cannot be read: {str(error).partition(';')[0]}") from None


def resolve(path: str, base: Path) -> Path:
    """A data path of a recipe: absolute, or relative to the recipe's folder; a dataset's name stays as it is."""
    if path.startswith(HUB):
        return Path(path)
    found = Path(path).expanduser()
    return found if found.is_absolute() else base / found


def _build(cls: Any, data: Any, where: str) -> Any:
    if not isinstance(data, dict):
        raise _bad(f"{where.rstrip('.') or 'it'} must be a table")
    hints = typing.get_type_hints(cls)
    fields = {f.name: f for f in dataclasses.fields(cls)}
    for key in data:
        if key not in fields:
            near = difflib.get_close_matches(key.lower(), fields, n=1, cutoff=0.5)
            meant = f"did you mean {where}{near[0]}? The" if near else "the"
            raise _bad(f"{where}{key} is unknown; {meant} entries are {', '.join(fields)}")
    values = {}
    for name, info in fields.items():
        if name in data:
            values[name] = _value(hints[name], data[name], f"{where}{name}")
        elif info.default is dataclasses.MISSING and info.default_factory is dataclasses.MISSING:
            raise _bad(f"{where}{name} is missing")
    return cls(**values)


def _value(hint: Any, value: Any, name: str) -> Any:
    if dataclasses.is_dataclass(hint):
        return _build(hint, value, name + ".")
    origin, arguments = typing.get_origin(hint), typing.get_args(hint)
    if origin in (typing.Union, types.UnionType):
        if value is None and type(None) in arguments:
            return None
        for option in arguments:
            try:
                return _value(option, value, name)
            except LegibleError:
                continue
    elif origin is Literal:
        if value in arguments:
            return value
        raise _bad(f"{name} is {value!r}; it must be one of {', '.join(map(str, arguments))}")
    elif origin is tuple and isinstance(value, list | tuple):
        if arguments[-1] is Ellipsis:
            return tuple(_value(arguments[0], item, name) for item in value)
        if len(value) == len(arguments):
            return tuple(_value(kind, item, name) for kind, item in zip(arguments, value, strict=True))
    elif hint is float and type(value) in (int, float):
        return float(value)
    elif hint in (int, str, bool) and type(value) is hint:
        return value
    raise _bad(f"{name} is {value!r}; it must be {_kind(hint)}")


def _kind(hint: Any) -> str:
    """A field's type in words."""
    arguments = typing.get_args(hint)
    words = {int: "a whole number", float: "a number", str: "a text in quotes", bool: "true or false"}
    if typing.get_origin(hint) is tuple:
        return f"a list such as [{', '.join(['…'] * (1 if arguments[-1] is Ellipsis else len(arguments)))}]"
    if arguments:
        return " or ".join(dict.fromkeys(_kind(each) for each in arguments if each is not type(None)))
    return words.get(hint, "another kind of value")


def _bad(reason: str) -> LegibleError:
    return LegibleError(f"The recipe is not usable: {reason}.", code="bad_recipe")
