# SPDX-License-Identifier: Apache-2.0
"""The writer of `docs/cost_cases.md`, three worked cases, from `examples/cost` and the planner: `make docs`."""

from collections.abc import Iterator

from build_engines.checkpoint.checkpoint_config import read_model_shape
from build_engines.checkpoint.known_models import config_of
from build_engines.checkpoint.weight_table import num_active_parameters
from build_engines.cost.bill import HOURS_PER_MONTH, Bill, bill, scaled
from build_engines.cost.cost_spec import CostSpec, PlannedEngine, Traffic, changed, load_document
from build_engines.cost.findings import find
from build_engines.cost.levers import plan_levers
from build_engines.cost.managed_prices import EXAMPLE, ManagedPrices
from build_engines.cost.report_tables import levers_table, price, tables, usd
from build_engines.planner.estimators.published import Measurement, predicted, scored
from build_engines.planner.question import Targets
from build_engines.planner.roofline.efficiencies import fitted
from build_engines.planner.roofline.footprint import kv_bytes_per_token
from build_engines.planner.roofline.steady_state import Workload
from documents.long_context import Crowd, Seating, seat
from documents.pages import DOCS, ROOT, paragraph
from trireme.base.text_tables import TextTable

PAGE = DOCS / "cost_cases.md"
_EXAMPLES = ROOT / "examples" / "cost"
_HALF_A_MILLION = 500_000.0
# Lambda's list prices of machines of 8, by a public catalogue of cloud prices (docs/cost.md has the addresses).
_USD_PER_GPU_HOUR = {"h100": 3.99, "b200": 6.69}
_MIXES = ((200, 200), (1000, 300), (3000, 500))
_FORMATS = (("h100", "bf16", "bf16"), ("h100", "fp8", "fp8"), ("b200", "fp8", "fp8"), ("b200", "nvfp4", "fp8"))
_CROWD = Crowd("llama-3.1-70b", 1000, Workload(32 * 1024, 300), Targets(500, 50), think_time_s=30)
_NEW_TOKENS = 500


def page(_: str) -> str:
    """Return the text of the whole page."""
    sections = [_opening(), _halving(), _thousand_requests(), _thousand_users()]
    return "\n\n".join(part for section in sections for part in section) + "\n"


def _opening() -> Iterator[str]:
    yield "# Cost: three worked cases"
    yield paragraph(
        """Written by `make docs` from `examples/cost/*.yaml`; formulas and sources of prices: [cost.md](cost.md). No
        GPU was here: throughput is predicted (`within` is the factor in which 9 of 10 should lie,
        [planner.md](planner.md)), the rest is assumed in the file. Put your own in and run `trireme cost FILE`."""
    )


def _halving() -> Iterator[str]:
    spec = load_document(CostSpec, _EXAMPLES / "halve_500k.yaml")
    found = find(spec, load_document(ManagedPrices, EXAMPLE))
    fleet, month, *_ = tables(found)
    yield "## Half a million dollars a month, halved"
    yield paragraph(
        f"""`examples/cost/halve_500k.yaml`: {spec.traffic.requests_per_s:g} requests/s over the day,
        {spec.traffic.isl:g} tokens in and {spec.traffic.osl:g} out, the busiest hour {spec.traffic.peak_over_mean:g}
        times the mean. The fleet is sized for that hour and kept all day, on demand, a 70B in 16 bits, static batches
        of 32. It costs {usd(found.bill.total_usd)} a month."""
    )
    yield fleet.markdown(level=3)
    yield month.markdown(level=3)
    assert found.levers is not None
    yield levers_table(found.levers).markdown(level=3)
    yield paragraph(
        """Who batches in flight already has less left to save. The same file without that lever, its traffic scaled to
        what the same money pays for:"""
    )
    in_flight = scaled_to(_in_flight(spec), _HALF_A_MILLION)
    yield levers_table(plan_levers(in_flight)).markdown(level=3).replace("### Levers", "### In flight: levers")
    yield paragraph(
        f"""There it is {in_flight.traffic.requests_per_s:.0f} requests/s. Quantized formats are not free of loss
        ([quantization](decisions/quantization.md)). The shares of cached prompts, of small-model requests and of spot
        GPUs are assumed: measure yours."""
    )


def _in_flight(spec: CostSpec) -> CostSpec:
    assert spec.levers.batching is not None
    size = spec.levers.batching.max_batch_size
    in_flight = {"engine.longest_over_mean_output": 1.0, "engine.max_batch_size": size, "levers.batching": None}
    return changed(spec, in_flight)


