# SPDX-License-Identifier: Apache-2.0
"""The facts of a machine, read from nvidia-smi, package metadata and the kernel; an unreadable fact is reported."""

from importlib.metadata import version
from pathlib import Path

import psutil
import pytest

from ensemble_configs.releases.machine import Gpu
from serving.process.this_machine import _free_host_bytes, read_machine

MIB = 1 << 20
TWO = """0, GPU-aaaa, NVIDIA H200, 9.0, 143771, 143000
1, GPU-bbbb, NVIDIA L4, 8.9, 23034, 22000
"""


@pytest.fixture
def nvidia_smi(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Write an nvidia-smi that prints a test's file beside it, if its arguments are right."""
    program = tmp_path / "nvidia-smi"
    program.write_text(
        "#!/bin/sh\n"
        'test "$1" = --query-gpu=index,uuid,name,compute_cap,memory.total,memory.free || exit 2\n'
        'test "$2" = --format=csv,noheader,nounits || exit 2\n'
        f"cat {tmp_path}/rows || exit 9\n"
    )
    program.chmod(0o755)
    monkeypatch.setenv("PATH", f"{tmp_path}:/usr/bin:/bin")
    monkeypatch.delenv("CUDA_VISIBLE_DEVICES", raising=False)
    return tmp_path / "rows"


def names() -> list[str]:
    return [gpu.name for gpu in read_machine((), is_asking_for_gpus=True).gpus]


def test_gpus_are_those_of_nvidia_smi(nvidia_smi: Path) -> None:
    nvidia_smi.write_text(TWO)
    machine = read_machine((), is_asking_for_gpus=True)
    assert machine.why_no_gpus is None
    assert machine.gpus == (
        Gpu(name="NVIDIA H200", sm=90, memory_bytes=143771 * MIB, free_bytes=143000 * MIB),
        Gpu(name="NVIDIA L4", sm=89, memory_bytes=23034 * MIB, free_bytes=22000 * MIB),
    )


@pytest.mark.parametrize(
    ("shown", "expected"),
    [
        ("1", ["NVIDIA L4"]),
        ("1,0", ["NVIDIA L4", "NVIDIA H200"]),
        ("GPU-bb", ["NVIDIA L4"]),
        ("", []),
        ("0,7,1", ["NVIDIA H200"]),
        ("-1", []),
    ],
)
def test_only_the_gpus_that_cuda_shows_count(
    nvidia_smi: Path, monkeypatch: pytest.MonkeyPatch, shown: str, expected: list[str]
) -> None:
    nvidia_smi.write_text(TWO)
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", shown)
    assert names() == expected


def test_a_compute_capability_of_two_digits_is_read(nvidia_smi: Path) -> None:
    nvidia_smi.write_text("0, GPU-a, NVIDIA GB10, 12.1, [N/A], [N/A]\n")
    [gpu] = read_machine((), is_asking_for_gpus=True).gpus
    assert (gpu.sm, gpu.memory_bytes, gpu.free_bytes) == (121, None, None)


@pytest.mark.parametrize(
    ("rows", "why"),
    [
        pytest.param(None, "nvidia-smi fails with status 9: .*No such file", id="fails"),
        pytest.param("what?\n", "says what we do not understand: 'what", id="strange"),
        pytest.param("0, GPU-a, NVIDIA X, x, 1, 1\n", "says what we do not understand", id="no number"),
    ],
)
def test_why_there_are_no_gpus_is_said(nvidia_smi: Path, rows: str | None, why: str) -> None:
    if rows is not None:
        nvidia_smi.write_text(rows)
    machine = read_machine((), is_asking_for_gpus=True)
    assert machine.gpus == ()
    with pytest.raises(AssertionError, match=why):
        raise AssertionError(machine.why_no_gpus)


def test_without_a_driver_there_are_none(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PATH", str(tmp_path))
    assert read_machine((), is_asking_for_gpus=True).why_no_gpus == "there is no nvidia-smi on PATH, so no driver"
    assert read_machine((), is_asking_for_gpus=False).why_no_gpus is None


def test_versions_are_those_of_the_installed_packages(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    packages = read_machine(("openvino_genai", "tensorrt", "tensorrt_llm"), is_asking_for_gpus=False).packages
    assert packages == {"openvino_genai": version("openvino-genai")}
    info = tmp_path / "tensorrt_cu13-10.14.1.48.dist-info"
    info.mkdir()
    (info / "METADATA").write_text("Metadata-Version: 2.1\nName: tensorrt_cu13\nVersion: 10.14.1.48\n")
    monkeypatch.syspath_prepend(str(tmp_path))
    assert read_machine(("tensorrt",), is_asking_for_gpus=False).packages == {"tensorrt": "10.14.1.48"}


def test_memory_is_what_the_machine_or_the_container_has_left(tmp_path: Path) -> None:
    available = psutil.virtual_memory().available
    assert abs(_free_host_bytes(tmp_path) - available) < available / 2  # no such limit
    (tmp_path / "memory.current").write_text("900\n")
    (tmp_path / "memory.stat").write_text("anon 500\ninactive_file 300\nactive_file 50\n")
    (tmp_path / "memory.max").write_text("max\n")
    assert _free_host_bytes(tmp_path) > 1000
    (tmp_path / "memory.max").write_text("1000\n")
    assert _free_host_bytes(tmp_path) == 1000 - 900 + 300 + 50
    (tmp_path / "memory.current").write_text("5000\n")
    assert _free_host_bytes(tmp_path) == 0
