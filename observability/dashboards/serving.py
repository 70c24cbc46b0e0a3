# SPDX-License-Identifier: Apache-2.0
"""The dashboard for the person on call: what users get, which requests wait, what the engines do."""

from observability.dashboards.panels import MODEL, RATE, Dashboard, Panel, panel
from observability.rules.objectives import Objectives
from observability.rules.recording import TPOT, TTFT

_ITL = "trireme_inter_token_latency_seconds"
_E2E = "trireme_e2e_request_latency_seconds"
_QUEUE = "trireme_request_queue_time_seconds"


def serving_dashboard(objectives: Objectives) -> Dashboard:
    """Return the dashboard's title, rows and panels."""
    return Dashboard(
        uid="trireme-serving",
        title="Trireme: serving",
        description="Latency, errors, queue, KV cache and engine steps, by model and version.",
        rows=(("What users get", _users(objectives)), ("Queue", _queue()), ("What the engines do", _engines())),
    )


def _percentiles(histogram: str) -> tuple[tuple[str, str], ...]:
    buckets = f"sum by (le, model, version) (rate({histogram}_bucket{{{MODEL}}}{RATE}))"
    return tuple(
        (f"histogram_quantile({q:g}, {buckets}) >= 0", f"p{100 * q:g} {{{{model}}}} {{{{version}}}}")
        for q in (0.5, 0.99)
    )


def _users(objectives: Objectives) -> tuple[Panel, ...]:
    return (
        panel(
            "Requests that end",
            "reqps",
            (f"sum by (finish_reason) (rate(trireme_requests_total{{{MODEL}}}{RATE}))", "{{finish_reason}}"),
        ),
        panel(
            "Errors",
            "percentunit",
            f"model:trireme_requests:error_ratio_rate5m{{{MODEL}}}",
            description=f"Share of five minutes' requests; {objectives.error_share:.2%} may end in an error.",
        ),
        panel(
            "Error budget burnt",
            "none",
            (
                f'slo:trireme_bad_requests:ratio_rate1h{{slo="availability",{MODEL}}} / {objectives.error_share:g}',
                "availability {{model}}",
            ),
            (
                f'slo:trireme_bad_requests:ratio_rate1h{{slo="ttft",{MODEL}}} / {1 - objectives.ttft_share:.6g}',
                "ttft {{model}}",
            ),
            description="Speed of the last hour; at 1 the budget lasts exactly its 30 days.",
        ),
        panel(
            "Time to first token",
            "s",
            *_percentiles(TTFT),
            description=f"The target of p99 is {objectives.ttft_p99_s:g} s.",
        ),
        panel(
            "Time per output token",
            "s",
            *_percentiles(TPOT),
            description=f"Mean of a request, after its first token; the target of p99 is {objectives.tpot_p99_s:g} s.",
        ),
        panel("Between two responses of a stream", "s", *_percentiles(_ITL)),
        panel("Whole request", "s", *_percentiles(_E2E)),
        panel(
            "Mean lengths",
            "none",
            *(
                (
                    f"sum by (model, version) (rate(nv_llm_{side}_token_len_sum{{{MODEL}}}{RATE})) / "
                    f"(sum by (model, version) (rate(nv_llm_{side}_token_len_count{{{MODEL}}}{RATE})) > 0)",
                    f"{side} {{{{model}}}} {{{{version}}}}",
                )
                for side in ("input", "output")
            ),
            description="Tokens of the requests that ended.",
        ),
    )


def _queue() -> tuple[Panel, ...]:
    return (
        panel(
            "Running and waiting",
            "none",
            (f"sum by (model, version) (trireme_requests_running{{{MODEL}}})", "running {{model}} {{version}}"),
            (f"sum by (model, version) (trireme_requests_waiting{{{MODEL}}})", "waiting {{model}} {{version}}"),
        ),
        panel(
            "Waiting for admission, by class",
            "none",
            (f"sum by (class) (trireme_queue_requests{{{MODEL}}})", "{{class}}"),
            description="Deployments with admission only.",
        ),
        panel(
            "Refused by admission",
            "reqps",
            (
                f"sum by (class, reason) (rate(trireme_refused_requests_total{{{MODEL}}}{RATE}))",
                "{{class}} {{reason}}",
            ),
        ),
        panel("Time until a request's first step", "s", *_percentiles(_QUEUE)),
    )


