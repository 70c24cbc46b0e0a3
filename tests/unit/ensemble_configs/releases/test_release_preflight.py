# SPDX-License-Identifier: Apache-2.0
"""A release that cannot be served is refused before a GPU is touched: what was found, what was wanted, what next."""

import json
import shutil
from collections.abc import Mapping
from importlib.metadata import version
from pathlib import Path
from types import MappingProxyType
from typing import NamedTuple

import pytest
from cryptography.hazmat.primitives.asymmetric.ec import SECP256R1, generate_private_key
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey
from cryptography.hazmat.primitives.serialization import Encoding, PublicFormat
from demo_release import (
    DEMO_MODEL,
    KV_BYTES_PER_TOKEN,
    NUM_PARAMETERS,
    VOCAB_SIZE,
    alter_a_byte,
    write_demo_release,
    write_gpu_release,
)

from build_engines.planner.engine_memory import memory_of
from ensemble_configs.releases.machine import Gpu, Machine
from ensemble_configs.releases.memory_need import memory_need_bytes
from ensemble_configs.releases.preflight import check_release, highest_token_id
from ensemble_configs.releases.release_manifest import address, load_manifest, seal
from ensemble_configs.releases.release_parts import DraftModel, EvaluationResult, ModelIdentity, Override, ReleaseLimits
from ensemble_configs.spec.deployment import load_deployment
from ensemble_configs.spec.engine.tensorrt_llm_specs import TensorRtEngineSpec
from ensemble_configs.spec.release_spec import ReleaseSpec, TokenizerSpec
from trireme.base.errors import SpecError

GIB = 1 << 30
H200 = Gpu(name="NVIDIA H200", sm=90, memory_bytes=141 * GIB, free_bytes=140 * GIB)
L4 = Gpu(name="NVIDIA L4", sm=89, memory_bytes=24 * GIB, free_bytes=23 * GIB)
TRTLLM = {"tensorrt_llm": "1.2.1", "tensorrt": "10.14.1.48.post1"}
OPENVINO = {name: version(name) for name in ("openvino", "openvino_genai")}


def machine(*gpus: Gpu, **changes: object) -> Machine:
    return Machine.model_validate({"gpus": gpus, "free_host_bytes": 16 * GIB, "packages": TRTLLM | OPENVINO} | changes)


def deployment(
    release: Path, engine: Mapping[str, object] = MappingProxyType({}), *, key: Path | None = None
) -> ReleaseSpec:
    provider = load_manifest(release).provider
    return ReleaseSpec.model_validate(
        {
            "release": 1,
            "release_dir": release,
            "release_public_key": key,
            "engine": {"provider": provider, **engine},
        }
    )


@pytest.fixture
def demo(tmp_path: Path) -> Path:
    return write_demo_release(tmp_path / "demo")


@pytest.fixture
def engine(tmp_path: Path) -> Path:
    """Return an engine of two ranks for an H200."""
    return write_gpu_release(
        tmp_path / "engine",
        tp_size=2,
        world_size=2,
        limits=ReleaseLimits(max_batch_size=64, max_num_tokens=8192, max_seq_len=4096),
        weight_bytes_per_rank=8 * GIB,
        workspace_bytes=1 * GIB,
        kv_bytes_per_token=65536,
    )


def test_what_fits_is_not_refused(demo: Path, engine: Path) -> None:
    assert check_release(demo, machine=machine()) == []
    assert check_release(demo, machine=machine(), deployment=deployment(demo)) == []
    two = machine(H200, H200)
    assert check_release(engine, machine=two) == []
    assert check_release(engine, machine=two, deployment=deployment(engine, {"tp_size": 2})) == []


def one_finding(folder: Path, where: Machine, spec: ReleaseSpec | None = None, *, num_nodes: int | None = None) -> str:
    findings = check_release(folder, machine=where, deployment=spec, num_nodes=num_nodes)
    assert len(findings) == 1, findings
    return str(findings[0])


