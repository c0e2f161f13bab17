"""Train two small runs with the working tree and with an earlier commit, and compare their results bit for bit.

    python benchmarks/same_bits.py REVISION

For refactorings: Saliency Grafting covers hooks, masks, labels and two passes, PuzzleMix its input gradient, masks and
transport, both the trainer, loader and checkpoints. Exit code 1 if any file differs. Takes about a minute.
"""

import hashlib
import os
import subprocess
import sys
import tempfile
from pathlib import Path

RECIPES = ("shapes-wrn-10-2-saliency-grafting", "shapes-wrn-10-2-puzzlemix")
SETTINGS = (
    "network.name=wrn-10-1",
    "network.options.dropout=0.2",
    "data.options.per_class=16",
    "data.options.size=32",
    "training.epochs=3",
    "training.warmup_epochs=1",
    "training.batch_size=16",
    "training.ema_decay=0.9",
)
COMPARED = ("metrics.jsonl", "result.json", "model.safetensors")
ROOT = Path(__file__).resolve().parent.parent


def main() -> int:
    if len(sys.argv) != 2 or sys.argv[1].startswith("-"):
        print(__doc__)
        return 2
    with tempfile.TemporaryDirectory() as scratch:
        earlier = Path(scratch) / "earlier"
        git("worktree", "add", "--detach", str(earlier), sys.argv[1])
        try:
            before, now = (digests(tree, Path(scratch)) for tree in (earlier, ROOT))
        finally:
            git("worktree", "remove", "--force", str(earlier))
    for name, digest in now.items():
        print("same" if before[name] == digest else "DIFFERS", name, digest[:12])
    return int(before != now)


def digests(tree: Path, scratch: Path) -> dict[str, str]:
    """SHA-256 of every compared file, trained with the sources in `tree`."""
    hashes = {}
    for recipe in RECIPES:
        out = scratch / tree.name / "runs" / recipe
        flags = [part for setting in SETTINGS for part in ("--set", setting)]
        environment = {**os.environ, "PYTHONPATH": str(tree / "src"), "OMP_NUM_THREADS": "1"}
        command = [sys.executable, "-m", "saligraft", "train", recipe, *flags, "--seed", "7", "--out", str(out)]
        subprocess.run(command, check=True, env=environment, cwd=scratch, capture_output=True)
        for name in COMPARED:
            hashes[f"{recipe}/{name}"] = hashlib.sha256((out / name).read_bytes()).hexdigest()
    return hashes


def git(*arguments: str) -> None:
    subprocess.run(["git", "-C", str(ROOT), *arguments], check=True, capture_output=True)


if __name__ == "__main__":
    sys.exit(main())
