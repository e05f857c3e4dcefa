"""Security: find the vulnerabilities planted in generated code, beside code that only looks like them."""

from __future__ import annotations

import random
from collections.abc import Mapping
from typing import Any

from agent_forge.tasks.family import Draft, Verdict, task_family
from agent_forge.tasks.findings import judge_findings

_NOUNS = ("invoice", "report", "customer", "ticket", "order", "photo", "letter", "device", "booking", "recipe")
_FIELDS = ("name", "code", "city", "title", "email")
KINDS = {
    "code_eval": "runs text that comes from outside as code",
    "hardcoded_secret": "a password or key stands in the code",
    "sql_injection": "a value from outside becomes part of an SQL statement",
    "shell_injection": "a value from outside becomes part of a shell command",
    "path_traversal": "a name from outside leads to any file",
    "weak_hash": "MD5 or SHA-1 protects something secret",
    "missing_check": "something is changed or deleted without checking that it is the user's",
    "unsafe_deserialization": "data from outside is loaded in a way that can run code",
    "weak_random": "a secret comes from a predictable random generator",
    "tls_disabled": "certificates are not checked",
}
# Lines that end with "#!" are the ones to be named. {n} is a noun, {N} the same in capitals, {a} a field, {s} a secret.
_VULNERABLE = {
    "code_eval": (
        "def rate_{n}(formula):\n    return eval(formula)  #!",
        'def apply_{n}(request):\n    exec(request.args["{a}"])  #!',
    ),
    "hardcoded_secret": (
        '{N}_API_KEY = "{s}"  #!',
        'def connect_{n}():\n    return Client(user="{a}", password="{s}")  #!',
    ),
    "sql_injection": (
        "def find_{n}(db, {a}):\n    query = f\"SELECT * FROM {n}s WHERE {a} = '{{{a}}}'\"  #!\n"
        "    return db.execute(query).fetchall()  #!",
        'def count_{n}(db, {a}):\n    return db.execute("SELECT count(*) FROM {n}s WHERE {a} = " + {a})  #!',
    ),
    "shell_injection": (
        'def archive_{n}(path):\n    os.system("tar czf {n}.tgz " + path)  #!',
        'def ping_{n}(host):\n    return subprocess.run(f"ping -c 1 {{host}}", shell=True)  #!',
    ),
    "path_traversal": (
        'def read_{n}(name):\n    return open("/srv/{n}s/" + name).read()  #!',
        'def load_{n}(name):\n    path = os.path.join("/srv/{n}s", name)  #!\n    return Path(path).read_text()  #!',
    ),
    "weak_hash": (
        "def store_{n}(password):\n    return hashlib.md5(password.encode()).hexdigest()  #!",
        'def sign_{n}(text, key):\n    digest = hashlib.new("sha1", key + text)  #!\n    return digest.hexdigest()',
    ),
    "missing_check": (
        "def delete_{n}(user, key):  #!\n    {n} = load(key)  #!\n    {n}.delete()  #!",
        "def rename_{n}(user, key, {a}):  #!\n    {n} = load(key)  #!\n    {n}.{a} = {a}  #!\n    {n}.save()  #!",
    ),
    "unsafe_deserialization": (
        "def receive_{n}(body):\n    return pickle.loads(body)  #!",
        "def import_{n}(text):\n    return yaml.load(text, Loader=yaml.UnsafeLoader)  #!",
    ),
    "weak_random": (
        "def {n}_token():\n    return str(random.randrange(10**12))  #!",
        'def {n}_password():\n    return "".join(random.choice("abcdefgh2345") for _ in range(12))  #!',
    ),
    "tls_disabled": (
        "def fetch_{n}(url):\n    return requests.get(url, verify=False, timeout=5)  #!",
        "def post_{n}(url, body):\n    context = ssl._create_unverified_context()  #!\n"
        "    return urlopen(url, body, context=context)",
    ),
}
_SAFE = {
    "code_eval": (
        "def rate_{n}(formula):\n    return ast.literal_eval(formula)",
        "def score_{n}(model, batch):\n    model.eval()\n    return model(batch)",
    ),
    "hardcoded_secret": (
        '{N}_API_KEY = os.environ["{N}_API_KEY"]',
        'PASSWORD_FIELD_{N} = "password"',
    ),
    "sql_injection": (
        'def find_{n}(db, {a}):\n    query = "SELECT * FROM {n}s WHERE {a} = ?"\n'
        "    return db.execute(query, ({a},)).fetchall()",
        '{N}S = "{n}s"\ndef count_{n}s(db):\n    return db.execute(f"SELECT count(*) FROM {{{N}S}}").fetchone()',
    ),
    "shell_injection": (
        'def ping_{n}(host):\n    return subprocess.run(["ping", "-c", "1", "--", host])',
        'def archive_{n}(path):\n    return subprocess.run("tar czf {n}.tgz " + shlex.quote(path), shell=True)',
    ),
    "path_traversal": (
        "def read_{n}(name):\n    path = (ROOT / name).resolve()\n    if not path.is_relative_to(ROOT):\n"
        "        raise PermissionError(name)\n    return path.read_text()",
        'def load_{n}_default():\n    return open("/srv/{n}s/default.txt").read()',
    ),
    "weak_hash": (
        "def store_{n}(password, salt):\n    return hashlib.scrypt(password.encode(), salt=salt, n=2**15, r=8, p=1)",
        "def {n}_cache_name(content):\n    return hashlib.md5(content, usedforsecurity=False).hexdigest()",
    ),
    "missing_check": (
        "def delete_{n}(user, key):\n    {n} = load(key)\n    if {n}.owner != user.id:\n        raise Forbidden(key)\n"
        "    {n}.delete()",
        "def show_{n}_help(user):\n    return HELP_TEXT",
    ),
    "unsafe_deserialization": (
        "def receive_{n}(body):\n    return json.loads(body)",
        "def import_{n}(text):\n    return yaml.safe_load(text)",
    ),
    "weak_random": (
        "def {n}_token():\n    return secrets.token_hex(16)",
        "def {n}_colour():\n    return random.choice(COLOURS)",
    ),
    "tls_disabled": (
        "def fetch_{n}(url):\n    return requests.get(url, verify=CERTIFICATES, timeout=5)",
        'def fetch_{n}_list():\n    return requests.get("https://example.org/{n}s", timeout=5)',
    ),
}
SCHEMA = {
    "type": "object",
    "properties": {
        "findings": {
            "type": "array",
            "maxItems": 30,
            "items": {
                "type": "object",
                "properties": {"line": {"type": "integer"}, "kind": {"enum": list(KINDS)}},
                "required": ["line", "kind"],
                "additionalProperties": False,
            },
        }
    },
    "required": ["findings"],
    "additionalProperties": False,
}


