"""Run the prefix that a group shares only once: the same log-probs and gradients from fewer tokens.

``layout`` packs rows with a common head into one row, ``attention`` adapts the model's attention to it, and ``forward``
computes the log-probs. These need only torch and transformers. ``actor``, ``batches`` and ``replay_buffer`` connect them to
OpenRLHF's trainer.
"""
