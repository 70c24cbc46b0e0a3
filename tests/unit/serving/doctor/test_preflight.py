# SPDX-License-Identifier: Apache-2.0
"""Refusals of what would fail later, before anything is started, with the field, the value and the next step."""

import socket
from collections.abc import Iterable, Iterator
from pathlib import Path

import pytest
from demo_release import write_demo_release
from simulated_release import TOKENIZER

from ensemble_configs.releases.machine import Machine
from ensemble_configs.releases.memory_need import memory_need_bytes
from ensemble_configs.releases.release_manifest import load_manifest
from ensemble_configs.spec.deployment import DeploymentSpec, override_triton
from ensemble_configs.spec.engine.embedding_spec import EmbeddingModelSpec
from ensemble_configs.spec.engine.engine_spec import EngineSpec
from ensemble_configs.spec.engine.openvino_spec import OpenVinoEngineSpec
from ensemble_configs.spec.engine.simulated_spec import SimulatedEngineSpec
from ensemble_configs.spec.engine.tensorrt_llm_specs import TensorRtEngineSpec
from ensemble_configs.spec.model_spec import ExtraModelSpec, RateLimiterSpec
from ensemble_configs.spec.release_spec import TokenizerSpec
from ensemble_configs.spec.triton_spec import TritonSpec
from serving.doctor.preflight import check
from serving.process.this_machine import read_machine
from trireme.base.errors import SpecError

DEMO_ENGINE = TOKENIZER.parent / "openvino" / "target"
PORTS = ("http_port", "grpc_port", "metrics_port")


def free_ports() -> dict[str, int]:
    with socket.socket() as a, socket.socket() as b, socket.socket() as c:
        for sock in (a, b, c):
            sock.bind(("127.0.0.1", 0))
        return {name: sock.getsockname()[1] for name, sock in zip(PORTS, (a, b, c), strict=True)}


def spec(
    *,
    tokenizer: Path = TOKENIZER,
    engine: EngineSpec | None = None,
    host: str = "127.0.0.1",
    ports: dict[str, int] | None = None,
) -> DeploymentSpec:
    return DeploymentSpec.of_one(
        name="test",
        tokenizer=TokenizerSpec(dir=tokenizer),
        engine=engine or SimulatedEngineSpec(provider="simulated"),
        triton=TritonSpec.model_validate({"host": host} | free_ports() | (ports or {})),
    )


@pytest.fixture
def taken_port() -> Iterator[int]:
    with socket.socket() as sock:
        sock.bind(("127.0.0.1", 0))
        sock.listen()
        yield sock.getsockname()[1]


def test_what_can_be_started_passes() -> None:
    check(spec())


def test_a_tokenizer_that_is_not_there_is_named(tmp_path: Path) -> None:
    with pytest.raises(SpecError, match=rf"tokenizer.dir: there is no {tmp_path}/tokenizer.json") as caught:
        check(spec(tokenizer=tmp_path))
    assert caught.value.facts == {"field": "tokenizer.dir"}


def test_an_engine_that_is_not_built_is_named_with_what_builds_it(tmp_path: Path) -> None:
    engine = OpenVinoEngineSpec(provider="openvino", dir=tmp_path)
    with pytest.raises(SpecError, match=r"engine.dir: there is no engine at .*openvino_model.xml; build it"):
        check(spec(engine=engine))
    (tmp_path / "openvino_model.xml").touch()
    with pytest.raises(SpecError, match=r"engine.dir: .* has no config.json"):
        check(spec(engine=engine))
    (tmp_path / "config.json").write_text('{"vocab_size": 32, "max_position_embeddings": 2048}')
    check(spec(engine=engine))


@pytest.mark.parametrize(
    ("change", "finding"),
    [
        ({"lora_file": "none.safetensors"}, r"engine.lora_file: there is no file none.safetensors"),
        (
            {"draft_dir": "none", "is_prefix_caching": False},
            r"engine.draft_dir: there is no engine at none.openvino_model.xml",
        ),
        (
            {"max_seq_len": 4096},
            r"engine.max_seq_len \(4096\) > max_position_embeddings \(2048\) of .*; set it to 2048",
        ),
        (
            {"num_kv_blocks": 2**31 - 1},
            r"engine.num_kv_blocks \(2147483647\) take .* GiB at least, where .* are free; lower",
        ),
    ],
    ids=["adapter", "draft", "length", "cache"],
)
def test_what_an_openvino_engine_cannot_be_loaded_with_is_named(change: dict[str, object], finding: str) -> None:
    data = {"provider": "openvino", "dir": DEMO_ENGINE, **change}
    with pytest.raises(SpecError, match=finding):
        check(spec(engine=OpenVinoEngineSpec.model_validate(data)))


