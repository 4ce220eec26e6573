"""The command line: options, checks made before anything starts, Ray, and the sub-commands."""
