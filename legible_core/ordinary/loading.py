"""Load an ordinary model: Hugging Face's modules, TransformerLens' bridge over them, nothing changed in either.

    model, certificate = load(folder, config, dtype="float32", device="cpu", prompts=[[464, 3290], ...])

With `prompts` the plain model runs first, before the bridge is put over it, and what it gave is compared with what the
bridge gives: one load, no second copy of the weights. A caller that has a certificate already gives none.
"""

from __future__ import annotations

import contextlib
import logging
import warnings
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import torch
from torch.overrides import TorchFunctionMode

from legible_core.adapters.config import FAMILIES, OrdinaryConfig, from_hugging_face
from legible_core.adapters.model import OrdinaryModel
from legible_core.adapters.offload import Waiting, layers_of, move_rest
from legible_core.adapters.source import free_memory, needs_extra
from legible_core.errors import Corrupt, LegibleError, TooLarge
from legible_core.ordinary import certificate as certificates
from legible_core.reading import Dtype

# What a forward of a long prompt, its trace and one widened matrix need besides the weights.
BESIDE = 1.2


def load(
    folder: Path,
    config: OrdinaryConfig,
    *,
    dtype: Dtype = "float32",
    device: str = "cpu",
    prompts: Sequence[Sequence[int]] = (),
    parameters: int = 0,
    offload: bool = False,
) -> tuple[OrdinaryModel, dict[str, Any] | None]:
    """The model, and with `prompts` its certificate.

    parameters: their number, for the estimate that refuses a model before anything is allocated. offload: the layers'
    weights stay on the CPU, and each is on the device while it runs. Raises `TooLarge` for
    one that does not fit, `Corrupt` for weights that do not fill the model, `NotExact` when a certificate fails.
    """
    check_size(parameters, dtype, device, config if offload else None)
    hf = hugging_face(folder, dtype, "cpu" if offload else device)
    if from_hugging_face(hf.config) != config:
        raise Corrupt(f"{folder.name}/config.json is not the one that was added; add the model again.")
    if prompts:
        check_finite(hf)
    reference = _reference(hf, config, prompts, device, offload) if prompts else None
    model = bridged(hf, config)
    if offload:
        model.offload(torch.device(device))
    if reference is None:
        return model, None
    return model, certificates.certify(model, reference, dtype)


def _reference(
    hf: Any, config: OrdinaryConfig, prompts: Sequence[Sequence[int]], device: str, offload: bool
) -> list[certificates.Row]:
    """What the plain model gives; an offloaded one runs layer by layer as well, being too large otherwise."""
    if not offload:
        return certificates.reference(hf, prompts)
    layers = layers_of(hf, config.n_layers)
    move_rest(hf, layers, torch.device(device))
    waiting = Waiting(layers, torch.device(device))
    try:
        return certificates.reference(hf, prompts)
    finally:
        waiting.end()


def resolve_config(folder: Path) -> OrdinaryConfig:
    """The facts of a folder's config.json with every default of its class filled in."""
    try:
        from transformers import AutoConfig
    except ImportError:
        raise needs_extra() from None
    with quiet():
        try:
            found = AutoConfig.from_pretrained(folder, local_files_only=True, trust_remote_code=False)
        except Exception as error:  # whatever a foreign file makes the library raise
            raise _bad_config(error) from None
    _check_rope(found)
    try:
        return from_hugging_face(found)
    except (ArithmeticError, AttributeError, KeyError, TypeError, ValueError) as error:
        raise _bad_config(error) from None


def _check_rope(config: Any) -> None:
    """Raise for rotary positions of a kind that transformers lacks; some families give one per kind of layer."""
    from transformers.modeling_rope_utils import ROPE_INIT_FUNCTIONS

    given = getattr(config, "rope_parameters", None) or {}
    known = sorted({"default", *ROPE_INIT_FUNCTIONS})
    for part in (given, *(part for part in given.values() if isinstance(part, dict))):
        kind = part.get("rope_type", "default")
        if kind not in known:
            raise Corrupt(
                f"The model's config.json cannot be used: its rope_type is {str(kind)[:40]!r}, and the kinds that "
                f"transformers has are {', '.join(known)}; download it again."
            )


