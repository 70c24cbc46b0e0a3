# SPDX-License-Identifier: Apache-2.0
"""The requests of a load and their moments: lengths, texts, traces, arrivals."""

import itertools
import random
import statistics
from pathlib import Path
from typing import Any

import pytest
from tokenizers import Tokenizer

from clients.exact_prompts import PromptMaker
from clients.load.arrivals import SHAPES, arrivals_s
from clients.load.load_options import Load
from clients.load.load_plan import Session, draw, sessions
from clients.load.prompts import ExactWriter, ProportionalWriter
from clients.load.trace_file import read_trace
from clients.load.workload_spec import WORKLOAD, Lengths, TraceWorkload, read_workload
from trireme.base.errors import RequestError, SpecError
from trireme.base.project_files import CODE_ROOT

TOKENIZER = CODE_ROOT / "examples/demo_model/target"
LENGTHS = {"mean": 30, "stddev": 10, "max": 60}


def plan(workload: dict[str, Any], count: int = 50, seed: int = 1) -> list[Session]:
    writer = ProportionalWriter(1.0, seed=seed)
    return list(itertools.islice(sessions(WORKLOAD.validate_python(workload), writer, seed=seed), count))


@pytest.mark.parametrize("distribution", ["normal", "lognormal", "uniform"])
def test_lengths_have_the_mean_and_the_spread_that_were_asked_for(distribution: Any) -> None:
    rng, lengths = random.Random(1), Lengths(mean=200, stddev=40, distribution=distribution)
    drawn = [draw(lengths, rng) for _ in range(20_000)]
    assert statistics.mean(drawn) == pytest.approx(200, rel=0.01)
    assert statistics.stdev(drawn) == pytest.approx(40, rel=0.03)


def test_lengths_stay_within_their_bounds() -> None:
    rng, lengths = random.Random(1), Lengths(mean=10, stddev=20, min=5, max=12)
    drawn = {draw(lengths, rng) for _ in range(500)}
    assert (min(drawn), max(drawn)) == (5, 12)
    assert draw(Lengths(mean=7), rng) == 7


def test_an_exact_writer_writes_exactly_so_many_tokens() -> None:
    writer, tokenizer = ExactWriter(TOKENIZER, seed=1), Tokenizer.from_file(str(TOKENIZER / "tokenizer.json"))
    texts = [writer.write(count) for count in (5, 64, 64, 300)]
    assert [len(tokenizer.encode(text).ids) for text in texts] == [5, 64, 64, 300]
    assert len(set(texts)) == 4


class TwoSpecial:
    """A token for each word, and one in front and behind."""

    def encode(self, text: str) -> list[str]:
        return ["<s>", *text.split(), "</s>"]


class Pairs:
    """A tokenizer with two tokens for each word."""

    def encode(self, text: str) -> str:
        return "ab" * len(text.split())


@pytest.mark.parametrize(
    ("tokenizer", "length", "least"), [(TwoSpecial(), 1, 3), (TwoSpecial(), 2, 3), (Pairs(), 5, 2)]
)
def test_a_length_that_no_words_have_is_refused(tokenizer: Any, length: int, least: int) -> None:
    with pytest.raises(SpecError, match=f"no prompt of {length} tokens .* the shortest has {least},") as caught:
        PromptMaker(tokenizer, input_tokens=length, seed=1).prompts(1)
    assert caught.value.facts["field"] == "isl"


def test_a_prompt_has_a_word_whatever_its_tokenizer_adds() -> None:
    [prompt] = PromptMaker(TwoSpecial(), input_tokens=3, seed=1).prompts(1)
    assert len(prompt.split()) == 1
    with pytest.raises(SpecError, match=r"no prompt of 1 tokens .* the shortest has 2,"):
        ExactWriter(TOKENIZER, seed=1).write(1)  # of <s> alone


