# SPDX-License-Identifier: Apache-2.0
"""Tables of single benchmarks from the latest results that are kept, each with its file, processor, date and load."""

import statistics
from collections.abc import Iterator
from pathlib import Path

from benchmarks.peers.shown import with_interval
from benchmarks.support.report import RESULTS
from documents.results import Document, latest, no_clean_commit, read, source, source_of
from trireme.base.text_tables import markdown_table

_KV_FREE = ", kv_free_ms"
_KILLED = f"killed client of tensorrt_llm{_KV_FREE}"


def overhead() -> str:
    """Return tokens/s of `ensemble` over the engine in-process, of two models on two processors."""
    names = [f"ensemble_overhead_{name}" for name in ("random_125m", "random_125m_epyc", "demo_cpu", "demo_cpu_epyc")]
    rows = []
    for name in names:
        result = latest(name)
        model = "125M int8, random weights" if "125m" in name else "demo, 5M int8"
        processor = result["environment"]["cpu"].partition("(")[0].strip().partition(" ")[0]
        rows += [
            [
                f"{model}, {processor}",
                str(row["requests"]),
                with_interval(row["ensemble_ratio"]),
                _itl(row["ensemble"]),
                f"{row['ensemble']['tokens_per_response']['median']:.1f}",
                with_interval(row["no_delay_ratio"]),
                _itl(row["no_delay"]),
            ]
            for row in result["rows"]
        ]
    header = ["model, processor", "requests", "ratio", "ITL p50 / p99 ms", "tokens a response"]
    return _table([*header, "no delay: ratio", "ITL p50 / p99 ms"], rows, *names)


def direct_responses() -> str:
    """Return the table of what a request and a response cost each process, past Triton and through Triton."""
    result = latest("request_cost_ways")
    rows = []
    for past in result["rows"]:
        if past["way"] != "past Triton":
            continue
        [through] = [r for r in result["rows"] if r["streams"] == past["streams"] and r["way"] != past["way"]]
        for kind, parts in past["core_us"].items():
            cells = [f"{one[part]['median']:,.0f}" for part in parts for one in (parts, through["core_us"][kind])]
            rows.append([str(past["streams"]), kind, *cells])
    header = ["streams", "process", "a request, µs: past Triton", "through", "a response, µs: past Triton", "through"]
    return f"{markdown_table(header, rows)}\n\nFrom {source('request_cost_ways')}"


def frontend_cost() -> str:
    """Return what the frontend costs beside Triton's own port."""
    rows = [
        [
            str(row["streams"]),
            *(with_interval(row[f"{name}_ratio"]) for name in ("throughput", "ttft", "itl_p99")),
            f"{row['frontend_us_per_response']:.0f}",
        ]
        for row in latest("frontend_cost")["rows"]
    ]
    return _table(["streams", "tokens/s", "TTFT", "ITL p99", "core µs a response"], rows, "frontend_cost")


def responses() -> str:
    """Return the responses/s of an engine that costs nothing."""
    rows = [
        [
            f"{row['offered_tokens_per_s']:,}",
            f"{row['max_chunk_delay_ms']:g}",
            f"{row['tokens_per_s']['median']:,.0f}",
            f"{row['responses_per_s']['median']:,.0f}",
            f"{row['tokens_per_response']['median']:.2f}",
            _itl(row),
            f"{row['client_cpu_us']['median']:.0f}",
        ]
        for row in latest("responses")["rows"]
    ]
    header = ["tokens/s offered", "`max_chunk_delay_ms`", "tokens/s", "responses/s", "tokens a response"]
    return _table([*header, "ITL p50 / p99 ms", "client µs a response"], rows, "responses")


def chunked_prefill() -> str:
    """Return the p99 ITL of streams beside a long prompt, in chunks and in one piece."""
    rows = []
    for row in latest("chunked_prefill_demo_cpu")["rows"]:
        where = "`ensemble` over gRPC" if row["path"] == "ensemble" else "the engine's steps, in-process"
        cells = [
            f"{row[f'{how}_p99_itl_ms']['median']:.0f} ms, {with_interval(row[f'{how}_p99_itl_ratio'])}"
            for how in ("chunked", "in_one_piece")
        ]
        rows.append([where, f"{row['alone_p99_itl_ms']['median']:.1f} ms", *cells])
    header = ["p99 ITL of 16 streams", "alone", "beside the prompt in chunks of 128, ratio", "in one piece, ratio"]
    return _table(header, rows, "chunked_prefill_demo_cpu")


