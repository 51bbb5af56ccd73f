"""The line that is always in sight: the groups of a sum, its floor, what they make, and the legible shares in words."""

from __future__ import annotations

from dataclasses import dataclass

from app.pages.view import percent
from legible_core.reading import ORDINARY, Shares, Summary

FLOOR_NAMES = {"embed.token": "token embedding", "embed.position": "position embedding", "norm.bias": "norm bias"}
GROUPS = (
    ("attention", "attention"),
    ("linear_attention", "linear attention"),
    ("set_operators", "set operators"),
    ("quantifiers", "quantifiers"),
    ("gelu", "GELU"),
    ("sigmoid", "sigmoid units"),
    ("softplus", "softplus"),
    ("relu", "ReLU"),
    ("silu", "SiLU"),
    ("swiglu", "SwiGLU"),
    ("geglu", "GeGLU"),
)


@dataclass(frozen=True, slots=True)
class Amount:
    name: str
    value: float


@dataclass(frozen=True, slots=True)
class SumLine:
    """The line that is always in sight; every number is the JSON's."""

    groups: tuple[Amount, ...]
    floor: tuple[Amount, ...]
    sum: float
    what: str
    value: float
    residual: float
    tolerance: float
    shares: str


def sum_line(summary: Summary) -> SumLine:
    """The line of a reading; a group without a term is left out, but for attention."""
    groups = []
    for key, name in GROUPS:
        amount = getattr(summary.groups, key)
        if amount or key == "attention":
            groups.append(Amount(name, amount))
    floor = tuple(Amount(FLOOR_NAMES.get(term.id, term.id.replace("_", " ")), term.value) for term in summary.floor)
    what = {"nothing": "logit", "mean": "logit − mean", "contrast": "logit difference"}[summary.relative_to]
    if summary.logit_softcap is not None:
        what += f" before the soft-cap at {summary.logit_softcap:g}"
    return SumLine(
        tuple(groups),
        floor,
        summary.sum,
        what,
        summary.value,
        summary.residual,
        summary.tolerance,
        said_shares(summary.shares),
    )


def said_shares(shares: Shares) -> str:
    """The legible shares in words."""
    if shares.why_undefined == ORDINARY:
        return f"no legible share: {ORDINARY}"
    if shares.net is None:
        why = shares.why_undefined or "the net is 0 or less"
        said = f"legible share {percent(shares.mass)} of mass; of net undefined: {why}"
    else:
        said = f"legible share {percent(shares.net)} of net, {percent(shares.mass)} of mass"
    if shares.named_net is not None:
        said += f"; SELECTIVE and labelled {percent(shares.named_net)} of net"
    elif shares.named_mass is not None:
        said += f"; SELECTIVE and labelled {percent(shares.named_mass)} of mass"
    return said
