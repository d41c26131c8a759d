import platform
import subprocess
import sys

import pytest

_FAULTS = """
import ctypes, resource
libc = ctypes.CDLL(None)
libc.malloc.restype, libc.malloc.argtypes, libc.free.argtypes = ctypes.c_void_p, [ctypes.c_size_t], [ctypes.c_void_p]
def faults():
    start = resource.getrusage(resource.RUSAGE_SELF).ru_minflt
    activations = [libc.malloc(20_000_000) for _ in range(5)]
    for each in activations:
        ctypes.memset(each, 1, 20_000_000)
    for each in activations:
        libc.free(each)
    return resource.getrusage(resource.RUSAGE_SELF).ru_minflt - start
{before}
faults(), faults()
print(faults())
"""
_KEEP = "from meanteacher.cli.console import tune_malloc; tune_malloc()"


def page_faults(before: str) -> int:
    command = [sys.executable, "-c", _FAULTS.format(before=before)]
    return int(subprocess.run(command, capture_output=True, check=True, text=True).stdout)


@pytest.mark.skipif(platform.libc_ver()[0] != "glibc", reason="only glibc can be asked")
def test_freed_memory_is_used_again_without_asking_the_system() -> None:
    assert page_faults(_KEEP) < page_faults("") / 10


def test_the_command_asks_for_it_before_it_does_anything(monkeypatch: pytest.MonkeyPatch) -> None:
    done = []
    monkeypatch.setattr("meanteacher.cli.app.tune_malloc", lambda: done.append("malloc"))
    monkeypatch.setattr("meanteacher.cli.app.app", lambda **_: done.append("command") or 0)
    from meanteacher.cli import main

    with pytest.raises(SystemExit) as end:
        main()
    assert done == ["malloc", "command"]
    assert end.value.code == 0
