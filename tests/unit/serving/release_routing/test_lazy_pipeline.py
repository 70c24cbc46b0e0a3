# SPDX-License-Identifier: Apache-2.0
"""Requests that waited for their release to be opened."""

import json
import logging
import threading
from typing import Any

import pytest

from serving.pipeline.request_origin import RequestOrigin
from serving.process.server_log import JsonLines
from serving.release_routing.lazy_pipeline import LazyPipeline
from trireme.base.errors import ServingError

PROMPT = "my bank's secret is 1234"


class Quoting:
    """A pipeline whose errors quote the prompt."""

    num_running = 0

    def start(self, tensors: Any, _: Any, __: object) -> None:
        raise ValueError(f"cannot encode {tensors['text_input']!r}")

    def close(self) -> None:
        """Do nothing: nothing is open."""


class Sink:
    def __init__(self) -> None:
        self.errors: list[ServingError] = []

    def fail(self, error: ServingError) -> None:
        self.errors.append(error)


def test_what_goes_wrong_with_a_request_that_waited_is_logged_without_its_prompt(
    caplog: pytest.LogCaptureFixture,
) -> None:
    is_asked, sink = threading.Event(), Sink()

    def load() -> Any:
        assert is_asked.wait(10)
        return Quoting()

    pipeline = LazyPipeline(load, give_up=lambda: None)
    asked: Any = {"text_input": PROMPT}
    to: Any = sink
    pipeline.start(asked, to, RequestOrigin("r1"))
    is_asked.set()
    pipeline.close()
    assert [error.code for error in sink.errors] == ["INTERNAL"]
    [record] = [record for record in caplog.records if record.levelno == logging.ERROR]
    line = JsonLines({}).format(record)
    assert PROMPT not in line
    assert json.loads(line)["request_id"] == "r1"
    assert "ValueError" in line
