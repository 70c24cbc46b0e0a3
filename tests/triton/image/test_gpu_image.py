# SPDX-License-Identifier: Apache-2.0
"""The image of the Dockerfile on a stand-in of NVIDIA's, built step by step.

Everything is done in it until TensorRT-LLM calls the GPU. With any one repair taken back, upstream's own error is seen.
"""

import json
import re
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from base_image import VENV, why_no_base_image, write_driver
from chart_here import ROOT
from image_here import WITHOUT_INDEX, FailedStep, Image
from pod_here import skip_without_pods

from scripts.environments import lock_blocks, locked_names

pytestmark = [pytest.mark.triton, pytest.mark.timeout(600)]
DOCKERFILE = (ROOT / "Dockerfile").read_text()
OURS = Path("/opt/trireme-environment")
BASE_BLOCKS = lock_blocks((ROOT / "requirements/gpu-base.txt").read_text())
QUICK = ["--isl", "16", "--osl", "4", "--concurrency", "1", "--timeout-s", "200", "--json"]
IMPORT = "import tensorrt_llm, tensorrt_llm._torch.pyexecutor.py_executor"
# What the packages of `requirements/serving.txt` would be to the image: ours of another environment.
PYTHON_NAME = f"python{sys.version_info.major}.{sys.version_info.minor}"
OTHERS = {"/opt/packages-of-another-environment": ROOT / ".venv/lib"}
IN_OTHERS = f"/opt/packages-of-another-environment/{PYTHON_NAME}/site-packages"


@pytest.fixture(scope="module")
def image(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Image]:
    """Yield the built image."""
    skip_without_pods()
    if why := why_no_base_image():
        pytest.skip(why)
    with Image(tmp_path_factory.mktemp("image")) as made:
        made.build(DOCKERFILE)
        yield made


def python(image: Image, program: str, **options: Any) -> "subprocess.CompletedProcess[str]":
    return image.run(["python3", "-c", program], **options)


def found(pattern: str, text: str) -> str:
    """Return the first group of a pattern that must be there."""
    match = re.search(pattern, text, re.DOTALL)
    assert match is not None, pattern
    return match[1]


# As it should be


def test_the_steps_of_the_dockerfile_are_carried_out_in_order(image: Image) -> None:
    order = ["substitute: apt-get update", "[gpu-image] installing", "[gpu-image] done", "TensorRT-LLM is imported as"]
    places = [image.said.index(words) for words in order]
    assert places == sorted(places)
    assert image.run(["trireme", "--version"]).stdout == "trireme 0.1.0.dev0\n"


def test_no_package_of_the_base_is_shadowed_but_openai(image: Image) -> None:
    base = locked_names((ROOT / "requirements/gpu-base.txt").read_text())
    program = "import importlib.metadata as m, json, sys; print(json.dumps({n: m.version(n) for n in sys.argv[1:]}))"
    versions = json.loads(image.run(["python3", "-c", program, *sorted(base - {"colorama"})]).stdout)
    pinned = {name: found(r"==([^\s;]+)", block) for name, block in BASE_BLOCKS.items() if name in versions}
    assert {name: version for name, version in versions.items() if version != pinned[name]} == {"openai": "1.109.1"}
    assert (versions["numpy"], versions["transformers"]) == ("1.26.4", "4.57.3")
    record = json.loads(image.run(["cat", f"{OURS}/installed.json"]).stdout)
    assert not record["behind"].keys() & base
    assert {"msgspec", "tritonclient", "openvino-genai"} <= record["behind"].keys()
    assert record["in_front"] == {"openai": "1.109.1"}


def test_the_user_writes_nowhere_but_where_the_chart_lets_it_and_every_cache_is_there(image: Image) -> None:
    for place in ("/opt/trireme", str(OURS), str(VENV), "/etc"):
        assert "Read-only file system" in image.run(["touch", f"{place}/x"]).stderr
    caches = {name: place for name, place in image.environment.items() if "/tmp" in place}
    assert {"HOME", "XDG_CACHE_HOME", "HF_HOME", "TRITON_CACHE_DIR", "TORCHINDUCTOR_CACHE_DIR"} <= caches.keys()
    made = image.run(["mkdir", "-p", *caches.values()])
    assert made.returncode == 0, made.stderr


def test_the_doctor_finds_nothing_on_a_machine_with_a_driver(image: Image) -> None:
    done = image.run(["trireme", "doctor", "--tensorrt-llm"])
    assert (done.returncode, done.stdout) == (0, "TensorRT-LLM 1.2.1 can be imported here\n")