def check(answer: Mapping[str, Any], expected: Mapping[str, Any]) -> Verdict:
    """The F1 of the findings; right if all vulnerabilities are named and nothing else."""
    return judge_findings(
        [(finding["line"], finding["kind"]) for finding in answer["findings"]],
        [(planted["lines"], planted["kind"]) for planted in expected["planted"]],
    )


def solve(expected: Mapping[str, Any]) -> dict[str, Any]:
    """What was planted."""
    return {"findings": [{"line": each["lines"][0], "kind": each["kind"]} for each in expected["planted"]]}


@task_family("security", check=check, solve=solve, schema=SCHEMA)
def security(rng: random.Random, level: float) -> Draft:
    """One vulnerability of three kinds at first; then up to seven pieces of code, most of them harmless."""
    kinds = list(KINDS)[: 3 + round(7 * level)]
    pieces = 1 + round(6 * level)
    lines: list[str] = []
    planted: list[dict[str, Any]] = []
    certain = rng.randrange(pieces) if level < 0.7 else -1  # above, there may be nothing to be found
    for place, noun in enumerate(rng.sample(_NOUNS, pieces)):
        kind = rng.choice(kinds)
        vulnerable = place == certain or rng.random() < 0.4
        text = rng.choice((_VULNERABLE if vulnerable else _SAFE)[kind])
        secret = "".join(rng.choice("abcdefghjkmnpqrstuvwxyz23456789") for _ in range(16))
        code = text.format(n=noun, N=noun.upper(), a=rng.choice(_FIELDS), s=secret).split("\n")
        marked = [len(lines) + number for number, line in enumerate(code, 1) if line.endswith("  #!")]
        if marked:
            planted.append({"lines": marked, "kind": kind})
        lines += [line.removesuffix("  #!") for line in code]
    listing = "\n".join(f"{number}: {line}" for number, line in enumerate(lines, 1))
    meanings = "\n".join(f"- {kind}: {KINDS[kind]}" for kind in kinds)
    prompt = (
        f"Find the vulnerabilities in this Python code, in which arguments come from outside:\n{listing}\n\nKinds:\n"
        f"{meanings}\n\nAnswer with the line and kind of each vulnerability, and nothing that is harmless, as JSON: "
        '{"findings": [{"line": 1, "kind": "..."}]}'
    )
    return Draft(prompt, {"planted": planted, "lines": len(lines)})
