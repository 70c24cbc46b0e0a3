# SPDX-License-Identifier: Apache-2.0
"""Rules for how the old engine speculated: `decoding_mode` and its settings, against what the engine was built for."""

from build_engines.migration.compiled_engine import int_of
from build_engines.migration.context import Context, Rule
from build_engines.migration.import_report import Verdict, carried, implied, lost
from build_engines.migration.values import Value, integer, tree

_PREFIX = "tensorrt_llm.parameters."
_SAMPLING = {"top_k", "top_p", "top_k_top_p", "beam_search"}
_MODE_OF_BUILD = {"medusa": "medusa", "lookahead_decoding": "lookahead", "eagle": "eagle"}
LOOKAHEAD = {"lookahead_window_size": "window_size", "lookahead_ngram_size": "ngram_size"} | {
    "lookahead_verification_set_size": "verification_set_size"
}
_LOOKAHEAD_NEEDS = f"lookahead needs {', '.join(LOOKAHEAD)}; set the three as engine.speculation"


def method_of(context: Context) -> str:
    """Return `medusa`, `lookahead`, `eagle` or another word of `decoding_mode`.

    A setting that is not set takes what the engine was built for.
    """
    mode = context.get(f"{_PREFIX}decoding_mode")
    if mode.is_set:
        return mode.text.strip()
    return _MODE_OF_BUILD.get(context.engine.speculation, "") if context.engine else ""


def decoding_mode(_: Value, context: Context) -> Verdict:
    """Return the method, with what only the engine's config tells."""
    method = method_of(context)
    if method in _SAMPLING | {""}:
        return implied("each request is sampled as it asks")
    if method in {"medusa", "eagle"}:
        return _with_drafts(method, context)
    if method == "lookahead":
        is_whole = all(context.get(_PREFIX + key).read(integer) is not None for key in LOOKAHEAD)
        return carried("engine.speculation.method", method) if is_whole else lost(_LOOKAHEAD_NEEDS)
    if method == "redrafter":
        return lost("TensorRT-LLM's LLM has no ReDrafter for compiled engines; build the engine without, or with eagle")
    return lost(f"no method of that name; there are {', '.join(sorted(_SAMPLING))}, lookahead, medusa and eagle")


def _with_drafts(method: str, context: Context) -> Verdict:
    facts = _drafting_facts(method, context)
    if isinstance(facts, str):
        return lost(facts)
    verdict = carried("engine.speculation.method", method, "its sizes are those of the engine")
    verdict.fields.update({f"engine.speculation.{name}": number for name, number in facts.items()})
    return verdict


def _drafting_facts(method: str, context: Context) -> dict[str, int] | str:
    """Return what a method needs of the engine's config, or what is missing."""
    if context.engine is None:
        return (
            f"{method} needs figures of the engine's config.json, which is not here; name its folder with --engine-dir"
        )
    pretrained, build = context.engine.pretrained, context.engine.build
    length = int_of(build, "max_draft_len") or int_of(pretrained, "max_draft_len")
    heads = {"medusa": ("num_heads", "num_medusa_heads"), "eagle": ("num_layers", "num_eagle_layers")}[method]
    count = int_of(pretrained, heads[1])
    if not length or not count:
        return f"the engine's config.json has no max_draft_len or {heads[1]}, so it is not of {method}; build it anew"
    return {"max_draft_len": length, heads[0]: count}


def choices(method: str) -> Rule:
    """Return the rule of `medusa_choices` or `eagle_choices`."""

    def rule(value: Value, context: Context) -> Verdict:
        paths = value.read(tree)
        if paths is None:
            return implied("upstream's own tree")
        if method_of(context) != method or decoding_mode(Value(), context).where == "":
            return implied(f"only read for {method}, which the engine does not use here")
        return carried("engine.speculation.choices", paths)

    return rule


def lookahead_size(key: str) -> Rule:
    """Return the rule of a figure of lookahead."""

    def rule(value: Value, context: Context) -> Verdict:
        if method_of(context) != "lookahead":
            return implied("only read with decoding_mode lookahead")
        number = value.read(integer)
        if number is None or decoding_mode(Value(), context).where == "":
            return lost(_LOOKAHEAD_NEEDS)
        return carried(f"engine.speculation.{LOOKAHEAD[key]}", number)

    return rule


def fast_logits(value: Value, _: Context) -> Verdict:
    """Return the verdict on logits from draft to target without a copy."""
    if value.text.strip().lower() not in {"true", "1"}:
        return implied("off, as here")
    return lost("no drafts of a second engine here, so no logits between the two; leave it out")
