# SPDX-License-Identifier: Apache-2.0
"""Start Triton's OpenAI frontend as it is, with options of Triton that its command has no names for.

`PYTHON triton_openai_launcher.py MAIN OPTIONS ARGUMENT...`, by a Python with the package `tritonserver`: `MAIN` is the
frontend's main.py, `OPTIONS` are those of `tritonserver.Server` as JSON. It uses nothing of the project.
"""

import functools
import importlib
import json
import runpy
import sys
from pathlib import Path


def main() -> None:
    """Run the frontend with the arguments that are left."""
    frontend, options, *arguments = sys.argv[1:]
    tritonserver = importlib.import_module("tritonserver")
    tritonserver.Server = functools.partial(tritonserver.Server, **json.loads(options))  # type: ignore[attr-defined]
    sys.argv = [frontend, *arguments]
    sys.path.insert(0, str(Path(frontend).parent))
    runpy.run_path(frontend, run_name="__main__")


if __name__ == "__main__":
    main()
