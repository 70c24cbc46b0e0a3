# SPDX-License-Identifier: Apache-2.0
"""A deployment with an engine that costs nothing, so that a measurement shows only what stands around an engine."""

from ensemble_configs.render.repository import DEFAULT_DEPLOYMENT
from ensemble_configs.spec.deployment import DeploymentSpec, load_deployment
from ensemble_configs.spec.engine.simulated_spec import SimulatedEngineSpec
from serving.text.tokenization import PromptTokenizer


def demo_tokenizer() -> PromptTokenizer:
    """Return the default deployment's tokenizer."""
    return PromptTokenizer.from_spec(load_deployment(DEFAULT_DEPLOYMENT).model.tokenizer)


def costless_deployment(name: str, **more: object) -> DeploymentSpec:
    """Return a deployment of 2 ms a step with the demo's tokenizer.

    Args:
        name: the deployment's name.
        more: other fields of it.
    """
    engine = SimulatedEngineSpec(
        provider="simulated", step_ms=2.0, prefill_us_per_token=0, decode_us_per_seq=0, num_kv_blocks=4096
    )
    tokenizer = load_deployment(DEFAULT_DEPLOYMENT).model.tokenizer
    return DeploymentSpec.of_one(name=name, tokenizer=tokenizer, engine=engine, **more)
