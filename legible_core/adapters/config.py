"""What a reading needs to know of an ordinary model, and which families are supported; imports no torch.

A family is supported when its sum closes on random weights, which tests/adapters proves for each one listed here. A
family that is not listed is refused, and so is one whose units are no scalar·column: a mixture of experts.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, dataclass
from typing import Any, Literal, TypeAlias

from legible_core.config import MAX_SIZE, Attention, FeedForward, ModelConfig
from legible_core.errors import Corrupt, LegibleError
from legible_core.units import ACTIVATIONS, ORDINARY, Activation, Ordinary

Norm: TypeAlias = Literal["LayerNorm", "RMSNorm"]
Positions: TypeAlias = Literal["learned", "rotary"]


@dataclass(frozen=True)
class Family:
    """A family of architectures: its name, the class that Hugging Face gives it, and how its parts are built.

    gated: units are act(gate)·up. post_norms: a norm stands after each sublayer, before its write joins the stream.
    parallel: both sublayers read the same stream, unless the config's own switch says otherwise.
    """

    name: str
    architecture: str
    norm: Norm
    positions: Positions
    gated: bool = False
    parallel: bool = False
    post_norms: bool = False


FAMILIES: Mapping[str, Family] = {
    "gpt2": Family("GPT-2", "GPT2LMHeadModel", "LayerNorm", "learned"),
    "gpt_neox": Family("GPT-NeoX (Pythia)", "GPTNeoXForCausalLM", "LayerNorm", "rotary", parallel=True),
    "gptj": Family("GPT-J", "GPTJForCausalLM", "LayerNorm", "rotary", parallel=True),
    "phi": Family("Phi", "PhiForCausalLM", "LayerNorm", "rotary", parallel=True),
    "llama": Family("Llama", "LlamaForCausalLM", "RMSNorm", "rotary", gated=True),
    "mistral": Family("Mistral", "MistralForCausalLM", "RMSNorm", "rotary", gated=True),
    "qwen2": Family("Qwen2", "Qwen2ForCausalLM", "RMSNorm", "rotary", gated=True),
    "qwen3": Family("Qwen3", "Qwen3ForCausalLM", "RMSNorm", "rotary", gated=True),
    "gemma": Family("Gemma", "GemmaForCausalLM", "RMSNorm", "rotary", gated=True),
    "gemma2": Family("Gemma 2", "Gemma2ForCausalLM", "RMSNorm", "rotary", gated=True, post_norms=True),
    "gemma3_text": Family("Gemma 3", "Gemma3ForCausalLM", "RMSNorm", "rotary", gated=True, post_norms=True),
}
# The activation function's name in a config.json, and the kind of unit that it makes: alone, or as a gate.
_KINDS: Mapping[str, tuple[Activation | Ordinary, Ordinary | None]] = {
    "gelu": ("gelu", "geglu"),
    "gelu_new": ("gelu", "geglu"),
    "gelu_fast": ("gelu", "geglu"),
    "gelu_pytorch_tanh": ("gelu", "geglu"),
    "relu": ("relu", None),
    "silu": ("silu", "swiglu"),
    "swish": ("silu", "swiglu"),
}
# The sizes as the families' config.json files call them, and which of them may be null: a class then has its own.
_SIZES = (
    "n_layer", "num_hidden_layers", "n_embd", "hidden_size", "n_head", "num_attention_heads", "num_key_value_heads",
    "n_positions", "max_position_embeddings", "vocab_size", "n_inner", "intermediate_size", "head_dim",
)  # fmt: skip
_OPTIONAL = ("n_inner", "head_dim", "num_key_value_heads")
_EXPERTS = ("num_experts", "num_local_experts", "n_routed_experts", "moe_num_experts", "num_experts_per_tok")


@dataclass(frozen=True)
class OrdinaryConfig(ModelConfig):
    """The facts of an ordinary model: all heads linear, all units plain, and what its family adds.

    family: Hugging Face's `model_type`. head_width: of one head's value, which need not be d_model / n_heads. act: the
    activation's name as the model's own config has it. norm: of every norm in it. logit_softcap: c where the logits
    pass c·tanh(ℓ/c); the sum is then of ℓ.
    """

    family: str = ""
    head_width: int = 1
    key_value_heads: int = 1
    norm: Norm = "LayerNorm"
    positions: Positions = "learned"
    act: str = "gelu"
    parallel: bool = False
    post_norms: bool = False
    logit_softcap: float | None = None

    def __post_init__(self) -> None:
        sizes = ("n_layers", "d_model", "n_heads", "context", "vocab_size", "head_width", "key_value_heads")
        for name, size in [(name, getattr(self, name)) for name in sizes] + [("d_ff", self.feed_forward.d_ff)]:
            _check_size(name, size)
        if self.n_heads % self.key_value_heads:
            raise _bad(f"{self.n_heads} heads cannot share {self.key_value_heads} keys and values evenly")
        if self.family not in FAMILIES:
            raise _bad(f"the family {self.family!r} is not supported")
        if self.feed_forward.activation not in (*ACTIVATIONS, *ORDINARY):
            raise _bad(f"units of the kind {self.feed_forward.activation!r} are not known")

    @property
    def d_head(self) -> int:
        return self.head_width

    @property
    def ordinary(self) -> bool:
        return True

    @property
    def family_name(self) -> str:
        return FAMILIES[self.family].name

    def to_json(self) -> dict[str, Any]:
        """A JSON object that `from_json` reads back to an equal config."""
        fields = asdict(self)
        fields["attention"]["n_special"] = list(self.attention.n_special)
        return {"format": "ordinary", "version": 1, **fields}

    @classmethod
    def from_json(cls, data: Any) -> OrdinaryConfig:
        """Read what `to_json` wrote; raises `Corrupt` for anything else."""
        try:
            fields = {key: value for key, value in data.items() if key not in ("format", "version")}
            attention = Attention("linear", tuple(fields.pop("attention")["n_special"]))
            return cls(attention=attention, feed_forward=FeedForward(**fields.pop("feed_forward")), **fields)
        except (AttributeError, KeyError, TypeError) as error:
            raise Corrupt(f"The registration's config cannot be read ({error}); add the model again.") from None


def refuse_unreadable(raw: Mapping[str, Any]) -> Family:
    """The family of a Hugging Face config.json, as far as the file itself tells; raises `LegibleError` in one sentence.

    Refused here: encoders, encoder-decoders, quantised weights, mixtures of experts, remote code, families not listed,
    and sizes that are none.
    """
    kind = raw.get("model_type")
    classes = [str(name) for name in raw.get("architectures") or ()]
    if raw.get("is_encoder_decoder"):
        raise _refused(f"it is an encoder-decoder model ({kind}), and readings are of decoders alone")
    if raw.get("quantization_config"):
        raise _refused(
            "its weights are quantised, so a term read off them would not be the model's; add the original weights"
        )
    if any(isinstance(raw.get(name), int) and raw[name] > 1 for name in _EXPERTS) or "moe" in str(kind):
        raise _refused(
            "it is a mixture of experts: a router chooses per token which units there are, so a unit is no scalar "
            "times one column, and readings of it are not right yet"
        )
    family = FAMILIES.get(str(kind))
    if family is None:
        if raw.get("auto_map"):
            raise _refused("it needs code out of its repository, and no such code is ever run")
        if classes and not any(name.endswith(("ForCausalLM", "LMHeadModel")) for name in classes):
            raise _refused(f"it is no decoder that predicts the next token, but {classes[0]}")
        if kind is None:
            raise _refused("its config.json names no model_type, so it is not one that transformers saved")
        known = ", ".join(family.name for family in FAMILIES.values())
        raise _refused(
            f"the family {str(kind)[:40]!r} is not supported, because its sum has not been shown to close; "
            f"supported are {known}"
        )
    if classes and family.architecture not in classes:
        raise _refused(f"it is {classes[0]}, and readings need {family.architecture}, which predicts the next token")
    if raw.get("add_cross_attention"):
        raise _refused("it attends to an encoder, and readings are of decoders alone")
    # Before any library makes a list of so many layers.
    for name in _SIZES:
        if name in raw and not (raw[name] is None and name in _OPTIONAL):
            _check_size(name, raw[name])
    return family


def from_hugging_face(config: Any) -> OrdinaryConfig:
    """The facts of a resolved `transformers` config, every default filled in; raises `LegibleError` as above."""
    raw = config.to_dict()
    family = refuse_unreadable(raw)

    def first(*names: str) -> Any:
        for name in names:
            found = getattr(config, name, None)
            if found is not None:
                return found
        return None

    d_model, heads = int(config.hidden_size), int(config.num_attention_heads)
    if d_model % heads and first("head_dim") is None:
        raise _bad(f"{heads} heads cannot share {d_model} dimensions evenly")
    act = str(first("activation_function", "hidden_activation", "hidden_act"))
    alone, gate = _KINDS.get(act, (None, None))
    unit = gate if family.gated else alone
    if unit is None:
        raise _refused(f"its activation {act[:40]!r} is not supported; supported are {', '.join(_KINDS)}")
    cap = first("final_logit_softcapping")
    return OrdinaryConfig(
        n_layers=int(config.num_hidden_layers),
        d_model=d_model,
        n_heads=heads,
        context=int(config.max_position_embeddings),
        vocab_size=int(config.vocab_size),
        attention=Attention("linear", (0,) * int(config.num_hidden_layers)),
        feed_forward=FeedForward(int(first("n_inner", "intermediate_size") or 4 * d_model), activation=unit),
        norm_eps=float(first("layer_norm_epsilon", "layer_norm_eps", "rms_norm_eps") or 1e-5),
        norm_bias=family.norm == "LayerNorm",
        tied=bool(first("tie_word_embeddings")),
        family=str(raw["model_type"]),
        head_width=int(first("head_dim") or d_model // heads),
        key_value_heads=int(first("num_key_value_heads") or heads),
        norm=family.norm,
        positions=family.positions,
        act=act,
        parallel=family.parallel and bool(getattr(config, "use_parallel_residual", True)),
        post_norms=family.post_norms,
        logit_softcap=None if cap is None else float(cap),
    )


def _check_size(name: str, size: Any) -> None:
    if type(size) is not int or not 1 <= size <= MAX_SIZE:
        raise _bad(f"{name} is {repr(size)[:40]}; it must be a whole number from 1 to {MAX_SIZE}")


def _refused(reason: str) -> LegibleError:
    return LegibleError(f"This model is refused: {reason}.", code="unsupported_model", status=422)


def _bad(reason: str) -> LegibleError:
    return LegibleError(f"The model configuration is not usable: {reason}.", code="bad_config", status=422)
