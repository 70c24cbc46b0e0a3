# SPDX-License-Identifier: Apache-2.0
"""The checks of a proof, in order, with what each needs from earlier ones; their results go into the `Proof`."""

import importlib.util
import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import ClassVar

import msgspec

from build_engines.checkpoint.checkpoint_folder import CheckpointFiles
from build_engines.checkpoint.gpus import Gpu
from build_engines.planner.roofline.serving_limit import ServingLimit
from build_engines.planner.roofline.steady_state import Limits
from build_engines.prove.build_check import (
    MAX_BATCH_SIZE,
    MAX_NUM_TOKENS,
    build_release,
    describe_release,
    longest_sequence,
    proof_recipe,
    refuse_version_without_engines,
)
from build_engines.prove.check import Check, CheckFailed, LeftOut
from build_engines.prove.child_process import run_child
from build_engines.prove.closed_loop import Measured, SteadyLoad
from build_engines.prove.conformance_check import run_suite
from build_engines.prove.engine_bench import EngineAnswer, EngineQuestion
from build_engines.prove.facts_check import read_facts
from build_engines.prove.prediction import predict, ratio
from build_engines.prove.proof import BenchRow, Conformance, Proof
from build_engines.prove.server_bench import bench_server
from build_engines.stages.stage_process import last_lines
from ensemble_configs.spec.deployment import DeploymentSpec
from serving.engines.tensorrt_llm.tensorrt_llm_causes import where_it_is
from serving.process.installation import find_triton
from trireme.base.errors import SpecError
from trireme.base.known_types import known
from trireme.base.project_files import CODE_ROOT

PROVIDERS = ("tensorrt", "pytorch")
CHECKS = {
    "facts": "read the signatures of the installed tensorrt_llm again and compare them with tests/fakes/trtllm_facts",
    "build": "build a small engine with `trireme build`",
    "conformance": "run the suite that every engine must pass on {providers}",
    "bench": "measure TTFT, TPOT and tokens/s of {providers} in a process of its own, beside what `trireme plan` says",
    "serve": "measure the same through `trireme serve`, where Triton is installed",
}


def describe_checks(names: Sequence[str], checks: Mapping[str, str], providers: Sequence[str]) -> list[str]:
    """Return what would be done, a line for each check."""
    return [f"{name}: {checks[name].format(providers=' and '.join(providers))}" for name in names]


