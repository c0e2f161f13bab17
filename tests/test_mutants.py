"""The list of mutants fits the code; `python tests/mutants.py` tries them."""

from tests.mutants import MUTANTS, PACKAGE, ROOT


def test_every_mutant_can_be_tried() -> None:
    assert len({mutant.name for mutant in MUTANTS}) == len(MUTANTS)
    for mutant in MUTANTS:
        file = PACKAGE / mutant.file
        assert file.is_file(), mutant.name
        assert file.read_text(encoding="utf-8").count(mutant.old) == 1, mutant.name
        assert mutant.old != mutant.new, mutant.name
        for test in mutant.node_ids:
            path, _, name = test.partition("::")
            assert (ROOT / path).is_file(), mutant.name
            assert not name or f"def {name}(" in (ROOT / path).read_text(encoding="utf-8"), mutant.name
