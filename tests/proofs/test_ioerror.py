"""A few failing system calls and the control; and how injected errors are counted."""

from pathlib import Path

import pytest
from proofs.outcome import Plan

from proofs import ioerror
from tests.support import strace

needs_strace = pytest.mark.skipif(bool(strace.missing()), reason=strace.missing() or "-")
RECORD = """\
7 openat(3</x>, "1.log", O_RDWR|O_CREAT|O_EXCL, 0600) = 9</x/1.log>
7 fdatasync(9</x/1.log> <unfinished ...>
8 fdatasync(5</x/ledger>)     = -1 EIO (Input/output error) (INJECTED)
7 <... fdatasync resumed>)    = -1 EIO (Input/output error) (INJECTED)
8 fdatasync(5</x/ledger>)     = 0
8 fdatasync(6</x/2.log>)      = 0
"""


@needs_strace
@pytest.mark.timeout(300)
def test_failing_calls_lose_nothing() -> None:
    """nsqd with failing calls keeps running, acknowledges only synced messages, and loses none."""
    outcome = ioerror.prove(Plan(seed=20261121, count=10, control=False))

    assert outcome.held, outcome.figures


@needs_strace
@pytest.mark.timeout(300)
def test_the_proof_finds_ignored_sync_errors(tmp_path: Path) -> None:
    """An nsqd that ignores failed syncs acknowledges messages that are not on disk."""
    assert ioerror.run_control(tmp_path, 20261121) > 0


def test_injected_errors_are_counted_once(tmp_path: Path) -> None:
    """Each failed call counts once, also if strace prints it in two parts."""
    (tmp_path / "record").write_text(RECORD)

    assert {"fdatasync": 2} == strace.Record(tmp_path / "record").injected()


def test_a_file_that_is_synced_again_is_found(tmp_path: Path) -> None:
    """A segment must not be synced after its sync has failed; a new file of its name may be."""
    record = strace.Record(tmp_path / "record")
    again = "7 fdatasync(9</x/1.log>)     = 0\n"

    record.path.write_text(RECORD)
    assert [] == record.synced_again()
    record.path.write_text(RECORD + again)
    assert ["/x/1.log"] == record.synced_again()
    record.path.write_text(RECORD + RECORD.splitlines()[0] + "\n" + again)
    assert [] == record.synced_again()
    renamed = 'renameat(3</x>, "1.next", 3</x>, "1.log") = 0'
    record.path.write_text(RECORD + f"7 {renamed}\n" + again)
    assert [] == record.synced_again()
    record.path.write_text(RECORD + f"7 {renamed.replace('1.log', '2.log')}\n" + again)
    assert ["/x/1.log"] == record.synced_again()
