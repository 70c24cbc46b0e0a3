# SPDX-License-Identifier: Apache-2.0
"""Tests of where vLLM runs: its environment, what its process sees of Trireme, and the versions that are taken."""

import logging
import socket
import subprocess
import sys
import venv
from pathlib import Path

import msgspec
import pytest
from engine_adapter import wait_until
from pydantic import ValidationError

from ensemble_configs.spec.deployment import DeploymentSpec
from ensemble_configs.spec.engine.vllm_spec import VllmEngineSpec
from ensemble_configs.spec.release_spec import PlacementSpec, TokenizerSpec
from serving.engine_guard.guarded_process import PlainProcess
from serving.engines.providers import check_installed, start_of_release
from serving.engines.vllm.vllm_start import plan_vllm_start
from serving.engines.vllm.vllm_upstream import check_version
from serving.process.code_links import code_links
from serving.process.run_dir import RUN_DIR_VARIABLE
from trireme.base.errors import SpecError


def spec(**changes: object) -> VllmEngineSpec:
    return VllmEngineSpec.model_validate({"provider": "vllm", "dir": "/model"} | changes)


def environment(folder: Path, *, has_vllm: bool = True, has_openmp: bool = False) -> Path:
    """Return a virtual environment, with a package of vLLM's name."""
    venv.create(folder, symlinks=True)
    if has_vllm:
        [packages] = folder.glob("lib/python3*/site-packages")
        (packages / "vllm").mkdir()
        (packages / "vllm" / "__init__.py").touch()
    if has_openmp:
        (folder / "lib/libiomp5.so").touch()
    return folder


def test_the_servers_own_environment_needs_no_other_interpreter(tmp_path: Path) -> None:
    start = plan_vllm_start(spec(), {}, tmp_path)
    assert (start.python, start.is_guarded, start.close_timeout_s) == (None, False, None)
    assert start.environment["VLLM_ENABLE_V1_MULTIPROCESSING"] == "0"
    assert "PYTHONPATH" not in start.environment


def test_another_environment_runs_the_engine_without_the_servers_packages(tmp_path: Path) -> None:
    other = environment(tmp_path / "venv", has_openmp=True)
    on_cpu = spec(venv_dir=other, device="cpu", kv_cache_bytes=2**26, num_threads=3)
    start = plan_vllm_start(on_cpu, {"LD_PRELOAD": "/a.so"}, tmp_path)
    assert start.python == str(other / "bin/python")
    assert start.environment["OMP_NUM_THREADS"] == "3"
    assert start.environment["LD_PRELOAD"] == f"{other / 'lib/libiomp5.so'}:/a.so"
    seen = start.environment_from(
        {"PYTHONPATH": "/server", "PYTHONHOME": "/server", "VIRTUAL_ENV": "/server", "A": "1"}
    )
    assert seen["PYTHONPATH"] == str(tmp_path / "code")
    assert seen["A"] == "1"
    assert not {"PYTHONHOME", "VIRTUAL_ENV"} & seen.keys()


def test_a_cpu_has_settings_of_its_own_and_a_gpu_none_of_them(tmp_path: Path) -> None:
    of_cpu = {"OMP_NUM_THREADS", "KMP_BLOCKTIME", "VLLM_CPU_OMP_THREADS_BIND"}
    assert not of_cpu & plan_vllm_start(spec(), {}, tmp_path).environment.keys()
    assert of_cpu <= plan_vllm_start(spec(device="cpu", kv_cache_bytes=2**26), {}, tmp_path).environment.keys()
    with pytest.raises(ValidationError, match="device: cpu needs kv_cache_bytes"):
        spec(device="cpu")


SHORT = Path("/run/trireme")  # sockets of ranks lie below it


def test_ranks_run_below_a_guard() -> None:
    start = plan_vllm_start(spec(tp_size=2), {}, SHORT)
    assert start.is_guarded
    assert start.close_timeout_s == 25.0
    assert start.environment["VLLM_WORKER_MULTIPROC_METHOD"] == "spawn"


