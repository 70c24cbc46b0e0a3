# SPDX-License-Identifier: Apache-2.0
"""A server that serves release 1, candidates for it, and the command that rolls them out."""

import json
import random
import shutil
import subprocess
import sys
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import yaml
from running_server import PROJECT, RunningServer, deployment_text
from streams_under_change import MAX_TOKENS, PROMPTS

from clients.rollout.records.store import Store
from clients.server_control import ServerControl
from ensemble_configs.spec.engine.simulated_spec import SimulatedEngineSpec
from ensemble_configs.spec.release_spec import TokenizerSpec
from serving.engines.providers import create_engine
from serving.engines.seam.base import GenerationRequest, SamplingParams
from serving.text.detokenization import StreamText, TextDecoder
from serving.text.tokenization import PromptTokenizer
from trireme.base.free_ports import free_ports

ENGINE: dict[str, Any] = {"provider": "simulated", "step_ms": 20.0, "max_num_seqs": 64, "num_kv_blocks": 4096}
# What takes seconds here, and passes up to 90 % more latency: the default gate says nothing of latency for 80 s.
# Results name their gate; how often the default one is wrong is measured by benchmarks.rollout_gate.gate_trials.
WIDE_OPEN, DEFAULT_GATE = "wide open", "default"
GATE: dict[str, Any] = {
    "min_requests": 50,
    "fade_s": 0.5,
    "effects": dict.fromkeys(("ttft", "tpot", "ttft_of_some", "tpot_of_some"), 0.9)
    | dict.fromkeys(("output_tokens", "cut"), 0.5)
    | dict.fromkeys(("errors", "empty", "looping"), 0.1)
    | dict.fromkeys(("slow", "slow_decode"), 0.2),
}
PATIENCE_S = 120.0
ROLLED_OUT = ("ensemble", "tensorrt_llm_bls")  # those that a rollout goes by; each more is a process a release
STEPS = "20,50,100"
HARD: dict[str, Any] = {"step_ms": 4.0}  # with 40 tokens an answer, 32 streams are more than two cores can do
HARD_TOKENS = 40

Texts = Mapping[int, Mapping[str, str]]  # what releases say to each prompt
DEMO_MODEL = PROJECT / "examples/demo_model/openvino/target"
TOKENIZER = PROJECT / "examples/demo_model/target"


class Site:
    """A server that serves release 1, candidates, and the command that rolls them out."""

    def __init__(self, server: RunningServer) -> None:
        self.server = server
        self.folder = server.folder
        [self.port] = free_ports(1)
        self.split_url = f"http://127.0.0.1:{self.port}"
        self.control = ServerControl(self.folder / "build" / "live" / "control.sock")
        self._store = self.folder / "build" / "live" / "rollouts.sqlite"
        (self.folder / "gate.yaml").write_text(yaml.safe_dump(GATE))

    def candidate(self, **engine: object) -> str:
        return self.candidate_with(engine=engine)

    def candidate_with(self, **fields: object) -> str:
        path = self.folder / f"candidate_{random.randrange(10**9)}.yaml"
        path.write_text(yaml.safe_dump(fields))
        return str(path)

    def rollout(self, *arguments: str) -> subprocess.Popen[str]:
        return subprocess.Popen(
            [sys.executable, "-m", "trireme", "rollout", *arguments],
            cwd=self.folder, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True,
        )  # fmt: skip

    def start(self, *candidates: str, steps: str = STEPS, options: Sequence[str] = ()) -> subprocess.Popen[str]:
        """Start a rollout with a gate that is wide open."""
        return self.rollout(
            "start", *candidates, "--port", str(self.port), "--gate", "gate.yaml",
            "--lease-s", "1", *(("--steps", steps, "--step-requests", "20") if steps else ()), *options,
        )  # fmt: skip

    def start_with_default_gate(self, candidate: str) -> subprocess.Popen[str]:
        return self.rollout("start", candidate, "--port", str(self.port), "--lease-s", "1", "--steps", STEPS)

    def done(self, *arguments: str) -> str:
        """Run a command, and return what it prints."""
        running = self.rollout(*arguments)
        text, _ = running.communicate(timeout=PATIENCE_S)
        assert running.returncode == 0, text
        return text

    def end_of(self, running: subprocess.Popen[str], *, patience_s: float = PATIENCE_S) -> str:
        """Return what a rollout said until it was promoted or rolled back."""
        try:
            text, _ = running.communicate(timeout=patience_s)
        except subprocess.TimeoutExpired:
            running.kill()
            text, _ = running.communicate()
            raise AssertionError(f"{text}\n{self.status()}\n{self.served()}\n{self.server.log()[-2000:]}") from None
        assert running.returncode in (0, 1), text
        return text

    def wait_for_phase(self, phase: str) -> None:
        deadline_s = time.monotonic() + PATIENCE_S
        with Store(self._store) as store:  # the command would be half a core's work each time
            while store.rollouts()[-1].phase != phase:
                assert time.monotonic() < deadline_s, self.status()
                time.sleep(0.1)

    def begin(self, *candidates: str, **more: Any) -> subprocess.Popen[str]:
        """Start as `start` does, and return when the rollout is on record."""
        before = self.num_rollouts()
        running = self.start(*candidates, **more)
        while self.num_rollouts() == before:
            assert running.poll() is None, running.communicate()[0]
            time.sleep(0.05)
        return running

    def go_on(self) -> subprocess.Popen[str]:
        return self.rollout("run", "--port", str(self.port))

    def num_rollouts(self) -> int:
        if not self._store.exists():
            return 0
        with Store(self._store) as store:
            return len(store.rollouts())

    def status(self) -> dict[str, Any]:
        return dict(json.loads(self.done("status", "--json")))

    def served(self) -> Mapping[str, Any]:
        models: Any = self.control.ask("status")["models"]
        return dict(models[0])


