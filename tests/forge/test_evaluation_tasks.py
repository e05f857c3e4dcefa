"""The suite's tasks: reading the sets, checking answers by carrying them out, and the harness."""

from __future__ import annotations

import asyncio
import gzip
import itertools
import json
import math
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pytest
import torch
from tests_packed_tiny import llama
from transformers import GPT2Config, GPT2LMHeadModel

from agent_forge.context_length import context_length
from agent_forge.errors import DataError, UsageError
from agent_forge.forge.evaluation import (
    TASKS,
    FunctionRequest,
    GoldPlan,
    Program,
    evaluate_suite,
    read_choices,
    read_gold_plans,
    read_problems,
    read_programs,
    read_requests,
)
from agent_forge.forge.evaluation.choices import score_rows
from agent_forge.forge.evaluation.generation import write_answers
from agent_forge.forge.evaluation.harness import Answers, harness_model
from agent_forge.forge.evaluation.tasks import (
    call_prompt,
    closed,
    edge_f1,
    plan_prompt,
    read_calls,
    right_calls,
    run_tests,
    same_number,
)
from agent_forge.forge.training import train_tokenizer
from agent_forge.runtime.sandbox import SandboxLimits, sandbox_available

DATA = Path(__file__).parents[2].parent / "shared" / "data"


@pytest.fixture(scope="module")
def talker():
    """(model, tokenizer): what it says is noise, and always the same noise."""
    torch.manual_seed(0)
    tokenizer = train_tokenizer(["Question: how many? Answer: 12 or 7."] * 5, vocab_size=320)
    special = {"bos_token_id": 0, "eos_token_id": 1, "pad_token_id": 2}
    return llama(vocab_size=320, num_hidden_layers=1, max_position_embeddings=400, **special), tokenizer


def write_sets(folder: Path) -> Path:
    """Two rows of every set, in its publisher's form."""
    rows = {
        "arc_easy/train.jsonl": [{"question": f"{n}?", "choices": ["a", "b", "c"], "answer": 1} for n in range(3)],
        "piqa/valid.jsonl": [{"goal": f"{n}?", "choices": ["a", "b"], "answer": 0} for n in range(3)],
        "gsm8k/train.jsonl": [{"question": f"{n}?", "answer": f"so {n} #### 1,{n}00"} for n in range(2)],
        "mbpp/mbpp.jsonl": [{"text": "double it", "code": "", "test_list": ["assert f(2) == 4"]}],
        "bfcl/simple_python.jsonl": [
            {"id": "s0", "question": [[{"role": "user", "content": "area?"}]], "function": [{"name": "area"}]}
        ],
        "bfcl/simple_python_answers.jsonl": [{"id": "s0", "ground_truth": [{"area": {"base": [10]}}]}],
        "plan_graph/asynchow/asynchow.jsonl": [{"title": "tea", "steps": ["boil", "pour"], "edges": [[1, 2]], "id": 1}],
    }
    for name, content in rows.items():
        file = folder / name
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_text("\n".join(json.dumps(row) for row in content), encoding="utf-8")
    (folder / "svamp").mkdir()
    table = "Question,Numbers,Equation,Answer\nHe has number0 and number1 .,56.0 9.5,* number0 number1,504.0\n"
    with gzip.open(folder / "svamp" / "train.csv.gz", "wt") as file:
        file.write(table)
    return folder


def test_every_set_is_read_in_its_own_form(tmp_path: Path) -> None:
    data = write_sets(tmp_path)
    assert len(read_choices("arc_easy", data, 2)) == 2
    assert read_choices("piqa", data)[0].answers == (" a", " b")
    assert sorted(problem.answer for problem in read_problems("gsm8k", data)) == [1000.0, 1100.0]
    (problem,) = read_problems("svamp", data)
    assert (problem.question, problem.answer) == ("He has 56 and 9.5 .", 504.0)
    assert read_programs("mbpp", data)[0].tests == ("assert f(2) == 4",)
    assert read_requests("bfcl", data)[0].accepted == ({"area": {"base": [10]}},)
    assert read_gold_plans("asynchow", data)[0].edges == {(0, 1)}


