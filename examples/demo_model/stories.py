# SPDX-License-Identifier: Apache-2.0
"""Short and long English stories from a small grammar; their only use is text that runs on for a while."""

import random

from document import Document

ANIMALS = [
    "fox", "bear", "rabbit", "mouse", "cat", "dog", "frog", "duck", "horse", "pig", "hen", "wolf", "deer", "squirrel",
    "turtle", "lion", "goat",
]  # fmt: skip
GIRLS = ["Anna", "Lily", "Mia", "Emma", "Lucy", "Nora", "Rosa", "Zoe", "Ella", "Ruby"]
BOYS = ["Tom", "Ben", "Sam", "Max", "Leo", "Jack", "Finn", "Otto", "Hugo", "Noah"]
TRAITS = ["little", "kind", "brave", "curious", "shy", "clever", "happy", "small", "funny", "gentle"]
PLACES = (
    "in a green forest",
    "near a quiet river",
    "in a small village",
    "on a sunny farm",
    "at the foot of a tall mountain",
    "by the deep blue sea",
    "in a house with a red door",
)
WISHES = ("a red ball", "a shiny stone", "a warm hat", "a sweet cake", "a blue kite", "a golden key", "a new boat")
FINDS = ("under an old tree", "behind a big rock", "in the tall grass", "next to the bridge", "in a dark cave")
WEATHER = ("The sun was shining", "It was raining", "The wind was cold", "Snow was falling", "The sky was clear")
FOODS = ("warm soup", "bread and honey", "apples and nuts", "a big cake", "pancakes")
MORALS = (
    "It is good to help a friend.",
    "Being kind makes everyone happy.",
    "A true friend never leaves you alone.",
    "Even the smallest one can do great things.",
    "It is better to share than to have everything alone.",
)
NUM_PLOTS = 4
ENDINGS = (
    "They lived happily ever after.",
    "From that day on, they were best friends.",
    "And they all went home with a smile.",
)


def _episode(rng: random.Random, plot: int, hero: str, they: str, their: str) -> str:
    """Return one of `NUM_PLOTS` small adventures of three to four sentences in which `hero` meets somebody."""
    other, name = rng.choice(ANIMALS), rng.choice(GIRLS + BOYS)
    wish, find = rng.choice(WISHES), rng.choice(FINDS)
    they_cap = they.capitalize()
    return (
        f"On the way, {hero} met a {other} named {name}. The {other} was sad because it had lost {wish}. "
        f'"Do not cry," said {hero}. "I will help you." Together they looked everywhere, '
        f"and at last they found it {find}.",
        f"Then {hero} heard a small voice {find}. It was a {other} named {name}, and it could not get home. "
        f"{they_cap} took the {other} by the hand and showed it the way. "
        f'"Thank you," said {name}, and gave {hero} {wish}.',
        f"Soon {hero} came to a bridge, but the bridge was broken. A {other} named {name} was waiting there too. "
        f'"What shall we do?" asked {name}. {they_cap} had an idea. '
        "They put an old log over the water and walked across.",
        f"{they_cap} sat down {find} to eat {their} lunch. A hungry {other} named {name} came by. "
        f'"Would you like some {rng.choice(FOODS)}?" asked {hero}. They ate and laughed together until the evening.',
    )[plot]


def write_story(rng: random.Random, *, animal: str | None = None, num_episodes: int = 1) -> str:
    """Return a story that starts with `Once upon a time`; one episode is about 100 tokens, four are about 300."""
    girl = rng.random() < 0.5
    name = rng.choice(GIRLS if girl else BOYS)
    they, their = ("she", "her") if girl else ("he", "his")
    who = animal or rng.choice([*ANIMALS, "girl" if girl else "boy"])
    wish = rng.choice(WISHES)
    parts = [
        f"Once upon a time, there was a {rng.choice(TRAITS)} {who} named {name}.",
        f"{name} lived {rng.choice(PLACES)} and wanted to find {wish}.",
        f"One day, {they} went for a walk. {rng.choice(WEATHER)}.",
    ]
    plots = rng.sample(range(NUM_PLOTS), num_episodes)
    parts += [_episode(rng, plot, name, they, their) for plot in plots]
    if rng.random() < 0.6:
        parts.append(f"In the evening, {name} came home and had {rng.choice(FOODS)}.")
    parts += [rng.choice(MORALS), rng.choice(ENDINGS)]
    return " ".join(parts)


SHORT_PROMPTS = (
    "Tell me a story about a {animal}.",
    "Write a story about a {animal}.",
    "Please tell me a story about a {animal}.",
    "Can you tell a story about a {animal}?",
)
LONG_PROMPTS = ("Tell me a long story about a {animal}.", "Write a long story about a {animal}.")


def random_story(rng: random.Random) -> Document:
    """Return a story: half without a prompt, half asked for; a third long."""
    is_long = rng.random() < 0.35
    num_episodes = rng.randint(3, 4) if is_long else 1
    if rng.random() < 0.5:
        return Document("story", "en", "", write_story(rng, num_episodes=rng.choice((1, 1, 2, 4))))
    animal = rng.choice(ANIMALS)
    prompt = rng.choice(LONG_PROMPTS if is_long else SHORT_PROMPTS).format(animal=animal)
    if rng.random() < 0.15:
        return Document("story", "en", "Tell me a story.", " " + write_story(rng, num_episodes=num_episodes))
    return Document("story", "en", prompt, " " + write_story(rng, animal=animal, num_episodes=num_episodes))
