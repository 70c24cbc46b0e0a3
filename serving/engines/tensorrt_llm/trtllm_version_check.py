# SPDX-License-Identifier: Apache-2.0
"""The check of the installed TensorRT-LLM's version: refused, loaded with a warning, or known."""

import logging

from ensemble_configs.spec.engine.tensorrt_llm_specs import PyTorchEngineSpec, TensorRtEngineSpec
from ensemble_configs.spec.trtllm_facts import facts_of, is_newer_than_known, known_facts, leading_numbers
from trireme.base.errors import SpecError

_logger = logging.getLogger(__name__)


def check_version(spec: TensorRtEngineSpec | PyTorchEngineSpec, installed: str) -> None:
    """Refuse a version that nothing was read of and that is older, and warn of a newer one.

    A newer version is loaded: what it has is asked of its own classes. What it does with a request may differ.

    Raises:
        SpecError: the installed version is older than any that is known, or another than the deployment names.
    """
    wanted = spec.tensorrt_llm
    if wanted is not None and leading_numbers(wanted) != leading_numbers(installed):
        raise SpecError(
            f"engine.tensorrt_llm is {wanted}, and TensorRT-LLM {installed} is installed; install that version, or "
            "name this one and look at engine.extra_llm_args again",
            field="engine.tensorrt_llm",
            value=wanted,
            version=installed,
        )
    if facts_of(installed) is not None:
        return
    known = ", ".join(facts.version for facts in known_facts())
    if not is_newer_than_known(installed):
        raise SpecError(
            f"TensorRT-LLM {installed} is installed, and provider {spec.provider!r} is written for {known}; install "
            "tensorrt-llm==1.2.1, as in NVIDIA's container tritonserver:26.07-trtllm-python-py3",
            field="engine.provider",
            value=spec.provider,
            version=installed,
        )
    _logger.warning(
        "TensorRT-LLM %s is newer than what provider %r is written for (%s): arguments are checked by the installed "
        "package alone, and its behaviour is taken for that of %s",
        installed, spec.provider, known, known_facts()[-1].version,
    )  # fmt: skip