def _bad_config(error: Exception) -> Corrupt:
    # The library's validators put the class of the error before its words.
    reason = " ".join(str(error).split()).rpartition("Error: ")[2][:160].rstrip(". ")
    return Corrupt(f"The model's config.json cannot be used ({reason}); download it again.")


def hugging_face(folder: Path, dtype: Dtype, device: str) -> Any:
    """The plain model in evaluation mode, with attention computed step by step so that its weights can be seen."""
    try:
        from transformers import AutoModelForCausalLM
    except ImportError:
        raise needs_extra() from None
    with quiet():
        try:
            model, told = AutoModelForCausalLM.from_pretrained(
                folder,
                dtype=getattr(torch, dtype),
                device_map={"": device},
                attn_implementation="eager",
                use_safetensors=True,
                local_files_only=True,
                trust_remote_code=False,
                output_loading_info=True,
                ignore_mismatched_sizes=True,  # they are refused below, by name
            )
        except (ValueError, KeyError, TypeError, OSError, RuntimeError) as error:
            if "out of memory" in str(error).lower():
                raise
            reason = " ".join(str(error).split())[:200].rstrip(".")
            raise Corrupt(
                f"config.json and the weights do not make a model together ({reason}); download both again."
            ) from None
    lacking = sorted([*told["missing_keys"], *(str(row[0]) for row in told.get("mismatched_keys", ()))])
    if lacking:
        raise Corrupt(
            f"This model is half downloaded or damaged: its weights give no {lacking[0]}"
            + (f" and {len(lacking) - 1} more tensors" if len(lacking) > 1 else "")
            + " of the shape that config.json asks for."
        )
    return model.eval()


@torch.no_grad()
def check_finite(hf: Any) -> None:
    """Raise `Corrupt` naming the first tensor that holds a number that is not finite, read by a prompt or not."""
    for name, parameter in hf.named_parameters():
        if not all(bool(torch.isfinite(rows).all()) for rows in parameter.split(1 << 14)):
            raise Corrupt(
                f"The model is refused: its tensor {name} holds NaN or infinity; the file is damaged, or training "
                "diverged."
            )


def bridged(hf: Any, config: OrdinaryConfig) -> OrdinaryModel:
    """The same modules under TransformerLens' bridge; nothing is folded, centred or re-based."""
    try:
        with quiet():
            from transformer_lens.model_bridge.sources._bridge_builder import build_bridge_from_module

            architecture = FAMILIES[config.family].architecture
            with _NoJoinedEmbeddings(hf):
                bridge = build_bridge_from_module(hf, architecture, hf_config=hf.config, post_adapter_hook=_split_once)
    except ImportError:
        raise needs_extra() from None
    for parameter in bridge.original_model.parameters():
        parameter.requires_grad_(False)
    return OrdinaryModel(bridge, config)


class _NoJoinedEmbeddings(TorchFunctionMode):
    """While a bridge is built, in this thread: no copy of token and position embeddings in one matrix.

    TransformerLens looks for hooks by asking the bridge for every attribute it has, twice. One of them, W_E_pos, joins
    the two matrices only to be thrown away: a third of GPT-2 small's weights once more. The search passes over an
    attribute that raises a RuntimeError.
    """

    def __init__(self, hf: Any) -> None:
        super().__init__()
        self._place = hf.get_input_embeddings().weight.data_ptr()

    def __torch_function__(
        self, func: Any, types: Any, args: tuple[Any, ...] = (), kwargs: dict[str, Any] | None = None
    ) -> Any:
        if func is torch.cat and any(part.data_ptr() == self._place for part in args[0]):
            raise RuntimeError("The embeddings are not joined while the bridge is built.")
        return func(*args, **(kwargs or {}))


