"""Models at a URL: the same on a share, in memory and on a server that speaks S3; cut off anywhere, nothing is torn."""

from __future__ import annotations

import hashlib
import json
import os
import shutil
import uuid
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import fsspec
import numpy as np
import pytest
from safetensors.numpy import save_file

from agent_forge.cli import run as cli
from agent_forge.errors import CheckpointError, StoreError, UsageError
from agent_forge.forge.checkpoint import Card, Checkpoint, finish, load, staging
from agent_forge.forge.model_store import ModelStore
from agent_forge.forge.registry import Registry


@pytest.fixture(scope="module")
def s3() -> Iterator[str]:
    """The URL of an empty bucket on moto's server."""
    pytest.importorskip("s3fs", reason="s3fs is not installed: `pip install s3fs 'moto[server]'`")
    server = pytest.importorskip("moto.server", reason="moto is not installed: `pip install s3fs 'moto[server]'`")
    running = server.ThreadedMotoServer(port=0)
    running.start()
    host, port = running.get_host_and_port()
    variables = {"AWS_ENDPOINT_URL": f"http://{host}:{port}", "AWS_ACCESS_KEY_ID": "test",
                 "AWS_SECRET_ACCESS_KEY": "test", "AWS_DEFAULT_REGION": "us-east-1"}  # fmt: skip
    with pytest.MonkeyPatch.context() as patch:
        for name, value in variables.items():
            patch.setenv(name, value)
        fsspec.filesystem("s3").mkdir("forge")
        yield "s3://forge"
    running.stop()


@pytest.fixture(params=["file", "memory", "s3"])
def url(request: pytest.FixtureRequest, tmp_path: Path) -> str:
    if request.param == "s3":
        return f"{request.getfixturevalue('s3')}/{uuid.uuid4().hex}"
    return f"file://{tmp_path}/share" if request.param == "file" else f"memory://{uuid.uuid4().hex}"


def make(models: Path, number: float, notes: str = "") -> Checkpoint:
    with staging(models) as folder:
        save_file({"w": np.full(3000, number, dtype=np.float32)}, folder / "model.safetensors")
        (folder / "config.json").write_text(json.dumps({"architectures": ["Toy"]}))
        (folder / "tokenizer.json").write_text("{}")
        (folder / "more").mkdir()
        (folder / "more" / "empty.txt").touch()
        return finish(folder, Card("toy", {}, notes=notes), models)


def contents(folder: Path) -> dict[str, bytes]:
    return {str(file.relative_to(folder)): file.read_bytes() for file in folder.rglob("*") if file.is_file()}


def stored(url: str) -> dict[str, bytes]:
    """Everything in a store, read by fsspec alone."""
    fs, root = fsspec.core.url_to_fs(url, use_listings_cache=False)
    fs.invalidate_cache()
    return {path[len(root) :].lstrip("/"): fs.cat_file(path) for path in fs.find(root)}


def test_a_model_goes_there_and_comes_back(url: str, tmp_path: Path) -> None:
    store, first, second = ModelStore(url), make(tmp_path / "a", 1), make(tmp_path / "a", 2)
    assert store.ls() == []
    files = contents(first.path)
    assert store.push(first) == sum(map(len, files.values()))
    assert store.push(first) == 0, "it is there"
    weights = (second.path / "model.safetensors").read_bytes()
    assert store.push(second) == len(weights), "what two models share is stored once"
    bodies = stored(url)
    assert {name: hashlib.sha256(body).hexdigest() for name, body in bodies.items() if name.startswith("files/")} == {
        f"files/{hashlib.sha256(body).hexdigest()}": hashlib.sha256(body).hexdigest()
        for body in [*files.values(), *contents(second.path).values()]
    }
    assert {one.digest for one in store.ls()} == {first.digest, second.digest}
    assert store.verify(f"toy-{first.digest[:8]}").size == sum(map(len, files.values()))

    fetched = store.pull(first.digest[:10], tmp_path / "b")
    assert (fetched.digest, fetched.card) == (first.digest, first.card)
    assert fetched.path == tmp_path / "b" / first.path.name
    assert contents(fetched.path) == files
    for wrong in ("zz", "", "toy-", "base-" + first.digest[:8]):
        with pytest.raises(UsageError, match="there is no model"):
            store.pull(wrong, tmp_path / "b")


