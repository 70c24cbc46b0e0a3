# SPDX-License-Identifier: Apache-2.0
"""The ways in which `import tensorrt_llm` is known to fail, each with its cure. docs/gpu_image.md has their sources."""

import re
import sys
from pathlib import Path
from typing import NamedTuple

from ensemble_configs.spec.finding import Finding

IMAGE = "nvcr.io/nvidia/tritonserver:26.07-trtllm-python-py3"
# Where NVIDIA's images have had the package since 26.03; before, in the system's own Python.
USUAL_PYTHON = Path("/opt/venv-tritonserver/bin/python3")
_INSTALL = "scripts/gpu_image.py --into FOLDER"


class Cause(NamedTuple):
    """A way to fail: how its text is known, and what to do.

    Attributes:
        name: of the check.
        pattern: found in the text.
        wanted: what the import needs; `\\1` and the like are the pattern's groups.
        next_step: the cure, with groups like `wanted`.
        is_driver: the failure is a matter of the machine's driver, and no fault of the image.
    """

    name: str
    pattern: str
    wanted: str
    next_step: str
    is_driver: bool = False


_SHADOWED = (
    "something in front of the image's own packages shadows them: unset PYTHONPATH, take other virtual environments "
    f"off PATH, and install the project with `python3 {_INSTALL}`, which keeps the image's packages first"
)
# The first that matches is told, so the narrower come first.
CAUSES = (
    Cause(
        "transformers",
        r"(\S+?)([<>=!~][^\s]*) is required for a normal functioning of this module, but found (\S+)",
        r"\1\2",
        _SHADOWED,
    ),
    Cause(
        "openai",
        r"cannot import name '(\w+)' from '(openai[\w.]*)'",
        r"\1 in \2: openai 1.109 or newer",
        f"install the project with `python3 {_INSTALL}`, which puts a newer openai in front of the image's",
    ),
    Cause("openai", r"No module named '(openai[\w.]*)'", r"\1: openai 1.109 or newer", f"run `python3 {_INSTALL}`"),
    Cause(
        "driver",
        r"CUDA driver version is insufficient|driver on your system is too old|forward compatibility was attempted"
        r"|unsupported display driver|Error 80[34]",
        "a driver that the image's CUDA runs on",
        "update the driver, or take an older container (docs/support.md lists the oldest driver of each)",
        is_driver=True,
    ),
    Cause(
        "driver",
        r"libcuda\.so|libnvidia-ml\.so|NVML Shared Library Not Found|NVMLError_LibraryNotFound|Driver Not Loaded"
        r"|Found no NVIDIA driver|no CUDA-capable device|No CUDA GPUs are available",
        "the NVIDIA driver's libraries",
        "start the container with --gpus all, on a machine with a driver and the NVIDIA Container Toolkit; under "
        "Kubernetes ask for nvidia.com/gpu",
        is_driver=True,
    ),
    Cause(
        "MPI",
        r"opal_init|opal_shmem|ORTE has lost|orte_init|ompi_mpi_init|MPI_Init_thread",
        "Open MPI's own files where OPAL_PREFIX says",
        "set OPAL_PREFIX to the folder of the image's Open MPI (/opt/hpcx/ompi or /usr/local/mpi, whichever there is); "
        "a login by ssh loses the image's environment",
    ),
    Cause(
        "MPI",
        r"libmpi\S*\.so\S*: cannot open shared object|cannot load MPI library|No module named 'mpi4py'",
        "Open MPI's libmpi.so and mpi4py",
        "add the image's Open MPI to LD_LIBRARY_PATH (/opt/hpcx/ompi/lib or /usr/local/mpi/lib); outside of the image "
        "install libopenmpi-dev",
    ),
    Cause(
        "torch",
        r"Decoding operators failed to load|libth_common\.so|undefined symbol|lib(?:c10|torch\w*)\.so\S*: cannot open",
        "the torch that TensorRT-LLM was compiled for",
        _SHADOWED + "; outside of the image install the torch that tensorrt-llm's page names",
    ),
    Cause(
        "tensorrt",
        r"libnvinfer\S*: (?:cannot open|undefined)|No module named 'tensorrt'|libnvinfer\S*: version",
        "the TensorRT that this TensorRT-LLM is for",
        "keep /usr/local/tensorrt/lib on LD_LIBRARY_PATH, as the image has it",
    ),
    Cause(
        "numpy",
        r"numpy\.dtype size changed|_ARRAY_API not found|compiled using NumPy 1\.x|numpy\.core\.multiarray failed",
        "the numpy that the image's packages were compiled for",
        _SHADOWED,
    ),
    Cause(
        "python",
        r"libpython[\d.]+\.so\S*: cannot open shared object",
        "the Python's shared library, which tensorrt_llm loads by name",
        "install python3-dev of this Python's version",
    ),
    Cause(
        "packages", r"No module named '([\w.]+)'", r"\1", f"run this in the image {IMAGE}, or install what is missing"
    ),
)


_HUNG = Cause(
    "MPI",
    r"did not end within",
    "an import that ends",
    "a hang while MPI starts is known: set OPAL_PREFIX and OMPI_MCA_btl_tcp_if_include=lo, or start the container with "
    "--ipc=host",
)
_UNKNOWN = Cause("import", "", "an import without an error", f"run this in the image {IMAGE}")


def known_cause(text: str) -> Cause | None:
    """Return the known failure that a text shows, its `wanted` and `next_step` completed from the text; None: none."""
    for cause in CAUSES:
        match = re.search(cause.pattern, text)
        if match is not None:
            return cause._replace(wanted=match.expand(cause.wanted), next_step=match.expand(cause.next_step))
    return None


def explain(module: str, text: str) -> tuple[Finding, bool]:
    """Return what it means that `module` failed with `text`, and whether only a driver is missing."""
    found = f"import {module}: {' '.join(text.split())}"
    if re.search(r"No module named 'tensorrt_llm'", text):
        return no_package(found), False
    cause = known_cause(text) or (_HUNG if re.search(_HUNG.pattern, text) else _UNKNOWN)
    finding = Finding(check=cause.name, found=found, wanted=cause.wanted, next_step=cause.next_step)
    return finding, cause.is_driver


def no_package(found: str) -> Finding:
    """Return the finding that this Python has no `tensorrt_llm`, and where it is: the image has a Python for it."""
    return Finding(check="python", found=found, wanted=f"tensorrt_llm in {sys.executable}", next_step=where_it_is())


def where_it_is() -> str:
    """Return what to do where this Python has no `tensorrt_llm`."""
    if USUAL_PYTHON.exists() and not USUAL_PYTHON.parent.samefile(Path(sys.executable).parent):
        return (
            f"it is in {USUAL_PYTHON.parent.parent}, whose packages an environment made from it does not see: install "
            f"the project with `{USUAL_PYTHON} {_INSTALL}`, and run FOLDER/bin/trireme"
        )
    return f"run this in the image {IMAGE}, and install the project there with `python3 {_INSTALL}`"
