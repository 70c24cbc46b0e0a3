# SPDX-License-Identifier: Apache-2.0
"""Guided decoding on the demo model: the output is what the guide allows, and a bad guide hurts nobody else."""

import json
import re
import shutil
from collections import defaultdict
from collections.abc import Iterator
from pathlib import Path

import openvino_genai
import pytest
from tokenizers import Tokenizer

from ensemble_configs.spec.engine.openvino_spec import OpenVinoEngineSpec
from serving.engines.openvino import openvino_pipeline
from serving.engines.providers import create_engine
from serving.engines.seam.base import Engine, FinishReason, GenerationRequest, SamplingParams
from trireme.base.errors import RequestError
from trireme.base.project_files import CODE_ROOT

pytestmark = pytest.mark.slow

DEMO_MODEL = CODE_ROOT / "examples/demo_model"
TOKENIZER = Tokenizer.from_file(str(DEMO_MODEL / "target/tokenizer.json"))
PROMPT: list[int] = TOKENIZER.encode("What is 23 + 45?").ids
ANY_CASE = {"top_p": 0.95, "temperature": 1.5, "seed": 3}


def create(folder: Path = DEMO_MODEL / "openvino/target") -> Engine:
    spec = {"provider": "openvino", "dir": folder, "num_threads": 1, "max_num_seqs": 4, "num_kv_blocks": 64}
    return create_engine(OpenVinoEngineSpec.model_validate(spec))


@pytest.fixture(scope="module")
def engine() -> Iterator[Engine]:
    created = create()
    yield created
    created.close()


def request(key: int, guide_type: str | None = None, guide: str | None = None, **sampling: object) -> GenerationRequest:
    given = {"max_tokens": 60, "guide_type": guide_type, "guide": guide} | sampling
    return GenerationRequest(key=key, input_ids=PROMPT, sampling=SamplingParams(**given))  # type: ignore[arg-type]


def run(engine: Engine, *requests: GenerationRequest) -> dict[int, tuple[str, FinishReason | None]]:
    """Return the text of each request and why it ended."""
    for one in requests:
        engine.add(one)
    return drain(engine)


def drain(engine: Engine) -> dict[int, tuple[str, FinishReason | None]]:
    ids: dict[int, list[int]] = defaultdict(list)
    reasons: dict[int, FinishReason | None] = {}
    while engine.has_work:
        for chunk in engine.step():
            assert chunk.error is None
            ids[chunk.key] += chunk.token_ids
            reasons[chunk.key] = chunk.finish_reason
    return {key: (TOKENIZER.decode(token_ids), reasons[key]) for key, token_ids in ids.items()}


ENUM = json.dumps({"enum": ["Paris", {"city": "Rome"}, [1, 2, 3]]})
NUMBER = json.dumps({"type": "integer"})
EBNF = 'root ::= "<" item (", " item)? ">"\nitem ::= "yes" | "no"'
TOWN = {
    "type": "object",
    "properties": {
        "name": {"type": "string", "pattern": "^[A-Z][a-z]{2,9}$"},
        "size": {"enum": ["small", "large"]},
        "rank": {"type": "integer", "minimum": 1, "maximum": 9},
    },
    "required": ["name", "size"],
}
TAG = json.dumps({"type": "structural_tag", "format": {"type": "const_string", "value": "the answer"}})


@pytest.mark.parametrize(
    ("guide_type", "guide", "pattern"),
    [
        pytest.param("regex", "[A-Z][a-z]{2,9} [0-9]{2}", "[A-Z][a-z]{2,9} [0-9]{2}", id="regex"),
        pytest.param("ebnf_grammar", EBNF, "<(yes|no)(, (yes|no))?>", id="ebnf"),
        pytest.param("structural_tag", TAG, "the answer", id="structural tag"),
        pytest.param("json_schema", NUMBER, "-?[0-9]+", id="number"),
        pytest.param("json_schema", ENUM, ".*", id="enumeration"),
    ],
)
@pytest.mark.parametrize("how", [{}, ANY_CASE], ids=["greedy", "sampled"])
def test_the_output_is_what_the_guide_allows_and_ends_where_it_does(
    engine: Engine, guide_type: str, guide: str, pattern: str, how: dict[str, object]
) -> None:
    text, reason = run(engine, request(1, guide_type, guide, **how))[1]
    assert re.fullmatch(pattern, text)
    assert reason is FinishReason.STOP
    if guide == ENUM:
        assert json.loads(text) in json.loads(ENUM)["enum"]
    if guide == NUMBER:
        assert isinstance(json.loads(text), int)


