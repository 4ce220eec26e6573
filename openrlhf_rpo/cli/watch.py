"""``openrlhf-rpo watch``: show a run in the browser while it trains."""

from typing import Any

_WATCH = (
    "Show a run while it trains: the report's page, served on 127.0.0.1 and updated with every step. Nothing in the run "
    "waits for it, and the run may start after this command."
)


def add_parser(commands: Any) -> None:
    parser = commands.add_parser(
        "watch", help="show a run in the browser while it trains", description=_WATCH, allow_abbrev=False
    )
    parser.add_argument("runs", metavar="RUN", nargs=1, help="a run's --ckpt.path, a cache file, or a database URL")
    parser.add_argument(
        "--port", metavar="N", type=int, default=8421, help="port on 127.0.0.1, 0 for a free one (default: %(default)s)"
    )
    parser.add_argument(
        "--interval", metavar="S", type=float, default=3.0, help="seconds between updates (default: %(default)s)"
    )
    add_tokenizer(parser)
    parser.set_defaults(run=run)


def add_tokenizer(parser: Any) -> None:
    text = "model folder or hub name with the cache's tokenizer (default: its run's)"
    parser.add_argument("--tokenizer", metavar="MODEL", help=text)


def run(args: Any) -> int:
    from openrlhf_rpo.reports.watch import watch

    return watch(args)