def scaled_to(spec: CostSpec, target_usd: float) -> CostSpec:
    """Return the case with as many requests as the money pays for; by bisection, to a thousandth of them."""

    def is_paid(factor: float) -> bool:
        return bill(scaled(spec, factor)).total_usd <= target_usd

    low, high = 0.0, 1.0
    while is_paid(high):
        low, high = high, 2 * high
    while high - low > 1e-3 * high:
        middle = (low + high) / 2
        low, high = (middle, high) if is_paid(middle) else (low, middle)
    return scaled(spec, low)


def _thousand_requests() -> Iterator[str]:
    spec = load_document(CostSpec, _EXAMPLES / "thousand_requests_70b.yaml")
    targets = spec.engine
    assert isinstance(targets, PlannedEngine)
    rows, bills = [], []
    for isl, osl in _MIXES:
        for gpu, weight_format, kv_format in _FORMATS:
            variant = _variant(spec, gpu, weight_format, kv_format, isl, osl)
            found = bill(variant)
            rows.append(_fleet_row(variant, found))
            bills.append(found.total_usd)
    yield "## 1,000 requests a second on a 70B"
    yield paragraph(
        f"""`examples/cost/thousand_requests_70b.yaml`, and the same with other GPUs, formats and mixes: day and night,
        TTFT at most {targets.slo_ttft_ms:g} ms and TPOT at most {targets.slo_tpot_ms:g} ms, replicas busy 70 % of the
        time, two spare, on demand. The bill hangs on tokens and GPU: the dearest of these fleets costs
        {max(bills) / min(bills):.0f} times the cheapest."""
    )
    headers = (
        "in, out", "GPU, format", "replicas x GPUs", "GPUs", "within", "$ a month", "$/M in", "$/M out", "$/M all",
    )  # fmt: skip
    yield TextTable("Fleets", headers, tuple(rows), left=("GPU, format",)).markdown(level=3)
    against = find(spec, load_document(ManagedPrices, EXAMPLE))
    managed = next(one for one in tables(against) if one.title == "Against managed prices")
    yield managed.markdown(level=3)
    yield paragraph("""The file's fleet against the example list: an H100 in FP8, 1,000 tokens in and 300 out.""")
    yield from _published()


def _variant(spec: CostSpec, gpu: str, weight_format: str, kv_format: str, isl: int, osl: int) -> CostSpec:
    engine = {"engine.gpu": gpu, "engine.weight_format": weight_format, "engine.kv_format": kv_format}
    traffic = Traffic(requests_per_s=spec.traffic.requests_per_s, isl=isl, osl=osl)
    prices = {"prices.on_demand_usd_per_gpu_hour": _USD_PER_GPU_HOUR[gpu]}
    return changed(spec, {**engine, **prices, "traffic": traffic})


def _fleet_row(spec: CostSpec, found: Bill) -> tuple[str, ...]:
    (pool,) = found.pools
    assert isinstance(spec.engine, PlannedEngine)
    replicas = max(pool.replicas)
    return (
        f"{spec.traffic.isl:g}, {spec.traffic.osl:g}", f"{spec.engine.gpu} {spec.engine.weight_format}",
        f"{replicas:,} x {pool.rates.num_gpus}", f"{replicas * pool.rates.num_gpus:,}",
        f"x/÷ {pool.rates.uncertainty:.2f}", usd(found.total_usd), price(found.usd_per_million_input or 0),
        price(found.usd_per_million_output), price(found.usd_per_million),
    )  # fmt: skip


def _published() -> Iterator[str]:
    """Yield what TensorRT-LLM's own document measured of this model on this GPU, and the price that this means."""
    usd_per_hour = _USD_PER_GPU_HOUR["h100"]
    rows = tuple(_published_row(one, usd_per_hour) for one in _comparable())
    headers = ("in, out", "GPUs", "published tokens/s", "planned", "ratio", "published: $/M out", "planned: $/M out")
    note = paragraph(
        f"""Llama-3.1-70B in FP8 on H100, TensorRT-LLM 0.17, all requests queued at once, no latency target: output
        tokens/s of one replica (`build_engines/planner/estimators/published_measurements.json`; the planner was fitted
        to these, too). Dollars are {usd_per_hour:g} $ an hour and GPU, always busy, prompts too. Fleets above are
        dearer for their target latency, their 70 % and their spares."""
    )
    yield TextTable("Against published throughput", headers, rows, (note,)).markdown(level=3)


def _comparable() -> Iterator[Measurement]:
    for one in scored():
        is_model = one.model == "llama-3.1-70b" and one.gpu == "h100" and one.weight_format == "fp8"
        if is_model and one.metric == "output_throughput_total" and "0.17" in one.group and one.tp_size in {2, 4}:
            yield one


