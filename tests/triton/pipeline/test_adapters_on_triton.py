# SPDX-License-Identifier: Apache-2.0
"""LoRA adapters below the real Triton, on the fake `tensorrt_llm`, whose tokens depend on an adapter's weights.

They are loaded, replaced and unloaded by `trireme adapters` while the server runs; each answer is its own adapter's.
"""

import json
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import numpy as np
import pytest
from fake_packages import install_fake
from lora_adapters import write_adapter
from raw_calls import StreamFailed, engine_request, stream
from running_server import ENDPOINTS, RunningServer, deployment_text

from trireme.commands import run_command

MODULES = ["attn_q", "attn_k", "attn_v"]
MAX_ADAPTERS = 12
BUILD = {
    "max_input_len": 2048, "max_seq_len": 2048, "max_batch_size": 64, "max_num_tokens": 8192,
    "plugin_config": {"tokens_per_block": 32, "lora_plugin": "auto", "use_paged_context_fmha": True},
    "lora_config": {"lora_target_modules": MODULES, "max_lora_rank": 64},
}  # fmt: skip
LONG = 1500  # tokens of a stream that is running while something else is done


def write_model(folder: Path, provider: str) -> Path:
    folder.mkdir()
    (folder / "generation_config.json").write_text('{"eos_token_id": 2}')
    config: dict[str, object] = {"vocab_size": 4096, "max_position_embeddings": 2048, "eos_token_id": 2}
    if provider == "tensorrt":
        mapping = {"world_size": 1, "tp_size": 1, "pp_size": 1}
        pretrained = {"architecture": "LlamaForCausalLM", "vocab_size": 4096, "mapping": mapping}
        config = {"version": "1.2.1", "pretrained_config": pretrained, "build_config": BUILD}
        (folder / "rank0.engine").touch()
    (folder / "config.json").write_text(json.dumps(config))
    return folder


class Served:
    """A server with an adapters' folder, and the clients of both."""

    def __init__(self, server: RunningServer) -> None:
        self.server = server
        self._sources = server.folder / "sources"

    def command(self, *args: object) -> int:
        argv = [*map(str, args), "--deployment", str(self.server.folder / "deployment.yaml")]
        with pytest.raises(SystemExit) as ended:
            run_command("adapters", argv)
        return int(ended.value.code or 0)

    def load(self, name: str, seed: int) -> None:
        source = write_adapter(self._sources / f"{name}-{seed}", seed=seed)
        assert self.command("load", source, "--name", name) == 0

    def unload(self, name: str) -> None:
        assert self.command("unload", name) == 0

    def begin(self, model: str, asked: tuple[int, int], /, **named: str | int) -> Iterator[str]:
        """Yield a model's answer to a prompt in so many tokens, piece by piece, as text or as token ids in words."""
        prompt, max_tokens = asked
        tensors: dict[str, object] = {
            name: np.array(
                [[value.encode() if isinstance(value, str) else value]],
                np.object_ if isinstance(value, str) else np.uint64,
            )
            for name, value in named.items()
        }
        if model == "tensorrt_llm":
            ids = engine_request([20, prompt], max_tokens, end_id=4095, **tensors)
            for response in stream(self.server.url, model, ids):
                yield "".join(f"{token} " for token in response["output_ids"].ravel())
            return
        text = {"text_input": f"a prompt {prompt}", "max_tokens": max_tokens, "stream": True, "end_id": 4095}
        for response in stream(self.server.url, model, text | tensors):
            yield response["text_output"].item().decode()

    def answer(self, model: str, /, **named: str | int) -> str:
        return "".join(self.begin(model, (1, 12), **named))

    def refusal(self, model: str, /, **named: str | int) -> str:
        with pytest.raises(StreamFailed) as refused:
            self.answer(model, **named)
        return str(refused.value)


