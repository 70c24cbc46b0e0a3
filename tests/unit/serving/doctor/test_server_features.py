# SPDX-License-Identifier: Apache-2.0
"""The flags of a server, by its own word, and the refusal of a deployment that needs missing ones."""

import dataclasses
from pathlib import Path

import numpy as np
import pytest

from ensemble_configs.spec.triton_spec import TritonSpec
from serving.doctor import server_probe
from serving.doctor.server_features import (
    ServerFeatures,
    closes_client_shm,
    consequences,
    describe_server,
    known_flags,
    limits_http_bytes,
)
from serving.doctor.server_probe import refuse_unfit_server
from serving.process.installation import TritonInstallation
from trireme.base.errors import ServerError, SpecError

OPEN = TritonSpec(allow_client_shm=True)
OLDER = ServerFeatures("/t", "2.51.0", "2.4.6", *[False] * 8)


def server(folder: Path, *flags: str) -> TritonInstallation:
    """Write a program that lists its options like tritonserver, with status 1."""
    program = folder / "tritonserver"
    listed = "".join(f"  --{flag} <value>\\n\\tTells --of-another.\\n" for flag in ("http-port", *flags))
    program.write_text(f"#!/bin/sh\nprintf 'Usage:\\n{listed}' >&2\nexit 1\n")
    program.chmod(0o755)
    return TritonInstallation(program, None, ())


def test_flags_are_those_that_begin_a_line_of_its_help(tmp_path: Path) -> None:
    found = server(tmp_path, "allow-client-shm", "http-max-input-size")
    assert known_flags(found) == {"http-port", "allow-client-shm", "http-max-input-size"}
    assert closes_client_shm(found)
    assert limits_http_bytes(found)
    assert "shared memory of clients closed by --allow-client-shm" in describe_server(TritonSpec(), found)
    assert "shared memory of clients open by --allow-client-shm" in describe_server(OPEN, found)


def test_shared_memory_of_clients_is_refused_by_name_where_a_server_cannot_close_it(tmp_path: Path) -> None:
    found = server(tmp_path)
    assert not closes_client_shm(found)
    assert "closed by the control key" in describe_server(TritonSpec(), found)
    refuse_unfit_server(TritonSpec(), found)
    with pytest.raises(SpecError, match=r"field=triton\.allow_client_shm.*has no --allow-client-shm.*26\.05"):
        refuse_unfit_server(OPEN, found)
    newer = tmp_path / "newer"
    newer.mkdir()
    refuse_unfit_server(OPEN, server(newer, "allow-client-shm"))


def test_a_program_that_is_no_server_is_told(tmp_path: Path) -> None:
    program = tmp_path / "tritonserver"
    program.write_text("#!/bin/sh\necho cannot open libtritonserver.so >&2\nexit 127\n")
    program.chmod(0o755)
    with pytest.raises(ServerError, match=r"lists no options \(cannot open libtritonserver.so\)"):
        known_flags(TritonInstallation(program, None, ()))
    with pytest.raises(ServerError, match="cannot be run"):
        known_flags(TritonInstallation(tmp_path / "none", None, ()))


@pytest.mark.parametrize("numpy", ["1.26.4", "2.0.0", "2.4.6"])
@pytest.mark.parametrize("is_newer", [True, False])
def test_the_server_is_asked_about_numpy_2_and_believed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, numpy: str, is_newer: bool
) -> None:
    asked = []

    def ask(installation: TritonInstallation) -> ServerFeatures:
        asked.append(installation)
        return dataclasses.replace(OLDER, numpy=numpy, are_tensors_whole=is_newer)

    monkeypatch.setattr(server_probe, "ask_server", ask)
    monkeypatch.setattr(np, "__version__", numpy)
    if is_newer or numpy == "1.26.4":
        refuse_unfit_server(TritonSpec(), server(tmp_path))
    else:
        with pytest.raises(SpecError, match=rf"numpy {numpy} breaks the Python stub of tritonserver .*numpy<2"):
            refuse_unfit_server(TritonSpec(), server(tmp_path))
    assert len(asked) == (numpy != "1.26.4")


def test_each_answer_has_a_row_with_what_follows() -> None:
    answers = [field.name for field in dataclasses.fields(ServerFeatures) if field.type is bool]
    none = consequences(OLDER)
    every = consequences(dataclasses.replace(OLDER, **dict.fromkeys(answers, True)))  # type: ignore[arg-type]
    assert len(none) == len(answers)
    assert {answer for _, answer, _ in none} == {False}
    assert {answer for _, answer, _ in every} == {True}
    assert all(yes != no for (*_, yes), (*_, no) in zip(every, none, strict=True))