def test_what_was_pulled_is_there_without_the_store(tmp_path: Path) -> None:
    url, first = f"file://{tmp_path}/share", make(tmp_path / "a", 1)
    store = ModelStore(url)
    store.push(first)
    path = store.pull(first.digest, tmp_path / "b").path
    shutil.rmtree(tmp_path / "share" / "files")
    before = {file: file.stat().st_mtime_ns for file in path.rglob("*")}
    assert store.pull(first.digest, tmp_path / "b").path == path
    assert {file: file.stat().st_mtime_ns for file in path.rglob("*")} == before
    with pytest.raises(CheckpointError, match="missing or damaged"):
        store.pull(first.digest, tmp_path / "c")
    assert [path.name for path in (tmp_path / "c").iterdir() if not path.name.startswith(".making-")] == []


@pytest.mark.parametrize("renames", [True, False], ids=["share", "bucket"])
def test_an_upload_that_is_killed_is_no_model_and_can_be_repeated(tmp_path: Path, renames: bool) -> None:
    """Processes that die in the middle of the first, second, … file, and of the manifest."""
    url, model = f"file://{tmp_path}/share", make(tmp_path / "a", 1)
    uploads = len(contents(model.path)) + 1
    ModelStore(url)._fs.makedirs(f"{tmp_path}/share/files", exist_ok=True)
    ModelStore(url)._fs.makedirs(f"{tmp_path}/share/models", exist_ok=True)
    sizes = []
    for death in range(uploads):
        child = os.fork()
        if not child:
            try:
                _push_and_die(url, model, death, renames)
            finally:
                os._exit(1)
        assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 9
        if renames:
            assert ModelStore(url).ls() == []
        else:  # a bucket's objects appear whole: of what is torn here, only the manifest could be taken for a model
            manifests = list((tmp_path / "share" / "models").iterdir())
            assert (death == uploads - 1) == bool(manifests)
            for file in manifests:
                with pytest.raises(CheckpointError, match="manifest cannot be used"):
                    ModelStore(url).manifest(file.stem)
                file.unlink()
        sizes.append(sum(file.stat().st_size for file in (tmp_path / "share" / "files").iterdir()))
    assert sizes == sorted(sizes), "each one went on where the last one was"
    store = ModelStore(url)
    assert store.push(model) == 0, "only the manifest was missing"
    assert contents(store.pull(model.digest, tmp_path / "b").path) == contents(model.path)


