"""Peak memory of loading a model with GPT-2 small's layers, against the bytes of its weights in the compute dtype.

A process of its own loads the folder as a reading does and reads 16 tokens. What counts, beyond what the imported
libraries took, is the most it holds of its own at any moment, and the pages of a mapped file still in use at the end:
those that were read once, to be widened, are the system's to drop. Ordinary models: GPT-2, stored in float32, and
GPT-NeoX, whose query, key and value are one matrix that is taken apart, stored in float16 as Pythia's are; and a
legible checkpoint, stored in bfloat16. All are read in float32. It needs Linux, whose /proc says what a process holds.
"""

from __future__ import annotations

import json
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import torch

from benchmarks.measure import Row

ROOT = Path(__file__).resolve().parents[1]
TOKENIZER = ROOT / "models" / "novel-legible" / "tokenizer.json"
BOUND = 1.2

CHILD = """
import json, re, sys, threading, time
from pathlib import Path
import torch
import legible_core.pipeline
from legible_core.checkpoint import load as load_legible
from legible_core.registry import open_checkpoint

def now(kind):
    return int(re.search(rf"Rss{kind}:\\s+(\\d+) kB", Path("/proc/self/status").read_text())[1]) << 10

class Peak(threading.Thread):
    # The most that the process holds of its own, beyond what it held at the start.

    def __enter__(self):
        self.before, self.file, self.most, self.over = now("Anon"), now("File"), 0, False
        self.start()
        return self

    def run(self):
        while not self.over:
            self.most = max(self.most, now("Anon") - self.before)
            time.sleep(0.001)

    def __exit__(self, *_):
        self.over = True
        self.join()
        self.mapped = now("File") - self.file

folder = Path(sys.argv[1])
if sys.argv[2] == "legible":
    checkpoint = open_checkpoint(folder)
    load = lambda: load_legible(checkpoint)
else:
    import transformers, transformer_lens.model_bridge
    from transformers import AutoModelForCausalLM, GPT2LMHeadModel, GPTNeoXForCausalLM
    from legible_core.ordinary.adding import look
    from legible_core.ordinary.loading import load as load_ordinary
    checkpoint = look(folder)
    load = lambda: load_ordinary(checkpoint.source, checkpoint.config, parameters=checkpoint.parameters)[0]
with Peak() as peak:
    model = load()
    model.trace(torch.arange(16))
print(json.dumps({"peak": peak.most + peak.mapped, "weights": checkpoint.parameters * 4}))
"""


def gpt2(folder: Path) -> None:
    """Random weights in GPT-2 small's layers, with the tokenizer that ships and its vocabulary of 8,192."""
    from transformers import GPT2Config, GPT2LMHeadModel

    torch.manual_seed(0)
    _save(folder, GPT2LMHeadModel(GPT2Config(vocab_size=8192, bos_token_id=0, eos_token_id=0)))


def gpt_neox(folder: Path) -> None:
    """The same sizes in GPT-NeoX's form, as Pythia-160m has them."""
    from transformers import GPTNeoXConfig, GPTNeoXForCausalLM

    torch.manual_seed(0)
    sizes = {"hidden_size": 768, "intermediate_size": 3072, "num_hidden_layers": 12, "num_attention_heads": 12}
    _save(folder, GPTNeoXForCausalLM(GPTNeoXConfig(vocab_size=8192, bos_token_id=0, eos_token_id=0, **sizes)).half())


def legible(folder: Path) -> None:
    """The same sizes with Boolean values and set operators, stored in bfloat16 as checkpoints are."""
    from legible_core.checkpoint import save
    from legible_core.config import Attention, FeedForward, ModelConfig
    from legible_core.model import Transformer

    torch.manual_seed(0)
    config = ModelConfig(
        n_layers=12, d_model=768, n_heads=12, context=1024, vocab_size=8192, attention=Attention("boolean", (6,) * 12),
        feed_forward=FeedForward(3072, gelu_fraction=0.5),
    )  # fmt: skip
    save(folder, Transformer(config).eval(), TOKENIZER)


def _save(folder: Path, model: Any) -> None:
    model.save_pretrained(folder)
    shutil.copyfile(TOKENIZER, folder / "tokenizer.json")
    settings = {"tokenizer_class": "PreTrainedTokenizerFast"}
    (folder / "tokenizer_config.json").write_text(json.dumps(settings), encoding="utf-8")


CASES: dict[str, Callable[[Path], None]] = {
    "GPT-2, stored in float32": gpt2,
    "GPT-NeoX, stored in float16": gpt_neox,
    "legible, stored in bfloat16": legible,
}


def run() -> Iterator[Row]:
    """The rows of this file."""
    for what, make in CASES.items():
        with tempfile.TemporaryDirectory(prefix="legible-benchmark-") as place:
            folder = Path(place) / "model"
            make(folder)
            done = subprocess.run(
                [sys.executable, "-c", CHILD, str(folder), what.split(",")[0]],
                capture_output=True, text=True, cwd=ROOT, check=True,
            )  # fmt: skip
        found = json.loads(done.stdout.splitlines()[-1])
        peak, weights = found["peak"], found["weights"]
        yield Row(
            "loading", f"peak memory on load, GPT-2 small's sizes: {what}", peak / 2**20, weights / 2**20, "MiB",
            BOUND, ratio=peak / weights, note="against the weights in float32, beyond the libraries",
        )  # fmt: skip