def test_draws_that_are_too_short_for_a_word_are_raised_and_a_mean_that_is_refused(tmp_path: Path) -> None:
    def planned(isl: Any) -> list[Session]:
        workload = WORKLOAD.validate_python({"kind": "synthetic", "isl": isl, "osl": 4})
        return list(itertools.islice(sessions(workload, ExactWriter(TOKENIZER, seed=1), seed=1), 200))

    tokenizer = Tokenizer.from_file(str(TOKENIZER / "tokenizer.json"))
    wide: dict[str, Any] = {"mean": 5, "stddev": 5}
    lengths = [len(tokenizer.encode(session.turns[0].text).ids) for session in planned(wide)]
    rng = random.Random(1)
    drawn = []
    for _ in lengths:
        drawn.append(draw(Lengths(**wide), rng))
        draw(Lengths(mean=4), rng)  # of the answer
    assert drawn.count(1) > 10
    assert lengths == [max(2, length) for length in drawn]
    with pytest.raises(SpecError, match="no prompt of 1 tokens"):
        planned(1)
    row = next(sessions(trace(tmp_path, f"{HEADER}2023-11-16 18:15:46,1,4\n"), ExactWriter(TOKENIZER, seed=1), seed=1))
    assert len(tokenizer.encode(row.turns[0].text).ids) == 2


def test_without_a_tokenizer_folder_it_says_what_is_missing(tmp_path: Path) -> None:
    with pytest.raises(SpecError, match=r"tokenizer\.json"):
        ExactWriter(tmp_path, seed=1)
    (tmp_path / "tokenizer.json").write_text("{}")
    with pytest.raises(SpecError, match=r"is not a tokenizer\.json"):
        ExactWriter(tmp_path, seed=1)


def test_synthetic_prompts_come_once_and_answers_have_their_length() -> None:
    planned = plan({"kind": "synthetic", "isl": LENGTHS, "osl": LENGTHS})
    requests = [session.request(0, "") for session in planned]
    assert len({request.text_input for request in requests}) == 50
    assert all(request.min_tokens == request.max_tokens and request.end_id == -1 for request in requests)
    assert len({request.max_tokens for request in requests}) > 10


def test_shared_prefixes_are_few_and_long() -> None:
    workload = {
        "kind": "shared_prefix",
        "num_prefixes": 3,
        "prefix_tokens": 100,
        "isl": {"mean": 5},
        "osl": {"mean": 5},
    }
    planned = plan(workload)
    assert len({session.opening for session in planned}) == 3
    assert {len(session.opening.split()) for session in planned} == {100}
    assert len({session.turns[0].text for session in planned}) == 50


def test_classes_tenants_and_temperature_are_sent() -> None:
    planned = plan(
        {
            "kind": "fixed",
            "prompts": ["one", "two"],
            "priorities": {"premium": 1, "batch": 3},
            "tenants": ["a", "b", "c"],
            "temperature": 0.7,
        },
        200,
    )
    requests = [session.request(0, "") for session in planned]
    assert [request.text_input for request in requests[:3]] == ["one", "two", "one"]
    assert [request.tenant for request in requests[:4]] == ["a", "b", "c", "a"]
    assert {request.priority for request in requests} == {1, 3}
    assert sum(request.priority == 3 for request in requests) == pytest.approx(150, abs=25)
    assert (requests[0].temperature, requests[0].top_p, requests[0].min_tokens) == (0.7, 1.0, None)


HEADER = "TIMESTAMP,ContextTokens,GeneratedTokens\n"
AZURE_2023 = f"{HEADER}2023-11-16 18:15:46.6805900,374,44\n2023-11-16 18:15:50.9951690,396,109\n"
AZURE_2024 = (
    f"{HEADER}2024-05-10 00:00:00.009930+00:00,2162,5\n2024-05-10 00:00:02.017335+00:00,0,7\n"
    "2024-05-10 00:00:03+00:00,12,0\n"
)


def trace(tmp_path: Path, text: str, **fields: Any) -> TraceWorkload:
    (tmp_path / "trace").write_text(text)
    return TraceWorkload(**{"kind": "trace", "path": tmp_path / "trace", "format": "azure", **fields})