def _published_row(one: Measurement, usd_per_hour: float) -> tuple[str, ...]:
    planned = predicted(one, fitted())
    assert planned is not None
    per_million = usd_per_hour * one.tp_size / 3600 * 1e6
    return (
        f"{one.isl:g}, {one.osl:g}", str(one.tp_size), f"{one.value:,.0f}", f"{planned:,.0f}",
        f"{planned / one.value:.2f}", f"{per_million / one.value:.3f}", f"{per_million / planned:.3f}",
    )  # fmt: skip


def _thousand_users() -> Iterator[str]:
    model = read_model_shape(config_of(_CROWD.model), source=_CROWD.model)
    per_user = {form: _CROWD.workload.num_tokens * kv_bytes_per_token(model, form) for form in ("bf16", "fp8")}
    prefill_flops = 2 * num_active_parameters(model) * _CROWD.workload.isl
    yield "## 1,000 users with 32K of context each, TTFT < 500 ms, ITL < 50 ms"
    yield paragraph(
        f"""A 70B with 8 KV heads keeps {per_user["bf16"] / 1e9:.1f} GB of KV cache for a user in 16 bits and
        {per_user["fp8"] / 1e9:.1f} GB in FP8; for all {_CROWD.users:,} that is
        {_CROWD.users * per_user["bf16"] / 1e12:.1f} and {_CROWD.users * per_user["fp8"] / 1e12:.1f} TB. Cold: all
        {_CROWD.workload.isl:,} tokens are prefilled. Warm: all but {_NEW_TOKENS} are in the prefix cache. Answers have
        {_CROWD.workload.osl} tokens, replicas at most 8 GPUs. At once: all users wait for an answer at the same time.
        Thinking: each takes {_CROWD.think_time_s:g} s between an answer and the next question."""
    )
    rows = tuple(row for is_warm in (False, True) for row in _seats(is_warm=is_warm))
    headers = (
        "prompts", "GPU, format", "least TTFT ms", "layout", "users a replica", "TTFT ms", "TPOT ms", "within",
        "GPUs at once", "$ a month", "GPUs thinking", "$ a month thinking",
    )  # fmt: skip
    left = ("GPU, format", "layout")
    yield TextTable("Who meets it", headers, rows, left=left).markdown(level=3)
    yield paragraph(
        f"""Cold, a prompt of 32K is {prefill_flops / 1e15:.1f} PFLOP of matrices alone. Least TTFT is of a user who is
        alone, in the fastest layout: on eight H100 none comes near half a second. What meets it cold has context
        parallelism and FP4, which no published measurement here has. For the rest the answer is the prefix cache; then
        memory and TPOT are the limit. ITL is met as the mean; the planner says nothing of its 99th percentile. Not in
        the figures: routing by prefix, offloaded caches of users who think, spare replicas, a reserve for bursts."""
    )


def _seats(*, is_warm: bool) -> Iterator[tuple[str, ...]]:
    cached = _CROWD.workload.isl - _NEW_TOKENS if is_warm else 0
    crowd = Crowd(
        _CROWD.model, _CROWD.users, _CROWD.workload._replace(cached=cached), _CROWD.targets, _CROWD.think_time_s
    )
    for gpu, weight_format, kv_format in _FORMATS:
        found = seat(crowd, gpu=gpu, gpus_per_replica=8, weight_format=weight_format, kv_format=kv_format)
        yield ("warm" if is_warm else "cold", f"{gpu} {weight_format}", *_seat_cells(found, _USD_PER_GPU_HOUR[gpu]))


def _seat_cells(found: Seating, usd_per_gpu_hour: float) -> tuple[str, ...]:
    least = f"{found.fastest.estimate.ttft_ms:,.0f}"
    if found.gpus_at_once is None or found.gpus_thinking is None:
        return (least, "misses", *[""] * 8)
    estimate, layout = found.best.estimate, found.best.candidate.layout

    def month(gpus: int) -> str:
        return usd(gpus * usd_per_gpu_hour * HOURS_PER_MONTH)

    return (
        least, str(layout), f"{int(estimate.batch_size)}", f"{estimate.ttft_ms:,.0f}", f"{estimate.tpot_ms:.1f}",
        f"x/÷ {found.best.uncertainty:.2f}", f"{found.gpus_at_once:,}", month(found.gpus_at_once),
        f"{found.gpus_thinking:,}", month(found.gpus_thinking),
    )  # fmt: skip
