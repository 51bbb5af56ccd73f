"""lm-evaluation-harness on the same items: the same questions, the same scores, the same figures and errors."""

from __future__ import annotations

import json
import math
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import lm_eval
import pytest
import torch
from evaluation_samples import DOCUMENTS, PARADIGMS, make_model
from lm_eval.api.model import LM, TemplateLM
from lm_eval.tasks import TaskManager

from legible_core.errors import LegibleError, Unavailable
from legible_core.evaluation import harness
from legible_core.evaluation.data import TASKS, load_suite
from legible_core.evaluation.encode import Encoder
from legible_core.evaluation.harness import harness_model, run_by_name
from legible_core.evaluation.journal import Journal
from legible_core.evaluation.run import Run
from legible_core.tokens import Tokenizer

pytestmark = pytest.mark.filterwarnings("ignore")
INSTALLED = Path(lm_eval.__file__).parent / "tasks"
OURS = {"lambada": "lambada/lambada_openai", "arc_easy": "arc/arc_easy", "winogrande": "winogrande/default"}
WIKITEXT = "wikitext/wikitext"


@pytest.fixture(scope="module")
def tasks(data: Path, tmp_path_factory: pytest.TempPathFactory) -> TaskManager:
    """The harness's own task files, each with our invented items in place of its data."""
    folder = tmp_path_factory.mktemp("tasks")
    cache = tmp_path_factory.mktemp("cache")

    def write(task: str, base: str, file: Path, *lines: str) -> None:
        files = json.dumps({split: str(file) for split in ("train", "validation", "test")})
        text = [f"include: {INSTALLED / base}", f"task: {task}", "dataset_path: json", "dataset_name: null", *lines]
        text += [f"dataset_kwargs: {{data_files: {files}, cache_dir: {cache}}}"]
        (folder / f"{task}.yaml").write_text("\n".join(text) + "\n")

    for name in PARADIGMS:
        write(f"blimp_{name}", "blimp/_template_yaml", data / "blimp" / f"{name}.jsonl")
    members = json.dumps([f"blimp_{name}" for name in PARADIGMS])
    metric = "aggregate_metric_list: [{metric: acc, aggregation: mean, weight_by_size: False}]"
    (folder / "group.yaml").write_text(f"group: ours_blimp\ntask: {members}\n{metric}\n")
    for name, base in OURS.items():
        write(f"ours_{name}", f"{base}.yaml", next((data / name).glob("*.jsonl")))
    pages = folder / "pages.jsonl"
    pages.write_text("".join(json.dumps({"page": text}) + "\n" for text in DOCUMENTS))
    write("ours_wikitext2", f"{WIKITEXT}.yaml", pages)
    return TaskManager(include_path=str(folder), include_defaults=False)


@pytest.fixture(scope="module")
def model(tokenizer: Tokenizer):
    return make_model(tokenizer.vocab_size)


@pytest.fixture
def lm(model, tokenizer) -> Any:
    return harness_model(model, tokenizer)


def requests(*arguments: tuple[Any, ...]) -> list[Any]:
    return [SimpleNamespace(args=given) for given in arguments]


@pytest.mark.parametrize("name", list(TASKS))
def test_by_name_and_from_files_give_the_same(name, data, tasks, model, tokenizer, tmp_path):
    suite = load_suite(name, data)
    run = Run(model, tokenizer, suite)
    for _ in run.steps():
        pass
    ours = run.result()
    theirs = run_by_name(name, model, tokenizer, task_manager=tasks, harness_task=f"ours_{name}")
    assert {part.name for part in ours.parts} == {part.name for part in theirs.parts}
    by_name = {part.name: part for part in theirs.parts}
    for part in ours.parts:
        other = by_name[part.name]
        assert part.items == other.items
        assert part.labels == other.labels
        assert part.chance == other.chance
        assert part.digest == other.digest
        for key, values in part.values.items():
            assert values == pytest.approx(other.values[key], abs=1e-4), key
    assert ours.figures == theirs.figures
    assert "lm-evaluation-harness" in theirs.source


@pytest.mark.parametrize("name", list(TASKS))
def test_figures_and_errors_are_those_of_the_harness(name, data, tasks, model, tokenizer, lm, monkeypatch):
    monkeypatch.setenv("DISABLE_MULTIPROC", "1")
    answer = lm_eval.simple_evaluate(model=lm, tasks=[f"ours_{name}"], bootstrap_iters=1000, task_manager=tasks)
    run = Run(model, tokenizer, load_suite(name, data))
    for _ in run.steps():
        pass
    ours = run.result()
    found = answer["results"] | answer.get("groups", {})
    for figure in ours.figures:
        estimate, theirs = ours.estimate(figure), found[f"ours_{name}"]
        assert estimate.value == pytest.approx(theirs[f"{figure},none"], rel=1e-5)
        error = theirs[f"{figure}_stderr,none"]
        if figure in ("acc", "acc_norm"):
            assert estimate.se == pytest.approx(error, rel=1e-9)
        elif figure == "perplexity":
            assert estimate.se == pytest.approx(error, rel=0.6)  # four items, bootstrapped there
        else:
            assert error == "N/A"
    for part in ours.parts if name == "blimp" else ():
        assert part.estimate("acc").value == pytest.approx(found[f"blimp_{part.name}"]["acc,none"])
        assert part.estimate("acc").se == pytest.approx(found[f"blimp_{part.name}"]["acc_stderr,none"])


