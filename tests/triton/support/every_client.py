# SPDX-License-Identifier: Apache-2.0
"""A load of 32 streams of clients that know nothing of a rollout, each answer checked to its last character.

tritonclient over a gRPC stream (12), upstream's end-to-end client (4; its tensors and calls, written after it), curl to
`generate` (2) and `generate_stream` (2), perf_analyzer (6) and Locust (6), the last three the programs themselves.
"""

import contextlib
import json
import random
import subprocess
import threading
import time
from collections import Counter
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import NamedTuple, Self

from raw_calls import StreamFailed, stream
from running_server import PROJECT, RunningServer
from streams_under_change import MAX_TOKENS, PROMPTS
from upstream_calls import TRUE, listed, one
from upstream_clients import Flag, end_to_end

PERF_ANALYZER = PROJECT / ".tools/perf-analyzer/path/perf_analyzer"
LOCUST = PROJECT / ".tools/bench/bin/locust"

STREAMS = {"tritonclient": 12, "end-to-end": 4, "curl generate": 2, "curl generate_stream": 2}
PROGRAMS = {"perf_analyzer": 6, "Locust": 6}
_PERF_REQUESTS = 60  # of one run of perf_analyzer, which tells of them at its end

LOCUSTFILE = """
import json, random, time
from locust import HttpUser, constant, task

PROMPTS = json.load(open("prompts.json"))


class Asker(HttpUser):
    wait_time = constant(0.5)

    @task
    def ask(self):
        prompt = random.choice(PROMPTS)
        body = {"text_input": prompt, "max_tokens": MAX_TOKENS, "exclude_input_in_output": True}
        with self.client.post("/v2/models/ensemble/generate", json=body, catch_response=True) as answer:
            found = {"at_s": time.time(), "prompt": prompt}
            if answer.ok:
                found["text"] = answer.json()["text_output"]
            else:
                found["error"] = answer.text or str(answer.error)
            with open("answers.jsonl", "a") as file:
                file.write(json.dumps(found) + "\\n")
"""


class Answer(NamedTuple):
    """An answer to one client, or the error in its place."""

    client: str
    at_s: float
    prompt: str
    text: str
    error: str = ""


