# SPDX-License-Identifier: Apache-2.0
"""Tests of LoRA adapters by request on vLLM's real CPU build."""

import random
import shutil
from collections.abc import Iterator
from pathlib import Path

import pytest
from demo_adapters import HIDDEN, SIZES, write_demo_adapter
from vllm_runs import Run, running

from serving.engines.vllm import vllm_lora
from trireme.base.errors import RequestError

PROMPT = list(range(30, 70))


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("lora")


@pytest.fixture(scope="module")
def run(folder: Path) -> Iterator[Run]:
    lora = {"dir": folder, "max_rank": 16, "max_device_adapters": 2, "max_host_adapters": 3}
    with running(lora=lora) as made:
        yield made


@pytest.fixture(autouse=True)
def _empty_folder(run: Run, folder: Path) -> Iterator[None]:
    yield
    for path in folder.iterdir():
        shutil.rmtree(path)
    look_now(run)
    assert loaded(run) == set(), "of no test an adapter is left"


def loaded(run: Run) -> set[int]:
    """Return the numbers of the adapters that vLLM has, but for the one that stands for none."""
    numbers: set[int] = run.engine._core.list_loras()  # type: ignore[attr-defined]
    return numbers - {vllm_lora._NONE}


def look_now(run: Run) -> None:
    run.engine._adapters._next_look_s = 0.0  # type: ignore[attr-defined]
    run.engine._adapters.look()  # type: ignore[attr-defined]


def test_requests_by_random_adapters_get_each_its_adapter_s_answer_and_nothing_is_left(run: Run, folder: Path) -> None:
    names = [f"style-{number}" for number in range(6)] + ["7"]
    for seed, name in enumerate(names):
        write_demo_adapter(
            folder / name, seed=seed, modules=("q_proj", "v_proj", "down_proj") if seed % 2 else ("q_proj", "o_proj")
        )
    alone = {name: run.ask(PROMPT, lora_name=name).token_ids for name in names[:-1]}
    alone["7"] = run.ask(PROMPT, lora_task_id=7).token_ids
    alone[""] = run.ask(PROMPT).token_ids
    assert len({tuple(tokens) for tokens in alone.values()}) == len(alone), "adapters that differ"
    choice = random.Random(5)
    asked: dict[int, str] = {}
    answers: dict[int, list[int]] = {}
    for _ in range(60):  # more than fit at once, while others run
        name = choice.choice([*names, ""])
        asked[run.add(PROMPT, **({"lora_name": name} if name else {}))] = name
        for chunk in run.engine.step() if choice.random() < 0.5 else []:
            answers.setdefault(chunk.key, []).extend(chunk.token_ids)
    assert run.engine.stats().num_waiting > 0, "requests wait for adapters"
    for key, answer in run.drain().items():
        answers.setdefault(key, []).extend(answer.token_ids)
    wrong = {key: name for key, name in asked.items() if answers[key] != alone[name]}
    assert not wrong
    assert len(loaded(run)) == 3, "no more than max_host_adapters"
    for name in names:
        shutil.rmtree(folder / name)
    look_now(run)
    assert loaded(run) == set()
    assert run.engine.stats().num_used_kv_blocks == 0


def test_an_adapter_taken_out_while_it_is_used_serves_to_the_end_and_is_freed(run: Run, folder: Path) -> None:
    write_demo_adapter(folder / "legal", seed=1)
    whole = run.ask(PROMPT, lora_name="legal", max_tokens=40).token_ids
    key = run.add(PROMPT, lora_name="legal", max_tokens=40)
    first = [token for _ in range(4) for chunk in run.engine.step() for token in chunk.token_ids]
    shutil.rmtree(folder / "legal")
    look_now(run)
    assert len(loaded(run)) == 1, "it is used"
    with pytest.raises(RequestError, match=r"lora_name \(legal\) is no adapter in engine\.lora\.dir; there are none"):
        run.add(PROMPT, lora_name="legal")
    assert first + run.drain()[key].token_ids == whole
    assert loaded(run) == set()


def test_other_files_under_the_name_of_an_adapter_are_another_adapter(run: Run, folder: Path) -> None:
    write_demo_adapter(folder / "legal", seed=1)
    old = run.ask(PROMPT, lora_name="legal").token_ids
    shutil.rmtree(folder / "legal")
    write_demo_adapter(folder / "legal", seed=2)
    new = run.ask(PROMPT, lora_name="legal").token_ids
    write_demo_adapter(folder / "other", seed=2)
    assert new == run.ask(PROMPT, lora_name="other").token_ids != old


