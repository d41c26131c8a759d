"""One process at a time, nothing left locked by one that died, and all of it on a system that is not POSIX too."""

import errno
import subprocess
import sys
import threading
from pathlib import Path

import pytest
from filelock import FileLock

from meanteacher import files
from meanteacher.files import HeldError, atomic_file, atomic_folder, locked, write_atomic, write_json
from support import child_environment, held_by_another_process


def test_a_lock_that_another_process_holds_is_refused_at_once_and_free_when_it_is_killed(tmp_path: Path):
    lock = tmp_path / ".lock"
    with held_by_another_process(lock), pytest.raises(HeldError), locked(lock):
        pass
    with locked(lock):
        pass


def test_a_lock_is_held_to_the_end_of_the_block_whatever_ends_it(tmp_path: Path):
    lock = tmp_path / ".lock"

    def fail() -> None:
        with locked(lock):
            with pytest.raises(HeldError), locked(lock):
                pass
            raise RuntimeError("in the block")

    with pytest.raises(RuntimeError, match="in the block"):
        fail()
    with locked(lock):
        pass


def test_a_lock_is_waited_for_when_asked_to(tmp_path: Path):
    other = FileLock(tmp_path / ".lock", thread_local=False)
    other.acquire()
    soon = threading.Timer(0.2, other.release)
    soon.start()
    with locked(tmp_path / ".lock", wait=60):
        assert not other.is_locked
    soon.join()


def test_a_folder_that_is_missing_is_not_made(tmp_path: Path):
    with pytest.raises(FileNotFoundError), locked(tmp_path / "gone" / ".lock"):
        pass
    assert not (tmp_path / "gone").exists()


