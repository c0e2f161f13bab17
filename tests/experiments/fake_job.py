"""Run four fake jobs, in a process that a test may kill: `python -m tests.experiments.fake_job FOLDER`.

Each job writes how often it was started, and locks the file "alive" while it runs; from the third on they wait for the
file FOLDER/go.
"""

import fcntl
import sys
import time
from pathlib import Path

from saligraft.config.recipe import Recipe
from saligraft.experiments.experiment import Job
from saligraft.experiments.runner import LocalLauncher, run_jobs


def jobs(folder: Path) -> list[Job]:
    return [Job(recipe=Recipe(), folder=folder / f"{i}", measures=(), label=f"job {i}") for i in range(4)]


def work(job: Job) -> None:
    job.folder.mkdir(exist_ok=True)
    with (job.folder / "alive").open("w") as alive:
        fcntl.flock(alive, fcntl.LOCK_EX)
        with (job.folder / "starts").open("a") as file:
            file.write("x")
        while job.folder.name >= "2" and not (job.folder.parent / "go").exists():
            time.sleep(0.05)
        (job.folder / "result.json").write_text('{"top1_error": {"best": 1.0}}')


if __name__ == "__main__":
    print(run_jobs(jobs(Path(sys.argv[1])), LocalLauncher(processes=2, work=work)))
