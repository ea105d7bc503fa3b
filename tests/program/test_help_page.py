"""The page that `--help` prints."""

import pytest

from sparq.program.flags import flags_of
from sparq.program.help_page import page
from tests.program.sample import Options, options


@pytest.mark.parametrize("flag", ["-h", "-help", "--help"])
def test_help_ends_with_0(capsys: pytest.CaptureFixture[str], flag: str) -> None:
    """`--help` prints every flag with type, text and default on stdout, and ends with 0."""
    with pytest.raises(SystemExit) as end:
        options(flag)

    assert end.value.code == 0
    text = " ".join(capsys.readouterr().out.split())
    assert "--msg-timeout duration time (default 1m0s)" in text
    assert '--tcp-address string where; 100% sure (default "0.0.0.0:1")' in text
    assert '--log-level level level (default "info")' in text
    assert "--peer string peers (may be given several times)" in text


def test_the_flags_are_in_alphabetical_order() -> None:
    """The help page lists all flags alphabetically, without argparse's own `-h`."""
    flags = flags_of(Options)
    text = page("prog", flags[::-1])

    shown = [line.split()[0] for line in text.splitlines() if line.startswith("  --")]
    assert shown == sorted(f"--{flag.name}" for flag in flags)
    assert text.startswith("usage: prog [flags]\n")
    assert "-h," not in text