@pytest.mark.parametrize(
    ("packages", "line"),
    [
        pytest.param(
            TRTLLM | {"tensorrt_llm": "1.2.0"},
            "tensorrt_llm: found 1.2.0, wanted 1.2.1; install tensorrt_llm==1.2.1, or build the release for what is "
            "installed",
            id="tensorrt_llm",
        ),
        pytest.param(
            TRTLLM | {"tensorrt": "10.13.3.9"},
            "tensorrt: found 10.13.3.9, wanted 10.14.1.48; install tensorrt==10.14.1.48, or build the release for what "
            "is installed",
            id="tensorrt",
        ),
        pytest.param(
            {"tensorrt": "10.14.1.48"},
            "tensorrt_llm: found none installed, wanted 1.2.1; install tensorrt_llm==1.2.1, or build the release for "
            "what is installed",
            id="none",
        ),
    ],
)
def test_another_tensorrt_is_refused(engine: Path, packages: dict[str, str], line: str) -> None:
    assert one_finding(engine, machine(H200, H200, packages=packages)) == line


def test_another_openvino_is_refused(demo: Path) -> None:
    where = machine(packages=OPENVINO | {"openvino": "2025.3.0"})
    assert f"openvino: found 2025.3.0, wanted {version('openvino')}; install" in one_finding(demo, where)


def test_a_checkpoint_is_not_bound_to_a_tensorrt(tmp_path: Path) -> None:
    release = write_gpu_release(tmp_path / "release", provider="pytorch", sm=None)
    assert check_release(release, machine=machine(L4, packages={"tensorrt_llm": "1.2.1"})) == []


def test_another_gpu_is_refused_by_its_place_and_name(engine: Path) -> None:
    line = one_finding(engine, machine(H200, L4))
    assert line.startswith("sm: found GPU 1 NVIDIA L4 with sm_89, wanted sm_90; serve it on the GPU that it was built")


def test_gpus_beyond_those_that_it_needs_do_not_count(engine: Path) -> None:
    assert check_release(engine, machine=machine(H200, H200, L4)) == []


def test_too_few_gpus_are_refused(engine: Path) -> None:
    assert one_finding(engine, machine(H200)).startswith("world size: found 1 GPUs here, wanted 2; serve it")
    line = one_finding(engine, machine(why_no_gpus="there is no driver"))
    assert line.startswith("world size: found 0 GPUs here (there is no driver), wanted 2; ")


def test_ranks_may_be_spread_over_nodes(engine: Path) -> None:
    assert check_release(engine, machine=machine(H200), num_nodes=2) == []
    by_deployment = deployment(engine, {"tp_size": 2, "gpus_per_node": 1})
    assert check_release(engine, machine=machine(H200), deployment=by_deployment) == []
    line = one_finding(engine, machine(why_no_gpus="none"), num_nodes=2)
    assert "found 0 GPUs here (none), wanted 1 for 2 ranks on 2 nodes" in line
    assert "world size: found 3 nodes, wanted a divisor of 2 ranks" in one_finding(engine, machine(H200), num_nodes=3)


@pytest.mark.parametrize("name", ["engine/rank1.engine", "engine/config.json", "tokenizer/tokenizer_config.json"])
def test_a_missing_file_is_refused(engine: Path, name: str) -> None:
    (engine / name).unlink()
    assert one_finding(engine, machine(H200, H200)).startswith(f"file {name}: found no such file, wanted")


def test_an_altered_rank_is_refused(engine: Path) -> None:
    alter_a_byte(engine / "engine/rank1.engine")
    line = one_finding(engine, machine(H200, H200))
    assert line.startswith("file engine/rank1.engine: found SHA-256 ")
    assert line.endswith("; build the release again, or pull it again from where it is whole")


