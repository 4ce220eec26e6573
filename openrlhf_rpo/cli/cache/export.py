"""``cache export``: a cache's paths as a Parquet or JSONL file."""

from argparse import Namespace
from pathlib import Path

from tqdm import tqdm

from openrlhf_rpo.cli.cache.output import Output, confirm
from openrlhf_rpo.cli.cache.places import at_step, find_tokenizer, open_to_read
from openrlhf_rpo.exchange.files import write_rows
from openrlhf_rpo.exchange.portable import SCHEMA, to_row
from openrlhf_rpo.exchange.text import path_text


def export(args: Namespace, out: Output) -> int:
    """Every cached path at a step, with its question and its text where they are known."""
    file = Path(args.file)
    with open_to_read(args.cache) as cache:
        step = at_step(cache, args.step)
        tokenizer, note = find_tokenizer(cache, args.tokenizer)
        if note:
            out.note(note.replace("Token ids are shown instead of text", "Token ids are written without their text"))
        if file.exists() and not confirm(f"{file} exists. Replace it?", args.yes):
            return 1
        known, fingerprint = cache.questions(), cache.fingerprints.get("tokenizer")
        paths = tqdm(cache.iter_paths(step), total=cache.count(), desc="Exporting", unit="path", delay=2)
        rows = (
            to_row(
                path,
                known.get(path.question_id),
                None if tokenizer is None else path_text(path.token_ids, tokenizer),
                fingerprint,
            )
            for path in paths
        )
        written = write_rows(file, rows, SCHEMA)
    out.emit({"file": str(file), "step": step, "paths": written, "with_text": tokenizer is not None})
    out.line(f"{written:,} paths as they were at step {step} are in {file}")
    return 0
