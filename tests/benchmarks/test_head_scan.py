"""The head scan: updates agree across splits with the toolkit, and differ with a plain Trainer as in docs/heads.md."""

from __future__ import annotations

import head_rows
import pytest
from head_cases import CASES
from runs import ROOT

PAGE = ROOT / "docs/heads.md"


def table() -> list[str]:
    """Returns the lines of the table in docs/heads.md, header included."""
    between = PAGE.read_text(encoding="utf-8").split("<!-- ")[1]
    return [line for line in between.splitlines() if line.startswith("|")]


def cells(line: str) -> list[str]:
    return [cell.strip() for cell in line.strip("|").split("|")]


@pytest.fixture(scope="module")
def results():
    from accelerate.state import AcceleratorState
    from head_scan import scan

    yield list(scan())
    AcceleratorState._reset_state(reset_partial_state=True)  # it is one for the whole process, and on the CPU here


def test_the_page_has_a_line_for_each_case() -> None:
    assert len(CASES) >= 34
    assert [tuple(cells(line)[:2]) for line in table()[2:]] == [(case.model, case.head) for case in CASES]
    assert max(map(len, table())) <= 100


@pytest.mark.benchmarks
@pytest.mark.xdist_group("head_scan")  # one scan for all
@pytest.mark.filterwarnings("ignore:Support for mismatched key_padding_mask:UserWarning")  # WavLM's attention
class TestScan:
    def test_the_toolkits_update_does_not_depend_on_its_micro_batches(self, results) -> None:
        conclusive = [result for result in results if not result.reasons]
        assert len(conclusive) >= 34
        wrong = {
            (result.case.model, result.case.head): result.toolkit
            for result in conclusive
            if abs(result.toolkit.ratio - 1) > 1e-3 or result.toolkit.cosine <= 0.99999
        }
        assert wrong == {}

    def test_the_plain_trainers_is_four_times_too_long_for_most_heads(self, results) -> None:
        """Checks that the scan detects the fault that it is meant for."""
        four = [result for result in results if not result.reasons and abs(result.trainer.ratio - 4) <= 0.05]
        assert len(four) >= 20

    def test_in_one_piece_both_are_the_same(self, results) -> None:
        """Checks that the toolkit's update is also correct, not only equal across splits."""
        counted = sum(head_rows.LENGTHS)
        for result in results:
            expected = 1.0
            if result.case.head == "question answering":  # the Trainer's softmax runs over padding
                continue
            if (result.case.model, result.case.head) == ("GPT-2", "causal LM"):  # it counts a label too many per row
                expected = counted / (counted - len(head_rows.LENGTHS))
            assert result.unsplit.ratio == pytest.approx(expected, abs=1e-6), result
            assert result.unsplit.cosine == pytest.approx(1.0, abs=1e-9), result

    def test_batch_dependent_models_are_known_and_do_differ(self, results) -> None:
        dependent = [result for result in results if result.reasons]
        assert {result.case.model for result in dependent} == {"ResNet", "Wav2Vec2 group", "HuBERT group"}
        assert all(result.toolkit.cosine < 0.9999 for result in dependent)

    def test_the_page_says_what_is_measured(self, results) -> None:
        for line, result in zip(table()[2:], results, strict=True):
            found, measured = cells(line), result.cells()
            assert found[:2] + found[6:] == measured[:2] + measured[6:]
            numbers = [float(cell) for cell in measured[2:6]]
            assert [float(cell) for cell in found[2:6]] == pytest.approx(numbers, abs=0.002), line
