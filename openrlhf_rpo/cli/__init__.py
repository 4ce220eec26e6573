"""The sub-commands of ``openrlhf-rpo``: ``add_parser`` declares one, ``run`` returns its exit status."""
