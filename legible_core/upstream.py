"""Why was it on? The pre-activation of one operand at one token, as an exact sum over everything upstream of it.

With x the residual stream that the operand's sublayer reads at that token, γ and β of that sublayer's norm, r the
operand's row and b its bias:

    ⟨r, LN(x)⟩ + b = Σ_c ⟨r⊙γ, x_c - mean(x_c)⟩ / std(x) + ⟨r, β⟩ + b

over the embeddings, every head and unit of the layers below and, for a feed-forward row, the heads of its own layer.
It is the sum of a reading ("Legible-by-Construction" section 5.5) with the operand's row in place of the unembedding's:
one direction serves all components, a layer's units cost one matrix-vector product, and no write is ever formed. std(x)
is frozen at its actual value. For an operand of a head the token is the one attended to, where the value is made.

In bfloat16 every sublayer's write is rounded to 8 bits before it joins the stream, and so is LN(x) before the layer
multiplies it. Few components may lie upstream, so this is no small part of the sum as it is of a logit's: it is a term
of its own, `rounding`, computed from the same writes and not from what is missing.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from legible_core import attribution as sums
from legible_core.attribution import Attribution, optional
from legible_core.axes import Float
from legible_core.contributors import memberships
from legible_core.details import gathered_by
from legible_core.errors import Corrupt
from legible_core.model import Transformer
from legible_core.model.editing import added_at, direction_of
from legible_core.reading import Contributor, Dtype, ReadingRequest
from legible_core.reads import Read, check_source, opens, pack_terms, read_of, recall
from legible_core.trace import Trace
from legible_core.under_edits import edited_layers, remembers_otherwise, row_at, write_matrix
from legible_core.units import Channel, Component, Head, HeadOperand, Unit, parse

if TYPE_CHECKING:
    from legible_core.pipeline import Engine

SCHEMA = 1
TOP = 20
# Tokens named of a quantifier's memory.
RECALLED = 3


@torch.no_grad()
def attribute_read(
    model: Transformer, trace: Trace, read: Read, position: int, dtype: Dtype = "float32"
) -> Attribution:
    """All terms of an operand's pre-activation at one position, in its own units; layers that are not upstream are 0.

    Does not check that the sum closes: `Attribution.check` does.
    """
    config = model.config
    heads_in, units_in = read.upstream()
    layer: Any = model.layers[read.layer]
    part, norm = getattr(layer, read.sublayer), getattr(layer, f"{read.sublayer}_norm")
    x = getattr(trace.layers[read.layer], f"{read.sublayer}_in")[position]
    matrix, bias = getattr(part, read.matrix), optional(part, f"{read.matrix}_bias")
    given = row_at(trace, read.id, position)
    read_row = matrix[read.row] if given is None else given[0].to(matrix)
    offset = None if given is None else given[1]
    if offset is None and bias is not None:
        offset = float(bias[read.row])
    row = read_row.double()
    # What the layer itself multiplies, the product kept in float32; in bf16 it then rounds once more, to 8 bits.
    y = norm(x).to(matrix.dtype)
    value = float(F.linear(y.float(), read_row.float()[None])[0])
    scale = float(norm.scale(x.double()))
    direction64 = row * norm.gain.double()
    direction64 = direction64 - direction64.mean()
    direction = direction64.float()

    def seen(vector: Tensor) -> float:
        return float(vector.double() @ direction64) / scale

    def rounding(part: nn.Module, name: str, wide: Tensor, activations: Tensor) -> float:
        """What storing a sublayer's write in the matrix's dtype adds; `activations` is what the matrix multiplied."""
        stored = getattr(part, name).dtype
        if stored == torch.float32:
            return 0.0
        extra = optional(part, f"{name}_bias")
        write = F.linear(activations.float(), wide, None if extra is None else extra.float())
        return seen(write.to(stored).double() - write.double())

    rounded = 0.0
    channels = torch.zeros(config.n_layers, config.n_heads, config.d_head, dtype=torch.float64)
    units = torch.zeros(config.n_layers, config.feed_forward.d_ff, dtype=torch.float64)
    floor = {"embed.token": seen(trace.embed_token[position])}
    if trace.embed_position is not None:
        floor["embed.position"] = seen(trace.embed_position[position])
    for index in range(heads_in):
        below: Any = model.layers[index]
        z, hidden = trace.layers[index].z[position], trace.layers[index].hidden[position]
        # bf16 weights are widened one matrix at a time.
        wide = write_matrix(model, trace, index, "attention", position).float()
        columns = (direction @ wide).double().view(config.n_heads, config.d_head)
        channels[index] = (z.double() * columns / scale).cpu()
        rounded += rounding(below.attention, "output", wide, z.flatten())
        if (output_bias := optional(below.attention, "output_bias")) is not None:
            floor[f"L{index}.attention.bias"] = seen(output_bias)
        if index < units_in:
            wide = write_matrix(model, trace, index, "feed_forward", position).float()
            units[index] = (hidden.double() * (direction @ wide).double() / scale).cpu()
            rounded += rounding(below.feed_forward, "down", wide, hidden)
            if (down_bias := optional(below.feed_forward, "down_bias")) is not None:
                floor[f"L{index}.feed_forward.bias"] = seen(down_bias)
    for edit in added_at(trace.edits, position, read.layer):
        name = str(edit.component)
        floor[name] = floor.get(name, 0.0) + seen(direction_of(edit, x))
    if norm.bias is not None:
        floor["norm.bias"] = float(row @ norm.bias.double())
    if offset is not None:
        value += offset
        floor["read.bias"] = offset
    if matrix.dtype != torch.float32:
        floor["rounding"] = rounded + float(row @ (y.double() - norm(x).double()))
    return Attribution(
        value=value,
        scale=scale,
        floor=floor,
        channels=channels.numpy(),
        heads=channels.sum(-1).numpy(),
        units=units.numpy(),
        dtype=dtype,
    )


@torch.no_grad()
def upstream_detail(
    engine: Engine, request: ReadingRequest, operand: Component, through: Component | None = None, top: int = TOP
) -> dict[str, Any]:
    """Why an operand has its value at `request.position`: the whole sum, its strongest sources described.

    through: a head or unit among the sources, looked at closer: a head's attended tokens with what they gave, a unit's
    operands. A JSON document, described in docs/why.md. Raises `NotFound` for an operand that does not exist and
    `NotExact`, with both numbers, when the sum does not close.
    """
    read = read_of(engine.config, operand)
    trace, position, _ = engine.run(request)
    terms = attribute_read(engine.model, trace, read, position, engine.dtype)
    terms.check()
    series = read_series(engine.model, trace, read)
    heads_in, units_in = read.upstream()
    found = [
        (sort, layer, index)
        for sort, layer, index in sums.strongest(terms, top)
        if layer < (heads_in if sort == "head" else units_in)
    ]
    described = engine.describer.describe(found, trace, position, terms, 0, promoted=0)
    result: dict[str, Any] = {
        "schema": SCHEMA,
        "kind": "upstream",
        "id": str(operand),
        "checkpoint": engine.checkpoint.model_dump(),
        "digest": request.digest,
        "dtype": engine.dtype,
        "sublayer": read.sublayer,
        "function": read.function,
        "position": position,
        "tokens": [engine.token(index).display for index in request.ids],
        "value": terms.value,
        "activation": float(series[position]),
        "series": [round(value, 4) for value in series.tolist()],
        "sum": terms.total,
        "residual": terms.residual,
        "tolerance": terms.tolerance,
        "scale": terms.scale,
        "floor": [{"id": name, "value": value} for name, value in terms.floor.items()],
        "groups": sums.groups(terms, engine.config),
        "shares": sums.shares(terms, engine.config, engine.describer.named_masks()),
        "top": [source(engine, trace, position, row) for row in described],
        "heads_shape": [heads_in, engine.config.n_heads],
        "units_shape": [units_in, engine.config.feed_forward.d_ff],
        "terms": pack_terms(terms.heads[:heads_in], terms.units[:units_in]),
    }
    if through is not None:
        result["through"] = look_closer(engine, trace, position, read, terms, through)
    return result


def look_closer(
    engine: Engine, trace: Trace, position: int, read: Read, terms: Attribution, through: Component
) -> dict[str, Any]:
    """One source of the sum; for a head also its attention from `position` and what it gathered, token by token."""
    through = check_source(engine.config, read, through)
    sort, index = ("head", through.head) if isinstance(through, Head) else ("unit", through.unit)
    [row] = engine.describer.describe([(sort, through.layer, index)], trace, position, terms, 0, promoted=0)
    found = source(engine, trace, position, row)
    if isinstance(through, Head):
        layer: Any = engine.model.layers[read.layer]
        matrix = getattr(getattr(layer, read.sublayer), read.matrix)
        given = row_at(trace, read.id, position)
        reads = (matrix[read.row] if given is None else given[0].to(matrix)).double()
        direction = reads * getattr(layer, f"{read.sublayer}_norm").gain.double()
        output = write_matrix(engine.model, trace, through.layer, "attention", position)
        width = slice(through.head * engine.config.d_head, (through.head + 1) * engine.config.d_head)
        columns = (direction - direction.mean()).float() @ output[:, width].float()
        per_channel = terms.channels[through.layer, through.head]
        found |= gathered_by(engine, trace, position, through, columns, terms.scale, per_channel)
    return found


def source(engine: Engine, trace: Trace, position: int, row: Contributor) -> dict[str, Any]:
    """A contributor with what lies one step further upstream: `opens`, each an operand and the position to ask at.

    A quantifier's m is asked at the tokens that its value remembers most, with the part that each of them left.
    """
    component = parse(row.id)
    parts: list[dict[str, Any]] = []
    if isinstance(component, Unit):
        below = opens(engine.config, component) or (component,)
        if row.kind in ("existential", "proportion"):
            values = quantifier_series(engine.model, trace, component)[: position + 1].tolist()
            # A memory that an edit changes is not what its λ says, so only the token itself opens further.
            edited = remembers_otherwise(trace, component)
            left = recall(row.kind, values, row.decay or 0.0)
            strongest = [position] if edited else sorted(range(len(left)), key=lambda s: -left[s])[:RECALLED]
            parts = [{"id": str(below[0]), "position": s, "value": values[s], "left": left[s]} for s in strongest]
        else:
            here = {o.id: o.value for o in row.operands}
            parts = [{"id": str(id), "position": position, "value": here.get(str(id))} for id in below]
    return {**row.model_dump(by_alias=True, exclude={"promotes", "target_rank"}), "opens": parts}


@torch.no_grad()
def read_series(model: Transformer, trace: Trace, read: Read) -> Float[Tensor, " t"]:
    """The value that a read makes at every position, float32."""
    layer: Any = model.layers[read.layer]
    part, norm = getattr(layer, read.sublayer), getattr(layer, f"{read.sublayer}_norm")
    if read.layer in edited_layers(trace):
        return _edited_series(model, trace, read)
    x = getattr(trace.layers[read.layer], f"{read.sublayer}_in")
    matrix, bias = getattr(part, read.matrix), optional(part, f"{read.matrix}_bias")
    rows = [read.row]
    scores = F.linear(norm(x).to(matrix.dtype), matrix[rows], None if bias is None else bias[rows])[:, 0]
    if read.function == "linear":
        return scores.float()
    if read.function == "sigmoid":
        return torch.sigmoid(scores).float()
    return trace.layers[read.layer].hidden[:, _unit(read)].float()


def _edited_series(model: Transformer, trace: Trace, read: Read) -> Float[Tensor, " t"]:
    """As `read_series`, as the edits of the layer left it."""
    match read.id:
        case Unit(layer, unit):
            return trace.layers[layer].hidden[:, unit].float()
        case Channel(layer, head, channel):
            return model.head_values(layer, trace)[:, head, channel]
        case HeadOperand(layer, head, pair, side):
            return model.operands(layer, trace, slice(None))[f"head_{side.lower()}"][:, head, pair]
    return model.operands(read.layer, trace, slice(None))[read.matrix][:, read.row]


def quantifier_series(model: Transformer, trace: Trace, unit: Unit) -> Float[Tensor, " t"]:
    """The membership m of a quantifier at every position."""
    part: Any = model.layers[unit.layer]
    row = unit.unit - model.config.feed_forward.quantifiers.start
    if unit.layer in edited_layers(trace):
        return model.operands(unit.layer, trace, slice(None))["quantifier"][:, row]
    x = part.feed_forward_norm(trace.layers[unit.layer].feed_forward_in).to(part.feed_forward.down.dtype)
    return memberships(part.feed_forward, "quantifier", [row], x)[0]


def _unit(read: Read) -> int:
    if not isinstance(read.id, Unit):
        raise Corrupt(f"{read.id} has no hidden value of its own")
    return read.id.unit