def test_a_set_that_is_missing_or_broken_is_said_to_be(tmp_path: Path) -> None:
    with pytest.raises(DataError, match="no such question set"):
        read_choices("arc_easy", tmp_path)
    with pytest.raises(DataError, match="no simple_python_answers"):
        read_requests("bfcl", tmp_path)
    (tmp_path / "gsm8k").mkdir()
    (tmp_path / "gsm8k" / "train.jsonl").write_text("{broken", encoding="utf-8")
    with pytest.raises(DataError, match="cannot be read"):
        read_problems("gsm8k", tmp_path)


@pytest.mark.parametrize(
    "row",
    [
        {"question": {"stem": "Why?", "choices": [{"text": "a", "label": "1"}, {"text": "b", "label": "2"}]}}
        | {"answerKey": "2"},
        {"question": "Why?", "choices": {"text": ["a", "b"], "label": ["A", "B"]}, "answerKey": "B"},
        {"goal": "Why?", "sol1": "a", "sol2": "b", "label": 1},
        {"goal": "Why?", "sol1": "a", "sol2": "b", "label": "1"},
    ],
    ids=["arc", "arc in columns", "piqa", "piqa as text"],
)
def test_multiple_choice_is_read_as_it_is_published(row: dict[str, object], tmp_path: Path) -> None:
    (tmp_path / "set").mkdir()
    (tmp_path / "set" / "test.jsonl").write_text("\ufeff" + json.dumps(row), encoding="utf-8")
    (choice,) = read_choices("set", tmp_path)
    assert (choice.prompt, choice.answers, choice.right) == ("Question: Why?\nAnswer:", (" a", " b"), 1)


def test_svamp_and_sanitized_mbpp_are_read_as_they_are_published(tmp_path: Path) -> None:
    for folder in ("svamp", "mbpp"):
        (tmp_path / folder).mkdir()
    svamp = [{"ID": "chal-1", "Body": "Jack has 8 apples", "Question": "How many?", "Answer": 8.0}]
    (tmp_path / "svamp" / "SVAMP.json").write_text(json.dumps(svamp), encoding="utf-8")
    (problem,) = read_problems("svamp", tmp_path)
    assert (problem.question, problem.answer) == ("Jack has 8 apples. How many?", 8.0)
    mbpp = [{"prompt": "double it", "code": "", "test_imports": ["import math"], "test_list": ["assert f(2) == 4"]}]
    (tmp_path / "mbpp" / "sanitized-mbpp.json").write_text(json.dumps(mbpp), encoding="utf-8")
    (program,) = read_programs("mbpp", tmp_path)
    assert (program.task, program.setup) == ("double it", "import math")


@pytest.mark.parametrize(
    ("read", "name", "row"),
    [
        (read_choices, "arc_easy", {"question": "?", "choices": ["a", "b"], "answer": 2}),
        (read_choices, "arc_easy", {"question": "?", "choices": ["a", "b"], "answer": -1}),
        (read_choices, "arc_easy", {"question": "?", "choices": None, "answer": 0}),
        (read_choices, "arc_easy", {"choices": ["a", "b"], "answer": 0}),
        (read_choices, "arc_easy", {"question": "?", "choices": {"text": ["a"], "label": ["A"]}, "answerKey": "E"}),
        (read_choices, "arc_easy", ["no object"]),
        (read_problems, "gsm8k", {"question": "?", "answer": "nobody knows"}),
        (read_problems, "svamp", {"Question": "?", "Answer": "1"}),
        (read_programs, "mbpp", {"text": "?", "test_list": []}),
        (read_gold_plans, "plan_graph/asynchow", {"title": "?", "steps": ["a"], "edges": [[1, 2]]}),
    ],
    ids=range(10),
)
def test_a_row_that_cannot_be_asked_is_named(read, name: str, row: object, tmp_path: Path) -> None:
    (tmp_path / name).mkdir(parents=True)
    (tmp_path / name / "rows.jsonl").write_text(json.dumps(row), encoding="utf-8")
    with pytest.raises(DataError, match=r"not as expected|is not an object"):
        read(Path(name).name, tmp_path)


def test_the_sample_of_a_set_does_not_depend_on_its_order(tmp_path: Path) -> None:
    data = write_sets(tmp_path)
    first = read_choices("arc_easy", data, 2)
    file = data / "arc_easy" / "train.jsonl"
    file.write_text("\n".join(reversed(file.read_text().split("\n"))), encoding="utf-8")
    assert read_choices("arc_easy", data, 2) == first


