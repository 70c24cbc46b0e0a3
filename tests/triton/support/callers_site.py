# SPDX-License-Identifier: Apache-2.0
"""A server of five models behind a gateway with keys, for programs that call it as users of OpenAI's API do.

`demo` is the demo model on OpenVINO, and `maker` the same with a chat template that offers tools, which the model never
calls by itself. `echo` says back the last message, and so calls the tool that the message calls.
`slow` says 20 ms at a time for as long as it may. `embed` makes vectors of 16 values.
"""

import contextlib
import json
import os
import shutil
import subprocess
import sys
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import yaml
from gateway_process import GatewayProcess
from running_server import PROJECT, RunningServer
from small_encoder import MAX_POSITIONS, write_encoder

from trireme.base.free_ports import free_ports

PROGRAMS = PROJECT / "tests/triton/gateway/callers"
_TOKENIZER = PROJECT / "examples/demo_model/target"
_END_ID = 6  # <|end|> of the demo's tokenizer
# Calls in the style of Hermes, <tool_call>, of whatever tools there are.
_ECHO_TEMPLATE = "{% set tools = tools %}{{ messages[-1]['content'] }}<|end|>"
_TOOLS_TEMPLATE = """\
{{ bos_token }}{% if tools %}<|system|>Call them as <tool_call>: {{ tools | tojson }}<|end|>{% endif %}
{% for message in messages %}{{ '<|' + message['role'] + '|>' + message['content'] }}<|end|>{% endfor %}
<|assistant|>"""
_PROGRAM_S = 240.0


def write_deployment(folder: Path) -> str:
    """Write what the models need, and return the deployment file's text."""
    echo = _tokenizer(folder / "echo_tokenizer", "{# <tool_call> #}" + _ECHO_TEMPLATE)
    maker = _tokenizer(folder / "maker_tokenizer", _TOOLS_TEMPLATE)
    openvino = {
        "provider": "openvino",
        "dir": str(PROJECT / "examples/demo_model/openvino/target"),
        "execution_mode": "accuracy",
    }
    simulated = {"provider": "simulated", "mode": "echo", "end_id": _END_ID}
    models = [
        {"name": "demo", "tokenizer": {"dir": str(_TOKENIZER)}, "engine": openvino},
        {"name": "maker", "tokenizer": {"dir": maker}, "engine": openvino},
        {"name": "echo", "tokenizer": {"dir": echo}, "engine": simulated | {"step_ms": 1.0}},
        {"name": "slow", "tokenizer": {"dir": echo}, "engine": simulated | {"step_ms": 20.0}},
    ]
    write_encoder(folder / "encoder")
    embed = {"name": "embed", "dir": str(folder / "encoder"), "pooling": "mean", "max_tokens": MAX_POSITIONS}
    texts = [each | {"endpoints": ["ensemble"]} for each in models]
    return yaml.safe_dump({"name": "callers", "models": texts, "embedding_models": [embed]})


def _tokenizer(folder: Path, template: str) -> str:
    """Write the demo's tokenizer with another chat template, and return its folder."""
    folder.mkdir(parents=True)
    for name in ("tokenizer.json", "tokenizer_config.json"):
        shutil.copyfile(_TOKENIZER / name, folder / name)
    (folder / "chat_template.jinja").write_text(template)
    return str(folder)


@contextlib.contextmanager
def callers_site(folder: Path) -> Iterator[dict[str, str]]:
    """Give what a program is told, inside the block: addresses and keys.

    `narrow_key` may have one request at a time; the server of the gateway `away_url` is away, and nobody listens at
    `nowhere_url`.
    """
    keys = str(folder / "keys.sqlite")
    with (
        RunningServer(write_deployment(folder), folder) as server,
        GatewayProcess(server, folder, options=("--keys", keys)) as gateway,
        GatewayProcess(server, folder, url=f"127.0.0.1:{free_ports(1)[0]}") as away,
    ):
        yield {
            "url": gateway.url,
            "key": _new_key("wide", keys),
            "narrow_key": _new_key("narrow", keys, "--streams", "1"),
            "away_url": away.url,
            "nowhere_url": f"http://127.0.0.1:{free_ports(1)[0]}/v1",
        }


def outcomes(command: Sequence[str | Path], site: Mapping[str, str], *, folder: Path) -> dict[str, str]:
    """Return what a program says of each of its scenarios: the failure, or "" where it holds."""
    environment = {
        name: value
        for name, value in os.environ.items()
        if not name.startswith(("OPENAI_", "LANGCHAIN_", "LANGSMITH_"))
    }
    done = subprocess.run(
        [*command, json.dumps(site)],
        cwd=folder,
        env=environment | {"OPENAI_BASE_URL": site["url"], "OPENAI_API_KEY": site["key"]},
        capture_output=True,
        text=True,
        check=False,
        timeout=_PROGRAM_S,
    )
    assert done.returncode == 0, done.stdout + done.stderr
    found: dict[str, str] = json.loads(done.stdout.splitlines()[-1])
    return found


def _new_key(name: str, keys: str, *options: str) -> str:
    command: list[Any] = [sys.executable, "-m", "trireme", "gateway", "keys", "create", name, "--keys", keys, *options]
    return subprocess.run(command, capture_output=True, text=True, check=True).stdout.strip()
