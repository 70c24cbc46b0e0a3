# SPDX-License-Identifier: Apache-2.0
"""The adapters of the fake's executor: when each is read and put into the cache, and which requests a failure hits.

Source: the files that `trtllm_adapters` names, and executor/worker.py (`worker_main`).
"""

import trtllm_ranks
from trtllm_adapters import Adapters, CacheFullError, OtherModelError
from trtllm_responses import Responder, Running
from trtllm_scheduler import Sequence
from trtllm_switches import Behaviour


class AdapterLoader(Responder):
    """The part of an executor that loads adapters."""

    adapters: Adapters
    death: Exception | None
    _running: dict[int, Running]

    def die(self, reason: str) -> None:
        raise NotImplementedError

    def _fail(self, running: Running, error: Exception) -> None:
        raise NotImplementedError

    def _has_adapter(self, running: Running) -> bool:
        """Read the adapter of a request in the worker, which a failure ends: this process, if it is the worker."""
        request = running.given["lora_request"]
        if request is None or not self.adapters.are_served:
            return True
        try:
            running.adapter, running.has_weights = self.adapters.enqueue(request), False
        except Exception as exc:
            if not self.has(Behaviour.FAILED_LOADS_ARE_NOT_OF_THE_REQUEST):
                self._fail(running, running.error(f"Failed to load LoRA adapter: {exc}"))
            elif trtllm_ranks.world_size_of(self.args) > 1:
                self.die(f"a worker died: {exc!r}")
            else:
                del self._running[running.number]
                raise
            return False
        return True

    def _begin_adapters(self, sequences: list[Sequence]) -> None:
        """Put adapters into the host cache: of active requests, or on PyTorch of those that are computed."""
        for sequence in list(sequences):
            running = self._running.get(sequence.number)
            if running is None or running.adapter is None or running.has_weights:
                continue
            try:
                weights = self.adapters.begin(running.adapter, running.number)
            except CacheFullError as exc:
                self._fail(running, running.error(str(exc)))
            except Exception as exc:
                is_of_the_request = self.backend == "tensorrt" or isinstance(exc, OtherModelError)
                if is_of_the_request and not self.has(Behaviour.ADAPTERS_OF_OTHER_MODELS_STOP_EVERYBODY):
                    self._fail(running, running.error(f"Encountered an error when fetching new request: {exc}"))
                    continue
                self.death = exc  # of the executor's loop; nobody is told
                return
            else:
                running.has_weights = True
                running.tokens = running.make_tokens(adapter=weights)
