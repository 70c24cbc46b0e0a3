# SPDX-License-Identifier: Apache-2.0
"""Users with long contexts and tight targets: how many meet them, cold and with an earlier context in the cache."""

import math
from dataclasses import dataclass, replace

from build_engines.checkpoint.checkpoint_config import read_model_shape
from build_engines.checkpoint.gpus import gpu_named
from build_engines.checkpoint.known_models import config_of
from build_engines.planner.estimators.estimator import Load, Roofline
from build_engines.planner.option import Option
from build_engines.planner.question import Question, Targets
from build_engines.planner.ranking import make_plan
from build_engines.planner.roofline.candidates import Machines, Wanted
from build_engines.planner.roofline.steady_state import Workload


@dataclass(frozen=True)
class Crowd:
    """A crowd of users: what each asks, and what each is promised."""

    model: str
    users: int
    workload: Workload
    targets: Targets
    think_time_s: float


@dataclass(frozen=True)
class Seating:
    """The fit of a crowd on one kind of GPU."""

    best: Option  # one replica with as many users as the targets allow, or one
    fastest: Option  # of all layouts, the least time to the first token of a user who is alone
    gpus_at_once: int | None  # for all users at once; None: the targets are missed
    gpus_thinking: int | None  # for users who think between an answer and the next question


def seat(crowd: Crowd, *, gpu: str, gpus_per_replica: int, weight_format: str, kv_format: str) -> Seating:
    """Plan a crowd on one kind of GPU.

    Args:
        gpus_per_replica: at most.

    Raises:
        SpecError: nothing fits.
    """
    question = Question(
        read_model_shape(config_of(crowd.model), source=crowd.model),
        Machines(gpu_named(gpu), gpus_per_replica),
        crowd.workload,
        targets=crowd.targets,
        wanted=Wanted((weight_format,), (kv_format,)),
    )
    alone = _options(replace(question, load=Load(concurrency=1), targets=Targets()))
    fastest = min(alone, key=lambda one: one.estimate.ttft_ms)
    best = _options(question)[0]
    if best.missed is not None:
        return Seating(best, fastest, None, None)
    layout = best.candidate.layout
    at_once = math.ceil(crowd.users / int(best.estimate.batch_size)) * layout.world_size
    # The same layout again, as often as all at once would need it; the planner gives back what it can spare.
    thinking = replace(
        question,
        machines=Machines(question.machines.gpu, at_once),
        load=Load(users=crowd.users, think_time_s=crowd.think_time_s),
        wanted=replace(question.wanted, tp_sizes=(layout.tp_size,), pp_sizes=(layout.pp_size,)),
    )
    same = next(one for one in _options(thinking) if one.candidate.layout == layout)
    return Seating(best, fastest, at_once, same.num_gpus)


def _options(question: Question) -> tuple[Option, ...]:
    return make_plan(question, [Roofline()], num_curves=0).options