def test_a_file_system_without_locks_is_an_error_of_the_system(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    def unknown(*_: object, **__: object) -> None:
        raise NotImplementedError

    monkeypatch.setattr(files.FileLock, "acquire", unknown)
    with pytest.raises(OSError, match="not implemented") as caught, locked(tmp_path / ".lock"):
        pass
    assert caught.value.errno == errno.ENOSYS


def _names(folder: Path) -> list[str]:
    return sorted(path.name for path in folder.iterdir())


def _left(folder: Path, name: str) -> None:
    """As one that was killed leaves it."""
    (folder / name).mkdir()
    (folder / name / "content").write_text("half")


def test_a_folder_takes_its_name_with_all_of_its_content_or_not_at_all(tmp_path: Path):
    for content in ("first", "second"):
        with atomic_folder(tmp_path / "a") as folder:
            (folder / content).touch()
        assert (_names(tmp_path), _names(tmp_path / "a")) == (["a"], [content])

    def fail() -> None:
        with atomic_folder(tmp_path / "a") as folder:
            (folder / "third").touch()
            raise RuntimeError("in the block")

    with pytest.raises(RuntimeError, match="in the block"):
        fail()
    assert (_names(tmp_path), _names(tmp_path / "a")) == (["a"], ["second"])


def test_a_folder_that_was_being_written_when_its_process_was_killed_is_removed_by_the_next(tmp_path: Path):
    (tmp_path / "b").mkdir()
    (tmp_path / "b" / "precious").touch()
    (tmp_path / ".writing-a-00000001").symlink_to(tmp_path / "b")
    for name in (".writing-a-0123abcd", ".old-a-0123abcd", ".old-a-456789ef"):
        _left(tmp_path, name)
    (tmp_path / ".lock-a-0123abcd").touch()
    (tmp_path / ".lock-a-456789ef").touch()
    others = [".old-a-notes", ".writing-a-0123abcd.txt", ".writing-aa-0123abcd", ".writing-b-0123abcd"]
    for name in others:
        _left(tmp_path, name)
    with atomic_folder(tmp_path / "a"):
        pass
    assert _names(tmp_path) == sorted([*others, "a", "b"])
    assert (tmp_path / "b" / "precious").exists()


def test_a_folder_that_another_process_is_writing_stays(tmp_path: Path):
    _left(tmp_path, ".writing-a-0123abcd")
    _left(tmp_path, ".old-a-0123abcd")
    with held_by_another_process(tmp_path / ".lock-a-0123abcd"), atomic_folder(tmp_path / "a"):
        pass
    assert _names(tmp_path) == [".lock-a-0123abcd", ".old-a-0123abcd", ".writing-a-0123abcd", "a"]


def test_what_was_there_before_a_kill_between_two_names_stays_until_there_is_something_else(tmp_path: Path):
    _left(tmp_path, ".writing-a-0123abcd")
    _left(tmp_path, ".old-a-0123abcd")
    with pytest.raises(OSError, match="full"), atomic_folder(tmp_path / "a"):
        raise OSError("full")
    assert _names(tmp_path) == [".old-a-0123abcd"]


# The libraries go first: they look at the name of the system, which is still that of this machine.
AS_ON_WINDOWS = """
import importlib, mmap, os, pkgutil, signal, sys
import filelock, matplotlib.pyplot, rich.console, scipy.stats, sklearn.datasets, torch, typer
import torch._dynamo

for name in ("fcntl", "grp", "posix", "pty", "pwd", "readline", "resource", "syslog", "termios", "tty"):
    sys.modules[name] = None
for module, names in (
    (os, "chown fchmod fchown fork forkpty getegid geteuid getgid getgroups getloadavg getuid killpg mkfifo nice "
         "O_CLOEXEC O_DIRECTORY O_DSYNC O_SYNC posix_fadvise posix_fallocate pread preadv pwrite pwritev "
         "sched_getaffinity sched_setaffinity sendfile setsid sysconf uname wait3 wait4"),
    (signal, "SIGALRM SIGHUP SIGKILL SIGPIPE SIGQUIT SIGUSR1 SIGXCPU SIGXFSZ alarm pause setitimer sigwait"),
    (mmap, "MADV_DONTNEED MADV_RANDOM MADV_SEQUENTIAL MADV_WILLNEED"),
):
    for name in names.split():
        if hasattr(module, name):
            delattr(module, name)

really_open = os.open
def open_no_folder(path, *rest, **more):
    if os.path.isdir(path):
        raise PermissionError(13, "Permission denied", os.fspath(path))
    return really_open(path, *rest, **more)
os.open = open_no_folder
"""


def as_on_windows(script: str, *arguments: str) -> None:
    command = [sys.executable, "-c", AS_ON_WINDOWS + script, *arguments]
    done = subprocess.run(command, env=child_environment(), check=False, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr


def test_every_module_can_be_imported_where_there_is_nothing_of_posix():
    as_on_windows(
        "import meanteacher\n"
        "names = [module.name for module in pkgutil.walk_packages(meanteacher.__path__, 'meanteacher.')]\n"
        "for name in names: importlib.import_module(name)\n"
        "assert len(names) > 100, names\n"
    )


def test_a_run_is_trained_interrupted_and_resumed_where_there_is_nothing_of_posix(tmp_path: Path):
    as_on_windows(
        "from pathlib import Path\n"
        "from meanteacher.experiment import run\n"
        "from meanteacher.train import StopWhen\n"
        "from support import MadeUp, recipe\n"
        "out, small = Path(sys.argv[1]), recipe(steps=10)\n"
        "asked = iter([False] * 6 + [True])\n"
        "run(small, seed=0, out=out, data=MadeUp().load(out), callbacks=[StopWhen(lambda: next(asked))])\n"
        "record = run(small, seed=0, out=out, data=MadeUp().load(out), resume=True)\n"
        "assert record.step == 10, record\n",
        str(tmp_path / "run"),
    )
    assert (tmp_path / "run" / "record.json").exists()


def test_images_are_decoded_and_labelled_where_there_is_nothing_of_posix(tmp_path: Path):
    as_on_windows(
        "from pathlib import Path\n"
        "from meanteacher.photos.folder.cache import decode_all\n"
        "from label_example import KNOWN, make_example\n"
        "example = make_example(Path(sys.argv[1]))\n"
        "window = example.window()\n"
        "assert decode_all(window.session.photos, 6, example.run / 'cache').images.any(axis=(1, 2, 3)).all()\n"
        "window.answer('owl')\n"
        "assert example.labels() == {**KNOWN, 'unlabelled/one.jpg': 'owl'}\n",
        str(tmp_path),
    )


def test_a_file_is_replaced_whole_or_stays_as_it_was_and_nothing_is_left_beside_it(tmp_path: Path):
    path = tmp_path / "file"
    assert write_atomic(path, "first").read_text() == "first"

    def write_half() -> None:
        with atomic_file(path) as file:
            file.write(b"half")
            assert path.read_text() == "first"
            raise ZeroDivisionError

    with pytest.raises(ZeroDivisionError):
        write_half()
    assert path.read_text() == "first"
    assert write_atomic(path, b"\xff").read_bytes() == b"\xff"
    assert write_json(path, {"a": [1, None]}).read_text() == '{\n "a": [\n  1,\n  null\n ]\n}'
    assert list(tmp_path.iterdir()) == [path]
