"""The rules of RPO as pure functions: plain numbers and the nouns of ``types`` in, decisions out.

Standard library only: no torch, ray, vllm or SQL, so that every rule can be read, tested and replayed alone.
"""