@pytest.fixture(scope="module", params=["tensorrt", "pytorch"])
def served(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Served]:
    folder = tmp_path_factory.mktemp(request.param)
    # One adapter fits upstream's host cache on PyTorch, so that each evicts the one before; a compiled engine would
    # refuse a second that runs beside it.
    lora = {"dir": str(folder / "lora"), "target_modules": MODULES, "max_adapters": MAX_ADAPTERS}
    if request.param == "pytorch":
        lora["max_host_adapters"] = 1
    model = write_model(folder / "model", request.param)
    engine = {"provider": request.param, "dir": str(model), "max_seq_len": 2048, "lora": lora}
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("PYTHONPATH", str(install_fake(folder / "packages")))
        text = deployment_text("adapters", engine=engine, endpoints=ENDPOINTS)
        with RunningServer(text, folder / "server") as server:
            yield Served(server)


MODELS = ("ensemble", "tensorrt_llm", "ensemble_graph")


def test_each_answer_is_its_own_adapters_whoever_runs_beside_it(served: Served) -> None:
    served.load("legal", seed=1)
    served.load("7", seed=2)
    named: tuple[dict[str, str | int], ...] = ({}, {"lora_name": "legal"}, {"lora_task_id": 7})
    for model in MODELS:
        alone = [served.answer(model, **each) for each in named]
        assert len(set(alone)) == 3
        assert served.answer(model, lora_name="7") == alone[2], "one adapter, whichever way it is named"
        with ThreadPoolExecutor(6) as pool:
            together = list(pool.map(lambda each: served.answer(model, **each), named * 4))  # noqa: B023
        assert together == alone * 4
    assert served.command("status") == 0


def test_what_is_not_there_is_refused_by_name_and_the_others_go_on(served: Served) -> None:
    served.load("there", seed=3)
    expected = served.answer("ensemble", lora_name="there")
    for model in MODELS:
        assert "field=lora_name value=nowhere" in served.refusal(model, lora_name="nowhere")
        assert "field=lora_task_id value=99" in served.refusal(model, lora_task_id=99)
        assert "lora_task_id" in served.refusal(model, lora_task_id=7, lora_name="there"), "both"
    assert served.answer("ensemble", lora_name="there") == expected


def test_streams_of_an_adapter_that_is_replaced_and_unloaded_end_as_they_began(served: Served) -> None:
    served.load("style", seed=4)
    before = served.answer("ensemble", lora_name="style")
    whole = "".join(served.begin("tensorrt_llm", (2, LONG), lora_name="style"))
    running = served.begin("tensorrt_llm", (2, LONG), lora_name="style")
    first = next(running)
    served.unload("style")
    assert "field=lora_name value=style" in served.refusal("ensemble", lora_name="style")
    served.load("style", seed=5)
    after = served.answer("ensemble", lora_name="style")
    assert after not in (before, served.answer("ensemble")), "the new weights, and not the base model's"
    second = served.begin("tensorrt_llm", (2, LONG), lora_name="style")
    begun = next(second)
    served.unload("style")
    assert first + "".join(running) == whole
    replaced = begun + "".join(second)
    assert len(replaced.split()) == len(whole.split()) == LONG
    assert replaced != whole
    assert "field=lora_name value=style" in served.refusal("tensorrt_llm", lora_name="style")
    served.load("style", seed=4)
    assert served.answer("ensemble", lora_name="style") == before, "the weights decide, not the name"


def test_an_engines_life_holds_as_many_adapters_as_the_deployment_says(served: Served) -> None:
    accepted: dict[str, str] = {}
    for seed in range(100, 101 + MAX_ADAPTERS):
        served.load(f"n{seed}", seed=seed)
        try:
            accepted[f"n{seed}"] = served.answer("ensemble", lora_name=f"n{seed}")
        except StreamFailed as exc:
            refusal = str(exc)
            break
    assert f"would be adapter {MAX_ADAPTERS + 1} of this engine's life" in refusal
    assert f"max_adapters={MAX_ADAPTERS}" in refusal
    assert len(set(accepted.values())) == len(accepted)
    for name, answer in accepted.items():
        assert served.answer("ensemble", lora_name=name) == answer, "those that are there go on"
        served.unload(name)
