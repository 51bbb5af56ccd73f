"""Folders that are no model, or a damaged one: each is refused in one sentence that names what is wrong."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from family_samples import VOCAB, broken, save

from app.cli import main
from legible_core.errors import Corrupt, LegibleError, NotExact, NotFound
from legible_core.ordinary import adding, certificate


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return save("gpt2", tmp_path_factory.mktemp("hf") / "small-gpt")


def test_no_model_at_all(tmp_path: Path) -> None:
    for words, said in (
        (str(tmp_path), "no config.json"),
        (str(tmp_path / "gone"), "neither a folder"),
        ("a/b/c", "hub"),
    ):
        with pytest.raises(NotFound, match=said):
            adding.look(words)


@pytest.mark.parametrize(
    ("name", "content", "said"),
    [
        ("model.safetensors", b"version https://git-lfs.github.com/spec/v1\n", "Git LFS pointer"),
        ("model.safetensors", b"\x40" + b"\0" * 7 + b"{}", "damaged: .*its header ends at byte 72 and the file at 10"),
        ("model.safetensors", b"\x02" + b"\0" * 7 + b"[]", "damaged: .*its header names no tensors; download"),
        ("pytorch_model.bin", b"\x80\x02", "a pickled file"),
        ("model.safetensors.incomplete", b"", "is not finished"),
        ("model.safetensors.index.json", b'{"weight_map": {"a": "model-00001-of-00002.safetensors"}}', "is missing"),
    ],
)
def test_weights_that_are_not_there(folder: Path, tmp_path: Path, name: str, content: bytes, said: str) -> None:
    made = broken(folder, tmp_path, without=("model.safetensors",))
    (made / name).write_bytes(content)
    with pytest.raises(LegibleError, match=said):
        adding.look(made)


def test_weights_that_are_a_link_to_nothing(folder: Path, tmp_path: Path) -> None:
    made = broken(folder, tmp_path, without=("model.safetensors",))
    (made / "model.safetensors").symlink_to(tmp_path / "blob-that-was-deleted")
    with pytest.raises(Corrupt, match=r"model\.safetensors is no file but a link to none"):
        adding.look(made)


def test_names_that_no_folder_can_have(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    cases = ((("add", ""), "neither a folder here nor a hub name"), (("read", "x" * 500, "It"), "give a shorter one."))
    for words, said in cases:
        monkeypatch.setattr("sys.argv", ["legible", *words])
        with pytest.raises(SystemExit, match="2"):
            main()
        assert said in capsys.readouterr().err


def test_weights_that_do_not_fill_the_model(folder: Path, tmp_path: Path) -> None:
    made = broken(folder, tmp_path)
    config = json.loads((made / "config.json").read_text()) | {"n_layer": 3}
    (made / "config.json").write_text(json.dumps(config))
    with pytest.raises(Corrupt, match=r"its weights give no transformer\.h\.2"):
        adding.add(made, tmp_path / "ordinary")


@pytest.mark.parametrize(
    ("change", "said"),
    [
        ({"n_embd": "many"}, "n_embd is 'many'; it must be a whole number from 1 to"),
        ({"n_positions": None}, "n_positions is None; it must be a whole number"),
        ({"n_head": 0}, "n_head is 0; it must be a whole number"),
        ({"n_head": 5}, "5 heads cannot share 32 dimensions evenly"),
        ({"n_layer": -1}, "n_layer is -1; it must be a whole number"),
        ({"n_layer": 10**12}, "n_layer is 1000000000000; it must be a whole number"),
        ({"n_layer": 10**6}, r"1,000,000 layers of width 32 .* at least 32,009,216 parameters, and the files hold"),
        ({"layer_norm_epsilon": "x"}, r"config\.json cannot be used \(Field 'layer_norm_epsilon' expected float"),
        ({"activation_function": "quick_gelu"}, "its activation 'quick_gelu' is not supported; supported are gelu"),
        ({"model_type": None, "architectures": None}, "names no model_type"),
        ({"vocab_size": VOCAB + 12}, r"its weights give no (lm_head|transformer\.wte)\.weight.* of the shape"),
    ],
)
def test_a_config_that_cannot_be_used(folder: Path, tmp_path: Path, change: dict[str, Any], said: str) -> None:
    made = broken(folder, tmp_path)
    (made / "config.json").write_text(json.dumps(json.loads((made / "config.json").read_text()) | change))
    with pytest.raises(LegibleError, match=said) as caught:
        adding.add(made, tmp_path / "ordinary")
    assert "\n" not in caught.value.message
    assert not (tmp_path / "ordinary").exists()


def test_rotary_positions_of_no_known_kind(tmp_path: Path) -> None:
    made = save("llama", tmp_path / "model")
    config = json.loads((made / "config.json").read_text())
    config["rope_parameters"] = {"rope_type": "nonsense", "rope_theta": 1e4}
    (made / "config.json").write_text(json.dumps(config))
    with pytest.raises(Corrupt, match=r"its rope_type is 'nonsense', and the kinds .* are default, dynamic, .*yarn"):
        adding.look(made)


@pytest.mark.parametrize("text", ["", '{"model_type": "gpt2", ', "[1]"])
def test_a_truncated_config(folder: Path, tmp_path: Path, text: str) -> None:
    made = broken(folder, tmp_path)
    (made / "config.json").write_text(text)
    with pytest.raises(Corrupt, match=r"config\.json (is no JSON|must hold a JSON object)"):
        adding.look(made)


def test_numbers_that_are_not_finite_are_refused_even_where_no_prompt_reads_them(folder: Path, tmp_path: Path) -> None:
    from safetensors.torch import load_file, save_file

    made = broken(folder, tmp_path)
    tensors = load_file(made / "model.safetensors")
    tensors["transformer.wte.weight"][VOCAB - 1, 3] = float("nan")
    save_file(tensors, made / "model.safetensors", metadata={"format": "pt"})
    with pytest.raises(Corrupt, match=r"its tensor transformer\.wte\.weight holds NaN"):
        adding.add(made, tmp_path / "ordinary")


@pytest.mark.parametrize(
    ("layer", "said"), [(0, "what its layer 0 adds to the stream"), (1, "what its last layer, 1, or")]
)
def test_numbers_that_overflow_name_the_layer(folder: Path, tmp_path: Path, layer: int, said: str) -> None:
    from safetensors.torch import load_file, save_file

    made = broken(folder, tmp_path)
    tensors = load_file(made / "model.safetensors")
    tensors[f"transformer.h.{layer}.mlp.c_proj.weight"] *= 1e20
    save_file(tensors, made / "model.safetensors", metadata={"format": "pt"})
    with pytest.raises(NotExact, match=f"The model is refused: {said}.* not finite"):
        adding.add(made, tmp_path / "ordinary")
    assert not (tmp_path / "ordinary").exists()


def test_a_model_that_bfloat16_rounds_too_much_is_sent_to_float32(
    folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(certificate.TOLERANCE, "bfloat16", -1.0)
    with pytest.raises(NotExact, match=r"over the tolerance -1; .*: add it with --dtype float32\.$"):
        adding.add(folder, tmp_path / "ordinary", dtype="bfloat16")


@pytest.mark.parametrize(
    ("name", "text", "said"),
    [
        ("tokenizer.json", "{}", r"tokenizer\.json has no 'model'"),
        ("tokenizer.json", '{"model": {}}', r"tokenizer\.json has no 'added_tokens'"),
        ("tokenizer.json", '{"model": ', r"tokenizer\.json is no JSON; it is truncated"),
        ("tokenizer_config.json", '{"tokenizer_class": "Pre', r"tokenizer_config\.json is no JSON; it is truncated"),
        ("tokenizer_config.json", "[1]", r"tokenizer_config\.json must hold a JSON object"),
        ("tokenizer_config.json", '{"chat_template": [1, 2]}', r"chat_template of tokenizer_config\.json is \[1, 2\]"),
        ("tokenizer_config.json", '{"bos_token": {"id": 0}}', r"bos_token of tokenizer_config\.json is {'id': 0}, ne"),
    ],
)
def test_a_tokenizer_file_that_is_none_is_named(folder: Path, tmp_path: Path, name: str, text: str, said: str) -> None:
    made = broken(folder, tmp_path)
    (made / name).write_text(text)
    with pytest.raises(Corrupt, match=rf"{said}.*; put the model's own {name} beside its weights\.$"):
        adding.look(made)


def test_a_tokenizer_that_is_missing_or_anothers(folder: Path, tmp_path: Path) -> None:
    made = broken(folder, tmp_path, without=("tokenizer.json",))
    with pytest.raises(NotFound, match="has no tokenizer"):
        adding.look(made)
    (made / "tokenizer.json").write_text('{"x": 1}')
    with pytest.raises(Corrupt, match=r"has no 'model'.*put the model's own tokenizer\.json"):
        adding.look(made)
    (made / "tokenizer.json").write_text('{"added_tokens": [], "model": {"words": []}}')
    with pytest.raises(Corrupt, match=r"cannot be used: its model lacks what a model of no type needs, or holds what"):
        adding.look(made)
    config = adding.look(folder).config
    with pytest.raises(Corrupt, match=f"{VOCAB} tokens and the model {VOCAB - 1} rows"):
        adding.read_tokenizer(folder, replace(config, vocab_size=VOCAB - 1))
    with pytest.raises(Corrupt, match="50,257 rows"):
        adding.read_tokenizer(folder, replace(config, vocab_size=50257))