def test_azures_traces_of_both_years_are_read(tmp_path: Path) -> None:
    old = list(read_trace(trace(tmp_path, AZURE_2023, speedup=2.0)))
    assert [row.at_s for row in old] == pytest.approx([0.0, (50.9951690 - 46.6805900) / 2], abs=1e-6)
    assert [(row.input_tokens, row.output_tokens) for row in old] == [(374, 44), (396, 109)]
    new = list(read_trace(trace(tmp_path, AZURE_2024, max_input_tokens=1000)))
    assert [(row.input_tokens, row.output_tokens) for row in new] == [(1000, 5), (1, 7)], "nothing made: left out"


def test_our_own_traces_hold_prompts_and_tenants(tmp_path: Path) -> None:
    lines = (
        '{"at_s": 5, "input_tokens": 9, "output_tokens": 4}\n\n'
        '{"at_s": 3.5, "prompt": "hi", "output_tokens": 2, "tenant": "t", "priority": 1}\n'
    )
    workload = trace(tmp_path, lines, format="jsonl")
    first, second = sessions(workload, ProportionalWriter(1.0, seed=1), seed=1)
    assert (first.due_s, first.turns[0].text, first.tenant, first.priority) == (0.0, "hi", "t", 1)
    assert (second.due_s, second.turns[0].max_tokens, len(second.turns[0].text.split())) == (1.5, 4, 9)
    load = Load(url="here:1", workload=WORKLOAD.dump_python(workload, mode="json"), duration_s=1.0)
    load.check()
    assert [session.due_s for session in load.plan()] == [0.0]


@pytest.mark.parametrize(
    ("text", "kind", "said"),
    [
        ("TIMESTAMP,ContextTokens\n2023-11-16 18:15:46,3\n", "azure", "line 1: the header lacks GeneratedTokens"),
        ("TIMESTAMP,ContextTokens,GeneratedTokens\n2023-11-16 18:15:46,-3,4\n", "azure", "line 2.*-3 is no number"),
        ("TIMESTAMP,ContextTokens,GeneratedTokens\n2023-11-16 18:15:46,3,0\n", "azure", "no answered request"),
        ("TIMESTAMP,ContextTokens,GeneratedTokens\nnoon,3,4\n", "azure", "line 2"),
        ('{"at_s": 1}\n', "jsonl", "line 1.*output_tokens"),
        ('{"at_s": 1, "output_tokens": 4}\n', "jsonl", "needs prompt"),
        ("", "jsonl", "no request"),
        ('{"at_s": 1, "input_tokens": 3, "output_tokens": -8}\n', "jsonl", r"line 1.*>= 1.*output_tokens"),
        ('{"at_s": 1, "input_tokens": 3, "outptu": 5}\n', "jsonl", "line 1.*outptu|line 1.*output_tokens"),
        ('{"at_s": 1, "input_tokens": 3, "output_tokens": 1, "priority": 4}\n', "jsonl", r"line 1.*<= 3.*priority"),
    ],
)
def test_a_wrong_trace_is_told_by_its_line(tmp_path: Path, text: str, kind: str, said: str) -> None:
    with pytest.raises(SpecError, match=said):
        list(read_trace(trace(tmp_path, text, format=kind)))


def test_a_trace_that_begins_behind_its_end_is_told_how_long_it_is(tmp_path: Path) -> None:
    lines = '{"at_s": 1, "input_tokens": 3, "output_tokens": 4}\n{"at_s": 6, "input_tokens": 3, "output_tokens": 4}\n'
    workload = trace(tmp_path, lines, format="jsonl").model_copy(update={"start_s": 9.0})
    with pytest.raises(SpecError, match=r"start_s \(9\).*5 s after its first"):
        list(read_trace(workload))


@pytest.mark.parametrize(
    ("fields", "said"),
    [
        ({"num_users": 2, "arrivals": "gamma"}, "--arrivals changes nothing without --rate"),
        ({"rate_per_s": 2.0, "burstiness": 0.5}, "--burstiness changes nothing without --arrivals gamma"),
        ({"rate_per_s": 2.0, "period_s": 60.0}, "--period changes nothing without --arrivals diurnal"),
    ],
)
def test_an_option_without_effect_is_refused(fields: dict[str, Any], said: str) -> None:
    workload = {"kind": "fixed", "prompts": ["a"]}
    with pytest.raises(RequestError, match=said):
        Load(url="here:1", workload=workload, num_requests=3, **fields).check()


