"""What the pictures of the training studies show, drawn from runs that are made by hand."""

import subprocess
import sys
from pathlib import Path

import matplotlib
import pytest
from unit.lab.studies.made import made_run, made_step

from lab import training, training_plot
from lab.studies import large_to_small, pass_at_n, stability, sweep, tokens, training_time
from lab.study import STUDIES

matplotlib.use("Agg")
import matplotlib.pyplot as plt  # noqa: E402

FULL = training.PLAIN.name
RUN = made_run(made_step(1, 100.0), made_step(2, 40.0, grad_norm=2.0, seconds={"rollout": 60.0, "step_total": 60.0}))


@pytest.fixture
def axes():
    figure, axes = plt.subplots(1, 3)
    yield axes
    plt.close(figure)


def points(axis) -> list[list[tuple[float, float]]]:
    return [list(zip(line.get_xdata(), line.get_ydata(), strict=True)) for line in axis.lines]


def test_the_colours_are_defined_once_for_all_pictures():
    files = Path(training_plot.__file__).parent.rglob("*.py")
    assert [file.name for file in files if training_plot.BLUE in file.read_text()] == ["training_plot.py"]


def test_every_study_is_there_without_matplotlib():
    names = [f"lab.studies.{module}" for module, _ in STUDIES.values()]
    program = f"import sys, importlib\nsys.modules['matplotlib'] = None\nfor n in {names!r}: importlib.import_module(n)"
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True)
    assert done.returncode == 0, done.stderr


def test_a_bar_a_length_and_one_for_the_full_path(axes):
    tokens.draw(axes, tokens.table({"fixed:9": [RUN], FULL: [RUN]}))
    assert [bar.get_width() for bar in axes[0].patches] == [pytest.approx(RUN.generated)] * 2
    assert [label.get_text() for label in axes[0].get_yticklabels()] == ["fixed:9", FULL]


def test_phases_stand_one_behind_the_other_in_minutes(axes):
    training_time.draw(axes[0], training_time.table({"RPO": [RUN]}, 1, None))
    assert [(bar.get_x(), pytest.approx(bar.get_width())) for bar in axes[0].patches] == [(0, 62 / 60), (62 / 60, 1 / 60)]


def test_lengths_norms_and_accuracies_go_by_step(axes):
    stability.draw(axes, {"RPO": [RUN], FULL: [made_run(made_step(1, 7.0), accuracy=())]})
    assert points(axes[0]) == [[(1, 100.0), (2, 40.0)], [(1, 7.0)]]
    assert points(axes[1])[0] == [(1, 1.0), (2, 2.0)]
    assert points(axes[2]) == [[(0, 0.5), (1, 0.6)], []]


def test_a_heat_map_names_its_cells_and_leaves_gaps():
    figure, axis = plt.subplots()
    found = {"L 1, alpha 0": {"accuracy": {"mean": 0.25}}, "L 2, alpha 0": {"accuracy": {"mean": 0.5}}}
    sweep.draw(figure, [axis], sweep.heat_maps({"L": ["1", "2"], "alpha": ["0", "1"]}, found))
    assert [text.get_text() for text in axis.texts] == ["0.250", "", "0.500", ""]
    assert (axis.get_ylabel(), axis.get_xlabel()) == ("L", "alpha")
    plt.close(figure)


def test_every_seed_is_a_line(axes):
    large_to_small.draw(axes[0], {large_to_small.IMPORTED: [RUN, RUN], large_to_small.OWN: [RUN]})
    assert len(points(axes[0])) == 3
    assert axes[0].get_legend_handles_labels()[1] == [large_to_small.IMPORTED, large_to_small.OWN]


def test_pass_at_n_has_a_panel_a_limit(axes):
    by_variant = {"RPO, 1 epoch": {"10": {"1": 0.2, "2": 0.3}, "20": {"1": 0.4, "2": 0.5}}}
    pass_at_n.draw(axes[:2], by_variant, [10, 20])
    assert [points(axis) for axis in axes[:2]] == [[[(1, 0.2), (2, 0.3)]], [[(1, 0.4), (2, 0.5)]]]