def prefill_apart() -> str:
    """Return what a hand-over adds to a prompt's TTFT, and what it spares the streams beside the prompt."""
    found = latest("prefill_apart")
    lone = [
        [
            f"{row['prompt_tokens']:,}",
            *(f"{row['ttft_ms'][side]:.0f} ms" for side in ("together", "shared", "apart")),
            f"{row['added_ms']['median']:+.0f} ms ({row['added_ms']['low']:+.0f} to {row['added_ms']['high']:+.0f})",
        ]
        for row in found["lone"]
    ]
    names = {
        "together": "one engine, both cores",
        "shared": "two engines, a core each, that share the streams",
        "apart": "one prefills, one decodes, a core each",
    }
    beside = [
        [
            names[side],
            f"{row['p99_itl_ms_alone']:.0f} ms",
            f"{row['p99_itl_ms_beside']:.0f} ms, {with_interval(row['ratio'])}",
            f"{row['ttft_ms']:,.0f} ms",
        ]
        for side, row in found["beside"].items()
    ]
    header = ["prompt, alone", "TTFT, both cores", "one core", "apart", "apart over one core"]
    streams = f"p99 ITL of {found['streams']} streams"
    tokens = f"{found['long_prompt_tokens']:,} tokens"
    second = _table([streams, "alone", f"beside a prompt of {tokens}, ratio", "its TTFT"], beside, "prefill_apart")
    return f"{markdown_table(header, lone)}\n\n{second}"


def long_texts() -> str:
    """Return the p99 of short requests beside a client that sends megabytes of text."""
    rows = []
    for case in latest("long_texts")["cases"]:
        ratio, p99, answered = (
            statistics.median(pair[name] for pair in case["pairs"])
            for name in ("p99_ratio", "p99_ms", "short_requests_ratio")
        )
        verdict = " (missed)" if ratio > 2 else ""
        rows.append(
            [f"{case['megabytes']} MB, `{case['model']}`", f"{ratio:.2f}{verdict}", f"{p99:.0f} ms", f"{answered:.2f}"]
        )
    header = ["text", "p99 of short requests, over that without", "p99", "short requests answered, over those without"]
    return _table(header, rows, "long_texts")


def prefix_cache() -> str:
    """Return the time to first token of prompts that begin as an earlier one."""
    models = {
        "prefix_cache_demo_cpu": "demo, 5M, chunks of 128",
        "prefix_cache_random_125m": "125M, chunks of 512",
        "prefix_cache_demo_vllm": "demo, 5M, vLLM, chunks of 512",
    }
    rows = [
        [
            model,
            f"{row['prompt_tokens']:,}",
            f"{row['shared_tokens']['least']:,}",
            f"{row['cold_ttft_ms']['median']:,.0f} ms",
            f"{row['warm_ttft_ms']['median']:,.0f} ms",
            with_interval(row["warm_over_cold"]),
            f"{row['on_the_metrics_page']['found']:,} of {row['expected']['found']:,}",
        ]
        for name, model in models.items()
        for row in latest(name)["rows"]
    ]
    header = ["model", "prompt, tokens", "shared", "TTFT, cold", "TTFT, warm", "warm / cold"]
    return _table([*header, "found, on the metrics page"], rows, *models)


def paged_memory() -> str:
    """Return what paged KV memory saves over room for the longest request."""
    result = latest("paged_memory_demo_cpu")
    measured, computed = result["measured"], result["computed"]
    wasted = computed["wasted_fraction_when_each_reserves_max_seq_len"]["median"]
    fitting = computed["sequences_that_fit_when_each_reserves_max_seq_len"]
    rows = [
        ["room that holds no token", f"{measured['wasted_fraction']['median']:.1%}", f"{wasted:.0%} (computed)"],
        ["sequences at a time, at most", f"{measured['most_running']['median']:.0f}", f"{fitting} (computed)"],
        ["time for all, over `max_num_seqs: 4`", with_interval(measured["duration_over_reserving"]), "1"],
    ]
    return _table(["48 requests, 8 to 256 tokens", "paged", "`max_seq_len` reserved"], rows, "paged_memory_demo_cpu")


def release_pull() -> str:
    """Return starts from network storage and from the node's cache."""
    rows = [
        [
            f"{row['link_mb_per_s']:.0f} MB/s",
            f"{row['start_from_storage_s']['median']:.1f} s",
            f"{row['pull_s']['median']:.1f} s",
            *(
                with_interval(row[f"{name}_over_storage"])
                for name in ("first_start_from_cache", "pull_and_first_start", "next_start_from_cache")
            ),
            f"{row['start_from_storage_link_mb']['median']:,.0f} MB",
        ]
        for row in latest("release_pull")["rows"]
    ]
    header = ["link", "start from the storage", "`trireme pull`", "first start from the cache, over that"]
    header += ["pull and first start, over that", "next start, over that", "read over the link by a start"]
    return _table(header, rows, "release_pull")


def static_batching() -> str:
    """Return in-flight batching over static batching."""
    rows = [
        [
            str(row["requests"]),
            *(with_interval(row[f"{name}_ratio"]) for name in ("tokens_per_s", "e2e_p50", "e2e_p99")),
            f"{row['mean_batch']['in_flight']:.1f}, {row['mean_batch']['static']:.1f}",
        ]
        for row in latest("static_batching_demo_cpu")["rows"]
    ]
    header = ["at a time", "tokens/s, in-flight over static", "E2E p50", "E2E p99"]
    return _table([*header, "sequences of a step, in-flight and static"], rows, "static_batching_demo_cpu")