def _split_once(adapter: Any) -> None:
    """Have each layer's joint query, key and value matrix let go as soon as its three parts are made.

    The bridge runs on the parts and never again on the whole, which would be a fifth more memory in GPT-NeoX. The
    linear maps that carry the parts are made without memory, since each is given its matrix at once; one with random
    numbers of its own would leave a hole in the heap for every part.
    """
    attention = adapter.component_mapping["blocks"].submodules["attn"]
    split = getattr(attention, "split_qkv_matrix", None)
    if split is None:
        return

    def parts(original: Any) -> Any:
        with torch.device("meta"):
            made = split(original)
        name = attention.submodules["qkv"].name
        whole = original.get_submodule(name)
        for key, parameter in list(whole.named_parameters()):
            setattr(whole, key, torch.nn.Parameter(torch.empty_like(parameter, device="meta"), requires_grad=False))
        return made

    attention.split_qkv_matrix = parts


def check_size(parameters: int, dtype: Dtype, device: str, offloaded: OrdinaryConfig | None = None) -> None:
    """Raise `TooLarge`, with the numbers, for a model that does not fit into the device's free memory.

    offloaded: the config of a model whose layers wait on the CPU; then the device has to hold one of them and what is
    outside them, and the CPU the whole.
    """
    needed = int(parameters * (2 if dtype == "bfloat16" else 4) * BESIDE)
    if offloaded is not None:
        _check_free(needed, "cpu", f"The model has {parameters:,} parameters and needs about {_gib(needed)} in {dtype}")
        held = int(_at_once(parameters, offloaded) * (2 if dtype == "bfloat16" else 4) * BESIDE)
        _check_free(held, device, f"One layer and what is outside the layers need about {_gib(held)} in {dtype}")
        return
    free = _free(device)
    if free is None or needed <= free:
        return
    smaller = int(parameters * 2 * BESIDE)
    way = "a smaller model or a larger machine is needed"
    if dtype == "float32" and smaller <= free:
        way = f"in bfloat16 it needs {_gib(smaller)}: add it with --dtype bfloat16"
    elif device.startswith("cuda") and (elsewhere := free_memory("cpu")) is not None and needed <= elsewhere:
        way = (
            f"the CPU has {_gib(elsewhere)} free: add it with --offload, which brings its layers to {device} one by "
            "one, or with --device cpu"
        )
    raise TooLarge(
        f"The model has {parameters:,} parameters and needs about {_gib(needed)} in {dtype}, and {device} has "
        f"{_gib(free)} free; {way}.",
        code="too_large_for_memory",
    )


def _at_once(parameters: int, config: OrdinaryConfig) -> int:
    """Parameters on the device at one moment of an offloaded run: embeddings, unembedding, and one layer."""
    outside = config.vocab_size * config.d_model * (1 if config.tied else 2)
    outside += config.context * config.d_model if config.positions == "learned" else 0
    return outside + max(parameters - outside, 0) // config.n_layers


def _check_free(needed: int, device: str, what: str) -> None:
    free = _free(device)
    if free is not None and needed > free:
        raise TooLarge(
            f"{what}, and {device} has {_gib(free)} free; a smaller model or a larger machine is needed.",
            code="too_large_for_memory",
        )


def _free(device: str) -> int | None:
    if device.startswith("cuda"):
        return int(torch.cuda.mem_get_info(torch.device(device))[0])
    return free_memory(device)


@contextlib.contextmanager
def quiet() -> Iterator[None]:
    """Neither warnings nor progress of the libraries: what is wrong with a model is said in our own words."""
    loggers = [logging.getLogger(name) for name in ("transformers", "transformer_lens", "accelerate")]
    levels = [logger.level for logger in loggers]
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        for logger in loggers:
            logger.setLevel(logging.CRITICAL)
        try:
            _no_bars()
            yield
        finally:
            for logger, level in zip(loggers, levels, strict=True):
                logger.setLevel(level)


def _no_bars() -> None:
    with contextlib.suppress(ImportError):
        from transformers.utils import logging as theirs

        theirs.disable_progress_bar()


def _gib(count: int) -> str:
    return f"{count / (1 << 30):.1f} GiB"


__all__ = ["LegibleError", "bridged", "check_size", "hugging_face", "load", "quiet", "resolve_config"]
