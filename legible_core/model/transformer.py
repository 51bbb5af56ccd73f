"""The decoder: embeddings, pre-norm layers, final norm, unembedding; forward, trace and cached generation."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import cast

import torch
from jaxtyping import Float, Int
from torch import Tensor, nn
from torch.nn import functional as F

from legible_core.config import ModelConfig
from legible_core.errors import LegibleError, TooLarge
from legible_core.interventions import Edit
from legible_core.model.attention import Attention, KeyValues
from legible_core.model.edited import edited_operands
from legible_core.model.editing import (
    Effect,
    LayerEdits,
    by_layer,
    check_fits,
    edit_stream,
    edit_units,
    edit_z,
    fits,
    write,
)
from legible_core.model.feed_forward import FeedForward
from legible_core.model.linear import fusing, join, linear
from legible_core.model.norm import LayerNorm
from legible_core.model.quantifiers import QuantifierState
from legible_core.trace import LayerTrace, Trace


class Layer(nn.Module):
    """Pre-norm attention and feed-forward, each added to the residual stream."""

    def __init__(self, config: ModelConfig, index: int) -> None:
        super().__init__()
        self.attention_norm = LayerNorm(config.d_model, config.norm_eps, config.norm_bias)
        self.attention = Attention(config, index)
        self.feed_forward_norm = LayerNorm(config.d_model, config.norm_eps, config.norm_bias)
        self.feed_forward = FeedForward(config)


@dataclass
class LayerCache:
    attention: KeyValues = field(default_factory=KeyValues)
    quantifiers: QuantifierState | None = None


@dataclass
class Cache:
    """Keys, values and quantifier states of the tokens so far; grows with every `forward` that is given it."""

    layers: list[LayerCache]
    length: int = 0


@dataclass
class Observed:
    """What the pressures look at: per layer the operands and combined values of both surfaces, and the residual.

    residuals: the stream after each layer, for the angle objective. heads: every head's z, for the telemetry.
    References, not copies. outputs: whether anyone looks at what heads and units put out; in a training step in which
    nobody does, none of it is collected.
    """

    outputs = True
    attention_operands: list[tuple[Tensor, ...]] = field(default_factory=list)
    attention_outputs: list[Tensor | None] = field(default_factory=list)
    feed_forward_operands: list[tuple[Tensor, ...]] = field(default_factory=list)
    feed_forward_outputs: list[Tensor | None] = field(default_factory=list)
    residuals: list[Tensor] = field(default_factory=list)
    heads: list[Tensor] = field(default_factory=list)

    def see_attention(self, operands: tuple[Tensor, ...], outputs: Tensor | None, heads: Tensor | None) -> None:
        """Called by each layer in order, as soon as its attention is done."""
        self.attention_operands.append(operands)
        self.attention_outputs.append(outputs)
        if heads is not None:
            self.heads.append(heads)

    def see_feed_forward(self, operands: tuple[Tensor, ...], outputs: Tensor | None) -> None:
        """Called by each layer in order, as soon as its hidden vector is there."""
        self.feed_forward_operands.append(operands)
        self.feed_forward_outputs.append(outputs)


class Transformer(nn.Module):
    """A legible decoder; parameters are named as in docs/checkpoints.md.

    The residual stream, norms, embeddings and logits are float32 in every compute dtype; `to_compute` moves the layers'
    matrices to bfloat16.
    """

    unembedding: nn.Parameter | None
    unembedding_bias: nn.Parameter | None

    def __init__(self, config: ModelConfig) -> None:
        super().__init__()
        self.config = config
        self.token_embedding = nn.Parameter(torch.zeros(config.vocab_size, config.d_model))
        self.position_embedding = nn.Parameter(torch.zeros(config.context, config.d_model))
        # A ModuleList at run time; typed as what it holds.
        self.layers = cast(list[Layer], nn.ModuleList(Layer(config, index) for index in range(config.n_layers)))
        self.final_norm = LayerNorm(config.d_model, config.norm_eps, config.norm_bias)
        untied = None if config.tied else nn.Parameter(torch.zeros(config.vocab_size, config.d_model))
        self.register_parameter("unembedding", untied)
        bias = nn.Parameter(torch.zeros(config.vocab_size)) if config.unembedding_bias else None
        self.register_parameter("unembedding_bias", bias)

    # ---- running -------------------------------------------------------------------------------------------------

    def forward(
        self,
        ids: Int[Tensor, "b t"],
        edits: Sequence[Edit] = (),
        *,
        cache: Cache | None = None,
        observed: Observed | None = None,
    ) -> Float[Tensor, "b t v"]:
        """Logits of every position, float32.

        edits: applied inside the pass, at absolute positions. cache: filled and continued. observed: collects operands
        for the training pressures. Raises `TooLarge` past the context, `LegibleError` for an impossible edit, and
        `NotExact` naming the layer where edits make activations overflow.
        """
        return self.logits(self.residual(ids, edits, cache=cache, observed=observed))

    def residual(
        self,
        ids: Int[Tensor, "b t"],
        edits: Sequence[Edit] = (),
        *,
        cache: Cache | None = None,
        observed: Observed | None = None,
    ) -> Float[Tensor, "b t d"]:
        """The final residual stream before the last norm, for callers that need few logits."""
        start = 0 if cache is None else cache.length
        x = self._embed(ids, start, edits, cached=cache is not None)[0]
        here = by_layer(edits, start) if edits else None
        flags = []
        for index, layer in enumerate(self.layers):
            if here is None and cache is None and fusing(x) and (observed is None or not observed.outputs):
                x = self._unseen(layer, x, observed)
                continue
            kept = None if cache is None else cache.layers[index]
            x = self._layer(layer, x, None if here is None else here.get(index), kept, observed)[-1]
            if here is not None:
                flags.append(fits(x))
        if here is not None:
            x = edit_stream(x, here.get(self.config.n_layers))
            check_fits([*flags, fits(x)], edits)
        if cache is not None:
            cache.length += ids.shape[1]
        return x

    def logits(self, residual: Float[Tensor, "*s d"]) -> Float[Tensor, "*s v"]:
        """Final norm and unembedding, float32."""
        return F.linear(self.final_norm(residual), self.unembedding_matrix, self.unembedding_bias)

    @property
    def unembedding_matrix(self) -> Float[Tensor, "v d"]:
        """W_U: the token embedding when tied."""
        return self.token_embedding if self.unembedding is None else self.unembedding

    def new_cache(self) -> Cache:
        return Cache([LayerCache() for _ in self.layers])

    @torch.no_grad()
    def trace(self, ids: Int[Tensor, " t"], edits: Sequence[Edit] = ()) -> Trace:
        """Run one prompt and keep what a reading needs of every position; computes no logits.

        Raises what `forward` raises, and `LegibleError` for an edit that is no identity and changes nothing.
        """
        x, token, position = self._embed(ids[None], 0, edits)
        effect = Effect()
        here = by_layer(edits, 0, effect)
        layers, flags = [], []
        for index, layer in enumerate(self.layers):
            before, z, middle, hidden, x = self._layer(layer, x, here.get(index))
            layers.append(LayerTrace(before[0], z[0], middle[0], join(hidden)[0]))
            if edits:
                flags.append(fits(x))
        if edits:
            x = edit_stream(x, here.get(self.config.n_layers))
            check_fits([*flags, fits(x)], edits)
            effect.check()
        return Trace(ids, token[0], position, tuple(layers), x[0], edits=tuple(edits))

    @torch.no_grad()
    def logits_at(self, trace: Trace, position: int) -> Float[Tensor, " v"]:
        """Logits of one position of a trace."""
        return self.logits(trace.residual[position])

    # ---- recomputed on request -----------------------------------------------------------------------------------

    @torch.no_grad()
    def operands(self, layer: int, trace: Trace, position: int | slice) -> dict[str, Tensor]:
        """Operand values of a layer at one or several positions, float32.

        Keys, where the model has them: pair_a, pair_b (·, p), quantifier (·, q), sigmoid (·, g), head_a, head_b
        (·, n_special, dh/2), membership (·, n_special, dh). An integer position drops the leading dimension.
        """
        if trace.edits and layer in (here := by_layer(trace.edits, 0)):
            return self._edited_operands(layer, trace, position, here[layer])
        part = self.layers[layer]
        recorded = trace.layers[layer]
        found: dict[str, Tensor] = {}
        x = self._compute(part.feed_forward_norm(recorded.feed_forward_in[position]), part.feed_forward.down)
        layout = self.config.feed_forward
        names = (["pair_a", "pair_b"] if layout.n_pairs else []) + (["quantifier"] if layout.n_quantifiers else [])
        names += ["sigmoid"] if layout.n_bounded > layout.n_named else []
        found.update(zip(names, part.feed_forward.operands(x), strict=True))
        y = self._compute(part.attention_norm(recorded.attention_in[position]), part.attention.output)
        heads = part.attention.operands(y)
        names = ["membership"] if len(heads) == 1 else ["head_a", "head_b"]
        found.update(zip(names, heads, strict=False))
        return {name: values.float() for name, values in found.items()}

    def _edited_operands(self, layer: int, trace: Trace, position: int | slice, here: LayerEdits) -> dict[str, Tensor]:
        """As `operands`, under the edits of the trace: of all positions, because edits name positions."""
        part = self.layers[layer]
        recorded = trace.layers[layer]
        layout = self.config.feed_forward
        x = self._compute(part.feed_forward_norm(recorded.feed_forward_in), part.feed_forward.down)
        found = edited_operands(part.feed_forward, x[None], here)
        if layout.n_bounded > layout.n_named:
            found["sigmoid"] = recorded.hidden[None, :, layout.n_named :]
        y = self._compute(part.attention_norm(recorded.attention_in), part.attention.output)
        heads = part.attention.values(y[None], here)[1]
        names = ["membership"] if len(heads) == 1 else ["head_a", "head_b"]
        found.update(zip(names, heads, strict=False))
        return {name: values[0, position].float() for name, values in found.items()}

    @torch.no_grad()
    def attention_row(self, layer: int, head: int, trace: Trace, position: int) -> Float[Tensor, " s"]:
        """The attention weights of a head from `position` to positions 0..position."""
        part = self.layers[layer]
        x = self._compute(part.attention_norm(trace.layers[layer].attention_in), part.attention.output)
        return part.attention.pattern_row(x, head, position)

    @torch.no_grad()
    def head_values(self, layer: int, trace: Trace) -> Float[Tensor, "t h dh"]:
        """What every head's value is at every position (before attention gathers it), float32."""
        part = self.layers[layer]
        x = self._compute(part.attention_norm(trace.layers[layer].attention_in), part.attention.output)
        here = by_layer(trace.edits, 0).get(layer)
        return part.attention.values(x[None], here)[0][0].float()

    @torch.no_grad()
    def decay(self, layer: int) -> Float[Tensor, " q"]:
        """λ of a layer's quantifiers, existentials first; empty when it has none."""
        return self.layers[layer].feed_forward.decay

    # ---- starting and converting ---------------------------------------------------------------------------------

    @torch.no_grad()
    def initialise(self, generator: torch.Generator) -> None:
        """Draw starting weights: embeddings N(0, 0.02²), read rows N(0, 0.6²/d), write columns smaller by 1/√(2L)."""
        config = self.config
        read = 0.6 / math.sqrt(config.d_model)
        write = {
            "output": read / math.sqrt(2 * config.n_layers),
            "down": 0.6 / math.sqrt(config.feed_forward.d_ff) / math.sqrt(2 * config.n_layers),
        }
        for name, parameter in self.named_parameters():
            last = name.rsplit(".", 1)[-1]
            if last in ("theta", "gain") or last.endswith("bias"):
                continue
            std = 0.02 if "embedding" in last else write.get(last, read)
            parameter.copy_(torch.randn(parameter.shape, generator=generator) * std)

    def to_compute(self, dtype: torch.dtype) -> Transformer:
        """Move the layers' matrices to float32 or bfloat16; embeddings, gains, norms and decays stay float32."""
        if dtype not in (torch.float32, torch.bfloat16):
            raise LegibleError(f"compute dtype {dtype} is not supported; use float32 or bfloat16")
        for layer in self.layers:
            for part in (layer.attention, layer.feed_forward):
                for name, parameter in part.named_parameters(recurse=False):
                    if name != "theta":
                        parameter.data = parameter.data.to(dtype)
        return self

    # ---- the pass itself -----------------------------------------------------------------------------------------

    def _embed(
        self, ids: Tensor, start: int, edits: Sequence[Edit], cached: bool = False
    ) -> tuple[Tensor, Tensor, Tensor]:
        stop = start + ids.shape[1]
        if ids.shape[1] == 0:
            raise LegibleError("The prompt is empty; give at least one token.", code="empty_prompt")
        if stop > self.config.context:
            raise TooLarge(f"The prompt has {stop} tokens; this checkpoint reads at most {self.config.context}.")
        for edit in edits:
            # With a cache the text may go on, so an edit may name a position still to come.
            edit.check(self.config, self.config.context if cached else stop)
        token = F.embedding(ids, self.token_embedding)
        position = self.position_embedding[start:stop]
        return token + position, token, position

    def _layer(
        self,
        layer: Layer,
        x: Tensor,
        edits: LayerEdits | None = None,
        cache: LayerCache | None = None,
        observed: Observed | None = None,
    ) -> tuple[Tensor, Tensor, Tensor, tuple[Tensor, ...], Tensor]:
        """(residual before, z, residual between the sublayers, hidden in parts, residual after).

        All with batch and token dimensions; the first is x with what the edits add to it.
        """
        attention, feed_forward = layer.attention, layer.feed_forward
        if edits is not None:
            x = edit_stream(x, edits)
        z, operands, bounded = attention(
            self._compute(layer.attention_norm(x), attention.output), None if cache is None else cache.attention, edits
        )
        if edits is not None:
            z = edit_z(z, edits)
        if observed is not None:
            observed.see_attention(operands, bounded, z)
        if edits is None:
            written = linear(attention, "output", z.flatten(-2))
        else:
            written = write(attention, "output", z.flatten(-2), edits.channel_columns, edits, attention.d_head)
        middle = x + written.float()
        y = self._compute(layer.feed_forward_norm(middle), feed_forward.down)
        quantifiers = None if cache is None else cache.quantifiers
        hidden: tuple[Tensor, ...]
        if fusing(y) and edits is None:
            hidden, atoms, state = feed_forward.parts(y, quantifiers)
        else:
            # Through the module's own call, so that a hook on it sees the whole hidden vector.
            whole, atoms, state = feed_forward(y, quantifiers, edits)
            hidden = (whole if edits is None else edit_units(whole, edits),)
        if observed is not None:
            # Bounded units are the first ones, so they are in the first part.
            observed.see_feed_forward(atoms, hidden[0][..., : feed_forward.layout.n_bounded])
        if edits is None:
            after = middle + feed_forward.write(hidden).float()
        else:
            after = middle + write(feed_forward, "down", hidden[0], edits.unit_columns, edits, 1).float()
        if cache is not None:
            cache.quantifiers = state
        if observed is not None:
            observed.residuals.append(after)
        return x, z, middle, hidden, after

    def _unseen(self, layer: Layer, x: Tensor, observed: Observed | None) -> Tensor:
        """What `_layer` gives last, for a gradient: nobody sees z or the hidden vector, so they may be factored."""
        attention, feed_forward = layer.attention, layer.feed_forward
        written, operands = attention.written(self._compute(layer.attention_norm(x), attention.output))
        if observed is not None:
            observed.see_attention(operands, None, None)
        middle = x + written.float()
        added, atoms = feed_forward.written(self._compute(layer.feed_forward_norm(middle), feed_forward.down))
        if observed is not None:
            observed.see_feed_forward(atoms, None)
        after = middle + added.float()
        if observed is not None:
            observed.residuals.append(after)
        return after

    @staticmethod
    def _compute(x: Tensor, like: Tensor) -> Tensor:
        """To the compute dtype of a layer's matrices."""
        return x if torch.is_autocast_enabled(x.device.type) else x.to(like.dtype)


__all__ = ["Cache", "Observed", "Transformer"]
