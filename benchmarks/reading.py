"""A complete reading at GPT-2-small shape (12 layers, 768, vocabulary 50,257), random weights, names aside.

Ours is `Engine.read` with every cache emptied before each run: forward of the whole prompt, logits of the read
position, all terms, the twenty strongest contributors with their operands' values, the finished document. Names aside
means without token lists (`promoted=0`); a row for comparison has them computed on the spot.
"""

from __future__ import annotations

import time
from collections.abc import Iterator
from typing import Any

import torch

from benchmarks.measure import THREADS, Row, Timing, against
from legible_core.config import Attention, FeedForward, ModelConfig
from legible_core.model import Transformer
from legible_core.pipeline import Engine
from legible_core.reading import CheckpointRef, Reading, ReadingRequest

LAYERS, WIDTH, VOCABULARY = 12, 768, 50257
HASH = "0" * 64
# A prompt's length -> the most that its complete reading may cost, in Hugging Face forwards.
BOUNDS = {16: 1.0, 256: 0.8}
AGAIN = 0.15


def make_engine() -> Engine:
    """Boolean values on every head, ρ = 0.5, an eighth of the named units quantifiers: as many parameters as GPT-2."""
    config = ModelConfig(
        n_layers=LAYERS,
        d_model=WIDTH,
        n_heads=12,
        context=1024,
        vocab_size=VOCABULARY,
        attention=Attention("boolean", (12,) * LAYERS),
        feed_forward=FeedForward(4 * WIDTH, 0.5, 0.125),
    )
    model = Transformer(config).eval().requires_grad_(False)
    model.initialise(torch.Generator().manual_seed(0))
    return Engine(model, CheckpointRef(hash=HASH, slug="random"))


def prompts(length: int) -> Iterator[tuple[int, ...]]:
    """Other random ids every time, so that nothing kept from one run serves the next."""
    generator = torch.Generator().manual_seed(length)
    while True:
        yield tuple(torch.randint(VOCABULARY, (length,), generator=generator).tolist())


class Sides:
    """Our engine and a Hugging Face GPT-2 of the same shape, each asked for one prompt."""

    def __init__(self) -> None:
        from transformers import GPT2Config, GPT2LMHeadModel

        torch.set_num_threads(THREADS)
        self.engine = make_engine()
        self.hugging_face = GPT2LMHeadModel(GPT2Config()).eval().requires_grad_(False)

    def read(self, ids: tuple[int, ...], promoted: int = 0, **fields: Any) -> Reading:
        return self.engine.read(ReadingRequest(HASH, ids, **fields), promoted=promoted)

    def read_anew(self, ids: tuple[int, ...], promoted: int = 0) -> Reading:
        self.engine.forget()
        return self.read(ids, promoted)

    def forward(self, ids: tuple[int, ...], **options: Any) -> Any:
        return self.hugging_face(torch.tensor([ids]), **options)


def complete() -> Iterator[Row]:
    """A whole reading against one plain forward, which computes the logits of every position."""
    sides = Sides()
    for length, bound in BOUNDS.items():
        count = 15 if length < 100 else 7
        what = f"complete reading of {length} tokens / one Hugging Face forward"
        yield against(sides.read_anew, sides.forward, prompts(length), count).row(f"reading-{length}", what, bound)
        one_logit = against(sides.read_anew, lambda ids: sides.forward(ids, logits_to_keep=1), prompts(length), count)
        yield one_logit.row(f"reading-{length}-one-logit", f"{what} of which only the last logits are computed", None)
        with_lists = against(lambda ids: sides.read_anew(ids, 10), sides.forward, prompts(length), count)
        yield with_lists.row(f"reading-{length}-lists", f"{what}, with its twenty promote lists made on the spot", None)


def again() -> Iterator[Row]:
    """Another target, and another position, of a prompt that was read before."""
    sides = Sides()
    targets = iter(range(1000, 50000, 37))
    for length in BOUNDS:

        def known(length: int = length) -> Iterator[tuple[int, ...]]:
            for ids in prompts(length):
                sides.read(ids)
                yield ids

        def another_target(ids: tuple[int, ...]) -> None:
            sides.read(ids, target=next(targets))

        def another_position(ids: tuple[int, ...]) -> None:
            sides.read(ids, position=len(ids) // 2)

        for name, call in (("target", another_target), ("position", another_position)):
            what = f"another {name} of a known prompt of {length} tokens / one Hugging Face forward"
            timing = against(call, sides.forward, known(), 15 if length < 100 else 7)
            yield timing.row(f"another-{name}-{length}", what, AGAIN)


def beyond() -> Iterator[Row]:
    """What a reading costs beyond its own forward, ours against TransformerLens on the same shape.

    TransformerLens: run_with_cache and the projected decomposition over all heads and neurons at the last position,
    less its own plain forward. Ours: a reading whose trace is at hand, all else computed anew.
    """
    # boot_transformers wants a tokenizer, which would have to be downloaded; this is its bridge without one.
    from transformer_lens.model_bridge.sources._bridge_builder import build_bridge_from_module
    from transformers import GPT2Config, GPT2LMHeadModel

    model = GPT2LMHeadModel(GPT2Config()).eval().requires_grad_(False)
    sides = Sides()
    gain = model.transformer.ln_f.weight.clone()
    bridge = build_bridge_from_module(
        model, "GPT2LMHeadModel", hf_config=model.config, device="cpu", model_name="gpt2"
    ).eval()

    def theirs(ids: tuple[int, ...]) -> None:
        with torch.no_grad():
            logits, cache = bridge.run_with_cache(torch.tensor([ids]))
            target = int(logits[0, -1].argmax())
            terms: Any = cache.get_full_resid_decomposition(
                apply_ln=True, expand_neurons=True, pos_slice=-1, project_output_onto=gain * bridge.W_U[:, target]
            )
        # Both sides must do the same work: theirs closes as well.
        if abs(float(terms.double().sum()) - float(logits[0, -1, target])) > 1e-3:
            raise AssertionError("TransformerLens's decomposition does not sum to its logit")

    def plain(ids: tuple[int, ...]) -> Any:
        with torch.no_grad():
            return bridge(torch.tensor([ids]))

    def beyond(ids: tuple[int, ...]) -> None:
        sides.engine.forget(traces=False)
        sides.read(ids)

    for length in BOUNDS:
        ours, baseline = [], []
        given = prompts(length)
        for index in range(6 if length < 100 else 4):
            ids = next(given)
            sides.read(ids)
            times = [_seconds(call, ids) for call in (theirs, plain, beyond)]
            if index:
                baseline.append(max(times[0] - times[1], 1e-9))
                ours.append(times[2])
        what = f"beyond the forward, {length} tokens / TransformerLens's cache and projected decomposition"
        yield Timing(ours, baseline).row(f"beyond-forward-{length}", what, 0.2)


def _seconds(call: Any, ids: tuple[int, ...]) -> float:
    started = time.perf_counter()
    call(ids)
    return time.perf_counter() - started
