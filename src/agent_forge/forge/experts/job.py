"""The experts of a model, from the self-test to the verdict. Read it from `make_experts` down.

Everything that takes long is kept in the work folder as soon as it is measured, so that an interrupted phase goes on
where it stopped: the self-test, each vector, each adapter of the control, each list of judged answers, each design.
"""

from __future__ import annotations

import math
import time
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass, replace
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import torch

from agent_forge.forge.adapters import LoraSettings, adapted_layers, add_adapter, inner_matrices
from agent_forge.forge.experts.bank import ExpertBank, mix, read_expert, write_expert
from agent_forge.forge.experts.dispatch import DomainClassifier, ask_for_domain, prompt_states, search_mixture
from agent_forge.forge.experts.domains import Domain, choose_domains, discover
from agent_forge.forge.experts.search import Design, DesignFigures, SearchOutcome, search_designs
from agent_forge.forge.experts.settings import ExpertSettings
from agent_forge.forge.experts.svf import (
    add_scales,
    base_view,
    learnt_vectors,
    remove_scales,
    reset_vectors,
    set_learning,
)
from agent_forge.forge.gates import NO_GAIN, NOT_MEASURED, PASSED, GateResult, judge
from agent_forge.forge.practice.continuations import text_families
from agent_forge.forge.practice.measuring import kept, paired_error
from agent_forge.forge.practice.respondent import (
    APART,
    LABELLED,
    SEARCHED,
    TESTING,
    TRAINING,
    VALIDATION,
    Respondent,
)
from agent_forge.forge.progress import Tell, silent
from agent_forge.forge.training.reinforce import PromptItem, reinforce
from agent_forge.forge.training.settings import ReinforceSettings
from agent_forge.forge.training.watch import HeldOutScore
from agent_forge.tasks import Exercise

METRIC = "held-out success"
VECTORS, CONTROL = "vectors", "control"


@dataclass(frozen=True)
class DomainResult:
    """Right answers on held-out exercises: of the base, of the expert, and of an adapter with as many parameters."""

    domain: Domain
    base: np.ndarray  # [N]
    expert: np.ndarray  # [S, N]
    control: np.ndarray  # [S, N]

    def means(self) -> dict[str, float]:
        arms = {"base": self.base, "expert": self.expert, "control": self.control}
        return {name: float(rows.mean()) for name, rows in arms.items()}

    def gate(self) -> GateResult:
        """Passes if the expert is clearly better than the base, and than the control, over enough seeds."""
        before, after, rival = self.means().values()
        error = paired_error(self.expert - self.base)
        gate = judge(METRIC, before, after, error, lower_is_better=False)
        against = judge(METRIC, rival, after, paired_error(self.expert - self.control), lower_is_better=False)
        decision = gate.verdict if against.passed else against.verdict
        return replace(gate, control=rival, verdict=decision).of_seeds(len(self.expert))


@dataclass(frozen=True)
class ExpertsOutcome:
    """What the phase found. `experts` are the vectors of the first seed, by domain."""

    tested: list[Domain]
    results: list[DomainResult]
    gate: GateResult
    experts: dict[str, dict[str, torch.Tensor]]
    classifier: DomainClassifier | None
    figures: dict[str, Any]  # of sizes, dispatch and mixtures, as JSON
    search: SearchOutcome | None
    folded: dict[str, torch.Tensor] | None = None  # the vectors of one mixture for all domains, where it was judged


def make_experts(
    model: Any, tokenizer: Any, settings: ExpertSettings, seed: int, folder: Path, tell: Tell = silent
) -> ExpertsOutcome:
    """Finds the domains, trains a vector for each and the control, judges both, and measures ways of choosing."""
    respondent = Respondent(model, tokenizer, settings)
    text = text_families(settings.sources, settings.held_out)

    def self_test() -> list[dict[str, Any]]:
        return [asdict(domain) for domain in discover(respondent, settings.discovery, seed, tell, text)]

    tested = [Domain(**row) for row in kept(folder / "self-test.json", self_test)]
    domains = choose_domains(tested, settings.discovery)
    if len(domains) < settings.discovery.min_experts:
        return ExpertsOutcome(tested, [], GateResult(METRIC, None, None, None, NOT_MEASURED), {}, None, {}, None)
    room = Workshop(respondent, domains, seed, folder, tell)
    base = {domain.name: room.judge("base", domain) for domain in domains}
    banks = room.train_vectors()
    ours = {domain.name: np.stack([room.expert_answers(banks, s, domain) for s in banks]) for domain in domains}
    numbers = sum(z.numel() for z in next(iter(banks[0].values())).values())
    bank = ExpertBank(model, banks[0])
    classifier, choosing = room.dispatch(bank, base, ours)
    mixtures, folded = room.mixtures(bank), None
    if settings.output == "folded":
        ours, folded = room.blended(banks)
    found = None
    if settings.adas.num_generations:
        found = search_designs(len(domains), room.measure_with(bank), settings.adas, seed, folder / "search")
    remove_scales(model)
    control, size = room.train_control(numbers)
    results = [DomainResult(one, base[one.name], ours[one.name], control[one.name]) for one in domains]
    for one in results:
        tell(stage=one.domain.name, **one.means())
    figures = {"vector_numbers": numbers, "control_numbers": size, "dispatch": choosing, "mixtures": mixtures}
    gate = verdict(results, settings)
    return ExpertsOutcome(tested, results, gate, banks[0], classifier, figures, found, folded)


