"""Every supported family on random weights: the same logits as Hugging Face, and a sum that closes."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch
from family_samples import MODELS, VOCAB, hf_model
from torch.utils._python_dispatch import TorchDispatchMode

from legible_core.adapters.config import FAMILIES, OrdinaryConfig, from_hugging_face, refuse_unreadable
from legible_core.adapters.model import OrdinaryModel
from legible_core.attribution import Attributor, Question
from legible_core.errors import LegibleError, NotExact, TooLarge
from legible_core.interventions import Edit, Vector
from legible_core.ordinary import certificate
from legible_core.ordinary.loading import bridged
from legible_core.reading import CheckpointRef, ReadingRequest
from legible_core.units import Channel, Head, Residual, Unit

IDS = torch.randint(0, VOCAB, (14,), generator=torch.Generator().manual_seed(3))


@pytest.fixture(scope="module", params=sorted(MODELS))
def family(request: pytest.FixtureRequest) -> tuple[OrdinaryModel, Any, torch.Tensor]:
    """(the model as it is read, its certificate's reference, Hugging Face's own logits on IDS)."""
    hf = hf_model(request.param)
    rows = certificate.reference(hf, [IDS.tolist(), IDS[:5].tolist()])
    with torch.no_grad():
        logits = hf(IDS[None], use_cache=False).logits[0].clone()
    return bridged(hf, from_hugging_face(hf.config)), rows, logits


def test_every_family_that_is_listed_is_proved_here() -> None:
    assert {name.split("-")[0] for name in MODELS} == set(FAMILIES)


def test_logits_are_hugging_faces_own(family: tuple[OrdinaryModel, Any, torch.Tensor]) -> None:
    model, _, theirs = family
    trace = model.trace(IDS)
    ours = model.final_logits(model.logits(trace.residual))
    assert float((ours - theirs).abs().max()) <= 1e-5 * max(1.0, float(theirs.abs().max()))
    assert len(trace.layers) == model.config.n_layers
    assert trace.layers[1].hidden.shape == (len(IDS), model.config.feed_forward.d_ff)


def test_the_sum_closes(family: tuple[OrdinaryModel, Any, torch.Tensor]) -> None:
    model, _, _ = family
    trace = model.trace(IDS)
    attributor = Attributor(model)
    for position, question in ((13, Question(5)), (4, Question(7, "mean")), (0, Question(3, "contrast", 9))):
        logits = model.logits_at(trace, position)
        terms = attributor.attribute(trace, position, question, logits)
        assert abs(terms.residual) < 1e-4
        assert terms.mass > 1.0  # there was something to add up
        np.testing.assert_allclose(terms.heads, terms.channels.sum(-1), rtol=1e-12)


def test_a_heads_pattern_and_values_make_its_z(family: tuple[OrdinaryModel, Any, torch.Tensor]) -> None:
    model, _, _ = family
    trace = model.trace(IDS)
    for layer, head in ((0, 0), (1, 3)):
        row = model.attention_row(layer, head, trace, 9)
        made = row @ model.head_values(layer, trace)[:10, head]
        torch.testing.assert_close(made, trace.layers[layer].z[9, head], rtol=1e-5, atol=1e-6)


def test_the_certificate_passes_and_names_the_layer_of_a_wrong_weight(
    family: tuple[OrdinaryModel, Any, torch.Tensor],
) -> None:
    model, rows, _ = family
    made = certificate.certify(model, rows, "float32")
    assert made["top_agrees"] == made["positions"] == 19
    assert made["log_probability_difference"] < 1e-4
    weight = model.layers[0].feed_forward.down
    weight[0, 0] += 5.0
    try:
        with pytest.raises(NotExact, match="first layer that differs is layer 0"):
            certificate.certify(model, rows, "float32")
    finally:
        weight[0, 0] -= 5.0


def test_an_edit_moves_the_logit_by_what_a_last_layers_term_says(
    family: tuple[OrdinaryModel, Any, torch.Tensor],
) -> None:
    """Scaling a term of the last layer to nothing takes it out of the stream; the rest of the stream stays."""
    model, _, _ = family
    if model.config.post_norms:
        return  # the norm after the sublayer takes up part of what is removed
    plain = model.trace(IDS)
    for component in (Unit(1, 7), Channel(1, 2, 3), Head(1, 1)):
        edited = model.trace(IDS, [Edit(component, "scale", 0.0, (6,))])
        gone = plain.residual[6] - edited.residual[6]
        part = model.layers[1]
        match component:
            case Unit(_, unit):
                expected = part.feed_forward.down[:, unit] * plain.layers[1].hidden[6, unit]
            case _ if model.config.parallel:
                expected = part.attention.output @ _only(plain.layers[1].z[6], component)
            case _:
                continue  # a sequential layer's units answer to what its heads write
        torch.testing.assert_close(gone, expected, rtol=1e-3, atol=1e-4)
        torch.testing.assert_close(edited.residual[:6], plain.residual[:6])


def _only(z: torch.Tensor, component: Channel | Head) -> torch.Tensor:
    kept = torch.zeros_like(z)
    where = (component.head, component.channel) if isinstance(component, Channel) else (component.head,)
    kept[where] = z[where]
    return kept.flatten()


def test_going_on_with_a_text_reads_it_as_one(family: tuple[OrdinaryModel, Any, torch.Tensor]) -> None:
    model, _, _ = family
    cache = model.new_cache()
    model.residual(IDS[None, :9], cache=cache)
    torch.testing.assert_close(model.residual(IDS[None, 9:], cache=cache)[0], model.trace(IDS).residual[9:])


def test_a_config_survives_its_json(family: tuple[OrdinaryModel, Any, torch.Tensor]) -> None:
    config = family[0].config
    assert OrdinaryConfig.from_json(config.to_json()) == config
    assert config.ordinary
    assert not config.is_bounded(0, 0)


@pytest.mark.parametrize("name", ["gpt2", "gpt_neox", "phi", "llama-biased", "qwen3", "gemma2", "gptj float16"])
def test_half_precision_closes_with_its_roundings_as_a_term(name: str) -> None:
    """Ten times closer than float32 has to; without the term a residual is a thousand times as large."""
    hf = hf_model(name.split()[0]).to(torch.float16 if name.endswith("float16") else torch.bfloat16)
    model = bridged(hf, from_hugging_face(hf.config))
    attributor = Attributor(model, "bfloat16")
    push = Vector.of([0.3 * (-1) ** i for i in range(32)])
    edits = [Edit(Residual(layer), "add", 2.0, vector=push) for layer in (0, 1, 2)]
    edits += [Edit(Unit(1, 7), "scale", 0.0)]
    for trace in (model.trace(IDS), model.trace(IDS, edits)):
        for position, question in ((13, Question(5)), (4, Question(7, "mean")), (0, Question(3, "contrast", 9))):
            terms = attributor.attribute(trace, position, question, model.logits_at(trace, position))
            assert abs(terms.residual) < 1e-5
            assert 0 < abs(terms.floor["rounding"]) < 0.01 * terms.mass


def test_what_rounding_does_not_explain_is_refused() -> None:
    hf = hf_model("llama").to(torch.bfloat16)
    rows = certificate.reference(hf, [IDS.tolist()])
    model = bridged(hf, from_hugging_face(hf.config))
    made = certificate.certify(model, rows, "bfloat16")
    assert 0 < made["sum_residual_over_tolerance"] < 0.01
    assert 0 < made["rounding_over_tolerance"] < 10
    trace = model.trace(IDS)
    model.layers[1].attention.output[3, :] += 0.5
    with pytest.raises(NotExact, match=r"What layer 1 writes differs by .* rounding in bfloat16 explains at most"):
        Attributor(model, "bfloat16").attribute(trace, 13, Question(5), model.logits_at(trace, 13))


@pytest.mark.parametrize("name", ["gpt2", "gpt_neox"])
def test_a_joint_matrix_is_not_kept_beside_its_parts(name: str) -> None:
    hf = hf_model(name)
    own = sum(parameter.numel() * 4 for parameter in hf.parameters())
    assert bridged(hf, from_hugging_face(hf.config)).n_bytes == own


def test_a_bridge_makes_no_matrix_of_its_own() -> None:
    # GPT-2's three parts are views of the joint matrix, so whatever is made here would be memory beside the weights.
    hf = hf_model("gpt2")
    made: list[tuple[str, tuple[int, ...]]] = []
    held = {parameter.untyped_storage().data_ptr() for parameter in hf.parameters()}

    class Watch(TorchDispatchMode):
        def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
            out = func(*args, **(kwargs or {}))
            real = isinstance(out, torch.Tensor) and out.ndim > 1 and not out.is_meta
            if real and out.untyped_storage().data_ptr() not in held:
                made.append((str(func), tuple(out.shape)))
            return out

    with Watch():
        model = bridged(hf, from_hugging_face(hf.config))
    assert made == []
    assert not any(parameter.is_meta for parameter in model.bridge.blocks[0].attn.q.parameters())


def test_float32_has_no_rounding_term(family: tuple[OrdinaryModel, Any, torch.Tensor]) -> None:
    trace = family[0].trace(IDS)
    terms = Attributor(family[0]).attribute(trace, 13, Question(5), family[0].logits_at(trace, 13))
    assert "rounding" not in terms.floor


def test_a_soft_cap_is_said_and_probabilities_are_after_it() -> None:
    from legible_core.pipeline import Engine

    hf = hf_model("gemma2")
    with torch.no_grad():
        theirs = hf(IDS[None], use_cache=False).logits[0, -1].double().softmax(-1)
    model: Any = bridged(hf, from_hugging_face(hf.config))
    engine = Engine(model, CheckpointRef(hash="0" * 64, slug="capped"))
    reading = engine.read(ReadingRequest("0" * 64, tuple(IDS.tolist())))
    first = reading.predictions[0]
    assert first.probability == pytest.approx(float(theirs[first.id]), abs=1e-6)
    assert first.logit > 4.0 * 0.9  # the cap is 4: before it the logit is larger than it can be after
    assert reading.summary.logit_softcap == 4.0
    assert reading.value == first.logit
    assert reading.shares.net is None


@pytest.mark.parametrize(
    ("raw", "said"),
    [
        ({"model_type": "t5", "is_encoder_decoder": True}, "encoder-decoder"),
        ({"model_type": "bert", "architectures": ["BertForMaskedLM"]}, "no decoder"),
        ({"model_type": "gpt2", "architectures": ["GPT2ForSequenceClassification"]}, "predicts the next token"),
        ({"model_type": "llama", "quantization_config": {"bits": 4}}, "quantised"),
        ({"model_type": "mixtral", "num_local_experts": 8}, "mixture of experts"),
        ({"model_type": "qwen2_moe"}, "mixture of experts"),
        ({"model_type": "exotic", "auto_map": {"AutoModelForCausalLM": "x.Y"}}, "code out of its repository"),
        ({"model_type": "mamba", "architectures": ["MambaForCausalLM"]}, "supported are GPT-2"),
    ],
)
def test_what_cannot_be_read_is_refused_with_its_reason(raw: dict[str, Any], said: str) -> None:
    with pytest.raises(LegibleError, match=said):
        refuse_unreadable(raw)


def test_a_prompt_over_the_context_is_refused(family: tuple[OrdinaryModel, Any, torch.Tensor]) -> None:
    with pytest.raises(TooLarge, match="at most 64"):
        family[0].trace(torch.zeros(65, dtype=torch.long))
    with pytest.raises(LegibleError, match="empty"):
        family[0].trace(torch.zeros(0, dtype=torch.long))
