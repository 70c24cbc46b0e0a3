# SPDX-License-Identifier: Apache-2.0
"""Prompts computed by one Triton and answered by another, each with a real engine of vLLM: text, ends, kills."""

import contextlib
import random
import threading
from collections import Counter
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from pathlib import Path

import pytest
from fake_packages import install_fake
from fake_tensorrt_llm import write_checkpoint, write_engine
from running_server import RunningServer, deployment_text
from vllm_own_server import ENGINE, MODEL
from waiting import wait_idle, wait_until

from benchmarks.soak import Evidence
from clients.streaming import GenerateRequest, TritonClient
from ensemble_configs.spec.release_spec import TokenizerSpec
from serving.telemetry.request_metrics import PREFILL_OUTCOMES
from serving.text.tokenization import PromptTokenizer
from trireme.base.errors import ServingError

READY_S = 240.0
LEASE_S = 5
MIN_PROMPT_TOKENS = 64
SEED = 20261129
WORDS = PromptTokenizer.from_spec(TokenizerSpec(dir=MODEL))


def engine_of(role: str) -> dict[str, object]:
    """Return an engine that computes exactly the same alone and in a batch."""
    transfer = {"role": role, "host": "127.0.0.1", "lease_s": LEASE_S}
    return ENGINE | {"dtype": "float32", "num_threads": 1, "watchdog_s": 20.0, "kv_transfer": transfer}


@pytest.fixture(scope="module")
def prefill(tmp_path_factory: pytest.TempPathFactory) -> Iterator[RunningServer]:
    text = deployment_text("prefill", engine=engine_of("prefill"))
    with RunningServer(text, tmp_path_factory.mktemp("prefill"), ready_s=READY_S) as running:
        yield running


@pytest.fixture(scope="module")
def decode(prefill: RunningServer, tmp_path_factory: pytest.TempPathFactory) -> Iterator[RunningServer]:
    servers = {"urls": [prefill.url], "min_prompt_tokens": MIN_PROMPT_TOKENS, "timeout_s": 60.0}
    text = deployment_text("decode", engine=engine_of("decode"), prefill_servers=servers)
    with RunningServer(text, tmp_path_factory.mktemp("decode"), ready_s=READY_S) as running:
        yield running


def requests_of(seed: int, count: int) -> list[GenerateRequest]:
    """Return requests of all kinds, with prompts of some to some hundred tokens, of which the short stay."""
    draw = random.Random(seed)
    vocabulary = ["the", "fox", "and", "a", "river", "runs", "23", "+", "over", "night"]
    kinds: list[dict[str, object]] = [
        {},
        {"temperature": 1.2, "top_k": 40},
        {"temperature": 0.9, "top_p": 0.9},
        {"repetition_penalty": 1.3},
        {"frequency_penalty": 1.0, "min_tokens": 4},
        {"stop_words": ("the",)},
        {"guided_decoding_guide_type": "regex", "guided_decoding_guide": "[a-z]{3,8}"},
    ]
    found = []
    for number in range(count):
        num_words = draw.choice([8, 70, 100, 150, 200, 300, 400, 600])
        options = {"seed": number, "stream": True, "exclude_input_in_output": True, **draw.choice(kinds)}
        text = " ".join(draw.choices(vocabulary, k=num_words))
        found.append(GenerateRequest(text_input=text, max_tokens=draw.randint(1, 24), **options))  # type: ignore[arg-type]
    return found


def answer_of(server: RunningServer, request: GenerateRequest) -> str:
    """Return the text, or the error by name."""
    with TritonClient(server.url) as client:
        try:
            return "".join(chunk.text for chunk in client.generate(request))
        except ServingError as exc:
            return f"[{exc.facts.get('reason', exc.code)}]"


def answers_of(server: RunningServer, requests: list[GenerateRequest], num_users: int) -> list[str]:
    with ThreadPoolExecutor(num_users) as users:
        return list(users.map(partial(answer_of, server), requests))


def outcomes(decode: RunningServer) -> Counter[str]:
    found: Counter[str] = Counter()
    for outcome in PREFILL_OUTCOMES:
        with contextlib.suppress(AssertionError):  # nothing has been asked for yet
            found[outcome] = int(decode.metric("trireme_remote_prefills_total", model="ensemble", outcome=outcome))
    return found


def num_long(requests: list[GenerateRequest]) -> int:
    """Return how many requests have a prompt for the prefill server, and more than one token to answer."""
    return sum(
        len(WORDS.encode(str(request.text_input))) >= MIN_PROMPT_TOKENS and (request.max_tokens or 0) > 1
        for request in requests
    )


def check_text(prefill: RunningServer, decode: RunningServer, seed: int, count: int) -> Counter[str]:
    """Compare the text to that of one server, and return what became of the long prompts."""
    requests = requests_of(seed, count)
    before = outcomes(decode)
    found = answers_of(decode, requests, 4)
    assert found == answers_of(prefill, requests, 4)  # where each is answered by the engine that computes its prompt
    wait_until(lambda: outcomes(decode) - before == Counter(computed=num_long(requests)), 10)
    wait_idle(decode, 10)
    wait_idle(prefill, 10)
    return outcomes(decode) - before


