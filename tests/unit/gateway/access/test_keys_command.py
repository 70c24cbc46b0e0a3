# SPDX-License-Identifier: Apache-2.0
"""`trireme gateway keys`: a key is shown once, on standard output, and every mistake is told with the next step."""

import json
import re
import sqlite3
from pathlib import Path
from typing import Any

import pytest

from gateway.database import named_place
from trireme.base.extras import how_to_install
from trireme.commands import run_command

KEY = re.compile(r"tri-[0-9][0-9a-z]{11}-[\w-]{43}\n")


class Done:
    """A command that has ended."""

    def __init__(self, capsys: pytest.CaptureFixture[str], *arguments: object) -> None:
        try:
            run_command("gateway", [str(each) for each in arguments])
        except SystemExit as exc:
            self.code = int(exc.code or 0)
        self.out, self.err = capsys.readouterr()

    @property
    def json(self) -> Any:
        return json.loads(self.out)


@pytest.fixture
def file(tmp_path: Path) -> Path:
    return tmp_path / "keys.sqlite"


def test_a_key_is_printed_once_and_nothing_else_on_standard_output(
    file: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    made = Done(capsys, "keys", "create", "alice", "--keys", file)
    assert made.code == 0
    assert KEY.fullmatch(made.out)
    secret = made.out.strip()[17:]
    assert made.err == f"key {made.out[4:16]} of alice: it is not shown again; keep it where secrets are kept\n"
    later = [
        Done(capsys, "keys", *arguments, "--keys", file)
        for arguments in (("list",), ("list", "--json"), ("create", "alice"), ("revoke", "alice"), ("list", "--json"))
    ]
    assert [one.code for one in later] == [0, 0, 2, 0, 0]
    assert not any(secret in one.out + one.err for one in later)


def test_what_a_key_may_do_is_in_the_json_of_each_command(file: Path, capsys: pytest.CaptureFixture[str]) -> None:
    options = ["--tenant", "acme", "--role", "admin", "--models", "code,chat", "--expires", "90d", "--json"]
    options += ["--requests-per-minute", "60", "--streams", "8", "--usd-per-day", "2.5"]
    made = Done(capsys, "keys", "create", "ci", "--keys", file, *options).json
    assert KEY.fullmatch(made.pop("key") + "\n")
    assert (made["name"], made["tenant"], made["role"]) == ("ci", "acme", "admin")
    assert (made["models"], made["state"]) == (["chat", "code"], "valid")
    assert made["limits"] == {
        "requests_per_minute": 60,
        "tokens_per_minute": None,
        "streams": 8,
        "usd_per_day": 2.5,
        "usd_per_month": None,
    }
    assert made["expires_at"] > made["created_at"] > "2026"
    assert Done(capsys, "keys", "list", "--keys", file, "--json").json == [made]
    revoked = Done(capsys, "keys", "revoke", made["id"], "--keys", file, "--json").json
    assert revoked["state"] == "revoked"
    assert revoked | {"state": "valid", "revoked_at": None} == made


def test_the_list_is_a_table(file: Path, capsys: pytest.CaptureFixture[str]) -> None:
    Done(capsys, "keys", "create", "alice", "--keys", file)
    Done(capsys, "keys", "create", "ci", "--keys", file, "--models", "chat,code", "--expires", "1d")
    header, alice, ci = Done(capsys, "keys", "list", "--keys", file).out.splitlines()
    assert header.split()[:4] == ["id", "name", "state", "role"]
    assert re.fullmatch(r"[0-9a-z]{12}  alice  valid  user  +all  +none  +\S+Z  never  +never *", alice)
    assert re.search(r"ci +valid  user  +chat, code  .*\S+Z  \S+Z  never", ci)


def test_an_empty_list_says_how_to_make_a_key(file: Path, capsys: pytest.CaptureFixture[str]) -> None:
    sqlite3.connect(file).close()
    file.touch()
    empty = Done(capsys, "keys", "list", "--keys", file)
    assert (empty.code, empty.out) == (0, "")
    assert f"trireme gateway keys create NAME --keys {file}" in empty.err
    assert Done(capsys, "keys", "list", "--keys", file, "--json").json == []


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (("create", "a b"), "NAME must be a letter and then letters"),
        (("create", "alice", "--role", "root"), "'root' is not one of 'user', 'admin'"),
        (("create", "alice", "--models", ","), "--models must be names of models with commas between them"),
        (("create", "alice", "--expires", "soon"), "--expires must be a number with m, h, d or w"),
        (("create", "alice", "--keys", "mysql://me:s3cret@db/a"), "--keys must be a file or postgresql://"),
        (("create",), "Missing argument 'name'"),
        (("revoke", "nobody"), "there is no key 'nobody' in"),
        (("revoke", "tri-1abcdefghijk-" + "s3cret" * 7 + "x"), "not the key"),
        (("list", "--keys", "/nowhere/keys.sqlite"), "there is no file /nowhere/keys.sqlite"),
        (("revoke", "alice", "--keys", "/nowhere/k"), "trireme gateway keys create NAME --keys /nowhere/k"),
        (("make",), "No such command 'make'"),
    ],
    ids=lambda value: " ".join(value)[:40] if isinstance(value, tuple) else "",
)
def test_what_is_wrong_is_told_with_exit_code_2(
    file: Path, capsys: pytest.CaptureFixture[str], arguments: tuple[str, ...], said: str
) -> None:
    Done(capsys, "keys", "create", "known", "--keys", file)
    verb, *rest = arguments
    keys = () if "--keys" in rest or verb == "make" else ("--keys", file)
    done = Done(capsys, "keys", verb, *rest, *keys)
    assert (done.code, done.out) == (2, "")
    assert said in done.err
    assert "s3cret" not in done.err
    assert "Traceback" not in done.err


