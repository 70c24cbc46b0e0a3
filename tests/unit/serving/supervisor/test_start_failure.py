# SPDX-License-Identifier: Apache-2.0
"""The report of a server that could not be started: the cause first, a line each, and only real causes."""

from pathlib import Path

import pytest

from serving.supervisor.start_failure import cause_in, causes_in
from trireme import commands
from trireme.base.errors import ServerError

# As Triton 2.51 logs it: a graph of an engine, of what needs the engine, and of a machine without a GPU.
ENGINE = (
    "ServerError: [INTERNAL] the engine could not be loaded: [INVALID_SPEC field=engine.dir] OpenVINO cannot load "
    "/models/x: Opset opset1 doesn't contain the operation with type: Bogus; status 0; its log says why"
)
PLACES = (
    r"\n\nAt:\n  /x/serving/engine_process/engine_start_up.py(40): wait_until_loaded\n"
    r"  /x/serving/engine_process/engine_sources.py(162): connect\n"
)
NOT_LOADED = 'model_lifecycle.cc:642] "failed to load'
CLIENT = "ServerError: [INTERNAL] the engine that tensorrt_llm loads ended while loading; its log says why"
NO_GPU = [
    'E1124 20:34:00.1 24976 server.cc:241] "CudaDriverHelper has not been initialized."',
    "Error: Failed to initialize NVML",
]
LOG = [
    NO_GPU[0],
    "RuntimeError: Exception from src/inference/src/cpp/core.cpp:84:",
    f'I1124 20:34:00.48 24976 pb_stub.cc:366] "Failed to initialize Python stub: {ENGINE}{PLACES}"',
    f'E1124 20:34:00.64 24976 backend_model.cc:692] "ERROR: Failed to create instance: {ENGINE}{PLACES}"',
    f"E1124 20:34:00.65 24976 {NOT_LOADED} 'tensorrt_llm' version 1: Internal: {ENGINE}{PLACES}\"",
    f"E1124 20:34:01.00 24976 {NOT_LOADED} 'ensemble' version 1: Internal: {CLIENT}{PLACES}\"",
    "E1124 20:34:01.00 24976 model_repository_manager.cc:703] \"Invalid argument: ensemble 'ensemble_graph' depends on "
    f"'tensorrt_llm' which has no loaded version. Model 'tensorrt_llm' loading failed with error: version 1 is at "
    f'UNAVAILABLE state: Internal: {ENGINE}{PLACES};"',
    f"| ensemble         | 1       | UNAVAILABLE: Internal: {CLIENT} |",
    NO_GPU[1],
    "error: creating server: Internal - failed to load all models",
]


def test_the_cause_is_told_once_and_without_what_follows_from_it() -> None:
    assert causes_in(LOG) == [
        "tensorrt_llm 1: the engine could not be loaded: OpenVINO cannot load /models/x: Opset opset1 doesn't contain "
        "the operation with type: Bogus"
    ]


def test_models_that_fail_for_one_reason_share_a_line_and_others_have_their_own() -> None:
    lines = [
        f"E1124 20:34:01.0 7 model_lifecycle.cc:642] \"failed to load '{model}' version 2: {why}\""
        for model, why in (("a", "Internal: X"), ("b", "Internal: X"), ("c", "Invalid argument: Y"))
    ]
    assert causes_in(lines) == ["a 2, b 2: X", "c 2: Y"]


def test_what_only_follows_is_told_where_nothing_else_is_there() -> None:
    assert causes_in([LOG[5]]) == [
        "ensemble 1: the engine that tensorrt_llm loads ended while loading; its log says why"
    ]


@pytest.mark.parametrize(
    "line",
    [
        "[warn] epoll_create: Too many open files",
        "OSError: [Errno 24] Too many open files: '/models/tokenizer.json'",
        "[[1;31mERROR[0;39m] [33mevhtp.c:4145  couldn't create socket (errno: Too many open files)",
    ],
)
def test_running_out_of_descriptors_goes_before_all_that_it_makes_fail(line: str) -> None:
    metrics = (
        'E1124 20:24:13.2 29898 main.cc:293] "failed to start Metrics service: Unavailable - Socket '
        "'127.0.0.1:18102' already in use \""
    )
    [cause] = causes_in([*NO_GPU, line, metrics])
    assert cause.startswith("its processes ran out of file descriptors (Too many open files): raise the limit")


def test_other_errors_of_triton_are_told_in_their_order() -> None:
    lines = [
        *NO_GPU,
        'E1124 20:24:13.2 29898 main.cc:293] "failed to start HTTP service"',
        "terminate called after throwing an instance of 'std::length_error'",
        "  what():  basic_string::_M_create",
        "error: creating server: Invalid argument - unexpected flag",
    ]
    assert causes_in(lines) == [
        "failed to start HTTP service",
        "terminate called after throwing an instance of 'std::length_error'",
        "what(): basic_string::_M_create",
        "error: creating server: Invalid argument - unexpected flag",
    ]


def test_each_cause_has_a_line_of_the_terminal(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    log = tmp_path / "triton.log"
    log.write_text("\n".join(LOG))
    message = f"tritonserver ended with status 1 while loading\n{cause_in(log, is_verbose=False)}"

    def fail() -> None:
        raise ServerError(message)

    with pytest.raises(BaseException):  # noqa: B017, PT011  typer's own
        commands._exiting(fail, keeps_lines=True)()
    first, cause, where = capsys.readouterr().err.splitlines()
    assert first == "trireme: tritonserver ended with status 1 while loading"
    assert cause.startswith("  tensorrt_llm 1: the engine could not be loaded: OpenVINO cannot load")
    assert where == f"  the whole log is in {log}"
    assert cause_in(log, is_verbose=True) == "its log is above"


def test_a_folder_that_the_python_backend_cannot_make_comes_with_the_next_step() -> None:
    lines = [
        "terminate called after throwing an instance of 'triton::backend::python::PythonBackendException'",
        "  what():  Failed to create temporary directory for Python environments.",
    ]
    [cause] = causes_in(lines)
    assert "make /tmp writable" in cause