def test_a_plain_number_is_always_that_length() -> None:
    assert Lengths.model_validate(64) == Lengths(mean=64)
    assert {draw(Lengths.model_validate(64), random.Random(seed)) for seed in range(20)} == {64}


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("", "should be a mapping of .*kind, and what goes with these"),
        ("kind: synthetic\nisl: long\nosl: 3\n", "isl: should be a mapping of mean, stddev"),
        ("kind: synthetic\nisl: {mean: 64, max: 10}\nosl: 3\n", r"isl: mean \(64\) is beyond max \(10\)"),
        ("kind: synthetic\nisl: {mean: 64, min: 100}\nosl: 3\n", r"isl: mean \(64\) is beyond min \(100\)"),
        ("kind: synthetic\nisl: {mean: 1.0e+30}\nosl: 3\n", "isl.mean: input should be less than"),
        ("kind: synthetic\nisl: {mean: 3}\n", "osl"),
        ("kind: synthetic\nisl: {mean: 3, sdtdev: 1}\nosl: {mean: 3}\n", "did you mean stddev"),
        ("kind: synthetic\nisl: {mean: 3, min: 9, max: 8}\nosl: {mean: 3}\n", "min \\(9\\) is above max \\(8\\)"),
        ("kind: sythetic\n", "synthetic"),
        ("[", "not YAML"),
    ],
)
def test_a_wrong_workload_is_told_by_its_path(tmp_path: Path, text: str, said: str) -> None:
    (tmp_path / "w.yaml").write_text(text)
    with pytest.raises(SpecError, match=said):
        read_workload(tmp_path / "w.yaml")


def test_a_workloads_file_names_its_trace_from_where_it_is(tmp_path: Path) -> None:
    (tmp_path / "w.yaml").write_text("kind: trace\npath: trace.csv\nformat: azure\n")
    workload = read_workload(tmp_path / "w.yaml")
    assert isinstance(workload, TraceWorkload)
    assert workload.path == tmp_path / "trace.csv"


@pytest.mark.parametrize("shape", SHAPES)
def test_arrivals_have_the_rate_that_was_asked_for(shape: str) -> None:
    at = list(arrivals_s(random.Random(3), shape, 50.0, 200.0, burstiness=0.5, period_s=40.0))
    assert at == sorted(at)
    assert len(at) == pytest.approx(10_000, rel=0.05)


def variation(gaps: list[float]) -> float:
    return statistics.stdev(gaps) / statistics.mean(gaps)


@pytest.mark.parametrize(
    ("shape", "burstiness", "expected"),
    [("poisson", 1, 1.0), ("gamma", 0.25, 2.0), ("gamma", 4, 0.5), ("constant", 1, 0.0)],
)
def test_gaps_vary_as_their_distribution_does(shape: str, burstiness: float, expected: float) -> None:
    at = list(arrivals_s(random.Random(3), shape, 10.0, 3000.0, burstiness=burstiness))
    gaps = [late - early for early, late in itertools.pairwise(at)]
    assert variation(gaps) == pytest.approx(expected, abs=0.05)


def test_a_day_has_its_lowest_rate_at_its_beginning_and_its_highest_in_the_middle() -> None:
    at = list(arrivals_s(random.Random(5), "diurnal", 20.0, 1000.0, period_s=1000.0))
    tenths = [sum(low <= moment < low + 100 for moment in at) for low in range(0, 1000, 100)]
    assert max(tenths[0], tenths[-1]) < 0.35 * min(tenths[4], tenths[5])


def test_arrivals_of_an_unknown_shape_are_refused() -> None:
    with pytest.raises(RequestError, match="constant, poisson"):
        next(arrivals_s(random.Random(1), "sometimes", 1.0))
