"""How good was it? Rewards whose parts are executed and measured, with one weighting profile per agent.

from agent_forge.rewards import score

reward = score("finance", output, exercise.expected, {"prompt": exercise.prompt, "tokens": 180})
print(reward.total, reward.components, reward.why)
"""

from agent_forge.rewards.profiles import RewardProfile, RewardWeights, reward_profile, reward_profiles
from agent_forge.rewards.reward import Reward, score
from agent_forge.rewards.sources import EXERCISE, score_record, score_result, score_trace

__all__ = [
    "EXERCISE",
    "Reward",
    "RewardProfile",
    "RewardWeights",
    "reward_profile",
    "reward_profiles",
    "score",
    "score_record",
    "score_result",
    "score_trace",
]