def test_a_cancelled_request_gives_its_adapter_back_also_one_that_waits(run: Run, folder: Path) -> None:
    for seed in range(5):
        write_demo_adapter(folder / f"a{seed}", seed=seed)
    keys = [run.add(PROMPT, lora_name=f"a{seed}", max_tokens=200) for seed in range(5)]
    run.engine.step()
    assert run.engine.stats().num_waiting >= 2
    run.engine.cancel(keys[4])
    run.engine.cancel(keys[0])
    for _ in range(3):
        run.engine.step()
    assert run.engine._held == {}, "a3 has the place of a0"  # type: ignore[attr-defined]
    for key in keys:
        run.engine.cancel(key)
    assert run.drain() == {}
    for seed in range(5):
        shutil.rmtree(folder / f"a{seed}")
    look_now(run)
    assert loaded(run) == set()


def test_an_adapter_that_is_gone_when_its_turn_comes_fails_its_request_alone(run: Run, folder: Path) -> None:
    for seed in range(4):
        write_demo_adapter(folder / f"a{seed}", seed=seed)
    keys = [run.add(PROMPT, lora_name=f"a{seed}") for seed in range(4)]
    shutil.rmtree(folder / "a3")
    answers = run.drain()
    assert "lora_name (a3): vLLM could not load this adapter" in (answers[keys[3]].error or "")
    assert [len(answers[key].token_ids) for key in keys] == [16, 16, 16, 0]


BROKEN = {
    "a rank above the engine's": ({"rank": 32}, r"has rank 32, and engine\.lora\.max_rank is 16"),
    "a layer that the model has not": ({"layers": 6}, "is of layer 5, and the engine's model has 5 layers"),
    "no module of vLLM's": ({"modules": ("lm_head",)}, "is no LoRA tensor of"),
    "an output that is too small": ({"sizes": SIZES | {"v_proj": (HIDDEN, 64)}}, "could not load .* is 256 by 64"),
    "an output that is too large": ({"sizes": SIZES | {"v_proj": (HIDDEN, 256)}}, "could not load this adapter"),
    "an input of another model": ({"sizes": SIZES | {"q_proj": (64, HIDDEN)}}, "is for hidden states of 64"),
    "no weights": ({"layers": 0}, "has no tensors"),
    "a bias": ({"bias": "all"}, "bias is 'all'"),
    "replicated layers": ({"layer_replication": [[0, 4]]}, "could not load this adapter"),
    "no number for a scale": ({"lora_alpha": None}, "is no adapter's configuration"),
}  # fmt: skip


@pytest.mark.parametrize(("changes", "complaint"), BROKEN.values(), ids=BROKEN)
def test_a_broken_adapter_is_refused_and_the_others_go_on(
    run: Run, folder: Path, changes: dict[str, object], complaint: str
) -> None:
    write_demo_adapter(folder / "good", seed=1)
    good = run.ask(PROMPT, lora_name="good").token_ids
    key = run.add(PROMPT, lora_name="good")
    run.engine.step()
    write_demo_adapter(folder / "broken", seed=2, **changes)  # type: ignore[arg-type]
    for _ in range(2):
        with pytest.raises(RequestError, match=complaint) as refused:
            run.add(PROMPT, lora_name="broken")
        assert refused.value.facts["field"] == "lora_name"
        assert refused.value.facts["value"] == "broken"
    run.drain()
    assert run.ask(PROMPT, lora_name="good").token_ids == good
    assert len(loaded(run)) == 1, "nothing of the broken one is left"
    assert key


def test_files_that_are_missing_cut_off_or_no_safetensors_are_refused(run: Run, folder: Path) -> None:
    good = run.ask(PROMPT).token_ids
    weights = write_demo_adapter(folder / "a", seed=1) / "adapter_model.safetensors"
    whole = weights.read_bytes()
    for text, complaint in (
        (whole[:-1], "no whole safetensors"),
        (b"PK\3\4" * 9, "no whole safetensors"),
        (None, "has no"),
    ):
        weights.unlink() if text is None else weights.write_bytes(text)
        with pytest.raises(RequestError, match=complaint):
            run.add(PROMPT, lora_name="a")
    weights.write_bytes(whole)
    assert run.ask(PROMPT, lora_name="a").token_ids != good
    assert run.ask(PROMPT).token_ids == good


def test_an_engine_without_adapters_refuses_them_by_name() -> None:
    with running() as plain:
        for field, value in (("lora_name", "legal"), ("lora_task_id", 3)):
            with pytest.raises(RequestError, match=rf"{field}.*no engine\.lora"):
                plain.add(PROMPT, **{field: value})
        assert len(plain.ask(PROMPT).token_ids) == 16
