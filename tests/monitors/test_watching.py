"""Watched values against traces of the whole text, flags against a plain loop, gates against edits at their hits."""

from __future__ import annotations

import dataclasses

import numpy as np
import pytest
import torch
from tiny_models import designs, random_ids, tiny_config, tiny_model

from legible_core import watching
from legible_core.config import ModelConfig
from legible_core.errors import NotExact
from legible_core.generate import continuation
from legible_core.interventions import Edit
from legible_core.model import Transformer
from legible_core.monitor import Condition, Gate, Monitor
from legible_core.reads import windows
from legible_core.sampling import Sampling
from legible_core.units import Channel, Component, Head, Unit, parse
from legible_core.values import part_values
from legible_core.watching import Watch, watched


def everything(config: ModelConfig) -> tuple[Component, ...]:
    """A few components of every sort that a design has, in an order that is nobody's."""
    found: list[Component] = []
    for layer in (2, 0, 1):
        operands = list(config.operands(layer))
        found += operands[:: max(1, len(operands) // 5)]
        found += [Unit(layer, unit) for unit in range(0, config.feed_forward.d_ff, 7)]
        found += [Head(layer, 3), Channel(layer, 3, 1), Channel(layer, 0, 5), Head(layer, 0)]
    return tuple(dict.fromkeys(found))


@pytest.mark.parametrize("config", designs(), ids=str)
def test_watched_values_are_those_of_the_windows_of_the_whole_text(
    config: ModelConfig, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(watching, "CHUNK", 5)
    model = tiny_model(config)
    components = everything(config)
    conditions = (Condition(components[0], above=-1e9 if isinstance(components[0], Head) else 0.5),)
    monitor = Monitor("all", (*conditions, *(Condition(component) for component in components[1:])))
    ids = random_ids(75).tolist()
    plan = windows(len(ids), config.context)
    expected = torch.cat(list(part_values(model, ids, components, plan)), dim=1).T.numpy()
    watch = Watch(model, [monitor])
    seen = [*watch.read(ids[:9]), *watch.read(ids[9:40])]
    other = Watch(model, [monitor])
    other.restore(watch.state())
    seen += other.read(ids[40:])
    assert watch.components == components
    np.testing.assert_allclose(np.concatenate([part.values for part in seen]), expected, atol=2e-5, rtol=1e-4)
    assert [part.start for part in seen] == np.cumsum([0, *(len(part.ids) for part in seen)])[:-1].tolist()
    assert [index for part in seen for index in part.ids] == ids
    hooks = [module._forward_hooks for layer in model.layers for module in layer.modules()]
    assert not any(hooks), "no hook is left behind"


def test_flags_are_those_of_a_plain_loop_across_windows_and_calls() -> None:
    model = tiny_model()
    ids = random_ids(90, seed=3).tolist()
    names = ("L0.p2.A", "L1.u1", "L2.h0", "L1.u20", "L2.u40")
    probe = Watch(model, [Monitor("p", (Condition(parse(names[0]), above=0.0), *(Condition(parse(n)) for n in names)))])
    values = np.concatenate([part.values for part in probe.read(ids)]).astype(float)
    low, high = np.quantile(values, [0.25, 0.6], axis=0)
    monitors = [
        Monitor("run", (Condition(parse(names[0]), above=low[0], run=3),)),
        Monitor("both", (Condition(parse(names[1]), below=high[1], run=2), Condition(parse(names[2]), above=low[2]))),
        Monitor("band", (Condition(parse(names[4]), above=low[4], below=high[4]), Condition(parse(names[3])))),
    ]  # fmt: skip
    watch = Watch(model, monitors)
    seen = [part for size in (1, 30, 59) for part in watch.read(ids[watch.count : watch.count + size])]
    hits = np.concatenate([part.hits for part in seen])
    column = {name: values[:, index] for index, name in enumerate(names)}

    def lasted(true: np.ndarray, run: int) -> np.ndarray:
        return np.array([i + 1 >= run and bool(true[i + 1 - run : i + 1].all()) for i in range(len(true))])

    expected = [
        lasted(column[names[0]] > low[0], 3),
        lasted(column[names[1]] < high[1], 2) & (column[names[2]] > low[2]),
        (column[names[4]] > low[4]) & (column[names[4]] < high[4]),
    ]
    assert len(hits) == 90
    for index in range(3):
        assert 0 < hits[:, index].sum() < 90
        np.testing.assert_array_equal(hits[:, index], expected[index])


def test_a_window_boundary_loses_no_more_of_a_quantifier_than_it_says() -> None:
    config = tiny_config(rho=0.0, quantifiers=1.0, context=8)
    model = tiny_model(config)
    units = [Unit(0, unit) for unit in range(config.feed_forward.d_ff)]
    watch = Watch(model, [Monitor("q", (Condition(units[0], above=0.1), *(Condition(unit) for unit in units[1:])))])
    lost = watch.lost()
    assert set(lost) == {str(unit) for unit in units}
    # Memberships of the first layer depend on the token and its position alone, so the same memberships can be had.
    kept = config.context - config.context // 2
    for unit in units:
        decay = float(model.decay(0)[unit.unit])
        m = torch.rand(40, generator=torch.Generator().manual_seed(unit.unit)).double().tolist()
        proportion = config.feed_forward.kind(unit.unit) == "proportion"

        def value(given: list[float], decay: float = decay, proportion: bool = proportion) -> float:
            state = count = 0.0
            for now in given:
                state = decay * state + now if proportion else 1 - (1 - now) * (1 - decay * state)
                count = decay * count + 1
            return state / count if proportion else state

        for extreme in (m, [1.0] * 40, [1.0] * 31 + m[31:], [0.0] * 31 + m[31:]):
            changed = abs(value(extreme[:40]) - value(extreme[40 - kept - 1 :]))
            assert changed <= lost[str(unit)] + 1e-9


SAMPLING = Sampling(9, 0.9, 5)


def often_hit(model: Transformer, ids: list[int], component: Component) -> Monitor:
    """A monitor that about half of a free continuation's tokens are hits of, the first ones not."""
    probe = Monitor("m", (Condition(component, above=0.0),))
    values = np.concatenate([step.seen.values for step in watched(Watch(model, [probe]), ids, SAMPLING)])[:, 0]
    written = values[len(ids) :]
    return Monitor("m", (Condition(component, above=float(np.median(written))),))


def test_without_gates_the_text_is_that_of_a_plain_continuation_and_every_token_is_flagged_once(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(watching, "LAG", 3)
    monkeypatch.setattr(watching, "LAG_SECONDS", 1e9)
    model = tiny_model()
    ids = random_ids(7).tolist()
    plain = list(continuation(model, ids, SAMPLING))
    monitor = Monitor("x", (Condition(parse("L1.u1"), above=0.2), Condition(parse("L2.u40"))))
    watch = Watch(model, [monitor])
    steps = list(watched(watch, ids, SAMPLING))
    assert [step.written for step in steps if step.written is not None] == plain
    whole = [*ids, *(written.id for written in plain)]
    again = Watch(model, [monitor])
    expected = [value for part in again.read(whole) for value in part.values]
    np.testing.assert_allclose(np.concatenate([step.seen.values for step in steps]), expected, atol=1e-5)
    assert [index for step in steps for index in step.seen.ids] == whole
    assert len([step for step in steps if step.seen.ids]) == 4, "the prompt, then three at a time, then the last"
    left = Watch(model, [monitor])
    part = [next(going) for going in [watched(left, ids, SAMPLING)] for _ in range(3)]
    seen = [*(step.seen for step in part), left.rest(), left.rest()]
    assert [index for some in seen for index in some.ids] == whole[: len(ids) + 2]
    stopped = list(watched(Watch(model, [monitor]), ids, SAMPLING, stop={plain[3].id}))
    first = [written.id for written in plain].index(plain[3].id)
    assert [step.written for step in stopped if step.written is not None] == plain[: first + 1]


def test_a_gate_that_stops_ends_the_text_at_its_hit() -> None:
    model = tiny_model()
    ids = random_ids(7).tolist()
    monitor = often_hit(model, ids, parse("L1.u1"))
    free = list(watched(Watch(model, [monitor]), ids, SAMPLING))
    flags = np.concatenate([step.seen.hits[:, 0] for step in free])
    first = next(place for place in range(len(ids) - 1, len(flags)) if flags[place])
    gated = list(watched(Watch(model, [dataclasses.replace(monitor, gate=Gate(stop=True))]), ids, SAMPLING))
    assert gated[-1].stopped == 0
    assert gated[-1].written is None
    whole = [index for step in gated for index in step.seen.ids]
    assert whole == [index for step in free for index in step.seen.ids][: first + 1]


@pytest.mark.parametrize("config", designs()[:2], ids=str)
def test_a_gate_that_edits_writes_what_a_model_with_these_edits_at_the_hits_writes(config: ModelConfig) -> None:
    model = tiny_model(config)
    ids = random_ids(6, seed=1).tolist()
    edits = (Edit(Unit(1, 0), "scale", -30.0), Edit(Unit(2, 47), "set", 6.0))
    monitor = dataclasses.replace(often_hit(model, ids, Head(2, 1)), gate=Gate(edits=edits))
    steps = list(watched(Watch(model, [monitor]), ids, SAMPLING))
    edited = [step.seen.start + len(step.seen.ids) - 1 for step in steps if step.edited]
    written = [step.written for step in steps if step.written is not None]
    assert 0 < len(edited) < len(written)
    whole = torch.tensor([[*ids, *(token.id for token in written)]])
    placed = [dataclasses.replace(edit, positions=tuple(edited)) for edit in edits]
    with torch.no_grad():
        logits = torch.log_softmax(model(whole, placed)[0], dim=-1)
        plain = torch.log_softmax(model(whole)[0], dim=-1)
    chances = [float(logits[len(ids) - 1 + place, token.id].exp()) for place, token in enumerate(written)]
    assert [token.probability for token in written] == pytest.approx(chances, abs=1e-5)
    assert not torch.allclose(logits, plain, atol=1e-3)
    # A worker that was lost after any token goes on with the same.
    for cut in (1, 5):
        first = Watch(model, [monitor])
        kept = []
        for step in watched(first, ids, SAMPLING):
            kept.append(step)
            if step.written is not None and sum(s.written is not None for s in kept) == cut:
                break
        state = {**first.state(), "ids": []}
        second = Watch(model, [monitor])
        second.restore(state)
        done = [step.written.id for step in kept if step.written is not None]
        places = [[step.seen.start + len(step.seen.ids) - 1 for step in kept if step.edited]]
        rest = list(watched(second, ids, SAMPLING, done=done, edited=places))
        assert [*done, *(s.written.id for s in rest if s.written is not None)] == [token.id for token in written]
        flags = [hit for step in (*kept, *rest) for hit in step.seen.hits[:, 0].tolist()]
        assert flags == [hit for step in steps for hit in step.seen.hits[:, 0].tolist()]
        assert not list(watched(second, ids, SAMPLING, done=[t.id for t in written], edited=places))


def test_a_value_that_is_no_number_ends_the_watch_and_is_named() -> None:
    model = tiny_model()
    with torch.no_grad():
        model.layers[1].feed_forward.gelu[3] = float("inf")  # type: ignore[union-attr]
    unit = Unit(1, model.config.feed_forward.n_named + 3)
    with pytest.raises(NotExact, match=rf"{unit} is no finite number at token 0"):
        list(Watch(model, [Monitor("m", (Condition(unit, above=0.0),))]).read([1, 2]))
