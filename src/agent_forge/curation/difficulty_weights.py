"""The fitted weights of the structural difficulty estimate, as examples/curation_fit_difficulty.py prints them."""

from agent_forge.curation.difficulties import Weights

WEIGHTS = Weights(
    scale={
        "steps": 0.8911,
        "tools": 0.3121,
        "depth": 0.3044,
        "constraints": 1.4244,
        "quantities": 2.2752,
        "prompt_words": 0.5323,
        "answer_words": 0.4931,
    },
    weight={
        "steps": 0.0275,
        "tools": 0.0162,
        "depth": 0.0158,
        "constraints": 0.0,
        "quantities": 0.0107,
        "prompt_words": 0.0161,
        "answer_words": 0.0116,
    },
    quantiles=(
        *(0.160, 0.180, 0.186, 0.192, 0.196, 0.203, 0.211, 0.219, 0.236, 0.323, 0.360),
        *(0.386, 0.411, 0.449, 0.482, 0.502, 0.514, 0.530, 0.643, 0.677, 0.842),
    ),
    fitted_on="426 rows of GSM8K, UltraTool, ARC-Easy and ARC-Challenge; pass rates of SmolLM2-135M-Instruct",
)
