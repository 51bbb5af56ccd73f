"""Peak memory of loading an ordinary model with GPT-2 small's layers, against the bytes of its weights.

A process of its own loads the folder as a reading does and reads one prompt; what counts is the growth of the largest
resident set (pages of the mapped file included) over what the imported libraries took before.
"""

from __future__ import annotations

import json
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path

import torch

from benchmarks.measure import Row

ROOT = Path(__file__).resolve().parents[1]
BOUND = 1.2

CHILD = """
import json, resource, sys
from pathlib import Path
import transformers, transformer_lens.model_bridge
from transformers import AutoModelForCausalLM, GPT2LMHeadModel
from legible_core.ordinary.adding import look
from legible_core.ordinary.loading import load
import torch

def peak():
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * (1 if sys.platform == "darwin" else 1024)

checkpoint = look(Path(sys.argv[1]))
before = peak()
model, _ = load(checkpoint.source, checkpoint.config, parameters=checkpoint.parameters)
loaded = peak()
model.trace(torch.arange(16))
print(json.dumps({"before": before, "loaded": loaded, "weights": model.n_bytes}))
"""


def make_folder(folder: Path) -> None:
    """Random weights in GPT-2 small's layers, with the tokenizer that ships and its vocabulary of 8,192."""
    from transformers import GPT2Config, GPT2LMHeadModel

    tokenizer = ROOT / "models" / "novel-legible" / "tokenizer.json"
    torch.manual_seed(0)
    GPT2LMHeadModel(GPT2Config(vocab_size=8192, bos_token_id=0, eos_token_id=0)).save_pretrained(folder)
    shutil.copyfile(tokenizer, folder / "tokenizer.json")
    settings = {"tokenizer_class": "PreTrainedTokenizerFast"}
    (folder / "tokenizer_config.json").write_text(json.dumps(settings), encoding="utf-8")


def run() -> Iterator[Row]:
    """The row of this file."""
    with tempfile.TemporaryDirectory(prefix="legible-benchmark-") as place:
        folder = Path(place) / "model"
        make_folder(folder)
        done = subprocess.run(
            [sys.executable, "-c", CHILD, str(folder)], capture_output=True, text=True, cwd=ROOT, check=True
        )
    found = json.loads(done.stdout.splitlines()[-1])
    grown, weights = found["loaded"] - found["before"], found["weights"]
    yield Row(
        "loading", "peak memory on load, GPT-2 small's layers in float32", grown / 2**20, weights / 2**20, "MiB", BOUND,
        ratio=grown / weights, note="resident set, mapped file included, beyond the libraries",
    )  # fmt: skip