def test_everything_that_is_wrong_is_found_at_once(engine: Path) -> None:
    (engine / "engine/rank0.engine").unlink()
    findings = check_release(
        engine, machine=machine(L4, packages={}), deployment=deployment(engine, {"tp_size": 1, "max_seq_len": 8192})
    )
    assert [finding.check for finding in findings] == [
        "file engine/rank0.engine",
        "tensorrt_llm",
        "tensorrt",
        "world size",
        "sm",
        "engine.tp_size",
        "engine.max_seq_len",
    ]


def test_half_a_release_is_one_finding(demo: Path) -> None:
    (demo / "release.json").unlink()
    assert "manifest: found the release" in one_finding(demo, machine())


@pytest.mark.parametrize(
    ("setting", "line"),
    [
        (
            {"max_seq_len": 4097},
            "engine.max_seq_len: found 4097, wanted 4096 at most; set it to 4096 or less, or build",
        ),
        ({"max_num_seqs": 65}, "engine.max_num_seqs: found 65, wanted 64 at most"),
        ({"max_num_batched_tokens": 8193}, "engine.max_num_batched_tokens: found 8193, wanted 8192 at most"),
        ({"max_beam_width": 2}, "engine.max_beam_width: found 2, wanted 1 at most"),
        ({"tp_size": 1}, "engine.tp_size: found 1, wanted 2; set it to 2, or build the release for 1"),
        ({"pp_size": 2}, "engine.pp_size: found 2, wanted 1"),
    ],
    ids=lambda value: next(iter(value)) if isinstance(value, dict) else "",
)
def test_a_deployment_that_asks_for_more_is_refused(engine: Path, setting: dict[str, object], line: str) -> None:
    spec = deployment(engine, {"tp_size": 2} | setting)
    assert line in one_finding(engine, machine(H200, H200), spec)


def test_a_deployment_with_another_provider_is_refused(engine: Path) -> None:
    spec = deployment(engine, {"provider": "pytorch", "tp_size": 2})
    line = one_finding(engine, machine(H200, H200), spec)
    assert line == "engine.provider: found pytorch, wanted tensorrt; set engine.provider to tensorrt"


# 8 GiB of weights, 1 of workspace, 4,096 tokens of 64 KiB: 9.25 GiB


@pytest.mark.parametrize(("free", "is_enough"), [(int(9.25 * GIB), True), (int(9.25 * GIB) - 1, False)])
def test_memory_is_enough_for_one_long_sequence(engine: Path, free: int, *, is_enough: bool) -> None:
    where = machine(H200, H200.model_copy(update={"free_bytes": free}))
    if is_enough:
        assert check_release(engine, machine=where) == []
    else:
        line = one_finding(engine, where)
        assert "memory: found 9.25 GiB free (GPU 1 NVIDIA H200), wanted 9.25 GiB a rank: weights 8.00 GiB" in line
        assert "lower engine.num_kv_blocks" in line


def test_memory_is_for_the_blocks_that_the_deployment_wants(engine: Path) -> None:
    # 20,480 blocks of 32 tokens of 64 KiB: 40 GiB
    spec = deployment(engine, {"tp_size": 2, "num_kv_blocks": 20480})
    assert memory_need_bytes(load_manifest(engine), spec) == 49 * GIB
    where = machine(H200, H200.model_copy(update={"free_bytes": 49 * GIB - 1}))
    assert "49.00 GiB a rank" in one_finding(engine, where, spec)


def test_the_cache_gets_only_its_part_of_the_free_memory(engine: Path) -> None:
    # Half of what the weights leave must hold 2,048 tokens of 64 KiB: 128 MiB of 256
    spec = deployment(engine, {"tp_size": 2, "max_seq_len": 2048, "free_gpu_memory_fraction": 0.5})
    assert memory_need_bytes(load_manifest(engine), spec) == int(9.25 * GIB)


