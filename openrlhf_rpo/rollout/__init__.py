"""Rolling out: prefixes to the engines as token ids, scores from killable processes, samples as Experiences."""
