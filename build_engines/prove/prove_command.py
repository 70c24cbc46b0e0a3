# SPDX-License-Identifier: Apache-2.0
"""`trireme prove`: on a machine with a GPU, everything that is only tested on stand-ins elsewhere."""

import contextlib
import datetime
import json
import sys
import tempfile
from collections.abc import Iterator
from enum import StrEnum
from pathlib import Path
from typing import Annotated

import msgspec
import typer
from rich.console import Console

from build_engines.prove.build_check import longest_sequence
from build_engines.prove.check import Check, run_check
from build_engines.prove.gpu_machine import NoGpuError, gpu_row, read_proof_machine
from build_engines.prove.proof import Proof, proof_text, write_proof
from build_engines.prove.proof_model import DEFAULT, describe_model, find_checkpoint
from build_engines.prove.proving import CHECKS, Proving, describe_checks
from build_engines.prove.vllm_proving import VllmProving
from build_engines.stages.build_job import Tools
from trireme.base.durations import duration
from trireme.base.errors import SpecError
from trireme.base.provenance import commit
from trireme.base.text_tables import TextTable, print_tables

EXIT_NOT_PROVED, EXIT_NO_GPU = 1, 2


class Proved(StrEnum):
    """The engines that can be proved."""

    TENSORRT_LLM = "tensorrt_llm"
    VLLM = "vllm"


def prove(
    engine: Annotated[Proved, typer.Option(help="Engine to prove.")] = Proved.TENSORRT_LLM,
    model: Annotated[str, typer.Option(help="demo, demo-draft, or a Hugging Face checkpoint's folder.")] = DEFAULT,
    gpu: Annotated[str, typer.Option(help="GPU by its name in gpus.yaml; auto: by the driver's name.")] = "auto",
    out: Annotated[Path, typer.Option(help="Folder for the result.")] = Path("benchmarks/gpu"),
    checks: Annotated[str, typer.Option("--steps", help="Checks to run, separated by commas.")] = ",".join(CHECKS),
    isl: Annotated[int, typer.Option(min=1, help="Tokens of a prompt in the measurements.")] = 512,
    osl: Annotated[int, typer.Option(min=2, help="Tokens of an answer.")] = 128,
    concurrency: Annotated[str, typer.Option(help="Numbers of clients, separated by commas.")] = "1,4,16,64",
    timeout_s: Annotated[float, typer.Option(min=1, help="Time limit of each program that a check runs.")] = 3600.0,
    work: Annotated[
        Path | None, typer.Option(help="Folder for engine and logs; kept.", show_default="one that is removed")
    ] = None,
    trtllm_examples: Annotated[
        Path, typer.Option(help="TensorRT-LLM's examples, of the version that builds.")
    ] = Tools.trtllm_examples,
    vllm_venv: Annotated[Path | None, typer.Option(help="Environment with vLLM.", show_default="trireme's own")] = None,
    is_json: Annotated[bool, typer.Option("--json", help="Print the result as JSON.")] = False,
) -> None:
    """Try everything on the GPU of this machine and write one JSON, whatever fails on the way.

    For NVIDIA's container tritonserver:26.07-trtllm-python-py3 (TensorRT-LLM 1.2.1), from a checkout of the repository.
    For vLLM: in the image of Dockerfile.vllm, or wherever --vllm-venv names an environment with vLLM for GPUs.
    With a bare TensorRT-LLM from 1.3 on there are no compiled engines, and the provider pytorch is proved alone.

    \b
    Examples:
      trireme prove
      trireme prove --model /models/llama-3.1-8b --gpu h100 --work /scratch/prove
      trireme prove --steps facts,conformance --json
      trireme prove --engine vllm --vllm-venv /opt/vllm

    \b
    Exit codes: 0 all checks passed; 1 a check failed, and the file says which; 2 no GPU, or a wrong option.
    """
    names, concurrencies = _checks(checks), _numbers(concurrency)
    console = Console(stderr=True, highlight=False, soft_wrap=True)
    try:
        machine, _ = read_proof_machine()
    except NoGpuError as exc:
        kind = VllmProving if engine is Proved.VLLM else Proving
        lines = describe_checks(names, kind.all_checks, kind.providers)
        _say_what_would_be_done(exc, lines, console, is_json=is_json)
        raise typer.Exit(EXIT_NO_GPU) from exc
    row = gpu_row(gpu, machine)
    checkpoint = find_checkpoint(model)
    longest = longest_sequence(checkpoint)
    if isl + osl > longest:
        text = f"isl + osl is {isl + osl} tokens, and the engine reaches to {longest}; shorten one"
        raise SpecError(text, field="isl", value=isl, max=longest - osl)
    out.mkdir(parents=True, exist_ok=True)  # before an hour is spent
    proof = Proof(
        date=datetime.datetime.now(datetime.UTC).isoformat(timespec="seconds"),
        commit=commit(),
        gpu=row.name,
        engine=engine.value,
        machine=machine,
        model=describe_model(checkpoint),
    )
    with _work_folder(work) as folder:
        given = (proof, checkpoint, row, folder, isl, osl, concurrencies, timeout_s)
        proving: Proving
        if engine is Proved.VLLM:
            proving = VllmProving(*given, venv_dir=vllm_venv.absolute() if vllm_venv is not None else None)
            console.print(f"{machine.gpus[0].name} ({row.name}), vLLM: {proof.model.name}")
        else:
            proving = Proving(*given, [f"--trtllm-examples={trtllm_examples}"])
            console.print(f"{machine.gpus[0].name} ({row.name}), TensorRT-LLM {_version(proof)}: {proof.model.name}")
        for each in proving.checks(names):
            record = run_check(each, lambda current: _shown(console, current))
            proof.steps.append(record)
            reason = f": {record.reason}" if record.reason else ""
            console.print(f"{record.name}: {record.status}, {duration(record.duration_s)}{reason}", markup=False)
            for line in record.last_lines:
                console.print(f"    {line}", markup=False)
            path = write_proof(proof, out)  # after every check: what ends this program loses at most one
    if is_json:
        sys.stdout.write(proof_text(proof))
    elif proof.bench:
        print_tables([_table(proof)])
    console.print(f"written to {path}", markup=False)
    if proof.failures:
        raise typer.Exit(EXIT_NOT_PROVED)


