"""Stored paths as drafts: speculative decoding in which no token depends on whether, or what, was drafted."""
