"""The model's configuration: orthogonal axes, each a small frozen dataclass; imports no torch.

    ModelConfig
      ├─ attention: Attention          which bounded value, on how many heads of each layer
      ├─ feed_forward: FeedForward     how the hidden vector is divided between named and plain units, and the
      │                                activation of the plain ones
      └─ sizes, norm, biases, tying

The axes follow "Legible-by-Construction" sections 3.3-3.7: eq. 1 (membership), eq. 2 (Boolean), the fraction sweep
(3.5) and the GELU partition rho (3.7); the activations are those of "Through the Looking Glass" section 5.2.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import asdict, dataclass
from typing import Any, Literal, TypeAlias, get_args

from legible_core.errors import LegibleError
from legible_core.units import (
    ACTIVATIONS,
    Activation,
    Channel,
    Component,
    HeadOperand,
    Kind,
    Operand,
    Ordinary,
    QuantifierOperand,
    Unit,
)

Value: TypeAlias = Literal["linear", "membership", "boolean"]

# An upper bound on any size read from a file, checked before anything is allocated.
MAX_SIZE = 1 << 24


@dataclass(frozen=True)
class Attention:
    """The value axis: `n_special[l]` heads of layer l, the first ones, use the bounded `value`; the rest are linear."""

    value: Value
    n_special: tuple[int, ...]


@dataclass(frozen=True)
class FeedForward:
    """The feed-forward axis.

    `gelu_fraction` is rho: this share of the `d_ff` hidden units is plain, one `activation` of one read row each: GELU,
    as in the papers' partition, or what "Through the Looking Glass" trains instead. `quantifier_fraction` of the rest
    are quantifiers, half existential and half proportion; what remains are set-operator pairs, each an intersection
    and a difference over the same two operands.

    A sigmoid unit is bounded and so a membership, its own operand; GELU, softplus and ReLU have no rails.
    Hidden order: intersections, differences, existentials, proportions, plain units.
    """

    d_ff: int
    gelu_fraction: float = 1.0
    quantifier_fraction: float = 0.0
    activation: Activation | Ordinary = "gelu"

    @property
    def n_plain(self) -> int:
        return self.d_ff - self.n_named

    @property
    def n_bounded(self) -> int:
        """How many units have rails, the first ones: the named ones, and sigmoid units after them."""
        return self.d_ff if self.activation == "sigmoid" else self.n_named

    @property
    def n_operands(self) -> int:
        """Operands of a layer: A and B of each pair, each quantifier's m, each sigmoid unit."""
        return 2 * self.n_pairs + self.n_quantifiers + self.n_bounded - self.n_named

    @property
    def n_named(self) -> int:
        # Even, so that every set operator has its twin.
        return 2 * round(self.d_ff * (1.0 - self.gelu_fraction) / 2)

    @property
    def n_quantifiers(self) -> int:
        return 2 * round(self.n_named * self.quantifier_fraction / 2)

    @property
    def n_existential(self) -> int:
        return self.n_quantifiers // 2

    @property
    def n_proportion(self) -> int:
        return self.n_quantifiers // 2

    @property
    def n_pairs(self) -> int:
        return (self.n_named - self.n_quantifiers) // 2

    @property
    def intersections(self) -> slice:
        return slice(0, self.n_pairs)

    @property
    def differences(self) -> slice:
        return slice(self.n_pairs, 2 * self.n_pairs)

    @property
    def existentials(self) -> slice:
        start = 2 * self.n_pairs
        return slice(start, start + self.n_existential)

    @property
    def proportions(self) -> slice:
        start = 2 * self.n_pairs + self.n_existential
        return slice(start, start + self.n_proportion)

    @property
    def quantifiers(self) -> slice:
        start = 2 * self.n_pairs
        return slice(start, start + self.n_quantifiers)

    @property
    def plain(self) -> slice:
        return slice(self.n_named, self.d_ff)

    def kind(self, unit: int) -> Kind:
        """The operation of hidden unit `unit`; raises `LegibleError` when it is out of range."""
        if not 0 <= unit < self.d_ff:
            raise LegibleError(
                f"Unit {unit} does not exist; a layer of this checkpoint has units 0 to {self.d_ff - 1}.",
                code="not_found",
                status=404,
            )
        if unit < self.n_pairs:
            return "intersection"
        if unit < 2 * self.n_pairs:
            return "difference"
        if unit < 2 * self.n_pairs + self.n_existential:
            return "existential"
        if unit < self.n_named:
            return "proportion"
        return self.activation

    def pair(self, unit: int) -> int:
        """The pair whose operands feed set operator `unit`; raises `LegibleError` for other kinds."""
        if self.kind(unit) not in ("intersection", "difference"):
            raise LegibleError(f"Unit {unit} is no set operator and has no pair.", code="bad_component")
        return unit if unit < self.n_pairs else unit - self.n_pairs