@dataclass
class Proving:
    """The checks of a proof on one GPU.

    Attributes:
        proof: gets what is found.
        work: folder for releases, logs and the files that programs exchange.
        isl, osl: tokens of a prompt and of an answer in the measurements.
        timeout_s: time limit for each program of a check.
        build_options: more options for `trireme build`.
    """

    proof: Proof
    checkpoint: CheckpointFiles
    gpu: Gpu
    work: Path
    isl: int
    osl: int
    concurrencies: tuple[int, ...]
    timeout_s: float
    build_options: list[str] = field(default_factory=list)
    release: Path | None = None
    num_kv_tokens: dict[str, int] = field(default_factory=dict)  # by provider, of the engine that was measured
    all_checks: ClassVar[Mapping[str, str]] = CHECKS
    providers: ClassVar[tuple[str, ...]] = PROVIDERS

    def checks(self, names: Sequence[str]) -> list[Check]:
        """Return the named checks, each for every provider that has it."""
        alone = {"facts": self._facts, "build": self._build}
        of_providers = {"conformance": self._conformance, "bench": self._bench, "serve": self._serve}
        found: list[Check] = []
        for name, what in self.all_checks.items():
            if name in names and name in alone:
                found.append(Check(name, what, alone[name]))
            elif name in names:
                found += [
                    Check(f"{name} {provider}", what.format(providers=provider), partial(of_providers[name], provider))
                    for provider in self.providers
                ]
        return found

    @property
    def _version(self) -> str:
        version = self.proof.machine.versions.get("tensorrt_llm")
        if version is None:
            raise CheckFailed(f"tensorrt_llm is not installed; {where_it_is()}")
        return version

    def _facts(self) -> None:
        self.proof.drift = read_facts(self.work, self._version)

    def _build(self) -> None:
        refuse_version_without_engines(self._version)
        recipe = proof_recipe(self.checkpoint, self.gpu, self._version)
        self.release = build_release(recipe, self.checkpoint.dir, self.work, self.build_options, self.timeout_s)
        self.proof.built = describe_release(self.release, recipe)

    def _conformance(self, provider: str) -> None:
        engine = self._engine(provider)  # without beams: the suite loads one of its own for those
        if provider == "tensorrt":
            engine["is_gathering_generation_logits"] = True
        else:
            engine["sampler"] = "trtllm"  # knows seeds, penalties and beams
        self._judge(provider, run_suite(provider, engine, self.work, self.timeout_s))

    def _judge(self, provider: str, found: Conformance) -> None:
        self.proof.conformance[provider] = found
        if found.num_failed:
            names = ", ".join(case.name for case in found.failed[:3])
            more = "" if found.num_failed <= 3 else f" and {found.num_failed - 3} more"
            raise CheckFailed(f"{found.num_failed} of {found.num_failed + found.num_passed} cases: {names}{more}")

    def _engine(self, provider: str) -> dict[str, object]:
        """Return the part of an engine's spec that does not depend on the load.

        Raises:
            LeftOut: there is no engine.
        """
        _ = self._version
        if provider == "pytorch":
            return {"dir": str(self.checkpoint.dir)}
        refuse_version_without_engines(self._version)
        if self.release is None:
            raise LeftOut("no engine was built")
        return {"dir": str(self.release / "engine")}

    def _loaded(self, provider: str) -> dict[str, object]:
        """Return the whole spec of an engine that is measured."""
        batch = {
            "max_num_seqs": MAX_BATCH_SIZE,
            "max_num_batched_tokens": MAX_NUM_TOKENS,
            "max_seq_len": longest_sequence(self.checkpoint),
            "is_block_reuse": False,  # no prompt comes twice
        }
        return {"provider": provider} | self._engine(provider) | batch

    def _program(self) -> list[object]:
        """Return how Python is run where an engine can be loaded."""
        return [sys.executable]

    @property
    def _loads(self) -> list[SteadyLoad]:
        return [
            SteadyLoad(concurrency=each, isl=self.isl, osl=self.osl, num_requests=max(16, 4 * each))
            for each in self.concurrencies
        ]

    def _bench(self, provider: str) -> None:
        spec = self._loaded(provider)
        question, answer = self.work / f"bench_{provider}.json", self.work / f"bench_{provider}.answer.json"
        log = self.work / "logs" / f"bench_{provider}.log"
        question.write_bytes(msgspec.json.encode(EngineQuestion(engine=spec, loads=self._loads)))
        argv = [*self._program(), "-m", "build_engines.prove.engine_bench", question, answer]
        try:
            status = run_child(argv, cwd=CODE_ROOT, log=log, timeout_s=self.timeout_s)
        finally:  # what was measured before something broke is kept
            if answer.is_file():
                found = msgspec.json.decode(answer.read_bytes(), type=known(EngineAnswer))
                self.num_kv_tokens[provider] = found.num_kv_tokens
                self._keep(provider, found.measured, serving=None)
        if status or not answer.is_file():
            raise CheckFailed(f"the engine's process ended with status {status}", last_lines(log))

    def _serve(self, provider: str) -> None:
        try:
            find_triton()
        except SpecError as exc:
            raise LeftOut(exc.message) from exc
        if importlib.util.find_spec("tritonclient") is None:
            raise LeftOut("tritonclient is not installed; `pip install tritonclient[grpc]`")
        spec = DeploymentSpec.model_validate(
            {
                "name": f"prove_{provider}",
                "tokenizer": {"dir": self.checkpoint.dir},
                "engine": self._loaded(provider) | {"watchdog_s": 120},
            }
        )
        measured = bench_server(spec, self._loads, self.work, self.timeout_s)
        self._keep(provider, measured, serving=ServingLimit())

    def _keep(self, provider: str, measured: list[Measured], *, serving: ServingLimit | None) -> None:
        for load, seen in zip(self._loads, measured, strict=False):  # fewer were measured where something broke
            kv_tokens = self.num_kv_tokens.get(provider, MAX_BATCH_SIZE * longest_sequence(self.checkpoint))
            limits = Limits(kv_tokens, MAX_BATCH_SIZE, MAX_NUM_TOKENS)
            model = self.proof.model
            predicted = predict(self.checkpoint.shape, self.gpu, model.format, load, limits, serving=serving)
            self.proof.bench.append(
                BenchRow(
                    provider=provider,
                    path="engine" if serving is None else "server",
                    concurrency=load.concurrency,
                    isl=load.isl,
                    osl=load.osl,
                    num_requests=seen.num_requests,
                    measured=seen.figures,
                    ttft_p99_ms=seen.ttft_p99_ms,
                    predicted=predicted,
                    ratio=None if predicted is None else ratio(predicted, seen.figures),
                )
            )
