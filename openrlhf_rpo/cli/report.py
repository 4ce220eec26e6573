"""``openrlhf-rpo report``: one HTML file about one or several runs."""

from typing import Any

from openrlhf_rpo.cli.watch import add_tokenizer

_RUN = "a --ckpt.path, cache file or database URL; a plain run's --logger.tensorboard_dir; NAME=RUN names it"
_REPORT = (
    "Write one HTML file about one or several runs: what replay saved and cost, every metric by step, and a browser for the "
    "questions and their lineages. The file works offline. Exit status 1 when a run could not be read; the report then has "
    "the others."
)


def add_parser(commands: Any) -> None:
    parser = commands.add_parser(
        "report", help="write one or several runs as one HTML file", description=_REPORT, allow_abbrev=False
    )
    parser.add_argument("runs", metavar="RUN", nargs="+", help=_RUN)
    parser.add_argument("--out", metavar="FILE", default="report.html", help="the file to write (default: %(default)s)")
    parser.add_argument("--title", help="headline of the report (default: the names of the runs)")
    questions = "most questions per run, those visited last (default: %(default)s)"
    parser.add_argument("--questions", metavar="N", type=int, default=10_000, help=questions)
    samples = "megabytes of sampled responses per run (--rpo.log_samples), newest first; 0 for none (default: %(default)s)"
    parser.add_argument("--samples-mb", metavar="N", type=int, default=64, help=samples)
    parser.add_argument("--json", action="store_true", help="the summary as one JSON document instead of text")
    add_tokenizer(parser)
    parser.set_defaults(run=run)


def run(args: Any) -> int:
    """Exit status 0, or 1 when a run was left out of the report."""
    from openrlhf_rpo.reports.write import report

    return report(args)
