"""The configuration of an evolution: what is bred from what, on which data, and for how long."""

from __future__ import annotations

import os
from dataclasses import dataclass
from typing import Literal

from agent_forge.config import option
from agent_forge.errors import ConfigError


@dataclass(frozen=True)
class Weights:
    """What counts how much. The specification's weights; each term is relative to the base model, from 0 to 2."""

    perplexity: float = option(0.4, at_least=0)
    accuracy: float = option(0.3, at_least=0)
    speed: float = option(0.2, at_least=0)
    memory: float = option(0.1, at_least=0)

    def __post_init__(self) -> None:
        if self.perplexity + self.accuracy <= 0:
            raise ConfigError("perplexity and accuracy cannot both count for nothing", where="weights")


@dataclass(frozen=True)
class TaskSource:
    """Rows to evaluate on: JSONL with `text`, with `question` and `answer`, or also with `choices` (see the docs).

    A file, a folder, or a bundled name; `${VARIABLES}` are filled in. Without `held_out` the rows are split in two, one
    part to select on and one for the gate.
    """

    path: str
    held_out: str | None = option(None, help="rows for the gate, if they come from elsewhere")
    share: float | None = option(
        None, help="the share of these rows that training held out, if not that of the others", above=0, at_most=1
    )
    most: int = option(400, help="at most so many rows for selection, and so many for the gate", at_least=2)


@dataclass(frozen=True)
class Search:
    """How the search goes. The defaults are the specification's."""

    strategy: Literal["ga", "random"] = "ga"
    population: int = option(8, at_least=4)
    elites: int = option(2, help="the best that live on as they are", at_least=1)
    mutation: float = option(0.1, help="probability that a gene changes", above=0, at_most=1)
    crossover: float = option(0.7, help="probability that a child has two parents", at_least=0, at_most=1)
    diversity: float = option(0.3, help="weight of being different when parents are chosen", at_least=0, at_most=1)
    generations: int = option(50, at_least=1)
    evaluations: int | None = option(None, help="at most so many recipes", at_least=1)
    converged: float = option(0.001, help="stop when the best fitness moved less than this …", at_least=0)
    patience: int = option(5, help="… over so many generations", at_least=1)
    reseed_below: float = option(0.2, help="diversity under which the two worst are replaced", at_least=0, at_most=1)
    elite_mutants: int = option(2, help="children of a generation that are mutants of its elites", at_least=0)
    loser_merges: int = option(1, help="children that are made of three that lost", at_least=0)
    cma: int = option(0, help="recipes that CMA-ES tries on the champion's numbers at the end", at_least=0)
    halving: bool = option(True, help="evaluate on a quarter, then half of the data; the worse half stops")
    groups: int = option(4, help="groups of layers with parameters of their own", at_least=1)
    weight_noise: bool = option(False, help="also mutate weights: a random few take the values of a parent")
    workers: int = option(0, help="processes that evaluate side by side; 0: this one alone", at_least=0)

    def __post_init__(self) -> None:
        children = self.population - self.elites
        if self.elite_mutants + self.loser_merges > children:
            raise ConfigError(
                f"elite_mutants {self.elite_mutants} and loser_merges {self.loser_merges} are more than the "
                f"{children} children of a generation",
                where="search",
            )

    @property
    def rungs(self) -> tuple[float, ...]:
        """The shares of the selection data on which a recipe is judged, one after the other."""
        return (0.25, 0.5, 1.0) if self.halving else (1.0,)


@dataclass(frozen=True)
class Evolve:
    """An evolution: `parents` and `base` are Hugging Face folders, `data` the tasks they are judged on."""

    parents: tuple[str, ...]
    data: dict[str, TaskSource]
    base: str | None = option(None, help="what the parents were branched from; without it, the first parent")
    project: bool = option(
        False, help="read a parent with a changed configuration as the base's architecture, without what it added"
    )
    held_out: float | None = option(
        None, help="use only rows that a training phase with this share held out", above=0, at_most=0.5
    )
    seed: int = option(0, at_least=0)
    length: int = option(512, help="tokens in a row; longer documents are read in pieces", at_least=8)
    most_tokens: int = option(4096, help="of one text, at most so many tokens are read", at_least=8)
    dtype: Literal["float32", "bfloat16", "float16"] = option("float32", help="the type of the champion's weights")
    worst_loss: float = option(0.05, help="what a champion may lose on one task, as a share", at_least=0, at_most=1)
    weights: Weights = option(Weights())
    search: Search = option(Search())

    def __post_init__(self) -> None:
        if len(self.parents) < 2:
            raise ConfigError("name at least two parents", where="parents")
        folders = [os.path.normpath(parent) for parent in self.parents]
        if twice := next((folder for folder in folders if folders.count(folder) > 1), None):
            raise ConfigError(f"{twice!r} is named twice", where="parents")
        if not self.data:
            raise ConfigError("name at least one task", where="data")
