"""What a model can do, every figure with its standard error and its chance level."""

from __future__ import annotations

from typing import TYPE_CHECKING

from agent_forge.lazy import attach

if TYPE_CHECKING:
    from agent_forge.forge.evaluation.choices import ChoiceQuestion, answer_questions, continuations, questions_of
    from agent_forge.forge.evaluation.scores import Retention, TaskScore, retention
    from agent_forge.forge.evaluation.sets import (
        FunctionRequest,
        GoldPlan,
        Problem,
        Program,
        read_choices,
        read_gold_plans,
        read_problems,
        read_programs,
        read_requests,
    )
    from agent_forge.forge.evaluation.settings import EvaluateSettings
    from agent_forge.forge.evaluation.suite import TASKS, EvaluationReport, evaluate_suite
    from agent_forge.forge.evaluation.text import (
        Comparison,
        Divergence,
        TextScore,
        divergence,
        measure_text,
        token_scores,
    )

__getattr__, __dir__, __all__ = attach(
    __name__,
    {
        "choices": "ChoiceQuestion answer_questions continuations questions_of",
        "scores": "Retention TaskScore retention",
        "sets": "FunctionRequest GoldPlan Problem Program read_choices read_gold_plans read_problems read_programs "
        "read_requests",
        "settings": "EvaluateSettings",
        "suite": "TASKS EvaluationReport evaluate_suite",
        "text": "Comparison Divergence TextScore divergence measure_text token_scores",
    },
)
