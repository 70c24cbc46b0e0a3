# SPDX-License-Identifier: Apache-2.0
"""Rounds in which every side is started alone, warmed up, measured with each number of users, and stopped."""

import random
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path

import msgspec
from tokenizers import Tokenizer

from benchmarks.peers.figures import Figures, figures
from benchmarks.peers.peer import Peer, Started
from clients.load.load_arguments import chosen_workload
from clients.load.load_options import Load
from trireme.base.errors import ServerError

# Of more and fewer tokens than words, with what tokenizers are known to split apart.
_TEXTS = (
    "the fox ran over a hill and saw one small red house near an old tree",
    "It's 3.14159, isn't it?  (two  spaces)\n\tand a tab",
    "Größe, déjà vu, 東京, emoji: 🚀",
    "def f(x):\n    return x ** 2\n",
    "AaBbCc 0123456789 !!!???...",
)
_WARMUP_REQUESTS = 2  # for each user
_WARMUP_S = 1.0  # where a load has a time
_MIN_REQUESTS = 8  # for each user

Tell = Callable[[str], None]


class Plan(msgspec.Struct, frozen=True, kw_only=True):
    """The questions that every side is asked.

    Attributes:
        seconds: in which requests of a load are begun, however many a side answers. None: they are counted.
    """

    users: tuple[int, ...]
    num_rounds: int
    num_requests: int  # of a load, or more where there are many users
    input_tokens: int
    output_tokens: int
    tokenizer_dir: str
    seed: int
    num_processes: int = 1  # of the client
    adds_special_tokens: bool = True  # the sides do, to a prompt
    seconds: float | None = None

    def load(self, num_users: int, number: int, *, is_warmup: bool = False) -> Load:
        """Return the load of round `number`: the same prompts for every side, and none that was there before."""
        requests = max(self.num_requests, _MIN_REQUESTS * num_users)
        if is_warmup:
            requests = _WARMUP_REQUESTS * num_users
        is_timed = self.seconds is not None
        return Load(
            url="",  # each side's own
            workload=chosen_workload(None, isl=self.input_tokens, osl=self.output_tokens),
            num_users=num_users,
            num_requests=None if is_timed else requests,
            duration_s=(_WARMUP_S if is_warmup else self.seconds) if is_timed else None,
            num_processes=1 if is_warmup else min(self.num_processes, num_users),
            seed=random.Random(f"{self.seed} {num_users} {number} {is_warmup}").getrandbits(32),
            tokenizer_dir=self.tokenizer_dir,
            timeout_s=300.0,
        )


class Side(msgspec.Struct, kw_only=True):
    """The results of one side so far."""

    name: str
    precision: str
    version: str = ""
    settings: str = ""
    rounds: dict[int, list[Figures]] = {}  # by the number of users


def measure(peers: Sequence[Peer], plan: Plan, *, tell: Tell) -> Iterator[Mapping[str, Side]]:
    """Measure every round, one after the other, and yield the results after each.

    The order turns around with every round.

    Raises:
        ServerError: a side did not start, failed, or does not count tokens as the others do.
    """
    sides = {peer.name: Side(name=peer.name, precision=peer.precision) for peer in peers}
    for number in range(plan.num_rounds):
        for peer in reversed(peers) if number % 2 else peers:
            tell(f"round {number + 1} of {plan.num_rounds}: {peer.name}")
            with peer.started() as started:
                side = sides[peer.name]
                side.version, side.settings = started.version, started.settings
                if number == 0:
                    check_counts(peer.name, started, plan)
                for num_users in plan.users:
                    side.rounds.setdefault(num_users, []).append(_one(started, plan, num_users, number))
        yield sides


def _one(started: Started, plan: Plan, num_users: int, number: int) -> Figures:
    started.put_on(plan.load(num_users, number, is_warmup=True))
    load = plan.load(num_users, number)
    return figures(started.put_on(load), load, output_tokens=plan.output_tokens)


def check_counts(name: str, started: Started, plan: Plan) -> None:
    """Refuse a side that would have other prompts, by its own count of a few texts and of one that is to be asked.

    Raises:
        ServerError: a count differs from the tokenizer's.
    """
    writer = plan.load(1, 0).writer()
    tokenizer = Tokenizer.from_file(str(Path(plan.tokenizer_dir) / "tokenizer.json"))
    for text in (*_TEXTS, writer.write(plan.input_tokens)):
        ours, theirs = len(tokenizer.encode(text, add_special_tokens=plan.adds_special_tokens).ids), started.count(text)
        if ours != theirs:
            raise ServerError(
                f"{name} counts {theirs} tokens in {text!r} where the model's tokenizer.json makes {ours}: it does not "
                "serve the same model, so nothing can be compared with it"
            )
