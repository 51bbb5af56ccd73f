"""The architecture: norm, attention, feed-forward, quantifiers, transformer."""

from legible_core.model.transformer import Cache, Observed, Transformer

__all__ = ["Cache", "Observed", "Transformer"]
