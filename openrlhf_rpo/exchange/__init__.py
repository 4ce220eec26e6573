"""Cached paths, samples and worked solutions as files that other tools read, and what can be read back."""
