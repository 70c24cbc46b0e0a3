# SPDX-License-Identifier: Apache-2.0
"""The control of a server from another machine: the same operations as over its socket, for callers with a key."""

import http.client
import threading
import time
import urllib.error
import urllib.request
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any

import pytest
from certificates import Authority

from clients.access import NO_ACCESS, Access
from clients.remote_control import RemoteControl
from ensemble_configs.split.outcome import Outcome
from ensemble_configs.split.outcome_journal import JournalWriter
from serving.live_releases.live_split import LiveSplit
from serving.supervisor import control_api
from serving.supervisor.control_api import ControlApi
from trireme.base.errors import AccessDenied, RequestError, ServingError, SpecError, Unavailable
from trireme.base.http_access import HttpAccess
from trireme.base.unix_rpc import Say

KEY = "0123456789abcdef"


def double(question: Mapping[str, object], say: Say) -> Mapping[str, object]:
    say("doubling")
    return {"twice": 2 * int(str(question["number"])), "asked": sorted(question)}


def refuse(question: Mapping[str, object], say: Say) -> Mapping[str, object]:
    del question, say
    raise SpecError("there is no room", field="engine.num_kv_blocks", value=7)


def break_down(question: Mapping[str, object], say: Say) -> Mapping[str, object]:
    del question, say
    raise ZeroDivisionError


HANDLERS = {"double": double, "refuse": refuse, "break_down": break_down}


@pytest.fixture
def serve() -> Iterator[Callable[..., ControlApi]]:
    opened: list[ControlApi] = []

    def begin(handlers: Mapping[str, Any] = HANDLERS, *, host: str = "127.0.0.1", **access: Path) -> ControlApi:
        opened.append(ControlApi(handlers, host=host, port=0, access=HttpAccess(**access, options="--remote-")))
        return opened[-1]

    yield begin
    for api in opened:
        api.close()


def control(api: ControlApi, access: Access = NO_ACCESS, **options: Any) -> RemoteControl:
    return RemoteControl(f"{'https' if access.uses_tls else 'http'}://127.0.0.1:{api.port}", access, **options)


@pytest.fixture
def keys(tmp_path: Path) -> Path:
    path = tmp_path / "keys"
    path.write_text(f"{KEY}\n")
    return path


def test_an_operation_says_what_it_does_and_answers(serve: Callable[..., ControlApi]) -> None:
    said: list[str] = []
    assert control(serve(), tell=said.append).ask("double", number=21) == {"twice": 42, "asked": ["number"]}
    assert said == ["doubling"]


def test_an_error_arrives_as_it_was_raised(serve: Callable[..., ControlApi]) -> None:
    api = serve()
    with pytest.raises(SpecError, match="there is no room") as refusal:
        control(api).ask("refuse")
    assert refusal.value.facts["field"] == "engine.num_kv_blocks"
    with pytest.raises(ServingError, match="ZeroDivisionError"):
        control(api).ask("break_down")
    with pytest.raises(RequestError, match="operation 'sing' is not known; there are double, refuse, break_down"):
        control(api).ask("sing")


