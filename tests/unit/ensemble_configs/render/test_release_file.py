# SPDX-License-Identifier: Apache-2.0
"""`release.json` says what one release is made of; it moves with its tree, and a broken one is refused by name."""

import json
from pathlib import Path

import pytest

from ensemble_configs.render.release_file import RELEASE_FILE, load_release, render_release
from ensemble_configs.spec.engine.engine_spec import EngineSpec
from ensemble_configs.spec.engine.lora_spec import LoraSpec
from ensemble_configs.spec.engine.openvino_spec import OpenVinoEngineSpec
from ensemble_configs.spec.engine.simulated_spec import SimulatedEngineSpec
from ensemble_configs.spec.engine.speculation_specs import (
    DraftTargetSpec,
    MedusaSpec,
)
from ensemble_configs.spec.engine.tensorrt_llm_specs import (
    CacheTransceiverSpec,
    PyTorchEngineSpec,
    TensorRtEngineSpec,
)
from ensemble_configs.spec.release_spec import ReleaseSpec, ResponseSpec, TokenizerSpec
from trireme.base.errors import SpecError

ENGINES: list[EngineSpec] = [
    SimulatedEngineSpec(provider="simulated", step_ms=2.5, mode="echo", vocab_size=300),
    OpenVinoEngineSpec(provider="openvino", dir=Path("/models/m"), num_threads=4, kv_cache_precision="u8"),
    OpenVinoEngineSpec(provider="openvino", dir=Path("/models/m")),
    TensorRtEngineSpec(
        provider="tensorrt",
        dir=Path("/models/e"),
        end_ids=(2, 3),
        lora=LoraSpec(dir=Path("/models/lora"), target_modules=("attn_q",)),
        speculation=MedusaSpec(method="medusa", max_draft_len=4, num_heads=4, choices=((0,), (0, 1))),
    ),
    PyTorchEngineSpec(
        provider="pytorch",
        dir=Path("/models/c"),
        speculation=DraftTargetSpec(method="draft_target", dir=Path("/models/d"), max_draft_len=3),
        cache_transceiver=CacheTransceiverSpec(backend="nixl"),
    ),
]


def release_of(engine: EngineSpec, tokenizer: Path = Path("/models/tok")) -> ReleaseSpec:
    return ReleaseSpec(
        release=3,
        tokenizer=TokenizerSpec(dir=tokenizer, add_special_tokens=False),
        engine=engine,
        responses=ResponseSpec(exclude_input_in_output=True, max_chunk_delay_ms=7.5, target_chunks_per_s=40),
    )


def write(folder: Path, spec: ReleaseSpec) -> None:
    folder.mkdir(parents=True, exist_ok=True)
    (folder / RELEASE_FILE).write_text(render_release(spec, folder=folder))


@pytest.mark.parametrize("engine", ENGINES, ids=["simulated", "openvino", "openvino defaults", "tensorrt", "pytorch"])
def test_a_release_reads_back_as_it_was(tmp_path: Path, engine: EngineSpec) -> None:
    spec = release_of(engine)
    write(tmp_path / "repo" / "3", spec)
    loaded = load_release(tmp_path / "repo" / "3")
    assert loaded == spec


def test_paths_are_relative_so_that_a_tree_can_move(tmp_path: Path) -> None:
    (tmp_path / "a" / "tok").mkdir(parents=True)
    write(tmp_path / "a" / "repo" / "3", release_of(ENGINES[0], tmp_path / "a" / "tok"))
    (tmp_path / "a").rename(tmp_path / "b")
    text = (tmp_path / "b" / "repo" / "3" / RELEASE_FILE).read_text()
    assert json.loads(text)["tokenizer"]["dir"] == "../../tok"
    assert load_release(tmp_path / "b" / "repo" / "3").tokenizer.dir == tmp_path / "b" / "tok"


def test_paths_in_the_parts_of_an_engine_are_relative_as_well(tmp_path: Path) -> None:
    for engine, part in ((ENGINES[3], "lora"), (ENGINES[4], "speculation")):
        text = render_release(release_of(engine), folder=tmp_path)
        assert json.loads(text)["engine"][part]["dir"].startswith("../")


def test_what_is_not_set_is_not_in_the_file(tmp_path: Path) -> None:
    text = render_release(release_of(ENGINES[2]), folder=tmp_path)
    assert "num_threads" not in json.loads(text)["engine"]
    assert text.endswith("}\n")


def test_the_servers_settings_are_not_the_releases(tmp_path: Path) -> None:
    assert set(json.loads(render_release(release_of(ENGINES[0]), folder=tmp_path))) == {
        "release",
        "tokenizer",
        "engine",
        "responses",
        "bls",
        "slo",
        "placement",
        "is_warmed_up",
    }


@pytest.mark.parametrize(
    ("text", "finding"),
    [
        pytest.param("{", "is not JSON", id="not JSON"),
        pytest.param("[]", "should be a mapping of release, ", id="a list"),
        pytest.param("{}", "release: field required; tokenizer: field required; engine: field required", id="empty"),
        pytest.param('{"colour": 1}', "colour: extra inputs are not permitted", id="unknown key"),
        pytest.param('{"release": 0}', "release: input should be greater than or equal to 1", id="version 0"),
        pytest.param('{"engine": {"provider": "magic"}}', "'magic'", id="unknown provider"),
    ],
)
def test_a_broken_release_is_refused_with_its_path_and_every_finding(tmp_path: Path, text: str, finding: str) -> None:
    (tmp_path / RELEASE_FILE).write_text(text)
    with pytest.raises(SpecError) as caught:
        load_release(tmp_path)
    assert finding in caught.value.message
    assert str(tmp_path / RELEASE_FILE) in caught.value.message
    assert "\n" not in caught.value.message
    assert caught.value.facts == {"file": tmp_path / RELEASE_FILE}


def test_a_release_that_is_not_there_is_refused_with_what_writes_it(tmp_path: Path) -> None:
    with pytest.raises(SpecError, match=r"cannot read .*release.json: No such file or directory; .*`trireme render`"):
        load_release(tmp_path)
