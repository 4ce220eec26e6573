"""``openrlhf-rpo data``: make a training file from data sets."""

import argparse
from collections.abc import Sequence
from functools import partial
from pathlib import Path
from typing import Any

from openrlhf_rpo.durable import unwritable
from openrlhf_rpo.errors import UsageError

HELD_OUT = 0.05  # of the questions


def add_parser(commands: Any) -> None:
    parser: argparse.ArgumentParser = commands.add_parser(
        "data",
        help="make a training file from files or a data set on the hub",
        description="Write a JSONL or Parquet file for training, with the columns question and answer. Dropped rows are "
        "counted by reason.",
        epilog="example:\n"
        "  openrlhf-rpo data knoveleng/open-rs --out data/open-rs.jsonl \\\n    --held-out data/held-out.jsonl",
        formatter_class=argparse.RawDescriptionHelpFormatter,
        allow_abbrev=False,
    )
    add = parser.add_argument
    add("sources", nargs="+", metavar="SOURCE", help="JSONL, JSON, Parquet or CSV files, a folder, or a data set on the hub")
    add("--out", required=True, type=Path, metavar="FILE", help="the file to write: NAME.jsonl or NAME.parquet")
    add("--config", metavar="NAME", help="configuration of a data set on the hub (gsm8k: main)")
    add("--split", default="train", help="split of a data set on the hub (default: %(default)s)")
    add("--question", metavar="COLUMN", help="column of the question (default: guessed from the column names)")
    add("--answer", metavar="COLUMN", help="column of the answer, or of a solution that ends with it (default: guessed)")
    ways = ["auto", "boxed", "gsm8k", "none"]
    extract = r"where the answer is: in the last \boxed{}, after the last ####, alone (none), or as in most rows"
    add("--extract", default="auto", choices=ways, help=extract)
    add("--solution", metavar="COLUMN", help="worked solutions to keep, for --rpo.init.source FILE:solution")
    add("--keep-unparsable", action="store_true", help="keep labels that the math reward cannot parse, for another reward")
    add("--tokenizer", metavar="MODEL", help="measure prompts with the tokenizer of this model folder or hub name")
    add("--apply-chat-template", action="store_true", help="measure prompts in that model's chat template")
    add("--max-tokens", type=int, metavar="N", help="drop prompts of more than N tokens")
    add("--held-out", type=Path, metavar="FILE", help="write held-out questions to this file, and leave them out of --out")
    share = "share of the questions to hold out, by a hash of seed and question (default: %(default)s)"
    add("--held-out-share", type=float, default=HELD_OUT, metavar="SHARE", help=share)
    add("--sample", type=int, metavar="N", help="train on N of the questions, drawn by the same kind of hash")
    add("--seed", type=int, default=0, help="seed of both hashes (default: %(default)s)")
    add("--force", action="store_true", help="replace existing files")
    add("--json", action="store_true", help="statistics as one JSON document")
    parser.set_defaults(run=run)


def run(args: argparse.Namespace) -> int:
    from openrlhf_rpo.console import Output

    check(args)
    prepare(args, Output(args.json))
    return 0


def check(args: argparse.Namespace) -> None:
    """Check the arguments before anything is read. Raises UsageError."""
    from openrlhf_rpo.data.sources import is_file
    from openrlhf_rpo.tables import SUFFIXES

    outputs = [("--out", args.out)] + ([("--held-out", args.held_out)] if args.held_out else [])
    for flag, file in outputs:
        if file.suffix not in SUFFIXES:
            raise UsageError(f"{flag} {file}: the name must end in .jsonl or .parquet")
        whole = file.resolve()
        if "," in str(whole):
            raise UsageError(f"{flag} {whole}: a name without commas; training takes one as the end of a data set's name")
        for source in map(Path, args.sources):
            if is_file(str(source)) and source.resolve() == whole or source.is_dir() and source.resolve() in whole.parents:
                raise UsageError(f"{flag} {file} is also read: write to another {'folder' if source.is_dir() else 'file'}")
        if file.exists() and not args.force:
            raise UsageError(f"{flag} {file} exists: replace it with --force, or write to another file")
        if why := unwritable(file):
            raise UsageError(f"{flag} {file}: {why}")
    if args.held_out and args.held_out.resolve() == args.out.resolve():
        raise UsageError(f"--held-out {args.held_out} is the same file as --out")
    if args.held_out is None and args.held_out_share != HELD_OUT:
        raise UsageError("--held-out-share needs --held-out FILE, where these questions go")
    if all(map(is_file, args.sources)) and (args.config is not None or args.split != "train"):
        raise UsageError("--config and --split are for data sets on the hub and folders; a file is read whole")
    if not 0 < args.held_out_share < 1:
        raise UsageError(f"--held-out-share {args.held_out_share}: above 0 and below 1")
    for flag, number in (("--sample", args.sample), ("--max-tokens", args.max_tokens)):
        if number is not None and number < 1:
            raise UsageError(f"{flag} {number}: at least 1")
    if args.tokenizer is None and (args.max_tokens is not None or args.apply_chat_template):
        raise UsageError("--max-tokens and --apply-chat-template need --tokenizer MODEL")