def test_logits_that_are_kept_for_log_probabilities_count(engine: Path) -> None:
    # 8 steps of 64 sequences of the vocabulary in float32
    plain = deployment(engine, {"tp_size": 2, "max_num_seqs": 64})
    gathering = deployment(engine, {"tp_size": 2, "max_num_seqs": 64, "is_gathering_generation_logits": True})
    silent = deployment(engine, {"tp_size": 2, "is_gathering_generation_logits": True})
    assert isinstance(silent.engine, TensorRtEngineSpec)
    assert silent.engine.max_num_seqs > 64, "and is lowered to what was built"
    manifest = load_manifest(engine)
    kept = 8 * 64 * manifest.vocab_size * 4
    assert memory_need_bytes(manifest, gathering) - memory_need_bytes(manifest, plain) == kept
    assert memory_need_bytes(manifest, silent) == memory_need_bytes(manifest, gathering)
    where = machine(H200, H200.model_copy(update={"free_bytes": 9 * GIB}))
    assert "(engine.is_gathering_generation_logits), the rest KV cache" in one_finding(engine, where, gathering)
    assert memory_of(gathering.engine).fixed_bytes - memory_of(plain.engine).fixed_bytes == kept


def test_a_gpu_that_does_not_tell_its_memory_is_not_judged(engine: Path) -> None:
    silent = H200.model_copy(update={"free_bytes": None})
    assert check_release(engine, machine=machine(silent, silent)) == []


def test_a_cpu_needs_host_memory(demo: Path) -> None:
    # 100 blocks of 32 tokens
    need = NUM_PARAMETERS + 3200 * KV_BYTES_PER_TOKEN
    spec = deployment(demo, {"num_kv_blocks": 100})
    assert check_release(demo, machine=machine(free_host_bytes=need), deployment=spec) == []
    assert "free (host)" in one_finding(demo, machine(free_host_bytes=need - 1), spec)


def test_a_draft_model_counts_where_it_drafts(tmp_path: Path) -> None:
    draft = DraftModel(
        model=ModelIdentity(architecture="LlamaForCausalLM", num_parameters=1000, source="x"),
        weights_sha256="0" * 64,
        weight_bytes_per_rank=1000,
        kv_bytes_per_token=10,
    )
    release = write_demo_release(tmp_path / "release", draft=draft)
    manifest = load_manifest(release)
    assert "draft/openvino_model.bin" in manifest.files
    plain = deployment(release, {"num_kv_blocks": 100})
    drafting = deployment(release, {"num_kv_blocks": 100, "draft_dir": release / "draft", "is_prefix_caching": False})
    assert memory_need_bytes(manifest, drafting) - memory_need_bytes(manifest, plain) == 1000 + 3200 * 10


def with_tokenizer(spec: ReleaseSpec, folder: Path) -> ReleaseSpec:
    return spec.model_copy(update={"tokenizer": TokenizerSpec(dir=folder)})


def test_another_tokenizer_is_refused(demo: Path, tmp_path: Path) -> None:
    other = tmp_path / "other"
    other.mkdir()
    (other / "tokenizer.json").write_bytes((demo / "tokenizer/tokenizer.json").read_bytes() + b"\n")
    spec = with_tokenizer(deployment(demo), other)
    line = one_finding(demo, machine(), spec)
    assert f"tokenizer: found {other}/tokenizer.json with SHA-256" in line
    assert f"wanted SHA-256 {load_manifest(demo).tokenizer_sha256}; set tokenizer.dir to {demo}/tokenizer" in line
    (other / "tokenizer.json").unlink()
    assert f"tokenizer: found no {other}" in one_finding(demo, machine(), spec)


def test_the_same_tokenizer_may_lie_elsewhere(demo: Path) -> None:
    spec = with_tokenizer(deployment(demo), DEMO_MODEL / "target")
    assert check_release(demo, machine=machine(), deployment=spec) == []


def test_another_chat_template_is_another_tokenizer(demo: Path, tmp_path: Path) -> None:
    shutil.copytree(demo / "tokenizer", tmp_path / "other")
    spec = with_tokenizer(deployment(demo), tmp_path / "other")
    assert check_release(demo, machine=machine(), deployment=spec) == []
    (tmp_path / "other" / "chat_template.jinja").write_text("{{ messages[0].content }}")
    line = one_finding(demo, machine(), spec)
    assert f"found another chat template in {tmp_path}/other, wanted the release's own; set tokenizer.dir" in line