def speculation() -> str:
    """Return tokens/s with drafts over those without."""
    sides = (("draft_model", "greedy"), ("prompt_lookup", "greedy"), ("prompt_lookup", "sampled"))
    found = {
        (row["text"], row["requests"], row["side"], row["how"]): with_interval(row["ratio"])
        for row in latest("speculation")["rows"]
    }
    rows = [
        [title, str(requests), *(found[text, requests, *side] for side in sides)]
        for text, title in (("story", "a story"), ("repetition", "a question three times"))
        for requests in (1, 4, 16)
    ]
    header = ["text", "requests", "draft model, greedy", "prompt lookup, greedy", "prompt lookup, sampled"]
    return _table(header, rows, "speculation")


def first_request() -> str:
    """Return the first request after a start over later ones, with the warm-up and without."""
    models = {"first_request_demo_cpu": "demo, OpenVINO", "first_request_simulated": "simulated engine"}
    rows = [
        [
            model,
            f"`{row['entry']}`" + ("" if row["is_streaming"] else ", not streaming"),
            "on" if row["is_warmed_up"] else "off",
            *(with_interval(row["ratios"][name]) for name in ("same_length", "other_lengths")),
        ]
        for name, model in models.items()
        for row in latest(name)["rows"]
    ]
    header = ["engine", "entry", "warm-up", "over prompts of the same length", "over prompts of other lengths"]
    return _table(header, rows, *models)


def engine_turns() -> str:
    """Return the first token of an engine in memory and of one that has to come."""
    names = ("engine_turns_demo_cpu", "engine_turns_demo_cpu_slower_machine")
    rows = []
    for name in names:
        result = latest(name)
        there, comes = (result["first_token_s"]["a"][state]["median"] for state in ("there", "comes"))
        turns = "; ".join(
            f"{one['min_resident_s']:g} s: {one['loads']:.0f}, {max(one['longest_wait_s'].values()):.1f} s"
            for one in result["turns"]
        )
        machine = "slower machine" if "slower" in name else "this machine"
        rows.append([machine, f"{1000 * there:.1f} ms", f"{comes:.2f} s", turns])
    header = ["", "first token, engine in memory", "engine that has to come"]
    header += ["`min_resident_s`: turns in 30 s, longest answer"]
    return _table(header, rows, *names)


def stop_strings() -> str:
    """Return what stop strings cost a request and a character."""
    rows = [
        [name, *(f"{row[figure]:,.0f}" for figure in ("check_us", "matcher_us", "ns_per_character"))]
        for name, row in latest("stop_strings")["rows"].items()
    ]
    header = ["stop strings of a request", "check, µs", "matcher, µs, in each of two processes", "a character, ns"]
    return _table(header, rows, "stop_strings")


def left_clients() -> str:
    """Return the time until a client's KV blocks are free, in the newest long run that has it."""
    file, figures = next(_soaks(_KILLED))
    found = {name: one for name, one in figures.items() if name.endswith(_KV_FREE)}
    rows = [
        [
            _client(name),
            str(one["clients"]),
            *(f"{one[figure]:.0f}" for figure in ("p50", "p99", "max")),
        ]
        for name, one in found.items()
    ]
    return "\n\n".join(
        [markdown_table(["client", "clients", "p50 ms", "p99", "longest"], rows), f"From {source_of(file)}."]
    )


def memory() -> str:
    """Return the growth of each long run that is kept, from 2,000 to 20,000 requests."""
    rows = []
    for file, figures in _soaks("memory on openvino"):
        for engine in ("simulated", "openvino"):
            rss = figures[f"memory on {engine}"]["rss_mib_after_requests"]
            grown = {name: 100 * (rss["20000"][name] / rss["2000"][name] - 1) for name in rss["2000"]}
            others = max(one for name, one in grown.items() if name not in ("tritonserver", "engine", "ensemble"))
            cells = [
                f"{rss['20000'][name]:.0f}, {grown[name]:+.1f} %" for name in ("tritonserver", "engine", "ensemble")
            ]
            rows.append([f"`{file.name}`{no_clean_commit(read(file))}", engine, *cells, f"{others:+.1f} %"])
    header = ["result", "engine", "tritonserver", "engine process", "stub of `ensemble`", "other stubs, at most"]
    return markdown_table(header, rows)


def _soaks(figure: str) -> Iterator[tuple[Path, Document]]:
    for path in sorted(RESULTS.glob("soak_[0-9]*.json"), reverse=True):
        if figure in (figures := read(path)["figures"]):
            yield path, figures


def _client(figure: str) -> str:
    name = figure.removesuffix(_KV_FREE)
    return "killed, of `tensorrt_llm`" if figure == _KILLED else f"`{name.removeprefix('left ')}`"


def _itl(row: Document) -> str:
    return f"{row['itl_p50_ms']['median']:.1f} / {row['itl_p99_ms']['median']:.1f}"


def _table(header: list[str], rows: list[list[str]], *names: str) -> str:
    return "\n\n".join([markdown_table(header, rows), f"From {source(*names)}"])
