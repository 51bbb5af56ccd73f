"""Ordinary models, which were not built to be read, behind the surface of legible ones.

    config.py ★        what a reading needs to know of one, and which families are supported
    source.py ★        a folder or hub name: its files, checked before anything is loaded
    registration.py ★  the small folder that `legible add` leaves: config, tokenizer, hashes, certificate
    rounding.py        what a model in half precision rounds away, as a term of its sum
    offload.py         layers that wait on the CPU while another is on the card
    model.py           TransformerLens' TransformerBridge → the same `Trace` that legible checkpoints give

★ imports no torch. Nothing is folded, centred or re-based on load, and no code out of a repository is ever run. How a
model is loaded, certified and added is in `legible_core.ordinary`.
"""
