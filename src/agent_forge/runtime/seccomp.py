"""A system call filter for the sandbox, as the kernel's BPF program (see seccomp(2) and bwrap's --seccomp).

Namespaces already keep the code away from files, processes and the network; this takes away the calls with which it
could look for holes in the kernel: new namespaces, mounts, tracing, kernel modules, and sockets that no network
namespace contains (vsock, netlink).
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

_NEW_EVERYWHERE = (425, 426, 427, 428, 429, 430, 431, 432, 433, 438, 442)  # io_uring, the new mount calls, pidfd_getfd
# Calls by machine: audit architecture, clone, socket, and those that are refused.
MACHINES: dict[str, tuple[int, int, int, tuple[int, ...]]] = {
    "x86_64": (
        0xC000003E,
        56,
        41,
        (
            272,
            308,
            165,
            166,
            155,
            161,
            101,
            310,
            311,
            246,
            320,
            175,
            313,
            176,
            321,
            298,
            323,
            250,
            248,
            249,
            303,
            304,
            167,
            168,
            169,
            179,
            163,
            164,
            227,
            159,
            135,
            312,
            154,
            *_NEW_EVERYWHERE,
        ),
    ),
    "aarch64": (
        0xC00000B7,
        220,
        198,
        (
            97,
            268,
            40,
            39,
            41,
            51,
            117,
            270,
            271,
            104,
            294,
            105,
            273,
            106,
            280,
            241,
            282,
            219,
            217,
            218,
            264,
            265,
            224,
            225,
            142,
            60,
            89,
            170,
            112,
            171,
            92,
            272,
            *_NEW_EVERYWHERE,
        ),
    ),
}
_CLONE3 = 435  # its flags are behind a pointer; without it the C library uses clone
_X32 = 0x40000000  # a second set of numbers for the same calls


def program(machine: str | None = None) -> bytes | None:
    """The filter for a machine; None where the numbers of its calls are not known here.

    >>> len(program("x86_64")) % 8, program("pdp11")
    (0, None)
    """
    known = MACHINES.get(machine or platform.machine())
    if known is None:
        return None
    architecture, clone, socket, refused = known
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
    for number in refused:
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


def _step(code: int, value: int, if_true: int = 0, if_false: int = 0) -> bytes:
    return struct.pack("<HBBI", code, if_true, if_false, value)
