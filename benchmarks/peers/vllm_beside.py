# SPDX-License-Identifier: Apache-2.0
"""Cancels and texts of vLLM's core behind Triton, beside vLLM's own server: when blocks are free, which texts differ.

A client of each opens one stream, reads some of it and leaves; the time counts from its close until the server's
metrics tell that no KV block is used. Both pages of metrics are asked again and again, so that the time of an answer of
the page is in the figure.
"""

import asyncio
import contextlib
import http.client
import json
import random
import statistics
import time
import urllib.parse
import urllib.request
from collections.abc import Callable, Iterator, Sequence
from typing import Protocol

import msgspec

from benchmarks.peers import model_files
from benchmarks.peers.peer import AskedServer
from benchmarks.peers.vllm_cpu import VllmCpu
from benchmarks.peers.vllm_engine import NAME, deployment
from benchmarks.support.through_ensemble import ThroughEnsemble
from clients.streaming import AsyncTritonClient, GenerateRequest
from trireme.base.errors import ServerError
from trireme.base.sample_statistics import percentile

_LONG = 1000  # tokens of a stream that somebody leaves
_TEXT_TOKENS = 64
_FREE_S = 30.0
_CUT = "\ufffd"  # what we say of a character that max_tokens cuts, of which vLLM's server says nothing
# Prompts, and what an answer is made of: by itself a model of random weights writes ASCII, whatever it is asked.
SCRIPTS = {
    "Latin": ("Once upon a time there was a fox, and", "[a-zé ]"),
    "Thai": ("เมืองหลวงของฝรั่งเศสคือ", "[ก-ฮะ-ูเ-ๅ่-๋ ]"),
    "Arabic": ("ما هي عاصمة فرنسا؟", "[ء-غف-يً-ْ ]"),
    "Hebrew": ("מהי בירת צרפת?", "[א-ת ]"),
    "Devanagari": ("फ्रांस की राजधानी क्या है?", "[क-हा-्ँ-ः ]"),
    "Chinese": ("法国的首都是哪里？", "[一-龥。，]"),
    "Japanese": ("フランスの首都はどこですか？", "[ぁ-んァ-ン一-龥]"),
    "Korean": ("프랑스의 수도는 어디입니까?", "[가-힣]"),
    "emoji with joiners": ("👩‍👩‍👧‍👦 🏳️‍🌈 👩🏽‍💻", "(👩‍👩‍👧‍👦|🏳️‍🌈|👩🏽‍💻|😀)"),
    "combining marks": ("Z͑ͫ̓ͪ̂ͫ̽͏̴̙̤̞͉͚̯̞̠͍A̴̵̜̰͔ͫ͗͢L̠ͨͧͩ͘G̴̻͈͍͔̹̑͗̎̅͛́Ǫ̵̹̻̝̳͂̌̌͘!", "([a-e]|[\u0300-\u036f])"),
    "code": ("def f(x):\n\treturn x ** 2\n", "(\\t|\\n|[a-z0-9=+*() ])"),
}


class Cancels(msgspec.Struct, frozen=True):
    """The times from the close of a client until no KV block is used."""

    side: str
    clients: int
    kv_free_p50_ms: float
    kv_free_p99_ms: float
    kv_free_max_ms: float


class Texts(msgspec.Struct, frozen=True):
    """The texts of a script that both servers made from the same prompts, greedily."""

    script: str
    texts: int
    equal: int
    equal_but_for_a_cut_character: int
    stopped: int  # of them, by a stop string


class _Side(Protocol):
    """A server that is asked for texts, and left."""

    name: str

    def text(self, prompt: str, script: str, stop: str | None) -> str:
        """Return the greedy text of a script after a prompt, up to a stop string."""

    def leave(self, prompt: str, after_chunks: int) -> float:
        """Open a stream, leave it after some chunks, and return when (of time.monotonic)."""

    def used_blocks(self) -> float:
        """Return what the metrics tell of used KV blocks; 0: none is used."""


