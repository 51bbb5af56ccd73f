"""The models that a reading can be made of: legible ones, and ordinary ones behind the same surface.

What the two share: `config`, `layers[l].attention.output` and `.feed_forward.down` (write columns as (d, ·) matrices),
`final_norm` (gain, bias, scale, centred), `token_embedding`, `unembedding_matrix`, `unembedding_bias`, `trace`,
`logits`, `logits_at`, `residual`, `new_cache`, `attention_row`, `head_values`, `operands`, `decay`. What an ordinary
model lacks are operands and read rows; `Engine.needs_legible` refuses what would ask for them.
"""

from __future__ import annotations

from typing import TypeAlias

from legible_core.adapters.model import OrdinaryModel
from legible_core.model.transformer import Transformer

Readable: TypeAlias = Transformer | OrdinaryModel

__all__ = ["OrdinaryModel", "Readable", "Transformer"]