def test_a_long_operation_is_told_to_be_alive(
    serve: Callable[..., ControlApi], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(control_api, "ALIVE_S", 0.05)

    def load(*_: object) -> Mapping[str, object]:
        time.sleep(1.5)
        return {"is_loaded": True}

    api = serve({"load": load})
    assert control(api, silence_s=1.0).ask("load") == {"is_loaded": True}
    monkeypatch.setattr(control_api, "ALIVE_S", 60.0)
    with pytest.raises(Unavailable, match="went away before it was done"):
        control(api, silence_s=0.5).ask("load")


def test_what_was_begun_is_done_though_the_caller_has_gone(serve: Callable[..., ControlApi]) -> None:
    begun, may_end, ended = threading.Event(), threading.Event(), threading.Event()

    def load(_: Mapping[str, object], say: Say) -> Mapping[str, object]:
        begun.set()
        may_end.wait(20)
        say("nobody hears this")
        ended.set()
        return {}

    api = serve({"load": load, "double": double})
    connection = http.client.HTTPConnection("127.0.0.1", api.port, timeout=5)
    connection.request("POST", "/control/load", body=b"{}")
    assert begun.wait(5)
    connection.close()
    assert control(api).ask("double", number=1)["twice"] == 2
    may_end.set()
    assert ended.wait(5)


def test_a_server_that_ends_in_the_middle_is_away(serve: Callable[..., ControlApi]) -> None:
    begun = threading.Event()

    def load(*_: object) -> Mapping[str, object]:
        begun.set()
        time.sleep(5)
        return {}

    api = serve({"load": load})
    found: list[ServingError] = []

    def ask() -> None:
        try:
            control(api).ask("load")
        except ServingError as exc:
            found.append(exc)

    asking = threading.Thread(target=ask)
    asking.start()
    assert begun.wait(5)
    api.close()
    asking.join(20)
    assert [type(each) for each in found] == [Unavailable]
    with pytest.raises(Unavailable, match="does not answer"):
        control(api).ask("double", number=1)


def test_only_callers_with_the_key_are_answered_over_tls(
    serve: Callable[..., ControlApi], keys: Path, tmp_path: Path
) -> None:
    authority = Authority(tmp_path / "authority")
    pair = authority.server()
    api = serve(host="0.0.0.0", cert_file=pair.cert, key_file=pair.key, token_file=keys)
    trusted = Access(ca_file=str(authority.ca), token_file=str(keys))
    assert control(api, trusted).ask("double", number=2)["twice"] == 4
    wrong = tmp_path / "wrong"
    wrong.write_text("another-key-of-16-chars\n")
    for access in (Access(ca_file=trusted.ca_file), Access(ca_file=trusted.ca_file, token_file=str(wrong))):
        with pytest.raises(AccessDenied):
            control(api, access).ask("double", number=2)
    with pytest.raises(AccessDenied, match=r"authority|certificate"):
        control(api, Access(is_tls=True, token_file=str(keys))).ask("double", number=2)
    keys.write_text("a-new-key-of-16-or-more\n")
    assert control(api, trusted).ask("double", number=3)["twice"] == 6, "a key that is replaced is used from then on"


@pytest.mark.parametrize(
    ("has_key", "said"), [(False, "no key .--remote-token-file. and no TLS"), (True, "has no TLS .--remote-cert-file")]
)
def test_other_machines_need_a_key_and_tls(
    serve: Callable[..., ControlApi], keys: Path, has_key: bool, said: str
) -> None:
    with pytest.raises(RequestError, match=said):
        serve(host="0.0.0.0", **({"token_file": keys} if has_key else {}))


def test_a_port_that_is_taken_names_its_option(serve: Callable[..., ControlApi]) -> None:
    api = serve()
    with pytest.raises(SpecError, match="choose another with --remote-port"):
        ControlApi(HANDLERS, host="127.0.0.1", port=api.port, access=HttpAccess())


@pytest.mark.parametrize(
    ("path", "body", "status"), [("double", b"[]", 400), ("double", b"{", 400), ("", b"{}", 404), ("sing", b"{}", 404)]
)
def test_a_malformed_request_is_refused(serve: Callable[..., ControlApi], path: str, body: bytes, status: int) -> None:
    api = serve()
    with pytest.raises(urllib.error.HTTPError) as refusal:
        urllib.request.urlopen(f"http://127.0.0.1:{api.port}/control/{path}", data=body, timeout=5)
    with refusal.value as error:
        assert error.code == status


def test_no_address_is_refused_at_once() -> None:
    with pytest.raises(RequestError, match="an address such as https://gpu-3:8004, got 'gpu-3'"):
        RemoteControl("gpu-3", Access())


def test_a_journal_is_read_from_another_machine(serve: Callable[..., ControlApi], tmp_path: Path) -> None:
    folder = tmp_path / "outcomes" / "chat-1-00000000"
    writer = JournalWriter(folder, "ensemble-1")
    for number in range(3):
        writer.write(rollout=1, step=2, release=2, outcome=Outcome(arm="candidate", ttft_ms=float(number)))
    live: Any = object()
    journal = control(serve(LiveSplit(live, tmp_path).handlers())).journal(str(folder))
    part = journal.read({})
    assert [line.outcome.ttft_ms for line in part.lines] == [0.0, 1.0, 2.0]
    again = journal.read(part.cursor)
    assert (again.lines, again.cursor) == ([], part.cursor)
    writer.write(rollout=1, step=2, release=2, outcome=Outcome(arm="candidate"))
    assert len(journal.read(part.cursor).lines) == 1
    for name in ("/etc", str(tmp_path / "outcomes" / ".." / "x")):
        with pytest.raises(RequestError, match="is no journal of this server"):
            control(serve(LiveSplit(live, tmp_path).handlers())).journal(name).read({})
