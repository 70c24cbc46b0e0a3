# SPDX-License-Identifier: Apache-2.0
"""The log of a process in Python: lines for people, or a JSON object each, and never a word of a prompt or an answer.

An exception that a request has brought about may quote it. A record that says `is_of_request` is written with the
exception's type and where it came from, and without what it said.
"""

import json
import logging
import traceback
from collections.abc import Mapping
from datetime import UTC, datetime
from typing import Literal

from ensemble_configs.spec.observability_spec import LogsSpec, read_adapter_parameters

# The facts that a record may give beside its message, by `extra`; in this order.
_FACTS = (
    "model",
    "release",
    "request_id",
    "trace_id",
    "tenant",
    "finish_reason",
    "num_input_tokens",
    "num_output_tokens",
    "ttft_ms",
    "e2e_ms",
)


_format = LogsSpec().format  # format of this process's log


def set_up_log(log_format: Literal["text", "json"], **facts: str) -> None:
    """Have this process log to stderr; a log that somebody has set up already stays as it is.

    Args:
        log_format: format of this process's log and of the processes that it starts.
        facts: facts of every record, such as `model` and `release`.
    """
    global _format  # noqa: PLW0603  as logging itself, of the whole process
    _format = log_format
    if logging.getLogger().handlers:
        return
    handler = logging.StreamHandler()
    handler.setFormatter(JsonLines(facts) if log_format == "json" else TextLines())
    logging.basicConfig(level=logging.INFO, handlers=[handler])
    logging.captureWarnings(capture=True)


def set_up_adapter_log(args: Mapping[str, str]) -> None:
    """Set up an adapter's log as the deployment says. Args: `args` are Triton's to `initialize`."""
    _, logs = read_adapter_parameters(json.loads(args.get("model_config", "{}")))
    set_up_log(logs.format, model=args["model_name"], release=args["model_version"])


def log_format() -> Literal["text", "json"]:
    """Return the format of this process's log."""
    return _format


class TextLines(logging.Formatter):
    """A format for people; the facts of the request stand behind the message."""

    def __init__(self) -> None:
        super().__init__("%(asctime)s %(name)s %(levelname)s %(message)s%(facts)s")

    def format(self, record: logging.LogRecord) -> str:
        """Return the line of one record."""
        told = _told(record)
        record.facts = "".join(f" {name}={value}" for name, value in told.items())
        if record.exc_info:
            record.exc_text = _exception(record)
        return super().format(record)


class JsonLines(logging.Formatter):
    """A format of one JSON object a line. Args: `facts` are of every record; a record's own facts replace them."""

    def __init__(self, facts: dict[str, str]) -> None:
        super().__init__()
        self._facts = facts

    def format(self, record: logging.LogRecord) -> str:
        """Return the JSON object of one record."""
        line: dict[str, object] = {
            "time": datetime.fromtimestamp(record.created, UTC).isoformat(timespec="milliseconds"),
            "level": record.levelname.lower(),
            "logger": record.name,
            "message": record.getMessage(),
            **self._facts,
            **_told(record),
        }
        if record.exc_info:
            line["exception"] = _exception(record)
        return json.dumps(line, ensure_ascii=False, default=str)


def _told(record: logging.LogRecord) -> dict[str, object]:
    return {name: value for name in _FACTS if (value := getattr(record, name, None)) is not None}


def _exception(record: logging.LogRecord) -> str:
    assert record.exc_info is not None
    kind, error, where = record.exc_info
    if not getattr(record, "is_of_request", False) or kind is None:
        return "".join(traceback.format_exception(kind, error, where)).rstrip()
    told = "".join(traceback.format_tb(where))
    why = "what it says is left out: it may quote the request"
    return f"Traceback (most recent call last):\n{told}{kind.__qualname__} ({why})"
