# SPDX-License-Identifier: Apache-2.0
"""The gate on the real server: rollouts of equal releases, and of slower ones, whose engines have different loads.

`python -m benchmarks.rollout_gate.server_trials`. The server splits the requests and tells their outcomes; the default
gate judges them, in compressed time: an engine's step takes a tenth of what is usual, `fade_s` is 2 s in place of 80.
The candidate's engine has half of the requests, and the stable one's has others beside: its queue and its batch are
its own. The engine is simulated.
"""

import asyncio
import contextlib
import random
import shutil
import threading
import time
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import asdict, dataclass, field
from pathlib import Path
from queue import Empty, Queue
from typing import Annotated, Any

import numpy as np
import typer

from benchmarks.rollout_gate.simulated_rollouts import share_of
from benchmarks.support.costless_server import demo_tokenizer
from benchmarks.support.report import environment, write_result
from benchmarks.support.through_ensemble import ThroughEnsemble
from clients.exact_prompts import PromptMaker
from clients.infer_messages import PINNING_MODEL
from clients.rollout_gate.gate import Gate, Judgement
from clients.rollout_gate.gate_spec import GateSpec
from clients.server_control import ServerControl
from clients.streaming import AsyncTritonClient, GenerateRequest
from ensemble_configs.render.repository import DEFAULT_DEPLOYMENT
from ensemble_configs.spec.deployment import DeploymentSpec, load_deployment
from ensemble_configs.split.outcome import Outcome
from ensemble_configs.split.outcome_journal import JournalReader
from trireme.base.errors import ServingError, Unavailable
from trireme.base.unix_socket import CONTROL_SOCKET

SPEC = GateSpec(fade_s=2.0)
_STABLE, _EQUAL, _SLOWER = 1, 2, 3
_MODELS = ("ensemble", PINNING_MODEL)  # for requests that name no release, and for those that name one
_LIKE, _LONGER = "equal", "steps 10 % longer"
_NAME = "gate_server_trials"
_STEP_MS, _TIMES_SLOWER = 4.0, 1.1
_MAX_NUM_SEQS = 6
_PROMPT_TOKENS = (8, 16, 32, 64, 128)
_OUTPUT_TOKENS = (8, 24)
_LOOK_S, _LEASE_S = 0.5, 5.0
_MERGED_S = SPEC.fade_s / 8  # outcomes of such a time come together, as those of a second do by default
_MOST_S = 120.0  # of a rollout
_READY_S = 30.0


@dataclass(frozen=True)
class Ended:
    """The end of one rollout.

    Attributes:
        by: metrics that failed it.
    """

    verdict: str
    num_requests: int
    seconds: float
    reason: str
    by: list[str] = field(default_factory=list)


class Load(threading.Thread):
    """Requests at random times until left: those that name no release, and the others of the stable one.

    Args:
        per_s: requests a second that name no release.
        beside_per_s: requests a second that name the stable release.
    """

    def __init__(self, url: str, *, per_s: float, beside_per_s: float) -> None:
        super().__init__(name="load")
        self._url, self._rates = url, {None: per_s, _STABLE: beside_per_s}
        self._is_over = threading.Event()
        self.num_answers = Counter[str]()
        self._prompts = {
            tokens: PromptMaker(demo_tokenizer(), input_tokens=tokens, seed=tokens).prompts(64)
            for tokens in _PROMPT_TOKENS
        }

    def __enter__(self) -> "Load":
        self.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._is_over.set()
        self.join()

    def run(self) -> None:
        """Send the requests."""
        asyncio.run(self._send())

    async def _send(self) -> None:
        async with AsyncTritonClient(self._url) as client:
            await asyncio.gather(*(self._arrive(client, release, rate) for release, rate in self._rates.items()))

    async def _arrive(self, client: AsyncTritonClient, release: int | None, per_s: float) -> None:
        rng, running = random.Random(release), set[asyncio.Task[None]]()
        next_s = time.monotonic()
        while not self._is_over.is_set():
            next_s += rng.expovariate(per_s)
            await asyncio.sleep(max(0.0, next_s - time.monotonic()))
            running.add(task := asyncio.create_task(self._ask(client, release, rng)))
            task.add_done_callback(running.discard)
        await asyncio.gather(*running)

    async def _ask(self, client: AsyncTritonClient, release: int | None, rng: random.Random) -> None:
        tokens = rng.randint(*_OUTPUT_TOKENS)
        request = GenerateRequest(
            text_input=rng.choice(self._prompts[rng.choice(_PROMPT_TOKENS)]),
            max_tokens=tokens,
            min_tokens=tokens,
            exclude_input_in_output=True,
        )
        try:
            async for _ in client.generate(request, model=_MODELS[release is not None], release=release):
                pass
        except ServingError as exc:
            self.num_answers[type(exc).__name__] += 1
        else:
            self.num_answers["answered"] += 1


