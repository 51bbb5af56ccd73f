"""An ordinary model behind the surface that a legible one has: the same trace, the same write columns.

    model = OrdinaryModel(bridge, config)                # bridge: TransformerLens' TransformerBridge over the HF model
    trace = model.trace(ids)                             # a `Trace`, as `Transformer.trace` gives

The bridge runs Hugging Face's own modules and lets their inputs be seen. What is seen are the inputs of the linear maps
that write into the residual stream, and a linear map's output is, by what linear means, the sum over its input's
coordinates; so the terms are exact whatever made those coordinates: gates, rotary attention, grouped queries, soft caps
on attention scores. Nothing is folded, centred or re-based; parameters are used where they lie.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from types import SimpleNamespace
from typing import Any

import torch
from jaxtyping import Float, Int
from torch import Tensor
from torch.nn import functional as F

from legible_core.adapters.config import OrdinaryConfig
from legible_core.adapters.offload import Waiting, move_rest
from legible_core.errors import LegibleError, TooLarge
from legible_core.interventions import WEIGHTS, Edit
from legible_core.model.editing import LayerEdits, by_layer, edit_heads, edit_hidden, edit_stream
from legible_core.trace import LayerTrace, Trace

Hook = Callable[[Tensor, Any], Tensor | None]


class Norm:
    """A norm of the model, seen from outside: its gain, bias and divisor; `centred` when it takes the mean away."""

    def __init__(self, module: Any, config: OrdinaryConfig) -> None:
        self._module = module
        self.eps = config.norm_eps
        self.centred = config.norm == "LayerNorm"
        # Gemma stores the gain's distance from 1.
        self._offset = 1.0 if config.family.startswith("gemma") else 0.0

    @property
    def gain(self) -> Float[Tensor, " d"]:
        return self._module.weight.detach().float() + self._offset

    @property
    def bias(self) -> Float[Tensor, " d"] | None:
        found = getattr(self._module, "bias", None)
        return None if found is None else found.detach()

    def scale(self, x: Float[Tensor, "*s d"]) -> Float[Tensor, "*s 1"]:
        """The divisor: sqrt(var(x) + eps), or sqrt(mean(x²) + eps) for an RMSNorm."""
        spread = x.var(-1, unbiased=False, keepdim=True) if self.centred else x.square().mean(-1, keepdim=True)
        return (spread + self.eps).sqrt()

    def __call__(self, x: Float[Tensor, "*s d"]) -> Float[Tensor, "*s d"]:
        centred = x - x.mean(-1, keepdim=True) if self.centred else x
        y = centred / self.scale(x) * self.gain
        return y if self.bias is None else y + self.bias


class Writes:
    """A sublayer's write matrix and bias, and the norm behind it where there is one, on the device that computes.

    Offloaded weights lie on the CPU: each is brought to the device when it is asked for, and let go with the answer.
    """

    def __init__(self, parts: dict[str, Any], device: Callable[[], torch.device]) -> None:
        self._parts, self._device = parts, device

    def __getattr__(self, name: str) -> Any:
        try:
            part = self.__dict__["_parts"][name]
        except KeyError:
            raise AttributeError(name) from None
        return part.to(self._device()) if isinstance(part, Tensor) else part


@dataclass
class Prefix:
    """The tokens so far: an ordinary model goes on with a text by reading it again from its start."""

    ids: Int[Tensor, "b t"] | None = field(default=None)


class OrdinaryModel:
    """What `Engine`, `Attributor` and `Describer` use of a `Transformer`, over a TransformerBridge."""

    def __init__(self, bridge: Any, config: OrdinaryConfig) -> None:
        self.bridge = bridge
        self.config = config
        self.final_norm = Norm(bridge.ln_final.original_component, config)
        self.waiting: Waiting | None = None
        self.layers = [self._layer(block) for block in bridge.blocks]

    def _layer(self, block: Any) -> SimpleNamespace:
        attention, feed_forward = writes(block.attn.o), writes(block.mlp.out)
        if self.config.post_norms:
            attention.post_norm = Norm(block.ln1_post.original_component, self.config)
            feed_forward.post_norm = Norm(block.ln2_post.original_component, self.config)
            attention.post_gain, feed_forward.post_gain = attention.post_norm.gain, feed_forward.post_norm.gain
        return SimpleNamespace(
            attention=Writes(_named(attention, "output"), self._device),
            feed_forward=Writes(_named(feed_forward, "down"), self._device),
        )

    def _device(self) -> torch.device:
        return self.token_embedding.device

    def offload(self, device: torch.device) -> None:
        """Run on a device that holds one layer's weights at a time; see `legible_core.adapters.offload`."""
        move_rest(self.bridge, self.bridge.blocks, device)
        self.waiting = Waiting(self.bridge.blocks, device)

    # ---- weights -------------------------------------------------------------------------------------------------

    @property
    def token_embedding(self) -> Float[Tensor, "v d"]:
        """The embedding matrix as stored; some families scale its rows when they look them up."""
        weight: Tensor = self.bridge.embed.original_component.weight.detach()
        return weight

    @property
    def unembedding_matrix(self) -> Float[Tensor, "v d"]:
        weight: Tensor = self.bridge.unembed.original_component.weight.detach()
        return weight

    @property
    def unembedding_bias(self) -> Float[Tensor, " v"] | None:
        found = getattr(self.bridge.unembed.original_component, "bias", None)
        # TransformerLens gives a head without a bias one of zeros, as a buffer.
        return found.detach() if isinstance(found, torch.nn.Parameter) else None

    @property
    def n_bytes(self) -> int:
        """What the parameters take in memory; tied ones count once."""
        held = [p for p in self.bridge.original_model.parameters() if not p.is_meta]
        waiting = 0 if self.waiting is None else self.waiting.n_bytes
        return waiting + sum({p.data_ptr(): p.numel() * p.element_size() for p in held}.values())

    # ---- running -------------------------------------------------------------------------------------------------

    @torch.no_grad()
    def trace(self, ids: Int[Tensor, " t"], edits: Sequence[Edit] = ()) -> Trace:
        """Run one prompt and keep what a reading needs of every position."""
        seen: dict[str, Tensor] = {}
        names = ["embed.hook_out", "ln_final.hook_in"]
        for index in range(self.config.n_layers):
            here = f"blocks.{index}"
            names += [f"{here}.ln1.hook_in", f"{here}.attn.o.hook_in", f"{here}.mlp.out.hook_in"]
            names += [] if self.config.parallel else [f"{here}.ln2.hook_in"]
            names += [f"{here}.ln{n}_post.hook_in" for n in (1, 2)] if self.config.post_norms else []
        self._run(ids[None], names, seen, edits)
        layers = []
        for index, part in enumerate(self.layers):
            here = f"blocks.{index}"
            before = seen[f"{here}.ln1.hook_in"]
            z = seen[f"{here}.attn.o.hook_in"]
            divisors = {}
            if self.config.post_norms:
                for n, name in ((1, "attention"), (2, "feed_forward")):
                    written = seen[f"{here}.ln{n}_post.hook_in"].float()
                    divisors[f"{name}_divisor"] = getattr(part, name).post_norm.scale(written)[:, 0]
            layers.append(
                LayerTrace(
                    before,
                    z.reshape(len(ids), self.config.n_heads, self.config.d_head),
                    before if self.config.parallel else seen[f"{here}.ln2.hook_in"],
                    seen[f"{here}.mlp.out.hook_in"],
                    **divisors,
                )
            )
        token = seen["embed.hook_out"]
        position = None
        if self.config.positions == "learned":
            position = self.bridge.pos_embed.original_component.weight.detach()[: len(ids)]
        return Trace(ids, token, position, tuple(layers), seen["ln_final.hook_in"].float(), tuple(edits))

    def logits(self, residual: Float[Tensor, "*s d"]) -> Float[Tensor, "*s v"]:
        """Final norm and unembedding, float32, before any soft-cap."""
        matrix, bias = self.unembedding_matrix, self.unembedding_bias
        y = self.final_norm(residual.float())
        if matrix.dtype != torch.float32:  # as the model itself rounds it; the product is kept in float32
            y = y.to(matrix.dtype)
            parts = [F.linear(y.float(), chunk.float()) for chunk in matrix.split(16384)]
            found = torch.cat(parts, -1)
            return found if bias is None else found + bias.float()
        return F.linear(y, matrix, bias)

    def final_logits(self, logits: Float[Tensor, "*s v"]) -> Float[Tensor, "*s v"]:
        """What the probabilities are made of: the same logits after the soft-cap, where the model has one."""
        cap = self.config.logit_softcap
        return logits if cap is None else cap * torch.tanh(logits / cap)

    @torch.no_grad()
    def logits_at(self, trace: Trace, position: int) -> Float[Tensor, " v"]:
        """Logits of one position of a trace, before any soft-cap."""
        return self.logits(trace.residual[position])

    def new_cache(self) -> Prefix:
        return Prefix()

    @torch.no_grad()
    def residual(
        self, ids: Int[Tensor, "b t"], edits: Sequence[Edit] = (), *, cache: Prefix | None = None
    ) -> Float[Tensor, "b t d"]:
        """The final residual stream of the given tokens, after those that the cache has seen."""
        whole = ids if cache is None or cache.ids is None else torch.cat([cache.ids, ids], dim=1)
        if cache is not None:
            cache.ids = whole
        rows = []
        for row in whole:
            seen: dict[str, Tensor] = {}
            self._run(row[None], ["ln_final.hook_in"], seen, edits)
            rows.append(seen["ln_final.hook_in"].float()[-ids.shape[1] :])
        return torch.stack(rows)

    def forward(self, ids: Int[Tensor, "b t"], edits: Sequence[Edit] = ()) -> Float[Tensor, "b t v"]:
        """Logits of every position, before any soft-cap."""
        return self.logits(self.residual(ids, edits))

    # ---- recomputed on request -----------------------------------------------------------------------------------

    def operands(self, layer: int, trace: Trace, position: int | slice) -> dict[str, Tensor]:
        """None: an ordinary model has no operands."""
        return {}

    def decay(self, layer: int) -> Float[Tensor, " q"]:
        """None: an ordinary model has no quantifiers."""
        return torch.zeros(0)

    @torch.no_grad()
    def attention_row(self, layer: int, head: int, trace: Trace, position: int) -> Float[Tensor, " s"]:
        """The attention weights of a head from `position` to positions 0..position."""
        seen: dict[str, Tensor] = {}
        name = f"blocks.{layer}.attn.hook_pattern"
        self._run(trace.ids[None], [name], seen, ())
        return seen[name][head, position, : position + 1].float()

    @torch.no_grad()
    def head_values(self, layer: int, trace: Trace) -> Float[Tensor, "t h dh"]:
        """What every head's value is at every position, before attention gathers it; shared values are repeated."""
        seen: dict[str, Tensor] = {}
        name = f"blocks.{layer}.attn.v.hook_out"
        self._run(trace.ids[None], [name], seen, ())
        values = seen[name].reshape(len(trace.ids), self.config.key_value_heads, self.config.d_head).float()
        return values.repeat_interleave(self.config.n_heads // self.config.key_value_heads, dim=1)

    # ---- the pass itself -----------------------------------------------------------------------------------------

    def _run(self, ids: Tensor, names: Sequence[str], seen: dict[str, Tensor], edits: Sequence[Edit]) -> None:
        """One forward of one row: what the named hooks see, without the batch dimension, goes into `seen`."""
        length = ids.shape[1]
        if length == 0:
            raise LegibleError("The prompt is empty; give at least one token.", code="empty_prompt")
        if length > self.config.context:
            raise TooLarge(f"The prompt has {length} tokens; this checkpoint reads at most {self.config.context}.")
        for edit in edits:
            self._check_edit(edit, length)

        def keep(value: Tensor, hook: Any) -> None:
            seen[hook.name] = value[0]

        hooks = [*self._edits(edits), *((name, keep) for name in names)]
        self.bridge.run_with_hooks(ids, return_type=None, fwd_hooks=hooks)
        missing = [name for name in names if name not in seen]
        if missing:
            raise LegibleError(
                f"This model cannot be read: TransformerLens shows no {missing[0]} of it.", code="unsupported_model"
            )

    def _edits(self, edits: Sequence[Edit]) -> list[tuple[str, Hook]]:
        """Hooks that make the edits, layer by layer, before anything is kept."""
        config = self.config
        hooks: list[tuple[str, Hook]] = []
        for index, here in by_layer(edits, 0).items():

            def stream(value: Tensor, hook: Any, here: LayerEdits = here) -> Tensor:
                return edit_stream(value, here)

            def heads(value: Tensor, hook: Any, index: int = index) -> Tensor:
                z = value.reshape(*value.shape[:2], config.n_heads, config.d_head)
                return edit_heads(z, index, edits, 0).reshape(value.shape)

            def hidden(value: Tensor, hook: Any, index: int = index) -> Tensor:
                return edit_hidden(value, index, edits, 0)

            if index == config.n_layers:  # the stream after the last layer
                hooks.append(("ln_final.hook_in", stream))
                continue
            hooks += [
                (f"blocks.{index}.hook_in", stream),
                (f"blocks.{index}.attn.o.hook_in", heads),
                (f"blocks.{index}.mlp.out.hook_in", hidden),
            ]
        return hooks

    def _check_edit(self, edit: Edit, length: int) -> None:
        edit.check(self.config, length)
        if edit.operation in WEIGHTS:
            raise LegibleError(
                f"The edit {edit.operation} changes weights, which an ordinary model's reading leaves alone; "
                "edit what its units, channels and heads do instead.",
                code="bad_edit",
            )


def writes(part: Any) -> SimpleNamespace:
    """The matrix (d, ·) and bias with which a linear map writes, as views of its parameters."""
    from transformers.pytorch_utils import Conv1D

    module = part.original_component
    weight = module.weight.detach()
    bias = getattr(module, "bias", None)
    return SimpleNamespace(
        matrix=weight.T if isinstance(module, Conv1D) else weight, bias=None if bias is None else bias.detach()
    )


def _named(part: SimpleNamespace, name: str) -> dict[str, Any]:
    """The parts of a sublayer under the names that a legible one gives them."""
    found = dict(vars(part))
    return {name: found.pop("matrix"), f"{name}_bias": found.pop("bias"), **found}
