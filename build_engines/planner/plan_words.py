# SPDX-License-Identifier: Apache-2.0
"""Words for what was asked, alike in the table and in the picture."""

from build_engines.planner.estimators.estimator import Load
from build_engines.planner.question import Question


def load_in_words(question: Question) -> str:
    """Return the load and the targets of a question in words."""
    match question.load:
        case Load(concurrency=float() | int() as clients):
            words = f"{clients:g} clients"
        case Load(requests_per_s=float() | int() as rate):
            words = f"{rate:.3g} requests/s"
        case Load(users=float() | int() as users):
            words = f"{users:g} users who think for {question.load.think_time_s:g} s"
        case _:
            words = "as much as each option takes"
    targets = question.targets
    words += f", TTFT <= {targets.ttft_ms:g} ms" if targets.ttft_ms is not None else ""
    return words + (f", TPOT <= {targets.tpot_ms:g} ms" if targets.tpot_ms is not None else "")
