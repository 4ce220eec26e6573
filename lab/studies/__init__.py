"""Measurements of the paper's claims. A study is a module with ``add_arguments`` and ``run`` (``lab.study``)."""
