# SPDX-License-Identifier: Apache-2.0
"""The stage that lays out a release's tokenizer, and what of the checkpoint lies beside the engine."""

import shutil
from pathlib import Path

from pydantic import JsonValue

from build_engines.stages.build_job import BuildJob
from build_engines.stages.stage_list import Stage

TEXTS = "texts"
_GENERATION_CONFIG = "generation_config.json"


def texts_stage(job: BuildJob, *, is_tokenizer_beside: bool = False) -> Stage:
    """Return the stage that lays out tokenizer and generation config as in a release.

    Args:
        job: names the checkpoint.
        is_tokenizer_beside: the engine reads the tokenizer's files beside its own.
    """
    checkpoint = job.checkpoint
    beside_engine = [checkpoint.dir / _GENERATION_CONFIG, *(checkpoint.tokenizer_files if is_tokenizer_beside else ())]

    def work(folder: Path, _work: Path) -> None:
        for part, files in (("tokenizer", checkpoint.tokenizer_files), ("engine", beside_engine)):
            (folder / part).mkdir()
            for file in files:
                if file.is_file():
                    shutil.copyfile(file, folder / part / file.name)

    names = {file.name for file in (*checkpoint.tokenizer_files, *beside_engine)}
    hashes: dict[str, JsonValue] = {
        name: digest for name, digest in ({} if job.is_dry_run else checkpoint.hashes).items() if name in names
    }
    key: dict[str, JsonValue] = {"files": hashes}
    if is_tokenizer_beside:
        key["tokenizer"] = "beside the engine"
    return Stage(TEXTS, "copy tokenizer and generation config", work, key=key)
