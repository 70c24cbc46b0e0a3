# SPDX-License-Identifier: Apache-2.0
"""The rates of a replica, from a run of `trireme bench report --out FILE.json`.

Where the report has the server's metrics, prefill and decode are told apart as the planner does it: a prompt's time is
what it adds to the steps that it shares, so prompts have 1 - (a step without prompts / the mean step) of the engine's
time. Prompt tokens that the engine did not compute were found in its prefix cache. Without metrics the run is one mix
of tokens, which `output_weight` has to divide.
"""

from collections.abc import Mapping
from pathlib import Path
from typing import NamedTuple

import msgspec

from trireme.base.errors import SpecError
from trireme.base.known_types import known

_TAKEN_FOR_SATURATION = "taken for all that a replica can do: too little where its load was limited"


class _Rate(msgspec.Struct):
    per_s: float


class _Mean(msgspec.Struct):
    mean: float


class _Server(msgspec.Struct):
    step_ms: float | None = None
    prefill_step_ms: float | None = None
    decode_step_ms: float | None = None
    prefill_tokens_per_s: float | None = None
    decode_tokens_per_s: float | None = None
    num_gpus: int | None = None


class _Figures(msgspec.Struct):
    name: str
    output_tokens: _Rate
    input_tokens: _Rate | None
    isl: _Mean | None
    osl: _Mean | None
    server: _Server | None


class _Run(msgspec.Struct):
    figures: _Figures
    warnings: list[str]


class _Report(msgspec.Struct):
    runs: list[_Run]
    knee: str | None = None


class BenchedReplica(NamedTuple):
    """The measured rates of the replica in one run."""

    engine: Mapping[str, object]  # of a `CostSpec`
    isl: float
    osl: float
    cached_fraction: float = 0.0  # of the prompts' tokens


def load_bench_report(path: Path, run: str | None, *, num_gpus: int | None) -> BenchedReplica:
    """Return the replica's rates from the named run; without a name from the only run, or of several from the knee.

    Where the knee's steps do not tell prefill from decode, the run with the most output tokens/s is taken instead: one
    mix of tokens stands for all that a replica can do, and at the knee that is about half of it.

    Raises:
        SpecError: the file is not such a report, has no such run, or the run does not say how many tokens went in.
    """
    try:
        report = msgspec.json.decode(path.read_bytes(), type=known(_Report))
    except OSError as exc:
        raise SpecError(f"--report {path}: cannot be read: {exc.strerror}", field="report", file=path) from exc
    except (msgspec.DecodeError, UnicodeDecodeError) as exc:
        raise SpecError(
            f"--report {path}: {exc}; give the JSON of trireme bench report RUN --out FILE.json",
            field="report",
            file=path,
        ) from exc
    chosen = _chosen(report, run, path)
    figures, server = chosen.figures, chosen.figures.server
    if figures.input_tokens is None or figures.isl is None or figures.osl is None:
        raise SpecError(
            f"--report {path}: the run {figures.name} does not say how many tokens went in; give "
            "--input-tokens-per-s and --output-tokens-per-s instead",
            field="report",
            file=path,
        )
    gpus = num_gpus or (server.num_gpus if server else None) or 1
    says = [f"{path.name}, run {figures.name}", *chosen.warnings]
    isl, osl = figures.isl.mean, figures.osl.mean
    each = _separate_rates(figures)
    if each is not None:
        rates = {"prefill_tokens_per_s": each.prefill_tokens_per_s, "decode_tokens_per_s": each.decode_tokens_per_s}
        engine = {"kind": "rates", "gpus": gpus, "source": "; ".join(says), **rates}
        return BenchedReplica(engine, isl, osl, each.cached_fraction)
    mix = {"input_tokens_per_s": figures.input_tokens.per_s, "output_tokens_per_s": figures.output_tokens.per_s}
    engine = {"kind": "measured", "gpus": gpus, "source": "; ".join([*says, _TAKEN_FOR_SATURATION]), **mix}
    return BenchedReplica(engine, isl, osl)


def _chosen(report: _Report, wanted: str | None, path: Path) -> _Run:
    names = [one.figures.name for one in report.runs]
    name = wanted or report.knee or (names[0] if len(names) == 1 else None)
    found = next((one for one in report.runs if one.figures.name == name), None)
    if wanted is None and report.runs:
        candidates = [found] if found is not None else report.runs
        if all(_separate_rates(one.figures) is None for one in candidates):
            return max(report.runs, key=lambda one: one.figures.output_tokens.per_s)
    if found is not None:
        return found
    what = "it has several runs" if name is None else f"it has no run {name!r}"
    raise SpecError(
        f"--report {path}: {what}; name one with --run: {', '.join(names)}", field="run", value=name, file=path
    )


class _SeparateRates(NamedTuple):
    """Rates of prefill and decode, each as if nothing else were done; prompt tokens found in the cache take no time."""

    prefill_tokens_per_s: float
    decode_tokens_per_s: float
    cached_fraction: float


def _separate_rates(figures: _Figures) -> _SeparateRates | None:
    """Return the rates of prefill and decode, or None where the server's metrics do not tell."""
    server, isl, osl = figures.server, figures.isl, figures.osl
    if not (server and isl and osl and isl.mean and osl.mean):
        return None
    step, prefill, decode = server.step_ms, server.prefill_step_ms, server.decode_step_ms
    if not (step and prefill and decode and server.prefill_tokens_per_s and server.decode_tokens_per_s):
        return None
    if not decode < step <= prefill:  # prompts that add nothing: too few of them to tell
        return None
    prompt_share = 1 - decode / step
    # Steps with a prompt among all steps; their share of the engine's time.
    steps_with_prompts = (step - decode) / (prefill - decode)
    time_with_prompts = steps_with_prompts * prefill / step
    # The engine counts what it computed of the prompts, requests have all of it: the rest was in the prefix cache.
    asked_tokens_per_busy_s = isl.mean * server.decode_tokens_per_s / osl.mean
    computed = server.prefill_tokens_per_s * time_with_prompts / asked_tokens_per_busy_s
    # Whole percents: the two are counted apart, over spans that begin and end a little apart.
    cached_fraction = min(0.99, max(0.0, round(1 - computed, 2)))
    # So isl (1 - cached) / prefill + osl / decode is what a request took of the engine's time.
    return _SeparateRates(
        prefill_tokens_per_s=asked_tokens_per_busy_s * (1 - cached_fraction) / prompt_share,
        decode_tokens_per_s=server.decode_tokens_per_s / (1 - prompt_share),
        cached_fraction=cached_fraction,
    )
