"""Ordinary models, which were not built to be read: from a Hugging Face folder to the same readings.

    config.py ★        what a reading needs to know of one, and which families are supported
    source.py ★        a folder or hub name: its files, checked before anything is loaded
    registration.py ★  the small folder that `legible add` leaves: config, tokenizer, hashes, certificate
    text.py ★          begin-of-text token and chat template: the exact ids of a prompt
    model.py           TransformerLens' TransformerBridge → the same `Trace` that legible checkpoints give
    certificate.py     parity with Hugging Face, and the sum, on fixed prompts
    adding.py          all of it in order: what `legible add` does
    export.py          a legible checkpoint whose units are all GELU, as a GPT-2 folder

★ imports no torch. Nothing is folded, centred or re-based on load, and no code out of a repository is ever run.
"""