def test_the_release_s_own_template_is_sealed_with_it(tmp_path: Path) -> None:
    release = write_demo_release(tmp_path / "release")
    config = release / "tokenizer" / "tokenizer_config.json"
    config.write_text(config.read_text().replace("<|end|>", "<|pad|>"))
    assert "tokenizer/tokenizer_config.json" in one_finding(release, machine())


def test_a_tokenizer_with_more_tokens_than_the_model_is_refused(tmp_path: Path) -> None:
    assert highest_token_id(DEMO_MODEL / "target" / "tokenizer.json") == VOCAB_SIZE - 1
    release = write_demo_release(tmp_path / "release", vocab_size=VOCAB_SIZE - 1)
    assert f"tokenizer: found {VOCAB_SIZE} token ids in" in one_finding(release, machine())


@pytest.mark.parametrize(
    ("model", "added", "highest"),
    [
        pytest.param({"vocab": {"a": 0, "b": 7}}, [], 7, id="a table"),
        pytest.param({"vocab": [["a", -1.0], ["b", -2.0]]}, None, 1, id="unigram has a list"),
        pytest.param({"vocab": {"a": 0}}, [{"id": 9}], 9, id="added tokens"),
    ],
)
def test_the_highest_id_is_found_in_every_kind_of_tokenizer(
    tmp_path: Path, model: object, added: object, highest: int
) -> None:
    path = tmp_path / "tokenizer.json"
    path.write_text(json.dumps({"model": model, "added_tokens": added}))
    assert highest_token_id(path) == highest


class Key(NamedTuple):
    private: Ed25519PrivateKey
    path: Path

    def sign(self, release: Path) -> None:
        (release / "release.sig").write_bytes(self.private.sign(address(release).encode()))


def new_key(path: Path) -> Key:
    private = Ed25519PrivateKey.generate()
    path.write_bytes(private.public_key().public_bytes(Encoding.PEM, PublicFormat.SubjectPublicKeyInfo))
    return Key(private, path)


@pytest.fixture
def key(tmp_path: Path) -> Key:
    return new_key(tmp_path / "key.pem")


def test_a_signed_release_is_accepted(demo: Path, key: Key) -> None:
    key.sign(demo)
    assert check_release(demo, machine=machine(), deployment=deployment(demo, key=key.path)) == []


def test_a_release_that_is_not_signed_is_refused_where_a_key_is_named(demo: Path, tmp_path: Path, key: Key) -> None:
    spec = deployment(demo, key=key.path)
    assert f"signature: found no release.sig, wanted {address(demo)} signed" in one_finding(demo, machine(), spec)
    new_key(tmp_path / "other.pem").sign(demo)
    assert "which is not of this key and this content" in one_finding(demo, machine(), spec)


def test_a_signature_does_not_hold_for_a_release_that_was_sealed_again(demo: Path, key: Key) -> None:
    key.sign(demo)
    seal(demo, load_manifest(demo).model_copy(update={"name": "other"}))
    line = one_finding(demo, machine(), deployment(demo, key=key.path))
    assert "which is not of this key and this content" in line


def test_a_key_that_is_none_is_refused(demo: Path, tmp_path: Path) -> None:
    path = tmp_path / "key.pem"
    other_kind = generate_private_key(SECP256R1()).public_key()
    pem = other_kind.public_bytes(Encoding.PEM, PublicFormat.SubjectPublicKeyInfo)
    for content, words in ((b"x", "no PEM file"), (pem, "no Ed25519 key")):
        path.write_bytes(content)
        with pytest.raises(SpecError, match=words):
            check_release(demo, machine=machine(), deployment=deployment(demo, key=path))
    path.unlink()
    with pytest.raises(SpecError, match=r"cannot read .*key.pem: No such file"):
        check_release(demo, machine=machine(), deployment=deployment(demo, key=path))


