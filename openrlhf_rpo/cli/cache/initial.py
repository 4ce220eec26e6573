"""``cache import``: make a run's initial cache, with the training command's checks and options but without Ray."""

import contextlib
import sys
from argparse import Namespace
from types import SimpleNamespace
from typing import TYPE_CHECKING

from openrlhf_rpo import upstream
from openrlhf_rpo.cache.store import PathCache
from openrlhf_rpo.config import RPOConfig
from openrlhf_rpo.console import Output
from openrlhf_rpo.errors import Failed, UsageError
from openrlhf_rpo.exchange.sources import Source, import_source
from openrlhf_rpo.launch.cluster import choose_device
from openrlhf_rpo.launch.options import given_options, parse
from openrlhf_rpo.run.files import cache_name, cache_url, fingerprints, model_place

if TYPE_CHECKING:
    from openrlhf_rpo.rollout.imported_paths import ImportReport

_OWN = {"--rpo.init.mode", "--rpo.init.source"}


def import_(args: Namespace, out: Output) -> int:
    """Import ``args.source`` for the run that ``args.training`` describes; the run then starts from it in any mode.

    Raises UsageError, or Failed when rewards fail; paths already imported stay.
    """
    from openrlhf_rpo.rollout.scoring import RewardFailures

    given = given_options(args.training)
    if own := sorted(given & _OWN):
        raise UsageError(f"{own[0]}: `cache import SOURCE` sets it itself, leave it out")
    upstream.check_version()
    try:
        with contextlib.redirect_stdout(sys.stderr):  # OpenRLHF's checks and vLLM's import print
            run = parse([*args.training, "--rpo.init.mode", "import", "--rpo.init.source", args.source])
            source = import_source(run)  # if missing, said without naming an option the user did not give
            report = _import(run, RPOConfig.from_namespace(run.rpo), source)
    except RewardFailures as error:
        raise Failed(f"{error}\n  Run the same command again to continue where it stopped") from error
    out.emit({"cache": cache_name(run)} | vars(report) | {"matched": report.matched})
    out.line(f"{report}\nThe training command with the same options starts from it.")
    return 0


def _import(run: SimpleNamespace, config: RPOConfig, source: Source) -> "ImportReport":
    choose_device(run)
    # These import OpenRLHF: only after choose_device.
    from openrlhf_rpo.launch.preflight import check_run
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
        cache = resources.enter_context(PathCache.open(url, marks))
        if cache.initialised:
            raise UsageError(
                f"the initial cache in {cache_name(run)} is complete already: use another --ckpt.path or --rpo.cache.url"
            )
        cache.describe(questions, model_place(run))
        scorer = make_scorer(config.reward, run.reward.remote_url)
        if scorer is not None:
            resources.callback(scorer.close)
        rollout = Rollout(Generator([], False), scorer, cache, tokenizer, config, run)  # only to score
        report = import_paths(cache, rollout, questions, source, config)
        cache.mark_initialised()
    return report
