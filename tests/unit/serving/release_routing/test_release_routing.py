# SPDX-License-Identifier: Apache-2.0
"""A request names the release that serves it, among those that the server holds; engines of two releases, for real."""

import functools
import os
import signal
import socket
import threading
from collections.abc import Iterator
from pathlib import Path

import pytest
import triton_python_backend_utils as pb_utils
from recording_tensor_sink import RecordingTensorSink
from text_bench import Owner, ask, two_owners, wait_until

from serving.process.run_dir import RUN_DIR_VARIABLE
from serving.release_routing.release_routing import ReleaseRouting
from serving.requests.request_parameters import parameters_of
from trireme.base.errors import RequestError, ServerError, SpecError, Unavailable

pytestmark = pytest.mark.slow


@pytest.fixture(autouse=True)
def _folder_of_the_server(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(RUN_DIR_VARIABLE, str(tmp_path))


@pytest.fixture
def owners(tmp_path: Path) -> Iterator[dict[int, Owner]]:
    with two_owners(tmp_path) as made:
        yield made


@pytest.fixture
def releases(owners: dict[int, Owner]) -> Iterator[ReleaseRouting]:
    made = ReleaseRouting(owners[1].bls_folder, pb_utils.MetricFamily, step="tensorrt_llm_bls")
    yield made
    made.close()


def text(releases: ReleaseRouting, parameters: str = "") -> str:
    return "".join(send(releases, parameters).texts())


def send(releases: ReleaseRouting, parameters: str = "", **tensors: object) -> RecordingTensorSink:
    return ask(functools.partial(releases.start, parameters=parameters_of(parameters)), **tensors)


def test_a_request_gets_the_engine_of_the_release_it_names_and_of_its_own_by_default(
    releases: ReleaseRouting, owners: dict[int, Owner]
) -> None:
    second = ReleaseRouting(owners[2].bls_folder, pb_utils.MetricFamily, step="tensorrt_llm_bls")
    expected = {1: text(releases), 2: text(second)}
    second.close()
    assert expected[1] != expected[2]
    assert text(releases, '{"release": 1}') == text(releases) == expected[1]
    assert text(releases, '{"release": 2}') == text(releases, '{"release": "2"}') == expected[2]


def test_requests_of_all_releases_run_side_by_side(releases: ReleaseRouting) -> None:
    sinks = [
        send(releases, f'{{"release": {1 + index % 2}}}', max_tokens=400) for index in range(20)
    ]  # none ends before all are sent
    assert releases.num_running == 20, "those that wait for their release are counted"
    texts = ["".join(sink.texts()) for sink in sinks]
    assert len(set(texts)) == 2
    assert releases.num_running == 0


REFUSED = {
    '{"release": 7}': r"\[INVALID_ARG field=release value=7\] release 7 is not loaded here",
    '{"release": 0}': "release 0 is not loaded here",
    '{"release": -1}': "release must be the number of a release, got -1",
    '{"release": true}': "got True",
    '{"release": 1.5}': "got 1.5",
    '{"release": "../1"}': "got '../1'",
    '{"release": "²"}': "got '²'",
}


def test_what_is_not_loaded_or_no_release_is_refused(releases: ReleaseRouting) -> None:
    for parameters, reason in REFUSED.items():
        with pytest.raises(RequestError, match=reason):
            send(releases, parameters)


def test_a_bad_request_that_waited_for_its_release_fails_alone(releases: ReleaseRouting) -> None:
    bad = send(releases, '{"release": 2}', top_p=1.5).wait()
    assert isinstance(bad.error, RequestError)
    assert text(releases, '{"release": 2}')


def test_an_engine_of_another_release_that_dies_is_back_for_its_guests(
    releases: ReleaseRouting, owners: dict[int, Owner]
) -> None:
    expected = text(releases, '{"release": 2}')
    running = send(releases, '{"release": 2}', max_tokens=1500)
    wait_until(lambda: bool(running.responses))
    pid = owners[2].source.pid
    assert pid is not None
    os.kill(pid, signal.SIGKILL)
    assert isinstance(running.wait().error, Unavailable)

    def is_back() -> bool:
        try:
            return text(releases, '{"release": 2}') == expected
        except Unavailable:
            return False

    wait_until(is_back)


def test_a_release_that_is_unloaded_is_refused_and_served_again_when_it_is_back(
    releases: ReleaseRouting, owners: dict[int, Owner], tmp_path: Path
) -> None:
    expected = text(releases, '{"release": 2}')
    owners[2].close()
    with pytest.raises(RequestError, match="not loaded"):
        send(releases, '{"release": 2}')
    owners[2] = Owner(tmp_path, release=2, seed=2)
    assert text(releases, '{"release": 2}') == expected


def test_a_release_that_cannot_be_opened_fails_its_requests_and_is_tried_again(
    releases: ReleaseRouting, owners: dict[int, Owner]
) -> None:
    release_file = owners[2].bls_folder / "release.json"
    right = release_file.read_text()
    release_file.write_text("{")
    with pytest.raises(SpecError, match="not JSON"):  # at once, or by way of its sink: it is a race
        raise send(releases, '{"release": 2}').wait().error or AssertionError("it was served")
    release_file.write_text(right)
    assert text(releases, '{"release": 2}')


def test_a_drain_refuses_requests_to_every_release(releases: ReleaseRouting) -> None:
    text(releases, '{"release": 2}')
    releases.refuse_new(Unavailable("no more", reason="draining"))
    for parameters in ("", '{"release": 2}'):
        with pytest.raises(Unavailable, match="no more"):
            send(releases, parameters)


def test_what_runs_or_waits_can_be_ended_on_every_release(releases: ReleaseRouting) -> None:
    sinks = [send(releases, parameters, max_tokens=1500) for parameters in ("", '{"release": 2}')]
    releases.cancel_all(Unavailable("over", reason="shutdown"))
    assert [str(sink.wait().error) for sink in sinks] == ["[UNAVAILABLE reason=shutdown] over"] * 2


def test_closing_hangs_up_on_a_release_that_is_still_being_opened(releases: ReleaseRouting, tmp_path: Path) -> None:
    folder = tmp_path / "tensorrt_llm_bls"
    (folder / "3").symlink_to(folder / "2")
    with socket.socket(socket.AF_UNIX) as owner:  # whose engine is never loaded
        owner.bind(str(tmp_path / "engine-3"))
        owner.listen()
        waiting = send(releases, '{"release": 3}')
        called, _ = owner.accept()
        with called:
            closing = threading.Thread(target=releases.close)
            closing.start()
            closing.join(10)
            assert not closing.is_alive()
    assert isinstance(waiting.wait().error, ServerError)
