# SPDX-License-Identifier: Apache-2.0
"""Lines for people and lines of JSON; a request's exception is logged without its text."""

import contextlib
import json
import logging
import sys
from collections.abc import Iterator

import pytest

from serving.process import server_log
from serving.process.server_log import JsonLines, TextLines, set_up_log

FACTS = {"model": "ensemble", "release": "1"}


@contextlib.contextmanager
def own_log() -> Iterator[None]:
    """Give the test a root logger as in a new process."""
    root = logging.getLogger()
    handlers, level, log_format = root.handlers[:], root.level, server_log.log_format()
    root.handlers.clear()
    try:
        yield
    finally:
        root.handlers[:] = handlers
        root.setLevel(level)
        logging.captureWarnings(capture=False)
        server_log.set_up_log(log_format)


def record(message: str = "hello %s", *args: object, **extra: object) -> logging.LogRecord:
    made = logging.LogRecord("trireme.x", logging.ERROR, __file__, 1, message, args or ("you",), None)
    vars(made).update(extra)
    return made


def failed(**extra: object) -> logging.LogRecord:
    made = record("it failed", **extra)
    made.args = ()
    try:
        int("quotes " + "the prompt")
    except ValueError:
        made.exc_info = sys.exc_info()
    return made


def test_a_line_of_json_has_the_process_and_the_request() -> None:
    line = json.loads(JsonLines(FACTS).format(record(request_id="r1", trace_id="ab", tenant="acme", release="2", x=1)))
    assert line.pop("time").endswith("+00:00")
    assert line == {
        "level": "error",
        "logger": "trireme.x",
        "message": "hello you",
        "model": "ensemble",
        "release": "2",
        "request_id": "r1",
        "trace_id": "ab",
        "tenant": "acme",
    }


def test_an_object_is_one_line_whatever_is_in_it() -> None:
    text = JsonLines(FACTS).format(record("two\nlines %s", "\u2028 and \x00"))
    assert "\n" not in text
    assert json.loads(text)["message"] == "two\nlines \u2028 and \x00"


def test_a_text_line_ends_with_what_is_known_of_the_request() -> None:
    assert TextLines().format(record(request_id="r1")).endswith("trireme.x ERROR hello you request_id=r1")


@pytest.mark.parametrize("lines", [JsonLines(FACTS), TextLines()])
def test_an_exception_of_a_request_is_told_without_its_words(lines: logging.Formatter) -> None:
    assert "quotes the prompt" in lines.format(failed())
    told = lines.format(failed(is_of_request=True))
    assert "quotes the prompt" not in told
    assert "ValueError" in told
    assert "test_server_log.py" in told


def test_a_process_logs_as_it_was_told_and_its_children_too(capsys: pytest.CaptureFixture[str]) -> None:
    with own_log():
        set_up_log("json", model="m")
        logging.getLogger("trireme.x").info("here")
        assert server_log.log_format() == "json"
    assert json.loads(capsys.readouterr().err).items() >= {"message": "here", "model": "m"}.items()


def test_a_log_that_somebody_has_set_up_stays_as_it_is() -> None:
    before = logging.getLogger().handlers[:]
    assert before, "pytest's"
    set_up_log("text")
    assert logging.getLogger().handlers == before
