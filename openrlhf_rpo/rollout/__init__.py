"""Rollouts: generation from prefixes, rewards, and the conversion of samples to OpenRLHF's Experiences."""
