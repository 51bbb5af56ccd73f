"""Tiny random models of every supported family, made from configs: nothing is downloaded."""

from __future__ import annotations

import functools
import json
import shutil
from pathlib import Path
from typing import Any

import torch

VOCAB = 288
SIZES = {
    "vocab_size": VOCAB, "hidden_size": 32, "intermediate_size": 48, "num_hidden_layers": 2, "num_attention_heads": 4,
    "max_position_embeddings": 64, "bos_token_id": 0, "eos_token_id": 0, "pad_token_id": None,
}  # fmt: skip
GROUPED = {**SIZES, "num_key_value_heads": 2}
# Heads of 12 on a stream of 32: their width is the config's own, not the stream's divided.
WIDE = {**GROUPED, "head_dim": 12}
GPT = {
    "vocab_size": VOCAB, "n_embd": 32, "n_layer": 2, "n_head": 4, "n_positions": 64, "bos_token_id": 0,
    "eos_token_id": 0,
}  # fmt: skip
MODELS: dict[str, dict[str, Any]] = {
    "gpt2": {**GPT},
    "gpt2-exact": {**GPT, "activation_function": "gelu", "n_inner": 48},
    "gpt_neox": {**SIZES},
    "gpt_neox-sequential": {**SIZES, "use_parallel_residual": False},
    "gptj": {**GPT, "rotary_dim": 4},
    "phi": {**SIZES},
    "llama": {**GROUPED, "tie_word_embeddings": False},
    "llama-biased": {**GROUPED, "attention_bias": True, "mlp_bias": True, "tie_word_embeddings": True},
    "mistral": {**GROUPED, "sliding_window": 8},
    "qwen2": {**GROUPED},
    "qwen3": {**WIDE},
    "gemma": {**WIDE},
    # Caps low enough that both of them bend what passes.
    "gemma2": {
        **WIDE, "sliding_window": 8, "query_pre_attn_scalar": 12, "final_logit_softcapping": 4.0,
        "attn_logit_softcapping": 2.0,
    },
    "gemma3_text": {**WIDE, "sliding_window": 8, "query_pre_attn_scalar": 12},
}  # fmt: skip


def hf_model(name: str, seed: int = 0) -> Any:
    """A random model, gains and biases included, large enough that every part of it is far from linear."""
    from transformers import AutoConfig, AutoModelForCausalLM

    torch.manual_seed(seed)
    config = AutoConfig.for_model(name.split("-")[0], **MODELS[name])
    model = AutoModelForCausalLM.from_config(config, attn_implementation="eager").eval()
    for parameter in model.parameters():
        parameter.data.add_(torch.randn_like(parameter) * 0.3)
    return model


@functools.cache
def words() -> bytes:
    """A byte-level tokenizer of `VOCAB` tokens as the tokenizers library writes it: 256 bytes, merges, one special."""
    import tokenizers
    from tokenizers import decoders, models, pre_tokenizers, trainers

    made = tokenizers.Tokenizer(models.BPE())
    made.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    made.decoder = decoders.ByteLevel()
    alphabet = pre_tokenizers.ByteLevel.alphabet()
    trainer = trainers.BpeTrainer(
        vocab_size=VOCAB, special_tokens=["<|endoftext|>"], initial_alphabet=sorted(alphabet), show_progress=False
    )
    text = "It was the best of times, it was the worst of times, it was the age of wisdom, it was the age of folly"
    made.train_from_iterator([text], trainer)
    return str(made.to_str()).encode()


def save(name: str, folder: Path, *, bos: bool = False, template: str | None = None) -> Path:
    """The model as transformers saves it, with a tokenizer beside it; `bos`: one that begins a text by itself."""
    hf_model(name).save_pretrained(folder)
    data = json.loads(words())
    if bos:
        special = {"SpecialToken": {"id": "<|endoftext|>", "type_id": 0}}
        one, two = {"Sequence": {"id": "A", "type_id": 0}}, {"Sequence": {"id": "B", "type_id": 1}}
        data["post_processor"] = {
            "type": "TemplateProcessing", "single": [special, one], "pair": [special, one, two],
            "special_tokens": {"<|endoftext|>": {"id": "<|endoftext|>", "ids": [0], "tokens": ["<|endoftext|>"]}},
        }  # fmt: skip
    (folder / "tokenizer.json").write_text(json.dumps(data))
    settings = {
        "tokenizer_class": "PreTrainedTokenizerFast", "bos_token": "<|endoftext|>", "eos_token": "<|endoftext|>",
    }  # fmt: skip
    if template is not None:
        settings["chat_template"] = template
    (folder / "tokenizer_config.json").write_text(json.dumps(settings))
    return folder


def broken(folder: Path, tmp_path: Path, *, without: tuple[str, ...] = ()) -> Path:
    """A copy of a model's folder to spoil."""
    made = tmp_path / "broken"
    shutil.copytree(folder, made, ignore=shutil.ignore_patterns(*without))
    return made
