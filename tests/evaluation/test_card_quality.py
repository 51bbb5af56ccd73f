"""The half of a card that tasks give: its table, and `legible card --data`, which asks them anew."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from evaluation_samples import CLOZE
from typer.testing import CliRunner

from app.cli import build
from app.commands.card import quality_tables
from legible_core.errors import Conflict, Corrupt, LegibleError, NotFound
from legible_core.evaluation.records import FILE, Evaluation
from legible_core.figures import without_tables
from legible_core.registry import Checkpoint, open_checkpoint


@pytest.fixture
def corpus(tmp_path: Path) -> Path:
    path = tmp_path / "text.txt"
    path.write_text("\n<|endoftext|>\n".join(CLOZE * 6), encoding="utf-8")
    return path


@pytest.fixture
def judged(checkpoint: Checkpoint, data: Path, corpus: Path) -> Checkpoint:
    """Scanned, judged, and with the card that says so."""
    assert run("scan", checkpoint.path, "--corpus", corpus).exit_code == 0
    assert run("eval", checkpoint.path, "--data", data).exit_code == 0
    assert run("card", checkpoint.path).exit_code == 0
    return open_checkpoint(checkpoint.path)


def run(*arguments: str | Path) -> Any:
    result = CliRunner().invoke(build(), [*map(str, arguments)])
    if result.exception is not None and not isinstance(result.exception, SystemExit):
        raise result.exception
    return result


def test_the_card_has_a_table_of_the_tasks_and_of_the_terms(judged: Checkpoint) -> None:
    tasks = Evaluation.load(judged.path, judged.hash).tasks
    blimp = tasks["blimp"]
    body = judged.card.body
    assert body.index("### Quality") < body.index("### Both surfaces by layer")
    row = f"| BLiMP | accuracy | {blimp.estimate('acc').value:.4f} ± {blimp.estimate('acc').se:.4f} | 0.5000 | 6 |"
    assert row in body
    assert "### BLiMP by field and by linguistic term" in body
    term = blimp.groups("term")["npi_licensing"].estimate("acc")
    assert f"| term | npi licensing | {term.value:.4f} ± {term.se:.4f} | 0.5000 | 3 |" in body
    first, groups = quality_tables(tasks)
    assert len(first.rows) == sum(len(task.figures) for task in tasks.values())
    assert {row[0] for row in groups.rows} == {"field", "term"}
    assert quality_tables({}) == []
    assert "BLiMP" not in without_tables(body)  # what the checkpoint's page shows of the card


def test_a_card_of_no_evaluation_has_no_such_table(judged: Checkpoint) -> None:
    (judged.path / FILE).unlink()
    said = run("card", judged.path, "--check")
    assert said.exit_code == 1
    assert "blimp: " in said.stdout
    assert "on the card, and nothing here measured it" in said.stdout
    written = run("card", judged.path)
    assert "Left out, since nothing here measured them: arc_easy, arc_easy_se" in written.stdout
    assert "### Quality" not in open_checkpoint(judged.path).card.body
    assert run("card", judged.path, "--check").exit_code == 0


def test_check_with_data_compares_what_is_measured_now(judged: Checkpoint, data: Path, data_dir: Path) -> None:
    stored = json.loads((judged.path / FILE).read_text())
    card = (judged.path / "README.md").read_text()
    same = run("card", judged.path, "--check", "--data", data)
    assert same.exit_code == 0
    assert "6 items are there already" in same.stderr
    fresh = run("card", judged.path, "--check", "--data", data, "--restart")
    assert fresh.exit_code == 0
    assert "there already" not in fresh.stderr
    # A card and a file that agree with each other, and with nothing that the weights do.
    known = Evaluation.load(judged.path, judged.hash)
    known.tasks["blimp"].parts[0].values["acc"][:] ^= True
    known.write(judged.path / FILE)
    run("card", judged.path)
    assert run("card", judged.path, "--check").exit_code == 0
    found = run("card", judged.path, "--check", "--data", data)
    assert found.exit_code == 1
    assert "blimp: " in found.stdout
    assert "the tables: | BLiMP | accuracy | " in found.stdout
    # Without --check both are put right again.
    assert run("card", judged.path, "--data", data).exit_code == 0
    again = json.loads((judged.path / FILE).read_text())
    assert again["tasks"]["blimp"]["figures"] == stored["tasks"]["blimp"]["figures"]
    assert (judged.path / "README.md").read_text() == card


def test_both_halves_are_measured_anew_and_nothing_is_touched(judged: Checkpoint, data: Path, corpus: Path) -> None:
    before = {path: path.read_bytes() for path in judged.path.iterdir()}
    result = run("card", judged.path, "--check", "--corpus", corpus, "--data", data, "--restart")
    assert result.stdout.endswith("figures and the tables were compared; 0 differ.\n")
    assert result.exit_code == 0
    assert {path: path.read_bytes() for path in judged.path.iterdir()} == before
    with pytest.raises(Conflict, match="has names already, and a card measured on"):
        run("card", judged.path, "--corpus", corpus)


def test_a_task_that_the_folder_lacks_is_taken_from_the_file(judged: Checkpoint, data: Path, tmp_path: Path) -> None:
    (tmp_path / "some").mkdir()
    (tmp_path / "some" / "lambada").symlink_to(data / "lambada")
    result = run("card", judged.path, "--check", "--data", tmp_path / "some")
    assert result.exit_code == 0
    assert "does not hold arc_easy, blimp, wikitext2, winogrande: what is stored of it is taken" in result.stderr
    with pytest.raises(NotFound, match="no data folder"):
        run("card", judged.path, "--check", "--data", tmp_path / "none")


def test_what_ships_is_replaced_only_on_request(judged: Checkpoint, data: Path, monkeypatch) -> None:
    monkeypatch.setattr("app.paths.models_dir", lambda: judged.path.parent)  # as if it shipped
    before = {path: path.read_bytes() for path in judged.path.iterdir()}
    with pytest.raises(Conflict, match=r"ships with evaluation\.json") as refused:
        run("card", judged.path, "--data", data)
    assert "--check compares" in str(refused.value.hint)
    assert run("card", judged.path, "--check", "--data", data).exit_code == 0
    assert {path: path.read_bytes() for path in judged.path.iterdir()} == before
    assert run("card", judged.path, "--data", data, "--replace").exit_code == 0
    assert run("card", judged.path, "--check").exit_code == 0


@pytest.mark.parametrize("arguments", [(), ("--check",), ("--check", "--data")])
def test_damaged_results_are_told_by_their_folder_before_anything_is_measured(
    judged: Checkpoint, data: Path, data_dir: Path, monkeypatch, arguments: tuple[str, ...]
) -> None:
    (judged.path / FILE).write_text("{")
    monkeypatch.setattr("app.commands.evaluate.measure", lambda *_: pytest.fail("measured"))
    card = (judged.path / "README.md").read_bytes()
    with pytest.raises(Corrupt) as refused:
        run("card", judged.path, *arguments, *([data] if "--data" in arguments else []))
    assert refused.value.message.startswith(f"The results in {judged.path} cannot be used: {FILE} ")
    assert refused.value.message.endswith(f"`legible eval {judged.path} --data DIR` measures and stores them anew.")
    assert (judged.path / "README.md").read_bytes() == card
    monkeypatch.undo()
    monkeypatch.setenv("LEGIBLE_DATA_DIR", str(data_dir))
    assert run("card", judged.path, "--data", data).exit_code == 0  # what writes the file anew needs no old one
    assert run("card", judged.path, "--check").exit_code == 0


def nudged(text: str, found: str) -> str:
    """The card with the last digit of a number, which stands once on it, one higher or lower."""
    assert text.count(found) == 1
    digit = next(place for place in reversed(range(len(found))) if found[place].isdigit())
    return text.replace(
        found, found[:digit] + ("8" if found[digit] == "9" else str(int(found[digit]) + 1)) + found[digit + 1 :]
    )


def test_stored_figures_are_compared_as_written_and_only_those_measured_anew_to_a_digit(
    judged: Checkpoint, data: Path, corpus: Path
) -> None:
    card = judged.path / "README.md"
    text = card.read_text(encoding="utf-8")
    fields = judged.card.fields
    row = next(line for line in text.splitlines() if line.startswith("| WikiText-2 | bits per byte |"))
    task = ("--data", data)
    scan = ("--corpus", corpus)
    # A line of the card, and what measures it anew.
    for found, anew, other in (
        (f"\nblimp: {fields['blimp']}\n", task, scan),
        (row.split("±")[0], task, scan),
        (f"\nloss: {fields['loss']}\n", scan, task),
        (f"Perplexity {fields['perplexity']} on", scan, task),
    ):
        card.write_text(nudged(text, found), encoding="utf-8")
        for arguments, code in (((), 1), (other, 1), (anew, 0), ((*task, *scan), 0)):
            said = run("card", judged.path, "--check", *arguments)
            assert said.exit_code == code, (found, arguments, said.stdout)
            assert ("; 1 differ." in said.stdout) == bool(code)


def test_a_count_is_exact_whatever_was_measured_anew(judged: Checkpoint, data: Path, corpus: Path) -> None:
    card = judged.path / "README.md"
    text = card.read_text(encoding="utf-8")
    tokens = int(judged.card.fields["measured_tokens"])
    quality = next(line for line in text.splitlines() if line.startswith("| BLiMP | accuracy |"))
    pooled = next(line for line in text.splitlines() if line.startswith("| all |"))
    sentence = next(line for line in text.splitlines() if line.startswith("Perplexity "))
    numbers = (f"measured_tokens: {tokens}\n", quality, pooled.rsplit(" %")[0].split(".")[0].rsplit("|", 1)[0])
    for found in (*numbers, sentence.split(" tokens of")[0]):
        card.write_text(nudged(text, found), encoding="utf-8")
        for arguments in ((), ("--data", data, "--corpus", corpus)):
            said = run("card", judged.path, "--check", *arguments)
            assert said.exit_code == 1, (found, arguments)
            assert said.stdout.endswith("; 1 differ.\n")


def test_ctrl_c_keeps_what_is_scored_and_the_card(judged: Checkpoint, data: Path, monkeypatch) -> None:
    import signal

    from legible_core.evaluation.scoring import Scorer

    score, card = Scorer.score, (judged.path / "README.md").read_bytes()

    def pressed(self: Scorer, batch: Any, groups: Any) -> Any:
        signal.raise_signal(signal.SIGINT)
        return score(self, batch, groups)

    monkeypatch.setattr(Scorer, "score", pressed)
    result = run("card", judged.path, "--data", data, "--restart")
    assert result.exit_code == 130
    assert "Run the same command to go on from there." in result.stderr
    assert (judged.path / "README.md").read_bytes() == card
    monkeypatch.undo()
    assert Evaluation.load(judged.path, judged.hash) is not None


def test_a_bad_option_is_refused_before_anything_is_measured(checkpoint: Checkpoint, data: Path) -> None:
    with pytest.raises(LegibleError, match="has no names yet"):
        run("card", checkpoint.path, "--data", data)
    for option in ("--restart", "--replace"):
        with pytest.raises(LegibleError, match="go with --data"):
            run("card", checkpoint.path, option)
    with pytest.raises(LegibleError, match="write key=value"):
        run("card", checkpoint.path, "--data", data, "--set", "title")
    assert not (checkpoint.path / FILE).exists()
