"""The names of a checkpoint: reads and writes names.json and names.safetensors; imports no torch.

    names = Names.load(folder)                       # None when the checkpoint has none
    names.operand(parse("L5.p39.A")).label           # Label("determiner", "class", ...)
    names.component(parse("L5.u263")).formula        # "determiner ∖ determiner → superlative"
    names.units(5)                                   # every unit of a layer, for a table

A name is evidence plus a short label. `read off the weights`: promote lists, decay. `measured on data`: detect lists,
agreement, statistics, and every label. The arrays are described in docs/names.md.
"""

from __future__ import annotations

import json
import math
from collections.abc import Iterator
from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray
from safetensors import SafetensorError
from safetensors.numpy import load as load_arrays

from legible_core import folder as files
from legible_core.errors import Corrupt, NotFound
from legible_core.legibility import CODES, HISTOGRAM_BINS, Legibility, classify
from legible_core.naming import plain
from legible_core.naming.places import component_within, config_of, operand_within, starts
from legible_core.naming.plain import PlainValues
from legible_core.naming.records import (
    GUESS,
    ComponentName,
    Label,
    OperandName,
    Promotion,
    TokenEvidence,
    formula_of,
)
from legible_core.units import BOUNDED, Channel, Component, HeadOperand, Operand, QuantifierOperand, Unit

SCHEMA = 1
JSON, ARRAYS = files.NAMES
MAX_ARRAY_BYTES = 1 << 30
SHOWN = 24