def test_build_bench_and_serve_reach_the_gpu(image: Image) -> None:
    """By `trireme prove` in the image, as its user, on a root that is read-only."""
    prove = ["trireme", "prove", "--steps", "build,bench,serve", "--out", "/tmp/out", "--work", "/tmp/work"]
    done = image.run([*prove, "--trtllm-examples", "/app/examples", *QUICK], timeout_s=500)
    assert done.returncode == 0, done.stdout + done.stderr
    document = json.loads(done.stdout)
    assert {step["name"]: step["status"] for step in document["steps"]} == dict.fromkeys(
        ["build", "bench tensorrt", "bench pytorch", "serve tensorrt", "serve pytorch"], "passed"
    )


@pytest.mark.soak
def test_the_commands_of_the_document_prove_it_from_a_checkout(tmp_path: Path) -> None:
    """In the base itself, as `docs/prove.md` says."""
    skip_without_pods()
    if why := why_no_base_image():
        pytest.skip(why)
    text = (ROOT / "docs/prove.md").read_text()
    installing, proving = re.findall(r"^# (.*)$", found(r"```console\n(.*?)```", text), re.MULTILINE)
    for flag in ("--gpus all", "--shm-size", "--ulimit memlock=-1", "--ulimit stack=67108864"):
        assert flag in text
    quick = "--steps facts,build,conformance,bench --out /tmp/out --work /tmp/work " + " ".join(QUICK)
    with Image(tmp_path / "base") as base:
        base.workdir = "/trireme"
        done = base.run(
            ["bash", "-ec", f"{installing} >&2\n{proving} {quick}"],
            is_read_only=False,
            volumes={"/trireme": ROOT},
            environment={**WITHOUT_INDEX, "PYTEST_ADDOPTS": "-k 'greedy_means or info_tells or short_request'"},
            timeout_s=400,
        )
        assert done.returncode == 0, done.stdout + done.stderr
        document = json.loads(done.stdout)
    assert {step["status"] for step in document["steps"]} == {"passed"}
    assert document["drift"]["diff"] == []


@pytest.mark.soak
def test_a_package_of_the_base_that_does_not_fit_is_named_and_can_be_shadowed(tmp_path: Path) -> None:
    """A base has a version that the project does not run with: nothing is installed until somebody decides."""
    skip_without_pods()
    if why := why_no_base_image():
        pytest.skip(why)
    metadata = f"{VENV}/lib/{PYTHON_NAME}/site-packages/msgspec-0.1.dist-info"
    old = f"RUN mkdir {metadata} && printf 'Name: msgspec\\nVersion: 0.1\\n' > {metadata}/METADATA\n"
    install = f"RUN python3 /opt/trireme/scripts/gpu_image.py --into {OURS}"
    with Image(tmp_path / "image") as image:
        with pytest.raises(FailedStep) as failure:
            image.build(DOCKERFILE.replace("ARG GPU_IMAGE_OPTIONS=\n", f"ARG GPU_IMAGE_OPTIONS=\n{old}"))
        assert f"the project needs msgspec>=0.19; msgspec 0.1 is in {VENV}" in failure.value.output
        assert "shadow it with msgspec 0.22.0: --in-front msgspec" in failure.value.output
        image.build(f"{install} --in-front msgspec\nRUN python3 -c 'import msgspec; print(msgspec.__file__)'")
        assert f"{OURS}/in_front/msgspec/__init__.py" in image.said


# With one repair taken back


def finding(image: Image, **options: Any) -> dict[str, str]:
    """Return the one finding of `doctor`."""
    done = image.run(["trireme", "doctor", "--tensorrt-llm", "--json"], **options)
    assert done.returncode == 1, done.stdout + done.stderr
    [answer] = json.loads(done.stdout)
    [only] = answer["findings"]
    return dict(only)


def test_an_environment_made_from_the_bases_does_not_see_its_packages(image: Image) -> None:
    """A1: the nested environment that the Dockerfile had."""
    nested = (
        "python3 -m venv --system-site-packages --without-pip /tmp/venv\n"
        f"printf '%s\\n' {IN_OTHERS} /opt/trireme > /tmp/venv/lib/{PYTHON_NAME}/site-packages/ours.pth\n"
    )
    done = image.run(["bash", "-ec", f"{nested} /tmp/venv/bin/python -c '{IMPORT}'"], volumes=OTHERS)
    assert "ModuleNotFoundError: No module named 'tensorrt_llm'" in done.stderr
    doctor = "/tmp/venv/bin/python -m trireme doctor --tensorrt-llm --json"
    done = image.run(["bash", "-ec", f"{nested} {doctor}"], volumes=OTHERS)
    [told] = json.loads(done.stdout)[0]["findings"]
    assert (told["check"], done.returncode) == ("python", 1)
    assert f"it is in {VENV}, whose packages an environment made from it does not see" in told["next_step"]