def serving(
    folder: Path,
    *,
    triton: Mapping[str, object] | None = None,
    sticky_key: str | None = None,
    options: tuple[str, ...] = (),
    **engine: object,
) -> RunningServer:
    """Return a server of release 1: `ENGINE` but for what is named; `options`: more of `trireme serve`.

    Its releases may take half a minute to load, and it may be killed as often as a test likes.
    """
    triton = {"restart_backoff_s": 0.0, "max_restarts": 100, **(triton or {})}
    more = {} if sticky_key is None else {"sticky_key": sticky_key}
    text = deployment_text("live", engine=ENGINE | {"seed": 1} | engine, triton=triton, endpoints=ROLLED_OUT, **more)
    return RunningServer(text, folder, options=("--ready-timeout-s", "30", *options))


def said_by_engine(seed: int, *, max_tokens: int = MAX_TOKENS, mode: str = "hash") -> Mapping[str, str]:
    """Return what the engine of a release says to each prompt of `answers`, in this process."""
    spec = TokenizerSpec(dir=TOKENIZER)
    tokenizer, decoder = PromptTokenizer.from_spec(spec), TextDecoder.from_spec(spec)
    engine = create_engine(SimulatedEngineSpec.model_validate(ENGINE | {"seed": seed, "step_ms": 0.0, "mode": mode}))
    found = {}
    for key, prompt in enumerate(PROMPTS):
        sampling = SamplingParams(max_tokens=max_tokens, end_id=tokenizer.end_id)
        input_ids = tokenizer.encode(prompt).tolist()
        engine.add(GenerationRequest(key=key, input_ids=input_ids, sampling=sampling))
        token_ids: list[int] = []
        while engine.has_work:
            token_ids += [token_id for chunk in engine.step() for token_id in chunk.token_ids]
        text = StreamText(decoder)
        found[prompt] = text.push(token_ids) + text.finish()
    return found


def shuffled_tokenizer(folder: Path) -> Path:
    """Write a tokenizer that loads and has the same words, but with other numbers.

    Two in three words have another's number.
    """
    shutil.copytree(TOKENIZER, folder, ignore=shutil.ignore_patterns("*.safetensors"))
    file = folder / "tokenizer.json"
    tokenizer = json.loads(file.read_text(encoding="utf-8"))
    vocabulary = tokenizer["model"]["vocab"]
    rng = random.Random(5)
    special = {token["content"] for token in tokenizer["added_tokens"]}
    words = [word for word in vocabulary if word not in special and rng.random() < 2 / 3]
    numbers = [vocabulary[word] for word in words]
    rng.shuffle(numbers)
    vocabulary.update(zip(words, numbers, strict=True))
    file.write_text(json.dumps(tokenizer), encoding="utf-8")
    return folder
