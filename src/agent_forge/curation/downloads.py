"""Downloads of public data sets, each file checked.

For files that this project has seen, the table holds the SHA-256. For others the first download records its digest
(`checksums.json` beside the files), and later ones must match: trust on first use.
"""

from __future__ import annotations

import hashlib
import json
import os
import zipfile
import zlib
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path

from agent_forge.curation.lines import MOST_UNPACKED
from agent_forge.curation.loaders import dataset
from agent_forge.errors import DataError, UsageError
from agent_forge.files import atomic_write
from agent_forge.home import home

_RAW = "https://raw.githubusercontent.com"


@dataclass(frozen=True, slots=True)
class Published:
    """One published file. `member` is its name inside a zip archive."""

    url: str
    name: str
    sha256: str | None = None
    member: str | None = None


_GSM = f"{_RAW}/openai/grade-school-math/3101c7d5072418e28b9008a6636bde82a006892c/grade_school_math/data"
_SVAMP = f"{_RAW}/arkilpatel/SVAMP/689d7ccac74b9983a2ac7cc3b264f441b99e7c53/data"
_PIQA = f"{_RAW}/ybisk/ybisk.github.io/21edab439af693b961be2f069e8690a88d3b4e37/piqa/data"
_ARC = "https://ai2-public-datasets.s3.amazonaws.com/arc/ARC-V1-Feb2018.zip"
_ARC_SPLITS = ("Train", "Dev", "Test")


def _arc(kind: str) -> tuple[Published, ...]:
    return tuple(
        Published(_ARC, f"ARC-{kind}-{part}.jsonl", member=f"ARC-V1-Feb2018-2/ARC-{kind}/ARC-{kind}-{part}.jsonl")
        for part in _ARC_SPLITS
    )


DOWNLOADS: dict[str, tuple[Published, ...]] = {
    "gsm8k": (
        Published(
            f"{_GSM}/train.jsonl", "train.jsonl", "17f347dc51477c50d4efb83959dbb7c56297aba886e5544ee2aaed3024813465"
        ),
        Published(f"{_GSM}/test.jsonl", "test.jsonl"),
    ),
    "svamp": (
        Published(
            f"{_SVAMP}/mawps-asdiv-a_svamp/train.csv",
            "mawps_asdiv_svamp_train.csv",
            "c761cdc6390a67a285c6c346a2931f61bc8f47430eceaeb123cc3d0263efa821",
        ),
        Published(f"{_SVAMP}/mawps-asdiv-a_svamp/dev.csv", "mawps_asdiv_svamp_dev.csv"),
        Published(f"{_RAW}/arkilpatel/SVAMP/689d7ccac74b9983a2ac7cc3b264f441b99e7c53/SVAMP.json", "SVAMP.json"),
    ),
    "arc_easy": _arc("Easy"),
    "arc_challenge": _arc("Challenge"),
    "piqa": (
        Published(f"{_PIQA}/valid.jsonl", "valid.jsonl"),
        Published(f"{_PIQA}/valid-labels.lst", "valid-labels.lst"),
    ),
    "mbpp": (Published(f"{_RAW}/google-research/google-research/master/mbpp/mbpp.jsonl", "mbpp.jsonl"),),
    "humaneval": (Published(f"{_RAW}/openai/human-eval/master/data/HumanEval.jsonl.gz", "HumanEval.jsonl.gz"),),
    "restbench": (
        Published(
            f"{_RAW}/Yifan-Song793/RestGPT/main/datasets/tmdb.json",
            "tmdb.json",
            "6a9686067683ec6c33221de05bd2e763cfbfedf2cac6f4e6b607d7ab80a858d4",
        ),
    ),
}


def fetch(
    name: str,
    *,
    folder: str | os.PathLike[str] | None = None,
    published: Iterable[Published] | None = None,
    timeout_s: float = 60.0,
) -> Path:
    """Downloads the missing files of a data set and returns their folder (default: under the home folder).

    Raises DataError if a download fails or a file is not the expected one, UsageError for a data set without a stable
    address.
    """
    info = dataset(name)
    files = tuple(published) if published is not None else DOWNLOADS.get(name, ())
    if not files:
        raise UsageError(
            f"{name} has no stable download", fix=f"Get its files from {info.source} and add --from FOLDER"
        )
    target = Path(folder) if folder is not None else home() / "data" / name
    target.mkdir(parents=True, exist_ok=True)
    for file in files:
        if not (target / file.name).exists():
            _store(file, target, timeout_s)
    return target


def _store(file: Published, target: Path, timeout_s: float) -> None:
    content = _download(file.url, timeout_s)
    if file.member is not None:
        content = _unzipped(content, file)
    _check(file, hashlib.sha256(content).hexdigest(), target / "checksums.json")
    with atomic_write(target / file.name, "wb") as out:
        out.write(content)


def _download(url: str, timeout_s: float) -> bytes:
    import httpx

    try:
        response = httpx.get(url, timeout=timeout_s)  # no redirects: none of the addresses has one
        response.raise_for_status()
    except (httpx.HTTPError, httpx.InvalidURL) as error:
        raise DataError(
            f"the download failed ({type(error).__name__}: {error})",
            where=url,
            fix="Without a network, load the data set from a local folder with --from",
        ) from error
    return response.content


def _unzipped(content: bytes, file: Published) -> bytes:
    from io import BytesIO

    try:
        with zipfile.ZipFile(BytesIO(content)) as archive:
            with archive.open(file.member or "") as member:
                data = member.read(MOST_UNPACKED + 1)
            if len(data) > MOST_UNPACKED:  # whatever size the archive's directory claims
                raise DataError(f"{file.member} unpacks to more than {MOST_UNPACKED >> 20} MiB", where=file.url)
            return data
    except (zipfile.BadZipFile, KeyError, NotImplementedError, RuntimeError, EOFError, zlib.error) as error:
        raise DataError(f"the archive does not contain {file.member} ({error})", where=file.url) from error


def _check(file: Published, digest: str, ledger: Path) -> None:
    """Compares with the table, else with the first download; records the digest of a new file."""
    recorded: dict[str, str] = json.loads(ledger.read_text("utf-8")) if ledger.exists() else {}
    expected = file.sha256 or recorded.get(file.name)
    if expected is not None and expected != digest:
        raise DataError(
            f"{file.name} has SHA-256 {digest[:16]}…, expected {expected[:16]}…",
            where=file.url,
            fix="The published file has changed; nothing was stored",
        )
    if recorded.get(file.name) != digest:
        with atomic_write(ledger) as out:
            json.dump(dict(sorted((recorded | {file.name: digest}).items())), out, indent=1)
