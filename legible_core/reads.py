"""What a part of a model reads: the row behind an operand, what it opens into, how a memory divides; imports no torch.

    read_of(config, parse("L5.p39.A"))      # Read: layer, sublayer, matrix, row, and the function on its product
    opens(config, parse("L5.u263"))         # the parts one step upstream of a unit: L5.p39.A and L5.p39.B
    measure(config, parse("L5.h2"))         # what "its value at a token" means: the norm of its write, unbounded
    recall("existential", m, decay)         # how much of a quantifier's value each earlier token left there
    windows(len(ids), config.context)       # which windows of the context give the values of a long text

An operand, a unit without operands and a channel without operands read the normalised residual stream of their token
through one row: their pre-activation is ⟨row, LN(x)⟩ + bias. Everything else is made of such reads.
"""

from __future__ import annotations

import base64
import math
import zlib
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal, TypeAlias

import numpy as np

from legible_core.config import ModelConfig
from legible_core.errors import Corrupt, LegibleError, NotFound
from legible_core.units import (
    BOUNDED,
    PLAIN_NAMES,
    Channel,
    Component,
    Floor,
    Head,
    HeadOperand,
    Operand,
    QuantifierOperand,
    Unit,
)

Sublayer: TypeAlias = Literal["attention", "feed_forward"]


@dataclass(frozen=True)
class Read:
    """Row `row` of `matrix` in a sublayer of `layer`; `function` makes the value from the pre-activation.

    function: "sigmoid" for memberships, the activation of a plain unit ("gelu", ...), "linear" for a linear value.
    """

    id: Component
    layer: int
    sublayer: Sublayer
    matrix: str
    row: int
    function: str

    def upstream(self) -> tuple[int, int]:
        """How many layers' heads, and how many layers' units, write into the stream that it reads."""
        return (self.layer, self.layer) if self.sublayer == "attention" else (self.layer + 1, self.layer)


@dataclass(frozen=True)
class Measure:
    """What a component's value at a token is, in words; `bounded`: between 0 and 1, `signed`: may be negative."""

    said: str
    bounded: bool
    signed: bool = False


def check_component(config: ModelConfig, component: Component) -> None:
    """Raise `NotFound`, saying which exist, for a component that a checkpoint of this config lacks."""
    if isinstance(component, Floor):
        raise NotFound(f"{component} is part of the floor and has no value of its own; name a unit, operand or head.")
    if component.layer >= config.n_layers:
        raise NotFound(
            f"There is no layer {component.layer} in this checkpoint; it has layers 0 to {config.n_layers - 1}."
        )
    layer, layout = component.layer, config.feed_forward
    match component:
        case Head(_, head) | Channel(_, head, _) | HeadOperand(_, head, _, _) if head >= config.n_heads:
            raise NotFound(f"There is no head {head}; a layer of this checkpoint has heads 0 to {config.n_heads - 1}.")
        case Channel(_, _, channel) if channel >= config.d_head:
            raise NotFound(
                f"There is no channel {channel}; a head of this checkpoint has channels 0 to {config.d_head - 1}."
            )
        case HeadOperand(_, head, pair, _):
            if not config.is_bounded(layer, head) or config.attention.value != "boolean":
                raise NotFound(f"{component} does not exist: {_head_said(config, layer, head)}")
            if pair >= config.d_head // 2:
                raise NotFound(
                    f"There is no pair {pair} in a head; a Boolean head of this checkpoint has pairs 0 to "
                    f"{config.d_head // 2 - 1}."
                )
        case Unit(_, unit):
            layout.kind(unit)
        case Operand(_, pair, _) if pair >= layout.n_pairs:
            raise NotFound(f"There is no operand {component}; {_pairs_said(config)}")
        case QuantifierOperand(_, unit) if not layout.quantifiers.start <= unit < layout.quantifiers.stop:
            raise NotFound(f"There is no operand {component}; {_quantifiers_said(config)}")


