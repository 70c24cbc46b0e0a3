# SPDX-License-Identifier: Apache-2.0
"""The writers of tables about engines of vLLM outside the page of performance: long checks, and the cost of events."""

from documents.pages import DOCS, with_tables
from documents.results import Document, latest, source, with_interval
from trireme.base.text_tables import markdown_table

_SOAK, _RANKS, _EVENTS, _SPECULATION = "soak_vllm", "soak_vllm_ranks", "kv_events_cost", "speculation_vllm"
_VICTIMS = {
    "VLLM::Worker_TP0 SIGKILL": "rank 0 killed",
    "VLLM::Worker_TP1 SIGSTOP": "rank 1 hung",
    "serving.engine_process.engine_loop SIGKILL": "engine killed",
    "serving.engine_process.engine_loop SIGSTOP": "engine hung",
    "serving.engine_guard SIGKILL": "guard killed",
}
_EVENT_SIDES = {
    "off again": "the same again, without events",
    "over HTTP, to one": "over HTTP, to one subscriber",
    "and over ZeroMQ, to one": "and over ZeroMQ, to another",
}
_TEXTS = {"story": "a story", "repetition": "a question three times"}
_DRAFTS = {"draft_model": "draft model", "eagle3": "EAGLE-3 head", "prompt_lookup": "n-grams"}


def long_checks() -> str:
    """Return what the long checks on the real engine counted."""
    found = latest(_SOAK)
    figures = found["figures"]
    texts, fuzz = figures["texts of prefill and decode apart"], figures["random requests to vllm"]
    adapters, lost = figures["adapters of vllm"], figures["engines of vllm lost under load"]
    left = figures["left ensemble on vllm, kv_free_ms"]
    memory = adapters["engine_mib"]
    rows = [
        ["random requests, right and wrong ones together", f"{fuzz['requests']:,}", _ends(fuzz["ends"])],
        [
            f"engines killed and hung under {lost['users']} users, by turns", str(lost["lost"]), _ends(lost["ends"]),
        ],
        [
            "requests to 20 adapters, which come and go meanwhile", f"{sum(adapters['outcomes'].values()):,}",
            f"{_ends(adapters['outcomes'])}; the engine's memory {memory[4]:.0f} MiB after 5 rounds, "
            f"{memory[-1]:.0f} after {adapters['rounds']}",
        ],
        [
            "texts, prefill and decode apart", f"{texts['requests']:,}",
            f"all as of one server; of the long prompts {_ends(texts['prompts_of_the_prefill_server'])}",
        ],
        *(
            [
                f"{side} engine killed under 4 users", str(killed["kills"]),
                f"of {killed['requests']:,} requests {_ends(killed['ends'])}",
            ]
            for side in ("prefill", "decode")
            for killed in [figures[f"{side} killed under load"]]
        ),
        ["losses of an engine with two ranks: seconds until told", *_losses()],
        [
            "clients that leave: ms until their KV blocks are free", str(left["clients"]),
            f"p50 {left['p50']:.0f}, p99 {left['p99']:.0f}",
        ],
    ]  # fmt: skip
    tests = ", ".join(f"{number} {end}" for end, number in found["tests"].items())
    table = markdown_table(["", "number", "what became of them"], rows)
    return f"{table}\n\nTests of the first run: {tests}. From {source(_SOAK, _RANKS)}"


def event_cost() -> str:
    """Return what telling KV events costs the engine's step, the server's processes and the throughput."""
    found = latest(_EVENTS)
    by_side = {row["side"]: row for row in found["rows"]}
    off = by_side["off"]
    rows = [
        [
            title,
            *(with_interval(by_side[side][name]) for name in ("step_ratio", "cpu_ratio", "throughput_ratio")),
            f"{by_side[side]['told_bytes_per_request']['median']:.0f}",
        ]
        for side, title in _EVENT_SIDES.items()
    ]
    header = ["", "step, ratio", "CPU time, ratio", "tokens/s, ratio", "bytes told, a request"]
    return (
        f"{markdown_table(header, rows)}\n\nMedians of {found['rounds']} rounds, 90 % intervals; without events "
        f"{off['step_us']['median'] / 1000:.1f} ms a step, {off['cpu_us_per_request']['median'] / 1000:.0f} ms of CPU "
        f"time a request. From {source(_EVENTS)}"
    )


def drafts() -> str:
    """Return what is accepted of each kind of drafts, and tokens/s with drafts over those without."""
    found = latest(_SPECULATION)
    by_row = {(row["text"], row["requests"], row["side"]): row for row in found["rows"]}
    rows = []
    for text, title in _TEXTS.items():
        for requests in sorted({requests for _, requests, _ in by_row}):
            of_sides = [by_row[text, requests, side] for side in _DRAFTS]
            cells = [(f"{row['acceptance_rate']:.0%}", with_interval(row["ratio"])) for row in of_sides]
            rows.append([title, str(requests), *(cell for pair in cells for cell in pair)])
    header = ["text", "requests", *(cell for title in _DRAFTS.values() for cell in (f"{title}: accepted", "tokens/s"))]
    return (
        f"{markdown_table(header, rows)}\n\nTokens/s over those without drafts, medians of {found['pairs']} pairs, "
        f"90 % intervals; {found['draft_tokens_a_step']} drafts a step, {found['output_tokens']} tokens an answer, "
        f"greedy, demo model. From {source(_SPECULATION)}"
    )


WRITERS = {
    DOCS / "vllm.md": lambda text: with_tables(text, {"long checks": long_checks(), "drafts": drafts()}),
    DOCS / "kv_events.md": lambda text: with_tables(text, {"cost": event_cost()}),
}


def _losses() -> tuple[str, str]:
    """Return how often an engine with two ranks lost a process, and the seconds until each kind was told."""
    turns = list(latest(_RANKS)["figures"].values())
    seconds = {victim: sorted(turn[victim] for turn in turns) for victim in _VICTIMS}
    told = [f"{_VICTIMS[victim]} {found[0]:.1f} to {found[-1]:.1f}" for victim, found in seconds.items()]
    return str(sum(map(len, seconds.values()))), ", ".join(told)


def _ends(ends: Document) -> str:
    def name(end: str) -> str:
        return f"HTTP {end}" if end.isdigit() else end.strip("[]")

    return ", ".join(f"{number:,} {name(end)}" for end, number in sorted(ends.items(), key=lambda one: -one[1]))
