"""When to stop reinforcement learning: a reward that collapses, a policy that runs away, a held-out score that falls.

A reward function is a guess at what is wanted, and a policy finds its holes. So the reward alone never says that a run
is going well: an evaluation that does not use it does.
"""

from __future__ import annotations

import math
from dataclasses import asdict, dataclass
from typing import Any

from torch import Tensor

from agent_forge.forge.training.settings import ReinforceSettings

SURE = 3.0  # standard errors that a difference must exceed


@dataclass(frozen=True)
class HeldOutScore:
    """The mean score on held-out questions, with its standard error. Higher is better."""

    mean: float
    stderr: float = 0.0
    n: int = 0

    @staticmethod
    def of(scores: Any) -> HeldOutScore:
        """From the score of each question.

        >>> HeldOutScore.of([0.0, 1.0])
        HeldOutScore(mean=0.5, stderr=0.5, n=2)
        """
        values = [float(score) for score in scores]
        n, mean = len(values), sum(values) / len(values)
        spread = sum((value - mean) ** 2 for value in values) / max(1, n - 1)
        return HeldOutScore(mean, math.sqrt(spread / n), n)


class PolicyWatch:
    """What a run has seen, and why it must stop (`stopped`), if it must."""

    def __init__(self, settings: ReinforceSettings) -> None:
        self.settings = settings
        self.stopped: str | None = None
        self.recent: list[tuple[float, float]] = []  # mean reward and squared standard error of the last iterations
        self.best_window: tuple[float, float] | None = None
        self.lowest = math.inf  # reward of any rollout
        self.first: HeldOutScore | None = None
        self.best: HeldOutScore | None = None
        self.last: HeldOutScore | None = None
        self.judged_at, self.without_gain = -1, 0
        self.reward_at_best: tuple[float, float] | None = None  # mean training reward then, and its squared error

    def iteration(self, rewards: Tensor, kl: float | None) -> bool:
        """Notes an iteration's rewards; returns whether its window is the best so far."""
        s = self.settings
        variance = float(rewards.var()) / len(rewards) if len(rewards) > 1 else 0.0
        self.recent = [*self.recent, (float(rewards.mean()), variance)][-s.window :]
        if self.reward_at_best is None:
            self.reward_at_best = self.recent[-1]  # nothing was sampled before the first evaluation
        self.lowest = min(self.lowest, float(rewards.min()))
        if kl is not None and not kl <= s.kl_limit:
            self.stopped = f"the KL from the reference is {kl:.3g} nats per token, above its limit of {s.kl_limit:g}"
        if len(self.recent) < s.window:
            return False
        now = self._window()
        if self.best_window is None or now[0] > self.best_window[0]:
            self.best_window = now
            return self.stopped is None
        drop, level = self.best_window[0] - now[0], self.best_window[0] - self.lowest
        if drop > s.collapse * level and drop > SURE * math.sqrt(now[1] + self.best_window[1]):
            self.stopped = f"the reward collapsed from {self.best_window[0]:.4g} to {now[0]:.4g}"
        return False

    def _window(self) -> tuple[float, float]:
        """The mean reward of the last iterations and its squared standard error."""
        n = len(self.recent)
        return sum(mean for mean, _ in self.recent) / n, sum(variance for _, variance in self.recent) / n**2

    def judge(self, score: HeldOutScore, iteration: int) -> bool:
        """Notes a held-out score; returns whether it is the best so far."""
        s, reward = self.settings, self._window() if self.recent else None
        self.last, self.judged_at = score, iteration
        self.first = self.first or score
        if self.best is None or score.mean > self.best.mean + s.least_gain:
            self.best, self.without_gain, self.reward_at_best = score, 0, reward
            return True
        self.without_gain += 1
        fall = self.best.mean - score.mean
        if fall > SURE * math.hypot(score.stderr, self.best.stderr):
            why, earlier = "and the training reward did not rise: lower the learning rate", self.reward_at_best
            if reward and earlier and reward[0] - earlier[0] > SURE * math.sqrt(reward[1] + earlier[1]):
                why = "while the training reward rose: look for a fault in the reward"
            self.stopped = f"the held-out score fell from {self.best.mean:.4g} to {score.mean:.4g} {why}"
        elif 0 < s.patience <= self.without_gain:
            self.stopped = f"the held-out score has not improved for {self.without_gain} evaluations"
        return False

    def notes(self) -> dict[str, Any]:
        """Everything, as JSON."""
        scores = {name: None if (s := getattr(self, name)) is None else asdict(s) for name in _SCORES}
        return {**{name: getattr(self, name) for name in _PLAIN}, **scores}

    @classmethod
    def from_notes(cls, settings: ReinforceSettings, notes: dict[str, Any]) -> PolicyWatch:
        watch = cls(settings)
        for name in _PLAIN:
            setattr(watch, name, notes[name])
        watch.recent = [(mean, variance) for mean, variance in notes["recent"]]
        for name in ("best_window", "reward_at_best"):  # JSON has lists
            setattr(watch, name, None if notes[name] is None else tuple(notes[name]))
        for name in _SCORES:
            setattr(watch, name, None if notes[name] is None else HeldOutScore(**notes[name]))
        return watch


_SCORES = ("first", "best", "last")
_PLAIN = ("stopped", "recent", "best_window", "lowest", "judged_at", "without_gain", "reward_at_best")
