"""How far should one update move a policy, and does a limit make the learning rate matter less?

    PYTHONPATH=src python benchmarks/update_kl.py             five seeds, about half an hour on one core
    PYTHONPATH=src python benchmarks/update_kl.py --quick     a check that it runs

The toy of sampling_temperature.py, sampled at temperature 0.5: from weights that get half of the greedy digits right,
reinforcement goes on at each rate, without a limit (`update_kl` 0) and with each of several. What is compared is the
gain of the greedy score on held-out prompts; the control makes as many supervised steps.
"""

from __future__ import annotations

import argparse

import torch
from sampling_temperature import gains, show

LIMITS = (0.0, 0.3, 0.1, 0.03, 0.01)
RATES = (1e-4, 4e-4, 1.6e-3)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--quick", action="store_true")
    parser.add_argument("--seeds", type=int, default=5)
    options = parser.parse_args()
    torch.set_num_threads(1)
    size = (2, 8, 0.0) if options.quick else (80, 1000, 0.5)
    ways = {
        f"rate {rate:g}, limit {limit:g}": {"temperature": 0.5, "learning_rate": rate, "update_kl": limit}
        for rate in RATES
        for limit in LIMITS
    }
    seeds = [gains(seed, *size, ways) for seed in range(1 if options.quick else options.seeds)]
    show(seeds)
    mean = {name: sum(scores[name] for scores in seeds) / len(seeds) for name in ways}
    free = max(mean[f"rate {rate:g}, limit 0"] for rate in RATES)
    best = max(mean, key=lambda name: mean[name])
    print(f"best: {best}, {mean[best] - free:+.3f} over the best rate without a limit")


if __name__ == "__main__":
    main()
