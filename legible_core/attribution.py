"""The exact sum: one logit (or difference of logits) as a sum over every head, every unit and the floor.

With x the final residual at the read position, γ the last gain, w = W_U[target] (minus W_U[contrast], or minus the
vocabulary's mean row) and std(x) frozen at its actual value:

    value = Σ_c ⟨w⊙γ, x_c - mean(x_c)⟩ / std(x) + ⟨w, β⟩ + b        "Legible-by-Construction" section 5.5

Subtracting the mean from each write equals subtracting it once from w⊙γ, so one direction d serves all components, and
a layer's units cost one matrix-vector product, a ⊙ (W_downᵀ d). The writes themselves are never formed.

Ordinary models (`legible_core.adapters`) differ in four places. A final RMSNorm subtracts no mean. Where a norm stands
after a sublayer, its gain joins the direction and its divisor, frozen at its actual value, divides the sublayer's
terms. Where the logits pass a soft-cap, the sum is of the logit before it. One in half precision rounds its own stream,
and what that makes is the floor's term `rounding`.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np
import torch
from torch import Tensor

from legible_core.adapters.rounding import measure
from legible_core.axes import Float
from legible_core.config import FeedForward, ModelConfig
from legible_core.errors import LegibleError, NotExact
from legible_core.interventions import Edit
from legible_core.memory import ByteCache
from legible_core.model.editing import added_at, direction_of, edited_matrix, weight_edits
from legible_core.readable import OrdinaryModel, Readable
from legible_core.reading import ORDINARY, Dtype, RelativeTo
from legible_core.trace import Trace

# float32: the larger of an absolute bound in logits and a relative one; bf16: relative alone.
ABSOLUTE, RELATIVE, RELATIVE_BF16 = 1e-4, 1e-6, 1e-3


@dataclass(frozen=True)
class Question:
    """What is decomposed: the target's logit, by itself or relative to the vocabulary mean or a contrast token."""

    target: int
    relative_to: RelativeTo = "nothing"
    contrast: int | None = None


@dataclass(frozen=True)
class Projections:
    """Every write column seen from one question; depends on the weights alone, so every position and prompt shares it.

    direction (d,): (w⊙γ) minus its mean. channels (L, h·dh) and units (L, f): ⟨column, direction⟩, not yet divided by
    std(x). floor: the same product of each bias; `norm.bias` and `unembedding.bias` are final, never divided.
    """

    direction: Float[Tensor, " d"]
    channels: Float[Tensor, "l c"]
    units: Float[Tensor, "l f"]
    biases: dict[str, float]
    undivided: dict[str, float]

    @property
    def n_bytes(self) -> int:
        return 4 * (self.direction.numel() + self.channels.numel() + self.units.numel())


@dataclass(frozen=True)
class Attribution:
    """All terms of one value, float64, in logits: channels (L, h, dh), heads (L, h), units (L, f), floor by name."""

    value: float
    scale: float
    floor: dict[str, float]
    channels: np.ndarray
    heads: np.ndarray
    units: np.ndarray
    dtype: Dtype = "float32"
    total: float = field(init=False)
    mass: float = field(init=False)

    def __post_init__(self) -> None:
        floor = np.array(list(self.floor.values()))
        object.__setattr__(self, "total", float(self.heads.sum() + self.units.sum() + floor.sum()))
        mass = np.abs(self.heads).sum() + np.abs(self.units).sum() + np.abs(floor).sum()
        object.__setattr__(self, "mass", float(mass))

    @property
    def residual(self) -> float:
        """value - Σ terms."""
        return self.value - self.total

    @property
    def tolerance(self) -> float:
        """float32: max(1e-4, 1e-6 Σ|terms|); bf16: 1e-3 Σ|terms|."""
        if self.dtype == "bfloat16":
            return RELATIVE_BF16 * self.mass
        return max(ABSOLUTE, RELATIVE * self.mass)

    def check(self) -> None:
        """Raise `NotExact` with both numbers when the sum does not close within the tolerance."""
        # Written so that a NaN anywhere fails as well.
        if not abs(self.residual) <= self.tolerance:
            raise NotExact(
                f"The terms sum to {self.total!r} but the model's value is {self.value!r}: the residual "
                f"{self.residual:.3g} is over the tolerance {self.tolerance:.3g}, so there is no reading.",
                hint="Report this with the checkpoint's hash; a reading that does not close is never shown.",
            )


