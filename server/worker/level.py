"""What a sandbox is made of, by name, and what KERNEL_ENV_SANDBOX=required asks for. Pure; the server uses it too.

A level is the names of the features in force, joined by "+": "uid+mount+net+ipc+pid+landlock+scope+seccomp" is all of
them, "same-uid" at the beginning says that submissions run as the server's own user.
"""

from __future__ import annotations

from collections.abc import Collection

UID = "uid"  # a user of its own
SAME_UID = "same-uid"
MOUNT = "mount"  # a view of the files without the project, with a /tmp of its own
NET = "net"  # a network namespace with nothing in it
IPC = "ipc"  # System V and POSIX message objects of its own
PID = "pid"  # sees and signals only its own processes, which all die with one
LANDLOCK = "landlock"  # writes only below its working directory, reads nothing of the project
SCOPE = "scope"  # Landlock: no signal and no abstract Unix socket reaches outside
SECCOMP = "seccomp"  # no dangerous system calls, no sockets but Unix ones

FEATURES = (UID, MOUNT, NET, IPC, PID, LANDLOCK, SCOPE, SECCOMP)
NEEDS = {PID: {MOUNT}, SCOPE: {LANDLOCK}}
"""A feature of the key works only together with those of the value."""


def describe(features: Collection[str]) -> str:
    """The level as a string."""
    names = [name for name in FEATURES[1:] if name in features]
    return "+".join([UID if UID in features else SAME_UID, *names])


def shortfall(level: str) -> str | None:
    """What `level` lacks of what KERNEL_ENV_SANDBOX=required asks for, as a clause; None when it has all.

    Required are another user, no network, and neither reading the project's files nor leaving any behind. Each of the
    last two can be had in two ways, so that a container without namespaces can meet it with Landlock and seccomp.
    """
    features = level.split("+")
    missing = []
    if UID not in features:
        missing.append("another user than the server's (start it as root)")
    if not {NET, SECCOMP} & set(features):
        missing.append("no network (a network namespace or seccomp)")
    if not {MOUNT, LANDLOCK} & set(features):
        missing.append("private files (a mount namespace or Landlock)")
    return ", ".join(missing) or None