def deployment(name: str) -> DeploymentSpec:
    """Return the deployment of the stable release."""
    return DeploymentSpec.model_validate(
        {
            "name": name,
            "tokenizer": load_deployment(DEFAULT_DEPLOYMENT).model.tokenizer.model_dump(mode="json"),
            "engine": {
                "provider": "simulated",
                "step_ms": _STEP_MS,
                "decode_us_per_seq": 100.0,
                "max_num_seqs": _MAX_NUM_SEQS,
                "num_kv_blocks": 4096,
                "seed": 1,
            },
            "endpoints": ["ensemble", "tensorrt_llm_bls"],
        }
    )


class Trials:
    """The rollouts on one server, one after the other.

    Args:
        control: control of the server.
    """

    def __init__(self, control: ServerControl) -> None:
        self._control = control
        self._number = 0

    def add(self, release: int, engine: Mapping[str, object]) -> None:
        """Load a release like the stable one, but for what is named."""
        models: Any = self._control.ask("status")["models"]
        stable = models[0]["releases"][0]
        added = {**stable, "release": release, "engine": {**stable["engine"], **engine}}
        until_s = time.monotonic() + _READY_S  # the models take requests a moment before the control does
        while True:
            try:
                self._control.ask("add", release=added, is_canary=False)
            except Unavailable:
                if time.monotonic() > until_s:
                    raise
                time.sleep(_LOOK_S)
            else:
                return

    def run(self, candidate: int) -> Ended:
        """Judge a candidate until there is a verdict."""
        self._number += 1
        gate, evidence = Gate(SPEC), None
        begun_s, kept_s = time.monotonic(), -_LEASE_S
        cursor: Mapping[str, int] = {}
        while True:
            now_s = time.monotonic()
            if now_s - kept_s > _LEASE_S / 3:
                journal, kept_s = self._split(candidate), now_s
            time.sleep(_LOOK_S)
            part = JournalReader(journal).read(cursor)
            cursor = part.cursor
            for at_s, outcomes in _by_time(
                [(line.at_s, line.outcome) for line in part.lines if line.rollout == self._number]
            ).items():
                evidence = gate.merge(evidence, outcomes, at_s=at_s)
            found = gate.judge(evidence)
            seconds = time.monotonic() - begun_s
            if found.is_final or seconds > _MOST_S:
                verdict = found.verdict if found.verdict in ("pass", "fail") else "hold"
                return Ended(verdict, found.num_requests, round(seconds, 1), found.reason, _failed_by(found))

    def _split(self, candidate: int) -> Path:
        shares = [
            {"upto": 0.5, "release": candidate, "arm": "candidate"},
            {"upto": 1.0, "release": _STABLE, "arm": "baseline"},
        ]
        asked: dict[str, Any] = {"rollout": self._number, "step": 0, "hash_seed": f"{candidate} {self._number}"}
        return Path(str(self._control.ask("split", shares=shares, lease_s=_LEASE_S, **asked)["journal"]))


