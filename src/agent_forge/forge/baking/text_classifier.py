"""A small text classifier: TF-IDF of words and pairs of words, logistic regression by Newton's method."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import Any

import numpy as np

WORD = re.compile(r"\w+|[!?']")
RIDGE = 0.1


@dataclass(frozen=True)
class TextClassifier:
    """Whether a text is of a kind. `weights` has the intercept last."""

    places: dict[str, int]  # of each known word or pair
    rarity: np.ndarray  # inverse document frequency
    weights: np.ndarray

    @classmethod
    def fit(cls, texts: Sequence[str], labels: Sequence[bool], most_terms: int = 2000) -> TextClassifier:
        """Learns from texts and whether each is of the kind; both kinds weigh the same.

        >>> texts = ["Arrr, matey", "Ahoy matey", "Good day", "Hello, sir"]
        >>> pirate = TextClassifier.fit(texts, [True, True, False, False])
        >>> (pirate.probabilities(["arrr!", "hello"]) > 0.5).tolist()
        [True, False]
        """
        seen = Counter(term for text in texts for term in set(_terms(text)))
        terms = sorted(seen, key=lambda term: (-seen[term], term))[:most_terms]
        rarity = np.log((1 + len(texts)) / (1 + np.array([seen[term] for term in terms]))) + 1
        places = {term: place for place, term in enumerate(terms)}
        blank = cls(places, rarity, np.zeros(len(terms) + 1))
        return cls(places, rarity, _logistic(blank.features(texts), np.array(labels, dtype=float)))

    def features(self, texts: Sequence[str]) -> np.ndarray:
        """[texts, terms + 1]: each row of unit length, then a 1."""
        matrix = np.zeros((len(texts), len(self.places) + 1))
        for row, text in enumerate(texts):
            for term, count in Counter(_terms(text)).items():
                if term in self.places:
                    matrix[row, self.places[term]] = count * self.rarity[self.places[term]]
        matrix /= np.maximum(np.linalg.norm(matrix, axis=1, keepdims=True), 1e-12)
        matrix[:, -1] = 1.0
        return matrix

    def probabilities(self, texts: Sequence[str]) -> Any:
        """[texts]: how likely each is of the kind."""
        return 1 / (1 + np.exp(-np.clip(self.features(texts) @ self.weights, -50, 50)))


def _terms(text: str) -> list[str]:
    words = WORD.findall(text.lower())
    return [*words, *(f"{a} {b}" for a, b in pairwise(words))]


def _logistic(x: np.ndarray, y: np.ndarray, rounds: int = 12) -> np.ndarray:
    """argmin of the class-balanced cross-entropy + RIDGE/2 |w|^2 (not the intercept). With more terms than texts the
    step is solved among the texts: w = X^T a (the representer theorem), so that a round costs texts^3."""
    share = y.mean()
    balance = np.where(y > 0, 0.5 / max(share, 1e-9), 0.5 / max(1 - share, 1e-9)) if 0 < share < 1 else np.ones(len(y))
    kernel = x[:, :-1] @ x[:, :-1].T / RIDGE + 100.0  # the intercept: a feature with a ridge of a hundredth
    a = np.zeros(len(y))
    for _ in range(rounds):
        p = 1 / (1 + np.exp(-np.clip(kernel @ a, -50, 50)))
        h = np.maximum(balance * p * (1 - p), 1e-6)
        # Newton: (K + H^-1) a = K a + H^-1 g, with g the negative slope of the loss on the scores
        a = np.linalg.solve(kernel + np.diag(1 / h), kernel @ a + balance * (y - p) / h)
    return np.concatenate([x[:, :-1].T @ a / RIDGE, [100.0 * a.sum()]])
