"""What test_processes.py starts with torchrun: a short run in one sitting or several; each process writes what it saw.

python processes_run.py FOLDER TEXT TOKENIZER OPTIONS
"""

from __future__ import annotations

import json
import os
import signal
import sys
from pathlib import Path

import torch
from training_samples import recipe_of

from app.commands.training_progress import Reporter
from legible_core.errors import LegibleError
from legible_core.training.distributed import processes, rank, world
from legible_core.training.loop import Run, Step


def main() -> int:
    folder, text, tokenizer = (Path(word) for word in sys.argv[1:4])
    options = json.loads(sys.argv[4])
    torch.set_num_threads(1)
    try:
        with processes("cpu") as place, Reporter("test", 64, quiet=True) as reporter:
            reporter.listen()
            for stop in options["sittings"]:
                seen: list[Step] = []

                def on_step(step: Step, stop: int = stop, seen: list[Step] = seen) -> bool:
                    seen.append(step)
                    if options.get("die_at") == step.number and rank() == 1:
                        os.kill(os.getpid(), signal.SIGKILL)
                    # The last process alone wishes to stop: all of them must.
                    return reporter.step(step) and not (stop == step.number and rank() == world() - 1)

                run = Run(recipe_of(**options["recipe"]), folder, text, tokenizer=tokenizer, device=place)
                run.train(on_step, save_seconds=options.get("save_seconds", 240.0))
                weights = sum(parameter.double().abs().sum().item() for parameter in run.model.parameters())
                found = {"world": world(), "numbers": [step.number for step in seen], "weights": weights}
                (folder / f"sitting-{stop}-rank-{rank()}.json").write_text(json.dumps(found))
    except LegibleError as error:
        print(f"process {rank()}: {error.message}", file=sys.stderr, flush=True)
        return 2
    return 0


if __name__ == "__main__":
    sys.exit(main())
