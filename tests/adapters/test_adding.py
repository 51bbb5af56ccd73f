"""`legible add` and what follows: files, tokenizers, templates, the registration, and every refusal in one sentence."""

from __future__ import annotations

import json
import shutil
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from family_samples import VOCAB, broken, hf_model, save
from typer.testing import CliRunner

from app.cli import build
from app.commands.read_many import Batch, read_many
from legible_core.adapters import source
from legible_core.adapters.registration import OrdinaryCheckpoint, open_registered
from legible_core.api import read
from legible_core.errors import Conflict, Corrupt, LegibleError, NotFound, TooLarge, Unavailable
from legible_core.ordinary import adding, loading
from legible_core.pipeline import Engine
from legible_core.prompts import Bos, render, with_bos
from legible_core.registry import open_checkpoint, survey

TEMPLATE = "{{ bos_token }}{% for m in messages %}[{{ m.role }}]{{ m.content }}{% endfor %}[assistant]"


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A GPT-2-shaped folder whose tokenizer begins texts by itself and has a chat template."""
    return save("gpt2", tmp_path_factory.mktemp("hf") / "small-gpt", bos=True, template=TEMPLATE)


@pytest.fixture(scope="module")
def added(folder: Path, tmp_path_factory: pytest.TempPathFactory) -> OrdinaryCheckpoint:
    return adding.add(folder, tmp_path_factory.mktemp("data") / "ordinary", slug="small")


@pytest.fixture(scope="module")
def engine(added: OrdinaryCheckpoint) -> Engine:
    return Engine.open(added)


def test_what_was_added_is_listed_opened_and_read(added: OrdinaryCheckpoint, engine: Engine) -> None:
    again = open_registered(added.path, "small")
    assert replace(again, origin=added.origin) == added
    [entry] = survey([], [("small", added.path)])
    assert entry.checkpoint == again
    assert again.certificate is not None
    assert again.certificate["top_agrees"] == again.certificate["positions"]
    assert again.kind == "ordinary GPT-2, GELU units, LayerNorm"
    assert again.legibility == {}
    reading = read(engine, "It was the best of times, it was the", top=4)
    assert abs(reading.residual) < 1e-4
    assert reading.shares.net is None
    assert reading.summary.checkpoint.hash == added.hash
    assert all(row.operands == () for row in reading.top if row.kind != "head")


def test_a_folder_that_nobody_added_reads_the_same(folder: Path, engine: Engine) -> None:
    theirs = read(str(folder), "It was the best")
    ours = read(engine, "It was the best")
    np.testing.assert_array_equal(theirs.units, ours.units)
    assert theirs.digest == ours.digest


def test_the_command_reads_a_folder(folder: Path) -> None:
    result = CliRunner().invoke(build(), ["read", str(folder), "It was the best", "--no-bos", "--top", "3"])
    assert result.exit_code == 0, result.output
    assert "no legible share: an ordinary model" in result.output
    result = CliRunner().invoke(build(), ["read", str(folder), "It was", "--chat", "--json"])
    tokens = json.loads(result.stdout)["tokens"]
    assert "".join(token["text"] for token in tokens) == "<|endoftext|>[user]It was[assistant]"


def test_close_ups_add_up(engine: Engine) -> None:
    request = engine.request("It was the best of times")
    reading = engine.read(request)
    detail = engine.head_detail(request, 1, 2)
    assert sum(detail["terms"]) == pytest.approx(float(reading.heads[1, 2]), abs=1e-5)
    unit = engine.component_detail(request, "L1.u7")
    assert unit["value"] == pytest.approx(float(reading.units[1, 7]), abs=1e-6)
    assert unit["operands"] == []
    assert len(engine.component_detail(request, "L0.h1.c3")["activations"]) == len(request.ids)
    with pytest.raises(LegibleError, match="ordinary model"):
        engine.needs_legible("Why an operand was on")


def test_begin_of_text_is_the_tokenizers_default_switchable_and_never_doubled(engine: Engine) -> None:
    plain = engine.encode("It was", bos=False)
    assert engine.encode("It was") == [0, *plain] == engine.encode("It was", bos=True)
    assert engine.encode("<|endoftext|>It was") == [0, *plain]
    assert engine.encode("It was", chat=True)[:1] == [0]
    assert engine.encode("It was", chat=True).count(0) == 1
    assert with_bos([5], Bos(0, "x", False)) == [5]
    with pytest.raises(LegibleError, match="no begin-of-text token"):
        with_bos([5], None, True)


def test_a_template_without_a_beginning_gets_none_as_in_transformers(folder: Path, tmp_path: Path) -> None:
    from transformers import AutoTokenizer

    made = broken(folder, tmp_path)
    settings = json.loads((made / "tokenizer_config.json").read_text())
    settings["chat_template"] = "[{{ messages[0].content }}]"
    (made / "tokenizer_config.json").write_text(json.dumps(settings))
    (made / "chat_template.jinja").unlink(missing_ok=True)
    engine = Engine.open(made)
    theirs = AutoTokenizer.from_pretrained(made).apply_chat_template(
        [{"role": "user", "content": "It was"}], add_generation_prompt=True, return_dict=False
    )
    assert engine.encode("It was", chat=True) == list(theirs)
    assert engine.encode("It was", chat=True, bos=True) == [0, *theirs]
    assert engine.encode("It was")[0] == 0  # without the template the tokenizer's own beginning


def test_a_template_fails_in_one_sentence_and_its_absence_is_said() -> None:
    with pytest.raises(LegibleError, match="has no chat template"):
        render(None, "hello", {})
    for bad in (
        "{{ raise_exception('roles must alternate') }}",
        "{{ messages[0].content.__class__.__mro__ }}",
        "{% if %}",
    ):
        with pytest.raises(LegibleError, match="chat template fails on this prompt"):
            render(bad, "hello", {})


def test_a_batch_equals_its_singles(engine: Engine) -> None:
    """Every prompt is a pass of its own, so there is no padding to go wrong, on either side."""
    model: Any = engine.model
    rows = torch.tensor([[1, 2, 3, 4], [9, 8, 7, 6]])
    together = model.forward(rows)
    for row, alone in zip(rows, together, strict=True):
        torch.testing.assert_close(model.forward(row[None])[0], alone, rtol=0, atol=0)


@pytest.mark.parametrize("side", ["Left", "Right"])
def test_a_ragged_batch_equals_its_singles_whatever_side_the_tokenizer_pads(
    folder: Path, engine: Engine, tmp_path: Path, side: str
) -> None:
    """A tokenizer saved with padding and truncation switched on: the ids of a prompt have neither."""
    made = broken(folder, tmp_path)
    data = json.loads((made / "tokenizer.json").read_text())
    data["padding"] = {
        "strategy": {"Fixed": 40}, "direction": side, "pad_to_multiple_of": None, "pad_id": 0, "pad_type_id": 0,
        "pad_token": "<|endoftext|>",
    }  # fmt: skip
    data["truncation"] = {"max_length": 5, "strategy": "LongestFirst", "stride": 0, "direction": side}
    (made / "tokenizer.json").write_text(json.dumps(data))
    settings = json.loads((made / "tokenizer_config.json").read_text()) | {"padding_side": side.lower()}
    (made / "tokenizer_config.json").write_text(json.dumps(settings))
    padded = Engine.open(made)
    texts = ["It", "It was the best of times, it was the", "It was the worst"]
    batch = Batch(tmp_path / "prompts.txt", tmp_path / "readings.jsonl", {}, top=2, size=3)
    batch.prompts.write_text("\n".join(texts) + "\n")
    assert read_many(padded, batch).failed == []
    rows = [json.loads(line) for line in batch.out.read_text().splitlines()]
    for text, row in zip(texts, rows, strict=True):
        alone = read(engine, text, top=2)
        assert padded.encode(text) == engine.encode(text)
        for part in ("value", "sum", "floor", "groups", "top"):
            assert row["reading"][part] == alone.summary.model_dump(mode="json", by_alias=True)[part]


def test_changed_weights_are_never_read_under_the_old_hash(folder: Path, tmp_path: Path) -> None:
    moved = tmp_path / "model"
    shutil.copytree(folder, moved)
    checkpoint = adding.look(moved)
    data = bytearray((moved / "model.safetensors").read_bytes())
    data[-1] ^= 1
    (moved / "model.safetensors").write_bytes(data)
    with pytest.raises(Corrupt, match=r"model\.safetensors has changed"):
        Engine.open(checkpoint)
    assert adding.look(moved).hash != checkpoint.hash


def test_a_registration_whose_weights_are_gone_is_listed_with_the_reason(
    added: OrdinaryCheckpoint, tmp_path: Path
) -> None:
    for change, said in (({"source": str(tmp_path)}, "no longer in"), ({"hash": "0" * 64}, "claims a hash")):
        broken = tmp_path / said.split()[0]
        shutil.copytree(added.path, broken)
        record = json.loads((broken / "ordinary.json").read_text()) | change
        (broken / "ordinary.json").write_text(json.dumps(record))
        [entry] = survey([], [("small", broken)])
        assert entry.error is not None
        assert said in entry.error.message


def test_a_taken_slug_leaves_nothing_behind(folder: Path, tmp_path: Path) -> None:
    with pytest.raises(Conflict, match="ships with Legible"):
        adding.add(folder, tmp_path / "ordinary", slug="novel-gelu", taken={"novel-gelu"})
    with pytest.raises(Conflict, match="already names another checkpoint") as caught:
        adding.add(folder, tmp_path / "ordinary", slug="mine", named={"mine": "0" * 64})
    assert "--move" in str(caught.value.hint)
    assert not (tmp_path / "ordinary").exists()


def test_an_estimate_refuses_before_anything_is_loaded(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(loading, "free_memory", lambda device: 3 << 30)
    with pytest.raises(
        TooLarge, match=r"1,000,000,000 parameters .* 4\.5 GiB in float32.* 3\.0 GiB free.*--dtype bfloat16"
    ):
        loading.check_size(1_000_000_000, "float32", "cpu")
    with pytest.raises(TooLarge, match="smaller model"):
        loading.check_size(2_000_000_000, "float32", "cpu")
    loading.check_size(1_000_000_000, "bfloat16", "cpu")


def test_an_offloaded_model_needs_one_layer_on_the_card_and_the_whole_on_the_cpu(
    added: OrdinaryCheckpoint, monkeypatch: pytest.MonkeyPatch
) -> None:
    free = {"cuda": 2 << 30, "cpu": 8 << 30}
    monkeypatch.setattr(loading, "_free", lambda device: free[device])
    monkeypatch.setattr(loading, "free_memory", lambda device: free["cpu"])
    with pytest.raises(TooLarge, match=r"cuda has 2\.0 GiB free; the CPU has 8\.0 GiB free: add it with --offload"):
        loading.check_size(1_500_000_000, "float32", "cuda")
    deep = replace(added.config, n_layers=10)
    loading.check_size(1_500_000_000, "float32", "cuda", deep)  # a tenth of it, and its small embeddings
    with pytest.raises(
        TooLarge, match=r"One layer and what is outside the layers need about 3\.4 GiB .* cuda has 2\.0"
    ):
        loading.check_size(1_500_000_000, "float32", "cuda", replace(added.config, n_layers=2))
    with pytest.raises(
        TooLarge, match=r"2,000,000,000 parameters and needs about 8\.9 GiB in float32, and cpu has 8\.0"
    ):
        loading.check_size(2_000_000_000, "float32", "cuda", deep)


def test_offloading_where_the_cpu_computes_is_refused(folder: Path) -> None:
    from app.commands.models import add_ordinary

    nothing: Any = None
    with pytest.raises(LegibleError, match="leave it out, or give a card with --device"):
        add_ordinary(nothing, str(folder), device="cpu", offload=True)
    with pytest.raises(LegibleError, match="one stored in float16 is read exactly in float32"):
        add_ordinary(nothing, str(folder), dtype="float16")
    with pytest.raises(LegibleError, match=r"'cuda:99' cannot be used \(.*\); use cpu, or cuda where there is a GPU"):
        add_ordinary(nothing, str(folder), device="cuda:99")


def test_a_hub_name_without_a_network_a_token_or_a_model(monkeypatch: pytest.MonkeyPatch) -> None:
    import huggingface_hub
    from huggingface_hub import errors

    monkeypatch.setattr(source, "local_models", lambda: ["gpt2"])
    response: Any = type("Response", (), {"headers": {}, "request": None, "status_code": 403, "text": ""})()
    cases: list[tuple[Exception, type[LegibleError], str]] = [
        (errors.LocalEntryNotFoundError("no"), Unavailable, "offline.* models that are: gpt2"),
        (errors.GatedRepoError("no", response=response), LegibleError, "gated repository"),
        (errors.RepositoryNotFoundError("no", response=response), NotFound, "no model 'some/model' on the hub"),
        (errors.RevisionNotFoundError("no", response=response), NotFound, "no revision"),
    ]
    for raised, kind, said in cases:

        def refuse(*_: Any, raised: Exception = raised, **__: Any) -> str:
            raise raised

        monkeypatch.setattr(huggingface_hub, "snapshot_download", refuse)
        with pytest.raises(kind, match=said):
            source.find("some/model", "v2")


def test_a_downloaded_snapshot_keeps_its_name_and_commit(folder: Path, tmp_path: Path, monkeypatch: Any) -> None:
    import huggingface_hub

    snapshot = tmp_path / ("a" * 40)
    snapshot.mkdir()
    for path in folder.iterdir():  # a hub cache holds links into its blobs
        (snapshot / path.name).symlink_to(path)
    monkeypatch.setattr(huggingface_hub, "snapshot_download", lambda *_, **__: str(snapshot))
    checkpoint = adding.look("some/model")
    assert (checkpoint.slug, checkpoint.title, checkpoint.revision) == ("model", "some/model", "a" * 40)
    assert checkpoint.hash == adding.look(folder).hash


def test_what_reads_weights_by_their_names_is_refused_an_ordinary_model(added: OrdinaryCheckpoint) -> None:
    from legible_core.checkpoint import load

    with pytest.raises(LegibleError, match="small is an ordinary model"):
        load(added)


def test_the_workbench_sends_an_ordinary_folder_to_add(folder: Path) -> None:
    with pytest.raises(Corrupt, match="`legible add`"):
        open_checkpoint(folder)


def test_padding_rows_of_the_embedding_are_ids_without_a_text() -> None:
    from family_samples import words

    from legible_core.tokens import Tokenizer

    tokenizer = Tokenizer(words(), VOCAB + 20)
    assert tokenizer.display(VOCAB + 3) == f"⟨unused {VOCAB + 3}⟩"
    assert tokenizer.token_bytes(VOCAB + 3) == b""
    assert hf_model("gpt2").config.vocab_size == VOCAB
