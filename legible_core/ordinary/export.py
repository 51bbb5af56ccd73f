"""A legible checkpoint as the GPT-2 folder that transformers opens: `legible export MODEL --format hf`.

Only a checkpoint whose values are all linear and whose units are all exact GELU has that form: operations and
memberships have no place in it. Biases that the checkpoint lacks are written as zeros, and the rows of query, key and
value are joined; no number is changed, so the folder read through TransformerLens gives the same terms.
"""

from __future__ import annotations

import json
import os
import secrets
import shutil
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import save_file
from torch import Tensor

from legible_core.attribution import optional
from legible_core.checkpoint import load
from legible_core.errors import Conflict, LegibleError, Unavailable
from legible_core.folder import CONFIG, TOKENIZER, WEIGHTS
from legible_core.model import Transformer
from legible_core.registry import Checkpoint
from legible_core.replace import WRITE_ERRORS, write_reason
from legible_core.tokens import Tokenizer

END = b"<|endoftext|>"


def export(checkpoint: Checkpoint, folder: Path) -> Path:
    """Write the folder, whole or not at all; raises `LegibleError` for a checkpoint that has no such form.

    Raises `Conflict` when the folder is there already and `Unavailable` when the disk does not take it.
    """
    check_exportable(checkpoint)
    folder = Path(os.path.abspath(folder))
    if os.path.lexists(folder):
        raise Conflict(f"{folder} is there already; give a new folder.")
    model = load(checkpoint)
    tokenizer = Tokenizer.load(checkpoint.tokenizer_path)
    draft = folder.parent / f".{folder.name}.saving-{secrets.token_hex(6)}"
    try:
        draft.mkdir(parents=True)
        save_file(tensors(model), draft / WEIGHTS, metadata={"format": "pt"})
        end = tokenizer.find(END)
        (draft / CONFIG).write_text(json.dumps(config(model, end), indent=2) + "\n", encoding="utf-8")
        shutil.copyfile(checkpoint.tokenizer_path, draft / TOKENIZER)
        settings: dict[str, Any] = {
            "tokenizer_class": "PreTrainedTokenizerFast",
            "model_max_length": model.config.context,
        }
        if end is not None:
            settings |= {"bos_token": END.decode(), "eos_token": END.decode(), "unk_token": END.decode()}
        (draft / "tokenizer_config.json").write_text(json.dumps(settings, indent=2) + "\n", encoding="utf-8")
        shutil.copymode(draft / CONFIG, draft / WEIGHTS)
        os.rename(draft, folder)
    except WRITE_ERRORS as error:
        raise Unavailable(f"The folder {folder} cannot be written: {write_reason(error)}.") from None
    finally:
        shutil.rmtree(draft, ignore_errors=True)
    return folder


def check_exportable(checkpoint: Checkpoint) -> None:
    """Raise `LegibleError`, with what stands in the way, unless the checkpoint has GPT-2's form."""
    config = checkpoint.config
    reason = None
    if config.ordinary:
        reason = "it is an ordinary model, whose folder is there already"
    elif any(config.attention.n_special):
        reason = f"{sum(config.attention.n_special)} of its heads have {config.attention.value} values"
    elif config.feed_forward.n_named:
        reason = f"{config.feed_forward.n_named} units of each layer are set operators or quantifiers"
    elif config.feed_forward.activation not in ("gelu", "relu"):
        reason = f"its units are {config.feed_forward.activation}"
    if reason is not None:
        raise LegibleError(
            f"{checkpoint.slug} cannot be exported as a Hugging Face model: {reason}, and GPT-2 has no place for that.",
            code="not_exportable",
            status=422,
        )


def config(model: Transformer, end: int | None) -> dict[str, Any]:
    """GPT-2's config.json for a model; its exact GELU is the one that transformers calls `gelu`."""
    facts = model.config
    return {
        "architectures": ["GPT2LMHeadModel"],
        "model_type": "gpt2",
        "vocab_size": facts.vocab_size,
        "n_positions": facts.context,
        "n_embd": facts.d_model,
        "n_layer": facts.n_layers,
        "n_head": facts.n_heads,
        "n_inner": facts.feed_forward.d_ff,
        "activation_function": facts.feed_forward.activation,
        "layer_norm_epsilon": facts.norm_eps,
        "tie_word_embeddings": facts.tied,
        "resid_pdrop": 0.0,
        "embd_pdrop": 0.0,
        "attn_pdrop": 0.0,
        "bos_token_id": end,
        "eos_token_id": end,
        "dtype": "float32",
    }


def tensors(model: Transformer) -> dict[str, Tensor]:
    """GPT-2's tensors, float32; its linear maps are stored transposed."""
    if model.unembedding_bias is not None:
        raise LegibleError(
            "GPT-2 has no bias on the unembedding, so this model has no such form.", code="not_exportable"
        )
    found: dict[str, Tensor] = {
        "transformer.wte.weight": model.token_embedding,
        "transformer.wpe.weight": model.position_embedding,
        **_norm("transformer.ln_f", model.final_norm),
    }
    if model.unembedding is not None:
        found["lm_head.weight"] = model.unembedding
    activation = model.config.feed_forward.activation
    for index, layer in enumerate(model.layers):
        here = f"transformer.h.{index}"
        found |= _norm(f"{here}.ln_1", layer.attention_norm) | _norm(f"{here}.ln_2", layer.feed_forward_norm)
        found |= _conv(f"{here}.attn.c_attn", layer.attention, ("query", "key", "linear_values"))
        found |= _conv(f"{here}.attn.c_proj", layer.attention, ("output",))
        found |= _conv(f"{here}.mlp.c_fc", layer.feed_forward, (activation,))
        found |= _conv(f"{here}.mlp.c_proj", layer.feed_forward, ("down",))
    return {name: tensor.detach().float().cpu().contiguous() for name, tensor in found.items()}


def _norm(name: str, norm: Any) -> dict[str, Tensor]:
    return {
        f"{name}.weight": norm.gain,
        f"{name}.bias": torch.zeros_like(norm.gain) if norm.bias is None else norm.bias,
    }


def _conv(name: str, part: Any, matrices: tuple[str, ...]) -> dict[str, Tensor]:
    """Some matrices, one below the other, as one transposed map with its bias."""
    rows = [getattr(part, matrix) for matrix in matrices]
    biases = [optional(part, f"{matrix}_bias") for matrix in matrices]
    joined = [
        torch.zeros(row.shape[0]) if bias is None else bias.float() for row, bias in zip(rows, biases, strict=True)
    ]
    return {f"{name}.weight": torch.cat(rows).T, f"{name}.bias": torch.cat(joined)}
