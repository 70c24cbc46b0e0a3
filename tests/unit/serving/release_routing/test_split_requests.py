# SPDX-License-Identifier: Apache-2.0
"""A split gives each request one release, hands on what a release cannot begin, and writes down how each one ended."""

import os
import signal
import time
from collections import Counter
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest
import triton_python_backend_utils as pb_utils
from recording_tensor_sink import RecordingTensorSink
from text_bench import Owner, ask, two_owners, wait_until

from ensemble_configs.spec.admission_spec import AdmissionSpec
from ensemble_configs.split.outcome import Outcome
from ensemble_configs.split.outcome_journal import JournalReader
from ensemble_configs.split.release_split import ReleaseShare, ReleaseSplit, SplitFile
from serving.engine_process.engine_sources import has_engine
from serving.pipeline.request_origin import RequestOrigin
from serving.process.pinned_streams import pin, unpin
from serving.process.run_dir import RUN_DIR_VARIABLE
from serving.release_routing import release_routing
from serving.release_routing.release_routing import ReleaseRouting
from serving.requests.request_parameters import parameters_of
from serving.requests.tensor_sink import Tensors
from trireme.base.errors import RequestError, Unavailable

pytestmark = pytest.mark.slow


@pytest.fixture(autouse=True)
def _folder_of_the_server(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(RUN_DIR_VARIABLE, str(tmp_path))


@pytest.fixture
def owners(tmp_path: Path) -> Iterator[dict[int, Owner]]:
    with two_owners(tmp_path, admission=AdmissionSpec()) as made:
        yield made


class Site:
    """The adapter of the stable release, and a split of its requests."""

    def __init__(self, folder: Path, owners: dict[int, Owner]) -> None:
        self.routing = ReleaseRouting(owners[1].bls_folder, pb_utils.MetricFamily, step="tensorrt_llm_bls")
        self.journal = folder / "outcomes" / "model-3"
        self._file = SplitFile(folder, "")
        self.texts = {release: self.text(release=release) for release in (1, 2)}

    def split(self, *shares: ReleaseShare, key: str = "", lasts_s: float = 60.0) -> None:
        split = ReleaseSplit(
            rollout=3,
            step=1,
            hash_seed="s",
            shares=shares,
            journal=str(self.journal),
            ends_s=time.monotonic() + lasts_s,
            key=key,
        )
        self._file.write(split)

    def send(self, parameters: str = "", *, stream: str = "", **tensors: object) -> RecordingTensorSink:
        def start(asked: Tensors, sink: RecordingTensorSink, origin: RequestOrigin) -> None:
            self.routing.start(asked, sink, origin._replace(stream_name=stream), parameters=parameters_of(parameters))

        return ask(start, **tensors)

    def text(self, *, release: int | None = None, parameters: str = "", stream: str = "", **tensors: object) -> str:
        named = parameters if release is None else f'{{"release": {release}}}'
        return "".join(self.send(named, stream=stream, **tensors).texts())

    def release_of(self, text: str) -> int:
        return next(release for release, expected in self.texts.items() if expected == text)

    def outcomes(self) -> list[Outcome]:
        return [line.outcome for line in JournalReader(self.journal).read({}).lines]


@pytest.fixture
def site(tmp_path: Path, owners: dict[int, Owner]) -> Iterator[Site]:
    made = Site(tmp_path, owners)
    assert made.texts[1] != made.texts[2]
    yield made
    made.routing.close()


def canary(share: float) -> tuple[ReleaseShare, ...]:
    return (
        ReleaseShare(upto=share, release=2, arm="candidate"),
        ReleaseShare(upto=1 - share, release=1),
        ReleaseShare(upto=1.0, release=1, arm="baseline"),
    )


def test_each_release_answers_its_share_as_a_whole_and_outcomes_say_so(site: Site) -> None:
    site.split(*canary(0.25))
    sinks = [site.send() for _ in range(200)]
    releases = Counter(site.release_of("".join(sink.texts())) for sink in sinks)
    assert abs(releases[2] - 50) <= 4
    arms = Counter(outcome.arm for outcome in site.outcomes())
    assert arms["candidate"] == releases[2]
    assert abs(arms["baseline"] - 50) <= 4


def test_without_a_split_or_after_its_end_the_own_release_answers(site: Site) -> None:
    assert site.text() == site.texts[1]
    site.split(ReleaseShare(upto=1.0, release=2), lasts_s=-1.0)
    assert site.text() == site.texts[1]
    site.split(ReleaseShare(upto=1.0, release=2))
    assert site.text() == site.texts[2]


def test_what_names_a_release_or_a_version_is_not_moved(site: Site, tmp_path: Path) -> None:
    site.split(ReleaseShare(upto=1.0, release=2))
    assert site.text(release=1) == site.texts[1]
    assert site.text(stream="a-1") == site.texts[2]
    pin(tmp_path, "a-1")
    assert site.text(stream="a-1") == site.texts[1]
    assert site.text(stream="a-2") == site.texts[2]
    unpin(tmp_path, "a-1")
    assert site.text(stream="a-1") == site.texts[2]


@pytest.mark.parametrize(
    ("key", "parameters"),
    [
        ("tenant", '{{"tenant": "{0}"}}'),
        ("parameter:user", '{{"user": "{0}"}}'),
        ("header:x-session", '{{"x-session": "{0}"}}'),
    ],
)
def test_a_key_stays_with_its_release(site: Site, key: str, parameters: str) -> None:
    site.split(*canary(0.5), key=key)
    found = {name: {site.text(parameters=parameters.format(name)) for _ in range(3)} for name in "abcdefghij"}
    assert all(len(texts) == 1 for texts in found.values())
    assert {site.release_of(*texts) for texts in found.values()} == {1, 2}
    assert len({outcome.unit for outcome in site.outcomes()}) == 10


def test_what_is_not_there_yet_is_answered_by_the_stable_release(site: Site) -> None:
    site.split(ReleaseShare(upto=1.0, release=7, arm="candidate"))
    assert site.text() == site.texts[1]
    assert site.outcomes() == [], "a release that was not asked is not compared"


def test_a_candidate_that_dies_loses_what_it_has_begun_and_nothing_else(site: Site, owners: dict[int, Owner]) -> None:
    site.split(ReleaseShare(upto=1.0, release=2, arm="candidate"))
    begun = site.send(max_tokens=1500)
    wait_until(lambda: bool(begun.responses))
    pid = owners[2].source.pid
    assert pid is not None
    os.kill(pid, signal.SIGSTOP)  # what is sent now is not begun
    waiting = [site.send() for _ in range(5)]
    os.kill(pid, signal.SIGKILL)
    assert isinstance(begun.wait().error, Unavailable)
    assert {"".join(sink.texts()) for sink in waiting} == {site.texts[1]}
    errors = Counter(outcome.error for outcome in site.outcomes())
    assert errors == {"UNAVAILABLE": 6}


def test_a_request_that_no_release_takes_says_nothing_of_any(site: Site) -> None:
    for release in (1, 2):
        site.split(ReleaseShare(upto=1.0, release=release, arm="candidate"))
        with pytest.raises(RequestError, match="top_p"):
            raise site.send(top_p=1.5).wait().error or AssertionError("it was served")
    assert site.outcomes() == []


def test_what_only_the_candidate_refuses_counts_against_it(tmp_path: Path, owners: dict[int, Owner]) -> None:
    owners[2].close()
    owners[2] = Owner(tmp_path, release=2, seed=2, step_ms=1.0, max_seq_len=64)
    site = Site(tmp_path, owners)
    site.split(ReleaseShare(upto=1.0, release=2, arm="candidate"))
    expected = site.text(release=1, max_tokens=100)
    assert site.text(max_tokens=100) == expected
    assert [outcome.error for outcome in site.outcomes()] == ["INVALID_ARG"]
    site.routing.close()


def test_a_cancelled_request_has_no_outcome(site: Site) -> None:
    site.split(ReleaseShare(upto=1.0, release=2, arm="candidate"))
    sink = site.send(max_tokens=1500)
    wait_until(lambda: bool(sink.responses))
    sink.is_abandoned = True
    wait_until(lambda: site.routing.num_running == 0)
    assert site.outcomes() == []


def test_an_outcome_tells_times_counts_and_the_work_of_the_engine(site: Site) -> None:
    site.split(ReleaseShare(upto=1.0, release=2, arm="candidate"))
    site.text(max_tokens=20, parameters='{"tenant": "acme"}')
    [outcome] = site.outcomes()
    assert (outcome.num_tokens, outcome.finish_reason, outcome.tenant) == (20, "length", "acme")
    told = {name: getattr(outcome, name) or 0 for name in Outcome.__struct_fields__}
    assert told["prefill_ms"] > 0
    assert told["prefill_ms"] + told["queue_ms"] <= told["ttft_ms"] + 1
    assert told["ttft_ms"] < told["e2e_ms"]
    assert told["e2e_ms"] >= 20 * 0.9, "a step takes a millisecond"
    assert 0 < 19 * told["tpot_ms"] <= told["e2e_ms"] - told["prefill_ms"], "a first token may be told late"
    assert (told["prefill_seqs"], told["step_seqs"], told["step_prompt_tokens"]) == (1, 1, 0)
    assert told["num_prompt_tokens"] < told["step_kv_tokens"] < told["num_prompt_tokens"] + 20


def test_a_release_that_leaves_gets_no_more_and_ends_what_it_has(site: Site) -> None:
    site.split(ReleaseShare(upto=1.0, release=2, arm="candidate"))
    running = site.send(max_tokens=300)
    wait_until(lambda: bool(running.responses))
    because = Unavailable("release 2 is being taken out", reason="leaving")
    site.routing.leave("2", because)
    assert site.routing.num_running_on("2") == 1
    assert site.text() == site.texts[1]
    with pytest.raises(Unavailable, match="taken out"):
        site.send('{"release": 2}')
    assert running.wait().error is None
    assert site.routing.num_running_on("2") == 0


def test_an_answer_without_text_and_one_that_repeats_are_told(site: Site) -> None:
    site.split(ReleaseShare(upto=1.0, release=2, arm="candidate"))
    site.text(stop_words=np.array([[site.texts[2][:1].encode()]], dtype=np.object_))
    [outcome] = site.outcomes()
    assert outcome.is_empty
    assert outcome.finish_reason == "stop_string"


def test_a_candidate_s_requests_look_for_its_engine_ten_times_a_second_at_most(
    site: Site, monkeypatch: pytest.MonkeyPatch
) -> None:
    # Each look lets other threads go on, and the request waits for them; the stable release's requests have none.
    looked: list[str] = []

    def look(name: str) -> bool:
        looked.append(name)
        return has_engine(name)

    monkeypatch.setattr(release_routing, "has_engine", look)
    site.split(*canary(1.0))
    begun_s = time.monotonic()
    answers = [site.text() for _ in range(30)]
    most = (time.monotonic() - begun_s) * (10 + 1) + 2  # one a second is the look for releases that were unloaded
    assert {site.release_of(text) for text in answers} == {2}
    assert 1 <= len(looked) <= most
