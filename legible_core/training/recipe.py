"""A recipe: one TOML file that says everything a run does; unknown and contradictory entries are refused."""

from __future__ import annotations

import dataclasses
import tomllib
import types
import typing
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal

from legible_core.config import Attention, FeedForward, ModelConfig, Value
from legible_core.errors import LegibleError, NotFound
from legible_core.training.pressures import Pressure


@dataclass(frozen=True)
class ModelRecipe:
    """Sizes and axes; `special_fraction` of the heads of every layer use the bounded value."""

    n_layers: int
    d_model: int
    n_heads: int
    context: int
    value: Value = "linear"
    special_fraction: float = 1.0
    d_ff: int | None = None
    gelu_fraction: float = 1.0
    quantifier_fraction: float = 0.0

    def config(self, vocab_size: int) -> ModelConfig:
        special = 0 if self.value == "linear" else round(self.n_heads * self.special_fraction)
        return ModelConfig(
            n_layers=self.n_layers,
            d_model=self.d_model,
            n_heads=self.n_heads,
            context=self.context,
            vocab_size=vocab_size,
            attention=Attention(self.value, (special,) * self.n_layers),
            feed_forward=FeedForward(self.d_ff or 4 * self.d_model, self.gelu_fraction, self.quantifier_fraction),
        )


@dataclass(frozen=True)
class DataRecipe:
    """Text files (plain or xz; documents separated by a line `<|endoftext|>`) and the tokenizer.

    `tokenizer` names a tokenizer.json; without it one of `vocab_size` entries is trained on `train`. The last
    `held_out_tokens` of the training text are never trained on. Runs that share `order_seed` see the same tokens in the
    same order.
    """

    train: str
    tokenizer: str | None = None
    vocab_size: int = 8192
    held_out_tokens: int = 262_144
    order_seed: int = 0


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


@dataclass(frozen=True)
class ScheduleRecipe:
    """Warm-up, constant, then a decay branch (linear to zero); all lengths in tokens.

    At each of `revive_tokens` the operands that are CONSTANT by then get a new start (`training/revive.py`).
    """

    tokens: int
    warmup_tokens: int = 200_000
    decay_tokens: int = 0
    batch_tokens: int = 4096
    micro_batch_tokens: int | None = None
    revive_tokens: tuple[int, ...] = ()


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
    note: str = ""

    def __post_init__(self) -> None:
        context, schedule = self.model.context, self.schedule
        micro = schedule.micro_batch_tokens or schedule.batch_tokens
        if schedule.batch_tokens % context:
            raise _bad(f"schedule.batch_tokens {schedule.batch_tokens} is no multiple of the context {context}")
        if micro % context or schedule.batch_tokens % micro:
            raise _bad("schedule.micro_batch_tokens must be a multiple of the context and divide batch_tokens")
        if any(tokens <= 0 or tokens % schedule.batch_tokens for tokens in schedule.revive_tokens):
            raise _bad(f"schedule.revive_tokens must be multiples of batch_tokens ({schedule.batch_tokens})")
        if schedule.tokens < schedule.batch_tokens:
            raise _bad(f"schedule.tokens must be at least one batch ({schedule.batch_tokens} tokens)")
        if self.attention_pressure.regime != "none" and self.model.value == "linear":
            raise _bad("attention_pressure needs a bounded value; model.value is linear")
        if self.feed_forward_pressure.regime != "none" and self.model.gelu_fraction >= 1.0:
            raise _bad("feed_forward_pressure needs named units; model.gelu_fraction is 1")
        for name in ("attention_pressure", "feed_forward_pressure"):
            for strength in getattr(self, name).strengths():
                if isinstance(strength, tuple) and len(strength) != self.model.n_layers:
                    raise _bad(f"{name} has {len(strength)} strengths; it needs one for each layer")
        self.model.config(self.data.vocab_size)

    @property
    def steps(self) -> int:
        """Optimiser steps of the constant run."""
        return self.schedule.tokens // self.schedule.batch_tokens

    def to_json(self) -> dict[str, Any]:
        return dataclasses.asdict(self)


def load_recipe(path: Path) -> Recipe:
    """Read a TOML recipe; relative data paths are taken from the recipe's folder."""
    try:
        data = tomllib.loads(path.read_text(encoding="utf-8"))
    except FileNotFoundError:
        raise NotFound(
            f"There is no recipe at {path}; give the path of a TOML file, such as those in recipes/."
        ) from None
    except (OSError, UnicodeDecodeError) as error:
        raise _bad(f"{path} cannot be read as UTF-8 text ({type(error).__name__})") from None
    except tomllib.TOMLDecodeError as error:
        raise _bad(f"{path} is not valid TOML: {error}") from None
    recipe: Recipe = _build(Recipe, data, "")
    return recipe


def resolve(path: str, base: Path) -> Path:
    """A data path of a recipe: absolute, or relative to the recipe's folder."""
    found = Path(path).expanduser()
    return found if found.is_absolute() else base / found


def _build(cls: Any, data: Any, where: str) -> Any:
    if not isinstance(data, dict):
        raise _bad(f"{where or 'it'} must be a table")
    hints = typing.get_type_hints(cls)
    fields = {f.name: f for f in dataclasses.fields(cls)}
    for key in data:
        if key not in fields:
            raise _bad(f"{where}{key} is unknown; the entries are {', '.join(fields)}")
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
        for option in arguments:
            try:
                return _value(option, value, name)
            except LegibleError:
                continue
    elif origin is Literal:
        if value in arguments:
            return value
        raise _bad(f"{name} is {value!r}; it must be one of {', '.join(map(str, arguments))}")
    elif origin is tuple and isinstance(value, list):
        if arguments[-1] is Ellipsis:
            return tuple(_value(arguments[0], item, name) for item in value)
        if len(value) == len(arguments):
            return tuple(_value(kind, item, name) for kind, item in zip(arguments, value, strict=True))
    elif hint is float and type(value) in (int, float):
        return float(value)
    elif hint in (int, str, bool) and type(value) is hint:
        return value
    raise _bad(f"{name} is {value!r}, which is not of the right type")


def _bad(reason: str) -> LegibleError:
    return LegibleError(f"The recipe is not usable: {reason}.", code="bad_recipe")
