# SPDX-License-Identifier: Apache-2.0
"""The image of Dockerfile.vllm on a stand-in of NVIDIA's: built step by step, and served from, on a CPU.

The one step that is not carried out whole is the installation of vLLM for GPUs, 8 GB: that step is tried with a lock of
two small packages, and the image has the tests' own vLLM in its place.
"""

import json
import re
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
import yaml
from base_image import VENV, why_no_base_image
from chart_here import ROOT
from image_here import FailedStep, Image
from pod_here import skip_without_pods
from vllm_environment import VENV as VLLM
from vllm_environment import WHY_NOT, is_there

from scripts.environments import lock_blocks
from trireme.base.free_ports import free_ports

pytestmark = [pytest.mark.triton, pytest.mark.timeout(600)]
DOCKERFILE = (ROOT / "Dockerfile.vllm").read_text()
INSTALLING = "-r /opt/trireme/requirements/vllm-gpu.txt"
LOCK = "requirements/vllm-gpu.txt"
SERVING = """
trireme serve --deployment /etc/trireme/deployment/deployment.yaml --ready-timeout-s 240 \\
  --http-port {0} --grpc-port {1} --metrics-port {2} --health-port {3} > /tmp/log 2>&1 &
server=$!
until python3 -c 'import urllib.request; urllib.request.urlopen("http://127.0.0.1:{3}/ready")' 2> /dev/null; do
  kill -0 $server || {{ cat /tmp/log; exit 1; }}
  sleep 0.5
done
trireme generate "What is the capital of France?" --url 127.0.0.1:{1} --max-tokens 8 || {{ cat /tmp/log; exit 1; }}
kill -TERM $server
wait $server || {{ cat /tmp/log; exit 1; }}
"""


def skip_without_parts() -> None:
    skip_without_pods()
    if why := why_no_base_image() or ("" if is_there() else WHY_NOT):
        pytest.skip(why)


@pytest.fixture(scope="module")
def image(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Image]:
    """Yield the built image, in which vLLM is the tests' own."""
    skip_without_parts()
    folder = tmp_path_factory.mktemp("image")
    with Image(folder, has_tensorrt_llm=False, mounts={"/opt/vllm": VLLM}) as made:
        made.build(DOCKERFILE, instead={INSTALLING: "echo substitute: vLLM of the tests"})
        yield made


def test_the_steps_of_the_dockerfile_are_carried_out_in_order(image: Image) -> None:
    order = ["substitute: apt-get update", "substitute: vLLM", "[gpu-image] installing", "[gpu-image] done", "vLLM 0."]
    places = [image.said.index(words) for words in order]
    assert places == sorted(places)
    assert image.run(["trireme", "--version"]).stdout == "trireme 0.1.0.dev0\n"


def test_a_server_of_the_image_answers_as_its_user_on_a_root_that_is_read_only(image: Image, tmp_path: Path) -> None:
    model = "/opt/trireme/examples/demo_model/target"
    engine = yaml.safe_load((ROOT / "ensemble_configs/deployments/demo_vllm.yaml").read_text())["engine"]
    deployment = {
        "name": "chat",
        "tokenizer": {"dir": model},
        "engine": engine | {"dir": model, "venv_dir": "/opt/vllm"},
    }
    (tmp_path / "deployment.yaml").write_text(json.dumps(deployment))
    tmp_path.chmod(0o755)
    volumes: dict[str, Path | None] = {"/etc/trireme/deployment": tmp_path}
    done = image.run(["bash", "-c", SERVING.format(*free_ports(4))], has_gpu=False, volumes=volumes, timeout_s=500)
    assert done.returncode == 0, done.stdout + done.stderr
    assert done.stdout.strip(), "an answer"


def test_the_environment_of_vllm_is_made_by_its_lock_and_sees_nothing_of_the_bases(tmp_path: Path) -> None:
    skip_without_parts()
    blocks = lock_blocks((ROOT / "requirements/gpu-image.txt").read_text())
    lock = "".join(blocks[name] for name in ("iniconfig", "msgspec"))
    other = re.sub(r"sha256:\w{8}", "sha256:00000000", lock)
    before, copy, after = DOCKERFILE.partition(f"COPY {LOCK}")
    installing, _, _ = (copy + after).partition("# Before the code")
    found = "import json, sys, msgspec, importlib.metadata as m; print(json.dumps([d.name for d in m.distributions()]))"
    with Image(tmp_path / "image", has_tensorrt_llm=False) as made:
        made.build(before)
        with pytest.raises(FailedStep, match="DO NOT MATCH THE HASHES"):
            made.build(installing, files={LOCK: other})
        made.build(installing, files={LOCK: lock})
        done = made.run(["/opt/vllm/bin/python", "-c", found])
        assert sorted(json.loads(done.stdout)) == ["iniconfig", "msgspec", "pip", "setuptools"], done.stderr


def test_a_base_whose_own_vllm_is_new_enough_gets_no_other(tmp_path: Path) -> None:
    skip_without_parts()
    site = f"{VENV}/lib/python{sys.version_info.major}.{sys.version_info.minor}/site-packages/vllm"
    own = f"RUN mkdir {site} && touch {site}/__init__.py && echo \"__version__ = '0.40.0'\" > {site}/version.py\n"
    with Image(tmp_path / "image", has_tensorrt_llm=False) as made:
        made.build(DOCKERFILE.replace("FROM ${BASE}\n", f"FROM ${{BASE}}\n{own}"), {"VLLM": "base"})
        assert "vLLM 0.40.0" in made.said
        assert made.run(["ls", "/opt/vllm"]).returncode != 0
