# SPDX-License-Identifier: Apache-2.0
"""Findings about TensorRT-LLM on this machine: its imports, its TensorRT, the driver."""

import importlib.metadata
import importlib.util
import os
import re

from ensemble_configs.releases.containers import Container, containers
from ensemble_configs.spec.finding import Finding
from serving.doctor.tensorrt_llm_trial import TIMEOUT_S, try_imports
from serving.engines.tensorrt_llm.tensorrt_llm_causes import explain, no_package
from serving.process.this_machine import NoDriverError, read_driver_version, read_machine

_FIRST_WITH_REASONING_TEXT = (1, 2)  # its PyTorch backend imports `tensorrt_llm.serve`, and that the newer openai


def findings_of_tensorrt_llm(*, is_without_gpu: bool = False, timeout_s: float = TIMEOUT_S) -> list[Finding]:
    """Return what is wrong with TensorRT-LLM here, each with its cure; takes up to a minute.

    Args:
        is_without_gpu: do not ask for a driver; leave out what a missing driver breaks.
        timeout_s: the time for all imports.
    """
    findings = [] if is_without_gpu else _driver_findings()
    if importlib.util.find_spec("tensorrt_llm") is None:
        return [*findings, no_package("No module named 'tensorrt_llm'")]
    for module, text in try_imports(_steps(), timeout_s=timeout_s):
        finding, is_driver = explain(module, text)
        if not (is_driver and is_without_gpu) and not _is_told(finding, findings):
            findings.append(finding)
    return findings + _tensorrt_findings()


def _steps() -> tuple[str, ...]:
    """Return the imports to try, in an order in which earlier ones help later ones.

    The package imports transformers and openai itself. They come first, so that a problem with them is reported also
    where there is no driver, without which the package is not imported whole.
    """
    is_old = numbers(installed_version() or "") < _FIRST_WITH_REASONING_TEXT
    openai = "openai.types.responses.response_content_part_added_event:PartReasoningText"
    return (
        "transformers",
        *(() if is_old else (openai,)),
        "tensorrt_llm",
        "tensorrt_llm._torch.pyexecutor.py_executor",
    )


def _is_told(finding: Finding, findings: list[Finding]) -> bool:
    """Return whether a finding is reported already: a later import fails for the reason of an earlier one."""
    return any(
        (finding.check, finding.wanted) == (each.check, each.wanted) or finding.check == each.check == "driver"
        for each in findings
    )


def installed_version() -> str | None:
    """Return the version of `tensorrt_llm` without importing it; None: not installed."""
    try:
        return importlib.metadata.version("tensorrt_llm")
    except importlib.metadata.PackageNotFoundError:
        return None


def _row() -> Container | None:
    """Return the container's row of the table, found by its tag or else by the version; None: no row."""
    tag, version = os.environ.get("NVIDIA_TRITON_SERVER_VERSION"), installed_version()
    rows = containers().rows
    by_tag = [row for row in rows if tag and _is_within(tag, row.tags) and row.tensorrt_llm == version]
    return next(iter([*by_tag, *(row for row in rows if row.tensorrt_llm == version)]), None)


def _is_within(tag: str, tags: str) -> bool:
    first, _, last = tags.partition(" to ")
    return numbers(first) <= numbers(tag) <= numbers(last or first)


_START_WITH_GPUS = "start the container with --gpus all, on a machine with a driver and the NVIDIA Container Toolkit"


def _driver_findings() -> list[Finding]:
    try:
        found = read_driver_version()
    except NoDriverError as exc:
        wanted = "an NVIDIA driver"
        return [Finding(check="driver", found=str(exc), wanted=wanted, next_step=_START_WITH_GPUS)]
    row = _row()
    if row is None or row.driver is None or numbers(found) >= numbers(row.driver):
        return []
    return [Finding(check="driver", found=found, wanted=f"{row.driver} or newer", next_step=_newer_driver(found, row))]


def _newer_driver(found: str, row: Container) -> str:
    older = [each for each in containers().rows if each.driver and numbers(each.driver) <= numbers(found)]
    other = f", or take the container {older[0].tags} (TensorRT-LLM {older[0].tensorrt_llm})" if older else ""
    return (
        f"update the driver{other}; on a data-centre GPU the image's forward compatibility (/usr/local/cuda/compat) "
        f"may run TensorRT-LLM {row.tensorrt_llm} all the same"
    )


def _tensorrt_findings() -> list[Finding]:
    row, found = _row(), read_machine(("tensorrt",), is_asking_for_gpus=False).packages.get("tensorrt")
    if row is None or row.tensorrt is None or found is None or found.startswith(row.tensorrt):
        return []
    return [
        Finding(
            check="tensorrt",
            found=found,
            wanted=f"{row.tensorrt}, which TensorRT-LLM {row.tensorrt_llm} was built with",
            next_step=f"run this in the container {row.tags}, or install that TensorRT",
        )
    ]


def numbers(version: str) -> tuple[int, ...]:
    """Return the numbers of a dotted version, for comparing."""
    return tuple(int(part) for part in re.findall(r"\d+", version))
