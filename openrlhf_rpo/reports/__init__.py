"""Reports of runs, from their cache databases or event files."""
