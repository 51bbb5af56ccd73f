"""From a name or folder to a checkpoint that every page can open; all that can be refused is refused here.

    checkpoint = add("gpt2", root=data_dir / "ordinary")     # certified and registered
    checkpoint = look("./folder")                            # the same facts, registered nowhere, not yet certified

Checked in order of cost: the config's own words, the headers of the weights, the tokenizer, then the weights
themselves against Hugging Face.
"""

from __future__ import annotations

import dataclasses
import json
import tempfile
from collections.abc import Container, Mapping
from pathlib import Path
from typing import Any

from legible_core.adapters import source as sources
from legible_core.adapters.config import OrdinaryConfig, refuse_unreadable
from legible_core.adapters.registration import OrdinaryCheckpoint, write
from legible_core.errors import Conflict, Corrupt, LegibleError, NotFound
from legible_core.folder import CONFIG, TOKENIZER, Card
from legible_core.prompts import MAX_TEMPLATE, Bos
from legible_core.reading import Dtype
from legible_core.registry import check_slug, slug_conflict, slug_for
from legible_core.tokens import Tokenizer

# Embedding rows beyond the tokenizer's ids: models pad them to a round number. More is another tokenizer.
PADDING = 2048
SETTINGS = "tokenizer_config.json"
SPECIAL = ("bos_token", "eos_token", "unk_token", "sep_token", "pad_token", "cls_token", "mask_token")


def look(
    name_or_folder: str | Path,
    *,
    slug: str | None = None,
    dtype: Dtype = "float32",
    device: str = "auto",
    revision: str | None = None,
) -> OrdinaryCheckpoint:
    """Everything that is known of a model without loading its weights; raises what is wrong with it in one sentence."""
    return _look(name_or_folder, slug, dtype, device, revision)[0]


def add(
    name_or_folder: str | Path,
    root: Path,
    *,
    slug: str | None = None,
    dtype: Dtype = "float32",
    device: str = "auto",
    revision: str | None = None,
    compute_on: str = "cpu",
    offload: bool = False,
    taken: Container[str] = (),
    named: Mapping[str, str] | None = None,
) -> OrdinaryCheckpoint:
    """Look, load, certify, and write the registration under `root`.

    compute_on: the device that `device` stands for here. offload: keep the layers' weights on the CPU. taken: slugs
    that other checkpoints ship under. named: the hash under each slug that may not come to name another. Raises what
    `look` and `loading.load` raise, and `Conflict` for a slug; a model that is refused leaves nothing behind.
    """
    from legible_core.ordinary.loading import load

    checkpoint, tokenizer = _look(name_or_folder, slug, dtype, device, revision)
    if checkpoint.slug in taken:
        raise Conflict(
            f"The slug {checkpoint.slug!r} names a checkpoint that ships with Legible.",
            hint="Choose another with --slug.",
        )
    there = (named or {}).get(checkpoint.slug, checkpoint.hash)
    if there != checkpoint.hash:
        raise slug_conflict(checkpoint.slug, there)
    _, certificate = load(
        checkpoint.source,
        checkpoint.config,
        dtype=dtype,
        device=compute_on,
        prompts=prompts(checkpoint, Tokenizer(tokenizer)),
        parameters=checkpoint.parameters,
        offload=offload,
    )
    checkpoint = dataclasses.replace(checkpoint, certificate=certificate, origin="added", offload=offload)
    return dataclasses.replace(checkpoint, path=write(checkpoint, root, tokenizer))


def prompts(checkpoint: OrdinaryCheckpoint, tokenizer: Tokenizer) -> list[list[int]]:
    """The ids of the certificate's texts, each with the tokenizer's own beginning, cut to the context."""
    from legible_core.ordinary.certificate import TEXTS
    from legible_core.prompts import with_bos

    found = [with_bos(tokenizer.encode(text), checkpoint.bos)[: checkpoint.config.context] for text in TEXTS]
    return [ids for ids in found if ids]


def _look(
    name_or_folder: str | Path, slug: str | None, dtype: Dtype, device: str, revision: str | None
) -> tuple[OrdinaryCheckpoint, bytes]:
    from legible_core.ordinary.loading import resolve_config

    source = sources.find(str(name_or_folder), revision)
    refuse_unreadable(sources.read_config(source.folder))
    weights = sources.read_weights(source.folder)
    config = resolve_config(source.folder)
    _check_filled(config, weights.parameters)
    tokenizer, bos, template, special = read_tokenizer(source.folder, config)
    names = (CONFIG, *weights.files, *(name for name in sources.TOKENIZER_FILES if (source.folder / name).is_file()))
    hashes = sources.hash_files(source.folder, names)
    called = slug_for(Path(source.name)) if source.name is not None else slug_for(source.folder)
    checkpoint = OrdinaryCheckpoint(
        slug=check_slug(slug if slug is not None else called),
        path=source.folder,
        hash=sources.identity(hashes),
        config=config,
        card=Card({}),
        parameters=weights.parameters,
        bytes=weights.bytes,
        dtype=weights.dtype,
        origin="folder",
        source=source.folder,
        name=source.name,
        revision=source.revision,
        files=hashes,
        sizes={name: (source.folder / name).stat().st_size for name in names},
        compute=dtype,
        device=device,
        bos=bos,
        chat_template=template,
        special=special,
    )
    return checkpoint, tokenizer