class Names:
    """A loaded names store; immutable, and safe to share between threads."""

    def __init__(self, meta: dict[str, Any], arrays: dict[str, NDArray[Any]]) -> None:
        """Checks every array against the config in `meta`; raises `Corrupt` naming what does not fit."""
        if meta.get("schema") != SCHEMA:
            raise Corrupt(f"{JSON} has schema {str(meta.get('schema'))[:20]}; this program reads {SCHEMA}")
        self.meta = meta
        self.config = config_of(meta.get("config"))
        self._arrays = arrays
        self._check()
        self._display: dict[str, str] = meta["tokens"]
        self._classes: list[str] = meta["classes"]
        self._operand_start, self._component_start = starts(self.config)

    @classmethod
    def load(cls, folder: Path | str, *, checkpoint_hash: str | None = None) -> Names | None:
        """The names beside a checkpoint; None when it has none, or has those of other weights than `checkpoint_hash`.

        Raises `Corrupt`, with one sentence, when the files are not what they claim to be.
        """
        folder = Path(folder)
        if not (folder / JSON).is_file() or not (folder / ARRAYS).is_file():
            return None
        meta = files.parse_json(files.read_text(folder, JSON, files.MAX_NAMES_BYTES), JSON)
        if checkpoint_hash is not None and meta.get("checkpoint") != checkpoint_hash:
            return None
        with files.open_inside(folder, ARRAYS) as (file, status):
            if status.st_size > MAX_ARRAY_BYTES:
                raise Corrupt(f"{ARRAYS} is {status.st_size:,} bytes; the limit is {MAX_ARRAY_BYTES:,} bytes")
            data = file.read()
        try:
            arrays = load_arrays(data)
        except (SafetensorError, ValueError, KeyError, TypeError) as error:
            raise Corrupt(f"{ARRAYS} is no safetensors file of plain arrays: {str(error)[:80]}") from None
        return cls(meta, arrays)

    # ---- one name ------------------------------------------------------------------------------------------------

    def operand(self, component: Component, shown: int = SHOWN) -> OperandName:
        """The name of an operand (a membership channel is its own); raises `NotFound` for anything else."""
        index = self._operand_index(component)
        of = self._arrays
        start, stop = int(of["detect.offsets"][index]), int(of["detect.offsets"][index + 1])
        tokens = of["detect.tokens"][start : min(stop, start + shown)]
        counts = of["detect.on"][start : min(stop, start + shown)].astype(np.int64)
        seen, base = of["seen"], float(of["operand.base"][index])
        detect = tuple(
            TokenEvidence(
                id=int(token),
                display=self.display(int(token)),
                lift=float(count) / max(int(seen[token]), 1) / base if base else math.inf,
                count=int(count),
                share=float(count) / max(int(seen[token]), 1),
            )
            for token, count in zip(tokens, counts, strict=True)
        )
        agreed = float(of["operand.agreement"][index])
        return OperandName(
            id=str(component),
            label=self._operand_label(index),
            detect=detect,
            length=stop - start,
            agreement=None if math.isnan(agreed) else agreed,
            mean=float(of["operand.mean"][index]),
            variance=float(of["operand.variance"][index]),
            crisp=float(of["operand.crisp"][index]),
            on=float(of["operand.on"][index]),
            cls=CODES[self._operand_codes[index]],
            histogram=tuple(float(x) for x in of["operand.histogram"][index]),
        )

    def component(self, component: Component) -> ComponentName:
        """The name of a unit or a bounded head's channel; raises `NotFound` for anything else."""
        index = self._component_index(component)
        of = self._arrays
        label = self._label("component", index, of["promote.tokens"][index])
        kind, operands = self._reads(component)
        labels = tuple(self._operand_label(self._operand_index(operand)) for operand in operands)
        half_life, decay = None, None
        if kind in ("existential", "proportion"):
            decay = float(of["decay"][self._quantifier_index(component)])
            half_life = math.inf if decay >= 1.0 else math.log(0.5) / math.log(decay) if decay > 0 else 0.0
        measured = isinstance(component, Channel) or kind in BOUNDED
        return ComponentName(
            id=str(component),
            kind=kind,
            formula=formula_of(kind, labels, half_life, label) if self.plain is None else self._guess(index, label),
            label=label,
            operands=tuple(str(operand) for operand in operands),
            operand_labels=labels,
            promotes=self._promotions("promote", index),
            rare=self._promotions("rare", index),
            cls=CODES[self._component_codes[index]] if measured else None,
            mean=float(of["component.mean"][index]) if measured else None,
            variance=float(of["component.variance"][index]) if measured else None,
            crisp=float(of["component.crisp"][index]) if measured else None,
            on=float(of["component.on"][index]) if measured else None,
            decay=decay,
            half_life=half_life,
        )

    @cached_property
    def plain(self) -> PlainValues | None:
        """What the scan measured of an ordinary model's units; None for a legible checkpoint."""
        return PlainValues(self) if self.config.ordinary else None

    def units(self, layer: int) -> Iterator[ComponentName]:
        """Every unit of a layer, in order."""
        for unit in range(self.config.feed_forward.d_ff):
            yield self.component(Unit(layer, unit))

    def channels(self, layer: int, head: int) -> Iterator[ComponentName]:
        """Every channel of a bounded head, in order; nothing for a linear head."""
        if 0 <= layer < self.config.n_layers and self.config.is_bounded(layer, head):
            for channel in range(self.config.d_head):
                yield self.component(Channel(layer, head, channel))

    def display(self, token: int) -> str:
        """The chip of a token that stands in some list."""
        return self._display.get(str(token), f"⟨{token}⟩")

    @property
    def often(self) -> NDArray[np.bool_]:
        """Which tokens of the vocabulary were seen often enough to be ranked in promote lists, shape (v,)."""
        often: NDArray[np.bool_] = self._arrays["often"] != 0
        return often

    @cached_property
    def detect_lists(self) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
        """(offsets, tokens): operand i, in the order of the arrays, lists tokens[offsets[i]:offsets[i + 1]]."""
        return self._arrays["detect.offsets"].astype(np.int64), self._arrays["detect.tokens"].astype(np.int64)

    def promote_places(self, component: Component) -> tuple[tuple[int, int], ...]:
        """For each token of a component's promote list: its place among all whose list holds the token, and how many.

        1 is the component that promotes the token most; equal weights share a place.
        """
        index = self._component_index(component)
        order, sorted_tokens = self._by_token
        tokens, weights = self._arrays["promote.tokens"][index], self._arrays["promote.weights"].ravel()
        places = []
        for token, weight in zip(tokens, self._arrays["promote.weights"][index], strict=True):
            first, last = np.searchsorted(sorted_tokens, [token, int(token) + 1])
            places.append((int((weights[order[first:last]] > weight).sum()) + 1, int(last - first)))
        return tuple(places)

    @cached_property
    def _by_token(self) -> tuple[NDArray[np.int64], NDArray[Any]]:
        """The entries of all promote lists in the order of their tokens, and the tokens so ordered."""
        flat = self._arrays["promote.tokens"].ravel()
        order = np.argsort(flat, kind="stable")
        return order, flat[order]

    # ---- the model as a whole ------------------------------------------------------------------------------------

    @property
    def quality(self) -> dict[str, Any]:
        """Loss and perplexity of the same checkpoint on the scanned text; no legibility figure goes without it."""
        quality: dict[str, Any] = self.meta["quality"]
        return quality

    @property
    def legibility(self) -> dict[str, Any]:
        """The papers' rows per layer and pooled, and the nameability; see docs/names.md."""
        legibility: dict[str, Any] = self.meta["legibility"]
        return legibility

    # ---- where things stand --------------------------------------------------------------------------------------

    def _operand_index(self, component: Component) -> int:
        within = operand_within(self.config, component)
        if within is None:
            raise NotFound(f"{component} is no operand of this checkpoint.")
        return int(self._operand_start[component.layer]) + within  # type: ignore[union-attr]

    def _component_index(self, component: Component) -> int:
        within = component_within(self.config, component)
        if within is None:
            raise NotFound(f"{component} has no name in this checkpoint; units and bounded heads' channels have one.")
        return int(self._component_start[component.layer]) + within  # type: ignore[union-attr]

    def _quantifier_index(self, component: Component) -> int:
        assert isinstance(component, Unit)
        layout = self.config.feed_forward
        return component.layer * layout.n_quantifiers + component.unit - layout.quantifiers.start

    def _reads(self, component: Component) -> tuple[str, tuple[Component, ...]]:
        """The operation of a component and the operands it reads, in the order of its formula."""
        layout, half = self.config.feed_forward, self.config.d_head // 2
        if isinstance(component, Channel):
            layer, head, channel = component.layer, component.head, component.channel
            if self.config.attention.value == "membership":
                return "membership", (component,)
            kind = "intersection" if channel < half else "difference"
            return kind, (HeadOperand(layer, head, channel % half, "A"), HeadOperand(layer, head, channel % half, "B"))
        assert isinstance(component, Unit)
        kind = layout.kind(component.unit)
        if kind in ("intersection", "difference"):
            pair = layout.pair(component.unit)
            return kind, (Operand(component.layer, pair, "A"), Operand(component.layer, pair, "B"))
        if kind == "sigmoid":
            return kind, (component,)
        return kind, (QuantifierOperand(component.layer, component.unit),) if kind in BOUNDED else ()

    def _guess(self, index: int, promotes: Label | None) -> str:
        """An ordinary unit has no operation: what it is most active on and what it promotes, marked as a guess."""
        detects = None if self.plain is None else self.plain.label(index)
        return f"{GUESS} {formula_of('', (detects,), None, promotes)}"

    # ---- labels and classes --------------------------------------------------------------------------------------

    @cached_property
    def _operand_codes(self) -> NDArray[np.int8]:
        return classify(
            self._arrays["operand.variance"].astype(np.float64), self._arrays["operand.crisp"].astype(np.float64)
        )

    @cached_property
    def _component_codes(self) -> NDArray[np.int8]:
        """A channel's class is its own value's; a unit's its operands' if they agree, else FUZZY; -1: no rails."""
        variance, crisp = (self._arrays[f"component.{name}"].astype(np.float64) for name in ("variance", "crisp"))
        codes, layout = classify(variance, crisp), self.config.feed_forward
        pairs, bounded = layout.n_pairs, layout.n_bounded
        for layer in range(self.config.n_layers):
            channels = self.config.attention.n_special[layer] * self.config.d_head
            units = int(self._component_start[layer]) + channels
            operands = self._operand_codes[int(self._operand_start[layer]) + channels :]
            a, b, m = operands[:pairs], operands[pairs : 2 * pairs], operands[2 * pairs : bounded]
            both = np.where(a == b, a, CODES.index(Legibility.FUZZY))
            codes[units : units + bounded] = np.concatenate([both, both, m])
            codes[units + bounded : units + layout.d_ff] = -1
        return codes

    def named(self, layer: int) -> tuple[NDArray[np.bool_], NDArray[np.bool_]]:
        """Which components of a layer are SELECTIVE and have a class label on their promote side, as two masks.

        The bounded heads' channels, shape (n_special, dh), and the units, shape (f,).
        """
        config = self.config
        start, stop = (int(x) for x in self._component_start[layer : layer + 2])
        chosen = self._arrays["component.label.class"][start:stop] >= 0
        found = (self._component_codes[start:stop] == CODES.index(Legibility.SELECTIVE)) & chosen
        channels = config.attention.n_special[layer] * config.d_head
        return found[:channels].reshape(-1, config.d_head), found[channels:]

    def _operand_label(self, index: int) -> Label | None:
        if self._operand_codes[index] == 0:
            mean = float(self._arrays["operand.mean"][index])
            return Label("never" if mean < 0.1 else "always" if mean > 0.9 else f"constant {mean:.2f}", "state")
        start, stop = self._arrays["detect.offsets"][index : index + 2]
        return self._label("operand", index, self._arrays["detect.tokens"][int(start) : int(stop)])

    def _label(self, side: str, index: int, tokens: NDArray[Any]) -> Label | None:
        of = self._arrays
        chosen = int(of[f"{side}.label.class"][index])
        if chosen >= 0:
            n, leading = int(of[f"{side}.label.overlap"][index]), int(of[f"{side}.label.leading"][index])
            q, share = float(of[f"{side}.label.q"][index]), float(of[f"{side}.label.share"][index])
            return Label(self._classes[chosen], "class", q, n, leading, share)
        if not len(tokens):
            return None
        return Label(", ".join(f"“{self.display(int(token))}”" for token in tokens[:3]), "tokens")

    def _promotions(self, side: str, index: int) -> tuple[Promotion, ...]:
        tokens, weights = self._arrays[f"{side}.tokens"][index], self._arrays[f"{side}.weights"][index]
        return tuple(
            Promotion(int(token), self.display(int(token)), float(weight))
            for token, weight in zip(tokens, weights, strict=True)
        )

    # ---- checks --------------------------------------------------------------------------------------------------

    def _check(self) -> None:
        meta, arrays, config = self.meta, self._arrays, self.config
        for key, kind in (("tokens", dict), ("classes", list), ("quality", dict), ("legibility", dict)):
            if not isinstance(meta.get(key), kind):
                raise Corrupt(f'{JSON} lacks its "{key}"')
        operands, components = (int(ends[-1]) for ends in starts(config))
        top, rare = (arrays[key].shape[-1] if key in arrays else 0 for key in ("promote.tokens", "rare.tokens"))
        listed = arrays["detect.tokens"].size if "detect.tokens" in arrays else 0
        shapes: dict[str, tuple[int, ...]] = {
            "seen": (config.vocab_size,),
            "often": (config.vocab_size,),
            "detect.offsets": (operands + 1,),
            "detect.tokens": (listed,),
            "detect.on": (listed,),
            "operand.histogram": (operands, HISTOGRAM_BINS),
            "decay": (config.n_layers * config.feed_forward.n_quantifiers,),
        }
        shapes |= {f"operand.{name}": (operands,) for name in ("mean", "variance", "crisp", "on", "base", "agreement")}
        shapes |= {f"component.{name}": (components,) for name in ("mean", "variance", "crisp", "on")}
        for side, rows in (("operand", operands), ("component", components)):
            shapes |= {f"{side}.label.{name}": (rows,) for name in ("class", "q", "overlap", "leading", "share")}
        for side, width in (("promote", top), ("rare", rare)):
            shapes |= {f"{side}.{name}": (components, width) for name in ("tokens", "weights")}
        for name, shape in shapes.items():
            if name not in arrays or arrays[name].shape != shape:
                found = arrays[name].shape if name in arrays else "missing"
                raise Corrupt(f"{ARRAYS}: {name} is {found}; the checkpoint needs {shape}")
        if config.ordinary:
            plain.check(meta, arrays, config, ARRAYS)
        for name in ("mean", "variance", "crisp", "on", "base"):
            if not np.isfinite(arrays[f"operand.{name}"]).all():
                raise Corrupt(f"{ARRAYS}: operand.{name} holds a value that is no number")
        offsets = arrays["detect.offsets"].astype(np.int64)
        if offsets[0] != 0 or offsets[-1] != listed or (np.diff(offsets) < 0).any():
            raise Corrupt(f"{ARRAYS}: detect.offsets do not divide the list of tokens")
        for name in ("detect.tokens", "promote.tokens", "rare.tokens"):
            ids = arrays[name]
            if ids.dtype.kind not in "ui" or (ids.size and int(ids.max()) >= config.vocab_size):
                raise Corrupt(f"{ARRAYS}: {name} holds ids outside the vocabulary")
        for side in ("operand", "component"):
            chosen = arrays[f"{side}.label.class"]
            if chosen.dtype.kind != "i" or (
                chosen.size and not -1 <= chosen.min() <= chosen.max() < len(meta["classes"])
            ):
                raise Corrupt(f"{ARRAYS}: {side}.label.class names no class of {JSON}")


def to_json_text(meta: dict[str, Any]) -> str:
    """names.json as it is written: stable order, one key per line at the top."""
    lines = (f"{json.dumps(key)}: {json.dumps(value, ensure_ascii=False)}" for key, value in meta.items())
    return "{\n" + ",\n".join(lines) + "\n}\n"


__all__ = ["ComponentName", "Label", "Names", "OperandName", "Promotion", "TokenEvidence", "starts", "to_json_text"]
