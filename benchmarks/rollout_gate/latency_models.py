# SPDX-License-Identifier: Apache-2.0
"""Models of requests' latencies, in `tests/data/latency_models.yaml`.

`python -m benchmarks.rollout_gate.latency_models` fits the recorded ones again, from the records of
`benchmarks.overload`, and writes them at the file's end.
"""

import math
import statistics
from collections.abc import Sequence
from pathlib import Path

import msgspec
import numpy as np

from benchmarks.overload_figures import Record, read_records
from benchmarks.support.report import RESULTS

FILE = Path(__file__).resolve().parents[2] / "tests" / "data" / "latency_models.yaml"
_MARK = "# Written by `python -m benchmarks.rollout_gate.latency_models` from here on.\n"
_FITTED = {"recorded_half_load": ("poisson", 0.5), "recorded_bursty_full_load": ("bursty", 1.0)}
_BIN_S = 10.0
_NUM_QUANTILES = 101


class Stratum(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """Requests with prompts of a like length: their share, and their geometric means."""

    share: float
    ttft_ms: float
    tpot_ms: float


class LatencyModel(msgspec.Struct, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """A latency model; standard deviations are of natural logarithms.

    Attributes:
        strata: by prompt length.
        ttft_sd: within a stratum, what its requests share included.
        tpot_sd: within a stratum, what its requests share included.
        output_tokens: geometric mean of an answer's length before it is cut at `max_tokens`.
        correlation: of a request's TTFT with its TPOT.
        tail_share: of TTFTs and, by themselves, of TPOTs: times a Pareto variable from 1 on.
        tail_index: of it: it exceeds x with probability x^-index.
        stratum_share: of the variance, shared by all requests of a stratum, of both arms; it fades in `stratum_s`.
        drift: amplitude of a slow wave that both arms have in common, of period `drift_s`.
        burst_sd: of a factor that both arms have in common and that fades in `burst_s`.
        own_burst_sd: of such a factor that each arm has for itself.
        ttft_quantiles: of the recorded residuals, evenly spaced in probability, in place of the normal distribution.
        errors: share of requests.
        score_sd: of one arm's score of a held-out prompt about 0.8, before it is cut to 0 to 1.
    """

    strata: tuple[Stratum, ...]
    ttft_sd: float
    tpot_sd: float
    output_tokens: float
    output_sd: float
    max_tokens: int
    correlation: float = 0.0
    tail_share: float = 0.0
    tail_index: float = 2.0
    stratum_share: float = 0.0
    stratum_s: float = 1.0
    drift: float = 0.0
    drift_s: float = 1.0
    burst_sd: float = 0.0
    burst_s: float = 1.0
    own_burst_sd: float = 0.0
    own_burst_s: float = 1.0
    ttft_quantiles: tuple[float, ...] = ()
    tpot_quantiles: tuple[float, ...] = ()
    errors: float = 0.001
    empty: float = 0.0005
    looping: float = 0.0005
    score_sd: float = 0.15

    def spread(self, factor: float) -> "LatencyModel":
        """Return the model with `factor` times the spread of TTFT and TPOT within a stratum."""
        return msgspec.structs.replace(
            self,
            ttft_sd=self.ttft_sd * factor,
            tpot_sd=self.tpot_sd * factor,
            ttft_quantiles=tuple(factor * value for value in self.ttft_quantiles),
            tpot_quantiles=tuple(factor * value for value in self.tpot_quantiles),
        )


def load_models(path: Path = FILE) -> dict[str, LatencyModel]:
    """Return the models by name, the assumed ones first.

    Raises:
        msgspec.ValidationError: the file has an unknown or a wrong field; it is named.
    """
    found = msgspec.yaml.decode(path.read_bytes(), type=dict[str, dict[str, LatencyModel]])
    return {name: model for part in found.values() for name, model in part.items()}


def fit(records: Sequence[Record]) -> LatencyModel:
    """Return a model of answered requests.

    It has strata by prompt length, residuals as they are, and what all requests share within 10 s.
    """
    answered = [one for one in records if one.end == "done" and one.num_tokens > 1 and one.first_ms]
    lengths = sorted({one.num_prompt_tokens for one in answered})
    strata, ttfts, tpots = [], [], []
    residuals: dict[int, list[float]] = {}
    for length in lengths:
        own = [one for one in answered if one.num_prompt_tokens == length]
        ttft = [math.log(one.first_ms or 1.0) for one in own]
        tpot = [math.log(one.tpot_ms) for one in own]
        centre = (statistics.fmean(ttft), statistics.fmean(tpot))
        strata.append(
            Stratum(round(len(own) / len(answered), 4), round(math.exp(centre[0]), 2), round(math.exp(centre[1]), 2))
        )
        ttfts += [value - centre[0] for value in ttft]
        tpots += [value - centre[1] for value in tpot]
        for one, value in zip(own, ttft, strict=True):
            residuals.setdefault(int(one.due_s // _BIN_S), []).append(value - centre[0])
    tokens = [math.log(one.num_tokens) for one in answered]
    return LatencyModel(
        strata=tuple(strata),
        ttft_sd=round(statistics.stdev(ttfts), 4),
        tpot_sd=round(statistics.stdev(tpots), 4),
        output_tokens=round(math.exp(statistics.fmean(tokens)), 1),
        output_sd=round(statistics.stdev(tokens), 3),
        max_tokens=max(one.num_tokens for one in answered),
        correlation=round(statistics.correlation(ttfts, tpots), 2),
        burst_sd=round(math.sqrt(_variance_between(list(residuals.values()))), 4),
        burst_s=_BIN_S,
        ttft_quantiles=_quantiles(ttfts),
        tpot_quantiles=_quantiles(tpots),
    )


def _variance_between(bins: Sequence[Sequence[float]]) -> float:
    # One-way analysis of variance: of the bins' means, less what their own requests' spread makes of it.
    kept = [one for one in bins if len(one) >= 5]
    size = statistics.fmean(len(one) for one in kept)
    within = statistics.fmean(statistics.variance(one) for one in kept)
    return max(0.0, statistics.variance([statistics.fmean(one) for one in kept]) - within / size)


def _quantiles(values: Sequence[float]) -> tuple[float, ...]:
    found = np.quantile(values, np.linspace(0, 1, _NUM_QUANTILES))
    return tuple(round(float(value), 4) for value in found)


def rendered(text: str, source: Path) -> str:
    """Return the file's text with the recorded models fitted anew to `source`; what stands before them is kept."""
    _, records = read_records(source)
    lines = [f"# Fitted to answered requests of the server with admission in benchmarks/results/{source.name}.\n"]
    lines.append("recorded:\n")
    defaults = {field.name: field.default for field in msgspec.structs.fields(LatencyModel)}
    for name, (shape, load) in _FITTED.items():
        model = fit([one for one in records if (one.kind, one.shape, one.load) == ("admission", shape, load)])
        lines.append(f"  {name}: # {shape} arrivals at {load:g} times the capacity\n")
        for key, value in msgspec.to_builtins(model).items():
            if value != defaults[key]:
                lines.append(f"    {key}: {msgspec.json.encode(value).decode()}\n")
    return text.partition(_MARK)[0] + _MARK + "".join(lines)


def main() -> None:
    """Fit the models, and write them."""
    source = max(RESULTS.glob("overload_[0-9]*.jsonl.gz"))
    FILE.write_text(rendered(FILE.read_text(encoding="utf-8"), source), encoding="utf-8")
    print(f"{FILE.name}: {len(_FITTED)} models from {source.name}")


if __name__ == "__main__":
    main()
