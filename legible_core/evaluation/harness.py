"""EleutherAI's lm-evaluation-harness through its own model interface; loaded only when a task is run by name.

    lm = harness_model(model, tokenizer)              # an lm_eval.api.model.LM: loglikelihood, rolling, generate_until
    lm_eval.simple_evaluate(model=lm, tasks=["hellaswag"])
    result = run_by_name("blimp", model, tokenizer)   # one of our tasks, its data from the Hugging Face hub

The scores are those of `Scorer`; the harness chooses the questions and, in `simple_evaluate`, makes its own figures.
"""

from __future__ import annotations

import contextlib
import hashlib
import json
import logging
import sys
import time
from collections import defaultdict
from collections.abc import Callable, Sequence
from itertools import groupby
from typing import Any

import torch

from legible_core.errors import LegibleError, NotFound, Unavailable
from legible_core.evaluation.data import TASKS, Part, Suite, labels_of
from legible_core.evaluation.encode import Encoder, Row
from legible_core.evaluation.journal import Journal, Scores
from legible_core.evaluation.records import TaskResult
from legible_core.evaluation.run import Progress, make_result
from legible_core.evaluation.scoring import BATCH_TOKENS, Scorer
from legible_core.extras import how_to_install
from legible_core.model import Transformer
from legible_core.tokens import Tokenizer

MAX_GENERATED = 256


