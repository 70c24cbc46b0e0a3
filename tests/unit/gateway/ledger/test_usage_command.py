# SPDX-License-Identifier: Apache-2.0
"""`trireme gateway usage`: sums for people and for programs, and every mistake told with the next step."""

import json
from pathlib import Path

import pytest

from gateway.ledger.ledger_row import UNSETTLED, LedgerRow
from gateway.ledger.ledger_store import LedgerStore
from trireme.commands import run_command

NOON_S = 1_700_049_600.0  # 2023-11-15


@pytest.fixture
def file(tmp_path: Path) -> Path:
    path = tmp_path / "ledger.sqlite"
    with LedgerStore(path) as store:
        store.add([
            LedgerRow(
                id=name, begun_at_s=NOON_S + after_s, key_id="k", tenant=tenant, endpoint="/v1/chat/completions",
                model="demo", prompt_tokens=1200, completion_tokens=30, ttft_s=0.25, cost_nano_usd=1_500_000,
                finish=finish,
            )
            for name, tenant, after_s, finish in (
                ("a", "acme", 0, "stop"), ("b", "acme", 1, "timeout"), ("c", "", 86_400, UNSETTLED)
            )
        ])  # fmt: skip
    return path


def run(capsys: pytest.CaptureFixture[str], *arguments: object) -> tuple[int, str, str]:
    code = 0
    try:
        run_command("gateway", ["usage", *(str(each) for each in arguments)])
    except SystemExit as exc:
        code = int(exc.code or 0)
    return code, *capsys.readouterr()


def test_the_sums_are_by_day_tenant_and_model(file: Path, capsys: pytest.CaptureFixture[str]) -> None:
    code, out, _ = run(capsys, "--ledger", file)
    assert code == 0
    lines = [line.split() for line in out.splitlines() if line.strip()]
    assert lines[0][:4] == ["day", "tenant", "model", "requests"]
    assert lines[1] == ["2023-11-15", "acme", "demo", "2", "1", "0", "2,400", "0", "60", "250", "0.003000"]
    assert lines[2] == ["2023-11-16", "demo", "1", "0", "1", "1,200", "0", "30", "250", "0.001500"]
    assert "unsettled requests" in out


def test_the_json_has_numbers(file: Path, capsys: pytest.CaptureFixture[str]) -> None:
    _, out, _ = run(capsys, "--ledger", file, "--by", "finish", "--until", "2023-11-15", "--json")
    assert json.loads(out) == [
        {
            "finish": finish,
            "requests": 1,
            "failed": failed,
            "unsettled": 0,
            "prompt_tokens": 1200,
            "cached_tokens": 0,
            "completion_tokens": 30,
            "mean_ttft_s": 0.25,
            "cost_usd": 0.0015,
            "saved_usd": 0.0,
        }
        for finish, failed in (("stop", 0), ("timeout", 1))
    ]
    _, out, _ = run(capsys, "--ledger", file, "--by", "", "--json")
    assert json.loads(out)[0]["requests"] == 3


def test_without_requests_it_says_so(file: Path, capsys: pytest.CaptureFixture[str]) -> None:
    code, out, err = run(capsys, "--ledger", file, "--since", "2024-01-01")
    assert (code, out) == (0, "")
    assert err == "there are no requests in these days\n"


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (
            ("--by", "user"),
            "--by must be some of day, tenant, key, model, answered_by, tier, release, endpoint, finish",
        ),
        (("--by", "day,day"), "each once"),
        (("--since", "yesterday"), "--since must be a day as YYYY-MM-DD, got 'yesterday'"),
        (("--until", "2023-02-30"), "--until must be a day as YYYY-MM-DD, got '2023-02-30'"),
        (("--since", "20231115"), "--since must be a day"),
    ],
)
def test_a_wrong_option_says_what_is_allowed(
    file: Path, capsys: pytest.CaptureFixture[str], arguments: tuple[str, ...], said: str
) -> None:
    code, out, err = run(capsys, "--ledger", file, *arguments)
    assert (code, out) == (2, "")
    assert said in err


@pytest.mark.parametrize(
    ("place", "said"),
    [
        ("/nowhere/ledger.sqlite", "there is no file /nowhere/ledger.sqlite; name another one with --ledger"),
        ("mysql://db/ledger", "--ledger must be a file or postgresql://"),
    ],
)
def test_a_wrong_place_is_refused(capsys: pytest.CaptureFixture[str], place: str, said: str) -> None:
    code, out, err = run(capsys, "--ledger", place)
    assert (code, out) == (2, "")
    assert said in err
