"""What a model can do, every figure with its standard error and its chance level."""

from __future__ import annotations

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
from agent_forge.forge.evaluation.suite import TASKS, evaluate_suite
from agent_forge.forge.evaluation.text import Comparison, Divergence, TextScore, divergence, measure_text, token_scores

__all__ = [
    "TASKS",
    "ChoiceQuestion",
    "Comparison",
    "Divergence",
    "FunctionRequest",
    "GoldPlan",
    "Problem",
    "Program",
    "Retention",
    "TaskScore",
    "TextScore",
    "answer_questions",
    "continuations",
    "divergence",
    "evaluate_suite",
    "measure_text",
    "questions_of",
    "read_choices",
    "read_gold_plans",
    "read_problems",
    "read_programs",
    "read_requests",
    "retention",
    "token_scores",
]