def test_the_shared_sets_are_read_whole() -> None:
    if not (DATA / "arc_easy").is_dir():
        pytest.skip("the shared data are absent")
    assert len(read_choices("arc_easy", DATA)) == 2251
    assert len(read_problems("gsm8k", DATA)) == 7473
    assert len(read_problems("svamp", DATA)) == 3138
    assert len(read_programs("mbpp", DATA)) == 474
    assert len(read_requests("bfcl", DATA)) > 300
    assert len(read_gold_plans("asynchow", DATA)) == 970


@pytest.mark.parametrize(
    ("text", "right"),
    [
        ("so 6 * 7 = 42\n#### 42", True),
        ("#### 41 because 42", True),
        ("the answer is 42.0", True),
        ("-42", False),
        ("1,042", False),
        ("#### ", False),
        ("none", False),
    ],
)
def test_the_last_number_counts(text: str, right: bool) -> None:
    assert same_number(text, 42.0) is right


AREA = ({"area": {"base": [10], "height": [5], "unit": ["", "cm"]}},)


@pytest.mark.parametrize(
    ("text", "right"),
    [
        ("area(base=10, height=5)]", True),
        ("[area(height=5, base=10, unit='CM ')]", True),
        ("area(base=10, height=5)] and then some", True),
        ("area(base=10, height=6)]", False),
        ("area(base=10)]", False),
        ("area(10, 5)]", False),
        ("area(base=10, height=5, colour='red')]", False),
        ("area(base=10, height=5), area(base=10, height=5)]", False),
        ("volume(base=10, height=5)]", False),
        ("__import__('os').system('true')]", False),
        ("area(base=__import__('os'), height=5)]", False),
        ("area(**{'base': 10, 'height': 5})]", False),
        ("((((", False),
        ("", False),
    ],
)
def test_calls_are_right_when_names_arguments_and_values_are(text: str, right: bool) -> None:
    assert right_calls(read_calls(text), AREA) is right


def test_several_calls_may_come_in_any_order_and_truth_is_not_one() -> None:
    accepted = ({"f": {"x": [1]}}, {"g.h": {"y": [True]}})
    assert right_calls(read_calls("g.h(y=True), f(x=1)]"), accepted)
    assert not right_calls(read_calls("g.h(y=1), f(x=1)]"), accepted)


@pytest.mark.parametrize(
    ("text", "right"),
    [
        ("buy(where={'city': 'PARIS', 'zip': 75001}, rooms=[{'beds': 2}])]", True),
        ("buy(where={'city': 'Paris'}, rooms=({'beds': 3},))]", True),  # zip may be left out
        ("buy(where={'city': 'Rome'}, rooms=[{'beds': 2}])]", False),
        ("buy(where={'city': 'Paris', 'street': 'x'}, rooms=[{'beds': 2}])]", False),
        ("buy(where={'zip': 75001}, rooms=[{'beds': 2}])]", False),
        ("buy(where={'city': 'Paris'}, rooms=[{'beds': 2}, {'beds': 2}])]", False),
    ],
)
def test_arguments_that_are_objects_have_accepted_values_of_their_own(text: str, right: bool) -> None:
    accepted = ({"buy": {"where": [{"city": ["Paris", "Lyon"], "zip": [75001, ""]}], "rooms": [[{"beds": [2, 3]}]]}},)
    assert right_calls(read_calls(text), accepted) is right


def test_calls_that_fit_several_accepted_ones_are_told_apart() -> None:
    accepted = ({"f": {"x": [1, 2]}}, {"f": {"x": [1]}})
    assert right_calls(read_calls("f(x=1), f(x=2)]"), accepted)
    assert not right_calls(read_calls("f(x=2), f(x=2)]"), accepted)


