# SPDX-License-Identifier: Apache-2.0
"""The picture of a plan: its fronts, its lines, and labels that cover nothing."""

from itertools import combinations

import pytest
from matplotlib.backends.backend_agg import FigureCanvasAgg
from matplotlib.figure import Figure

from build_engines.checkpoint.checkpoint_config import read_model_shape
from build_engines.checkpoint.gpus import gpu_named
from build_engines.checkpoint.known_models import known_models
from build_engines.checkpoint.quantized_checkpoint import Quantized
from build_engines.planner.estimators.estimator import Roofline
from build_engines.planner.option import Plan
from build_engines.planner.pareto import Front, Point, fronts, not_beaten
from build_engines.planner.plan_plot import drawn_lines
from build_engines.planner.plot_labels import Label, place_labels
from build_engines.planner.question import Question
from build_engines.planner.ranking import make_plan
from build_engines.planner.roofline.candidates import Machines
from build_engines.planner.roofline.steady_state import Estimate, Workload

pytestmark = pytest.mark.slow


def asked(quantized: Quantized | None = None) -> tuple[Plan, tuple[Front, ...]]:
    shape = read_model_shape(known_models()["llama-3.1-8b"].config)
    question = Question(shape, Machines(gpu_named("h100"), 2), Workload(1000, 300), quantized=quantized)
    made = make_plan(question, [Roofline()])
    return made, fronts(made, [Roofline()])


@pytest.fixture(scope="module")
def found() -> tuple[Plan, tuple[Front, ...]]:
    return asked()


def test_a_front_is_what_no_other_batch_of_any_layout_beats(found: tuple[Plan, tuple[Front, ...]]) -> None:
    made, of_formats = found
    assert [front.weight_format for front in of_formats] == list(
        dict.fromkeys(option.weight_format for option in made.options)
    )
    for front in of_formats:
        everything = [point for curve in front.curves for point in curve]
        for point in front.points:
            assert point.option.weight_format == front.weight_format
            assert not any(
                one.user_tokens_per_s > point.user_tokens_per_s and one.gpu_tokens_per_s > point.gpu_tokens_per_s
                for one in everything
            )
        speeds = [point.user_tokens_per_s for point in front.points]
        assert speeds == sorted(speeds)
        assert {point.option for point in front.points} == {curve[0].option for curve in front.curves}


def test_not_beaten_by_hand(found: tuple[Plan, tuple[Front, ...]]) -> None:
    option = found[0].options[0]  # on one GPU

    def point(user: float, gpu: float) -> Point:
        gpus = option.candidate.layout.world_size
        return Point(option, Estimate(1, 1000 / user, gpu * gpus, 1, None), None)

    best, slow, beaten, quick, twin = point(10, 100), point(5, 100), point(9, 50), point(50, 20), point(50, 20)
    assert not_beaten([twin, beaten, best, slow, quick]) in ([best, quick], [best, twin])


def test_formats_that_cannot_be_told_apart_are_one_line(found: tuple[Plan, tuple[Front, ...]]) -> None:
    lines = [{front.weight_format for front in line} for line in drawn_lines(*found)]
    assert {"fp8", "fp8_rowwise"} in lines
    assert {"smoothquant"} in lines, "a format that can be told apart has a line of its own"
    assert {"bf16"} in lines, "the checkpoint's own format is there to compare with"
    assert len(lines) <= 4


def test_the_format_of_a_quantized_checkpoint_is_always_drawn() -> None:
    made, of_formats = asked(Quantized("awq", 4, "int4_awq"))
    assert any(front.weight_format == "int4_awq" for line in drawn_lines(made, of_formats) for front in line)
    turned = tuple(sorted(of_formats, key=lambda front: front.weight_format == "int4_awq"))
    assert any(front.weight_format == "int4_awq" for line in drawn_lines(made, turned) for front in line)


def test_labels_cover_neither_each_other_nor_the_frame() -> None:
    figure = Figure(figsize=(4, 3))
    FigureCanvasAgg(figure)
    axes = figure.add_subplot()
    axes.set(xlim=(0, 10), ylim=(0, 10))
    labels = [Label((x / 2, y), f"tp{x} · {y * 100}", "black") for x in range(20) for y in range(10)]
    figure.canvas.draw()
    placed = place_labels(axes, labels)
    assert len(axes.texts) == len(placed)
    assert 10 < len(placed) < len(labels), "a crowd has no room for all"
    frame = axes.get_window_extent()
    assert not any(one.overlaps(other) for one, other in combinations(placed, 2))
    assert all(frame.x0 <= box.x0 and box.x1 <= frame.x1 and frame.y0 <= box.y0 for box in placed)
    alone = place_labels(figure.add_subplot(label="alone"), labels[:1])
    assert len(alone) == 1
