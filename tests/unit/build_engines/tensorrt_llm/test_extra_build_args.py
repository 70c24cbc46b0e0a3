# SPDX-License-Identifier: Apache-2.0
"""Flags of trtllm-build that a recipe has no field for are passed on as they are, and checked by the facts."""

from pathlib import Path
from typing import Any

import pytest
import yaml
from test_trtllm_commands import full_recipes
from trtllm_tools import flags_of, parser_of

from build_engines.recipes import extra_build_args
from build_engines.recipes.recipe import TensorRtRecipe, hash_recipe, load_recipe, recipe_document
from build_engines.tensorrt_llm.trtllm_commands import trtllm_build_argv, without_machine_flags
from trireme.base.errors import SpecError

EXTRA = {"profiling_verbosity": "detailed", "monitor_memory": True, "max_prompt_embedding_table_size": 8}
PLAIN: dict[str, Any] = {"name": "r", "model": "m", "backend": "tensorrt", "gpu": "h100", "format": "fp16"}


def recipe_of(**changes: Any) -> TensorRtRecipe:
    return TensorRtRecipe.model_validate(PLAIN | changes)


def test_flags_are_given_to_the_tool_as_they_are_and_it_takes_them() -> None:
    argv = trtllm_build_argv(recipe_of(extra_build_args=EXTRA), 1)
    assert argv[-5:] == [
        "--profiling_verbosity", "detailed", "--monitor_memory", "--max_prompt_embedding_table_size", "8",
    ]  # fmt: skip
    parser_of(flags_of("trtllm-build")).parse_args(argv[1:])
    assert without_machine_flags(argv) != without_machine_flags(trtllm_build_argv(recipe_of(), 1))


@pytest.mark.parametrize(
    ("flags", "words"),
    [
        ({"max_batch_size": 8}, "extra_build_args.max_batch_size is what max_batch_size says; set that"),
        ({"tokens_per_block": 64}, "tokens_per_block is what kv_block_tokens says"),
        ({"gemm_plugin": "auto"}, "gemm_plugin is what plugins.gemm_plugin says"),
        ({"output_dir": "x"}, "output_dir is made by the build"),
        ({"build_config": "x.json"}, "build_config replaces every other flag"),
        ({"model_cls_file": "x.py"}, "model_cls_file would run code of a file"),
        ({"profiling_verbositi": "x"}, r"is no flag of trtllm-build 1.2.1; did you mean profiling_verbosity\?"),
        ({"warp": 9}, r"is no flag of trtllm-build 1.2.1; leave it out"),
        ({"--monitor_memory": True}, "--monitor_memory must be without its hyphens: monitor_memory"),
        ({"monitor_memory": False}, "monitor_memory is false, and a flag is given or not"),
        ({"monitor_memory": None}, "extra_build_args.monitor_memory"),
    ],
)
def test_what_may_not_be_passed_on_is_refused_when_the_recipe_is_read(
    flags: dict[str, Any], words: str, tmp_path: Path
) -> None:
    file = tmp_path / "r.yaml"
    file.write_text(yaml.safe_dump(PLAIN | {"extra_build_args": flags}))
    with pytest.raises(SpecError, match=words):
        load_recipe(file)


def test_the_other_back_ends_have_no_such_field(tmp_path: Path) -> None:
    file = tmp_path / "r.yaml"
    file.write_text(yaml.safe_dump(PLAIN | {"backend": "pytorch", "extra_build_args": EXTRA}))
    with pytest.raises(SpecError, match="extra_build_args"):
        load_recipe(file)


@pytest.mark.parametrize("recipe", full_recipes().values(), ids=full_recipes())
def test_every_flag_that_a_recipe_makes_is_known_to_be_its_own(recipe: TensorRtRecipe) -> None:
    own = extra_build_args.BUILD_FLAGS.keys() | extra_build_args.REFUSED.keys()
    assert {word.removeprefix("--") for word in trtllm_build_argv(recipe, 1) if word.startswith("--")} <= own


def test_they_belong_to_the_manifest_and_the_hash_and_a_recipe_without_any_keeps_its_own() -> None:
    assert recipe_document(recipe_of(extra_build_args=EXTRA))["extra_build_args"] == EXTRA
    assert "extra_build_args" not in recipe_document(recipe_of())
    assert hash_recipe(recipe_of(extra_build_args=EXTRA)) != hash_recipe(recipe_of())


def test_an_older_version_with_engines_is_checked_by_the_oldest_that_was_read() -> None:
    assert recipe_of(tensorrt_llm="1.1.0", extra_build_args=EXTRA).extra_build_args == EXTRA
