# SPDX-License-Identifier: Apache-2.0
"""The planner's answer: options, best first, and what is not possible."""

from dataclasses import dataclass, field

from build_engines.planner.question import Question
from build_engines.planner.roofline.candidates import Candidate, Rejected
from build_engines.planner.roofline.serving_limit import ServingNeed
from build_engines.planner.roofline.steady_state import Estimate


@dataclass(frozen=True, eq=False)
class Option:
    """A candidate with its predictions, over all of its replicas."""

    candidate: Candidate
    estimate: Estimate
    num_gpus: int  # GPUs of as many replicas as are needed
    engine_output_tokens_per_s: float  # what the engines make
    served_output_tokens_per_s: float  # what of it leaves serving hosts of the stated limit, a token in each response
    serving: ServingNeed  # what the server of one replica has to do
    estimator: str
    why_estimator: str  # the reason why estimators before it did not estimate; empty: it is the first
    uncertainty: float  # 9 of 10 within this factor either way
    unmeasured: tuple[str, ...]
    needs_16_bit_checkpoint: bool = False  # the checkpoint is quantized, in another format
    has_margin: bool = True  # at a rate: it keeps up even where it is slower by `uncertainty`
    missed: str | None = None  # the target that it misses
    usd_per_million_tokens: float | None = None  # of what the engines make
    usd_per_million_tokens_as_served: float | None = None
    why_not_first: str = ""
    curve: tuple[Estimate, ...] = field(default=(), repr=False)  # of one replica, from one client to a full batch

    @property
    def num_replicas(self) -> int:
        """Return the number of replicas that the option takes."""
        return self.num_gpus // self.candidate.layout.world_size

    @property
    def engine_tokens_per_s_per_gpu(self) -> float:
        """Return the tokens/s that each GPU makes."""
        return self.engine_output_tokens_per_s / self.num_gpus

    @property
    def served_tokens_per_s_per_gpu(self) -> float:
        """Return the tokens/s of each GPU that leave the serving hosts."""
        return self.served_output_tokens_per_s / self.num_gpus

    @property
    def weight_format(self) -> str:
        """Return the name of the format of the matrices."""
        return self.candidate.engine.formats.name


@dataclass(frozen=True)
class Plan:
    """The options, best first, and the rejected candidates."""

    question: Question
    options: tuple[Option, ...]
    rejected: tuple[Rejected, ...]
    why_estimator: str  # the first of the estimators is that
