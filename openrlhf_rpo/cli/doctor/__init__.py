"""``openrlhf-rpo doctor``: what a training command will meet on this machine and cluster, said before it starts."""