def _by_time(lines: Sequence[tuple[float, Outcome]]) -> dict[float, list[Outcome]]:
    found: dict[float, list[Outcome]] = {}
    for at_s, outcome in sorted(lines, key=lambda line: line[0]):
        found.setdefault(at_s // _MERGED_S * _MERGED_S, []).append(outcome)
    return found


def _failed_by(judgement: Judgement) -> list[str]:
    metrics: Any = judgement.report["metrics"]
    return [each["name"] for each in metrics if each["is_worse"]] if judgement.verdict == "fail" else []


def figures_of(name: str, ended: Sequence[Ended]) -> dict[str, Any]:
    """Return the shares of verdicts, with one-sided 95 % bounds, and every rollout's end."""
    verdicts = np.array([each.verdict for each in ended])
    passed = [each.num_requests for each in ended if each.verdict == "pass"]
    failed = [each.num_requests for each in ended if each.verdict == "fail"]
    return {
        "candidate": name,
        "rollouts": len(ended),
        "rolled_back": share_of(verdicts == "fail"),
        "passed": share_of(verdicts == "pass"),
        "requests_to_pass": _quantiles(passed),
        "requests_to_rollback": _quantiles(failed),
        "failed_by": dict(Counter(metric for each in ended for metric in each.by)),
        "ends": [asdict(each) for each in ended],
    }


def _quantiles(values: Sequence[int]) -> dict[str, float] | None:
    return {"median": float(np.median(values)), "p95": float(np.percentile(values, 95))} if values else None


@contextlib.contextmanager
def _served(name: str) -> Iterator[tuple[Trials, ThroughEnsemble]]:
    shutil.rmtree(Path("build") / name, ignore_errors=True)  # outcomes of an earlier run have the same numbers
    with ThroughEnsemble(deployment(name)) as server:
        trials = Trials(ServerControl(Path("build") / name / CONTROL_SOCKET))
        trials.add(_EQUAL, {})
        trials.add(_SLOWER, {"step_ms": _STEP_MS * _TIMES_SLOWER})
        yield trials, server


def _run_all(trials: Trials, todo: "Queue[tuple[str, int]]", ended: "Queue[tuple[str, Ended]]") -> None:
    with contextlib.suppress(Empty):
        while True:
            name, release = todo.get_nowait()
            found = trials.run(release)
            ended.put((name, found))
            print(f"{name}: {found.verdict} after {found.num_requests} requests, {found.seconds:.0f} s: {found.reason}",
                  flush=True)  # fmt: skip


def main(
    equal: Annotated[int, typer.Option(min=0, help="Rollouts of a release like the stable one.")] = 200,
    slower: Annotated[int, typer.Option(min=0, help="Rollouts of one with steps 10 % longer.")] = 20,
    servers: Annotated[int, typer.Option(min=1, help="Servers at a time, one rollout on each.")] = 2,
    per_s: Annotated[float, typer.Option(min=1, help="Requests a second to a server, of both arms together.")] = 60,
    beside_per_s: Annotated[float, typer.Option(min=0.1, help="Requests a second beside, to its stable engine.")] = 15,
) -> None:
    """Run the rollouts, print each one's end, and write the result to benchmarks/results."""
    todo, ended = Queue[tuple[str, int]](), Queue[tuple[str, Ended]]()
    for name, release, num in ((_LIKE, _EQUAL, equal), (_LONGER, _SLOWER, slower)):
        for _ in range(num):
            todo.put((name, release))
    with contextlib.ExitStack() as stack:
        found = [stack.enter_context(_served(f"{_NAME}_{number}")) for number in range(servers)]
        where = environment(triton_http=found[0][1].http)
        loads = [stack.enter_context(Load(server.url, per_s=per_s, beside_per_s=beside_per_s)) for _, server in found]
        with ThreadPoolExecutor(servers) as pool:
            for done in [pool.submit(_run_all, trials, todo, ended) for trials, _ in found]:
                done.result()
    answers = sum((load.num_answers for load in loads), Counter[str]())
    if set(answers) != {"answered"}:  # the arms would not have the loads that the result says
        raise RuntimeError(f"requests failed: {dict(answers)}")
    ends = list(ended.queue)
    result = {
        "benchmark": "gate_server_trials",
        "environment": where,
        "engine": "simulated",
        "spec": SPEC.model_dump(mode="json"),
        "deployment": deployment(_NAME).model_dump(mode="json"),
        "servers": servers,
        "requests_per_s": per_s,
        "beside_per_s": beside_per_s,
        "step_times": _TIMES_SLOWER,
        "answers": dict(answers),
        "trials": [figures_of(name, [end for of, end in ends if of == name]) for name in (_LIKE, _LONGER)],
    }
    print(write_result("gate_server_trials", result))


if __name__ == "__main__":
    typer.run(main)
