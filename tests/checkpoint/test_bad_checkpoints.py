"""Every way in which a folder may not be what it claims: refused before anything is allocated, in one sentence."""

from __future__ import annotations

import json
import math
import pickle
import shutil
import struct
import zipfile
from collections.abc import Callable
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest
import torch
from checkpoint_samples import SMALL, edit_header, sign, small_model, tokenizer_spec
from hypothesis import given, settings
from hypothesis import strategies as st

from legible_core.checkpoint import load
from legible_core.errors import Corrupt, LegibleError, NotFound
from legible_core.folder import WEIGHTS, parse_header
from legible_core.registry import check_tensors, check_weights, open_checkpoint
from legible_core.token_service import TokenizerService

IDS = torch.tensor([[3, 1, 4]])
GAIN = "final_norm.gain"
QUERY = "layers.0.attention.query"
Header = dict[str, Any]


def refused(folder: Path) -> str:
    """The sentence with which both the look and the load refuse the folder."""
    with pytest.raises(LegibleError) as looked:
        open_checkpoint(folder)
    with pytest.raises(LegibleError) as loaded:
        load(folder)
    assert looked.value.message == loaded.value.message
    assert isinstance(looked.value, Corrupt)
    return one_sentence(looked.value)


def one_sentence(error: LegibleError) -> str:
    message = error.message
    assert message.startswith("The checkpoint small is refused: ")
    assert message.endswith(".")
    assert "\n" not in message
    assert "Traceback" not in message
    assert len(message) < 400
    return message


@pytest.mark.parametrize("missing", ["config.json", "tokenizer.json", WEIGHTS, "README.md"])
def test_a_missing_file(folder: Path, missing: str) -> None:
    (folder / missing).unlink()
    assert f"{missing} is missing" in refused(folder)


def test_no_folder_at_all(tmp_path: Path) -> None:
    with pytest.raises(NotFound, match="There is no checkpoint folder"):
        open_checkpoint(tmp_path / "none")
    with pytest.raises(NotFound, match="There is no checkpoint folder"):
        load(tmp_path / "none")


@pytest.mark.parametrize("share", [0.0, 0.00001, 0.01, 0.5, 0.999])
def test_truncated_weights(folder: Path, share: float) -> None:
    data = (folder / WEIGHTS).read_bytes()
    (folder / WEIGHTS).write_bytes(data[: int(len(data) * share)])
    assert "truncated" in refused(folder)


def test_bytes_behind_the_last_tensor(folder: Path) -> None:
    with (folder / WEIGHTS).open("ab") as file:
        file.write(b"\x00" * 12)
    assert "12 bytes stand behind its last tensor" in refused(folder)


def test_one_changed_byte_breaks_the_hash(folder: Path) -> None:
    data = bytearray((folder / WEIGHTS).read_bytes())
    data[-1] ^= 1
    (folder / WEIGHTS).write_bytes(data)
    assert "its card (README.md) is for the hash" in refused(folder)


def test_a_card_with_another_hash_or_none(folder: Path) -> None:
    card = folder / "README.md"
    text = card.read_text()
    card.write_text(text.replace("hash: ", "hash: 0"))
    assert "is for the hash 0" in refused(folder)
    card.write_text("# A model\n")
    assert "its front must hold the line `hash: " in refused(folder)
    card.write_text(text.replace("perplexity: 50.5", "perplexity: low"))
    assert "perplexity is 'low'" in refused(folder)
    card.write_text(text.replace("crisp: 0.75", "crisp: 75"))
    assert "between 0 and 1" in refused(folder)
    card.write_bytes(b"---\nhash: \xff\n---\n")
    assert "not UTF-8" in refused(folder)
    card.write_text("---\n" + "a: b\n" * 100_000)
    assert "the limit is 262,144 bytes" in refused(folder)


