# SPDX-License-Identifier: Apache-2.0
"""Tables of the planner's predictions for the decision pages, each with the command that gives the same figures."""

from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from functools import cached_property

from build_engines.checkpoint.checkpoint_config import read_model_shape
from build_engines.checkpoint.gpus import gpu_named
from build_engines.checkpoint.known_models import config_of
from build_engines.planner.estimators.estimator import Load, Roofline
from build_engines.planner.estimators.published import predicted, scored
from build_engines.planner.option import Option, Plan
from build_engines.planner.question import Question, Targets
from build_engines.planner.ranking import make_plan
from build_engines.planner.roofline.candidates import Machines, Wanted
from build_engines.planner.roofline.efficiencies import fitted
from build_engines.planner.roofline.footprint import kv_bytes_per_token
from build_engines.planner.roofline.steady_state import Limits, Workload, prompt_share
from trireme.base.text_tables import markdown_table

_NETWORK_GBS = 50  # 400 Gb/s, one direction


@dataclass(frozen=True)
class Asked:
    """A question to `trireme plan`, as a command and as its plan."""

    model: str
    gpu: str
    weight_format: str
    kv_format: str
    gpus: int = 8
    workload: Workload = field(default=Workload(1000, 300))
    concurrency: int | None = None
    slo_tpot_ms: float | None = None

    @property
    def command(self) -> str:
        """Return the command that gives the same figures."""
        parts = [f"trireme plan {self.model} --gpu {self.gpu} --gpus {self.gpus}"]
        parts += [f"--isl {self.workload.isl} --osl {self.workload.osl}"]
        parts += [f"--format {self.weight_format} --kv-format {self.kv_format}"]
        parts += [] if self.concurrency is None else [f"--concurrency {self.concurrency}"]
        parts += [] if self.slo_tpot_ms is None else [f"--slo-tpot-ms {self.slo_tpot_ms:g}"]
        return " ".join(parts)

    @cached_property
    def plan(self) -> Plan:
        """Return the planner's answer."""
        question = Question(
            read_model_shape(config_of(self.model), source=self.model),
            Machines(gpu_named(self.gpu), self.gpus),
            self.workload,
            load=Load(concurrency=self.concurrency),
            targets=Targets(tpot_ms=self.slo_tpot_ms),
            wanted=Wanted((self.weight_format,), (self.kv_format,)),
        )
        return make_plan(question, [Roofline()], num_curves=1)

    @property
    def best(self) -> Option:
        """Return the option with the least GPU time for a token."""
        return self.plan.options[0]


_PARALLEL = {
    Asked("llama-3.1-8b", "h100", "bf16", "bf16"): ("tp1", "tp2", "tp8"),
    Asked("llama-3.1-70b", "h100", "bf16", "bf16", slo_tpot_ms=50): ("tp2", "tp4", "tp4 pp2", "tp8"),
    Asked("llama-3.1-70b", "h100", "bf16", "bf16", concurrency=8): ("tp2", "tp4", "tp8"),
    Asked("llama-3.1-70b", "l40s", "fp8", "fp8"): ("tp1 pp4", "tp1 pp8", "tp2 pp2", "tp4", "tp8"),
    Asked("mixtral-8x7b", "h100", "bf16", "bf16"): ("tp2 ep2 attention-dp", "tp2", "tp2 ep2", "tp8"),
}
_FORMATS = [
    Asked("llama-3.1-70b", gpu, weight_format, kv_format, concurrency=concurrency)
    for concurrency in (None, 8)
    for gpu, weight_format, kv_format in (
        ("h100", "bf16", "bf16"), ("h100", "fp8", "fp8"), ("h100", "int4_awq", "bf16"),
        ("b200", "bf16", "bf16"), ("b200", "fp8", "fp8"), ("b200", "nvfp4", "fp8"),
    )
]  # fmt: skip
_TRADE = Asked("llama-3.1-70b", "h100", "fp8", "fp8", gpus=2)
_SPLIT = [
    Asked("llama-3.1-70b", "h100", "fp8", "fp8", gpus=2, workload=Workload(isl, osl))
    for isl, osl in ((200, 200), (1000, 300), (3000, 500), (8000, 100), (32000, 300))
]


def parallelism() -> str:
    """Return what layouts of the same GPUs give, for several models, GPUs and loads."""
    rows = []
    for asked, layouts in _PARALLEL.items():
        found = {str(option.candidate.layout): option for option in asked.plan.options}
        for name in layouts:
            option = found[name]
            replicas = option.num_gpus // option.candidate.layout.world_size
            load = "8 clients" if asked.concurrency else "TPOT <= 50 ms" if asked.slo_tpot_ms else "the most"
            rows.append([f"{asked.model} {asked.weight_format}, {asked.gpus} {asked.gpu}, {load}",
                         f"{replicas} x {name}", *_figures(option), option.estimate.bound_by])  # fmt: skip
    header = ["model, GPUs, load", "replicas x layout", "TTFT ms", "TPOT ms", "tokens/s", "within", "bound by"]
    return _table(header, rows, _PARALLEL)