class HarnessMethods:
    """What the harness asks of a model, on `Scorer`; `harness_model` joins it with the harness's own base class."""

    def __init__(
        self,
        model: Transformer,
        tokenizer: Tokenizer,
        *,
        batch_tokens: int = BATCH_TOKENS,
        journal: Journal | None = None,
        between: Callable[[Progress], None] | None = None,
    ) -> None:
        """journal: keeps scores across interruptions. between: called after every batch; may raise to stop."""
        super().__init__()
        self.model, self.text = model, tokenizer
        self.scorer = Scorer(model, batch_tokens)
        self.encoder = Encoder(tokenizer, model.config.context)
        self.journal, self.between = journal, between
        self._device = self.scorer.device

    @property
    def tokenizer_name(self) -> str:
        return "legible"

    @property
    def max_length(self) -> int:
        return self.model.config.context

    def loglikelihood(self, requests: Sequence[Any], disable_tqdm: bool = True) -> list[tuple[float, bool]]:
        """(log-likelihood, whether greedy) of each request's continuation after its context."""
        keys = [_key("loglikelihood", request.args) for request in requests]
        texts: dict[str, list[list[Row]]] = {}
        bundles = []
        # The questions of one document share their beginning.
        of = lambda pair: (getattr(pair[1], "task_name", None), getattr(pair[1], "doc_id", None))  # noqa: E731
        for _, members in groupby(zip(keys, requests, strict=True), key=of):
            bundle = []
            for key, request in members:
                if key not in texts and not self._known(key):
                    rows = self.encoder.pair(*request.args[:2])
                    texts[key] = [rows]
                    bundle.append((key, rows))
            if bundle and all(len(rows) == 1 for _, rows in bundle):
                bundles.append([(key, rows[0]) for key, rows in bundle])
            else:
                bundles += [[(key, row)] for key, rows in bundle for row in rows]
        found = self._score([bundle for bundle in bundles if bundle])
        return [found[key] for key in keys]

    def loglikelihood_rolling(self, requests: Sequence[Any], disable_tqdm: bool = True) -> list[float]:
        """The log-likelihood of each text, every token predicted once."""
        keys = [_key("rolling", request.args) for request in requests]
        bundles = []
        begun: set[str] = set()
        for key, request in zip(keys, requests, strict=True):
            if key not in begun and not self._known(key):
                begun.add(key)
                bundles += [[(key, row)] for row in self.encoder.rolling(request.args[0])]
        found = self._score(bundles)
        # A text without tokens is certain.
        return [found.get(key, (0.0, True))[0] for key in keys]

    def generate_until(self, requests: Sequence[Any], disable_tqdm: bool = True) -> list[str]:
        """Greedy continuations, up to a stop text or the end of the document; prompts of one length run together."""
        answers = [""] * len(requests)
        batches: dict[tuple[int, int], list[tuple[int, list[int], list[str]]]] = defaultdict(list)
        for index, request in enumerate(requests):
            context, options = request.args[:2]
            if options.get("do_sample") or float(options.get("temperature") or 0.0) > 0.0:
                raise LegibleError("Only greedy generation is offered; set do_sample to false.", code="bad_options")
            until = options.get("until") or []
            stops = [until] if isinstance(until, str) else [stop for stop in until if stop]
            room = min(int(options.get("max_gen_toks", MAX_GENERATED)), self.max_length - 1)
            ids = self.encoder.encode(context) if context else []
            ids = ids or ([self.encoder.prefix] if self.encoder.prefix is not None else [])
            if not ids:
                raise LegibleError("An empty prompt has no token in this vocabulary.", code="empty_prompt")
            ids = ids[-(self.max_length - room) :]
            batches[len(ids), room].append((index, ids, stops))
        for (length, room), members in sorted(batches.items(), reverse=True):
            step = max(1, self.scorer.batch_tokens // length)
            for begin in range(0, len(members), step):
                chosen = members[begin : begin + step]
                texts = self._generate([ids for _, ids, _ in chosen], [stops for _, _, stops in chosen], room)
                for (index, _, _), text in zip(chosen, texts, strict=True):
                    answers[index] = text
        return answers

    @torch.inference_mode()
    def _generate(self, prompts: list[list[int]], stops: list[list[str]], room: int) -> list[str]:
        """Continue prompts of equal length token by token, with the cache."""
        cache = self.model.new_cache()
        following = torch.tensor(prompts, device=self.scorer.device)
        written: list[list[int]] = [[] for _ in prompts]
        texts: list[str | None] = [None] * len(prompts)
        for _ in range(room):
            residual = self.model.residual(following, cache=cache)[:, -1:]
            following = self.model.logits(residual).argmax(dim=-1)
            for row, token in enumerate(following[:, 0].tolist()):
                if texts[row] is not None:
                    continue
                if token == self.encoder.prefix:
                    texts[row] = self.text.decode(written[row])
                    continue
                written[row].append(token)
                text = self.text.decode(written[row])
                ends = [text.index(stop) for stop in stops[row] if stop in text]
                if ends:
                    texts[row] = text[: min(ends)]
            if all(text is not None for text in texts):
                break
        return [self.text.decode(written[row]) if text is None else text for row, text in enumerate(texts)]

    def _known(self, key: str) -> bool:
        return self.journal is not None and (key, 0) in self.journal.done

    def _score(self, bundles: list[list[tuple[str, Row]]]) -> dict[str, tuple[float, bool]]:
        """Scores by key; a key with several rows gets their sum."""
        groups = [[row for _, row in bundle] for bundle in bundles]
        left: dict[str, int] = defaultdict(int)
        for bundle in bundles:
            for key, _ in bundle:
                left[key] += 1
        found: dict[str, tuple[float, bool]] = {
            key: scores[0] for (key, _), scores in (self.journal.done.items() if self.journal is not None else ())
        }
        begun: dict[str, tuple[float, bool]] = {}
        plan, started = self.scorer.plan(groups), time.monotonic()
        total, tokens, wanted = sum(batch.tokens for batch in plan), 0, len(left) + len(found)
        for batch in plan:
            finished: list[tuple[tuple[str, int], Scores]] = []
            for index, scores in self.scorer.score(batch, groups):
                for (key, _), score in zip(bundles[index], scores, strict=True):
                    log, greedy = begun.pop(key, (0.0, True))
                    begun[key] = (log + score.loglik, greedy and score.greedy)
                    left[key] -= 1
                    if not left[key]:
                        finished.append(((key, 0), [begun[key]]))
                        found[key] = begun.pop(key)
            if self.journal is not None:
                self.journal.add(finished)
            tokens += batch.tokens
            if self.between is not None:
                self.between(Progress(tokens, total, len(found), wanted, time.monotonic() - started))
        return found


def harness_model(model: Transformer, tokenizer: Tokenizer, **options: Any) -> Any:
    """An `lm_eval.api.model.LM`; options as of `HarnessMethods`. Raises `NotFound` where lm-eval is not installed."""
    _installed()
    from lm_eval.api.model import LM

    return type("LegibleLM", (HarnessMethods, LM), {})(model, tokenizer, **options)


def run_by_name(
    name: str,
    model: Transformer,
    tokenizer: Tokenizer,
    *,
    limit: int | None = None,
    computed: str = "",
    task_manager: Any = None,
    harness_task: str | None = None,
    **options: Any,
) -> TaskResult:
    """One of our tasks as the harness defines it, with data from the Hugging Face hub or its cache.

    Raises `NotFound` where lm-eval is not installed and `Unavailable` where the data cannot be reached.
    """
    version = _installed()
    import lm_eval

    lm = harness_model(model, tokenizer, **options)
    started = time.monotonic()
    wanted = harness_task or TASKS[name].harness
    try:
        # Its reports go to standard output, which is ours.
        with contextlib.redirect_stdout(sys.stderr), _quiet():
            answer = lm_eval.simple_evaluate(
                model=lm, tasks=[wanted], limit=limit, bootstrap_iters=0, log_samples=True, task_manager=task_manager
            )
    except (LegibleError, KeyboardInterrupt):
        raise
    except Exception as error:
        if not _unreachable(error):
            raise
        reason = (str(error).strip().splitlines() or [type(error).__name__])[0][:200]
        raise Unavailable(
            f"The data of {name} cannot be fetched from the Hugging Face hub ({reason.rstrip('.')}).",
            code="hub_unreachable",
            hint="Give --data DIR with the task's files, or fetch them once where the hub can be reached.",
        ) from None
    suite, scores = _asked(name, answer["samples"], limit, f"lm-evaluation-harness {version}")
    seconds = time.monotonic() - started
    return make_result(suite, scores, computed, seconds, lm.encoder.shortened)


def _asked(
    name: str, samples: dict[str, list[dict[str, Any]]], limit: int | None, source: str
) -> tuple[Suite, dict[str, list[Scores]]]:
    """The harness's samples as our items and scores; raises when the harness asked anything but our questions."""
    task = TASKS[name]
    parts, scores = [], {}
    for title, entries in sorted(samples.items()):
        part = title.removeprefix("blimp_") if name == "blimp" else name
        ordered = sorted(entries, key=lambda sample: int(sample["doc_id"]))
        items = []
        for sample in ordered:
            item = task.item(dict(sample["doc"]), f"{title}, item {sample['doc_id']}")
            asked = [tuple(arguments) for arguments in sample["arguments"]]
            expected = [(text,) for _, text in item.questions] if task.kind == "rolling" else list(item.questions)
            if asked != expected:
                raise LegibleError(f"{item.where}: this lm-eval asks other questions than {name}'s.", code="bad_task")
            items.append(item)
        parts.append(Part(part, tuple(items), labels_of(name, dict(ordered[0]["doc"]), title)))
        scores[part] = [[_answer(answer) for answer in sample["filtered_resps"]] for sample in ordered]
    return Suite(name, task.kind, tuple(parts), limit, source), scores


def _answer(answer: Any) -> tuple[float, bool]:
    return (float(answer[0]), bool(answer[1])) if isinstance(answer, tuple | list) else (float(answer), True)


def _installed() -> str:
    """The version of lm-eval; raises `NotFound` where there is none."""
    from importlib import metadata

    try:
        return metadata.version("lm_eval")
    except metadata.PackageNotFoundError:
        raise NotFound(
            f"Tasks by name need lm-evaluation-harness, which is not installed; {how_to_install('eval')}, "
            "or give --data DIR with the tasks' files.",
            code="not_installed",
        ) from None


def _unreachable(error: BaseException) -> bool:
    """Whether an error, or what caused it, is a data set that cannot be fetched."""
    seen: BaseException | None = error
    while seen is not None:
        names = {kind.__name__ for kind in type(seen).__mro__}
        if isinstance(seen, ConnectionError | TimeoutError) or names & {
            "OfflineModeIsEnabled", "DatasetNotFoundError", "HfHubHTTPError", "LocalEntryNotFoundError",
            "RequestException", "HTTPError", "TransportError",
        }:  # fmt: skip
            return True
        seen = seen.__cause__ or seen.__context__
    return False


@contextlib.contextmanager
def _quiet() -> Any:
    """The harness's log lines below a warning stay away."""
    logger = logging.getLogger("lm_eval")
    before = logger.level
    logger.setLevel(logging.ERROR)
    try:
        yield
    finally:
        logger.setLevel(before)


def _key(kind: str, arguments: tuple[Any, ...]) -> str:
    return hashlib.sha256(json.dumps([kind, *arguments[:2]]).encode()).hexdigest()[:32]
