"""Names of people, places and organisations, through a model that is already installed.

Patterns cannot find names. A spaCy pipeline or Presidio's analyzer on top of one can; neither is downloaded here, since
a package index also holds packages that only look like spaCy's models.
"""

from __future__ import annotations

from collections.abc import Iterable
from importlib.util import find_spec
from pathlib import Path
from typing import Any

from agent_forge.errors import MissingExtraError, UsageError
from agent_forge.pii.detector import NameFinder
from agent_forge.pii.match import Match

_TYPES = {
    "PERSON": "PERSON",
    "PER": "PERSON",
    "GPE": "ADDRESS",
    "LOC": "ADDRESS",
    "FAC": "ADDRESS",
    "LOCATION": "ADDRESS",
    "ADDRESS": "ADDRESS",
    "ORG": "ORG",
    "ORGANIZATION": "ORG",
}


def names_installed() -> bool:
    """Whether spaCy is installed; it also needs a model."""
    return find_spec("spacy") is not None


def load_names(model: str, *, presidio: bool = False) -> NameFinder:
    """A finder of PERSON, ADDRESS and ORG for `find_pii(names=…)`.

    `model` is the folder of a spaCy pipeline or the name of an installed one. With `presidio` its analyzer runs the
    pipeline and adds its scores. Raises MissingExtraError without spaCy and UsageError if the model is not installed.
    """
    if not names_installed() or (presidio and find_spec("presidio_analyzer") is None):
        raise MissingExtraError("finding names", "ner")
    pipeline = _pipeline(model)
    return _through_presidio(pipeline) if presidio else _through_spacy(pipeline)


def _pipeline(model: str) -> Any:
    import spacy  # type: ignore[import-untyped,import-not-found,unused-ignore]

    if not Path(model).is_dir() and not spacy.util.is_package(model):
        raise UsageError(
            f"there is no spaCy pipeline {model!r}",
            fix="Name the folder of one, or install one from spaCy's releases",
        )
    return spacy.load(model)


def _through_spacy(pipeline: Any) -> NameFinder:
    def find(text: str) -> Iterable[Match]:
        for entity in pipeline(text).ents:
            if entity.label_ in _TYPES:
                yield Match(_TYPES[entity.label_], entity.start_char, entity.end_char, entity.text)

    return find


def _through_presidio(pipeline: Any) -> NameFinder:
    from presidio_analyzer import AnalyzerEngine  # type: ignore[import-untyped,import-not-found,unused-ignore]
    from presidio_analyzer.nlp_engine import SpacyNlpEngine  # type: ignore[import-untyped,import-not-found,unused-ignore]

    class LoadedEngine(SpacyNlpEngine):  # type: ignore[misc]
        """The engine around a pipeline that is loaded already: Presidio must not fetch one by name."""

        def __init__(self) -> None:
            super().__init__()
            self.nlp = {"en": pipeline}

        def load(self) -> None:
            return None

    analyzer = AnalyzerEngine(nlp_engine=LoadedEngine(), supported_languages=["en"])

    def find(text: str) -> Iterable[Match]:
        for result in analyzer.analyze(text, language="en", entities=["PERSON", "LOCATION", "ORGANIZATION"]):
            yield Match(_TYPES[result.entity_type], result.start, result.end, text[result.start : result.end])

    return find
