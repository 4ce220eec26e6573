"""Evaluation from the bare question: sampling, pass@k, confidence intervals, comparisons."""
