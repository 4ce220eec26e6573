"""``cache export``: write cached paths to a Parquet or JSONL file."""

from argparse import Namespace
from collections.abc import Sequence
from pathlib import Path

from tqdm import tqdm

from openrlhf_rpo.console import Output, confirm
from openrlhf_rpo.exchange.places import at_step, find_tokenizer, open_to_read
from openrlhf_rpo.exchange.portable import SCHEMA, to_row
from openrlhf_rpo.exchange.text import path_text
from openrlhf_rpo.tables import suffix_of, write_rows


def export(args: Namespace, out: Output) -> int:
    """Write the paths of every slot at a step, with question and text where known. Exit status 1 when the user declines."""
    file = Path(args.file)
    suffix_of(file)  # before asking anything
    with open_to_read(args.cache) as cache:
        step = at_step(cache, args.step)
        tokenizer, note = find_tokenizer(cache, args.tokenizer)
        if note:
            out.note(note.replace("Token ids are shown instead of text", "Token ids are written without their text"))
        if file.exists() and not confirm(f"{file} exists. Replace it?", args.yes):
            return 1
        known, fingerprint = cache.questions(), cache.fingerprints.get("tokenizer")
        paths = tqdm(cache.iter_paths(step), desc="Exporting", unit="path", delay=2)

        def text(token_ids: Sequence[int]) -> str | None:
            return None if tokenizer is None else path_text(token_ids, tokenizer)

        rows = (to_row(path, known.get(path.question_id), text(path.token_ids), fingerprint) for path in paths)
        written = write_rows(file, rows, SCHEMA)
    out.emit({"file": str(file), "step": step, "paths": written, "with_text": tokenizer is not None})
    out.line(f"{file} has {written:,} paths as of step {step}")
    return 0