def test_programs_are_judged_by_their_tests_in_the_sandbox() -> None:
    possible, reason = sandbox_available()
    if not possible:
        pytest.skip(reason)
    program = Program("double", ("assert f(2) == 4", "assert f(0) == 0"), setup="import math")
    limits = SandboxLimits(time_s=3)
    judged = [
        asyncio.run(run_tests(code, program, limits))
        for code in (
            "def f(x): return 2 * x",
            "def f(x): return x ** x",
            "def f(x",
            "raise SystemExit(1)",
            "raise SystemExit(0)",  # before the tests have run
            "import os\ndef f(x): os._exit(0)",
            "open('/etc/x', 'w')\ndef f(x): return 2 * x",
        )
    ]
    assert judged == [1.0, 0.0, 0.0, 0.0, 0.0, 0.0, 0.0]


GOLD = GoldPlan("tea", ("boil", "fetch", "pour", "serve"), frozenset({(0, 2), (1, 2), (2, 3)}))


@pytest.mark.parametrize(
    ("edges", "score"),
    [
        ("1: -, 2: -, 3: 1 2, 4: 3", 1.0),
        ("1: -, 2: -, 3: 1 2, 4: 1 2 3", 1.0),  # the same waiting, written out
        ("1: -, 2: 1, 3: 2, 4: 3", 2 * 5 / (6 + 5)),
        ("1: -, 2: -, 3: -, 4: -", 0.0),
    ],
)
def test_plans_are_scored_by_who_waits_for_whom(edges: str, score: float) -> None:
    lines = []
    for part in edges.split(", "):
        name, befores = part.split(": ")
        listed = "none" if befores == "-" else ", ".join(f"Task {b}" for b in befores.split())
        lines.append(f"Task {name}: {GOLD.steps[int(name) - 1]}. Dependencies: {listed}")
    assert edge_f1("\n".join(lines), GOLD) == pytest.approx(score)


def test_what_is_no_plan_scores_nothing_and_two_loose_lists_agree() -> None:
    assert edge_f1("I would rather not.", GOLD) == 0.0
    assert edge_f1("Task 1: a. Dependencies: none", GoldPlan("x", ("a",))) == 1.0


def test_the_closure_is_that_of_a_matrix() -> None:
    rng = np.random.default_rng(0)
    for _ in range(20):
        edges = {(int(a), int(b)) for a, b in itertools.combinations(range(6), 2) if rng.random() < 0.3}
        matrix = np.zeros((6, 6), dtype=int)
        for a, b in edges:
            matrix[a, b] = 1
        power, reach = matrix.copy(), matrix.copy()
        for _ in range(6):
            power = power @ matrix
            reach = reach + power
        assert closed(edges, 6) == {(int(a), int(b)) for a, b in zip(*np.nonzero(reach), strict=True)}


def test_answers_do_not_depend_on_the_batch_and_end_at_a_stop(talker) -> None:
    model, tokenizer = talker
    prompts = ["Question: 1?", "Question: how many? Answer:", "x"]
    together = write_answers(model, tokenizer, prompts, 8)
    alone = [write_answers(model, tokenizer, [prompt], 8)[0] for prompt in prompts]
    assert together == alone
    assert write_answers(model, tokenizer, ["y " * 900], 8) != [""]  # too long for the model: its end is read
    letter = next(c for c in together[0] if c.strip())
    assert letter not in write_answers(model, tokenizer, prompts[:1], 8, stop=[letter])[0]


def test_what_is_longer_than_the_model_can_read_is_cut_and_read_in_pieces() -> None:
    torch.manual_seed(0)
    tokenizer = train_tokenizer(["Question: how many? Answer: 12 or 7."] * 5, vocab_size=320)
    tokenizer.bos_token = tokenizer.eos_token = tokenizer.pad_token = None
    shape = {"n_embd": 16, "n_layer": 1, "n_head": 2, "n_positions": 32, "bos_token_id": 0, "eos_token_id": 1}
    model = GPT2LMHeadModel(GPT2Config(vocab_size=320, **shape)).eval()  # learned positions: a 33rd has no row
    whole = [torch.randint(0, 320, (70,)).tolist() for _ in range(2)]
    (long, cut), _ = score_rows(model, [(tuple(whole[0][:3]), tuple(whole[0][3:])), (tuple(whole[1]), (5, 6))])

    def loss(tokens: list[int], start: int) -> float:
        logs = model(torch.tensor([tokens])).logits[0].double().log_softmax(-1)
        return -sum(logs[i - 1, tokens[i]].item() for i in range(start, len(tokens)))

    assert cut == pytest.approx(loss([*whole[1][-30:], 5, 6], 30), rel=1e-5)
    parts = [loss(whole[0][2:34], 1), loss(whole[0][33:65], 1), loss(whole[0][38:70], 27)]
    assert long == pytest.approx(sum(parts), rel=1e-5)
    with pytest.raises(UsageError, match="no token"):
        score_rows(model, [((), (5,))])
    assert len(write_answers(model, tokenizer, ["", "7. " * 90], 128)) == 2
    assert math.isfinite(Answers(model, tokenizer).loglikelihood([SimpleNamespace(args=("", "12"))])[0][0])


