"""The tensors that a config asks of model.safetensors, and whether its header holds exactly those; imports no torch."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

from legible_core import folder as files
from legible_core.config import ModelConfig
from legible_core.errors import Corrupt
from legible_core.folder import TensorInfo


def read_config(folder: Path) -> ModelConfig:
    """The config.json of a checkpoint folder."""
    return ModelConfig.from_json(
        files.parse_json(files.read_text(folder, files.CONFIG, files.MAX_CONFIG_BYTES), files.CONFIG)
    )


def validate_header(folder: Path, config: ModelConfig | None = None) -> dict[str, TensorInfo]:
    """The header of model.safetensors, when it holds exactly the tensors that the config asks for."""
    return check_tensors(files.read_header(folder), config or read_config(folder))


def check_tensors(tensors: dict[str, TensorInfo], config: ModelConfig) -> dict[str, TensorInfo]:
    """The same tensors, when their names and shapes are exactly the config's; raises `Corrupt` otherwise."""
    expected = 0
    for name, shape in expected_tensors(config):
        if name not in tensors:
            raise Corrupt(
                f"the tensor {name} is missing from {files.WEIGHTS}; config.json asks for its shape {list(shape)}"
            )
        if tensors[name].shape != shape:
            raise Corrupt(
                f"the tensor {name} has the shape {list(tensors[name].shape)}; config.json asks for {list(shape)}"
            )
        expected += 1
    if len(tensors) > expected:
        known = {name for name, _ in expected_tensors(config)}
        unknown = sorted(name for name in tensors if name not in known)
        shown = ", ".join(map(files.quoted, unknown[:3])) + (
            f" and {len(unknown) - 3} more" if len(unknown) > 3 else ""
        )
        raise Corrupt(f"{files.WEIGHTS} holds tensors that config.json has no place for: {shown}")
    return tensors


def expected_tensors(config: ModelConfig) -> Iterator[tuple[str, tuple[int, ...]]]:
    """Name and shape of every tensor of a checkpoint with this config, as docs/checkpoints.md lists them."""
    d, ff = config.d_model, config.feed_forward

    def matrix(name: str, rows: int, columns: int) -> Iterator[tuple[str, tuple[int, ...]]]:
        if rows:
            yield name, (rows, columns)
            if config.linear_bias:
                yield f"{name}_bias", (rows,)

    def norm(name: str) -> Iterator[tuple[str, tuple[int, ...]]]:
        yield f"{name}.gain", (d,)
        if config.norm_bias:
            yield f"{name}.bias", (d,)

    yield "token_embedding", (config.vocab_size, d)
    yield "position_embedding", (config.context, d)
    yield from norm("final_norm")
    if not config.tied:
        yield "unembedding", (config.vocab_size, d)
    if config.unembedding_bias:
        yield "unembedding_bias", (config.vocab_size,)
    for layer in range(config.n_layers):
        attention, feed_forward = f"layers.{layer}.attention", f"layers.{layer}.feed_forward"
        bounded = config.attention.n_special[layer] * config.d_head
        yield from norm(f"{attention}_norm")
        yield from norm(f"{feed_forward}_norm")
        yield from matrix(f"{attention}.query", d, d)
        yield from matrix(f"{attention}.key", d, d)
        yield from matrix(f"{attention}.bounded_values", bounded, d)
        yield from matrix(f"{attention}.linear_values", d - bounded, d)
        yield from matrix(f"{attention}.output", d, d)
        yield from matrix(f"{feed_forward}.pair_a", ff.n_pairs, d)
        yield from matrix(f"{feed_forward}.pair_b", ff.n_pairs, d)
        yield from matrix(f"{feed_forward}.quantifier", ff.n_quantifiers, d)
        yield from matrix(f"{feed_forward}.{ff.activation}", ff.n_plain, d)
        yield from matrix(f"{feed_forward}.down", d, ff.d_ff)
        if ff.n_quantifiers:
            yield f"{feed_forward}.theta", (ff.n_quantifiers,)


def check_vocabulary(config: ModelConfig, tokenizer_size: int) -> None:
    """Raises `Corrupt` when the tokenizer's ids are not exactly the rows of the embedding."""
    if tokenizer_size != config.vocab_size:
        raise Corrupt(
            f"tokenizer.json has {tokenizer_size:,} tokens and config.json a vocabulary of {config.vocab_size:,}; "
            "they must be equal"
        )
