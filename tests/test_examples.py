"""Every example runs to its end, for one epoch, and prints its result."""

import importlib.util
import os
import re
import runpy
import subprocess
import sys
from pathlib import Path

import pytest

EXAMPLES = Path(__file__).parent.parent / "examples"
# Those that start processes; the others run inside the test process, which spares the imports.
COMMANDS = {
    "multi_gpu.py": [sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node", "2"],
    "torchvision_collate.py": [sys.executable],
}
NEEDS = {"timm_loop.py": "timm", "lightning_module.py": "lightning", "transformers_trainer.py": "transformers"}
RESULT = re.compile(r"\d+ %|the same weights: True|grafted, mean weight|plain$")


@pytest.mark.usefixtures("leave_no_process_group")
@pytest.mark.skipif(importlib.util.find_spec("accelerate") is None, reason="needs the extra lab")
@pytest.mark.parametrize("name", sorted(path.name for path in EXAMPLES.glob("*.py")))
def test_example_runs(
    name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    if importlib.util.find_spec(NEEDS.get(name, "torch")) is None:
        pytest.skip(f"needs the extra {NEEDS[name]}")
    if name in COMMANDS:
        # The last line of a launched process that finalizes Python, in which gloo's threads can abort it.
        (tmp_path / "sitecustomize.py").write_text(
            "import atexit, os\n'RANK' in os.environ and atexit.register(print, 'end')"
        )
        environment = {**os.environ, "PYTHONPATH": os.pathsep.join([str(tmp_path), *sys.path])}
        command = [*COMMANDS[name], EXAMPLES / name, "1"]
        run = subprocess.run(command, capture_output=True, text=True, check=False, env=environment)
        assert run.returncode == 0, run.stderr
        printed = run.stdout
    else:
        monkeypatch.setattr(sys, "argv", [name, "1"])
        runpy.run_path(str(EXAMPLES / name), run_name="__main__")
        printed = capsys.readouterr().out
    assert RESULT.search(printed.strip().splitlines()[-1]), printed
