# SPDX-License-Identifier: Apache-2.0
"""The files that hold a key to Triton's restricted APIs; no refusal shows the key."""

import re
import string
from pathlib import Path

import pytest

from serving.supervisor.control_key import read_control_key
from trireme.base.errors import SpecError

KEY = "".join(sorted(set(string.ascii_letters + string.digits + string.punctuation) - set(":=;,")))


@pytest.mark.parametrize("end", [b"", b"\n", b"\r\n"])
def test_a_key_is_what_stands_in_the_file_without_the_newline_at_its_end(tmp_path: Path, end: bytes) -> None:
    (tmp_path / "key").write_bytes(KEY.encode() + end)
    assert read_control_key(tmp_path / "key") == KEY


@pytest.mark.parametrize("length", [16, 256])
def test_the_shortest_and_the_longest_are_taken(tmp_path: Path, length: int) -> None:
    (tmp_path / "key").write_text("k" * length + "\n")
    assert read_control_key(tmp_path / "key") == "k" * length


@pytest.mark.parametrize(
    ("content", "why"),
    [
        pytest.param(b"", "is empty", id="empty"),
        pytest.param(b"\n", "is empty", id="a newline"),
        pytest.param(b"secret-of-15-ch\n", "holds 15 characters", id="short"),
        pytest.param(b"s" * 257, "holds more than 256 characters", id="long"),
        pytest.param(b"secret" * 1_000_000, "holds more than 256 characters", id="a file of something else"),
        *(
            pytest.param(f"secret-key-{c}-secret-key".encode(), "its character 12 is not allowed", id=repr(c))
            for c in ":=;, \t\n\x00\x7f"
        ),
        pytest.param("secret-key-é-secret-key".encode(), "its character 12 is not allowed", id="UTF-8"),
        pytest.param(b"secret-key-secret-key\n\n", "its character 22 is not allowed", id="two newlines"),
    ],
)
def test_what_cannot_be_a_key_is_refused_by_name_and_not_shown(tmp_path: Path, content: bytes, why: str) -> None:
    path = tmp_path / "key"
    path.write_bytes(content)
    with pytest.raises(SpecError, match=f"--control-key-file {re.escape(str(path))} .*{why}") as caught:
        read_control_key(path)
    assert "16 to 256 characters" in caught.value.message
    assert caught.value.facts["field"] == "control_key_file"
    assert "secret" not in str(caught.value).replace(str(path), "")


def test_a_file_that_is_not_there_and_a_folder_are_refused(tmp_path: Path) -> None:
    with pytest.raises(SpecError, match="cannot be read: no such file"):
        read_control_key(tmp_path / "none")
    with pytest.raises(SpecError, match="cannot be read: is a directory"):
        read_control_key(tmp_path)
