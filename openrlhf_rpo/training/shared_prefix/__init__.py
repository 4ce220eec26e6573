"""One forward pass for the prefix that a group shares: the same log-probs and gradients from fewer tokens.

``layout`` packs rows that start alike into one row, ``attention`` makes a model attend in it, ``forward`` takes the
log-probs out. These need torch and transformers alone, so that they can be measured anywhere. ``actor`` and
``batches`` bring them into OpenRLHF's trainer.
"""
