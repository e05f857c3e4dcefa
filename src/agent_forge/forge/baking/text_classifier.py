"""A small text classifier: logistic regression on the TF-IDF of words and pairs of words."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import Any

import numpy as np
import torch

from agent_forge.forge.evaluation.logistic import fit_logistic

WORD = re.compile(r"\w+|[!?']")
RIDGE = 0.1


@dataclass(frozen=True)
class TextClassifier:
    """Whether a text is of a kind."""

    places: dict[str, int]  # of each known word or pair
    rarity: np.ndarray  # inverse document frequency
    weights: np.ndarray
    intercept: float

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
        features = torch.from_numpy(cls(places, rarity, np.zeros(0), 0.0).features(texts))
        # two labels share what one weight vector w would have: |w|^2 is twice the sum of both squares
        weight, bias = fit_logistic(features, list(map(int, labels)), RIDGE / len(texts), balanced=True)
        return cls(places, rarity, (weight[-1] - weight[0]).numpy(), float(bias[-1] - bias[0]))

    def features(self, texts: Sequence[str]) -> np.ndarray:
        """[texts, terms]: each row of unit length."""
        matrix = np.zeros((len(texts), len(self.places)))
        for row, text in enumerate(texts):
            for term, count in Counter(_terms(text)).items():
                if term in self.places:
                    matrix[row, self.places[term]] = count * self.rarity[self.places[term]]
        return matrix / np.maximum(np.linalg.norm(matrix, axis=1, keepdims=True), 1e-12)

    def probabilities(self, texts: Sequence[str]) -> Any:
        """[texts]: how likely each is of the kind."""
        return 1 / (1 + np.exp(-np.clip(self.features(texts) @ self.weights + self.intercept, -50, 50)))


def _terms(text: str) -> list[str]:
    words = WORD.findall(text.lower())
    return [*words, *(f"{a} {b}" for a, b in pairwise(words))]
