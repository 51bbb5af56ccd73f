"""Tasks out of local files, and what is said of unusable ones."""

from __future__ import annotations

import pytest
from evaluation_samples import DOCUMENTS, PARADIGMS, write_lines

from legible_core.errors import LegibleError, NotFound
from legible_core.evaluation.data import TASKS, available, load_suite, task_names


def test_all_tasks_are_read(data):
    assert available(data) == list(TASKS)
    blimp = load_suite("blimp", data)
    assert [part.name for part in blimp.parts] == sorted(PARADIGMS)
    assert blimp.items == 6
    assert blimp.parts[0].labels == {"field": "semantics", "term": "npi_licensing"}
    assert blimp.parts[0].items[0].questions == (("", " No dog ever slept."), ("", " The dog ever slept."))
    lambada = load_suite("lambada", data).parts[0].items
    assert lambada[1].questions == (("“It was late,” said the cat. The cat", " went\nhome"),)
    arc = load_suite("arc_easy", data).parts[0].items
    assert arc[1].questions[1] == ("Question: Where did the cat go?\nAnswer:", " to sleep")
    assert [item.gold for item in arc] == [0, 1, 1]
    assert arc[0].lengths == (5, 19, 7, 4)
    blanks = load_suite("winogrande", data).parts[0].items
    assert blanks[0].questions[1] == ("The dog ran from the cat because the dog", " was old.")
    assert [item.gold for item in blanks] == [0, 1]


def test_a_text_is_cut_at_its_titles_and_counted_as_it_stands(data):
    items = load_suite("wikitext2", data).parts[0].items
    assert len(items) == 2
    assert " = Home = " not in items[0].questions[0][1]
    assert "young dogs run-and eat." in items[0].questions[0][1]
    assert "(the end)" in items[0].questions[0][1]
    assert '"late"' in items[1].questions[0][1]
    assert sum(item.lengths[1] for item in items) == len("".join(DOCUMENTS).encode())


def test_a_limit_keeps_the_first_of_each_part(data):
    full, cut = load_suite("blimp", data), load_suite("blimp", data, limit=2)
    assert [len(part.items) for part in cut.parts] == [2, 2]
    assert cut.parts[0].items == full.parts[0].items[:2]
    assert cut.parts[0].digest != full.parts[0].digest


def test_task_names_and_their_aliases():
    assert task_names(" blimp,lambada_openai , lambada") == ["blimp", "lambada"]
    with pytest.raises(LegibleError, match="no task 'glue'; the tasks are blimp, lambada, arc_easy, winogrande, wiki"):
        task_names("blimp,glue")
    with pytest.raises(LegibleError, match="names no task"):
        task_names(" , ")


GOOD = {"sentence_good": "A dog.", "sentence_bad": "A dogs.", "field": "syntax", "linguistics_term": "x"}


@pytest.mark.parametrize(
    ("task", "entry", "message"),
    [
        ("blimp", {**GOOD, "sentence_bad": ""}, "sentence_bad is missing, empty or no text"),
        ("blimp", {**GOOD, "sentence_good": 3}, "sentence_good is missing"),
        ("lambada", {"text": "word"}, "no last word"),
        ("arc_easy", {"question": "?", "answerKey": "E", "choices": {"text": ["a", "b"], "label": ["A", "B"]}}, "'E'"),
        ("arc_easy", {"question": "?", "answerKey": "A", "choices": {"text": ["a"], "label": ["A"]}}, "2 to 26"),
        ("arc_easy", {"question": "?", "answerKey": "A", "choices": ["a", "b"]}, "2 to 26"),
        ("arc_easy", {"question": "?", "answerKey": "A", "choices": {"text": ["a", 1], "label": "AB"}}, "2 to 26"),
        ("arc_easy", {"question": "?", "answerKey": "A", "choices": {"text": ["a", 1], "label": ["A", "B"]}}, "empty"),
        ("winogrande", {"sentence": "no blank", "option1": "a", "option2": "b", "answer": "1"}, "a _ before its end"),
        ("winogrande", {"sentence": "a _ b", "option1": "a", "option2": "b", "answer": "3"}, '"1" or "2"'),
    ],
)
def test_a_malformed_item_names_file_and_line(tmp_path, data, task, entry, message):
    first = (data / task).glob("*.jsonl").__next__().read_text(encoding="utf-8").splitlines()[0]
    path = tmp_path / task / "items.jsonl"
    write_lines(path, [entry])
    path.write_text(first + "\n\n" + path.read_text(encoding="utf-8"), encoding="utf-8")
    with pytest.raises(LegibleError, match=f"^{task}/items.jsonl, line 3: .*{message}"):
        load_suite(task, tmp_path)


@pytest.mark.parametrize("key", ["field", "linguistics_term"])
@pytest.mark.parametrize("label", ["\ud800", "a\nb", "a\tb", "\x1b[2J", "a\u2028b", "x" * 81])
def test_a_label_is_one_printable_line(tmp_path, key, label):
    """It stands in a report's row, on a page and on a card, and a lone surrogate can be written on none of them."""
    write_lines(tmp_path / "blimp" / "items.jsonl", [{**GOOD, key: label}])
    said = f"^blimp/items.jsonl, line 1: {key} is not one printable line of at most 80 characters.$"
    with pytest.raises(LegibleError, match=said):
        load_suite("blimp", tmp_path)
    write_lines(tmp_path / "blimp" / "items.jsonl", [{**GOOD, key: "ü" * 80}])
    assert "ü" * 80 in load_suite("blimp", tmp_path).parts[0].labels.values()


def test_a_paradigms_file_name_is_one_printable_line(tmp_path):
    for stem in ("a\nb", "a\udcffb", "x" * 81):
        write_lines(tmp_path / stem[:3] / "blimp" / f"{stem}.jsonl", [GOOD])
        with pytest.raises(LegibleError, match="names its paradigm, and is not one printable line") as refused:
            load_suite("blimp", tmp_path / stem[:3])
        assert refused.value.message.isprintable()


def test_what_is_no_item_at_all(tmp_path):
    with pytest.raises(NotFound, match="no data folder"):
        load_suite("blimp", tmp_path / "none")
    with pytest.raises(NotFound, match=r"blimp needs its data in .* as \*.jsonl"):
        load_suite("blimp", tmp_path)
    (tmp_path / "lambada").mkdir()
    (tmp_path / "lambada" / "a.jsonl").write_bytes(b'{"text": "a b"}\n\xff\xfe\n')
    with pytest.raises(LegibleError, match="line 2: it is no JSON in UTF-8"):
        load_suite("lambada", tmp_path)
    (tmp_path / "lambada" / "a.jsonl").write_bytes(b"[]\n")
    with pytest.raises(LegibleError, match="no JSON object"):
        load_suite("lambada", tmp_path)
    (tmp_path / "lambada" / "a.jsonl").write_bytes(b"\n")
    with pytest.raises(LegibleError, match="holds no item"):
        load_suite("lambada", tmp_path)
    (tmp_path / "lambada" / "b.jsonl").write_bytes(b"\n")
    with pytest.raises(LegibleError, match=r"several files \(a.jsonl, b.jsonl\)"):
        load_suite("lambada", tmp_path)
    (tmp_path / "wikitext2").mkdir()
    (tmp_path / "wikitext2" / "valid.txt").write_bytes(b" = A = \n \xff\n")
    with pytest.raises(LegibleError, match="byte 9: it is not UTF-8"):
        load_suite("wikitext2", tmp_path)
