# SPDX-License-Identifier: Apache-2.0
"""An answer that has not begun: what was asked, the model that answers, and the readers of its chunks."""

import secrets

from clients.openai_api.answer_deltas import AnswerDeltas
from clients.openai_api.asked import Asked
from gateway.generation import Chunks, Generation
from gateway.served_models import ServedModel


class Answer:
    """An answer that has not begun yet.

    Attributes:
        id: without the prefix of its kind.
        asked: what was asked for.
        model: that answers.
        deltas: reads the chunks.
    """

    def __init__(self, asked: Asked, model: ServedModel, generation: Generation) -> None:
        self.id = secrets.token_hex(12)
        self.asked, self.model = asked, model
        self.deltas = AnswerDeltas(asked, [model.reader(asked) for _ in range(asked.num_choices)])
        self._generation = generation

    def chunks(self) -> Chunks:
        """Yield each chunk with the index of its request; closing the iterator cancels the requests on the server.

        Raises:
            ServingError: one of the requests failed; the others are cancelled.
        """
        return self._generation.chunks(self.asked, self.model)