class _Ours:
    name = NAME

    def __init__(self, server: ThroughEnsemble) -> None:
        self._server = server

    def text(self, prompt: str, script: str, stop: str | None) -> str:
        return asyncio.run(
            self._text(
                GenerateRequest(
                    text_input=prompt,
                    max_tokens=_TEXT_TOKENS,
                    stream=True,
                    exclude_input_in_output=True,
                    guided_decoding_guide_type="regex",
                    guided_decoding_guide=_guide(script),
                    stop_words=None if stop is None else (stop,),
                )
            )
        )

    async def _text(self, request: GenerateRequest) -> str:
        async with AsyncTritonClient(self._server.url) as client:
            return "".join([chunk.text async for chunk in client.generate(request)])

    def leave(self, prompt: str, after_chunks: int) -> float:
        asked = GenerateRequest(text_input=prompt, max_tokens=_LONG, min_tokens=_LONG, stream=True)
        return asyncio.run(self._leave(asked, after_chunks))

    async def _leave(self, request: GenerateRequest, after_chunks: int) -> float:
        async with AsyncTritonClient(self._server.url) as client:
            chunks = client.generate(request)
            for _ in range(after_chunks):
                await anext(chunks)
            await asyncio.to_thread(_wait_for_blocks, self)
            left_s = time.monotonic()
            await chunks.aclose()
            return left_s

    def used_blocks(self) -> float:
        return _gauge(self._server.metrics, "trireme_kv_cache_usage_fraction")


def _guide(script: str) -> str:
    """Return the regular expression of a text that no limit of tokens lets end."""
    return f"{SCRIPTS[script][1]}{{{10 * _TEXT_TOKENS}}}"


class _Theirs:
    name = VllmCpu.name

    def __init__(self, url: str) -> None:
        self._address = urllib.parse.urlsplit(url).netloc

    def text(self, prompt: str, script: str, stop: str | None) -> str:
        more: dict[str, object] = {"structured_outputs": {"regex": _guide(script)}}
        more |= {} if stop is None else {"stop": [stop]}
        with contextlib.closing(self._opened(prompt, _TEXT_TOKENS, more)) as connection:
            answer = json.load(connection.getresponse())
        if "choices" not in answer:
            raise ServerError(f"{self.name} refuses a text in {script}: {answer}")
        return str(answer["choices"][0]["text"])

    def leave(self, prompt: str, after_chunks: int) -> float:
        connection = self._opened(prompt, _LONG, {"ignore_eos": True, "stream": True})
        response = connection.getresponse()
        seen = 0
        while seen < after_chunks:
            seen += response.readline().startswith(b"data: ")
        _wait_for_blocks(self)
        left_s = time.monotonic()
        response.close()
        connection.close()
        return left_s

    def used_blocks(self) -> float:
        return _gauge(self._address, "vllm:kv_cache_usage_perc")

    def _opened(self, prompt: str, num_tokens: int, more: dict[str, object]) -> http.client.HTTPConnection:
        connection = http.client.HTTPConnection(self._address, timeout=120)
        body = {"model": model_files.MODEL, "prompt": prompt, "max_tokens": num_tokens, "temperature": 0.0, **more}
        connection.request("POST", "/v1/completions", json.dumps(body), {"Content-Type": "application/json"})
        return connection


def _gauge(address: str, name: str) -> float:
    """Return the sum of a gauge of a page of metrics, of whichever server; its lines are looked at, and not parsed."""
    with urllib.request.urlopen(f"http://{address}/metrics", timeout=10) as response:
        lines = response.read().decode().splitlines()
    return sum(float(line.rpartition(" ")[2]) for line in lines if line.startswith(f"{name}{{"))


def _wait_for_blocks(side: _Side) -> None:
    """Wait until the metrics tell that KV blocks are used: they come a moment after the first tokens."""
    began_s = time.monotonic()
    while side.used_blocks() == 0:
        if time.monotonic() > began_s + _FREE_S:
            raise ServerError(f"{side.name}: its metrics tell of no used KV block while a stream runs")


