"""A genome as a recipe that `agent-forge merge` carries out: mergekit's form, in stages.

Stages that nothing uses are left out, so genomes that differ only in what has no effect are one recipe, and are
evaluated once.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from agent_forge.forge.evolution.genome import DELTA, INTERP, Genome, Space

Stage = dict[str, Any]
LEAST_NOISE = 0.001  # a smaller share of mutated weights is none
FLOOR = 1e-4  # the least weight of an average: weights that are all zero have none


def compile_recipe(
    genome: Genome, space: Space, *, base: str, layer_prefix: str, dtype: str, paths: Mapping[str, str] | None = None
) -> list[Stage]:
    """The stages of a genome, the last of them the output. Models go by the names of the space, or by `paths`."""
    writer = _Writer(genome, space, base, layer_prefix, paths or {})
    used = {donor for donor, _ in genome.path} | {genome.outside}
    stages: list[Stage] = []
    if INTERP in used:
        stages.extend(writer.interpolation())
    if DELTA in used:
        stages.append(writer.deltas())
    if not _is_whole(genome):
        stages.append(writer.selection())
    elif genome.outside in space.parents:
        stages.append({"merge_method": "passthrough", "models": [{"model": writer.path(genome.outside)}]})
    if genome.noise and genome.noise[0] >= LEAST_NOISE:
        stages.append(writer.noise(stages[-1].setdefault("name", "selected")))
    stages[-1].pop("name", None)
    for stage in stages[:-1]:
        stage["dtype"] = "float32"
    stages[-1]["dtype"] = dtype
    return stages


def _is_whole(genome: Genome) -> bool:
    """Whether every layer stands in its own place, unscaled, and comes from one donor: nothing is left to select."""
    in_order = all(step == (genome.outside, place) for place, step in enumerate(genome.path))
    return in_order and (genome.selection == "franken" or all(scale == 1 for scale in joint_scales(genome)))


def joint_scales(genome: Genome) -> list[float]:
    """The scale at each place: the gene's where the path leaves a model or the order of its layers, else 1."""
    scales, before = [], (genome.outside, -1)
    for (donor, layer), scale in zip(genome.path, genome.scale, strict=True):
        scales.append(1.0 if (donor, layer) == (before[0], before[1] + 1) else scale)
        before = (donor, layer)
    return scales


class _Writer:
    """Writes the stages of one genome."""

    def __init__(self, genome: Genome, space: Space, base: str, layer_prefix: str, paths: Mapping[str, str]) -> None:
        self.genome, self.space, self.base, self.prefix, self.paths = genome, space, base, layer_prefix, paths

    def path(self, name: str) -> str:
        return self.paths.get(name, name)

    def interpolation(self) -> list[Stage]:
        if self.genome.interpolation == "linear":
            models = [
                {"model": self.path(name), "parameters": {"weight": self.by_layer(self.shares(number))}}
                for number, name in enumerate(self.space.parents)
            ]
            return [{"name": INTERP, "merge_method": "linear", "models": models}]
        return self.pairwise()

    def pairwise(self) -> list[Stage]:
        """SLERP of the first two parents, of that with the third, and so on; t is the newcomer's share."""
        names, stages, so_far = self.space.parents, [], self.path(self.space.parents[0])
        for number in range(1, len(names)):
            shares = [self.shares(parent) for parent in range(number + 1)]
            t = [round(new / max(FLOOR, sum(old) + new), 6) for *old, new in zip(*shares, strict=True)]
            name = INTERP if number == len(names) - 1 else f"{INTERP}-{number}"
            stages.append(
                {
                    "name": name,
                    "merge_method": "slerp",
                    "base_model": so_far,
                    "models": [{"model": so_far}, {"model": self.path(names[number])}],
                    "parameters": {"t": self.by_layer(t)},
                }
            )
            so_far = name
        return stages

    def shares(self, parent: int) -> list[float]:
        """A parent's part of the average, group by group; the outside last."""
        parents = len(self.space.parents)
        rows = [self.genome.mix[at : at + parents] for at in range(0, len(self.genome.mix), parents)]
        return [round((row[parent] + FLOOR) / (sum(row) + parents * FLOOR), 6) for row in rows]

    def deltas(self) -> Stage:
        """DARE adds the task vectors up, each times its strength. TIES takes their mean, weighted by strength, where
        the signs agree, and scales it with the mean strength of the group."""
        ties = self.genome.deltas == "ties"
        rows = self.strengths()
        shared: dict[str, Any] = {"normalize": ties}
        if ties:
            shared["lambda"] = self.by_layer([round(sum(row) / len(row), 6) for row in rows])
        else:
            shared |= {"rescale_by": "probability", "seed": self.genome.seed}
        models = [
            {
                "model": self.path(name),
                "parameters": {
                    "weight": self.by_layer([max(FLOOR, row[number]) if ties else row[number] for row in rows]),
                    "density": self.genome.density[number],
                },
            }
            for number, name in enumerate(self.space.parents)
            if name != self.base  # its task vector is zero
        ]
        method = "ties" if ties else "dare_linear"
        base = self.path(self.base)
        return {"name": DELTA, "merge_method": method, "base_model": base, "models": models, "parameters": shared}

    def strengths(self) -> list[tuple[float, ...]]:
        """By group, then by parent."""
        parents, flat = len(self.space.parents), self.genome.strength
        return [flat[at : at + parents] for at in range(0, len(flat), parents)]

    def by_layer(self, values: Sequence[float]) -> Any:
        """One number for every group as mergekit writes it: a filter a layer, and the rest."""
        if len(set(values)) == 1:
            return float(values[0])
        rest = values[-1]
        filters = [
            {"filter": f"{self.prefix}.{layer}.", "value": float(value)}
            for value, group in zip(values, self.space.groups, strict=False)
            for layer in group
            if value != rest
        ]
        return [*filters, {"value": float(rest)}]

    def selection(self) -> Stage:
        if self.genome.selection == "franken":
            return {"merge_method": "passthrough", "slices": self.slices()}
        path = [
            {"model": self.path(donor), "layer": layer, "scale": scale}
            for (donor, layer), scale in zip(self.genome.path, joint_scales(self.genome), strict=True)
        ]
        return {"merge_method": "dfs", "base_model": self.path(self.genome.outside), "path": path}

    def noise(self, model: str) -> Stage:
        """The weight-space mutation, as a merge can say it: a random share of the weights, drawn by the seed, takes the
        values of a parent. (The specification's Gaussian noise could not be made again from a recipe.)"""
        parent = self.space.parents[self.genome.seed % len(self.space.parents)]
        mutated = {"model": self.path(parent), "parameters": {"weight": 1.0, "density": self.genome.noise[0]}}
        shared = {"normalize": False, "rescale": False, "seed": self.genome.seed}
        return {"merge_method": "dare_linear", "base_model": model, "models": [mutated], "parameters": shared}

    def slices(self) -> list[dict[str, Any]]:
        """Neighbouring layers of one donor as one slice."""
        slices: list[dict[str, Any]] = []
        for donor, layer in self.genome.path:
            last = slices[-1]["sources"][0] if slices else None
            if last and last["model"] == self.path(donor) and last["layer_range"][1] == layer:
                last["layer_range"][1] += 1
            else:
                slices.append({"sources": [{"model": self.path(donor), "layer_range": [layer, layer + 1]}]})
        return slices
