# SPDX-License-Identifier: Apache-2.0
"""The suite that every engine provider must pass, on a real engine: pytest in its own process, read from its XML."""

import importlib.util
import sys
import xml.etree.ElementTree as ET
from collections.abc import Sequence
from pathlib import Path

import msgspec

from build_engines.prove.check import CheckFailed, LeftOut
from build_engines.prove.child_process import run_child
from build_engines.prove.proof import Conformance, FailedCase
from build_engines.stages.stage_process import last_lines
from trireme.base.project_files import CODE_ROOT

SUITE = Path("tests/unit/serving/engines/seam/test_engine_conformance.py")
_MAX_MESSAGE = 2000  # characters


def run_suite(
    provider: str,
    engine: dict[str, object],
    work: Path,
    timeout_s: float,
    *,
    repository: Path = CODE_ROOT,
    program: Sequence[object] | None = None,
) -> Conformance:
    """Run the suite's cases on one engine.

    Args:
        provider: the provider's name.
        engine: fields of the engine's spec that the suite does not set itself: folder, beams and the like.
        work: folder for the XML and the log.
        timeout_s: time limit for all cases.
        repository: a checkout.
        program: how Python is run where the engine can be loaded; None: as here.

    Raises:
        LeftOut: the tests are not here, or pytest is not.
        CheckFailed: pytest could not run them.
    """
    if not (repository / SUITE).is_file():
        raise LeftOut(f"there is no {SUITE} beside this package; run this from a checkout of the repository")
    if program is None and importlib.util.find_spec("pytest") is None:
        raise LeftOut("pytest is not installed; `pip install pytest pytest-timeout`")
    spec, xml = work / f"conformance_{provider}.spec.json", work / f"conformance_{provider}.xml"
    log = work / "logs" / f"conformance_{provider}.log"
    spec.write_bytes(msgspec.json.encode({"provider": provider, **engine}))
    argv = [
        *(program or [sys.executable]),
        "-m",
        "pytest",
        SUITE,
        "-m",
        "gpu",
        "--engine-spec",
        spec,
        f"--junitxml={xml}",
    ]
    # What upstream warns of when it is imported is no failure of a case.
    argv += ["-q", "-p", "no:cacheprovider", "-o", "filterwarnings=default", "-o", "junit_family=xunit2"]
    if program is not None:  # its pytest has not all our plugins
        argv += ["-o", "addopts="]
    status = run_child(argv, cwd=repository, log=log, timeout_s=timeout_s)
    if status not in (0, 1) or not xml.is_file():
        raise CheckFailed(f"pytest ended with status {status}", last_lines(log))
    return read_junit(xml.read_text(encoding="utf-8"))


def read_junit(text: str) -> Conformance:
    """Count the cases of pytest's XML.

    Raises:
        CheckFailed: there is none.
    """
    cases = list(ET.fromstring(text).iter("testcase"))
    failed: dict[str, str] = {}
    for case in cases:
        for kind in ("failure", "error"):  # of a case, and of what is made before or looked at after it
            found = case.find(kind)
            if found is not None:
                failed.setdefault(case.get("name", ""), (found.get("message") or found.text or "")[:_MAX_MESSAGE])
    names = {case.get("name", "") for case in cases}
    skipped = {case.get("name", "") for case in cases if case.find("skipped") is not None}
    if not names:
        raise CheckFailed("pytest ran no case")
    return Conformance(
        num_passed=len(names - failed.keys() - skipped),
        num_failed=len(failed),
        num_skipped=len(skipped),
        failed=[FailedCase(name, message) for name, message in failed.items()],
    )