@dataclass(frozen=True)
class ModelConfig:
    """A pre-norm decoder with learned positions and tied embeddings, and the two legible axes.

    Raises `LegibleError` on construction when sizes do not fit together; the message names the field.
    """

    n_layers: int
    d_model: int
    n_heads: int
    context: int
    vocab_size: int
    attention: Attention
    feed_forward: FeedForward
    norm_eps: float = 1e-5
    norm_bias: bool = False
    linear_bias: bool = False
    tied: bool = True
    unembedding_bias: bool = False

    def __post_init__(self) -> None:
        sizes = {name: getattr(self, name) for name in ("n_layers", "d_model", "n_heads", "context", "vocab_size")} | {
            "d_ff": self.feed_forward.d_ff
        }
        for name, size in sizes.items():
            if type(size) is not int or not 1 <= size <= MAX_SIZE:
                raise _bad(f"{name} is {size!r}; it must be a whole number from 1 to {MAX_SIZE}")
        if self.d_model % self.n_heads:
            raise _bad(f"d_model {self.d_model} is no multiple of n_heads {self.n_heads}")
        if self.attention.value not in get_args(Value):
            raise _bad(f"attention value is {self.attention.value!r}; it must be linear, membership or boolean")
        special = self.attention.n_special
        if len(special) != self.n_layers:
            raise _bad(f"n_special has {len(special)} entries; it needs one for each of the {self.n_layers} layers")
        for count in special:
            if type(count) is not int or not 0 <= count <= self.n_heads:
                raise _bad(f"n_special holds {count!r}; each entry must be a whole number from 0 to {self.n_heads}")
        if self.attention.value == "linear" and any(special):
            raise _bad("n_special must be 0 in every layer when the attention value is linear")
        if self.attention.value == "boolean" and self.d_head % 2:
            raise _bad(f"a Boolean value needs an even head width; d_model / n_heads is {self.d_head}")
        for name in ("gelu_fraction", "quantifier_fraction"):
            fraction = getattr(self.feed_forward, name)
            if isinstance(fraction, bool) or not isinstance(fraction, int | float) or not 0.0 <= fraction <= 1.0:
                raise _bad(f"{name} is {fraction!r}; it must be a number from 0 to 1")
        if self.feed_forward.activation not in ACTIVATIONS:
            raise _bad(f"activation is {self.feed_forward.activation!r}; it must be one of {', '.join(ACTIVATIONS)}")
        if self.feed_forward.activation != "gelu" and not self.feed_forward.n_plain:
            raise _bad(
                f"activation is {self.feed_forward.activation}, but no unit is plain; make gelu_fraction larger than 0 "
                "or leave the activation out"
            )
        if not isinstance(self.norm_eps, float) or not 0.0 < self.norm_eps < 1.0:
            raise _bad(f"norm_eps is {self.norm_eps!r}; it must be a number between 0 and 1")
        for name in ("norm_bias", "linear_bias", "tied", "unembedding_bias"):
            if type(getattr(self, name)) is not bool:
                raise _bad(f"{name} must be true or false")

    @property
    def d_head(self) -> int:
        return self.d_model // self.n_heads

    @property
    def ordinary(self) -> bool:
        """Whether the model was not built to be read: no operations, no memberships, no legible share."""
        return False

    def is_bounded(self, layer: int, head: int) -> bool:
        """Whether the head's value is a membership or Boolean one."""
        return head < self.attention.n_special[layer]

    def n_units(self) -> int:
        return self.n_layers * self.feed_forward.d_ff

    def operands(self, layer: int) -> Iterator[Component]:
        """Every operand of a layer in canonical order.

        Bounded heads first (membership channels, or each Boolean pair's A then B, head by head), then the feed-forward
        layer: all A, all B, the quantifiers' m, the sigmoid units.
        """
        for head in range(self.attention.n_special[layer]):
            if self.attention.value == "membership":
                for channel in range(self.d_head):
                    yield Channel(layer, head, channel)
            else:
                for side in ("A", "B"):
                    for pair in range(self.d_head // 2):
                        yield HeadOperand(layer, head, pair, "A" if side == "A" else "B")
        for pair in range(self.feed_forward.n_pairs):
            yield Operand(layer, pair, "A")
        for pair in range(self.feed_forward.n_pairs):
            yield Operand(layer, pair, "B")
        quantifiers = self.feed_forward.quantifiers
        for unit in range(quantifiers.start, quantifiers.stop):
            yield QuantifierOperand(layer, unit)
        for unit in range(self.feed_forward.n_named, self.feed_forward.n_bounded):
            yield Unit(layer, unit)

    def to_json(self) -> dict[str, Any]:
        """A JSON object that `from_json` reads back to an equal config."""
        fields = asdict(self)
        fields["attention"]["n_special"] = list(self.attention.n_special)
        if self.feed_forward.activation == "gelu":
            del fields["feed_forward"]["activation"]  # as it was written before there were others: same file, same hash
        return {"format": "legible", "version": 1, **fields}

    @classmethod
    def from_json(cls, data: Any) -> ModelConfig:
        """Read `config.json`; raises `LegibleError` naming the field that is missing, unknown or of a wrong type."""
        if not isinstance(data, dict) or data.get("format") != "legible":
            raise _bad('"format" is not "legible"; this is no legible checkpoint (see docs/checkpoints.md)')
        if data.get("version") != 1:
            raise _bad(f"version is {data.get('version')!r}; this program reads version 1")
        fields = {key: value for key, value in data.items() if key not in ("format", "version")}
        _check_fields(fields, cls, "")
        attention = fields["attention"]
        _check_fields(attention, Attention, "attention.")
        _check_fields(fields["feed_forward"], FeedForward, "feed_forward.")
        if not isinstance(attention["n_special"], list):
            raise _bad("attention.n_special must be a list with one whole number per layer")
        fields["attention"] = Attention(attention["value"], tuple(attention["n_special"]))
        fields["feed_forward"] = FeedForward(**fields["feed_forward"])
        return cls(**fields)


def _check_fields(data: Any, cls: type, prefix: str) -> None:
    if not isinstance(data, dict):
        raise _bad(f"{prefix.rstrip('.') or 'it'} must be an object")
    known: dict[str, Any] = cls.__dataclass_fields__  # type: ignore[attr-defined]
    for key in data:
        if key not in known:
            raise _bad(f"{prefix}{key} is unknown; the fields are {', '.join(known)}")
    from dataclasses import MISSING

    for key, field in known.items():
        if field.default is MISSING and key not in data:
            raise _bad(f"{prefix}{key} is missing")


def _bad(reason: str) -> LegibleError:
    return LegibleError(f"The model configuration is not usable: {reason}.", code="bad_config", status=422)
