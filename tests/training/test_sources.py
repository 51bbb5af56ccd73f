"""Text of every kind and length becomes the tokens that the whole documents have; what is no text is refused."""

from __future__ import annotations

import lzma
import os
import random
import sys
import types
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tokenizers import Tokenizer, decoders, models, normalizers, pre_tokenizers
from training_samples import RECIPE, recipe_of, write_text, write_tokenizer

from legible_core.errors import Conflict, LegibleError, TooLarge, Unavailable
from legible_core.training import data, sources
from legible_core.training.data import LONGEST, documents, short_words, tokenise, train_tokenizer
from legible_core.training.loop import Run
from legible_core.training.sources import Files, Hub, find_source, pieces

WORDS = ["cat", "dog's", "Éa", "one-two", "3.14", "日本語", "don't", "—", "x", "(and)", "\t", "  ", " \n", "\n\n", "\n"]


@pytest.fixture(scope="module")
def long_text(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Two documents, of which one is many pieces long, with blank lines, runs of spaces and tabs."""
    rng = random.Random(1)
    path = tmp_path_factory.mktemp("long") / "long.txt"
    body = "".join(rng.choice(WORDS) + rng.choice([" ", " ", "\n", ""]) for _ in range(6000))
    path.write_text(f"A short one.\n<|endoftext|>\n{body}\n", encoding="utf-8")
    return path


@pytest.fixture
def small_pieces(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sources, "CHUNK", 1000)
    monkeypatch.setattr(sources, "PIECE", 700)
    monkeypatch.setattr(sources, "WINDOW", 60)
    monkeypatch.setattr(data, "BATCH", 2000)


def plain_ids(path: Path, tokenizer: Tokenizer) -> list[int]:
    """Every document tokenised whole, and closed."""
    text = path.read_text(encoding="utf-8")
    found: list[int] = []
    for document in text.split("\n<|endoftext|>\n"):
        found += [*tokenizer.encode(document.strip("\n"), add_special_tokens=False).ids, 0]
    return found


def test_a_long_document_in_pieces_has_the_tokens_of_the_whole(
    tmp_path: Path, long_text: Path, small_pieces: None
) -> None:
    tokenizer = train_tokenizer(long_text, 400)
    found = [piece.text for piece in Files(long_text).pieces()]
    assert len(found) > 20
    assert max(map(len, found)) < 2500
    corpus = tokenise(long_text, tokenizer, tmp_path)
    assert corpus.ids.tolist() == plain_ids(long_text, tokenizer)
    assert "".join(found[1:]) == long_text.read_text(encoding="utf-8").split("<|endoftext|>\n")[1].strip("\n")


def test_a_tokenizer_learns_the_same_from_pieces(long_text: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    whole = train_tokenizer(long_text, 400).to_str()
    monkeypatch.setattr(sources, "PIECE", 700)
    monkeypatch.setattr(sources, "CHUNK", 1000)
    assert train_tokenizer(long_text, 400).to_str() == whole


def test_a_long_stretch_is_searched_once(monkeypatch: pytest.MonkeyPatch) -> None:
    spans: list[int] = []
    cut = sources._cut

    def noting(held: str, fits: sources.Fits | None, tried: int = 0) -> int:
        spans.append(len(held) - tried)
        return cut(held, fits, tried)

    monkeypatch.setattr(sources, "_cut", noting)
    size = 1 << 16
    (piece,) = sources.pieces(("x" * size, 0) for _ in range(16))
    assert len(piece.text) == 16 * size
    assert max(spans[1:]) <= size + sources.WINDOW + 3


def test_a_cut_that_changes_tokens_is_not_made(tmp_path: Path, long_text: Path, small_pieces: None) -> None:
    """A tokenizer that puts a space before every text it is given: no document can be cut for it."""
    monkey = Tokenizer(models.WordLevel({"<|endoftext|>": 0, "?": 1}, unk_token="?"))
    monkey.normalizer = normalizers.Prepend("▁")
    monkey.pre_tokenizer = pre_tokenizers.Split("▁", "isolated")
    monkey.decoder = decoders.Metaspace()
    limit = pytest.MonkeyPatch()
    limit.setattr(sources, "LONGEST", 3000)
    try:
        with pytest.raises(TooLarge, match="more than 3,000 characters that cannot be cut without changing its tokens"):
            tokenise(long_text, monkey, tmp_path)
    finally:
        limit.undo()
    assert tokenise(long_text, monkey, tmp_path).ids.tolist() == plain_ids(long_text, monkey)
    assert sorted(path.suffix for path in tmp_path.iterdir()) == [".ids", ".json"]


LINES = st.lists(st.sampled_from(["", "a", "bc d", " e", "<|endoftext|>", "<|endoftext|> ", "x<|endoftext|>"]))


@given(LINES, st.integers(1, 9), st.booleans())
@settings(max_examples=60, deadline=None)
def test_documents_are_those_of_a_reader_of_lines(lines: list[str], size: int, closed: bool) -> None:
    text = "\n".join(lines) + ("\n" if closed else "")
    expected: list[str] = []
    held: list[str] = []
    for line in [*text.splitlines(), "<|endoftext|>"]:
        if line == "<|endoftext|>":
            if body := "\n".join(held).strip("\n"):
                expected.append(body)
            held = []
        else:
            held.append(line)
    chunks = [(text[i : i + size], i) for i in range(0, len(text), size)]
    assert [piece.text for piece in pieces(chunks)] == expected


def test_a_folder_is_read_in_the_order_of_its_paths(tmp_path: Path) -> None:
    folder = tmp_path / "texts"
    (folder / "b").mkdir(parents=True)
    (folder / ".hidden").mkdir()
    (folder / "b" / "2.txt").write_text("two")
    (folder / "a.txt.xz").write_bytes(lzma.compress(b"one"))
    (folder / "c.md").write_text("no")
    (folder / ".d.txt").write_text("no")
    (folder / ".hidden" / "e.txt").write_text("no")
    (tmp_path / "elsewhere").mkdir()
    (tmp_path / "elsewhere" / "f.txt").write_text("three")
    (folder / "z.txt").symlink_to(tmp_path / "elsewhere" / "f.txt")
    (folder / "y").symlink_to(tmp_path / "elsewhere")
    assert list(documents(folder)) == ["one", "two", "three"]
    source = Files(folder)
    assert (
        [piece.done for piece in source.pieces()][-1] == source.total() == sum(f.stat().st_size for f in source.files())
    )
    before = source.key
    (folder / "b" / "2.txt").write_text("twofold")
    assert source.key != before
    (tmp_path / "elsewhere" / "none").mkdir()
    os.mkfifo(folder / "pipe.txt")
    with pytest.raises(LegibleError, match="no regular file"):
        list(documents(folder))
    with pytest.raises(LegibleError, match=r"holds no .txt or .xz file"):
        list(documents(tmp_path / "elsewhere" / "none"))


@pytest.mark.parametrize("packed", [False, True])
def test_bytes_that_are_not_utf_8_are_named_by_their_place(
    tmp_path: Path, packed: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(sources, "CHUNK", 7)
    content = "é".encode() * 20 + b"ab\xc3(" + b"rest"
    path = tmp_path / ("t.xz" if packed else "t.txt")
    path.write_bytes(lzma.compress(content) if packed else content)
    place = " of the unpacked text" if packed else ""
    with pytest.raises(LegibleError, match=rf"is not UTF-8 text: byte 42{place} is 0xc3"):
        list(documents(path))
    path.write_bytes(lzma.compress(content[:39]) if packed else content[:39])  # cut within a character
    with pytest.raises(LegibleError, match=rf"byte 38{place} is 0xc3"):
        list(documents(path))


@pytest.mark.parametrize("content", ["", "\n\n\n", "<|endoftext|>\n<|endoftext|>\n"])
def test_a_text_that_holds_nothing(tmp_path: Path, content: str) -> None:
    text, full = tmp_path / "t.txt", write_text(tmp_path / "full.txt", 50)
    text.write_text(content)
    with pytest.raises(LegibleError, match="holds no text"):
        train_tokenizer(text, 300)
    with pytest.raises(LegibleError, match="holds no text"):
        tokenise(text, train_tokenizer(full, 260), tmp_path / "cache")
    assert list((tmp_path / "cache").iterdir()) == []


def test_a_tiny_text_says_how_much_is_needed(tmp_path: Path) -> None:
    text = write_text(tmp_path / "t.txt", 20)
    with pytest.raises(LegibleError, match=r"tokens; training needs more than the held-out 200 and one context of 16"):
        Run(RECIPE, tmp_path / "run", text, tokenizer=write_tokenizer(text, tmp_path / "tokenizer.json"))


def test_a_text_that_changed_under_a_run_is_refused(tmp_path: Path) -> None:
    text = write_text(tmp_path / "t.txt")
    tokenizer = write_tokenizer(text, tmp_path / "tokenizer.json")
    run = Run(RECIPE, tmp_path / "run", text, tokenizer=tokenizer)
    before = run.order.ids.tolist()
    # Before a first step is saved another text is no contradiction.
    Run(RECIPE, tmp_path / "run", write_text(tmp_path / "other.txt", 3000), tokenizer=tokenizer)
    Run(RECIPE, tmp_path / "run", text, tokenizer=tokenizer).train(lambda step: step.number < 2)
    content = text.read_bytes()
    text.write_bytes(content[:-1] + b"x")
    with pytest.raises(Conflict, match="The text has changed since this run began") as caught:
        Run(RECIPE, tmp_path / "run", text, tokenizer=tokenizer)
    assert caught.value.code == "corpus_changed"
    # The same words under another name, packed, are the same text.
    (tmp_path / "again.xz").write_bytes(lzma.compress(content))
    assert Run(RECIPE, tmp_path / "run", tmp_path / "again.xz", tokenizer=tokenizer).order.ids.tolist() == before


def test_another_tokenizer_under_a_run_is_refused(tmp_path: Path) -> None:
    text = write_text(tmp_path / "t.txt")
    tokenizer = write_tokenizer(text, tmp_path / "tokenizer.json")
    wrong = tmp_path / "wrong.json"
    wrong.write_text(tokenizer.read_text().replace("<fill0>", "<full0>"))
    Run(RECIPE, tmp_path / "run", text, tokenizer=wrong)
    run = Run(RECIPE, tmp_path / "run", text, tokenizer=tokenizer)  # no step was saved: the given one counts
    assert (tmp_path / "run" / "tokenizer.json").read_bytes() == tokenizer.read_bytes()
    run.train(lambda step: step.number < 2)
    with pytest.raises(Conflict, match="trained with another tokenizer"):
        Run(RECIPE, tmp_path / "run", text, tokenizer=wrong)
    Run(RECIPE, tmp_path / "run", text)


def test_the_first_tokens_alone_and_progress(tmp_path: Path, long_text: Path, small_pieces: None) -> None:
    tokenizer = train_tokenizer(long_text, 400)
    seen: list[tuple[int, int]] = []
    whole = tokenise(long_text, tokenizer, tmp_path, lambda done, total: seen.append((done, total)))
    assert seen == sorted(seen)
    assert len(seen) > 3
    assert seen[-1] == (long_text.stat().st_size,) * 2
    first = tokenise(long_text, tokenizer, tmp_path, max_tokens=1000)
    assert first.ids.tolist() == whole.ids[:1000].tolist()
    assert first.sha256 != whole.sha256
    # Read from the cache, with the hash of what is there.
    again = tokenise(long_text, tokenizer, tmp_path, lambda done, total: pytest.fail("tokenised twice"))
    assert again.sha256 == whole.sha256
    (kept,) = [path for path in tmp_path.glob("*.ids") if path.stat().st_size == 2 * len(whole.ids)]
    kept.write_bytes(kept.read_bytes()[:-2])  # another length: the hash beside it no longer counts
    assert tokenise(long_text, tokenizer, tmp_path).sha256 != whole.sha256


# ---- the hub ---------------------------------------------------------------------------------------------------------


def test_a_dataset_is_streamed_row_by_row(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    asked: list[tuple[Any, ...]] = []
    rows = [{"text": "one\r\nline", "id": 1}, {"text": "\n"}, {"text": "two"}]

    def load_dataset(name: str, config: str | None, **options: Any) -> Iterator[dict[str, Any]]:
        asked.append((name, config, options))
        return iter(rows)

    monkeypatch.setitem(sys.modules, "datasets", types.SimpleNamespace(load_dataset=load_dataset))
    source = find_source("hf:some/where@v1", config="en", split="test", column="text")
    assert isinstance(source, Hub)
    assert [(piece.text, piece.ends) for piece in source.pieces()] == [("one\nline", True), ("two", True)]
    assert asked == [("some/where", "en", {"split": "test", "streaming": True, "revision": "v1"})]
    text = write_text(tmp_path / "t.txt", 50)
    tokenizer = train_tokenizer(text, 260)
    ids = tokenise(source, tokenizer, tmp_path / "cache").ids.tolist()
    assert ids == [*tokenizer.encode("one\nline").ids, 0, *tokenizer.encode("two").ids, 0]
    rows.clear()  # kept: the dataset is asked once
    assert tokenise(source, tokenizer, tmp_path / "cache").ids.tolist() == ids
    rows.append({"body": "text", "id": 1})
    with pytest.raises(LegibleError, match="no column 'text' of text; its columns of text: body"):
        list(find_source("hf:some/where").pieces())


def test_a_dataset_that_cannot_be_had(monkeypatch: pytest.MonkeyPatch) -> None:
    def load_dataset(*words: Any, **options: Any) -> Any:
        raise ConnectionError("Couldn't reach the hub.\nTraceback …")

    monkeypatch.setitem(sys.modules, "datasets", types.SimpleNamespace(load_dataset=load_dataset))
    with pytest.raises(
        Unavailable, match=r"The dataset hf:no/thing \(split train\) cannot be read: Couldn't reach the hub\.$"
    ):
        list(find_source("hf:no/thing").pieces())
    monkeypatch.setitem(sys.modules, "datasets", None)
    with pytest.raises(Unavailable, match=r"needs the datasets library.*\[hub\]"):
        list(find_source("hf:no/thing").pieces())


def test_a_recipe_names_a_dataset(tmp_path: Path) -> None:
    from legible_core.training.recipe import resolve

    assert find_source(resolve("hf:owner/name@main", tmp_path)) == Hub("owner/name@main")
    assert find_source(resolve("a.txt", tmp_path)) == Files(tmp_path / "a.txt")
    assert recipe_of().data.max_tokens is None


def test_packed_text_of_any_make_and_a_dictionary_that_is_too_large(tmp_path, monkeypatch):
    monkeypatch.setattr(sources, "CHUNK", 100)
    text = "".join(f"line {i}\n" for i in range(300))
    half = len(text) // 2
    for name, packed in {
        "one": lzma.compress(text.encode()),
        "old": lzma.compress(text.encode(), lzma.FORMAT_ALONE),
        "many": lzma.compress(text[:half].encode()) + b"\0" * 400 + lzma.compress(text[half:].encode()) + b"\0" * 4,
    }.items():
        path = tmp_path / f"{name}.xz"
        path.write_bytes(packed)
        assert "".join(part for part, _ in sources._chunks(path)) == text, name
        path.write_bytes(packed[:-30])
        with pytest.raises(LegibleError, match="cannot be read"):
            list(sources._chunks(path))
    greedy = tmp_path / "greedy.xz"
    greedy.write_bytes(lzma.compress(b"a" * 100, filters=[{"id": lzma.FILTER_LZMA2, "dict_size": 1 << 23}]))
    monkeypatch.setattr(sources, "XZ_MEMORY", 4 << 20)
    with pytest.raises(LegibleError, match=r"takes more than 4 MiB.*smaller dictionary"):
        list(sources._chunks(greedy))


def test_a_word_of_a_million_letters_does_not_keep_the_tokenizer_from_its_end(tmp_path: Path) -> None:
    prose = "It was the best of times,\n" + "x" * (LONGEST - 1) + " it was."
    assert short_words(prose) == prose, "an ordinary text is counted as it stands"
    letters = "ab" * 500_000
    cut = short_words(letters)
    assert max(map(len, cut.split(" "))) == LONGEST
    assert cut.replace(" ", "") == letters
    path = tmp_path / "letters.txt"
    path.write_text(letters, encoding="utf-8")
    tokenizer = train_tokenizer(path, 300)
    assert tokenizer.get_vocab_size() > 257
    assert tokenizer.decode(tokenizer.encode(letters[:5000]).ids) == letters[:5000]