@pytest.mark.parametrize("bits", [0x7FC00000, 0x7F800000, 0xFF800000, 0xFFFFFFFF])
def test_values_that_are_not_finite(folder: Path, bits: int) -> None:
    data = bytearray((folder / WEIGHTS).read_bytes())
    data[-4:] = struct.pack("<I", bits)
    (folder / WEIGHTS).write_bytes(data)
    sign(folder)
    checkpoint = open_checkpoint(folder)
    for read in (check_weights, load):
        with pytest.raises(Corrupt) as caught:
            read(checkpoint)
        assert "holds NaN or infinite values" in one_sentence(caught.value)


@pytest.mark.parametrize(("dtype", "bits"), [("BF16", 0x7F80), ("F16", 0x7C01)])
def test_values_that_are_not_finite_in_half_precision(folder: Path, dtype: str, bits: int) -> None:
    header, data = half(folder, dtype)
    data[-2:] = struct.pack("<H", bits)
    edit_header(folder, lambda old: old.update(header), bytes(data))
    sign(folder)
    with pytest.raises(Corrupt, match="holds NaN or infinite values"):
        load(folder)


def test_half_precision_of_another_writer_is_read(folder: Path) -> None:
    header, data = half(folder, "F16")
    edit_header(folder, lambda old: old.update(header), bytes(data))
    sign(folder)
    assert not load(folder).final_norm.gain.any()


def half(folder: Path, dtype: str) -> tuple[Header, bytearray]:
    """A header in which every tensor has two bytes a value, and zeros for its data."""
    found: Header = {}

    def change(header: Header) -> None:
        header.pop("__metadata__", None)
        start = 0
        for name, entry in header.items():
            stop = start + 2 * math.prod(entry["shape"])
            found[name] = {"dtype": dtype, "shape": entry["shape"], "data_offsets": [start, stop]}
            start = stop

    edit_header(folder, change)
    return found, bytearray(max(entry["data_offsets"][1] for entry in found.values()))


def wrong(name: str, **fields: Any) -> Callable[[Header], None]:
    return lambda header: header[name].update(fields)


@pytest.mark.parametrize(
    ("change", "said"),
    [
        (wrong(GAIN, dtype="F64"), "is stored as F64; it must be F32, BF16 or F16"),
        (wrong(GAIN, dtype="I8"), "is stored as I8"),
        (wrong(GAIN, dtype=7), "is stored as 7"),
        (wrong(GAIN, dtype="BF16"), "does not fit the bytes it has"),
        (wrong(GAIN, shape=[17]), "does not fit the bytes it has"),
        (wrong(GAIN, shape=[-16]), "no list of whole numbers"),
        (wrong(GAIN, shape="16"), "no list of whole numbers"),
        (wrong(GAIN, shape=[True]), "no list of whole numbers"),
        (wrong(GAIN, shape=[2**60]), "no list of whole numbers"),
        (wrong(GAIN, shape=[2**40, 2**40]), "does not fit the bytes it has"),
        (wrong(GAIN, data_offsets=[0]), "does not fit the bytes it has"),
        (wrong(GAIN, extra=1), "is not dtype, shape and data_offsets"),
        (wrong(GAIN, shape=[4, 4]), f"the tensor {GAIN} has the shape [4, 4]; config.json asks for [16]"),
        (lambda header: header.update({GAIN: 3}), "is not dtype, shape and data_offsets"),
        (lambda header: header.update(other=header.pop(GAIN)), f"the tensor {GAIN} is missing"),
        (
            lambda header: header.update({"evil\n" * 14: {"dtype": "F32", "shape": [0], "data_offsets": [0, 0]}}),
            "holds tensors that config.json has no place for: 'evil",
        ),
        (lambda header: header.pop(GAIN), "leaves a gap"),
        (lambda header: header.clear(), "bytes stand behind its last tensor"),
    ],
)
def test_headers_that_do_not_fit(folder: Path, change: Callable[[Header], Any], said: str) -> None:
    edit_header(folder, change)
    sign(folder)
    assert said in refused(folder)


