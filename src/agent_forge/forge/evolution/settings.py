"""The settings of an evolution: what is merged, on which data, and for how long."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import ClassVar, Literal, get_args

from agent_forge.config import option
from agent_forge.errors import ConfigError
from agent_forge.forge.corpus import Source, source_digests

Technique = Literal["linear", "slerp", "dare", "ties"]
TECHNIQUES: tuple[Technique, ...] = get_args(Technique)


@dataclass(frozen=True)
class FitnessWeights:
    """The weights of the fitness terms, each relative to the base model and between 0 and 2."""

    perplexity: float = option(0.4, help="Weight of perplexity in the fitness", at_least=0, flag="--perplexity-weight")
    accuracy: float = option(0.3, help="Weight of accuracy in the fitness", at_least=0, flag="--accuracy-weight")
    speed: float = option(0.2, help="Weight of speed in the fitness", at_least=0, flag="--speed-weight")
    memory: float = option(0.1, help="Weight of memory in the fitness", at_least=0, flag="--memory-weight")

    def __post_init__(self) -> None:
        if self.perplexity + self.accuracy <= 0:
            raise ConfigError("perplexity and accuracy cannot both have the weight 0", where="weights")


@dataclass(frozen=True)
class TaskSource:
    """Rows to evaluate on: JSONL with `text`, with `question` and `answer`, or also with `choices` (see the docs).

    A file, a folder, or a bundled name; `${VARIABLES}` are expanded. Without `held_out` the rows are split in two: one
    half for selection, the other for the gate.
    """

    path: str
    held_out: str | None = option(None, help="Rows for the gate, if they come from elsewhere")
    share: float | None = option(
        None, help="Share of these rows that training held out, if not the common one", above=0, at_most=1
    )
    most: int = option(400, help="Row limit for selection, and again for the gate", at_least=2)


@dataclass(frozen=True)
class Search:
    """How the search proceeds. The defaults are the specification's."""

    strategy: Literal["ga", "random"] = option("ga", help="Genetic algorithm, or recipes drawn at random (the control)")
    techniques: tuple[Technique, ...] = option(TECHNIQUES, help="Merge methods that recipes may use")
    population: int = option(8, help="Recipes per generation", at_least=2)
    elites: int = option(2, help="Recipes that survive unchanged", at_least=1)
    mutation: float = option(0.1, help="Probability that a gene mutates", above=0, at_most=1)
    crossover: float = option(0.7, help="Probability that a child has two parents", at_least=0, at_most=1)
    diversity: float = option(0.3, help="Weight of novelty in the choice of parents", at_least=0, at_most=1)
    generations: int = option(50, help="Limit on the number of generations", at_least=1)
    evaluations: int | None = option(None, help="Limit on the number of recipes", at_least=1)
    converged: float = option(
        0.001, help="Stop when the best fitness improves by less than this within `patience` generations", at_least=0
    )
    patience: int = option(5, help="Generations over which that counts", at_least=1)
    workers: int | str = option(
        0, help="Processes that evaluate in parallel (0: this process only), or ray://local, ray://host:port"
    )

    def __post_init__(self) -> None:
        if not self.techniques:
            raise ConfigError("name at least one technique", where="search.techniques")
        if isinstance(self.workers, int) and self.workers < 0:
            raise ConfigError(f"workers must be at least 0, got {self.workers}", where="search")
        if self.elites >= self.population:
            fault = f"elites {self.elites} must be fewer than the population of {self.population}"
            raise ConfigError(fault, where="search")


@dataclass(frozen=True)
class Evolve:
    """An evolution. `parents` and `base` are Hugging Face folders; in a pipeline they are the phase's inputs."""

    data: dict[str, TaskSource]
    parents: tuple[str, ...] = option((), help="Models to merge, at least two")
    base: str | None = option(None, help="The model that the parents were tuned from (default: the first parent)")
    project: bool = option(
        False,
        help="Read a parent with a changed configuration as the base's architecture, without its additions",
        flag="--project-parents",
    )
    held_out: float | None = option(
        None, help="Share that the training phases held out; only those rows are used", above=0, at_most=0.5
    )
    seed: int = option(0, help="Random seed", at_least=0)
    length: int = option(512, help="Tokens per row; longer documents are read in pieces", at_least=8)
    most_tokens: int = option(4096, help="Token limit per document", at_least=8)
    dtype: Literal["float32", "bfloat16", "float16"] = option("float32", help="Type of the champion's weights")
    worst_loss: float = option(0.05, help="Largest loss on a single task, as a share", at_least=0, at_most=1)
    weights: FitnessWeights = option(FitnessWeights())
    search: Search = option(Search())
    other_names: ClassVar[dict[str, str]] = {"techniques": "it is `search.techniques` here"}

    def __post_init__(self) -> None:
        if not self.data:
            raise ConfigError("name at least one task", where="data")


def task_digests(data: Mapping[str, TaskSource]) -> dict[str, str]:
    """The digests of the files of every task."""
    sources = {name: Source(task.path) for name, task in data.items()}
    gates = {f"{name}, held out": Source(task.held_out) for name, task in data.items() if task.held_out is not None}
    return source_digests({**sources, **gates})