def _check_filled(config: OrdinaryConfig, parameters: int) -> None:
    """Raise before a model is built that its weights cannot fill: they hold a row per token and a gain per norm."""
    least = config.d_model * (config.vocab_size + config.n_layers)
    if least > parameters:
        raise Corrupt(
            f"config.json does not describe these weights: {config.n_layers:,} layers of width {config.d_model:,} and "
            f"{config.vocab_size:,} tokens take at least {least:,} parameters, and the files hold {parameters:,}; "
            "download both again."
        )


def read_tokenizer(folder: Path, config: OrdinaryConfig) -> tuple[bytes, Bos | None, str | None, dict[str, str]]:
    """(tokenizer.json, begin-of-text token, chat template, special tokens by name) of a model's folder.

    A tokenizer in older files is made into a tokenizer.json. Raises `NotFound` without a tokenizer and `Corrupt` for
    one whose ids are not the rows of the embedding.
    """
    from legible_core.ordinary.loading import quiet

    if not any((folder / name).is_file() for name in (TOKENIZER, "vocab.json", "tokenizer.model")):
        raise NotFound(
            f"{folder.name} has no tokenizer; put the tokenizer.json that the weights were trained with beside them."
        )
    _check_tokenizer_files(folder)
    own = Tokenizer((folder / TOKENIZER).read_bytes()) if (folder / TOKENIZER).is_file() else None
    with quiet():
        from transformers import AutoTokenizer

        try:
            theirs: Any = AutoTokenizer.from_pretrained(folder, local_files_only=True, trust_remote_code=False)
            default = [int(index) for index in theirs("a")["input_ids"]]
        except Exception as error:  # whatever a foreign file makes the library raise
            reason = " ".join(str(error).split())[:160].rstrip(".")
            raise Corrupt(
                f"The tokenizer cannot be used ({reason}); put the model's own tokenizer.json and "
                "tokenizer_config.json beside its weights."
            ) from None
        data = _tokenizer_json(folder, theirs)
    size = (own or Tokenizer(data)).vocab_size
    if not config.vocab_size - PADDING <= size <= config.vocab_size:
        raise Corrupt(
            f"The tokenizer has {size:,} tokens and the model {config.vocab_size:,} rows of embedding; they are not "
            "each other's, so put the model's own tokenizer beside its weights.",
            code="wrong_tokenizer",
        )
    bos = None
    if isinstance(theirs.bos_token_id, int) and 0 <= theirs.bos_token_id < size:
        index = theirs.bos_token_id
        bos = Bos(index, str(theirs.bos_token), len(default) > 1 and default[0] == index)
    template = theirs.chat_template if isinstance(theirs.chat_template, str) else None
    if template is not None and len(template) > MAX_TEMPLATE:
        raise Corrupt(f"The chat template is {len(template):,} characters; the limit is {MAX_TEMPLATE:,}.")
    special = {key: str(value) for key, value in theirs.special_tokens_map.items() if isinstance(value, str)}
    return data, bos, template, special


def _check_tokenizer_files(folder: Path) -> None:
    """Raise `Corrupt` naming the file for one that is no JSON object, or lacks what the library takes for granted."""
    found: dict[str, Any] = {}
    for name in sources.TOKENIZER_FILES:
        if name.endswith(".json") and (folder / name).is_file():
            try:
                found[name] = json.loads((folder / name).read_bytes())
            except (ValueError, RecursionError):
                raise _bad_file(f"{name} is no JSON; it is truncated or was written by something else", name) from None
            if not isinstance(found[name], dict):
                raise _bad_file(f"{name} must hold a JSON object", name)
    for key, kind, words in (("model", dict, "an object"), ("added_tokens", list, "a list")):
        if TOKENIZER in found and not isinstance(found[TOKENIZER].get(key), kind):
            raise _bad_file(f"{TOKENIZER} has no {key!r}, which must be {words}", TOKENIZER)
    for name in (SETTINGS, "special_tokens_map.json"):
        for key in (key for key in SPECIAL if key in found.get(name, {})):
            if not _is_token(found[name][key]):
                raise _bad_file(
                    f"The {key} of {name} is {repr(found[name][key])[:40]}, neither a text nor an object with the text "
                    "as its content",
                    name,
                )
    template = found.get(SETTINGS, {}).get("chat_template")
    named = isinstance(template, list) and all(
        isinstance(one, dict) and {"name", "template"} <= set(one) for one in template
    )
    if not (template is None or isinstance(template, str) or named):
        raise _bad_file(
            f"The chat_template of {SETTINGS} is {repr(template)[:40]}, neither a text nor a list of named texts",
            SETTINGS,
        )


def _is_token(value: Any) -> bool:
    """Whether this is a special token as transformers writes one: null, its text, or an object around it."""
    text = value.get("content") if isinstance(value, dict) else value
    return isinstance(text, str) or value is None


def _bad_file(what: str, name: str) -> Corrupt:
    return Corrupt(f"{what}; put the model's own {name} beside its weights.")


def _tokenizer_json(folder: Path, theirs: Any) -> bytes:
    if (folder / TOKENIZER).is_file():
        return (folder / TOKENIZER).read_bytes()
    inner = getattr(theirs, "backend_tokenizer", None)
    if inner is None:
        raise Corrupt("The tokenizer has no form that the tokenizers library reads, so texts cannot be tokenised.")
    with tempfile.TemporaryDirectory() as place:
        path = Path(place) / TOKENIZER
        inner.save(str(path))
        return path.read_bytes()


__all__ = ["LegibleError", "add", "look", "prompts", "read_tokenizer"]
