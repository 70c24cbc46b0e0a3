# SPDX-License-Identifier: Apache-2.0
"""The dashboard for capacity and cost: how full the engines are, how many replicas there are, what a token costs."""

from observability.dashboards.panels import MODEL, RATE, Dashboard, Panel, panel

# Over all models, as the GPUs are: which of them are a model's, their metrics do not say.
_OUT = f"sum(rate(trireme_engine_output_tokens_total{RATE}))"
_GPUS = "count(DCGM_FI_PROF_GR_ENGINE_ACTIVE)"
_HPA = "kube_horizontalpodautoscaler"


def capacity_dashboard() -> Dashboard:
    """Return the dashboard's title, rows and panels."""
    return Dashboard(
        uid="trireme-capacity",
        title="Trireme: capacity and cost",
        description="Seats, KV cache, replicas, and the price of a million tokens at the GPU price that is typed in.",
        rows=(("How full it is", _fullness()), ("What it costs", _cost()), ("Replicas", _replicas())),
        text_boxes={"gpu_hour_price": ("Price of a GPU hour", "2.00")},
    )


def _fullness() -> tuple[Panel, ...]:
    of_engine = "{{model}} {{version}} {{instance}}"
    return (
        panel(
            "Seats in use",
            "percentunit",
            (
                f"engine:trireme_batch_sequences:mean1m{{{MODEL}}} / trireme_engine_max_num_seqs{{{MODEL}}}",
                of_engine,
            ),
            description="Mean sequences of a step, of those that a batch may have.",
            most=1,
        ),
        panel("KV cache in use", "percentunit", (f"trireme_kv_cache_usage_fraction{{{MODEL}}}", of_engine), most=1),
        panel(
            "Time that engines work",
            "percentunit",
            (f"rate(trireme_engine_step_seconds_total{{{MODEL}}}{RATE})", of_engine),
            description="Share of the time that an engine was in a step.",
        ),
        panel(
            "Memory bandwidth in use (MBU)", "percentunit", (f"engine:trireme_mbu:ratio_rate1m{{{MODEL}}}", of_engine)
        ),
        panel("Requests that wait", "none", f"model:trireme_requests_waiting:sum{{{MODEL}}}"),
        panel(
            "Refused by admission",
            "reqps",
            (f"sum by (reason) (rate(trireme_refused_requests_total{{{MODEL}}}{RATE}))", "{{reason}}"),
        ),
    )


def _cost() -> tuple[Panel, ...]:
    return (
        panel(
            "Output tokens a second and GPU",
            "none",
            (f"{_OUT} / {_GPUS}", "tokens/s/GPU"),
            description="All models, over all GPUs that dcgm-exporter reports.",
            is_number=True,
        ),
        panel(
            "Price of a million output tokens",
            "none",
            (f"$gpu_hour_price * {_GPUS} / 3600 / ({_OUT} > 0) * 1e6", "at this load"),
            description="All models on all reported GPUs, at the price typed in above; idle hours count.",
        ),
        panel(
            "Output tokens of the last day",
            "none",
            (f"sum(increase(trireme_engine_output_tokens_total{{{MODEL}}}[1d]))", "tokens"),
            is_number=True,
        ),
        panel(
            "Tokens by model",
            "none",
            (f"model:trireme_output_tokens:rate1m{{{MODEL}}}", "output {{model}} {{version}}"),
            (f"model:trireme_prompt_tokens:rate1m{{{MODEL}}}", "prompt {{model}} {{version}}"),
            description="Tokens a second.",
        ),
        panel(
            "Energy of an output token",
            "joule",
            (f"sum(rate(DCGM_FI_DEV_TOTAL_ENERGY_CONSUMPTION{RATE})) / 1000 / ({_OUT} > 0)", "all GPUs"),
            description="All models.",
        ),
        panel(
            "Prompt tokens saved",
            "percentunit",
            (
                f"sum(rate(trireme_cached_prompt_tokens_total{{{MODEL}}}{RATE})) / "
                f"(sum(rate(trireme_prefix_cache_queries_total{{{MODEL}}}{RATE})) > 0)",
                "from reused KV blocks",
            ),
            description="Prompts of engines that report how much of a prompt was in the KV cache.",
        ),
    )


def _replicas() -> tuple[Panel, ...]:
    return (
        panel(
            "Replicas",
            "none",
            (f"{_HPA}_status_current_replicas", "there are {{namespace}} {{horizontalpodautoscaler}}"),
            (f"{_HPA}_spec_min_replicas", "at least {{namespace}} {{horizontalpodautoscaler}}"),
            (f"{_HPA}_spec_max_replicas", "at most {{namespace}} {{horizontalpodautoscaler}}"),
        ),
        panel(
            "GPUs active",
            "percentunit",
            ("avg by (namespace) (DCGM_FI_PROF_GR_ENGINE_ACTIVE)", "{{namespace}}"),
            description="Share of the time in which any kernel ran: not how well it is used, that is MBU.",
            most=1,
        ),
        panel("Servers that are reached", "none", ('up{job=~".*trireme.*"}', "{{instance}}"), is_number=True),
    )
