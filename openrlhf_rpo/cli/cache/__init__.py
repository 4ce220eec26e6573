"""``openrlhf-rpo cache``: look at a path cache, take paths out and in, and keep it in order."""
