# SPDX-License-Identifier: Apache-2.0
"""The settings of `preprocessing`, `postprocessing`, `ensemble` and `tensorrt_llm_bls`, and those of every model."""

from collections.abc import Mapping

from build_engines.migration.context import Context, Rule, always, carry, only
from build_engines.migration.import_report import Verdict, carried, implied, lost
from build_engines.migration.values import Value, absolute, boolean, integer

_PICTURES = "the models served here read text alone; serve a model that sees with another server"
_NO_PICTURES = "only read with a multimodal_model_path, which is not filled"
_ONE_PROCESS = "one process serves all requests at once, so there is nothing to count"


def _max_batch_size(_: Value, context: Context) -> Verdict:
    sizes = [value.read(integer) or 0 for name, value in context.settings.items() if name.endswith(".max_batch_size")]
    largest = max(sizes)
    why = "the largest of all models" if len(set(sizes)) > 1 else ""
    return carried("triton.triton_max_batch_size", largest, why) if largest else implied("the default, 256")


_ENGINES_POLICY = "tensorrt_llm.model_transaction_policy.decoupled"


def _decoupled(value: Value, _: Context) -> Verdict:
    is_decoupled = value.read(boolean)
    if is_decoupled is None:
        return lost("whether requests stream is not filled; they do now, so set decoupled: false if clients are unary")
    return implied("streams, the default") if is_decoupled else carried("decoupled", False, "one response a request")


def _decoupled_as_engine(value: Value, context: Context) -> Verdict:
    """Return the verdict on a model's own policy.

    A deployment has one `decoupled` for all models, as upstream's script.
    """
    of_engine = context.get(_ENGINES_POLICY)
    if value.read(boolean) == of_engine.read(boolean):
        return implied("as tensorrt_llm's, always")
    return lost(f"all models are as tensorrt_llm, which is {of_engine.text}; set decoupled to what clients need")


def _queue_size(value: Value, _: Context) -> Verdict:
    if not value.read(integer):
        return implied("no bound, as here")
    return lost("Triton's queue holds no request here; admission.queue.max_requests bounds what waits for the engine")


EVERY_MODEL: Mapping[str, Rule] = {
    "max_batch_size": _max_batch_size,
    "dynamic_batching.preferred_batch_size": always("requests join the running batch one by one"),
    "dynamic_batching.max_queue_delay_microseconds": always("nothing waits: a request joins at the engine's next step"),
    "dynamic_batching.default_queue_policy.max_queue_size": _queue_size,
    "instance_group.count": always(_ONE_PROCESS),
    "instance_group.kind": always("models run on the CPU; the engine's processes take the GPUs"),
    "backend": always("every model is a Python one"),
    "model_transaction_policy.decoupled": always("the ensemble and its steps follow tensorrt_llm's"),
}


def _tokenizer_dir(value: Value, context: Context) -> Verdict:
    if context.tokenizer_dir is not None:
        return carried("tokenizer.dir", str(context.tokenizer_dir.resolve()), "of --tokenizer-dir")
    if value.is_set:
        return carried("tokenizer.dir", absolute(value.text))
    return lost("the repository names no tokenizer; name its folder with --tokenizer-dir")


def _second_tokenizer(value: Value, context: Context) -> Verdict:
    first = context.get("preprocessing.parameters.tokenizer_dir")
    if not value.is_set or value.text == first.text:
        return implied("the tokenizer of preprocessing, always")
    if not first.is_set:
        return _tokenizer_dir(value, context)
    return lost(
        f"text is made with the tokenizer that also read the prompt ({first.text}); if the two differ, name the right "
        "one as tokenizer.dir"
    )


def _draft_model(value: Value, _: Context) -> Verdict:
    if not value.is_set:
        return implied("no draft model, as here")
    return lost(
        f"drafts of a second engine ({value.text}) came with each request, and TensorRT-LLM's LLM takes none; "
        "speculate within the engine (engine.speculation), or use provider pytorch with draft_target"
    )


_MULTIMODAL = only(None, _PICTURES)


def _with_pictures(value: Value, context: Context) -> Verdict:
    if not value.is_set:
        return implied(_NO_PICTURES)
    keys = ("multimodal_model_path", "visual_model_path")
    has_pictures = any(context.get(f"preprocessing.parameters.{key}").is_set for key in keys)
    return lost(_PICTURES) if has_pictures else implied(_NO_PICTURES)


PREPROCESSING: Mapping[str, Rule] = {
    "parameters.tokenizer_dir": _tokenizer_dir,
    "parameters.add_special_tokens": carry("tokenizer.add_special_tokens", boolean, default=True),
    "parameters.visual_model_path": _MULTIMODAL,  # until 0.18
    "parameters.multimodal_model_path": _MULTIMODAL,
    "parameters.gpt_model_path": _with_pictures,
    "parameters.max_num_images": _with_pictures,
    "parameters.hf_model_path": _with_pictures,
}
POSTPROCESSING: Mapping[str, Rule] = {
    "parameters.tokenizer_dir": _second_tokenizer,
    "parameters.skip_special_tokens": carry("tokenizer.skip_special_tokens", boolean, default=True),
}
STREAMING: Mapping[str, Rule] = {"model_transaction_policy.decoupled": _decoupled}
BLS: Mapping[str, Rule] = {
    "model_transaction_policy.decoupled": _decoupled_as_engine,
    "parameters.accumulate_tokens": carry("bls.accumulate_tokens", boolean, default=False),
    "parameters.tensorrt_llm_model_name": only(
        "tensorrt_llm", "the engine's model is called tensorrt_llm here; have clients ask that name"
    ),
    "parameters.tensorrt_llm_draft_model_name": _draft_model,
    "parameters.multimodal_encoders_name": _MULTIMODAL,
}
