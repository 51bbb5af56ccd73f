"""What a worker can do, one function per kind of job; torch is loaded by the first that needs it.

| kind | payload | result |
| --- | --- | --- |
| read | request (`ReadingRequest.to_json`), slug, text | the explicit digest, position, target, ...; it is stored |
| head | request, slug, layer, head | `Engine.head_detail` |
| component | request, slug, component (its id) | `Engine.component_detail` |
| why, values, patterns, similar | see `app.looking` | what each looks at closer |
| bounds | request, slug, unit (its id), optionally radius | `bounds.unit_bounds` |
| tune | request (with its edits), slug, text, steps | `tuning.Tuned.to_json` |
| generate | digest of a stored text, checkpoint, dtype, tokens, temperature, seed | see `app.generating` |
| check, necessity, sufficiency, path, sources | see `app.checking` | what a re-run of a prediction says |
| watch | stream (its id) | see `app.watching` |
| index | slug, checkpoint (its hash) | its names are searchable |
| scan | slug, corpus (a path on the worker's machine), optionally tokens, out | the figures; names are written |
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from sqlalchemy import Connection

from app import bounding, checking, generating, indexing, looking, scanning, tuning, watching
from app.catalogue import Catalogue
from app.names_index import NamesIndex
from app.settings import Settings
from app.worker import Context, Handler, Outcome
from legible_core.adapters.registration import OrdinaryCheckpoint
from legible_core.errors import LegibleError, Unavailable
from legible_core.reading import ReadingRequest

if TYPE_CHECKING:
    from legible_core.pipeline import Engine
    from legible_core.registry import Checkpoint

# What an ordinary model can be asked: it has no operands, and so nothing that is measured or changed in them. Its heads
# and units can be removed and scaled like any others.
ORDINARY = frozenset(
    {"read", "head", "component", "patterns", "values", "generate", "pair", "account", "similar", "scan"}
    | {"check", "necessity", "sufficiency", "path", "tune"}
)


def handlers(settings: Settings) -> Mapping[str, Handler]:
    """The handlers of one worker, sharing its engines."""
    engines = Engines(settings)
    return {
        "read": engines.read,
        "head": engines.head,
        "component": engines.component,
        "scan": engines.scan,
        indexing.KIND: indexing.handle,
        **looking.kinds(engines),
        **bounding.kinds(engines),
        **tuning.kinds(engines),
        **checking.kinds(engines),
        **generating.kinds(engines),
        **watching.kinds(engines),
    }


class Engines:
    """The checkpoints that this worker holds in memory, the most recently used ones.

    budget: the bytes of weights that stay, of what no paused job is using and of the latest.
    """

    def __init__(self, settings: Settings) -> None:
        self.settings = settings
        self.budget = settings.models_mebibytes << 20
        self._catalogue: Catalogue | None = None
        self._open: OrderedDict[tuple[str, str, int], Engine] = OrderedDict()
        self._users: dict[tuple[str, str, int], set[int]] = {}

    def read(self, context: Context) -> Outcome:
        """One reading, stored in the transaction that ends the job."""
        payload, request = context.payload, _request(context)
        engine = self.engine(context, request.checkpoint, request.dtype)
        context.stage("run")
        reading = engine.read(request)
        context.stage("store")

        def write(connection: Connection) -> None:
            context.store.put_reading(
                request, reading, slug=payload["slug"], text=payload["text"], connection=connection
            )

        result = {
            "digest": reading.digest,
            "position": reading.position,
            "target": reading.target.id,
            "contrast": None if reading.contrast is None else reading.contrast.id,
            "relative_to": reading.relative_to,
        }
        return Outcome(result, write)

    def head(self, context: Context) -> Outcome:
        """One head of a reading close up."""
        request = _request(context)
        engine = self.engine(context, request.checkpoint, request.dtype)
        context.stage("run")
        return Outcome(engine.head_detail(request, context.payload["layer"], context.payload["head"]))

    def component(self, context: Context) -> Outcome:
        """One unit, channel or head of a reading close up."""
        request = _request(context)
        engine = self.engine(context, request.checkpoint, request.dtype)
        context.stage("run")
        return Outcome(engine.component_detail(request, context.payload["component"]))

    def scan(self, context: Context) -> Outcome:
        """A scan, on the weights that readings use; its names can be searched as soon as they are indexed."""

        def model(checkpoint_hash: str) -> Any:
            checkpoint = Catalogue(context.store).get(checkpoint_hash)
            return self.engine(context, checkpoint_hash, checkpoint.compute_dtype("float32")).model

        outcome = scanning.handle(context, model)
        indexing.look(context.worker.queue, NamesIndex(context.store.database), Catalogue(context.store).checkpoints())
        return outcome

    def engine(self, context: Context, checkpoint_hash: str, dtype: str) -> Engine:
        """The engine of a checkpoint, loaded when it is not at hand or when its names were written anew.

        Raises NotFound when no checkpoint with this hash is here any more, or the reason why it is refused.
        """
        if self._catalogue is None:
            self._catalogue = Catalogue(context.store)
        checkpoint = self._catalogue.get(checkpoint_hash)
        if checkpoint.ordinary and context.job.kind not in ORDINARY:
            raise LegibleError(
                f"{checkpoint.slug} is an ordinary model, and this is asked of operands, which only checkpoints that "
                "are legible by construction have.",
                code="ordinary",
                status=422,
            )
        names = checkpoint.path / "names.json"
        key = (checkpoint_hash, dtype, names.stat().st_mtime_ns if names.is_file() else 0)
        if key in self._open and isinstance(checkpoint, OrdinaryCheckpoint):
            # Its weights are mapped from its files: what is written over them in place changes them in memory too.
            try:
                checkpoint.check_files()
            except LegibleError:
                del self._open[key]
                raise
        if key not in self._open:
            context.stage("load")
            for old in [other for other in self._open if other[:2] == key[:2]]:  # under names that were written anew
                del self._open[old]
            self._make_room(checkpoint.parameters * (2 if dtype == "bfloat16" else 4), context.worker.running)
            self._open[key] = self._load(checkpoint, dtype)
            context.computes_on(device_name(self._device(checkpoint)))
        self._open.move_to_end(key)
        self._users.setdefault(key, set()).add(context.job.id)
        return self._open[key]

    def _make_room(self, wanted: int, running: frozenset[int]) -> None:
        """Drop the engines that were idle longest until `wanted` more bytes of weights fit the budget.

        What a running or paused job uses stays: dropping it frees nothing, and would have it loaded a second time.
        """
        self._users = {key: users & running for key, users in self._users.items()}
        for key in [key for key in self._open if not self._users.get(key)]:
            if sum(engine.n_bytes for engine in self._open.values()) + wanted <= self.budget:
                return
            del self._open[key]

    def _device(self, checkpoint: Checkpoint) -> str:
        """The worker's own device, unless an ordinary model was added for another."""
        own = getattr(checkpoint, "device", "auto")
        return pick_device(self.settings.device if own == "auto" else own)

    def _load(self, checkpoint: Checkpoint, dtype: str) -> Engine:
        from legible_core.pipeline import Engine

        _prepare_torch(self.settings)
        device = self._device(checkpoint)
        _check_device(device)
        return Engine.open(
            checkpoint,
            dtype="bfloat16" if dtype == "bfloat16" else "float32",
            device=device,
            cache_bytes=self.settings.cache_mebibytes << 20,
        )


def _request(context: Context) -> ReadingRequest:
    return ReadingRequest.from_json(context.payload["request"])


def pick_device(device: str) -> str:
    """`auto` is the first GPU where there is one."""
    if device != "auto":
        return device
    import torch

    return "cuda" if torch.cuda.is_available() else "cpu"


def device_name(device: str) -> str:
    """The device as people know it: `cpu`, or `cuda (NVIDIA H200)`."""
    if not device.startswith("cuda"):
        return device
    import torch

    return f"{device} ({torch.cuda.get_device_name(torch.device(device))})"


def _check_device(device: str) -> None:
    """Raise Unavailable for a device that this machine does not have."""
    import torch

    try:
        torch.zeros(1, device=device)
    except (RuntimeError, AssertionError) as error:  # torch without CUDA asserts
        if "out of memory" in str(error).lower():
            raise
        raise Unavailable(
            f"The worker's device {device!r} cannot be used: {str(error).splitlines()[0].rstrip('.')}.",
            code="bad_device",
            hint="Start the worker with --device auto or --device cpu.",
        ) from None


def _prepare_torch(settings: Settings) -> None:
    if settings.threads:
        import torch

        torch.set_num_threads(settings.threads)