def test_the_cores_of_a_cpu_are_divided_among_the_ranks(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("os.sched_getaffinity", lambda _: set(range(12)))

    def threads(**changes: object) -> str:
        on_cpu = spec(device="cpu", kv_cache_bytes=2**26, **changes)
        return plan_vllm_start(on_cpu, {}, SHORT).environment["OMP_NUM_THREADS"]

    assert [threads(tp_size=size) for size in (1, 4, 8, 24)] == ["12", "3", "1", "1"]
    assert threads(tp_size=4, num_threads=5) == "5"


def test_an_engine_with_a_place_has_a_thread_for_each_core_of_that_place(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv(RUN_DIR_VARIABLE, str(tmp_path))
    deployment = DeploymentSpec.of_one(
        name="placed",
        tokenizer=TokenizerSpec(dir=tmp_path),
        engine=spec(device="cpu", kv_cache_bytes=2**26, venv_dir=None),
        placement=PlacementSpec(cpus=(0, 1, 2)),
    )
    start = start_of_release(deployment.model)
    assert start.cpus == (0, 1, 2)
    assert start.environment["OMP_NUM_THREADS"] == "3"
    assert "KMP_AFFINITY" in start.environment, "within the place"


def test_threads_are_bound_where_one_engine_has_a_thread_on_each_core() -> None:
    def is_bound(**changes: object) -> bool:
        on_cpu = spec(device="cpu", kv_cache_bytes=2**26, **changes)
        return "KMP_AFFINITY" in plan_vllm_start(on_cpu, {}, SHORT).environment

    assert is_bound()
    assert not is_bound(num_threads=1), "another engine may have the other cores"
    assert not is_bound(tp_size=2), "each rank would be bound to the same cores"
    assert "KMP_AFFINITY" not in plan_vllm_start(spec(), {}, SHORT).environment


def test_a_folder_too_deep_for_the_sockets_of_ranks_is_refused_by_name() -> None:
    deep = Path("/" + 60 * "d")
    plan_vllm_start(spec(), {}, deep)
    with pytest.raises(SpecError, match=r"engine.tp_size \(2\): .* below /d+; set TMPDIR to a folder of at most \d+"):
        plan_vllm_start(spec(tp_size=2), {}, deep)


def test_a_process_with_one_rank_leaves_no_note_of_openmp_and_no_file(tmp_path: Path) -> None:
    start = plan_vllm_start(spec(), {}, tmp_path)
    start = msgspec.structs.replace(start, left_files=(f"{tmp_path}/note_{{pid}}",))
    command = ["sh", "-c", 'touch "$VLLM_RPC_BASE_PATH/meeting" && exec sleep 60']
    process = PlainProcess(start, command, fds=(), run_dir=tmp_path)
    wait_until(lambda: any(tmp_path.glob("*/meeting")))
    (tmp_path / f"note_{process.pid}").touch()
    (tmp_path / "note_1").touch()
    assert not process.wait(0.01)
    assert len(list(tmp_path.glob("*/meeting"))) == 1
    assert (tmp_path / f"note_{process.pid}").exists()
    process.end()
    assert [path.name for path in tmp_path.iterdir()] == ["note_1"]


def test_what_the_engines_process_imports_of_trireme_is_behind_the_links_alone(tmp_path: Path) -> None:
    links = code_links(tmp_path)
    assert code_links(tmp_path) == links, "another engine of the server finds them"
    assert sorted(path.name for path in links.iterdir()) == ["ensemble_configs", "serving", "trireme"]
    script = (
        "import sys; sys.path[:0] = [sys.argv[1]]; sys.path = [p for p in sys.path if p != sys.argv[2]]\n"
        "import serving.engine_process.engine_loop, serving.engines.providers\n"
        "ours = {'benchmarks', 'build_engines', 'clients', 'documents', 'gateway', 'observability'}\n"
        "print(sorted({name.partition('.')[0] for name in sys.modules} & ours))"
    )
    argv = [sys.executable, "-c", script, str(links), str(Path.cwd())]
    assert subprocess.run(argv, capture_output=True, check=True, cwd=tmp_path).stdout.strip() == b"[]"


def test_an_environment_is_looked_at_before_a_start(tmp_path: Path) -> None:
    check_installed(spec(venv_dir=environment(tmp_path / "good")))
    with pytest.raises(SpecError, match=r"engine.venv_dir: .*nowhere has no bin/python"):
        check_installed(spec(venv_dir=tmp_path / "nowhere"))
    with pytest.raises(SpecError, match=r"engine.venv_dir: .*empty holds no vLLM"):
        check_installed(spec(venv_dir=environment(tmp_path / "empty", has_vllm=False)))
    with pytest.raises(SpecError, match=r"vllm is not installed beside the server; set engine\.venv_dir"):
        check_installed(spec())
    with pytest.raises(SpecError, match=r"engine.kv_transfer moves blocks by nixl, and .*good does not hold it"):
        check_installed(spec(venv_dir=tmp_path / "good", kv_transfer={"host": "127.0.0.1"}))


def test_engines_that_hand_kv_cache_over_have_an_address_of_their_own(tmp_path: Path) -> None:
    def settings(**transfer: object) -> tuple[str, int]:
        found = plan_vllm_start(spec(kv_transfer=transfer), {}, tmp_path).environment
        return found["VLLM_NIXL_SIDE_CHANNEL_HOST"], int(found["VLLM_NIXL_SIDE_CHANNEL_PORT"])

    assert settings(host="10.0.0.7", port=5600) == ("10.0.0.7", 5600)
    host, port = settings()
    assert host == socket.gethostbyname(socket.gethostname())
    assert port > 1024
    assert "VLLM_NIXL_SIDE_CHANNEL_HOST" not in plan_vllm_start(spec(), {}, tmp_path).environment


def test_a_machine_whose_name_has_no_address_is_told_to_name_one(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(socket, "gethostname", lambda: "no.such.name.invalid")
    with pytest.raises(SpecError, match=r"engine.kv_transfer.host is not named, and .*no.such.name.invalid"):
        plan_vllm_start(spec(kv_transfer={}), {}, tmp_path)


def test_versions_are_taken_refused_or_warned_of(caplog: pytest.LogCaptureFixture) -> None:
    check_version(None, "0.32.0")
    check_version("0.32", "0.32.1+cpu")
    with pytest.raises(SpecError, match=r"engine.vllm is 0.31, and vLLM 0.32.0 is installed"):
        check_version("0.31", "0.32.0")
    with pytest.raises(SpecError, match=r"vLLM 0.21.0 is installed, and provider 'vllm' is written for 0.32"):
        check_version(None, "0.21.0")
    assert caplog.records == []
    with caplog.at_level(logging.WARNING):
        check_version(None, "0.33.0")
    assert "vLLM 0.33.0 is newer" in caplog.text
