"""Plots beside the results. Without matplotlib the plot is skipped with a message."""

import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any


def save_plot(result: Path, draw: Callable[[Any, Any], None], panels: int = 1, rows: int = 1) -> Path | None:
    """Call ``draw(figure, axes)`` and write a PNG beside the JSON file ``result``; its path, or None without matplotlib.

    ``axes`` is one matplotlib axis, or an array of ``rows`` x ``panels`` of them.
    """
    try:
        import matplotlib
    except ModuleNotFoundError:
        print(f"no plot: matplotlib is not installed. The figures are in {result}", file=sys.stderr)
        return None
    matplotlib.use("Agg")
    import matplotlib.pyplot as plt

    figure, axes = plt.subplots(rows, panels, figsize=(1.5 + 5.5 * panels, 4.5 * rows), constrained_layout=True)
    draw(figure, axes)
    for axis in figure.axes:
        if not axis.images:  # a heat map is its own grid
            axis.grid(alpha=0.25)
        axis.spines[["top", "right"]].set_visible(False)
        if lines := axis.get_legend_handles_labels()[0]:
            axis.legend(fontsize=8, loc="best", framealpha=0.8, ncols=1 + len(lines) // 7)
    file = result.with_suffix(".png")
    figure.savefig(file, dpi=130)
    plt.close(figure)
    return file