@pytest.mark.parametrize("how", [{}, ANY_CASE], ids=["greedy", "sampled"])
def test_an_object_comes_to_its_end_whatever_the_model_thinks_of_json(engine: Engine, how: dict[str, object]) -> None:
    text, reason = run(engine, request(1, "json_schema", json.dumps(TOWN), **how))[1]
    assert reason is FinishReason.STOP  # with white space between its parts it had none within max_tokens
    town = json.loads(text)
    assert re.fullmatch("[A-Z][a-z]{2,9}", town["name"])
    assert town["size"] in {"small", "large"}
    assert town.keys() <= {"name", "size", "rank"}
    assert town.get("rank", 1) in range(1, 10)


def test_any_json_begins_as_an_object_or_an_array(engine: Engine) -> None:
    # The demo model was never shown JSON: it fills the space in it until max_tokens.
    text, _ = run(engine, request(1, "json"))[1]
    assert text.lstrip()[0] in "{["


def test_guided_and_free_requests_run_beside_each_other(engine: Engine) -> None:
    [alone] = run(engine, request(1)).values()
    together = run(engine, request(1), request(2, "regex", "(yes|no)"), request(3, "regex", "[0-9]{4}"))
    assert together[1] == alone
    assert together[2][0] in ("yes", "no")
    assert re.fullmatch("[0-9]{4}", together[3][0])


@pytest.mark.parametrize(
    ("guide_type", "guide", "reason"),
    [
        ("regex", "([a-z", "Regex parsing error at position 6: Unclosed '['"),
        ("json_schema", '{"type": "nonsense"}', 'Unsupported type "nonsense"'),
        ("json_schema", '{"type', "Failed to parse JSON"),
        ("ebnf_grammar", "root ::= foo", 'Rule "foo" is not defined'),
        ("structural_tag", "{}", "Structural tag must have a format field"),
    ],
)
def test_a_guide_that_does_not_compile_fails_alone(engine: Engine, guide_type: str, guide: str, reason: str) -> None:
    [expected] = run(engine, request(1, "regex", "(yes|no)")).values()
    engine.add(request(1, "regex", "(yes|no)"))
    with pytest.raises(RequestError) as refusal:
        engine.add(request(2, guide_type, guide))
    assert refusal.value.facts["field"] == "guided_decoding_guide"
    assert reason in refusal.value.message
    assert "/" not in refusal.value.message, "no path of the compiler's source"
    engine.add(request(3, "regex", "(yes|no)"))
    assert drain(engine) == {1: expected, 3: expected}


def test_openvino_raises_in_every_step_once_it_has_a_guide_that_does_not_compile() -> None:
    # Why guides are compiled before: when this fails, they need not be.
    spec = OpenVinoEngineSpec(provider="openvino", dir=DEMO_MODEL / "openvino/target", num_threads=1, num_kv_blocks=8)
    pipeline = openvino_pipeline.load_pipeline(spec)
    config = openvino_pipeline.generation_config(SamplingParams(max_tokens=4), end_ids=(1,), vocab_size=4096)
    config.structured_output_config = openvino_genai.StructuredOutputConfig(regex="([a-z")
    config.validate()
    handle = pipeline.add_request(2, openvino_pipeline.token_tensor(PROMPT), config)
    for _ in range(3):
        with pytest.raises(RuntimeError):
            pipeline.step()
    handle.cancel()
    pipeline.step()
    pipeline.step()


@pytest.mark.parametrize(("sampling", "field"), [({"end_id": -1}, "end_id"), ({"min_tokens": 3}, "min_tokens")])
def test_what_would_go_on_behind_the_guide_is_refused(engine: Engine, sampling: dict[str, int], field: str) -> None:
    with pytest.raises(RequestError, match="does not go with guided decoding on the provider 'openvino'") as refusal:
        engine.add(request(1, "regex", "(yes|no)", **sampling))
    assert refusal.value.facts["field"] == field
    assert run(engine, request(1, "regex", "(yes|no)", end_id=1))[1][0] in ("yes", "no"), "the model's own"


def test_without_a_tokenizer_in_the_folder_a_guide_is_refused_and_nothing_else(tmp_path: Path) -> None:
    folder = Path(shutil.copytree(DEMO_MODEL / "openvino/target", tmp_path / "model"))
    (folder / "openvino_tokenizer.xml").unlink()
    engine = create(folder)
    with pytest.raises(RequestError, match=r"needs openvino_tokenizer.xml in the model's folder"):
        engine.add(request(1, "regex", "(yes|no)"))
    assert run(engine, request(1))[1][0]
    engine.close()


def test_without_an_end_token_a_guide_is_refused(tmp_path: Path) -> None:
    folder = Path(shutil.copytree(DEMO_MODEL / "openvino/target", tmp_path / "model"))
    (folder / "generation_config.json").unlink()
    config = json.loads((folder / "config.json").read_text())
    (folder / "config.json").write_text(json.dumps(config | {"eos_token_id": None}))
    engine = create(folder)
    with pytest.raises(RequestError, match="needs a model with an end token"):
        engine.add(request(1, "regex", "(yes|no)"))
    engine.close()
