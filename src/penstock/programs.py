"""Programs that do not outlive the process that started them, even if that is killed with SIGKILL.

A supervisor stands between the two: this module, run as a program that imports nothing but the
standard library. It leads a session of its own, and in that a process group. When the starter dies
it kills the group: the program and all that the program started, but for what has left the group.
When the program ends it ends the same way.

On other systems than Linux, and where Python or the kernel has no pidfd_open(2), a program is
started without a supervisor.
"""

import ctypes
import errno
import os
import select
import shutil
import signal
import sys
import threading
from collections.abc import Sequence
from contextlib import suppress
from typing import TYPE_CHECKING, Any, Final, NoReturn

if TYPE_CHECKING:
    import asyncio

_PR_SET_PDEATHSIG: Final = 1
_PF_EXITING: Final = 0x4
_NOT_STARTED: Final = 127


async def start_program(command: Sequence[str], **options: Any) -> "asyncio.subprocess.Process":
    """As asyncio.create_subprocess_exec, in a session of its own, for a program that ends with us.

    Kill its process group to end it with all that it started; killing the process alone ends the
    program. Raises OSError if there is no such program; one that cannot be run all the same, as a
    script without its interpreter, ends with exit code 127 and says why on its standard error.
    """
    import asyncio  # the supervisor, which is this module too, starts without it

    return await asyncio.create_subprocess_exec(
        *_supervised(command), start_new_session=True, **options
    )


def _supervised(command: Sequence[str]) -> Sequence[str]:
    if sys.platform != "linux" or not hasattr(os, "pidfd_open"):
        return command
    if shutil.which(command[0]) is None:
        code = errno.EACCES if os.path.exists(command[0]) else errno.ENOENT  # noqa: PTH110
        raise OSError(code, os.strerror(code), command[0])
    return (sys.executable, "-I", "-S", __file__, str(os.getpid()), *command)


def end_with_parent() -> None:
    """Have this process killed as soon as its parent ends, whatever its threads wait for."""
    parent = os.getppid()
    try:
        ended = os.pidfd_open(parent)
    except (OSError, AttributeError):
        return  # gone before we looked, or nobody can be told here
    if os.getppid() != parent:
        os.kill(os.getpid(), signal.SIGKILL)

    def wait() -> None:
        select.select([ended], [], [])
        os.kill(os.getpid(), signal.SIGKILL)

    threading.Thread(target=wait, name="penstock-end-with-parent", daemon=True).start()


def _supervise(starter: int, command: Sequence[str]) -> None:
    try:
        starter_ended = os.pidfd_open(starter)
    except ProcessLookupError:
        os._exit(_NOT_STARTED)
    except OSError:
        _run([*command])  # the kernel does not have it, or does not let us
    if os.getppid() != starter:
        os._exit(_NOT_STARTED)
    supervisor = os.getpid()
    program = os.fork()
    if program == 0:
        _become([*command], supervisor)
    program_ended = os.pidfd_open(program)
    _let_go_of_all_but(starter_ended, program_ended)
    select.select([starter_ended, program_ended], [], [])
    if _is_ending(starter, starter_ended) and os.getpgrp() == supervisor:
        os.killpg(supervisor, signal.SIGKILL)
    code = os.waitstatus_to_exitcode(os.waitpid(program, 0)[1])
    if code < 0:
        with suppress(OSError, ValueError):  # SIGKILL cannot be set
            signal.signal(-code, signal.SIG_DFL)
        os.kill(supervisor, -code)
    os._exit(code)


def _is_ending(pid: int, ended: int) -> bool:
    """Whether a process has ended, or is about to: it closes its pipes before, and a program that
    sees that may end sooner than its starter. Source: proc_pid_stat(5), flags; PF_EXITING."""
    if select.select([ended], [], [], 0)[0]:
        return True
    try:
        # The name of its program, between the parentheses, may be any bytes.
        with open(f"/proc/{pid}/stat", "rb") as stat:  # noqa: PTH123
            return bool(int(stat.read().rpartition(b")")[2].split()[6]) & _PF_EXITING)
    except OSError:
        return True


def _become(command: list[str], supervisor: int) -> NoReturn:
    ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)
    if os.getppid() == supervisor:
        _run(command)
    os._exit(_NOT_STARTED)


def _run(command: list[str]) -> NoReturn:
    # Python ignores these, and a program would inherit that.
    for ignored in (signal.SIGPIPE, signal.SIGXFSZ):
        signal.signal(ignored, signal.SIG_DFL)
    try:
        os.execvp(command[0], command)  # noqa: S606
    except OSError as error:
        os.write(2, f"{command[0]} cannot be started: {error}\n".encode())
    os._exit(_NOT_STARTED)


def _let_go_of_all_but(*kept: int) -> None:
    """Pipes and locks are the program's: the supervisor must not keep them open."""
    nowhere = os.open(os.devnull, os.O_RDWR)
    for standard in range(3):
        os.dup2(nowhere, standard)
    for name in os.listdir("/proc/self/fd"):  # noqa: PTH208
        if (descriptor := int(name)) > 2 and descriptor not in kept:
            with suppress(OSError):  # that of the listing itself
                os.close(descriptor)


if __name__ == "__main__":
    _supervise(int(sys.argv[1]), sys.argv[2:])
