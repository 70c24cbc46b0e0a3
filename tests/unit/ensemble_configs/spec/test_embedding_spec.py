# SPDX-License-Identifier: Apache-2.0
"""Embedding models of a deployment: what a file may say, and what is refused by name."""

from pathlib import Path
from typing import Any

import pytest
import yaml

from ensemble_configs.spec.deployment import DeploymentSpec, load_deployment
from trireme.base.errors import SpecError

EMBED: dict[str, Any] = {"name": "embed", "dir": "minilm", "pooling": "mean"}


def deployment(folder: Path, *models: dict[str, Any], **more: Any) -> DeploymentSpec:
    data = {
        "name": "mine",
        "tokenizer": {"dir": "tokenizer"},
        "engine": {"provider": "simulated"},
        "embedding_models": list(models),
        **more,
    }
    file = folder / "deployment.yaml"
    file.write_text(yaml.safe_dump(data))
    return load_deployment(file)


def test_a_folder_is_meant_from_the_deployment_s_own(tmp_path: Path) -> None:
    [model] = deployment(tmp_path, EMBED).embedding_models
    assert model.dir == tmp_path / "minilm"
    assert (model.max_tokens, model.is_normalized, model.is_truncatable) == (512, True, False)


@pytest.mark.parametrize(
    ("fields", "said"),
    [
        ({"pooling": "max"}, "embedding_models.0.pooling"),
        ({"pooling": None}, "embedding_models.0.pooling"),
        ({"provider": "tensorrt"}, "TensorRT-LLM's encoders are not served here; export the model to OpenVINO"),
        ({"provider": "pytorch"}, "embedding_models.0.provider"),
        ({"provider": "onnx"}, "embedding_models.0.provider"),
        ({"max_tokens": 0}, "embedding_models.0.max_tokens"),
        ({"max_tokens": 9000}, "max_batch_tokens (8192) < max_tokens (9000)"),
        ({"max_batch_size": 1025}, "embedding_models.0.max_batch_size"),
        ({"price": {"output": 1.0}}, "embedding_models.0.price"),
        ({"dimensions": 8}, "dimensions"),
        ({"name": "Embed"}, "embedding_models.0.name"),
        ({"name": "mine"}, "embedding_models: mine is the name of a language model, too"),
        ({"name": "ensemble"}, "embedding_models: two of Triton's would be called ensemble"),
    ],
)
def test_what_cannot_be_served_is_refused_by_name(tmp_path: Path, fields: dict[str, Any], said: str) -> None:
    with pytest.raises(SpecError) as refused:
        deployment(tmp_path, EMBED | fields)
    assert said in refused.value.message


def test_two_of_a_name_are_refused(tmp_path: Path) -> None:
    with pytest.raises(SpecError, match="two of Triton's would be called embed"):
        deployment(tmp_path, EMBED, EMBED)


def test_an_alias_may_name_one_and_a_tier_or_a_fallback_may_not(tmp_path: Path) -> None:
    aliases = {"text-embedding-3-small": "embed"}
    assert deployment(tmp_path, EMBED, gateway={"aliases": aliases}).gateway.aliases == aliases
    with pytest.raises(SpecError, match=r"gateway.aliases.embed is the name of a model"):
        deployment(tmp_path, EMBED, gateway={"aliases": {"embed": "mine"}})
    with pytest.raises(SpecError, match="large must name a model, got 'embed'; there are mine"):
        deployment(tmp_path, EMBED, gateway={"tiers": [{"name": "auto", "small": "mine", "large": "embed"}]})
    with pytest.raises(SpecError, match=r"gateway.fallbacks of 'mine': steps\[0\] must name a model, got 'embed'"):
        deployment(tmp_path, EMBED, gateway={"fallbacks": [{"model": "mine", "steps": [{"model": "embed"}]}]})
