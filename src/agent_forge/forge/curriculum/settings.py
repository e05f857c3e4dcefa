"""The settings of the curriculum phase, checked without torch."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any, ClassVar, Literal

from agent_forge.config import build, option
from agent_forge.errors import ConfigError
from agent_forge.forge.corpus import Source
from agent_forge.forge.training.settings import TrainSettings, optimizer_settings

Replay = Literal["dream", "text", "none"]


@dataclass(frozen=True)
class CurriculumSettings:
    """What is practised, when a level counts as mastered, how it is learnt, and how the result is judged."""

    families: tuple[str, ...] = option(("arithmetic",), help="Task families to practise, or FILE.py:NAME")
    sources: dict[str, Source] = option(
        {"stories": Source("stories")}, help="Earlier text: for replay, and to measure forgetting on"
    )
    continuations: bool = option(
        False, help="Practise continuations of the sources too, for models that solve no task yet"
    )
    held_out: float = option(0.05, help="Share of the documents held out", above=0, at_most=0.5)
    start: float = option(0.75, help="Success that the assessment looks for", above=0, at_most=1)
    assessed: int = option(64, help="Exercises per level that the assessment tries", at_least=2)
    target: float = option(1.0, help="Level to reach, where the result is judged", above=0, at_most=1)
    levels: int = option(10, help="Levels from the assessed one to the target", at_least=2)
    exercises: int = option(16, help="Exercises per round, shared by the families", at_least=1)
    attempts: int = option(8, help="Answers per exercise and round", at_least=2)
    rounds: int = option(10, help="Most rounds per level", at_least=1)
    mastery: float = option(
        0.8, help="Success at first attempts at new exercises that ends a level", above=0, at_most=1
    )
    recent: int = option(16, help="New exercises, the latest, that mastery is counted over", at_least=1)
    wall: float = option(0.5, help="Success below which a level that used up its rounds ends the course", at_most=1)
    hints: int = option(5, help="Most hints per exercise (0: none)", at_least=0)
    rows: int = option(32, help="Right answers to learn from per round", at_least=1)
    replay: Replay = option("dream", help="Against forgetting: dream (generated text, KL to the start), text, or none")
    replay_rows: int = option(8, help="Rows of replay per round", at_least=1)
    replay_weight: float = option(0.5, help="Weight of the replay beside the answers", at_least=0)
    compare_replay: bool = option(True, help="Measure the other two kinds of replay too, with one seed")
    self_modelling: float = option(
        0.0, help="Weight of an auxiliary loss: predict the middle block's output from the last one's", at_least=0
    )
    compare_self_modelling: bool = option(False, help="Train every seed's course without that loss too, to compare")
    length: int = option(128, help="Tokens per row of text", at_least=8)
    max_tokens: int = option(32, help="Tokens per answer", at_least=1)
    temperature: float = option(1.0, help="Temperature of the attempts", above=0)
    constrained: bool = option(True, help="Hold answers to the JSON Schema of their family")
    seeds: int = option(3, help="Repetitions; fewer than 3 cannot pass the gate", at_least=1)
    judged: int = option(200, help="Held-out exercises per family at the target level", at_least=2)
    most_judged: int = option(200, help="Most held-out documents to measure forgetting on", at_least=2)
    most_forgetting: float = option(0.02, help="Most nats per token that earlier text may get worse by", at_least=0)
    save_every: int = option(10, help="Rounds between checkpoints of the training", at_least=1)
    training: dict[str, Any] = option({})
    other_names: ClassVar[dict[str, str]] = {
        "num_levels": "it is `levels` here",
        "baseline_threshold": "it is `start` here",
        "edge_of_chaos": "it is `start` here: the success that the first level is chosen by",
        "questions_per_level": "exercises are drawn as they are needed: `rounds` times `exercises` at most",
        "max_epochs": "it is `rounds` here",
        "max_hints": "it is `hints` here",
        "consecutive_successes": "mastery is a share of new exercises: `mastery` and `recent`",
        "hard_wall": "it is `wall` here",
        "hard_wall_threshold": "it is `wall` here",
        "dream_enabled": "it is `replay: dream`",
        "dream_temperature": "dreams are sampled at temperature 1, from what the model knew",
        "self_modeling": "it is `self_modelling` here, the weight of its loss",
        "self_model_weight": "it is `self_modelling` here",
        "frontier_models": "exercises come from the task families, with their checkers: `families`",
        "eudaimonia": "prompts are baked in by the phase `baking`",
    }

    def __post_init__(self) -> None:
        if not self.sources:
            raise ConfigError("name at least one source of earlier text", where="sources")
        if not self.families and not self.continuations:
            raise ConfigError("there is nothing to practise", where="families", fix="Name families, or continuations")
        if self.wall > self.mastery:
            raise ConfigError(f"wall is {self.wall:g}, above mastery, which is {self.mastery:g}")
        if self.compare_self_modelling and not self.self_modelling:
            raise ConfigError("there is no self_modelling to compare with", fix="Set its weight, e.g. to 0.1")
        for name in ("steps", "batch_rows", "seed", "save_every"):
            if name in self.training:
                raise ConfigError(f"{name!r} is set by the course", where="training")
        self.schedule(1, 0)

    def schedule(self, rounds: int, seed: int) -> TrainSettings:
        """The settings of the training core: one step per round, at a constant rate, since no one knows the end."""
        usual: dict[str, Any] = {"optimizer": "curriculum", "warmup": 2, "decay": 0.0, "divergence": 100.0}
        asked = {**usual, "log_every": 1, "save_every": self.save_every, **self.training, "compile": False}
        settings: TrainSettings = build(TrainSettings, {**asked, "graph": False, "keep": 1}, "training")
        optimizer_settings(settings.optimizer, **settings.optimizer_changes)
        return replace(settings, steps=rounds, batch_rows=self.rows + self.replay_rows, seed=seed)
