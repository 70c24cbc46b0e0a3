# SPDX-License-Identifier: Apache-2.0
"""The known ways in which `import tensorrt_llm` fails, each told with cause and cure beside upstream's words."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

from ensemble_configs.releases.containers import containers
from serving.doctor import tensorrt_llm_findings
from serving.doctor.tensorrt_llm_findings import findings_of_tensorrt_llm, numbers
from serving.doctor.tensorrt_llm_trial import try_imports
from serving.engines import providers
from serving.engines.tensorrt_llm import tensorrt_llm_causes
from serving.engines.tensorrt_llm.tensorrt_llm_causes import explain
from trireme.base.errors import ServerError

# What upstream writes; the sources are in docs/gpu_image.md.
SEEN = {
    "huggingface-hub": (
        "ImportError: huggingface-hub>=0.34.0,<1.0 is required for a normal functioning of this module, but found "
        "huggingface-hub==1.33.0.",
        "transformers", "unset PYTHONPATH",
    ),
    "openai": (
        "ImportError: cannot import name 'PartReasoningText' from "
        "'openai.types.responses.response_content_part_added_event' (/opt/x.py)",
        "openai", "scripts/gpu_image.py",
    ),
    "nvml": (
        "OSError: libnvidia-ml.so.1: cannot open shared object file: No such file or directory", "driver", "--gpus all",
    ),
    "pynvml": ("pynvml.NVMLError_LibraryNotFound: NVML Shared Library Not Found", "driver", "--gpus all"),
    "libcuda": ("ImportError: libcuda.so.1: cannot open shared object file", "driver", "--gpus all"),
    "old driver": (
        "RuntimeError: The NVIDIA driver on your system is too old (found version 12080).",
        "driver", "update the driver",
    ),
    "error 803": (
        "RuntimeError: Unexpected error from cudaGetDeviceCount(). Error 803: system has unsupported display driver / "
        "cuda driver combination", "driver", "update the driver",
    ),
    "libmpi": (
        "ImportError: libmpi.so.40: cannot open shared object file: No such file or directory",
        "MPI", "LD_LIBRARY_PATH",
    ),
    "OPAL_PREFIX": (
        "It looks like opal_init failed for some reason; your parallel process is likely to abort.",
        "MPI", "OPAL_PREFIX",
    ),
    "torch": (
        "ImportError: /x/libs/libth_common.so: undefined symbol: _ZN3c10\nFATAL: Decoding operators failed to load. "
        "This may be caused by an incompatibility between PyTorch and TensorRT-LLM.", "torch", "unset PYTHONPATH",
    ),
    "libc10": ("ImportError: libc10.so: cannot open shared object file", "torch", "unset PYTHONPATH"),
    "tensorrt": (
        "ImportError: libnvinfer.so.10: cannot open shared object file", "tensorrt", "/usr/local/tensorrt/lib",
    ),
    "numpy": (
        "A module that was compiled using NumPy 1.x cannot be run in NumPy 2.2.6 as it may crash.", "numpy",
        "unset PYTHONPATH",
    ),
    "libpython": (
        "OSError: libpython3.12.so: cannot open shared object file: No such file or directory", "python", "python3-dev",
    ),
    "missing": ("ModuleNotFoundError: No module named 'nvtx'", "packages", "26.07-trtllm-python-py3"),
    "hung": ("the import did not end within 600 s\nInitializing MPI", "MPI", "--ipc=host"),
    "unknown": ("ZeroDivisionError: division by zero", "import", "26.07-trtllm-python-py3"),
}  # fmt: skip


@pytest.mark.parametrize(("text", "check", "cure"), SEEN.values(), ids=list(SEEN))
def test_a_failure_is_told_with_its_text_and_its_cure(text: str, check: str, cure: str) -> None:
    found, is_driver = explain("tensorrt_llm", text)
    assert found.check == check
    assert cure in found.next_step
    assert " ".join(text.split()) in found.found
    assert is_driver == (check == "driver")


def test_a_python_without_the_package_is_told_where_it_is(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Without NVIDIA's environment the image is named; with it, the environment."""
    missing = "ModuleNotFoundError: No module named 'tensorrt_llm'"
    monkeypatch.setattr(tensorrt_llm_causes, "USUAL_PYTHON", tmp_path / "venv/bin/python3")
    assert "run this in the image" in explain("tensorrt_llm", missing)[0].next_step
    (tmp_path / "venv/bin").mkdir(parents=True)
    (tmp_path / "venv/bin/python3").symlink_to(sys.executable)
    assert f"it is in {tmp_path}/venv, whose packages" in explain("tensorrt_llm", missing)[0].next_step