def test_newer_packages_in_front_of_the_bases_break_transformers(image: Image) -> None:
    """A2: huggingface-hub 1 of our own lock."""
    shadowed: dict[str, Any] = {"volumes": OTHERS, "environment": {"PYTHONPATH": IN_OTHERS}}
    upstream = r"huggingface-hub>=0\.34\.0,<1\.0 is required for a normal functioning of this module, but found"
    assert re.search(upstream, python(image, IMPORT, **shadowed).stderr)
    done = image.run(["trireme", "doctor", "--tensorrt-llm", "--json"], **shadowed)
    told = json.loads(done.stdout)[0]["findings"][0]
    assert (told["check"], told["wanted"]) == ("transformers", "huggingface-hub>=0.34.0,<1.0")
    assert re.search(upstream, told["found"])
    assert "unset PYTHONPATH" in told["next_step"]


def test_the_bases_openai_breaks_the_pytorch_backend(image: Image) -> None:
    """A3: and the engine says so when it is loaded."""
    without: dict[str, Any] = {"volumes": {f"{OURS}/in_front": None}}
    upstream = "cannot import name 'PartReasoningText' from 'openai.types.responses.response_content_part_added_event'"
    assert upstream in python(image, IMPORT, **without).stderr
    told = finding(image, **without)
    assert told["check"] == "openai"
    assert "PartReasoningText" in told["found"]
    assert "scripts/gpu_image.py" in told["next_step"]
    prove = ["trireme", "prove", "--steps", "bench", "--out", "/tmp/out", "--work", "/tmp/work"]
    done = image.run([*prove, *QUICK], timeout_s=200, **without)
    steps = {step["name"]: step for step in json.loads(done.stdout)["steps"]}
    log = " ".join(steps["bench pytorch"]["last_lines"])
    assert "PartReasoningText" in log
    assert "openai 1.109 or newer" in log


def test_an_old_driver_is_told_with_the_container_that_it_runs(image: Image, tmp_path: Path) -> None:
    """A4."""
    write_driver(tmp_path, version="580.95.05")
    tmp_path.chmod(0o755)
    path = f"/opt/other/usr/local/bin:{image.environment['PATH']}"
    told = finding(image, volumes={"/opt/other": tmp_path}, environment={"PATH": path})
    assert (told["check"], told["found"], told["wanted"]) == ("driver", "580.95.05", "590.44.01 or newer")
    assert "or take the container 25.12 to 26.02 (TensorRT-LLM 1.1.0)" in told["next_step"]


def test_without_gpus_all_the_driver_is_what_is_missing(image: Image) -> None:
    told = finding(image, has_gpu=False)
    assert told["check"] == "driver"
    assert "--gpus all" in told["next_step"]
    assert "NVML Shared Library Not Found" in python(image, IMPORT, has_gpu=False).stderr


@pytest.mark.parametrize(
    ("old", "new", "error"),
    [
        pytest.param(
            " python3 /opt/trireme/scripts",
            " /opt/outer/bin/python /opt/trireme/scripts",
            "has no tensorrt_llm; run it with /opt/venv-tritonserver/bin/python3",
            id="another Python",
        ),
        pytest.param(
            "COPY . /opt/trireme\n",
            "COPY . /opt/trireme\nRUN rm -r /opt/trireme-environment/in_front/openai*\n",
            "PartReasoningText",
            id="the base's openai",
            marks=pytest.mark.soak,
        ),
    ],
)
def test_a_build_ends_where_an_import_would_fail(tmp_path: Path, old: str, new: str, error: str) -> None:
    skip_without_pods()
    if why := why_no_base_image():
        pytest.skip(why)
    assert old in DOCKERFILE
    nested = "RUN python3 -m venv --system-site-packages --without-pip /opt/outer\n"
    text = DOCKERFILE.replace(old, new).replace("FROM ${BASE}\n", f"FROM ${{BASE}}\n{nested if 'outer' in new else ''}")
    with Image(tmp_path / "image") as broken, pytest.raises(FailedStep) as failure:
        broken.build(text)
    assert error in " ".join(failure.value.output.split())
