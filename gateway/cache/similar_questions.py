# SPDX-License-Identifier: Apache-2.0
"""The questions whose answers are kept, by their vectors: which of them is the most alike to another one.

Questions of different scopes are never compared.
"""

from collections import OrderedDict
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

Vector = NDArray[np.float32]
_FIRST_ROOM = 8


class Similar(NamedTuple):
    """A question that is alike: the name of its answer, and the cosine of the two vectors."""

    name: str
    similarity: float


class SimilarQuestions:
    """The questions of all scopes. Args: `max_questions` of them; that which nobody has met the longest goes first."""

    def __init__(self, *, max_questions: int) -> None:
        self._max_questions = max_questions
        self._scopes: dict[str, _Scope] = {}
        self._met: OrderedDict[tuple[str, str], None] = OrderedDict()

    def __len__(self) -> int:
        return len(self._met)

    def find(self, scope: str, vector: Vector, *, least_similarity: float) -> Similar | None:
        """Return the question of a scope that is the most alike; None: none is alike enough."""
        questions = self._scopes.get(scope)
        found = None if questions is None else questions.most_alike(_unit(vector))
        if found is None or found.similarity < least_similarity:
            return None
        self._met.move_to_end((scope, found.name))
        return found

    def add(self, scope: str, vector: Vector, name: str) -> None:
        """Remember a question by the name of its answer."""
        self.drop(scope, name)
        self._scopes.setdefault(scope, _Scope(len(vector))).add(_unit(vector), name)
        self._met[scope, name] = None
        while len(self._met) > self._max_questions:
            self.drop(*next(iter(self._met)))

    def drop(self, scope: str, name: str) -> None:
        """Forget a question, if it is known."""
        if (scope, name) not in self._met:
            return
        del self._met[scope, name]
        self._scopes[scope].drop(name)
        if not self._scopes[scope].names:
            del self._scopes[scope]


class _Scope:
    """The questions of one scope: rows of a matrix, which grows by doubling."""

    def __init__(self, width: int) -> None:
        self.names: list[str] = []
        self._rows: dict[str, int] = {}
        self._vectors = np.zeros((_FIRST_ROOM, width), np.float32)

    def most_alike(self, vector: Vector) -> Similar | None:
        if len(vector) != self._vectors.shape[1]:  # of another model, before a change of the deployment
            return None
        similarities = self._vectors[: len(self.names)] @ vector
        row = int(similarities.argmax())
        return Similar(self.names[row], float(similarities[row]))

    def add(self, vector: Vector, name: str) -> None:
        if len(self.names) == len(self._vectors):
            self._vectors = np.concatenate([self._vectors, np.zeros_like(self._vectors)])
        self._vectors[len(self.names)] = vector
        self._rows[name] = len(self.names)
        self.names.append(name)

    def drop(self, name: str) -> None:
        """Put the last row into the place of the one that goes."""
        row, last = self._rows.pop(name), self.names.pop()
        if last != name:
            self.names[row] = last
            self._rows[last] = row
            self._vectors[row] = self._vectors[len(self.names)]


def _unit(vector: Vector) -> Vector:
    return np.asarray(vector / max(float(np.linalg.norm(vector)), 1e-12), np.float32)