@settings(max_examples=300, deadline=None)
@given(data=st.data())
def test_no_damage_to_a_header_escapes_the_checks(pristine: Path, data: st.DataObject) -> None:
    """Whatever bytes of the header change: the same tensors as before, or `Corrupt`; never another error."""
    raw = bytearray((pristine / WEIGHTS).read_bytes())
    (length,) = struct.unpack("<Q", raw[:8])
    good = parse_header(bytes(raw), len(raw))
    for _ in range(data.draw(st.integers(1, 4))):
        raw[data.draw(st.integers(0, 7 + length))] = data.draw(st.integers(0, 255))
    try:
        tensors = check_tensors(parse_header(bytes(raw), len(raw)), SMALL)
    except Corrupt:
        return
    assert {name: info.shape for name, info in tensors.items()} == {name: i.shape for name, i in good.items()}
    spans = sorted((info.start, info.end) for info in tensors.values())
    assert all(left[1] == right[0] for left, right in pairwise(spans))
    assert spans[-1][1] == len(raw)


def test_overlapping_tensors(folder: Path) -> None:
    def overlap(header: Header) -> None:
        start, stop = header[QUERY]["data_offsets"]
        header[QUERY]["data_offsets"] = [start - 4, stop - 4]

    edit_header(folder, overlap)
    sign(folder)
    assert "overlaps the one before it" in refused(folder)


@pytest.mark.parametrize("padding", [0, 1, 100, 256])
def test_a_header_of_any_length_is_read(folder: Path, padding: int) -> None:
    """Also one whose length begins with the byte of a pickle."""

    def pad(header: Header) -> None:
        header["__metadata__"] = {"note": ""}
        length = len(json.dumps(header))
        header["__metadata__"]["note"] = " " * ((0x80 - length) % 256 + padding)

    edit_header(folder, pad)
    sign(folder)
    assert torch.equal(load(folder)(IDS), small_model()(IDS))


@pytest.mark.parametrize(
    ("head", "said"),
    [
        (struct.pack("<Q", 1 << 62) + b"{}", "claims a header of 4,611,686,018,427,387,904 bytes"),
        (struct.pack("<Q", 4) + b"[1, ", "is no JSON"),
        (struct.pack("<Q", 2) + b"[]", "must hold a JSON object"),
        (struct.pack("<Q", 15) + b'{"a":1,"a":1}  ', "holds a key twice"),
        (struct.pack("<Q", 9) + b'{"a":NaN}', "holds NaN"),
        (struct.pack("<Q", 4) + b"\xff\xfe\xfd\xfc", "is no JSON"),
        (struct.pack("<Q", 200_000) + b"[" * 200_000, "nested too deeply"),
        (b"abc", "truncated"),
    ],
)
def test_headers_that_are_none(folder: Path, head: bytes, said: str) -> None:
    (folder / WEIGHTS).write_bytes(head)
    sign(folder)
    assert said in refused(folder)


class Bomb:
    """Unpickling it would leave a mark."""

    def __init__(self, mark: Path) -> None:
        self.mark = mark

    def __reduce__(self) -> tuple[Any, ...]:
        return (Path.touch, (self.mark,))


@pytest.mark.parametrize("name", ["pytorch_model.bin", "model.pt", "model.pth", "last.ckpt", "weights.pkl", WEIGHTS])
@pytest.mark.parametrize("zipped", [False, True])
def test_pickled_weights_are_never_opened(folder: Path, tmp_path: Path, name: str, zipped: bool) -> None:
    (folder / WEIGHTS).unlink()
    mark = tmp_path / "opened"
    if zipped:
        with zipfile.ZipFile(folder / name, "w") as archive:
            archive.writestr("archive/data.pkl", pickle.dumps(Bomb(mark)))
    else:
        (folder / name).write_bytes(pickle.dumps(Bomb(mark)))
    said = refused(folder)
    assert "opening one runs whatever program is in it" in said
    assert name in said
    assert not mark.exists()


