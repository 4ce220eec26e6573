"""``cache import``: the initial cache of a run, made by the training command's own checks and options, without Ray."""

import contextlib
import sys
from argparse import Namespace
from types import SimpleNamespace
from typing import TYPE_CHECKING

from openrlhf_rpo import upstream
from openrlhf_rpo.cache.store import PathCache
from openrlhf_rpo.cli.cache.output import Output
from openrlhf_rpo.cli.cluster import choose_device
from openrlhf_rpo.cli.options import given_options, parse
from openrlhf_rpo.config import RPOConfig
from openrlhf_rpo.exchange.sources import import_source
from openrlhf_rpo.run_files import cache_name, cache_url, fingerprints, model_place
from openrlhf_rpo.upstream import UsageError

if TYPE_CHECKING:
    from openrlhf_rpo.rollout.imported_paths import ImportReport

_OWN = {"--rpo.init.mode", "--rpo.init.source"}


def import_(args: Namespace, out: Output) -> int:
    """Import ``args.source`` for the run that ``args.training`` describes, which then starts from it in any mode.

    Exit status 1 when rewards fail; what was imported before stays.
    """
    from openrlhf_rpo.rollout.scoring import RewardFailures

    given = given_options(args.training)
    if own := sorted(given & _OWN):
        raise UsageError(f"{own[0]}: `cache import SOURCE` sets it itself, leave it out")
    upstream.check_version()
    run = parse([*args.training, "--rpo.init.mode", "import", "--rpo.init.source", args.source])
    try:
        with contextlib.redirect_stdout(sys.stderr):  # where the checks and vLLM's import speak; the answer is out's alone
            report = _import(run, RPOConfig.from_namespace(run.rpo))
    except RewardFailures as error:
        print(f"error: {error}\n  The same command goes on where this one stopped", file=sys.stderr)
        return 1
    out.emit({"cache": cache_name(run)} | vars(report) | {"matched": report.matched})
    # Without a rule the training command takes the one that drafts each sample from a path of its own.
    rule = "" if "--rpo.cut.rule" in given else f" and --rpo.cut.rule {run.rpo.cut.rule}"
    out.line(f"{report}\nThe training command with the same options{rule} starts from it.")
    return 0


def _import(run: SimpleNamespace, config: RPOConfig) -> "ImportReport":
    choose_device(run)
    # These import OpenRLHF: only now is the device known.
    from openrlhf_rpo.cli.preflight import check_run
    from openrlhf_rpo.rollout.generation import Generator
    from openrlhf_rpo.rollout.imported_paths import import_paths
    from openrlhf_rpo.rollout.questions import load_questions
    from openrlhf_rpo.rollout.rollout import Rollout
    from openrlhf_rpo.rollout.scoring import make_scorer
    from openrlhf_rpo.upstream import get_tokenizer

    check_run(run, config)
    model = run.actor.model_name_or_path
    tokenizer = get_tokenizer(model, None, "left", None, use_fast=not run.data.disable_fast_tokenizer)
    questions, _ = load_questions(run, tokenizer)
    url, marks = cache_url(run), fingerprints(run, questions, tokenizer)
    with contextlib.ExitStack() as resources:
        cache = resources.enter_context(PathCache.open(url, marks, store_log_probs=config.cache.log_probs))
        if cache.initialised:
            raise UsageError(
                f"the initial cache in {cache_name(run)} is complete already: use another --ckpt.path or --rpo.cache.url"
            )
        cache.describe(questions, model_place(run))
        scorer = make_scorer(config.reward, run.reward.remote_url)
        if scorer is not None:
            resources.callback(scorer.close)
        rollout = Rollout(Generator([], False), scorer, cache, tokenizer, config, run)  # it scores, and never generates
        report = import_paths(cache, rollout, questions, import_source(run), config)
        cache.mark_initialised()
    return report