def test_a_place_is_needed(capsys: pytest.CaptureFixture[str]) -> None:
    done = Done(capsys, "keys", "list")
    assert done.code == 2
    assert "Missing option '--keys'" in done.err


def test_without_the_packages_it_says_how_to_install_them(
    file: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(named_place, "find_spec", lambda _: None)
    done = Done(capsys, "keys", "create", "alice", "--keys", file)
    assert done.code == 2
    assert how_to_install("gateway") in done.err
    assert named_place.KEYS_OPTION in done.err


@pytest.mark.parametrize("verb", ["create", "list", "revoke"])
def test_every_verb_has_examples(verb: str, capsys: pytest.CaptureFixture[str]) -> None:
    done = Done(capsys, "keys", verb, "--help")
    assert f"trireme gateway keys {verb} " in done.out
    assert "Exit codes: 0" in done.out


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (("--keys", "k.sqlite", "--token-file", "keys.txt"), "--keys and --token-file keys.txt are both given"),
        (("--host", "0.0.0.0"), "--host 0.0.0.0 lets other machines in: give --keys or --token-file"),
        (("--host", "0.0.0.0", "--keys", "k.sqlite"), "--host 0.0.0.0 lets other machines in"),
        (("--keys", "mysql://me:s3cret@db/a"), "--keys must be a file or postgresql://"),
        (("--keys", "."), "cannot be opened: is a directory"),
        (("--keys-grace-s", "1"), "Invalid value for '--keys-grace-s'"),
    ],
    ids=["two kinds", "no keys", "no TLS", "another database", "a folder", "no grace"],
)
def test_a_gateway_does_not_start_with_keys_that_it_cannot_check(
    arguments: tuple[str, ...],
    said: str,
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.chdir(tmp_path)
    done = Done(capsys, "serve", "--port", "0", *arguments)
    assert done.code == 2
    assert said in done.err
    assert "s3cret" not in done.err
    assert list(tmp_path.iterdir()) == []