def test_a_provider_that_is_not_installed_is_named_with_what_installs_it(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("importlib.util.find_spec", lambda _: None)
    engine = TensorRtEngineSpec(provider="tensorrt", dir=Path("/none"))
    with pytest.raises(SpecError, match=r"engine.provider 'tensorrt' needs tensorrt_llm, which is not installed"):
        check(spec().with_model(engine=engine))


def test_a_model_of_the_users_own_for_a_gpu_needs_one(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    extra = ExtraModelSpec(name="embed", dir=tmp_path, kind="KIND_GPU", rate_limiter=RateLimiterSpec())
    here = read_machine((), is_asking_for_gpus=False)
    monkeypatch.setattr("serving.doctor.preflight.read_machine", lambda _, **__: here)
    with pytest.raises(SpecError, match="extra_models: embed has the kind KIND_GPU, and there is no GPU here"):
        check(spec().model_copy(update={"extra_models": (extra,)}))
    check(spec().model_copy(update={"extra_models": (extra.model_copy(update={"kind": "KIND_CPU"}),)}))


def test_an_embedding_model_that_is_not_there_is_named_before_anything_is_started(tmp_path: Path) -> None:
    model = EmbeddingModelSpec(name="embed", dir=tmp_path / "minilm", pooling="mean")
    with pytest.raises(SpecError, match=r"embedding_models.embed.dir: .*minilm has no openvino_model.xml"):
        check(spec().model_copy(update={"embedding_models": (model,)}))


@pytest.mark.parametrize("name", PORTS)
def test_a_port_that_is_taken_is_named_with_the_option_that_changes_it(name: str, taken_port: int) -> None:
    with pytest.raises(
        SpecError, match=f"{name} {taken_port} of host 127.0.0.1 .*--{name.replace('_', '-')}"
    ) as caught:
        check(spec(ports={name: taken_port}))
    assert caught.value.facts == {"field": name, "value": taken_port}


def test_a_port_whose_last_connections_are_still_closing_is_free() -> None:
    ports = free_ports()
    with socket.socket() as server:
        server.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        server.bind(("127.0.0.1", ports["http_port"]))
        server.listen()
        with socket.create_connection(server.getsockname()) as client:
            accepted, _ = server.accept()
            accepted.close()  # the side that closes first waits in TIME_WAIT
            client.recv(1)
    check(spec(ports=ports))


@pytest.mark.parametrize("host", ["localhost", "0.0.0.0"])
def test_names_and_all_addresses_are_tried_as_they_are(host: str) -> None:
    check(spec(host=host))


def test_an_address_of_ipv6_is_tried_as_one() -> None:
    try:
        with socket.socket(socket.AF_INET6) as probe:
            probe.bind(("::1", 0))
    except OSError as exc:
        pytest.skip(f"this machine has no IPv6: {exc}")
    check(spec(host="::1"))


@pytest.mark.parametrize("host", ["192.0.2.1", "a..b"])
def test_an_address_that_is_not_ours_is_refused(host: str) -> None:
    with pytest.raises(SpecError, match=f"http_port .* of host {host} cannot be used"):
        check(spec(host=host))


def test_releases_that_fit_alone_have_to_fit_together(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    release = write_demo_release(tmp_path / "release")
    engine = {"provider": "openvino", "num_kv_blocks": 2048}
    models = [{"name": name, "release_dir": release, "engine": engine} for name in ("a", "b")]
    pair, one = (DeploymentSpec.model_validate({"name": "p", "models": models[:n]}) for n in (2, 1))
    need = memory_need_bytes(load_manifest(release), one.model)

    def machine(packages: Iterable[str], *, is_asking_for_gpus: bool) -> Machine:
        here = read_machine(packages, is_asking_for_gpus=is_asking_for_gpus)
        return here.model_copy(update={"free_host_bytes": 2 * need - 1})

    for module in ("serving.doctor.preflight", "serving.doctor.release_check"):
        monkeypatch.setattr(f"{module}.read_machine", machine)
    check(override_triton(one, **free_ports()))
    with pytest.raises(
        SpecError, match=r"the models take .* GiB together on the host, where .* are free; `trireme plan"
    ):
        check(override_triton(pair, **free_ports()))