class Attributor:
    """Attributes values of one model; keeps the projections of the latest questions within `limit` bytes."""

    def __init__(self, model: Readable, dtype: Dtype = "float32", limit: int = 64 << 20) -> None:
        self.model = model
        self.config: ModelConfig = model.config
        self.dtype: Dtype = dtype
        self._projections: ByteCache[Question, Projections] = ByteCache(limit)
        self._mean_row: Tensor | None = None

    @torch.no_grad()
    def attribute(self, trace: Trace, position: int, question: Question, logits: Float[Tensor, " v"]) -> Attribution:
        """All terms at one position of a trace; `logits` are the model's own at that position.

        Does not check that the sum closes: `Attribution.check` does.
        """
        config = self.config
        seen = self.seen(question, trace, position)
        added = self._added(seen, trace.edits, position)
        x = trace.residual[position]
        scale = float(self.model.final_norm.scale(x.double()))
        activations = torch.stack([layer.hidden[position] for layer in trace.layers]).double()
        z = torch.stack([layer.z[position] for layer in trace.layers]).double()
        units = activations * seen.units / scale
        channels = z * seen.channels.view(config.n_layers, config.n_heads, config.d_head) / scale
        direction = seen.direction.double()
        floor = {"embed.token": float(trace.embed_token[position].double() @ direction) / scale}
        if trace.embed_position is not None:
            floor["embed.position"] = float(trace.embed_position[position].double() @ direction) / scale
        biases = {name: value / scale for name, value in seen.biases.items()}
        for index, layer in enumerate(trace.layers):
            for name, terms in (("attention", channels), ("feed_forward", units)):
                divisor = getattr(layer, f"{name}_divisor")
                if divisor is not None:
                    after = float(divisor[position])
                    terms[index] /= after
                    if f"L{index}.{name}.bias" in biases:
                        biases[f"L{index}.{name}.bias"] /= after
        floor |= biases
        floor |= {name: value / scale for name, value in added.items()}
        floor |= seen.undivided
        rounded = measure(self.model, trace, position) if isinstance(self.model, OrdinaryModel) else None
        if rounded is not None:
            w, _ = self.rows(question)
            floor["rounding"] = float(rounded.stream @ direction) / scale + float(w @ rounded.normed)
        return Attribution(
            value=value_of(question, logits),
            scale=scale,
            floor=floor,
            channels=channels.cpu().numpy(),
            heads=channels.sum(-1).cpu().numpy(),
            units=units.cpu().numpy(),
            dtype=self.dtype,
        )

    def projections(self, question: Question) -> Projections:
        """The projections of a question, kept for the next position or prompt."""
        return self._projections.get_or_make(question, lambda: self._project(question), lambda made: made.n_bytes)

    @torch.no_grad()
    def seen(self, question: Question, trace: Trace, position: int) -> Projections:
        """The projections of a question under the weights in force at a position of a trace, which edits may change."""
        seen, edits = self.projections(question), trace.edits
        if not edits:
            return seen
        channels, units = seen.channels, seen.units
        for index, layer in enumerate(self._layers()):
            for name, part, matrix, width in (
                ("attention", layer.attention, "output", self.config.d_head),
                ("feed_forward", layer.feed_forward, "down", 1),
            ):
                chosen = weight_edits(edits, index, name, position)
                if not chosen:
                    continue
                gain = optional(part, "post_gain")
                direction = seen.direction if gain is None else seen.direction * gain.float()
                row = direction @ edited_matrix(getattr(part, matrix), chosen, width).float()
                if name == "attention":
                    channels = channels.clone()
                    channels[index] = row
                else:
                    units = units.clone()
                    units[index] = row
        return replace(seen, channels=channels, units=units)

    def _added(self, seen: Projections, edits: Sequence[Edit], position: int) -> dict[str, float]:
        """The directions added at a position, by id (`L5.residual`), not yet divided by std(x): part of the floor."""
        added: dict[str, float] = {}
        for edit in added_at(edits, position, self.config.n_layers):
            term = float(direction_of(edit, seen.direction).double() @ seen.direction.double())
            added[str(edit.component)] = added.get(str(edit.component), 0.0) + term
        return added

    def forget(self) -> None:
        """Drop the projections that are kept."""
        self._projections.clear()

    def _layers(self) -> list[Any]:
        return list(self.model.layers)

    @torch.no_grad()
    def rows(self, question: Question) -> tuple[Float[Tensor, " d"], float]:
        """(w, b) in float64: the unembedding row and bias of the question."""
        matrix, bias = self.model.unembedding_matrix, optional(self.model, "unembedding_bias")
        w = matrix[question.target].double()
        b = 0.0 if bias is None else float(bias[question.target])
        if question.relative_to == "contrast":
            if question.contrast is None:
                raise LegibleError("a question relative to a contrast names no contrast token", code="bad_contrast")
            w = w - matrix[question.contrast].double()
            b -= 0.0 if bias is None else float(bias[question.contrast])
        elif question.relative_to == "mean":
            w = w - self.mean_row().double()
            b -= 0.0 if bias is None else float(bias.double().mean())
        return w, b

    @torch.no_grad()
    def mean_row(self) -> Float[Tensor, " d"]:
        """The vocabulary's mean unembedding row, computed once in chunks so that W_U is never copied whole."""
        if self._mean_row is None:
            matrix = self.model.unembedding_matrix
            total = torch.zeros(matrix.shape[1], dtype=torch.float64, device=matrix.device)
            for chunk in matrix.split(4096):
                total += chunk.double().sum(0)
            self._mean_row = total / matrix.shape[0]
        return self._mean_row

    @torch.no_grad()
    def _project(self, question: Question) -> Projections:
        w, b = self.rows(question)
        norm = self.model.final_norm
        direction64 = w * norm.gain.double()
        if norm.centred:
            direction64 = direction64 - direction64.mean()
        direction = direction64.float()
        channels: list[Tensor] = []
        units: list[Tensor] = []
        biases, undivided = {}, {}
        for index, layer in enumerate(self._layers()):
            parts: list[tuple[str, Any, str, list[Tensor]]] = [
                ("attention", layer.attention, "output", channels),
                ("feed_forward", layer.feed_forward, "down", units),
            ]
            for name, part, matrix, into in parts:
                gain = optional(part, "post_gain")
                seen64 = direction64 if gain is None else direction64 * gain.double()
                # bf16 weights are widened one matrix at a time: a rounded direction would cost three digits.
                into.append((direction if gain is None else seen64.float()) @ getattr(part, matrix).float())
                bias = optional(part, f"{matrix}_bias")
                if bias is not None:
                    biases[f"L{index}.{name}.bias"] = float(bias.double() @ seen64)
        if norm.bias is not None:
            undivided["norm.bias"] = float(w @ norm.bias.double())
        if self.model.unembedding_bias is not None:
            undivided["unembedding.bias"] = b
        return Projections(direction, torch.stack(channels), torch.stack(units), biases, undivided)


