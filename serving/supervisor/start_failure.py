# SPDX-License-Identifier: Apache-2.0
"""The reason of a server's failure, read from Triton's log: causes before their consequences, a line each."""

import re
from collections.abc import Iterable
from pathlib import Path

_MOST_CAUSES = 5
_TOKEN = re.compile(r"\[[A-Z_]+(?: \w+=(?:\"(?:[^\"\\]|\\.)*\"|[^\s\]]+))*\] ")
_NATIVE = re.compile(r'^E\d{4} [\d:.]+ \d+ [\w.]+:\d+\] "?(?P<text>.*?)"?$')
_FAILED_MODEL = re.compile(
    r"failed to load '(?P<model>[^']+)' version (?P<version>\d+): (?:\w[\w ]*: )?(?:\w+Error: )?(?P<why>.*)"
)
# The places in Python, and the text that an engine's end adds to the engine's own reason.
_BEHIND = re.compile(r"(?:; status -?\d+; its log says why)?(?:\\n|\n)+At:.*")
# Lines of every machine without a GPU, and of every server that could not load a model.
_NO_CAUSE = re.compile(
    r"initialize NVML|CudaDriverHelper|CUDA driver version|DCGM|Failed to create instance|failed to load all models"
)
# Lines of a model that failed only because another did, and of a load that repeats a cause in other words.
_CONSEQUENCE = re.compile(
    r"the engine that tensorrt_llm loads|which has no loaded version|no model tensorrt_llm has the"
)
_MARKS = ("Error:", "error:", "terminate called", "what():", "[err]")
# What Triton says where the machine lacks something, with the next step.
_NEXT_STEPS = {
    "Too many open files": "its processes ran out of file descriptors (Too many open files): raise the limit "
    "(`ulimit -Hn`, LimitNOFILE, --ulimit nofile)",
    "Failed to create temporary directory": "the Python backend could not make its folder in /tmp (Failed to create "
    "temporary directory): make /tmp writable for this user, in a container by a volume",
}


def cause_in(log_path: Path, *, is_verbose: bool) -> str:
    """Return the causes that the log gives, with its path, or say where the log is."""
    if is_verbose:
        return "its log is above"
    causes = causes_in(log_path.read_text(errors="replace").splitlines())
    return "\n".join([*causes, f"the whole log is in {log_path}"])


def causes_in(lines: Iterable[str]) -> list[str]:
    """Return the causes in order, without their consequences unless there is nothing else."""
    models: dict[str, list[str]] = {}
    others: dict[str, None] = {}
    for line in lines:
        if known := next((step for said, step in _NEXT_STEPS.items() if said in line), None):
            return [known]
        native = _NATIVE.match(line)
        text = native["text"] if native else line
        if failed := _FAILED_MODEL.search(text) if native else None:
            models.setdefault(_plain(failed["why"]), []).append(f"{failed['model']} {failed['version']}")
        elif (native or line.lstrip().startswith(_MARKS) or "terminate called" in line) and not _NO_CAUSE.search(text):
            others[_plain(text)] = None
    causes = [f"{', '.join(names)}: {why}" for why, names in models.items() if not _CONSEQUENCE.search(why)]
    causes += [text for text in others if not _CONSEQUENCE.search(text) and not any(why in text for why in models)]
    causes = causes or [f"{', '.join(names)}: {why}" for why, names in models.items()]
    return causes[:_MOST_CAUSES]


def _plain(text: str) -> str:
    """Return a text without tokens, which are for programs, and without places in the source."""
    return " ".join(_TOKEN.sub("", _BEHIND.sub("", text)).replace("\\n", " ").replace('\\"', '"').split())
