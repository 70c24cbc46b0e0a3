# SPDX-License-Identifier: Apache-2.0
"""LiteLLM's proxy before our gateway and server, asked by OpenAI's API.

Its `triton/` provider, which asks a server's `generate_stream`, cannot take this load: of all parameters it knows
`max_tokens` alone, so no answer has an exact length, and it guesses the tokens with a tokenizer of its own (1.106.2
counts 13 in a prompt of 8). So it is asked by its `openai/` provider, of our gateway.
"""

import contextlib
import tempfile
from collections.abc import Iterator
from pathlib import Path

import yaml

from benchmarks.peers import model_files
from benchmarks.peers.child_server import serving
from benchmarks.peers.cpu_parts import behind, cpu_by_part
from benchmarks.peers.gateway import running_gateway
from benchmarks.peers.peer import AskedServer, Started, is_ready
from benchmarks.peers.simulated import simulated_deployment
from clients.access import Access
from trireme.base.free_ports import free_ports

_HOME = model_files.ROOT / ".tools" / "litellm"
_PROGRAM = _HOME / "bin" / "litellm"
_MODEL = "proxied"
_KEY = "sk-of-a-benchmark-0123456789abcdef"  # without a key LiteLLM does not start
_OFFLINE = {"LITELLM_LOCAL_MODEL_COST_MAP": "True", "LITELLM_TELEMETRY": "False"}


class LiteLlmProxy:
    """A LiteLLM proxy at its defaults, without a database."""

    name = "LiteLLM's proxy"
    beside: str | None = None
    precision = "no model"
    needs: tuple[Path, ...] = (_PROGRAM,)

    def __init__(self, tokenizer_dir: Path, *, step_ms: float) -> None:
        self._spec = simulated_deployment(tokenizer_dir, step_ms=step_ms)

    @contextlib.contextmanager
    def started(self) -> Iterator[Started]:
        """Yield the proxy on a free port, before a gateway of its own."""
        [port] = free_ports(1)
        url = f"http://127.0.0.1:{port}/v1"
        with tempfile.TemporaryDirectory() as name, running_gateway(self._spec) as behind_it:
            config, key_file = Path(name) / "config.yaml", Path(name) / "key"
            key_file.write_text(_KEY)
            access = Access(token_file=str(key_file))
            key = behind_it.key_file.read_text().strip()
            provider = {"model": f"openai/{behind_it.model}", "api_base": behind_it.url, "api_key": key}
            settings = {
                "model_list": [{"model_name": _MODEL, "litellm_params": provider}],
                "general_settings": {"master_key": _KEY},
            }
            config.write_text(yaml.safe_dump(settings))
            with serving(
                [str(_PROGRAM), "--config", str(config), "--host", "127.0.0.1", "--port", str(port)],
                ready=lambda: is_ready(url, _MODEL, access),
                environment=_OFFLINE,
                folder=Path(name),
            ) as cpu_s:

                def parts() -> dict[str, float]:
                    return cpu_by_part([*cpu_s.processes(), *behind_it.processes()], behind(str(_PROGRAM)))

                shown = " ".join(f"{variable}={value}" for variable, value in _OFFLINE.items())
                yield AskedServer(
                    url,
                    _MODEL,
                    version=_version(),
                    settings=f"{shown} litellm --config, with the openai/ provider and a master key; behind it "
                    "trireme serve --gateway as above",
                    cpu_s=lambda: cpu_s() + behind_it.cpu_s(),
                    cpu_parts_s=parts,
                    access=access,
                )


def _version() -> str:
    [found] = _HOME.glob("lib/python3.*/site-packages/litellm-[0-9]*.dist-info")
    return f"LiteLLM {found.name.removesuffix('.dist-info').partition('-')[2]}"