class EveryClient:
    """The load, from entering to leaving.

    Args:
        max_tokens: of each answer.

    Attributes:
        answers: all answers so far; those of perf_analyzer come in portions.
    """

    def __init__(
        self, server: RunningServer, folder: Path, *, pause_s: float = 0.5, max_tokens: int = MAX_TOKENS
    ) -> None:
        self._server = server
        self._folder = folder
        self._pause_s = pause_s
        self._max_tokens = max_tokens
        self._is_over = threading.Event()
        self._lock = threading.Lock()
        self.answers: list[Answer] = []
        ways: dict[str, Callable[[str], str]] = {
            "tritonclient": self._tritonclient,
            "end-to-end": self._end_to_end,
            "curl generate": lambda prompt: self._curl(prompt, "generate"),
            "curl generate_stream": lambda prompt: self._curl(prompt, "generate_stream"),
        }
        self._threads = [
            threading.Thread(target=self._ask, args=(client, ways[client], random.Random(f"{client} {number}")))
            for client, num in STREAMS.items()
            for number in range(num)
        ]
        self._threads.append(threading.Thread(target=self._perf_analyzer))

    def __enter__(self) -> Self:
        self._folder.mkdir(parents=True)
        (self._folder / "prompts.json").write_text(json.dumps(PROMPTS))
        (self._folder / "locustfile.py").write_text(f"MAX_TOKENS = {self._max_tokens}\n{LOCUSTFILE}")
        (self._folder / "answers.jsonl").touch()
        users = str(PROGRAMS["Locust"])
        with (self._folder / "locust.log").open("wb") as log:
            self._locust = subprocess.Popen(
                [str(LOCUST), "-f", "locustfile.py", "--headless", "-u", users, "-r", users, "--host", self._http()],
                cwd=self._folder,
                stdout=log,
                stderr=log,
            )
        for thread in self._threads:
            thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._is_over.set()
        self._locust.terminate()
        for thread in self._threads:
            thread.join()
        self._locust.wait(60)
        for line in (self._folder / "answers.jsonl").read_text().splitlines():
            self._note(Answer("Locust", **{"text": "", **json.loads(line)}))

    def _http(self) -> str:
        return f"http://127.0.0.1:{self._server.http_port}"

    def _note(self, answer: Answer) -> None:
        with self._lock:
            self.answers.append(answer)

    def _ask(self, client: str, way: Callable[[str], str], rng: random.Random) -> None:
        while not self._is_over.wait(rng.expovariate(1 / self._pause_s)):
            prompt = rng.choice(PROMPTS)
            try:
                text, error = way(prompt), ""
            except Exception as exc:  # whatever a client's library raises; told as the answer's error
                text, error = "", str(exc) or type(exc).__name__
            self._note(Answer(client, time.time(), prompt, text, error))

    def _tritonclient(self, prompt: str) -> str:
        tensors = {
            "text_input": prompt,
            "max_tokens": self._max_tokens,
            "exclude_input_in_output": True,
            "stream": True,
        }
        responses = stream(self._server.url, "ensemble", tensors)
        return "".join(response["text_output"].item().decode() for response in responses)

    def _end_to_end(self, prompt: str) -> str:
        sends = {
            "text_input": listed(prompt),
            "max_tokens": one(self._max_tokens, "int32"),
            "exclude_input_in_output": TRUE,
        }
        found = end_to_end(self._server, "ensemble", Flag(sends), streaming=True)
        if isinstance(found, str):
            raise StreamFailed(found)
        [[text]] = found
        return text

    def _curl(self, prompt: str, method: str) -> str:
        body = {"text_input": prompt, "max_tokens": self._max_tokens, "exclude_input_in_output": True}
        body |= {"stream": method == "generate_stream"}
        url = f"{self._http()}/v2/models/ensemble/{method}"
        command = ["curl", "--silent", "--show-error", "--no-buffer", url, "--data", json.dumps(body)]
        said = subprocess.run(command, capture_output=True, text=True, check=False)
        if said.returncode:
            raise StreamFailed(said.stderr)
        events = [json.loads(line.removeprefix("data: ")) for line in said.stdout.splitlines() if line]
        errors = [event["error"] for event in events if "error" in event]
        if errors:
            raise StreamFailed(errors[0])
        return "".join(str(event["text_output"]) for event in events)

    def _perf_analyzer(self) -> None:
        rows = [
            {
                "text_input": [prompt],
                "max_tokens": [self._max_tokens],
                "stream": [True],
                "exclude_input_in_output": [True],
            }
            for prompt in PROMPTS
        ]
        (self._folder / "input.json").write_text(json.dumps({"data": rows}))
        number = 0
        while not self._is_over.is_set():
            number += 1
            export = self._folder / f"perf_{number}.json"
            said = subprocess.run(
                [
                    str(PERF_ANALYZER), "-m", "ensemble", "-u", self._server.url, "-i", "grpc", "--async",
                    "--streaming", "--input-data", "input.json", "--profile-export-file", export.name,
                    "--concurrency-range", str(PROGRAMS["perf_analyzer"]), "--request-count", str(_PERF_REQUESTS),
                ],
                cwd=self._folder, capture_output=True, text=True, check=False,
            )  # fmt: skip
            if said.returncode:
                self._note(Answer("perf_analyzer", time.time(), "", "", said.stdout + said.stderr))
                continue
            # It now and then ends without the last of its buffer; what it asked is answered all the same.
            with contextlib.suppress(json.JSONDecodeError):
                for request in json.loads(export.read_text())["experiments"][0]["requests"]:
                    self._note(_of_perf(request))


def _of_perf(request: dict[str, object]) -> Answer:
    outputs, inputs = request["response_outputs"], request["request_inputs"]
    assert isinstance(outputs, list)
    assert isinstance(inputs, dict)
    text = "".join(output.get("text_output", "") for output in outputs)
    times = request["response_timestamps"]
    assert isinstance(times, list)
    error = "" if request.get("success", True) else "failed"
    return Answer("perf_analyzer", times[-1] / 1e9 if times else 0.0, str(inputs["text_input"]), text, error)


def releases_of(
    answers: list[Answer], by_release: Mapping[int, Mapping[str, str]]
) -> Iterator[tuple[Answer, int | None]]:
    """Yield each answer with the release whose text it is; None: of none, or an error."""
    for answer in answers:
        said = (release for release, texts in by_release.items() if texts.get(answer.prompt) == answer.text)
        yield answer, None if answer.error else next(said, None)


def by_client(
    answers: list[Answer], by_release: Mapping[int, Mapping[str, str]], begin_s: float, end_s: float
) -> dict[str, Counter[int]]:
    """Return how many answers of each release every client got between two times, of those with a release's text."""
    found: dict[str, Counter[int]] = {}
    for answer, release in releases_of(answers, by_release):
        if release is not None and begin_s <= answer.at_s < end_s:
            found.setdefault(answer.client, Counter())[release] += 1
    return found