def _checks(text: str) -> list[str]:
    names = [name.strip() for name in text.split(",") if name.strip()]
    for name in names:
        if name not in CHECKS:
            raise SpecError(f"--steps: {name!r} is none; there are {', '.join(CHECKS)}", field="steps", value=name)
    if not names:
        raise SpecError(f"--steps names none; there are {', '.join(CHECKS)}", field="steps")
    return names


def _numbers(text: str) -> tuple[int, ...]:
    parts = [part.strip() for part in text.split(",")]
    if not all(part.isdecimal() and int(part) > 0 for part in parts):
        raise SpecError(f"--concurrency must be numbers from 1 on, such as 1,4,16; got {text!r}", field="concurrency")
    return tuple(int(part) for part in parts)


def _say_what_would_be_done(why: NoGpuError, lines: list[str], console: Console, *, is_json: bool) -> None:
    if is_json:
        sys.stdout.write(json.dumps({"error": why.message, "would_do": lines}, indent=1) + "\n")
        return
    console.print(f"trireme: {why.message}", markup=False)
    console.print("nothing was done; with a GPU these would be:")
    for line in lines:
        console.print(f"  {line}", markup=False)


@contextlib.contextmanager
def _work_folder(given: Path | None) -> Iterator[Path]:
    if given is None:
        with tempfile.TemporaryDirectory(prefix="trireme-prove-", ignore_cleanup_errors=True) as folder:
            yield Path(folder)
    else:
        given.mkdir(parents=True, exist_ok=True)
        yield given.resolve()


@contextlib.contextmanager
def _shown(console: Console, check: Check) -> Iterator[None]:
    if not console.is_terminal:
        console.print(f"{check.name}: {check.what} ...", markup=False)
        yield
        return
    with console.status(f"{check.name}: {check.what}"):
        yield


def _version(proof: Proof) -> str:
    return proof.machine.versions.get("tensorrt_llm", "not installed")


def _table(proof: Proof) -> TextTable:
    headers = ("provider", "through", "clients", "TTFT ms", "TPOT ms", "tokens/s", "TTFT", "TPOT", "tokens/s")
    rows = []
    for row in proof.bench:
        seen, off = row.measured, row.ratio
        ratios = ("", "", "") if off is None else tuple(f"{each:.2f}" for each in msgspec.structs.astuple(off))
        figures = (f"{seen.ttft_ms:.1f}", f"{seen.tpot_ms:.2f}", f"{seen.tokens_per_s:.0f}")
        rows.append((row.provider, row.path, str(row.concurrency), *figures, *ratios))
    title = f"{proof.model.name} on {proof.gpu}: measured, and predicted / measured"
    return TextTable(title, headers, tuple(rows), left=("through",))