def test_a_deployment_names_a_release_by_its_folder_alone(tmp_path: Path) -> None:
    path = tmp_path / "d.yaml"
    path.write_text("name: x\nrelease_dir: models/one\nengine: {provider: openvino}\n")
    spec = load_deployment(path).model
    assert spec.release_dir == tmp_path / "models/one"
    assert spec.tokenizer.dir == tmp_path / "models/one/tokenizer"
    assert getattr(spec.engine, "dir", None) == tmp_path / "models/one/engine"


def test_a_tokenizer_with_settings_still_lies_in_the_release(tmp_path: Path) -> None:
    path = tmp_path / "d.yaml"
    path.write_text(
        "name: x\nrelease_dir: /one\nengine: {provider: openvino}\ntokenizer: {add_special_tokens: false}\n"
    )
    tokenizer = load_deployment(path).model.tokenizer
    assert (tokenizer.dir, tokenizer.add_special_tokens) == (Path("/one/tokenizer"), False)


def test_an_engine_outside_of_the_release_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "d.yaml"
    path.write_text("name: x\nrelease_dir: /one\nengine: {provider: openvino, dir: /two}\n")
    with pytest.raises(SpecError, match=r"engine.dir must be the folder engine of release_dir; leave it out"):
        load_deployment(path)


def evaluated(release: Path, *passed: bool | None, override: Override | None = None) -> None:
    results = tuple(
        EvaluationResult(task="facts", group=f"group {number}", metric="accuracy_drop", value=0.25, passed=one)
        for number, one in enumerate(passed)
    )
    seal(release, load_manifest(release).model_copy(update={"evaluation": results, "override": override}))


def test_a_release_that_failed_its_evaluation_is_refused(demo: Path) -> None:
    evaluated(demo, True, None, False, False)
    (finding,) = check_release(demo, machine=machine())
    assert finding.check == "evaluation"
    assert finding.found == "accuracy_drop of 0.25 in facts, group 2 and 1 more"
    assert "--override" in finding.next_step


def test_a_release_that_passed_or_was_overridden_is_not_refused(demo: Path) -> None:
    evaluated(demo, True, None)
    assert check_release(demo, machine=machine()) == []
    evaluated(demo, False, override=Override(reason="a trial", who="A. Person"))
    assert check_release(demo, machine=machine()) == []


def test_an_engine_that_was_built_without_what_the_deployment_asks_is_refused(engine: Path) -> None:
    config = json.loads((engine / "engine/config.json").read_text())
    config["build_config"]["plugin_config"] = {"use_paged_context_fmha": False, "lora_plugin": None}
    (engine / "engine/config.json").write_text(json.dumps(config))
    seal(engine, load_manifest(engine))
    two, asked = machine(H200, H200), {"tp_size": 2, "is_block_reuse": False}
    line = one_finding(engine, two, deployment(engine, asked))
    assert line.startswith("engine.is_chunked_prefill: found True, which needs paged context attention, which ")
    assert "set it to false, or build the engine anew with another KV type" in line
    assert (
        check_release(engine, machine=two, deployment=deployment(engine, asked | {"is_chunked_prefill": False})) == []
    )


def test_memory_for_one_sequence_counts_its_beams(engine: Path) -> None:
    manifest = load_manifest(engine)
    plain = {"tp_size": 2, "max_seq_len": 4096, "free_gpu_memory_fraction": 1}
    fixed = manifest.weight_bytes_per_rank + manifest.workspace_bytes
    for beams, blocks in ((1, 128), (4, 127 + 4)):  # of blocks of 32 tokens, 127 are the prompt's alone and shared
        spec = deployment(engine, plain | {"max_beam_width": beams})
        assert memory_need_bytes(manifest, spec) == fixed + blocks * 32 * 65536
