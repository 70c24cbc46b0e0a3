# SPDX-License-Identifier: Apache-2.0
"""The files of other folders that the wheel has in trireme/data, for `trireme.base.project_files`."""

import shutil
from pathlib import Path

from setuptools import setup
from setuptools.command.build_py import build_py

ROOT = Path(__file__).resolve().parent
# Folders and files of a checkout that an installed Trireme needs. The demo model's checkpoint is not among them: what
# serves it is its IR and its tokenizer.
FILES = (
    "ensemble_configs/deployments/*.yaml",
    "examples/cost/**/*",
    "examples/demo_model/*.jsonl",
    "examples/demo_model/openvino/**/*",
    "examples/demo_model/target/*.json",
    "examples/demo_model/draft/config.json",
    "examples/embedding_model/**/*",
    "helm/**/*",
    "model_repository/**/*",
    "requirements/triton.txt",
)


class BuildWithFiles(build_py):  # type: ignore[misc]  # setuptools has no types
    """Copies the modules and the files of other folders."""

    def run(self) -> None:
        """Copy both; an editable installation finds the files where they are."""
        super().run()
        if self.editable_mode:
            return
        for file in sorted(file for pattern in FILES for file in ROOT.glob(pattern)):
            if file.is_file() and "__pycache__" not in file.parts:
                copy = Path(self.build_lib, "trireme", "data", file.relative_to(ROOT))
                copy.parent.mkdir(parents=True, exist_ok=True)
                shutil.copy2(file, copy)


setup(cmdclass={"build_py": BuildWithFiles})