def _engines() -> tuple[Panel, ...]:
    of_engine = "{{model}} {{version}} {{instance}}"
    steps, seconds, prefills, prefill_s = (
        f"rate(trireme_engine_{name}_total{{{MODEL}}}{RATE})"
        for name in ("steps", "step_seconds", "prefill_steps", "prefill_step_seconds")
    )
    return (
        panel("Engine up", "none", (f"trireme_engine_up{{{MODEL}}}", of_engine), is_number=True),
        panel(
            "Tokens",
            "none",
            (f"sum(rate(trireme_engine_prompt_tokens_total{{{MODEL}}}{RATE}))", "prompt tokens/s"),
            (f"sum(rate(trireme_engine_output_tokens_total{{{MODEL}}}{RATE}))", "output tokens/s"),
            (f"sum(rate(trireme_cached_prompt_tokens_total{{{MODEL}}}{RATE}))", "prompt tokens/s from reused blocks"),
            description="Prompt tokens are those that were computed. Reused blocks are reported at a request's end.",
        ),
        panel(
            "Prefix cache hits",
            "percentunit",
            (
                f"sum by (model, version) (rate(trireme_cached_prompt_tokens_total{{{MODEL}}}{RATE})) / "
                f"(sum by (model, version) (rate(trireme_prefix_cache_queries_total{{{MODEL}}}{RATE})) > 0)",
                "{{model}} {{version}}",
            ),
            description="Prompt tokens that were in the KV cache, where the engine reports them, at a request's end.",
            most=1,
        ),
        panel(
            "KV cache in use",
            "percentunit",
            (f"trireme_kv_cache_usage_fraction{{{MODEL}}}", of_engine),
            most=1,
        ),
        panel(
            "Sequences in a step",
            "none",
            (f"engine:trireme_batch_sequences:mean1m{{{MODEL}}}", f"mean {of_engine}"),
            (f"trireme_engine_max_num_seqs{{{MODEL}}}", f"most {of_engine}"),
        ),
        panel(
            "Time of a step",
            "s",
            (f"{prefill_s} / ({prefills} > 0)", f"with prefill {of_engine}"),
            (f"({seconds} - {prefill_s}) / ({steps} - {prefills} > 0)", f"decode only {of_engine}"),
            description="Means. Steps with prefill may decode beside it.",
        ),
        panel(
            "Time in steps with prefill",
            "percentunit",
            (f"engine:trireme_prefill_time:ratio_rate1m{{{MODEL}}}", of_engine),
            description="The rest of the steps only decode.",
            most=1,
        ),
        panel(
            "Bandwidth in use (MBU)",
            "percentunit",
            (f"engine:trireme_mbu:ratio_rate1m{{{MODEL}}}", of_engine),
            description="(Weights + KV cache read in a step) / time of a step / peak bandwidth; of engines whose "
            "figures are known.",
        ),
        panel(
            "Arithmetic in use (MFU)",
            "percentunit",
            (f"engine:trireme_mfu:ratio_rate1m{{{MODEL}}}", of_engine),
            description="Tokens computed x operations per token / time of a step / peak; of engines whose figures are "
            "known.",
        ),
        panel(
            "Preemptions, drafts",
            "none",
            (f"sum(rate(trireme_preemptions_total{{{MODEL}}}{RATE}))", "preemptions/s"),
            (f"sum(rate(trireme_draft_tokens_total{{{MODEL}}}{RATE}))", "draft tokens/s"),
            (f"sum(rate(trireme_accepted_draft_tokens_total{{{MODEL}}}{RATE}))", "accepted draft tokens/s"),
        ),
    )