def test_how_much_a_model_can_read_is_known_by_either_name() -> None:
    configs = [{"max_position_embeddings": 64}, {"max_seq_len": 32}, {}, {"max_position_embeddings": -1}]
    lengths = [context_length(SimpleNamespace(**config)) for config in configs]
    assert lengths == [64, 32, None, None]


def test_the_suite_runs_every_task(talker, tmp_path: Path) -> None:
    model, tokenizer = talker
    tasks = [task for task in TASKS if task != "arc_challenge" and (task != "mbpp" or sandbox_available()[0])]
    scores = evaluate_suite(model, tokenizer, write_sets(tmp_path), tasks, most=2)
    assert [score.task for score in scores] == tasks
    assert all(0 <= score.value <= 1 and score.how for score in scores)
    assert {score.task: score.chance for score in scores}["piqa"] == 0.5
    with pytest.raises(UsageError, match="Did you mean 'arc_easy'"):
        evaluate_suite(model, tokenizer, tmp_path, ["arc_esay"])


def test_prompts_show_the_functions_and_the_steps() -> None:
    assert '{"name": "area"}' in call_prompt(FunctionRequest("area?", ({"name": "area"},), ()))
    assert "Task 2: fetch" in plan_prompt(GOLD)


def test_the_harness_is_told_what_torch_says(talker) -> None:
    model, tokenizer = talker
    answers = Answers(model, tokenizer, batch=2)
    pairs = [("Question: how many?", " 12"), ("Answer: ", "7."), ("", "or 12")]
    results = answers.loglikelihood([SimpleNamespace(args=pair) for pair in pairs])
    for (context, continuation), (value, greedy) in zip(pairs, results, strict=True):
        whole = [0, *tokenizer(context + continuation, add_special_tokens=False)["input_ids"]]
        start = len([0, *tokenizer(context.rstrip(), add_special_tokens=False)["input_ids"]])
        logs = model(torch.tensor([whole])).logits[0].double().log_softmax(-1)
        expected = sum(logs[i - 1, whole[i]].item() for i in range(start, len(whole)))
        assert value == pytest.approx(expected, rel=1e-5)
        assert greedy == all(int(logs[i - 1].argmax()) == whole[i] for i in range(start, len(whole)))
    text = "Question: how many? Answer: 12 or 7."
    tokens = [0, *tokenizer(text, add_special_tokens=False)["input_ids"]]
    logs = model(torch.tensor([tokens])).logits[0].double().log_softmax(-1)
    rolling = answers.loglikelihood_rolling([SimpleNamespace(args=(text,))])
    assert rolling[0] == pytest.approx(sum(logs[i - 1, tokens[i]].item() for i in range(1, len(tokens))), rel=1e-5)
    assert math.isfinite(answers.loglikelihood_rolling([SimpleNamespace(args=(text * 40,))])[0])
    written = answers.generate_until([SimpleNamespace(args=("x", {"until": "\n", "max_gen_toks": 4}))])
    assert written == write_answers(model, tokenizer, ["x"], 4, ["\n"])
    with pytest.raises(UsageError, match="greedy"):
        answers.generate_until([SimpleNamespace(args=("x", {"do_sample": True}))])


def test_the_harness_itself_is_asked_for_only_when_wanted(talker, tmp_path: Path) -> None:
    model, tokenizer = talker
    try:
        import lm_eval  # noqa: F401
    except ImportError:
        with pytest.raises(UsageError, match="lm-eval"):
            harness_model(tmp_path)
        return
    model.save_pretrained(tmp_path)
    tokenizer.save_pretrained(tmp_path)
    assert len(harness_model(tmp_path).loglikelihood([SimpleNamespace(args=("a", "b"))])) == 1
