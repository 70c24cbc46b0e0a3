# SPDX-License-Identifier: Apache-2.0
"""A program inside `.tools/aisimulate` that asks NVIDIA's AISimulate on behalf of `aisimulate_process`, beside it.

A line of JSON comes in and a line of JSON goes out, until the input ends. Nothing of this project is installed there,
so this module imports nothing of it. `cli_estimate`, the function behind AISimulate's command line, lists all tables
again for each figure, which takes seconds; its parts, called here, take milliseconds and say the same. The lock holds
them at one version.
"""

import json
import logging
import os
import re
import sys
from functools import cache
from typing import Any

from aiconfigurator.sdk.backends.factory import get_backend
from aiconfigurator.sdk.config import RuntimeConfig
from aiconfigurator.sdk.config_builders import build_model_config
from aiconfigurator.sdk.inference_session import InferenceSession
from aiconfigurator.sdk.models import check_is_moe, get_model, resolve_context_fmha_by_data
from aiconfigurator.sdk.perf_database import get_database_view, get_latest_database_version

_BACKEND = "trtllm"


@cache
def database_of(system: str) -> Any:
    """Return AISimulate's measured tables of a GPU."""
    version = get_latest_database_version(system=system, backend=_BACKEND)
    database = None if version is None else get_database_view(system, _BACKEND, version)
    if database is None:
        raise ValueError(f"it has no tables of {_BACKEND} on {system}")
    return database


def load(question: dict[str, Any]) -> Any:
    """Return a model laid out on GPUs."""
    folder, system = question["model"], question["system"]
    is_moe = check_is_moe(folder)
    config = build_model_config(
        question["tp_size"],
        question["pp_size"],
        question["attention_dp_size"],
        question["moe_tp_size"] if is_moe else None,
        question["moe_ep_size"] if is_moe else None,
        question["linear"],
        question["kv_cache"],
        None,
        question["experts"],
        None,
    )
    resolve_context_fmha_by_data(config, folder, database_of(system), _BACKEND, is_context_role=True)
    model = get_model(folder, config, _BACKEND)
    return InferenceSession(model, database_of(system), get_backend(_BACKEND))


def figures(session: Any, point: dict[str, Any]) -> dict[str, float]:
    """Return the figures of a batch that is filled up in flight, or of one that starts and ends together."""
    runtime = RuntimeConfig(isl=point["isl"], osl=point["osl"], batch_size=point["batch_size"])
    if point["is_static"]:
        found = session.run_static(runtime, "static").get_result_dict()
    else:
        found = session.run_agg(runtime, ctx_tokens=point["prompt_tokens_per_step"]).get_result_dict()
    names = {"ttft_ms": "ttft", "tpot_ms": "tpot", "requests_per_s": "seq/s"}
    return {name: float(found[theirs]) for name, theirs in names.items()}


def answer(question: dict[str, Any]) -> dict[str, Any]:
    """Return the figures in the order that they were asked for, or why there are none."""
    try:
        session = load(question)
        points = [figures(session, point) for point in question["points"]]
    except KeyError as exc:  # how it says of some tables that it has none
        return {"error": f"it has nothing under {exc}"}
    except Exception as exc:  # the boundary of this process; its errors have no common root
        lines = str(exc).strip().splitlines() or [""]
        words = re.sub(r" at /[^\s;]+", "", lines[0])  # where its tables lie
        return {"error": f"{type(exc).__name__}: {words}"}
    return {"version": str(database_of(question["system"]).version), "points": points}


def main() -> None:
    """Answer questions until the input ends."""
    logging.disable(logging.CRITICAL)
    answers = os.fdopen(os.dup(1), "w", encoding="utf-8")
    os.dup2(2, 1)  # what it prints goes where errors go
    for line in sys.stdin:
        print(json.dumps(answer(json.loads(line))), file=answers, flush=True)


if __name__ == "__main__":
    main()