def read_of(config: ModelConfig, component: Component) -> Read:
    """The row that an operand, a plain unit, a membership channel or a linear channel reads with.

    Raises `NotFound` for a component that does not exist, and for one that is made of operands (which it names).
    """
    check_component(config, component)
    width = config.d_head
    match component:
        case Operand(layer, pair, side):
            return Read(component, layer, "feed_forward", f"pair_{side.lower()}", pair, "sigmoid")
        case QuantifierOperand(layer, unit):
            row = unit - config.feed_forward.quantifiers.start
            return Read(component, layer, "feed_forward", "quantifier", row, "sigmoid")
        case HeadOperand(layer, head, pair, side):
            row = head * width + pair + (0 if side == "A" else width // 2)
            return Read(component, layer, "attention", "bounded_values", row, "sigmoid")
        case Unit(layer, unit) if unit >= config.feed_forward.n_named:
            kind = config.feed_forward.kind(unit)
            return Read(component, layer, "feed_forward", kind, unit - config.feed_forward.n_named, kind)
        case Channel(layer, head, channel) if not config.is_bounded(layer, head):
            row = (head - config.attention.n_special[layer]) * width + channel
            return Read(component, layer, "attention", "linear_values", row, "linear")
        case Channel(layer, head, channel) if config.attention.value == "membership":
            return Read(component, layer, "attention", "bounded_values", head * width + channel, "sigmoid")
    below = [str(part) for part in opens(config, component)]
    listed = " or ".join(below) if len(below) <= 2 else f"{below[0]} to {below[-1]}"
    raise LegibleError(
        f"{component} is {_made_of(config, component)} and reads nothing itself; ask for {listed}.",
        code="bad_component",
        status=404,
    )


def check_source(config: ModelConfig, read: Read, through: Component) -> Head | Unit:
    """The head or unit `through` when it writes into what `read` reads, else `LegibleError` saying what does."""
    check_component(config, through)
    heads, units = read.upstream()
    limit = heads if isinstance(through, Head) else units
    if not isinstance(through, Head | Unit) or through.layer >= limit:
        sources = [f"the {what} of layers 0 to {n - 1}" for what, n in (("heads", heads), ("units", units)) if n]
        raise LegibleError(
            f"{through} is not upstream of {read.id}; what is: "
            f"{' and '.join(sources) if sources else 'the embeddings alone'}.",
            code="bad_component",
            status=404,
        )
    return through


def opens(config: ModelConfig, component: Component) -> tuple[Component, ...]:
    """The parts that a component is made of, one step upstream; () where it reads the stream itself.

    A set operator opens into its pair's A and B, a quantifier into its m, a head into its operands (a linear head into
    its channels), a Boolean channel into its A and B.
    """
    layout, half = config.feed_forward, config.d_head // 2
    match component:
        case Unit(layer, unit):
            kind = layout.kind(unit)
            if kind in ("intersection", "difference"):
                pair = layout.pair(unit)
                return Operand(layer, pair, "A"), Operand(layer, pair, "B")
            return (QuantifierOperand(layer, unit),) if kind in ("existential", "proportion") else ()
        case Channel(layer, head, channel) if config.is_bounded(layer, head) and config.attention.value == "boolean":
            return HeadOperand(layer, head, channel % half, "A"), HeadOperand(layer, head, channel % half, "B")
        case Head(layer, head) if config.is_bounded(layer, head) and config.attention.value == "boolean":
            firsts = [HeadOperand(layer, head, pair, "A") for pair in range(half)]
            return (*firsts, *(HeadOperand(layer, head, pair, "B") for pair in range(half)))
        case Head(layer, head):
            return tuple(Channel(layer, head, channel) for channel in range(config.d_head))
    return ()


def measure(config: ModelConfig, component: Component) -> Measure:
    """What the value of a component at a token is; raises `NotFound` for one that does not exist."""
    check_component(config, component)
    match component:
        case Head():
            return Measure("norm of what the head writes", bounded=False)
        case Channel(layer, head, _) if config.is_bounded(layer, head):
            return Measure("value of the token in this channel, before attention gathers it", bounded=True)
        case Channel():
            return Measure("value of the token in this channel, before attention gathers it", False, signed=True)
        case Unit(_, unit):
            kind = config.feed_forward.kind(unit)
            bounded = kind in BOUNDED
            return Measure(f"value of the {kind if bounded else PLAIN_NAMES[kind]} unit", bounded, kind == "gelu")
        case HeadOperand():
            return Measure("membership of the token, before attention gathers it", bounded=True)
    return Measure("membership of the token", bounded=True)


def recall(kind: str, m: Sequence[float], decay: float) -> list[float]:
    """How much of a quantifier's value after the last m each m left there: they add up to that value.

    existential: m_s Π_{u>s} λ(1 - m_u); proportion: λ^(t-s) m_s / Σ_u λ^(t-u). Both recurrences are linear in their
    state ("Explicit Fuzzy Logic in the Feed-Forward Layer"), so this division is exact.
    """
    parts = [0.0] * len(m)
    kept = 1.0
    for index in range(len(m) - 1, -1, -1):
        parts[index] = kept * m[index]
        kept *= decay * (1.0 - m[index]) if kind == "existential" else decay
    if kind == "proportion":
        count = sum(decay**age for age in range(len(m)))
        parts = [part / count for part in parts]
    return parts


# ---- windows of a long text ------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Window:
    """Tokens `start` to `stop` are read together; the window gives the values of tokens `given` to `stop`."""

    start: int
    given: int
    stop: int


def windows(length: int, context: int, first: int = 0, last: int | None = None) -> list[Window]:
    """The windows that give tokens `first` to `last` (None: the end) of a text of `length` tokens.

    Windows of the context start half of it after one another; every window but the first gives its second half only, so
    that each token has at least half a context before it, or the text's start.
    """
    last = length if last is None else min(last, length)
    step = max(1, context // 2)
    found = []
    start, given = 0, 0
    while given < length:
        stop = min(start + context, length)
        if stop > first and given < last:
            found.append(Window(start, max(given, first), min(stop, last)))
        start, given = start + step, stop
    return found


# ---- all terms as text: a job's result is JSON -----------------------------------------------------------------------


def pack_terms(heads: np.ndarray, units: np.ndarray) -> str:
    """Terms (l, h) and (m, f) as text, heads then units."""
    return pack_rows(np.concatenate([heads.ravel(), units.ravel()]))


def unpack_terms(text: str, heads: Sequence[int], units: Sequence[int]) -> tuple[np.ndarray, np.ndarray]:
    """What `pack_terms` packed, given both shapes; raises `Corrupt` when the text does not hold them."""
    split = heads[0] * heads[1]
    flat = unpack_rows(text, (split + units[0] * units[1],))
    return flat[:split].reshape(heads[0], heads[1]), flat[split:].reshape(units[0], units[1])


def pack_rows(values: np.ndarray) -> str:
    """Numbers as text: base64 of zlib over little-endian float32."""
    return base64.b64encode(zlib.compress(values.astype("<f4").tobytes(), 6)).decode("ascii")


def unpack_rows(text: str, shape: tuple[int, ...]) -> np.ndarray:
    """What `pack_rows` packed; raises `Corrupt` when the text does not hold that many numbers."""
    try:
        flat = np.frombuffer(zlib.decompress(base64.b64decode(text, validate=True)), "<f4")
    except (ValueError, zlib.error):
        flat = np.zeros(0, "<f4")
    if flat.size != math.prod(shape):
        raise Corrupt("What is stored does not have the shape that it claims; ask for it again.")
    return flat.reshape(shape)


# ---- sentences -------------------------------------------------------------------------------------------------------


def _made_of(config: ModelConfig, component: Component) -> str:
    match component:
        case Head(layer, head):
            return f"a head ({_head_said(config, layer, head).rstrip('.')})"
        case Unit(_, unit):
            kind = config.feed_forward.kind(unit)
            return f"{'an' if kind[0] in 'aeiou' else 'a'} {kind}, which is made of operands,"
    return "a Boolean channel, which is made of two operands,"


def _head_said(config: ModelConfig, layer: int, head: int) -> str:
    if not config.is_bounded(layer, head):
        return f"L{layer}.h{head} is linear, with channels L{layer}.h{head}.c0 to c{config.d_head - 1}."
    if config.attention.value == "membership":
        return f"L{layer}.h{head} has membership channels, L{layer}.h{head}.c0 to c{config.d_head - 1}."
    return f"L{layer}.h{head} is Boolean, with operands L{layer}.h{head}.p0.A to p{config.d_head // 2 - 1}.B."


def _pairs_said(config: ModelConfig) -> str:
    count = config.feed_forward.n_pairs
    if not count:
        return "this checkpoint has no set operators."
    return f"a layer of this checkpoint has pairs 0 to {count - 1}."


def _quantifiers_said(config: ModelConfig) -> str:
    where = config.feed_forward.quantifiers
    if where.start == where.stop:
        return "this checkpoint has no quantifiers."
    return f"the quantifiers of a layer are units {where.start} to {where.stop - 1}."
