# SPDX-License-Identifier: Apache-2.0
"""A stand-in of NVIDIA's image tritonserver:26.07-trtllm-python-py3, which can be wrong in the same ways.

As in the image, TensorRT-LLM and its packages lie in a virtual environment, /opt/venv-tritonserver, that is first on
PATH, sees nothing of the Python that it was made from, and has pip. Its packages are `requirements/gpu-base.txt`: the
image's pins of what the public index has. The server is the tests' own, in /opt/tritonserver/bin.

Not as in the image: Python is this machine's (the image has 3.12), the server is 2.51, `tensorrt_llm`, torch and the
build tools are fakes, there is no CUDA and no Open MPI.

Without TensorRT-LLM it stands for the image with vLLM, too, of which nothing but Triton and Python is used.
"""

import contextlib
import importlib.util
import json
import os
import shutil
import sys
from pathlib import Path

from chart_here import ROOT
from trtllm_generator import write_fake
from trtllm_imports import add_imports
from trtllm_tools import write_fake_tools

VENV = Path("/opt/venv-tritonserver")
PYTHON = VENV / "bin/python3"
WHEELS = ROOT / ".tools/gpu-image-wheels"
# As its Dockerfile sets it, without CUDA and MPI.
PATH = "/opt/tritonserver/bin:/opt/venv-tritonserver/bin:/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin"
DRIVER = Path("/usr/local/nvidia/lib64")  # where the container runtime puts the driver's libraries, with --gpus
_BASE = ROOT / ".tools/gpu-base"


def why_no_base_image() -> str:
    """Return what is missing here for the stand-in; empty: nothing."""
    version = f"python{sys.version_info.major}.{sys.version_info.minor}"
    if not (_BASE / "lib" / version).is_dir() or not WHEELS.is_dir():
        return (
            f"scripts/bootstrap.py --python {version} --only gpu-image-wheels installs the stand-in of NVIDIA's image"
        )
    return ""


def write_base_image(folder: Path, *, has_tensorrt_llm: bool = True) -> None:
    """Write what the image has over this machine's files."""
    _write_environment(folder / VENV.relative_to("/"))
    _write_server(folder / "opt/tritonserver")
    if has_tensorrt_llm:
        _write_upstream(folder)
    else:
        (folder / "app").mkdir()
    fakes = folder / "opt/fakes"
    shutil.copytree(ROOT / "tests/fakes", fakes, ignore=shutil.ignore_patterns("__pycache__", "triton_python_backend*"))


def write_driver(folder: Path, *, version: str = "590.44.01") -> None:
    """Write what `--gpus all` adds to a container: nvidia-smi, and the driver's library, which is some library here."""
    library = folder / DRIVER.relative_to("/") / "libnvidia-ml.so.1"
    library.parent.mkdir(parents=True)
    found = importlib.util.find_spec("_ctypes")
    assert found is not None
    shutil.copyfile(str(found.origin), library)
    smi = folder / "usr/local/bin/nvidia-smi"
    smi.parent.mkdir(parents=True, exist_ok=True)
    made = write_fake_tools(folder / "tmp-tools", num_gpus=1)
    smi.write_text(
        (made.bin / "nvidia-smi").read_text().replace(sys.executable, str(PYTHON)).replace("590.44.01", version)
    )
    smi.chmod(0o755)
    shutil.rmtree(folder / "tmp-tools")


def _write_environment(place: Path) -> None:
    """Copy the base's packages into an environment that believes to be at its place in the image."""
    place.mkdir(parents=True)
    version = f"python{sys.version_info.major}.{sys.version_info.minor}"
    site = _BASE / "lib" / version / "site-packages"
    shutil.copytree(site, place / "lib" / version / "site-packages", copy_function=_link)
    home = Path(getattr(sys, "_base_executable", sys.executable)).resolve()
    configuration = (_BASE / "pyvenv.cfg").read_text()
    (place / "pyvenv.cfg").write_text(configuration.replace(str(_BASE), str(VENV)))
    (place / "bin").mkdir()
    for name in ("python", "python3", version):
        (place / "bin" / name).symlink_to(home)


def _link(source: str, target: str) -> None:
    """Give a file a second name where that can be, a copy elsewhere; nothing in the image writes into these files."""
    with contextlib.suppress(OSError):
        os.link(source, target)
        return
    shutil.copyfile(source, target)


def _write_server(place: Path) -> None:
    """Write a starter of the tests' server, which lies where `bind_mounts` puts it."""
    facts = json.loads((ROOT / ".tools/triton/installation.json").read_text())
    inside = {name: _inside(path) for name, path in facts.items() if name in ("tritonserver", "backend_directory")}
    libraries = ":".join(_inside(path) for path in facts["library_path"])
    starter = place / "bin/tritonserver"
    starter.parent.mkdir(parents=True)
    starter.write_text(
        f"#!/bin/sh\nexport LD_LIBRARY_PATH={libraries}:$LD_LIBRARY_PATH\n"
        f'exec {inside["tritonserver"]} --backend-directory={inside["backend_directory"]} "$@"\n'
    )
    starter.chmod(0o755)


def _inside(path: str) -> str:
    return path.replace(".tools/triton", "/opt/tritonserver/installed") if not Path(path).is_absolute() else path


def bind_mounts() -> dict[str, Path]:
    """Return what is mounted into the container, by its place there."""
    return {"/opt/tritonserver/installed": ROOT / ".tools/triton", "/opt/wheels-of-tests": WHEELS}


def _write_upstream(folder: Path) -> None:
    """Write `tensorrt_llm`, torch, their metadata, the build tools and the examples.

    They are in the environment, as in the image.
    """
    version = f"python{sys.version_info.major}.{sys.version_info.minor}"
    venv = folder / VENV.relative_to("/")
    site = venv / "lib" / version / "site-packages"
    write_fake(site)
    add_imports(site)
    made = write_fake_tools(folder / "tmp-tools", num_gpus=1)
    for metadata in made.site.iterdir():
        shutil.copytree(metadata, site / metadata.name)
    (site / "fakes.pth").write_text("/opt/fakes\n")
    places = {made.bin / "trtllm-build": venv / "bin/trtllm-build"}
    for path in made.trtllm_examples.rglob("*.py"):
        places[path] = folder / "app/examples" / path.relative_to(made.trtllm_examples)
    for source, target in places.items():
        target.parent.mkdir(parents=True, exist_ok=True)
        text = source.read_text().replace(sys.executable, str(PYTHON)).replace(str(ROOT / "tests/fakes"), "/opt/fakes")
        target.write_text(text)
        target.chmod(0o755)
    shutil.rmtree(folder / "tmp-tools")
