"""The fitted weights of the structural difficulty estimate. Written by examples/curation_fit_difficulty.py."""

from agent_forge.curation.difficulties import Weights

WEIGHTS = Weights(
    scale={
        "steps": 1.0,
        "tools": 1.0,
        "depth": 1.0,
        "constraints": 1.0,
        "quantities": 1.0,
        "prompt_words": 1.0,
        "answer_words": 1.0,
    },
    weight={
        "steps": 0.1,
        "tools": 0.1,
        "depth": 0.1,
        "constraints": 0.1,
        "quantities": 0.1,
        "prompt_words": 0.1,
        "answer_words": 0.1,
    },
    quantiles=(0.0, 1.0, 2.0, 3.0),
    fitted_on="nothing yet",
)