def test_the_split_of_a_question_is_the_harnesses(tokenizer):
    class Template(TemplateLM):
        eot_token_id = 0
        loglikelihood_rolling = generate_until = None

        def tok_encode(self, string, add_special_tokens=None, **kwargs):
            return tokenizer.encode(string)

        def _loglikelihood_tokens(self, requests, **kwargs):
            return [(before, after) for _, before, after in requests]

    questions = [("The dog", " went home"), ("The dog ", "went"), ("a\n", "b"), ("", " dogs"), ("x", "y z")]
    theirs = Template().loglikelihood(requests(*questions), disable_tqdm=True)
    encoder = Encoder(tokenizer, 48)
    assert [encoder.split(*question) for question in questions] == [(list(a), list(b)) for a, b in theirs]


def test_it_is_a_model_of_the_harness(lm, model, tokenizer):
    assert isinstance(lm, LM)
    assert (lm.rank, lm.world_size, lm.max_length) == (0, 1, 48)
    twice = lm.loglikelihood(requests(("The dog", " ran"), ("", " cats"), ("The dog", " ran")))
    assert twice[0] == twice[2]
    ids = tokenizer.encode("The dog ran")
    before = len(tokenizer.encode("The dog"))
    with torch.no_grad():
        logs = model(torch.tensor([ids[:-1]]))[0].double().log_softmax(-1)
    expected = sum(float(logs[at - 1, ids[at]]) for at in range(before, len(ids)))
    assert twice[0][0] == pytest.approx(expected, abs=1e-4)


def test_a_rolling_text_is_the_sum_of_its_windows(lm, model, tokenizer):
    text = "The cat went home and the dog slept. " * 12
    ids = tokenizer.encode(text)
    assert len(ids) > 2 * 48
    (found,) = lm.loglikelihood_rolling(requests((text,)))
    from lm_eval.utils import get_rolling_token_windows

    expected = 0.0
    for given, wanted in get_rolling_token_windows(ids, 0, 48, 1):
        with torch.no_grad():
            logs = model(torch.tensor([given]))[0].double().log_softmax(-1)
        expected += sum(float(logs[at - len(wanted), token]) for at, token in enumerate(wanted))
    assert found == pytest.approx(expected, rel=1e-6)
    assert lm.loglikelihood_rolling(requests(("",))) == [0.0]


def test_generation_is_greedy_and_stops(lm, model, tokenizer):
    prompts = ["The dog", "The cat went", "Both", ""]
    wanted = requests(*((prompt, {"until": [], "max_gen_toks": 6}) for prompt in prompts))
    texts = lm.generate_until(wanted)
    for prompt, text in zip(prompts, texts, strict=True):
        ids = tokenizer.encode(prompt) or [0]
        for _ in range(6):
            with torch.no_grad():
                ids.append(int(model(torch.tensor([ids]))[0, -1].argmax()))
        expected = ids[-6:]
        if 0 in expected:
            expected = expected[: expected.index(0)]
        assert text == tokenizer.decode(expected)
    stop = texts[0][1]
    (short,) = lm.generate_until(requests(("The dog", {"until": [stop], "max_gen_toks": 6})))
    assert short == texts[0][: texts[0].index(stop)]
    long = lm.generate_until(requests(("The dog went home. " * 40, {"until": "\n\n", "max_gen_toks": 4})))
    assert len(long) == 1
    with pytest.raises(LegibleError, match="greedy"):
        lm.generate_until(requests(("The", {"do_sample": True})))


def test_a_journal_spares_what_was_scored(model, tokenizer, tmp_path):
    path = tmp_path / "scores.jsonl"
    asked = requests(("The dog", " ran"), ("", " cats"))
    with Journal(path, {}) as journal:
        first = harness_model(model, tokenizer, journal=journal).loglikelihood(asked)
    steps: list[Any] = []
    with Journal(path, {}) as journal:
        again = harness_model(model, tokenizer, journal=journal, between=steps.append).loglikelihood(asked)
    assert again == first
    assert steps == []


def test_offline_is_one_sentence(model, tokenizer, monkeypatch):
    def fail(**_: object) -> None:
        raise ValueError("no cached data") from ConnectionError("no route to host")

    monkeypatch.setattr(lm_eval, "simple_evaluate", fail)
    with pytest.raises(Unavailable, match="cannot be fetched from the Hugging Face hub") as caught:
        run_by_name("blimp", model, tokenizer)
    assert "--data" in (caught.value.hint or "")
    monkeypatch.setattr(lm_eval, "simple_evaluate", lambda **_: math.sqrt(-1))
    with pytest.raises(ValueError, match="math"):
        run_by_name("blimp", model, tokenizer)


def test_without_the_harness_the_way_out_is_named(model, tokenizer, monkeypatch):
    from importlib import metadata

    def missing(name: str) -> str:
        raise metadata.PackageNotFoundError(name)

    monkeypatch.setattr(metadata, "version", missing)
    with pytest.raises(LegibleError, match=r"not installed; in the clone run pip install -e '\.\[eval\]'"):
        run_by_name("blimp", model, tokenizer)


def test_a_harness_that_asks_otherwise_is_noticed():
    doc = {"text": "The dog ran home"}
    sample = {"doc_id": 0, "doc": doc, "arguments": [("The dog ran", "home")], "filtered_resps": [(-1.0, False)]}
    with pytest.raises(LegibleError, match="other questions"):
        harness._asked("lambada", {"lambada_openai": [sample]}, None, "x")