def prepare(args: argparse.Namespace, out: Any) -> None:
    """Read, filter, split and write the rows, and print statistics. Raises UsageError or ExchangeError."""
    from tqdm import tqdm

    from openrlhf_rpo.data import prepare as steps
    from openrlhf_rpo.data import sources
    from openrlhf_rpo.data import summary as report
    from openrlhf_rpo.exchange.text import load_tokenizer

    tokenizer = load_tokenizer(args.tokenizer, offline=False) if args.tokenizer else None
    tables = sources.load(args.sources, args.config, args.split)
    columns, extract = _reading(args, tables, out)
    dropped, total = steps.Dropped(), sum(map(len, tables))
    raw = tqdm(sources.rows(tables, [c for c in columns if c]), total=total, desc="Reading", unit="row", delay=2)
    rows = steps.read_rows(raw, columns, extract, dropped)
    if not args.keep_unparsable:
        rows = steps.drop_unparsable(rows, dropped, partial(tqdm, desc="Parsing labels", unit="label", delay=2))
    rows = steps.merge_duplicates(rows, dropped)
    if args.max_tokens is not None:
        lengths = steps.prompt_lengths(rows, tokenizer, args.apply_chat_template)
        rows = steps.drop_long(rows, lengths, args.max_tokens, dropped)
    training, held_out = steps.hold_out(rows, args.held_out_share, args.seed) if args.held_out else (rows, [])
    if args.sample is not None:
        training = steps.sample(training, args.sample, args.seed)
    for flag, part in [("--out", training)] + ([("--held-out", held_out)] if args.held_out else []):
        if not part and rows:
            to, share = "--held-out" if flag == "--out" else "--out", args.held_out_share
            raise UsageError(
                f"no question is left for {flag}: with --held-out-share {share} all {len(rows):,} fell to {to}. Give "
                "another share, or another --seed"
            )
        if not part:
            raise UsageError(f"nothing is left of {total:,} rows for {flag}: {dropped}")
    for file, part in [(args.held_out, held_out), (args.out, training)]:
        if file:
            report.write(file, part, solutions=args.solution is not None)
    lengths = steps.prompt_lengths(training, tokenizer, args.apply_chat_template) if tokenizer else None
    report.show(args, out, report.statistics(total, training, held_out, dropped, lengths))


def _reading(args: argparse.Namespace, tables: Sequence[Any], out: Any) -> tuple[tuple[str, str, str | None], Any]:
    """The columns of question, answer and solution, and how to extract an answer. Prints what was guessed."""
    from openrlhf_rpo.data.answers import EXTRACTIONS, guess_extraction
    from openrlhf_rpo.data.columns import ANSWER, QUESTION, choose, text
    from openrlhf_rpo.data.sources import rows

    common = [c for c in tables[0].column_names if all(c in table.column_names for table in tables)]
    question = choose("--question", args.question, QUESTION, common)
    answer = choose("--answer", args.answer, ANSWER, [c for c in common if c != question or args.answer])
    solution = None if args.solution is None else choose("--solution", args.solution, (), common)
    way = args.extract
    if way == "auto":
        way = guess_extraction([found for row in rows(tables, [answer]) if (found := text(row[answer]))])
    for flag, given, what in (("--question", args.question, question), ("--answer", args.answer, answer)):
        if given is None:
            out.note(f"{flag} {what} (guessed from the columns {', '.join(common)})")
    if args.extract == "auto":
        out.note(f"--extract {way} (as most rows of {answer} have it)")
    return (question, answer, solution), EXTRACTIONS[way]
