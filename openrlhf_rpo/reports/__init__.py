"""Plots and tables from what a run left in its cache database."""