def beside(num_clients: int, num_texts: int, *, seed: int, tell: Callable[[str], None]) -> dict[str, object]:
    """Start vLLM's server and then ours, each alone, and return `cancels` of both and `texts` of each script.

    Args:
        num_clients: clients that leave, of each server.
        num_texts: prompts of each script; each is asked without a stop string, and with one from its answer.
        seed: of the prompts and of the stop strings.
        tell: says what is done.

    Raises:
        ServerError: a server does not start, or does not free its KV blocks.
    """
    prompts = _prompts(num_texts, seed)
    cancels: list[Cancels] = []
    tell(f"cancels and texts: {VllmCpu.name}")
    with _theirs_started() as theirs:
        plain = {prompt: theirs.text(prompt, script, None) for script, prompt in prompts}
        stops = {prompt: _stop_in(text, seed) for prompt, text in plain.items()}
        stopped = {prompt: theirs.text(prompt, script, stops[prompt]) for script, prompt in prompts}
        cancels.append(_cancels(theirs, num_clients, seed))
    tell(f"cancels and texts: {NAME}")
    with ThroughEnsemble(deployment()) as server:
        ours = _Ours(server)
        texts = [
            _compared(
                script,
                [(plain[prompt], ours.text(prompt, of, None)) for of, prompt in prompts if of == script],
                [(stopped[prompt], ours.text(prompt, of, stops[prompt])) for of, prompt in prompts if of == script],
            )
            for script in SCRIPTS
        ]
        cancels.append(_cancels(ours, num_clients, seed))
    return {"cancels": msgspec.to_builtins(cancels), "texts": msgspec.to_builtins(texts)}


@contextlib.contextmanager
def _theirs_started() -> Iterator[_Theirs]:
    with VllmCpu(beside=NAME).started() as started:
        assert isinstance(started, AskedServer)
        yield _Theirs(started.url)


def _prompts(num_texts: int, seed: int) -> list[tuple[str, str]]:
    """Return each script's prompts: its words in an order of the seed's, with a number that makes them different."""
    found = []
    for script, (text, _) in SCRIPTS.items():
        for number in range(num_texts):
            words = text.split(" ")
            random.Random(f"{seed} {script} {number}").shuffle(words)
            found.append((script, f"{' '.join(words)} {number}"))
    return found


def _stop_in(text: str, seed: int) -> str:
    """Return one to three characters of the middle of a text."""
    rng = random.Random(f"{seed} {text}")
    first = rng.randrange(len(text) // 4, max(len(text) // 4 + 1, 3 * len(text) // 4))
    return text[first : first + rng.randrange(1, 4)].replace(_CUT, "") or "zzz"


def _compared(script: str, plain: Sequence[tuple[str, str]], stopped: Sequence[tuple[str, str]]) -> Texts:
    pairs = [*plain, *stopped]
    return Texts(
        script=script,
        texts=len(pairs),
        equal=sum(theirs == ours for theirs, ours in pairs),
        equal_but_for_a_cut_character=sum(theirs.rstrip(_CUT) == ours.rstrip(_CUT) for theirs, ours in pairs),
        stopped=sum(theirs != whole for (whole, _), (theirs, _) in zip(plain, stopped, strict=True)),
    )


def _cancels(side: _Side, num_clients: int, seed: int) -> Cancels:
    rng, found = random.Random(seed), []
    for number in range(num_clients + 1):
        left_s = side.leave(f"{SCRIPTS['Latin'][0]} {number}", rng.randrange(2, 12))
        while side.used_blocks() > 0:
            if time.monotonic() > left_s + _FREE_S:
                raise ServerError(f"{side.name}: KV blocks were used {_FREE_S:g} s after a client had left")
        if number:  # the first one warms up
            found.append(1000 * (time.monotonic() - left_s))
    return Cancels(
        side=side.name,
        clients=num_clients,
        kv_free_p50_ms=statistics.median(found),
        kv_free_p99_ms=percentile(found, 99),
        kv_free_max_ms=max(found),
    )
