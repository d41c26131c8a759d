import platform
import subprocess
import sys

import pytest

_FAULTS = """
import resource
import torch
{before}
def faults():
    start = resource.getrusage(resource.RUSAGE_SELF).ru_minflt
    for _ in range(10):
        torch.ones(10_000_000)
    return resource.getrusage(resource.RUSAGE_SELF).ru_minflt - start
faults()
print(faults())
"""
_KEEP = "from meanteacher.cli.memory import keep_freed_memory; keep_freed_memory()"


def page_faults(before: str) -> int:
    command = [sys.executable, "-c", _FAULTS.format(before=before)]
    return int(subprocess.run(command, capture_output=True, check=True, text=True).stdout)


@pytest.mark.skipif(platform.libc_ver()[0] != "glibc", reason="only glibc can be asked")
def test_freed_memory_is_used_again_without_asking_the_system() -> None:
    assert page_faults("") > 100  # else there would be nothing to gain, and nothing shown below
    assert page_faults(_KEEP) < 10


def test_the_command_asks_for_it_before_it_does_anything(monkeypatch: pytest.MonkeyPatch) -> None:
    done = []
    monkeypatch.setattr("meanteacher.cli.app.keep_freed_memory", lambda: done.append("keep"))
    monkeypatch.setattr("meanteacher.cli.app.app", lambda: done.append("command") or 0)
    from meanteacher.cli import main

    with pytest.raises(SystemExit) as end:
        main()
    assert done == ["keep", "command"]
    assert end.value.code == 0
