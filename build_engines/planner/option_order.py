# SPDX-License-Identifier: Apache-2.0
"""The order of options, and the reason why one is not the first."""

from build_engines.planner.option import Option
from build_engines.planner.question import Question

# Loss of a KV cache's format, least first; its bits say nothing of fp8 beside int8.
_KV_LOSS = {"fp16": 0, "bf16": 0, "fp8": 1, "int8": 2, "nvfp4": 3}
_NEAR = 1.05  # half of the roofline's median error on models that its fit did not see
_LOSS_IN_WORDS = ("16 bits", "FP8", "INT8", "4 bits", "4 bits without calibration")


def loss_of(option: Option) -> tuple[int, int]:
    """Return how much the formats may cost in quality, by kind: weights first, then the KV cache.

    It is an order by judgement, not a measurement: 16 bits, FP8, INT8, 4 bits, and 4 bits that were rounded without
    looking at any activation. `trireme evaluate` measures.
    """
    linear = option.candidate.engine.formats.of_experts
    if not linear.is_quantized:
        weights = 0
    elif linear.bits >= 8:
        weights = 1 if linear.compute == "fp8" else 2
    else:
        weights = 4 if linear.name == "int4_weight_only" else 3
    return weights, _KV_LOSS[option.candidate.engine.kv_format]


def ordered(question: Question, options: list[Option]) -> list[Option]:
    """Return the options in order: the first is the one to deploy.

    - What misses a target comes last, whatever it costs.
    - What the checkpoint is comes before what needs another checkpoint: it can be deployed today, and was evaluated.
      Where only the others meet the targets, they come first all the same, and are marked.
    - Then the bill. At a rate, and for users, that is whole GPUs; else GPU time for a token that the engines make. The
      serving host is no part of it: a host with more cores is cheaper than a GPU, so it is shown beside.
    - Among options with the same bill, more throughput buys nothing. Who keeps up only if the prediction holds comes
      behind. Then quality decides: what a format loses is noticed late, and takes an evaluation to know. The time for a
      token, which is within the targets, is last. Without a load there are no true ties: what is within 5 % of the
      cheapest counts as one, for the predictions are no finer than that; behind these the bill alone decides.
    - An option that misses its targets is chosen for its speed, so there loss is last.
    """
    groups: dict[tuple[bool, bool], float] = {}
    for option in options:
        group, bill = _group(option), _bill(question, option)
        groups[group] = min(bill, groups.get(group, bill))

    def key(option: Option) -> tuple[object, ...]:
        bill, tpot_ms = _bill(question, option), option.estimate.tpot_ms
        is_near = bill <= groups[_group(option)] * _NEAR
        if option.missed is not None:
            return (*_group(option), False, bill, tpot_ms, *loss_of(option))
        if question.is_load_given:
            return (*_group(option), False, bill, not option.has_margin, *loss_of(option), tpot_ms)
        return (*_group(option), not is_near, *(loss_of(option) if is_near else ()), bill, tpot_ms)

    return sorted(options, key=key)


def _group(option: Option) -> tuple[bool, bool]:
    return option.missed is not None, option.needs_16_bit_checkpoint


def _bill(question: Question, option: Option) -> float:
    """Return what an option costs: GPUs where the load is given, else GPU time for a token."""
    return float(option.num_gpus) if question.is_load_given else 1 / option.engine_tokens_per_s_per_gpu


def order_key_as_served(option: Option) -> tuple[bool, float, float]:
    """Return a sort key by what leaves serving hosts of the stated limit: where these hosts are all that there is."""
    return option.missed is not None, -option.served_tokens_per_s_per_gpu, option.estimate.tpot_ms


def why_not_first(question: Question, option: Option, best: Option) -> str:
    """Return the reason why an option is behind the first."""
    if option.missed is not None and best.missed is None:
        return option.missed
    if question.is_load_given and option.num_gpus == best.num_gpus:
        reason = _at_the_same_bill(option, best)
    else:
        reason = _by_gpu_time(option, best)
    is_behind_for_it = option.needs_16_bit_checkpoint and not best.needs_16_bit_checkpoint
    return f"needs the checkpoint in 16 bits; {reason}" if is_behind_for_it else reason


def _at_the_same_bill(option: Option, best: Option) -> str:
    if best.has_margin and not option.has_margin:
        return f"as many GPUs; may not keep up, if slower by {option.uncertainty:.2f}"
    speed = f"{option.estimate.tpot_ms / best.estimate.tpot_ms:.2f}x the TPOT"
    loss = _more_loss(option, best)
    return f"as many GPUs; {loss}, {speed}" if loss and option.missed is None else f"as many GPUs; {speed}"


def _more_loss(option: Option, best: Option) -> str:
    """Return in words what an option loses more than the first, or nothing."""
    (mine, my_kv), (theirs, their_kv) = loss_of(option), loss_of(best)
    if mine > theirs:
        return f"{_LOSS_IN_WORDS[mine]} for {_LOSS_IN_WORDS[theirs]}"
    if mine == theirs and my_kv > their_kv:
        return f"KV {option.candidate.engine.kv_format} for {best.candidate.engine.kv_format}"
    return ""


def _by_gpu_time(option: Option, best: Option) -> str:
    ratio = best.engine_tokens_per_s_per_gpu / option.engine_tokens_per_s_per_gpu
    words = f"{ratio:.2f}x the GPU time a token"
    if ratio < 1:
        loss = _more_loss(option, best)
        return f"{words}: {loss}" if loss else words
    mine, theirs = option.estimate.step, best.estimate.step
    if mine is None or theirs is None:
        return words
    tokens = option.estimate.batch_size or 1.0, best.estimate.batch_size or 1.0
    parts = {}
    for name in ("compute_s", "bandwidth_s", "interconnect_s", "host_s"):
        per_token = getattr(mine, name) * option.candidate.layout.world_size / tokens[0]
        parts[name] = per_token - getattr(theirs, name) * best.candidate.layout.world_size / tokens[1]
    worst = max(parts, key=lambda name: parts[name]).removesuffix("_s")
    smaller = f", batch {tokens[0]:.0f} for {tokens[1]:.0f}" if tokens[0] < 0.8 * tokens[1] else ""
    return f"{words}: {worst}{smaller}"
