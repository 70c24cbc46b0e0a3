# SPDX-License-Identifier: Apache-2.0
"""The forecast of `trireme plan` for the very engine that is measured, and its error."""

from build_engines.checkpoint.gpus import Gpu
from build_engines.checkpoint.model_shape import ModelShape
from build_engines.planner.estimators.estimator import Load, Roofline
from build_engines.planner.roofline.candidates import Machines, Wanted, candidates
from build_engines.planner.roofline.serving_limit import ServingLimit
from build_engines.planner.roofline.steady_state import Limits, Workload
from build_engines.prove.closed_loop import SteadyLoad
from build_engines.prove.proof import Figures


def predict(
    model: ModelShape, gpu: Gpu, weight_format: str, load: SteadyLoad, limits: Limits, *, serving: ServingLimit | None
) -> Figures | None:
    """Return the prediction for one GPU, with a KV cache in 16 bits.

    None: the plan finds that the model cannot run, or that nothing of the load fits.

    Args:
        model: the model that runs.
        gpu: the GPU that it runs on.
        weight_format: format of its matrices.
        load: the load on the engine.
        limits: limits of the engine as it was loaded.
        serving: limit of the serving path; None: no limit, for nothing is around the engine.
    """
    kv_format = "fp16" if model.dtype == "float16" else "bf16"
    wanted = Wanted((weight_format,), (kv_format,), (1,), (1,), limits.max_num_tokens, limits.max_batch_size)
    found, _ = candidates(model, Machines(gpu, 1), wanted)
    if not found:
        return None
    estimate = Roofline().estimate(found[0], Workload(load.isl, load.osl), Load(load.concurrency), limits)
    if estimate is None:
        return None
    most = estimate.output_tokens_per_s if serving is None else serving.tokens_per_s(estimate.tpot_ms)
    return Figures(estimate.ttft_ms, estimate.tpot_ms, min(estimate.output_tokens_per_s, most))


def ratio(predicted: Figures, measured: Figures) -> Figures:
    """Return predicted over measured for each figure; 0 where nothing was measured."""
    return Figures(
        *(
            round(getattr(predicted, name) / seen, 4) if (seen := getattr(measured, name)) else 0.0
            for name in Figures.__struct_fields__
        )
    )