def optional(module: Any, name: str) -> Tensor | None:
    """A parameter that only some configurations have."""
    found = getattr(module, name, None)
    return found if isinstance(found, Tensor) else None


def value_of(question: Question, logits: Float[Tensor, " v"]) -> float:
    """The number that is decomposed, from the model's own logits: ℓ_t, ℓ_t - mean(ℓ), or ℓ_t - ℓ_contrast."""
    value = float(logits[question.target])
    if question.relative_to == "contrast" and question.contrast is not None:
        return value - float(logits[question.contrast])
    if question.relative_to == "mean":
        return value - float(logits.double().mean())
    return value


# ---- sums over the terms --------------------------------------------------------------------------------------------


def slices(layout: FeedForward) -> dict[str, slice]:
    """Where each kind lies in the hidden vector."""
    return {
        "intersection": layout.intersections,
        "difference": layout.differences,
        "existential": layout.existentials,
        "proportion": layout.proportions,
        layout.activation: layout.plain,
    }


def by_layer(attribution: Attribution, config: ModelConfig) -> list[dict[str, float]]:
    """For every layer the sum of its heads (`attention`) and of each kind of unit."""
    rows = []
    for layer in range(config.n_layers):
        row = {"attention": float(attribution.heads[layer].sum())}
        for kind, where in slices(config.feed_forward).items():
            row[kind] = float(attribution.units[layer, where].sum())
        row.setdefault("gelu", 0.0)  # a reading's schema has this one always, the other activations where they are
        rows.append(row)
    return rows