@pytest.mark.timeout(900)
def test_text_is_that_of_one_server_and_no_block_is_left(prefill: RunningServer, decode: RunningServer) -> None:
    check_text(prefill, decode, SEED, 40)


@pytest.mark.soak
@pytest.mark.timeout(3600)
def test_five_hundred_texts_are_those_of_one_server(
    prefill: RunningServer, decode: RunningServer, evidence: Evidence
) -> None:
    found = check_text(prefill, decode, SEED + 1, 500)
    evidence.note("texts of prefill and decode apart", {"requests": 500, "prompts_of_the_prefill_server": found})


def test_clients_that_leave_at_any_moment_leave_no_block(prefill: RunningServer, decode: RunningServer) -> None:
    requests = [request for request in requests_of(SEED + 2, 40) if len(str(request.text_input)) > 300]
    draw = random.Random(SEED)
    with TritonClient(decode.url) as client:
        for request in requests:
            # Before its prompt is computed, while it is, and behind the first token.
            with contextlib.suppress(ServingError):
                next(client.generate(request, timeout_s=0.002 + draw.random() * 0.08))
    wait_idle(decode, 10)
    wait_idle(prefill, LEASE_S + 10)
    assert answers_of(decode, requests[:3], 1) == answers_of(prefill, requests[:3], 1)


def check_kills(prefill: RunningServer, decode: RunningServer, killed: RunningServer, count: int) -> Counter[str]:
    """Kill one side's engine again and again under load; every request is answered right or failed by name.

    Returns:
        How many requests were answered right, and how many failed by each name.
    """
    requests = requests_of(SEED + 3, 24)
    wanted = answers_of(prefill, requests, 4)
    draw = random.Random(SEED)
    allowed = {"[engine_died]", "[engine_restarting]"} if killed is decode else set()
    ends: Counter[str] = Counter()
    for _ in range(count):
        engine = killed.engine_process()
        killing = threading.Timer(draw.random() * 1.5, engine.kill)
        killing.start()
        found = answers_of(decode, requests, 4)
        killing.join()
        ends.update("right" if one == right else one for one, right in zip(found, wanted, strict=True))
        assert ends.keys() <= allowed | {"right"}
        wait_until(lambda: answer_of(killed, requests[0]) == wanted[0], READY_S)
        assert not engine.is_running()
        wait_idle(decode, 20)
        wait_idle(prefill, LEASE_S + 20)
    assert answers_of(decode, requests, 4) == wanted
    return ends


@pytest.mark.timeout(900)
def test_a_killed_prefill_engine_costs_no_answer(prefill: RunningServer, decode: RunningServer) -> None:
    check_kills(prefill, decode, prefill, 1)


@pytest.mark.timeout(900)
def test_a_killed_decode_engine_ends_its_requests_by_name(prefill: RunningServer, decode: RunningServer) -> None:
    check_kills(prefill, decode, decode, 1)


@pytest.mark.parametrize("provider", ["tensorrt", "pytorch"])
def test_the_stand_ins_of_tensorrt_llm_answer_in_two_phases(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, provider: str
) -> None:
    model = write_engine(tmp_path / "model") if provider == "tensorrt" else write_checkpoint(tmp_path / "model")
    engine = {"provider": provider, "dir": str(model), "max_seq_len": 2048, "cache_transceiver": {}}
    if provider == "pytorch":
        engine |= {"is_overlap_scheduler": False, "sampler": "trtllm"}
    monkeypatch.setenv("PYTHONPATH", str(install_fake(tmp_path / "packages")))
    requests = requests_of(SEED + 4, 20)
    plain = [request for request in requests if request.guided_decoding_guide is None]
    first = RunningServer(deployment_text("prefill", engine=engine), tmp_path / "prefill")
    servers = {"urls": [first.url], "min_prompt_tokens": MIN_PROMPT_TOKENS}
    second = RunningServer(deployment_text("decode", engine=engine, prefill_servers=servers), tmp_path / "decode")
    with first as prefill, second as decode:
        assert answers_of(decode, plain, 4) == answers_of(prefill, plain, 4)
        wait_until(lambda: outcomes(decode)["computed"] == num_long(plain), 10)
        wait_idle(decode, 10)
        wait_idle(prefill, 10)


@pytest.mark.soak
@pytest.mark.timeout(3600)
@pytest.mark.parametrize("side", ["prefill", "decode"])
def test_each_side_is_killed_twenty_times(
    prefill: RunningServer, decode: RunningServer, side: str, evidence: Evidence
) -> None:
    ends = check_kills(prefill, decode, {"prefill": prefill, "decode": decode}[side], 20)
    evidence.note(f"{side} killed under load", {"kills": 20, "requests": ends.total(), "ends": ends})
