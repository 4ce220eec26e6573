"""Exporting cached paths to files, and importing paths from files and other caches."""