def test_split_weights_say_so(folder: Path) -> None:
    (folder / WEIGHTS).rename(folder / "model-00001-of-00002.safetensors")
    assert "join them into one model.safetensors" in refused(folder)


@pytest.mark.parametrize(
    ("change", "said"),
    [
        ({"d_model": 32}, "asks for"),
        (
            {"n_layers": 3, "attention": {"value": "boolean", "n_special": [4, 2, 2]}},
            "layers.2.attention_norm.gain is missing",
        ),
        ({"n_layers": 1, "attention": {"value": "boolean", "n_special": [4]}}, "has no place for: 'layers.1."),
        ({"vocab_size": 264}, "token_embedding has the shape [265, 16]; config.json asks for [264, 16]"),
        ({"n_heads": 3}, "no multiple of n_heads"),
        ({"n_layers": 10**9}, "n_layers"),
        ({"n_layers": "2"}, "n_layers"),
        ({"surprise": 1}, "surprise is unknown"),
        ({"format": "gpt2"}, "no legible checkpoint"),
    ],
)  # fmt: skip
def test_configs_that_do_not_fit(folder: Path, change: dict[str, Any], said: str) -> None:
    (folder / "config.json").write_text(json.dumps(SMALL.to_json() | change))
    sign(folder)
    assert said in refused(folder)


@pytest.mark.parametrize("text", ["", "{", "[]", '{"a": 1, "a": 2}', '{"norm_eps": NaN}', "[" * 60_000, " " * 70_000])
def test_configs_that_are_none(folder: Path, text: str) -> None:
    (folder / "config.json").write_text(text)
    sign(folder)
    assert "config.json" in refused(folder)


def test_a_tokenizer_of_another_size(folder: Path) -> None:
    spec = tokenizer_spec()
    spec["model"]["vocab"]["more"] = 265
    (folder / "tokenizer.json").write_text(json.dumps(spec))
    sign(folder)
    said = "tokenizer.json has 266 tokens and config.json a vocabulary of 265; they must be equal"
    with pytest.raises(Corrupt) as caught:
        load(folder)
    assert said in one_sentence(caught.value)
    with TokenizerService() as service, pytest.raises(Corrupt) as caught:
        open_checkpoint(folder, tokenizer=service)
    assert said in one_sentence(caught.value)


def test_a_tokenizer_that_is_none(folder: Path) -> None:
    (folder / "tokenizer.json").write_text("{}")
    sign(folder)
    with pytest.raises(Corrupt) as caught:
        load(folder)
    assert 'no "model" object' in one_sentence(caught.value)
    with TokenizerService() as service, pytest.raises(Corrupt) as caught:
        open_checkpoint(folder, tokenizer=service)
    assert 'no "model" object' in one_sentence(caught.value)


def test_a_folder_that_changes_between_the_look_and_the_load(folder: Path) -> None:
    checkpoint = open_checkpoint(folder)
    data = bytearray((folder / WEIGHTS).read_bytes())
    data[-1] ^= 1
    (folder / WEIGHTS).write_bytes(data)
    with pytest.raises(Corrupt, match="no longer have the hash"):
        load(checkpoint)
    sign(folder)
    with pytest.raises(Corrupt, match="no longer have the hash"):
        load(checkpoint)
    assert torch.isfinite(load(folder).token_embedding).all()


def test_nothing_is_allocated_for_a_claim(folder: Path) -> None:
    """A header that claims terabytes costs no memory: the file on disk would have to hold them."""
    shutil.copy(folder / "config.json", folder / "old.json")
    config = SMALL.to_json() | {"vocab_size": 1 << 24, "d_model": 1 << 20, "n_heads": 4}
    (folder / "config.json").write_text(json.dumps(config))
    edit_header(
        folder,
        lambda header: header.update(
            token_embedding={"dtype": "F32", "shape": [1 << 24, 1 << 20], "data_offsets": [0, 1 << 46]}
        ),
    )
    sign(folder)
    assert "corrupted" in refused(folder)
