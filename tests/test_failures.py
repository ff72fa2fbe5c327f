"""A failure is reported while the run goes on."""

import os
from pathlib import Path

from tests.children import Child
from tests.test_cleanup import PYTEST, ROOT, environment
from tests.waiting import PATIENCE_SECONDS

CODE = """
def test_first():
    print("said " * 2)
    assert "seen" == "why"

def test_second():
    with open("{go}") as go:
        assert go.read() == ""
"""


def test_what_a_failed_test_says_is_printed_before_the_next_one_ends(tmp_path: Path) -> None:
    (tmp_path / "pytest.ini").write_text("[pytest]\n")
    go = tmp_path / "go"
    os.mkfifo(go)
    (tmp_path / "test_generated.py").write_text(CODE.format(go=go))
    command = (
        *(*PYTEST, "-c", str(tmp_path / "pytest.ini"), "-p", "tests.failures"),
        *("-n", "1", f"--timeout={PATIENCE_SECONDS}", "-p", "no:cacheprovider", str(tmp_path)),
    )
    with Child(*command, cwd=ROOT, env=environment()) as run:
        run.wait_until(lambda: any("said said" in line for line in run.lines))
        told = "\n".join(run.lines)
        go.open("w").close()
        rest = run.rest()
    assert "test_first failed (call)" in told
    assert "assert 'seen' == 'why'" in told
    assert "1 failed, 1 passed" in rest
