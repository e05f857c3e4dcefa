"""The settings of the experts phase, checked without torch. Groups and names are those of the seeds' phase 7 file."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from agent_forge.config import option
from agent_forge.errors import ConfigError
from agent_forge.forge.corpus import Source


@dataclass(frozen=True)
class Discovery:
    """The self-test that finds the domains."""

    families: tuple[str, ...] = option(
        (), help="Task families to test, or FILE.py:NAME (default: all; with sources, none)"
    )
    levels: tuple[float, ...] = option((0.0, 0.2, 0.5), help="Levels of difficulty to test")
    discovery_samples: int = option(100, help="Exercises per family and level", at_least=2)
    min_experts: int = option(3, help="Fewest domains to go on with", at_least=1)
    max_experts: int = option(10, help="Most domains; the ones nearest to 50 % success are taken", at_least=1)
    lowest: float = option(0.1, help="Least success of the base in a domain", at_least=0, at_most=1)
    highest: float = option(0.9, help="Greatest success of the base in a domain", at_least=0, at_most=1)

    def __post_init__(self) -> None:
        if self.min_experts > self.max_experts:
            raise ConfigError(f"min_experts is {self.min_experts}, and max_experts {self.max_experts}")
        if self.lowest >= self.highest:
            raise ConfigError(f"lowest is {self.lowest:g}, and highest {self.highest:g}")
        if not self.levels or not all(0 <= level <= 1 for level in self.levels):
            raise ConfigError("levels are one or more numbers from 0 to 1")


@dataclass(frozen=True)
class VectorTraining:
    """How a vector learns, and its control, an adapter of as many parameters."""

    targets: tuple[str, ...] = option((), help="Matrices to scale, e.g. gate_proj,up_proj,down_proj (default: all)")
    steps: int = option(60, help="Optimiser steps per expert", at_least=1)
    batch_size: int = option(64, help="Answers per step", at_least=2)
    copies: int = option(8, help="Answers per prompt, which are compared with each other", at_least=2)
    learning_rate: float = option(2e-3, help="Learning rate of the vectors", above=0)
    lora_learning_rate: float = option(1e-3, help="Learning rate of the control's adapter", above=0)
    kl_coefficient: float = option(0.1, help="Weight of the KL divergence from the base", at_least=0)
    gradient_clip: float = option(1.0, help="Largest gradient norm (0: no limit)", at_least=0)
    validate_every: int = option(20, help="Steps between validations, of which the best is kept (0: never)", at_least=0)
    validated: int = option(64, help="Exercises per validation; they are not the held-out ones", at_least=2)

    def __post_init__(self) -> None:
        if self.batch_size % self.copies:
            raise ConfigError(f"batch_size is {self.batch_size}, which is not a multiple of copies, {self.copies}")


@dataclass(frozen=True)
class DesignSearch:
    """NSGA-II over mixtures of experts and ways of decoding, with random search beside it."""

    population_size: int = option(12, help="Designs per generation", at_least=2)
    num_generations: int = option(0, help="Generations (0: no search)", at_least=0)
    mutation_rate: float | None = option(None, help="Chance that a parameter mutates (default: 1 / parameters)")
    crossover_rate: float = option(0.9, help="Chance that a design has two parents", at_least=0, at_most=1)
    most_weight: float = option(1.5, help="Largest weight of an expert in a mixture", above=0)
    temperatures: tuple[float, ...] = option((0.0, 0.5, 1.0), help="Temperatures to choose from (0: greedy)")
    thoughts: tuple[int, ...] = option((1, 2, 4, 8), help="Numbers of sampled answers that vote, to choose from")
    items: int = option(32, help="Exercises per domain that a design is measured on", at_least=1)


@dataclass(frozen=True)
class ExpertSettings:
    """Which domains, how they are trained, how they are chosen, and how the result is judged."""

    discovery: Discovery = option(Discovery())
    sources: dict[str, Source] = option(
        {}, help="Text whose continuations make domains too, for models that solve no task yet"
    )
    held_out: float = option(0.05, help="Share of its documents that no phase uses", above=0, at_most=0.5)
    svf: VectorTraining = option(VectorTraining())
    adas: DesignSearch = option(DesignSearch())
    max_tokens: int = option(48, help="Tokens per answer", at_least=1)
    temperature: float = option(1.0, help="Temperature of the sampled answers in training", above=0)
    constrained: bool = option(True, help="Hold answers to the JSON Schema of their family")
    seeds: int = option(3, help="Trainings per domain; fewer than 3 cannot pass the gate", at_least=1)
    judged: int = option(200, help="Held-out exercises per domain", at_least=2)
    labelled: int = option(16, help="Labelled exercises per domain for the choice of a mixture (CEM)", at_least=1)
    cem_generations: int = option(4, help="Generations of that choice (0: none)", at_least=0)
    cem_population: int = option(16, help="Mixtures per generation", at_least=4)
    output: Literal["experts", "folded"] = option(
        "experts", help="Experts beside the weights, or one mixture for all domains folded into them, for later phases"
    )
    domains_needed: int = option(2, help="Domains that must be better than the base and than the control", at_least=1)

    def __post_init__(self) -> None:
        if self.output == "folded" and not self.cem_generations:
            raise ConfigError("output is folded, and cem_generations is 0: nothing would choose the mixture")