def bounded_heads(config: ModelConfig) -> np.ndarray:
    """(L, h) bool: heads whose value is a membership or Boolean one."""
    return np.arange(config.n_heads)[None] < np.array(config.attention.n_special)[:, None]


def groups(attribution: Attribution, config: ModelConfig) -> dict[str, float]:
    """A partition of the sum; the numbers add up to it. Plain units stand under their activation's name."""
    bounded = bounded_heads(config)
    where = slices(config.feed_forward)
    kind = {name: float(attribution.units[:, part].sum()) for name, part in where.items()}
    return {
        "attention": float(attribution.heads[bounded].sum()),
        "linear_attention": float(attribution.heads[~bounded].sum()),
        "set_operators": kind["intersection"] + kind["difference"],
        "quantifiers": kind["existential"] + kind["proportion"],
        "gelu": 0.0,
        config.feed_forward.activation: kind[config.feed_forward.activation],
        "floor": float(sum(attribution.floor.values())),
    }


def shares(
    attribution: Attribution,
    config: ModelConfig,
    named: tuple[np.ndarray, np.ndarray] | None = None,
) -> dict[str, float | str | None]:
    """Legible shares: (bounded heads + named units) / (all heads + all units), of the signed net and the absolute mass.

    A sigmoid unit is a membership and counts among the named ones.
    named: what is SELECTIVE and labelled besides, channels (L, h, dh) bool and units (L, f) bool; None without a scan.
    A net share over a net that is not positive is undefined, and `why_undefined` says so. The mass counts a head as one
    component; the named mass of a head is the part its named channels carry, in proportion to their absolute terms.
    """
    if config.ordinary:
        return {
            "net": None, "mass": None, "named_net": None, "named_mass": None,
            "why_undefined": ORDINARY,
        }  # fmt: skip
    bounded = bounded_heads(config)
    legible = np.zeros(config.feed_forward.d_ff, dtype=bool)
    legible[: config.feed_forward.n_bounded] = True
    heads, units = attribution.heads, attribution.units
    net, mass = float(heads.sum() + units.sum()), float(np.abs(heads).sum() + np.abs(units).sum())
    net_part = float(heads[bounded].sum() + units[:, legible].sum())
    mass_part = float(np.abs(heads[bounded]).sum() + np.abs(units[:, legible]).sum())
    found: dict[str, float | str | None] = {
        "net": net_part / net if net > 0 else None,
        "mass": mass_part / mass if mass > 0 else None,
        "named_net": None,
        "named_mass": None,
        "why_undefined": None
        if net > 0
        else f"the heads and units add up to {net:.3g}, and a share of a sum that is not positive has no meaning",
    }
    if named is not None:
        channel_mask, unit_mask = named
        channels = np.where(channel_mask, attribution.channels, 0.0)
        absolute = np.abs(attribution.channels).sum(-1)
        within = np.divide(np.abs(channels).sum(-1), absolute, out=np.zeros_like(absolute), where=absolute > 0)
        net_named = float(channels.sum() + units[unit_mask].sum())
        mass_named = float((np.abs(heads) * within).sum() + np.abs(units[unit_mask]).sum())
        found["named_net"] = net_named / net if net > 0 else None
        found["named_mass"] = mass_named / mass if mass > 0 else None
    return found


def strongest(attribution: Attribution, top: int) -> list[tuple[str, int, int]]:
    """The `top` heads and units of largest absolute term, strongest first: ("head" | "unit", layer, index)."""
    n_heads, d_ff = attribution.heads.shape[1], attribution.units.shape[1]
    flat = np.concatenate([attribution.heads.ravel(), attribution.units.ravel()])
    count = min(max(top, 0), flat.size)
    if count == 0:
        return []
    size = np.abs(flat)
    best = np.argpartition(-size, count - 1)[:count]
    order = best[np.lexsort((best, -size[best]))]
    split = attribution.heads.size
    return [
        ("head", int(i) // n_heads, int(i) % n_heads)
        if i < split
        else ("unit", (int(i) - split) // d_ff, (int(i) - split) % d_ff)
        for i in order
    ]