def verdict(results: Sequence[DomainResult], settings: ExpertSettings) -> GateResult:
    """The means over the domains; passed if enough domains passed."""
    gates = [result.gate() for result in results]
    before, after, rival = (
        float(np.mean([getattr(g, name) for g in gates])) for name in ("before", "after", "control")
    )
    error = math.sqrt(sum((gate.stderr or 0.0) ** 2 for gate in gates)) / len(gates)
    enough = sum(gate.passed for gate in gates) >= settings.domains_needed
    measured = all(gate.verdict != NOT_MEASURED for gate in gates)
    decision = NOT_MEASURED if not measured else PASSED if enough else NO_GAIN
    gate = GateResult(METRIC, before, after, error, decision, control=rival)
    return gate.of_seeds(min(len(result.expert) for result in results))


@dataclass(frozen=True)
class Workshop:
    """The model at work in its domains, with a folder for what is finished."""

    respondent: Respondent
    domains: list[Domain]
    seed: int
    folder: Path
    tell: Tell

    @property
    def settings(self) -> ExpertSettings:
        settings: ExpertSettings = self.respondent.settings
        return settings

    def held_out(self, domain: Domain) -> list[Exercise]:
        """The domain's held-out exercises, each once: easy levels have few, and a copy would not be a second sample."""
        drawn = domain.exercises(self.settings.judged, 0, held_out=True)
        return list({exercise.prompt: exercise for exercise in drawn}.values())

    def judge(self, name: str, domain: Domain) -> np.ndarray:
        """Which of the domain's held-out exercises the model, as it is now, answers right; kept under `name`."""
        exercises = self.held_out(domain)
        file = self.folder / "judged" / f"{self.domains.index(domain)}-{name}.json"
        return np.array(kept(file, lambda: self.respondent.right(exercises).tolist()))

    def train_vectors(self) -> dict[int, dict[str, dict[str, torch.Tensor]]]:
        """By seed and domain: the vectors. Each begins at the identity; none builds on another."""
        model, svf = self.respondent.model, self.settings.svf
        add_scales(model, svf.targets)
        banks: dict[int, dict[str, dict[str, torch.Tensor]]] = {}
        for number in range(self.settings.seeds):
            banks[number] = {}
            for place, domain in enumerate(self.domains):
                file = self.folder / "vectors" / f"{place}-{number}.safetensors"
                if not file.is_file():
                    set_learning(model, True)
                    reset_vectors(model)
                    self.learn(domain, number, svf.learning_rate, VECTORS)
                    part = file.with_suffix(".part")
                    write_expert(part, domain.name, learnt_vectors(model), "")
                    part.replace(file)
                    set_learning(model, False)
                banks[number][domain.name] = read_expert(file, "")[1]
        return banks

    def expert_answers(self, banks: dict[int, Any], number: int, domain: Domain) -> np.ndarray:
        """The judged answers of one seed's expert in its own domain."""
        bank = ExpertBank(self.respondent.model, banks[number])
        with bank.using(domain.name):
            return self.judge(f"expert-{number}", domain)

    def train_control(self, numbers: int) -> tuple[dict[str, np.ndarray], int]:
        """The same rewards and steps for an adapter of at least as many parameters: judged answers by domain, and its
        number of parameters."""
        model = self.respondent.model
        shape = equal_adapter(model, numbers)
        answers: dict[str, list[np.ndarray]] = {domain.name: [] for domain in self.domains}
        size = 0
        for number in range(self.settings.seeds):
            for domain in self.domains:
                torch.manual_seed(self.seed + number)
                add_adapter(model, shape)
                size = sum(p.numel() for p in model.parameters() if p.requires_grad)
                if not (self.folder / "judged" / f"{self.domains.index(domain)}-control-{number}.json").is_file():
                    self.learn(domain, number, self.settings.svf.lora_learning_rate, CONTROL)
                answers[domain.name].append(self.judge(f"control-{number}", domain))
                for name, layer in list(adapted_layers(model)):
                    model.set_submodule(name, layer.base)
        return {name: np.stack(rows) for name, rows in answers.items()}, size

    def learn(self, domain: Domain, number: int, learning_rate: float, kind: str) -> None:
        """Reinforcement learning of whatever learns in the model, on the domain's exercises."""
        svf, respondent = self.settings.svf, self.respondent
        settings = ReinforceSettings(
            iterations=svf.steps,
            prompts=svf.batch_size // svf.copies,
            copies=svf.copies,
            max_tokens=self.settings.max_tokens,
            temperature=self.settings.temperature,
            kl=svf.kl_coefficient,
            learning_rate=learning_rate,
            warmup=0,  # both as they were when experts were measured
            update_kl=0.0,
            clip=svf.gradient_clip,
            evaluate_every=svf.validate_every,
            save_every=max(1, svf.steps // 4),
            keep=1,
            seed=self.seed + number,
        )
        first = TRAINING + number * APART
        watched = domain.exercises(svf.validated, VALIDATION)

        def draw(step: int) -> list[PromptItem]:
            exercises = domain.exercises(settings.prompts, first + step * settings.prompts)
            return [respondent.question(exercise) for exercise in exercises]

        def note(record: dict[str, Any]) -> None:
            figures = {"reward": record["reward"]} if "reward" in record else {}
            self.tell(stage=f"{kind}: {domain.name}, seed {number}", done=record["step"], total=svf.steps, **figures)

        reinforce(
            respondent.model,
            draw,
            lambda exercise, text: exercise.check(text).score,
            settings,
            end=respondent.ends,
            tokenizer=respondent.tokenizer,
            constraint=respondent.walk,
            reference=base_view(respondent.model) if kind == VECTORS else None,  # of an adapter: the model without it
            folder=self.folder / "training" / f"{kind}-{self.domains.index(domain)}-{number}",
            evaluate=(lambda _: HeldOutScore.of(respondent.right(watched))) if svf.validate_every else None,
            on_record=note,
            progress=None,
        )

    # -------------------------------------------------------------------------------------------- choosing

    def dispatch(
        self, bank: ExpertBank, base: dict[str, np.ndarray], ours: dict[str, np.ndarray]
    ) -> tuple[DomainClassifier, dict[str, Any]]:
        """A classifier of prompts, and what it and asking the model give on held-out exercises: how often they name
        the domain, and the success of the experts that they choose."""
        respondent, names, count = self.respondent, bank.domains, self.settings.discovery.discovery_samples
        known = [one for domain in self.domains for one in domain.exercises(count, TESTING)]
        bank.switch(None)
        states = prompt_states(respondent.model, [respondent.question(one).prompt for one in known])
        classifier = DomainClassifier.fit(states, [names.index(one.family) for one in known])
        figures: dict[str, Any] = {}
        for way in ("prompt", "classifier"):
            compute = partial(self.chosen, way, classifier, bank, base, ours)
            figures[way] = kept(self.folder / "dispatch" / f"{way}.json", compute)
        return classifier, figures

    def chosen(
        self,
        way: str,
        classifier: DomainClassifier,
        bank: ExpertBank,
        base: dict[str, np.ndarray],
        ours: dict[str, np.ndarray],
    ) -> dict[str, Any]:
        """The figures of one way of choosing, by domain."""
        respondent, names, rows = self.respondent, bank.domains, {}
        for domain in self.domains:
            exercises = self.held_out(domain)
            bank.switch(None)
            if way == "prompt":
                picks = ask_for_domain(respondent.model, respondent.tokenizer, [one.prompt for one in exercises], names)
            else:
                states = prompt_states(respondent.model, [respondent.question(one).prompt for one in exercises])
                picks = [names[label] for label in classifier.pick(states)]
            right = np.where([pick is None for pick in picks], base[domain.name], ours[domain.name][0])
            for pick in {*picks} - {None, domain.name}:  # the other experts have not answered these yet
                places = [place for place, one in enumerate(picks) if one == pick]
                with bank.using(pick):
                    right[places] = respondent.right([exercises[place] for place in places])
            named = float(np.mean([pick == domain.name for pick in picks]))
            rows[domain.name] = {"named": named, "success": float(right.mean()), "n": len(picks)}
        return rows

    def mixtures(self, bank: ExpertBank) -> dict[str, Any]:
        """CEM by domain: weights found on a few labelled exercises, and their success on the held-out ones."""
        rows: dict[str, Any] = {}
        for domain in self.domains if self.settings.cem_generations else []:
            labelled = domain.exercises(self.settings.labelled, LABELLED)
            file = self.folder / "mixtures" / f"{self.domains.index(domain)}.json"
            weights = kept(file, partial(self.best_mixture, bank, labelled))
            bank.weigh(torch.tensor(weights) if any(weights) else None)
            right = self.judge("mixture", domain)
            rows[domain.name] = {"weights": weights, "success": float(right.mean()), "n": len(right)}
        bank.switch(None)
        return rows

    def blended(self, banks: dict[int, Any]) -> tuple[dict[str, np.ndarray], dict[str, torch.Tensor]]:
        """One mixture of each seed's experts for all domains: judged answers by domain [S, N], and the first's z."""
        labelled = [one for domain in self.domains for one in domain.exercises(self.settings.labelled, LABELLED)]
        answers: dict[str, list[np.ndarray]] = {domain.name: [] for domain in self.domains}
        folded: dict[str, torch.Tensor] = {}
        for number, experts in banks.items():
            bank = ExpertBank(self.respondent.model, experts)
            file = self.folder / "mixtures" / f"all-{number}.json"
            weights = torch.tensor(kept(file, partial(self.best_mixture, bank, labelled)))
            bank.weigh(weights if weights.any() else None)
            for domain in self.domains:
                answers[domain.name].append(self.judge(f"folded-{number}", domain))
            folded = folded or {name: mix(weights, [z[name] for z in experts.values()]) for name in bank.shifts}
        return {name: np.stack(rows) for name, rows in answers.items()}, folded

    def best_mixture(self, bank: ExpertBank, labelled: Sequence[Exercise]) -> list[float]:
        def fitness(mixtures: np.ndarray) -> np.ndarray:
            """The score; of equals, the mixture that is surer of what it got right."""
            values = []
            for weights in mixtures:
                bank.weigh(torch.from_numpy(weights) if weights.any() else None)
                texts, logs = self.respondent.sampled(labelled)
                scores = np.array([one.check(text).score for one, text in zip(labelled, texts, strict=True)])
                values.append(np.mean(scores + 1e-3 * scores * np.exp(logs)))
            return np.array(values)

        best, _ = search_mixture(
            fitness,
            len(bank),
            population=self.settings.cem_population,
            generations=self.settings.cem_generations,
            seed=self.seed,
        )
        return [float(weight) for weight in best]

    def measure_with(self, bank: ExpertBank) -> Callable[[Design], DesignFigures]:
        """Measures a design on exercises of every domain that nothing else uses."""
        exercises = [one for domain in self.domains for one in domain.exercises(self.settings.adas.items, SEARCHED)]
        return lambda design: measure_design(self.respondent, bank, design, exercises, self.seed)


def measure_design(
    respondent: Respondent, bank: ExpertBank, design: Design, exercises: Sequence[Exercise], seed: int
) -> DesignFigures:
    """Right answers by majority vote, seconds per exercise, and the bytes that one exercise takes beyond the
    weights: as allocated on a GPU, else as counted (key-value cache); with the bases that a mixture needs."""
    model = respondent.model
    cuda = next(model.parameters()).device.type == "cuda"
    bank.weigh(torch.tensor(design.weights) if any(design.weights) else None)
    if cuda:
        torch.cuda.synchronize()
        torch.cuda.reset_peak_memory_stats()
        before = torch.cuda.memory_allocated()
    start = time.perf_counter()
    texts, _ = respondent.sampled(exercises, design.thoughts, design.temperature, seed)
    seconds = time.perf_counter() - start
    groups = [texts[at : at + design.thoughts] for at in range(0, len(texts), design.thoughts)]
    votes = [Counter(group).most_common(1)[0][0] for group in groups]
    right = [one.check(vote).correct for one, vote in zip(exercises, votes, strict=True)]
    bases = sum(layer.bytes for layer, _ in bank.layers) if any(design.weights) else 0
    if cuda:
        growth = (torch.cuda.max_memory_allocated() - before) / len(exercises)
    else:
        longest = max(len(respondent.question(one).prompt) for one in exercises) + respondent.settings.max_tokens
        growth = cache_bytes(model) * longest * design.thoughts
    bank.switch(None)
    return DesignFigures(float(np.mean(right)), seconds / len(exercises), float(growth + bases))


def cache_bytes(model: Any) -> int:
    """Bytes of keys and values per token."""
    config = model.config.get_text_config()
    heads = getattr(config, "num_key_value_heads", None) or config.num_attention_heads
    width = getattr(config, "head_dim", None) or config.hidden_size // config.num_attention_heads
    return int(2 * config.num_hidden_layers * heads * width * next(model.parameters()).element_size())


def equal_adapter(model: Any, numbers: int) -> LoraSettings:
    """An adapter with at least so many parameters, and as few more as its shape allows: of rank 1 in some of the last
    layers, or of a higher rank in all."""
    rank = 1
    while True:
        last = 1
        while True:
            shapes = inner_matrices(model, last=last)
            size = rank * sum(rows + columns for rows, columns in shapes.values())
            if size >= numbers:
                return LoraSettings(rank=rank, alpha=2.0 * rank, last=last)
            if len(shapes) == len(inner_matrices(model)):
                break
            last += 1
        rank += 1