def _push_and_die(url: str, model: Checkpoint, death: int, renames: bool) -> None:
    """Pushes; of the upload number `death`, half is written. Those before it are complete, here or in a run before."""
    store = ModelStore(url)
    store._renames = renames
    files, done = len(contents(model.path)), len([name for name in stored(url) if len(name) == len("files/") + 64])

    def put(source: Any, target: str) -> None:
        nonlocal done
        body = source if isinstance(source, bytes) else Path(source).read_bytes()
        if min(done, files) == death:
            Path(target).write_bytes(body[: len(body) // 2])
            os._exit(9)
        done += 1
        Path(target).write_bytes(body)

    store._fs.put_file = put
    store._fs.pipe_file = lambda target, body: put(body, target)
    store.push(model)


def test_a_pull_that_was_cut_off_fetches_the_rest(tmp_path: Path) -> None:
    url, model = f"file://{tmp_path}/share", make(tmp_path / "a", 1)
    store = ModelStore(url)
    store.push(model)
    weights = (model.path / "model.safetensors").read_bytes()
    remote = tmp_path / "share" / "files" / hashlib.sha256(weights).hexdigest()
    half, partial = len(weights) // 2, tmp_path / "b" / f".making-{model.digest[:32]}"
    partial.mkdir(parents=True)
    (partial / "model.safetensors").write_bytes(weights[:half])
    (partial / "stranger").write_text("of an older manifest")
    remote.write_bytes(b"?" * half + weights[half:])  # what is here already is not asked for again
    assert contents(store.pull(model.digest, tmp_path / "b").path) == contents(model.path)

    remote.write_bytes(weights)
    for torn in (b"?" * half, b"?" * len(weights), b"?" * (len(weights) + 5)):
        partial = tmp_path / "c" / f".making-{model.digest[:32]}"
        partial.mkdir(parents=True)
        (partial / "model.safetensors").write_bytes(torn)
        assert contents(store.pull(model.digest, tmp_path / "c").path) == contents(model.path)
        shutil.rmtree(tmp_path / "c")

    remote.write_bytes(weights[:-1] + b"!")
    for call in (lambda: store.pull(model.digest, tmp_path / "d"), lambda: store.verify(model.digest)):
        with pytest.raises(CheckpointError, match=r"model\.safetensors of the stored model is missing or damaged"):
            call()
    assert not (tmp_path / "d" / model.path.name).exists()


def test_manifests_are_not_trusted(tmp_path: Path) -> None:
    url, model = f"file://{tmp_path}/share", make(tmp_path / "a", 1)
    store = ModelStore(url)
    store.push(model)
    file = tmp_path / "share" / "models" / f"{model.digest}.json"
    good = json.loads(file.read_text())
    evil = [{**good, "digest": "0" * 64}, {**good, "format": 99}, {**good, "phase": "../x"}, [], {**good, "files": []}]
    for name in ("../x", "/etc/x", "a\\b", "C:x", ".", ""):
        files = [{**one, "name": name} if one["name"] == "config.json" else one for one in good["files"]]
        total = hashlib.sha256()
        for one in files:
            if one["name"] != "card.json":
                total.update(f"{one['sha256']}  {one['name']}\n".encode())
        evil.append({**good, "digest": total.hexdigest(), "files": files})
    for document in evil:
        digest = document["digest"] if isinstance(document, dict) else "1" * 64
        digest = model.digest if digest == "0" * 64 else digest
        target = file.with_name(f"{digest}.json")
        target.write_text(json.dumps(document))
        with pytest.raises(CheckpointError, match="the manifest cannot be used"):
            store.pull(digest, tmp_path / "b")
        target.unlink()
    assert not (tmp_path / "b").exists()


def test_registries_share_a_store(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("AGENT_FORGE_STORE", raising=False)
    url = f"memory://{uuid.uuid4().hex}"
    here, there = Registry(tmp_path / "here", models=url), Registry(tmp_path / "there", models=url)
    model = make(here.models, 1)
    here.add(model)
    loaded = there.load(model.digest[:9])
    assert loaded.path == there.models / model.path.name
    assert contents(loaded.path) == contents(model.path)
    assert [entry.digest for entry in there.ls()] == [model.digest]
    with pytest.raises(UsageError, match="there is no model 'zz'"):
        there.load("zz")

    # One database for two machines, as PostgreSQL is: its rows have the paths of the machine that wrote them.
    plain = tmp_path / "plain"
    shutil.copytree(make(tmp_path / "away", 2).path, plain)
    (plain / "card.json").unlink()
    here.add(load(plain))
    shutil.copytree(here.home, tmp_path / "third", ignore=shutil.ignore_patterns("models"))
    (plain).rename(tmp_path / "gone")
    third = Registry(tmp_path / "third", models=url)
    (here.models / model.path.name).rename(tmp_path / "gone too")
    for entry in third.ls():
        assert third.load(entry.digest).path.parent == third.models
    again = make(there.models, 1, notes="measured again")
    there.add(again)
    third.add(again)
    assert third.load(model.digest).card.notes == "measured again"
    stale = third.models / model.path.name / "card.json"
    stale.write_bytes((tmp_path / "gone too" / "card.json").read_bytes())
    third.add(again)
    assert third.load(model.digest).card.notes == "measured again"
    for registry in (here, there, third):
        registry.db.close()


def test_commands(tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("AGENT_FORGE_STORE", raising=False)
    url, model = f"file://{tmp_path}/share", make(tmp_path / "a", 1)

    def call(*arguments: str) -> Any:
        code = cli(["models", *arguments, "--json"])
        return code, json.loads(capsys.readouterr().out or "null")

    size = sum(map(len, contents(model.path).values()))
    code, document = call("push", str(model.path), "--models", url)
    assert (code, document["sent"], document["digest"]) == (0, size, model.digest)
    monkeypatch.setenv("AGENT_FORGE_MODELS", url)
    assert [row["bytes"] for row in call("ls", "--remote")[1]] == [size]
    assert call("verify", model.digest[:8], "--remote")[1]["ok"]
    home = str(tmp_path / "home")
    code, document = call("pull", model.digest[:8], "--home", home)
    assert contents(Path(document["path"])) == contents(model.path)
    assert call("verify", model.digest[:8], "--home", home)[1]["ok"]
    (tmp_path / "share" / "files" / hashlib.sha256(b"{}").hexdigest()).write_bytes(b"[]")
    code, document = call("verify", model.digest[:8], "--remote")
    assert code == 1
    assert "tokenizer.json" in document["error"]
    monkeypatch.delenv("AGENT_FORGE_MODELS")
    assert cli(["models", "pull", "x", "--home", home]) == cli(["models", "ls", "--remote"]) == 2
    assert capsys.readouterr().err.count("there is no model store") == 2


def test_urls_and_stores_that_are_away(tmp_path: Path) -> None:
    for wrong in ("nonsense://x", "models", ""):
        with pytest.raises(UsageError):
            ModelStore(wrong)
    try:
        import s3fs  # noqa: F401
    except ImportError:
        with pytest.raises(UsageError, match="Install s3fs"):
            ModelStore("s3://user:secret@bucket/x")
    (tmp_path / "file").touch()
    store = ModelStore(f"file://{tmp_path}/file")
    with pytest.raises(StoreError, match="cannot be used"):
        store.push(make(tmp_path / "a", 1))
