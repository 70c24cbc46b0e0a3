# SPDX-License-Identifier: Apache-2.0
"""The engine that tells of its KV cache: each step's events, and the prompts that were computed, go to a link."""

from pathlib import Path

from ensemble_configs.spec.release_spec import ReleaseSpec
from serving.engines.seam.base import FIRST_WARM_UP_KEY, Engine, GenerationRequest, TokenChunk
from serving.engines.seam.wrapped_engine import WrappedEngine
from serving.kv_events.event_link import EventLink, StepNews
from serving.kv_events.messages import Source


def source_of(release: ReleaseSpec, folder: Path) -> Source:
    """Return how the engine of a release, in a version folder of its model, names itself."""
    settings = release.kv_events
    assert settings is not None
    return Source(
        engine=f"{folder.parent.name}/{folder.name}",
        model=settings.model_name or folder.parent.name,
        server=settings.server_name,
        endpoint=settings.endpoint,
        replay_endpoint=settings.replay_endpoint,
        num_kept_batches=settings.num_kept_batches,
        tells_tokens=settings.tells_tokens,
    )


class TellingEngine(WrappedEngine):
    """An engine with a link. Args: `link`: closed with the engine."""

    def __init__(self, engine: Engine, link: EventLink) -> None:
        super().__init__(engine)
        self._link = link
        self._prompts: dict[int, GenerationRequest] = {}  # that are not computed yet

    def add(self, request: GenerationRequest) -> None:
        """Queue a request."""
        super().add(request)
        if request.prefix is not None and request.key < FIRST_WARM_UP_KEY:
            self._prompts[request.key] = request

    def cancel(self, key: int) -> None:
        """Stop a request."""
        self._prompts.pop(key, None)
        super().cancel(key)

    def step(self) -> list[TokenChunk]:
        """Run one iteration, and hand on what it did to the KV cache."""
        chunks = super().step()
        prompts = []
        if self._prompts:
            for chunk in chunks:
                prompt = self._prompts.pop(chunk.key, None)
                if prompt is not None and chunk.error is None:
                    prompts.append(prompt)
        events = self.take_kv_events()
        if events or prompts:
            self._link.tell(StepNews(events, prompts))
        return chunks

    def close(self) -> None:
        """Close the engine, then the link: a publisher takes its end for that of what the engine held."""
        super().close()
        self._link.close()