# The trial


def modules(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, **sources: str) -> None:
    for name, source in sources.items():
        (tmp_path / f"{name}.py").write_text(source)
    monkeypatch.setenv("PYTHONPATH", str(tmp_path))


def test_every_module_is_tried_whatever_became_of_those_before(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    modules(tmp_path, monkeypatch, good="x = 1", bad="raise OSError('libx.so: no')", later="print('noise')")
    failed = try_imports(("bad", "good:x", "good:y", "later"))
    assert [(each.module, each.text.partition(" from")[0]) for each in failed] == [
        ("bad", "OSError: libx.so: no"), ("good", "ImportError: cannot import name 'y'"),
    ]  # fmt: skip


def test_a_library_that_ends_the_process_is_told_with_its_last_words(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    modules(tmp_path, monkeypatch, dies="import os, sys\nprint('opal_init failed', file=sys.stderr)\nos.abort()")
    [failed] = try_imports(("dies", "json"))
    assert (failed.module, failed.text) == ("dies", "the process ended by signal 6\nopal_init failed")
    assert explain(*failed)[0].check == "MPI"


def test_one_that_hangs_is_ended(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    modules(tmp_path, monkeypatch, hangs="import time\nprint('Initializing MPI', flush=True)\ntime.sleep(100)")
    [failed] = try_imports(("hangs",), timeout_s=1.5)
    assert failed.text == "the import did not end within 2 s\nInitializing MPI"


# What the doctor says of the machine


def write_smi(folder: Path, driver: str) -> None:
    folder.mkdir()
    (folder / "nvidia-smi").write_text(f'#!/bin/sh\ntest "$1" = --query-gpu=driver_version || exit 2\necho {driver}\n')
    (folder / "nvidia-smi").chmod(0o755)


@pytest.fixture
def installed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Install a `tensorrt_llm` 1.2.1 that imports, its tensorrt, and a driver that is new enough."""
    site = tmp_path / "site"
    for name in ("transformers", "tensorrt_llm/_torch/pyexecutor", "openai/types/responses"):
        (site / name).mkdir(parents=True)
    (site / "openai/__init__.py").touch()  # before the real one, which takes a second and a half to import
    (site / "tensorrt_llm/_torch/pyexecutor/py_executor.py").touch()
    (site / "openai/types/responses/response_content_part_added_event.py").write_text("PartReasoningText = 1")
    for name, version in (("tensorrt_llm", "1.2.1"), ("tensorrt", "10.14.1.48.post1")):
        metadata = site / f"{name}-{version}.dist-info/METADATA"
        metadata.parent.mkdir()
        metadata.write_text(f"Metadata-Version: 2.1\nName: {name}\nVersion: {version}\n")
    monkeypatch.setenv("PYTHONPATH", str(site))
    monkeypatch.syspath_prepend(str(site))
    write_smi(tmp_path / "bin", "590.44.01")
    monkeypatch.setenv("PATH", f"{tmp_path / 'bin'}{os.pathsep}{os.environ['PATH']}")
    monkeypatch.setenv("NVIDIA_TRITON_SERVER_VERSION", "26.07")
    return site


def test_a_machine_that_has_all_of_it_has_no_findings(installed: Path) -> None:
    assert installed.is_dir()
    assert findings_of_tensorrt_llm() == []


def test_another_tensorrt_than_the_one_it_was_built_with_is_told(installed: Path) -> None:
    [metadata] = installed.glob("tensorrt-*/METADATA")
    metadata.write_text(metadata.read_text().replace("10.14.1.48.post1", "10.16.1.11"))
    [found] = findings_of_tensorrt_llm()
    assert (found.check, found.found) == ("tensorrt", "10.16.1.11")
    assert found.wanted.startswith("10.14.1.48")


@pytest.mark.parametrize(
    ("driver", "other"),
    [
        pytest.param("580.95.05", "take the container 25.12 to 26.02", id="an older container runs on it"),
        pytest.param("575.57.08", "take the container 25.09 to 25.10", id="a much older one"),
        pytest.param("535.183.06", "update the driver; on a data-centre GPU", id="none does"),
    ],
)
@pytest.mark.usefixtures("installed")
def test_a_driver_below_the_floor_is_told_with_a_container_for_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, driver: str, other: str
) -> None:
    write_smi(tmp_path / "old", driver)
    monkeypatch.setenv("PATH", f"{tmp_path / 'old'}{os.pathsep}{os.environ['PATH']}")
    [found] = findings_of_tensorrt_llm()
    assert (found.check, found.found, found.wanted) == ("driver", driver, "590.44.01 or newer")
    assert other in found.next_step
    assert findings_of_tensorrt_llm(is_without_gpu=True) == []


def test_before_1_2_the_newer_openai_is_not_asked_for(installed: Path) -> None:
    [metadata] = installed.glob("tensorrt_llm-*/METADATA")
    metadata.write_text(metadata.read_text().replace("1.2.1", "1.1.0"))
    [tensorrt] = installed.glob("tensorrt-*/METADATA")
    tensorrt.write_text(tensorrt.read_text().replace("10.14.1.48.post1", "10.13.3.9"))
    (installed / "openai/types/responses/response_content_part_added_event.py").unlink()
    assert findings_of_tensorrt_llm() == []


def test_a_driver_is_missed_once(installed: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (installed / "tensorrt_llm/__init__.py").write_text("raise OSError('libcuda.so.1: cannot open shared object file')")
    assert [found.check for found in findings_of_tensorrt_llm()] == ["driver"]
    assert findings_of_tensorrt_llm(is_without_gpu=True) == []
    monkeypatch.setenv("PATH", "/nowhere")
    [found] = findings_of_tensorrt_llm()
    assert found.found == "there is no nvidia-smi on PATH, so no driver"


def test_the_floor_of_the_newest_containers_is_in_the_table() -> None:
    assert containers().rows[0].driver == "590.44.01"
    assert numbers("590.44.01") > numbers("580.95.05")
    assert tensorrt_llm_findings._is_within("26.07", "26.04 to 26.07")
    assert not tensorrt_llm_findings._is_within("26.08", "26.04 to 26.07")


# Where an engine is loaded


def test_an_engine_whose_import_fails_says_what_to_do() -> None:
    says = r"PartReasoningText.*openai 1\.109 or newer.*trireme doctor --tensorrt-llm"
    with pytest.raises(ServerError, match=says), providers._explained_imports():
        raise ImportError(SEEN["openai"][0])


def test_the_doctor_of_a_plain_python_names_the_image() -> None:
    command = [sys.executable, "-m", "trireme", "doctor", "--tensorrt-llm", "--without-gpu"]
    done = subprocess.run(command, capture_output=True, text=True, check=False, timeout=60, env={"COLUMNS": "300"})
    assert done.returncode == 1
    assert "TensorRT-LLM does not run here: 1 found" in done.stdout
    assert "26.07-trtllm-python-py3" in done.stdout
