# SPDX-License-Identifier: Apache-2.0
"""The fake `tensorrt_llm` is what the facts say, and what differs from them shows."""

import importlib
import json
import sys
from pathlib import Path

import pytest
from fake_tensorrt_llm import fake_tensorrt_llm
from trtllm_behaviour import CompletionOutput, RequestOutput

from documents import trtllm_page
from scripts import trtllm_facts

KNOWN = trtllm_facts.FACTS / "1.2.1"


@pytest.mark.parametrize(("version", "num_classes"), [("1.2.1", 40), ("1.3", 69)])
def test_what_is_read_from_the_fake_is_what_the_facts_say(version: str, num_classes: int) -> None:
    known = trtllm_facts.load_facts(trtllm_facts.FACTS / version)
    with fake_tensorrt_llm(version):
        dumped = trtllm_facts.dump(known)
    assert sum(len(facts.get("classes", ())) for facts in dumped.values()) == num_classes
    assert trtllm_facts.drift(known, dumped) == ""


@pytest.mark.parametrize(
    ("installed", "facts"),
    [
        ("1.2.0", "1.2.1"),
        ("1.2.1", "1.2.1"),
        ("1.3.0rc29", "1.3"),
        ("1.4.0rc1", "1.3"),
        ("2.0", "1.3"),
        ("1.1.0", "1.2.1"),
    ],
)
def test_an_installation_is_compared_with_the_nearest_facts(installed: str, facts: str) -> None:
    assert trtllm_facts.nearest_facts(installed).name == facts


def test_a_later_version_shows_as_drift(capsys: pytest.CaptureFixture[str]) -> None:
    with fake_tensorrt_llm("1.2.1", facts_of="1.3"):
        assert trtllm_facts.main([]) == 1
    diff = capsys.readouterr().out
    assert '+   "priority=0.5"' in diff
    assert '-  "TrtLlmArgs": {' in diff


def test_a_changed_default_a_new_field_and_a_lost_class_each_show() -> None:
    known = trtllm_facts.load_facts(KNOWN)
    with fake_tensorrt_llm():
        dumped = trtllm_facts.dump(known)
    fields = known["kv_cache_config"]["classes"]["KvCacheConfig"]["fields"]
    fields["tokens_per_block"]["default"] = 64
    del fields["use_uvm"]
    known["llm_args"]["classes"]["WarpDrive"] = {"module": trtllm_facts.ARGS_MODULE, "kind": "pydantic", "fields": {}}
    diff = trtllm_facts.drift(known, dumped)
    assert '-     "default": 64,' in diff
    assert '+    "use_uvm": {' in diff
    assert '-  "WarpDrive": {' in diff


def test_the_order_of_a_unions_members_is_no_drift() -> None:
    """Python's typing gives back the first of equal Unions: after transformers' import, that of another package."""
    facts = {"x": {"classes": {"A": {"fields": {"f": {"type": "Dict[str,Union[str,List[Union[b,a]]]]"}}}}}}
    other = {"x": {"classes": {"A": {"fields": {"f": {"type": "Dict[str,Union[List[Union[a,b]],str]]"}}}}}}
    assert trtllm_facts.drift(facts, other) == ""
    other["x"]["classes"]["A"]["fields"]["f"]["type"] = "Dict[str,Union[List[Union[a,c]],str]]"
    assert "Union[a,c]" in trtllm_facts.drift(facts, other)


def test_what_was_read_can_take_the_place_of_the_facts(tmp_path: Path) -> None:
    with fake_tensorrt_llm():
        assert trtllm_facts.main(["--write", str(tmp_path)]) == 0
        written = trtllm_facts.load_facts(tmp_path)
        assert trtllm_facts.drift(written, trtllm_facts.dump(written)) == ""
    assert json.loads((tmp_path / "llm_args.json").read_text())["source_version"] == "1.2.1"


def test_without_the_package_the_dumper_says_where_to_run_it() -> None:
    assert "tensorrt_llm" not in sys.modules
    with pytest.raises(SystemExit, match="run this where TensorRT-LLM is installed"):
        trtllm_facts.main([])


def test_outputs_have_exactly_the_attributes_of_the_facts() -> None:
    classes = json.loads((KNOWN / "outputs.json").read_text())["classes"]
    assert set(vars(CompletionOutput())) == set(classes["CompletionOutput"]["names"])
    ours = {name for name in vars(RequestOutput) if not name.startswith("_")} - {"put", "end"}  # the executor's side
    names = {name for name in classes["RequestOutput"]["names"] if not name.startswith("_")}
    assert ours == names


@pytest.mark.parametrize(
    ("name", "arguments", "message"),
    [
        ("KvCacheConfig", {"max_blocks": 8}, "Extra inputs are not permitted"),
        ("KvCacheConfig", {"max_tokens": "8"}, "should be a valid integer"),
        ("SchedulerConfig", {"capacity_scheduler_policy": "max_utilization"}, "Input should be 'MAX_UTILIZATION'"),
        ("SamplingParams", {"maximum_tokens": 8}, "[Uu]nexpected keyword argument"),
        ("SamplingParams", {"top_k": 0.5}, "should be a valid integer"),
        ("SamplingParams", {"embedding_bias": [0.0]}, "instance of"),
        ("LoRARequest", {"lora_name": "a"}, "lora_int_id"),
    ],
)
def test_what_the_facts_do_not_have_raises(name: str, arguments: dict[str, object], message: str) -> None:
    with fake_tensorrt_llm():
        from tensorrt_llm import llmapi  # type: ignore[import-not-found]  # noqa: PLC0415

        with pytest.raises((TypeError, ValueError), match=message):
            getattr(llmapi, name)(**arguments)


def test_a_version_without_engines_has_no_way_to_one() -> None:
    with fake_tensorrt_llm("1.3.0rc29"):
        with pytest.raises(ImportError, match="_tensorrt_engine"):
            importlib.import_module("tensorrt_llm._tensorrt_engine")
        llm = importlib.import_module("tensorrt_llm").LLM
        with pytest.raises(ValueError, match="backend tensorrt was removed"):
            llm("model", backend="tensorrt")
        with pytest.raises(ValueError, match="argument sampler_type was removed"):
            llm("model", sampler_type="TRTLLMSampler")


def test_the_page_of_differences_is_rendered_from_the_facts() -> None:
    document = trtllm_page.PAGE.read_text(encoding="utf-8")
    for row in (
        "| `TorchLlmArgs` | `sampler_type` | removed |",
        "| `TorchLlmArgs` | `generation_config` | added |",
        '| `MoeConfig` | `backend` | other default | `"CUTLASS"` | `"AUTO"` |',
        "| `KvCacheConfig` | `sink_token_length` | deprecated |",
        "| `MedusaDecodingConfig` |  | class removed |",
        "| `SADecodingConfig` |  | class added |",
    ):
        assert row in document


def test_every_file_of_facts_says_how_it_was_read_and_from_where() -> None:
    for file in trtllm_facts.FACTS.glob("*/*.json"):
        facts = json.loads(file.read_text(encoding="utf-8"))
        assert facts["read"] in ("source", "catalogue", "partly", "no"), file
        assert facts["source_version"].startswith(("1.", "0.37")), file
