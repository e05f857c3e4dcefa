"""The two cycles in turn: choose a prompt on measured score, bake it, go on with the other one, until no prompt adds
anything or the turns are used up; then the same lessons once more by hard labels, as the control."""

from __future__ import annotations

import json
import math
from collections.abc import Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np

from agent_forge.forge.baking.behaviours import Behaviour, answers, self_written
from agent_forge.forge.baking.prompt_baking import NO_PROMPT, BakeReport, BakingPrompt, HeldOutAnswers, bake, prompt_of
from agent_forge.forge.baking.settings import Baking
from agent_forge.forge.evaluation.text import Divergence, measure_text
from agent_forge.forge.progress import Tell, silent
from agent_forge.forge.training import HeldOut

LEAST_KL = 0.01  # nats per answer token: a prompt that moves the model less does nothing


@dataclass(frozen=True)
class Baseline:
    """A behaviour before anything is baked, on its held-out questions: without the prompt and with it."""

    behaviour: Behaviour
    plain: np.ndarray  # points, one per question
    prompted: np.ndarray
    yardstick: HeldOutAnswers
    divergence: Divergence

    @classmethod
    def of(cls, model: Any, tokenizer: Any, behaviour: Behaviour, config: Baking, seed: int) -> Baseline:
        judged, prompt = behaviour.judged, behaviour.prompt
        plain, prompted = (
            np.array(behaviour.score(judged, answers(model, tokenizer, judged, before, config)))
            for before in (NO_PROMPT, prompt)
        )
        texts = [question.text for question in judged]
        yardstick = HeldOutAnswers.of(model, tokenizer, prompt, texts, config.bake, seed)
        return cls(behaviour, plain, prompted, yardstick, yardstick.divergence(model))

    @property
    def gain(self) -> float:
        """What the prompt adds to the score."""
        return float((self.prompted - self.plain).mean())

    @property
    def moves(self) -> bool:
        """Whether the prompt moves the predictions, and the score upwards, both by two standard errors."""
        spread = (self.prompted - self.plain).std(ddof=1) / math.sqrt(len(self.plain))
        kl, error = self.divergence.kl, self.divergence.kl_stderr or 0.0
        return bool(kl > max(LEAST_KL, 2 * error) and self.gain > 2 * spread)

    def as_dict(self) -> dict[str, Any]:
        return {
            "kl": self.divergence.kl,
            "kl_stderr": self.divergence.kl_stderr,
            "plain": float(self.plain.mean()),
            "prompted": float(self.prompted.mean()),
            "moves": self.moves,
        }


@dataclass(frozen=True)
class BakedTurn:
    """One turn of a cycle: the prompt that scored best on the watched questions, the scores without and with it
    before, and the bakes; none where the prompt adds less than the plateau."""

    cycle: str
    prompt: BakingPrompt
    plain: float
    prompted: float
    bakes: tuple[BakeReport, ...] = ()

    @classmethod
    def read(cls, file: Path) -> BakedTurn:
        fields = json.loads(file.read_text(encoding="utf-8"))
        bakes = tuple(BakeReport.of(each) for each in fields["bakes"])
        return cls(**{**fields, "prompt": prompt_of(fields["prompt"]), "bakes": bakes})


def write_turn(turn: BakedTurn, file: Path) -> None:
    file.parent.mkdir(parents=True, exist_ok=True)
    part = file.with_suffix(".part")
    part.write_text(json.dumps(asdict(turn)), encoding="utf-8")
    part.replace(file)


@dataclass(frozen=True)
class Cycles:
    """What the turns of every seed and of the controls share."""

    tokenizer: Any
    baselines: Sequence[Baseline]  # those whose prompt moves the model
    config: Baking
    text: HeldOut  # unrelated

    def run(self, model: Any, folder: Path, seed: int, tell: Tell = silent) -> list[BakedTurn]:
        """Bakes into the model until no prompt adds anything. Finished turns are taken from `folder`."""
        turns: list[BakedTurn] = []
        plateaus = 0
        while plateaus < len(self.baselines) and sum(bool(turn.bakes) for turn in turns) < self.config.turns:
            behaviour = self.baselines[len(turns) % len(self.baselines)].behaviour
            place = folder / f"turn-{len(turns) + 1}-{behaviour.name}"
            file = place / "turn.json"
            if file.is_file():
                turn = BakedTurn.read(file)
            else:  # written before baking too: a run that goes on must not choose another prompt
                turn = self.choose(model, behaviour, seed + len(turns))
                write_turn(turn, file)
            if turn.prompted - turn.plain < self.config.plateau:
                plateaus += 1
            else:
                plateaus = 0
                turn = replace(turn, bakes=tuple(self.bake(model, turn, place, seed, tell)))
                write_turn(turn, file)
            turns.append(turn)
        return turns

    def choose(self, model: Any, behaviour: Behaviour, seed: int) -> BakedTurn:
        """The prompt with the highest score on the watched questions, of the given one and its variants."""
        own = self_written(model, self.tokenizer, behaviour, self.config, seed) if behaviour.name == "persona" else []
        scores = {
            prompt: float(np.mean(behaviour.score(behaviour.watched, self.answers(model, behaviour, prompt))))
            for prompt in (NO_PROMPT, behaviour.prompt, *behaviour.variants, *own)
        }
        plain = scores.pop(NO_PROMPT)
        best = max(scores, key=lambda prompt: scores[prompt])  # the given one where they are equal
        return BakedTurn(behaviour.name, best, plain, scores[best])

    def answers(self, model: Any, behaviour: Behaviour, prompt: BakingPrompt) -> list[str]:
        return answers(model, self.tokenizer, behaviour.watched, prompt, self.config)

    def bake(
        self, model: Any, turn: BakedTurn, place: Path, seed: int, tell: Tell, lessons: Path | None = None
    ) -> list[BakeReport]:
        """Bakes the turn's prompt or, with `lessons`, trains the control on the answers of another bake."""
        mine = next(each.behaviour for each in self.baselines if each.behaviour.name == turn.cycle)
        keep = [q.text for each in self.baselines if each.behaviour is not mine for q in each.behaviour.learnt]
        learnt, watched = ([question.text for question in part] for part in (mine.learnt, mine.watched))
        hard = 0.0 if lessons is None else 1.0
        return bake(
            model, self.tokenizer, turn.prompt, learnt, watched, self.config.bake, place, seed=seed, keep=keep,
            hard=hard, lessons=lessons, tell=lambda **fields: tell(**fields, cycle=turn.cycle),
        )  # fmt: skip

    def control(
        self, model: Any, turns: Sequence[BakedTurn], folder: Path, lessons: Path, seed: int, tell: Tell
    ) -> None:
        """As many steps on the same answers in the same order, by hard labels."""
        for number, turn in enumerate(turns, 1):
            if turn.bakes:
                name = f"turn-{number}-{turn.cycle}"
                self.bake(model, turn, folder / name, seed, tell, lessons / name)

    def judge(self, model: Any) -> dict[str, Any]:
        """Held-out figures without any prompt: score and divergence of each behaviour, and perplexity of the text."""
        figures: dict[str, Any] = {"perplexity": measure_text(model, self.text).perplexity}
        for baseline in self.baselines:
            behaviour = baseline.behaviour
            written = answers(model, self.tokenizer, behaviour.judged, NO_PROMPT, self.config)
            score = float(np.mean(behaviour.score(behaviour.judged, written)))
            figures[behaviour.name] = {"score": score, "kl": baseline.yardstick.divergence(model).kl}
        return figures
