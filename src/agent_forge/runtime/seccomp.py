"""A system call filter for the sandbox, as the kernel's BPF program (see seccomp(2) and bwrap's --seccomp).

Namespaces already keep the code away from files, processes and the network; this takes away the calls with which it
could look for holes in the kernel: new namespaces, mounts, tracing, kernel modules, and sockets that no network
namespace contains (vsock, netlink). Memory that is outside a process (nameless files, shared memory) is refused too,
since no limit would hold for it.
"""

from __future__ import annotations

import platform
import struct

ALLOW, KILL = 0x7FFF0000, 0x80000000
REFUSE = 0x00050000  # plus the error number
EPERM, ENOSYS = 1, 38
NEW_NAMESPACES = 0x7E020000  # CLONE_NEWNS, NEWCGROUP, NEWUTS, NEWIPC, NEWUSER, NEWPID, NEWNET
FAMILIES = (1, 2, 10)  # unix, inet, inet6: the last two find an empty network

_LOAD, _EQUAL, _ANY_BIT, _AT_LEAST, _RETURN = 0x20, 0x15, 0x45, 0x35, 0x06
_NUMBER, _ARCH, _FIRST_ARGUMENT = 0, 4, 16  # places in struct seccomp_data

# The calls that are refused, with their numbers on x86_64 and aarch64.
# fmt: off
_REFUSED: dict[str, tuple[int, int | None]] = {
    "unshare": (272, 97), "setns": (308, 268), "mount": (165, 40), "umount2": (166, 39),
    "pivot_root": (155, 41), "chroot": (161, 51), "ptrace": (101, 117),
    "process_vm_readv": (310, 270), "process_vm_writev": (311, 271),
    "kexec_load": (246, 104), "kexec_file_load": (320, 294),
    "init_module": (175, 105), "finit_module": (313, 273), "delete_module": (176, 106),
    "bpf": (321, 280), "perf_event_open": (298, 241), "userfaultfd": (323, 282),
    "keyctl": (250, 219), "add_key": (248, 217), "request_key": (249, 218),
    "name_to_handle_at": (303, 264), "open_by_handle_at": (304, 265),
    "swapon": (167, 224), "swapoff": (168, 225), "reboot": (169, 142), "quotactl": (179, 60),
    "acct": (163, 89), "settimeofday": (164, 170), "clock_settime": (227, 112),
    "adjtimex": (159, 171), "personality": (135, 92), "kcmp": (312, 272), "modify_ldt": (154, None),
    # Memory that no limit of the process counts.
    "memfd_create": (319, 279), "shmget": (29, 194), "msgget": (68, 186),
}
# fmt: on
# The same numbers on both: io_uring_*, the new mount calls, pidfd_getfd, memfd_secret.
_REFUSED_EVERYWHERE = (425, 426, 427, 428, 429, 430, 431, 432, 433, 438, 442, 447)
# By machine: the audit architecture, clone, socket, and the column of `_REFUSED`.
MACHINES = {"x86_64": (0xC000003E, 56, 41, 0), "aarch64": (0xC00000B7, 220, 198, 1)}
_CLONE3 = 435  # its flags are behind a pointer; without it the C library uses clone
_X32 = 0x40000000  # a second set of numbers for the same calls


def program(machine: str | None = None) -> bytes | None:
    """The filter for a machine; None for a machine whose call numbers are not listed here.

    >>> len(program("x86_64")) % 8, program("pdp11")
    (0, None)
    """
    numbers = MACHINES.get(machine or platform.machine())
    if numbers is None:
        return None
    architecture, clone, socket, column = numbers
    code = [
        _step(_LOAD, _ARCH),
        _step(_EQUAL, architecture, 1, 0),
        _step(_RETURN, KILL),
        _step(_LOAD, _NUMBER),
        _step(_AT_LEAST, _X32, 0, 1),
        _step(_RETURN, REFUSE + EPERM),
        _step(_EQUAL, _CLONE3, 0, 1),
        _step(_RETURN, REFUSE + ENOSYS),
    ]
    for number in refused_calls(column):
        code += [_step(_EQUAL, number, 0, 1), _step(_RETURN, REFUSE + EPERM)]
    code += [
        _step(_EQUAL, clone, 0, 4),
        _step(_LOAD, _FIRST_ARGUMENT),
        _step(_ANY_BIT, NEW_NAMESPACES, 0, 1),
        _step(_RETURN, REFUSE + EPERM),
        _step(_RETURN, ALLOW),
        _step(_EQUAL, socket, 0, len(FAMILIES) + 2),
        _step(_LOAD, _FIRST_ARGUMENT),
        *(_step(_EQUAL, family, len(FAMILIES) - place, 0) for place, family in enumerate(FAMILIES)),
        _step(_RETURN, REFUSE + EPERM),
        _step(_RETURN, ALLOW),
    ]
    return b"".join(code)


def refused_calls(column: int) -> list[int]:
    """The numbers of the calls that are refused on one machine."""
    numbers = [each[column] for each in _REFUSED.values()]
    return [*(number for number in numbers if number is not None), *_REFUSED_EVERYWHERE]


def _step(code: int, value: int, if_true: int = 0, if_false: int = 0) -> bytes:
    return struct.pack("<HBBI", code, if_true, if_false, value)