def formats() -> str:
    """Return the best layout of each weight format, with as much load as it takes and with 8 clients."""
    rows = [
        [
            asked.gpu,
            f"{asked.weight_format}, KV {asked.kv_format}",
            "8 clients" if asked.concurrency else "the most",
            str(asked.best.candidate.layout),
            *_figures(asked.best),
        ]
        for asked in _FORMATS
    ]
    return _table(
        ["8 x", "format", "load", "layout", "TTFT ms", "TPOT ms", "tokens/s", "within"],
        rows,
        _FORMATS[:1],
        " with the row's GPU and formats, and `--concurrency 8` for 8 clients",
    )


def trade() -> str:
    """Return throughput against latency of one replica, from one client to a full batch."""
    option = _TRADE.best
    rows = [
        [
            f"{one.batch_size:.0f}",
            f"{one.ttft_ms:.0f}",
            f"{one.tpot_ms:.1f}",
            f"{1000 / one.tpot_ms:.0f}",
            f"{one.output_tokens_per_s:,.0f}",
            f"{one.output_tokens_per_s / option.candidate.layout.world_size:,.0f}",
            one.bound_by,
        ]
        for one in option.curve
        if one.batch_size in {1, 4, 16, 64, 256} or one is option.curve[-1]
    ]
    header = ["sequences at once", "TTFT ms", "TPOT ms", "tokens/s a user", "tokens/s", "a GPU", "bound by"]
    return _table(header, rows, [_TRADE])


def split() -> str:
    """Return the share of prompts in the work of a replica, and what it takes to hand their KV cache over."""
    model = read_model_shape(config_of("llama-3.1-70b"), source="llama-3.1-70b")
    rows = []
    for asked in _SPLIT:
        estimate, candidate, gpu = asked.best.estimate, asked.best.candidate, gpu_named(asked.gpu)
        limits = Limits(candidate.footprint.kv_tokens)
        share = prompt_share(candidate.engine, fitted(), asked.workload, limits, estimate.batch_size)
        alone = next(one for one in asked.best.curve if one.batch_size == 1)
        kv_gb = asked.workload.isl * kv_bytes_per_token(model, asked.kv_format) / 1e9
        ways = (gpu.nvlink_gbs, _NETWORK_GBS)
        rows.append([
            f"{asked.workload.isl:,}, {asked.workload.osl}", str(candidate.layout), f"{share:.0%}",
            f"{alone.ttft_ms:,.0f} ms", f"{kv_gb:.2f} GB", *(f"{1000 * kv_gb / way:.1f} ms" for way in ways),
        ])  # fmt: skip
    header = ["in, out", "layout", "prompts' share of the work", "TTFT of one alone", "KV cache of a prompt"]
    header += [f"over NVLink, {gpu_named('h100').nvlink_gbs:g} GB/s", f"over a network, {_NETWORK_GBS} GB/s"]
    return _table(header, rows, _SPLIT[:1], " with the row's `--isl` and `--osl`")


def published() -> str:
    """Return published tokens/s a GPU by tensor parallelism, beside the planner's."""
    chosen = [
        one
        for one in scored()
        if one.metric == "output_throughput_total"
        and "v0.17" in one.group
        and (one.model, one.weight_format, one.isl, one.osl) == ("llama-3.1-70b", "fp8", 1000, 1000)
    ]
    rows = []
    for gpu in ("h100", "l40s"):
        for one in sorted((one for one in chosen if one.gpu == gpu), key=lambda one: one.tp_size):
            planned = predicted(one, fitted())
            assert planned is not None
            per_gpu = (f"{value / one.tp_size:,.0f}" for value in (one.value, planned))
            rows.append([f"{one.tp_size} {gpu}, tp{one.tp_size}", f"{one.value:,.0f}", *per_gpu])
    table = markdown_table(["GPUs, layout", "published tokens/s", "a GPU", "planned, a GPU"], rows)
    return f"{table}\n\nTensorRT-LLM 0.17, not ours: `build_engines/planner/estimators/published_measurements.json`."


def _figures(option: Option) -> Iterator[str]:
    yield f"{option.estimate.ttft_ms:.0f}"
    yield f"{option.estimate.tpot_ms:.1f}"
    yield f"{option.engine_output_tokens_per_s:,.0f}" + (" (over the serving host)" if option.serving.is_over else "")
    yield f"x/÷ {option.uncertainty:.2f}"


def _table(header: list[str], rows: list[list[str]], asked: Iterable[Asked], note: str = "") -> str:
    commands = "\n".join(["```console", *(f"$ {one.command}" for one in asked), "```"])
    told = f"Predicted by the planner, not measured. The same figures{note}; `--top 40` has all layouts:"
    return "\n\n".join([markdown_table(header, rows), told, commands])
