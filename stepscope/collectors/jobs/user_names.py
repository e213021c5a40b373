"""What is a user called? Asked aside: a directory service may hang."""

from __future__ import annotations

import pwd
import threading

from stepscope.collectors.host.files import Files, Unread

_MOST = 1000


class UserNames:
    """Names by user id; the number until the name is known, and where there is none."""

    def __init__(self, files: Files) -> None:
        """
        Args:
            files: of the machine. Where they are another's than ours, its /etc/passwd alone is asked.
        """
        self._files = files
        self._names: dict[int, str] = {}
        self._asking: threading.Thread | None = None

    def name(self, uid: int | None) -> str:
        """The name now; waits for nothing."""
        if uid is None:
            return ""
        if uid not in self._names:
            if len(self._names) >= _MOST:
                self._names.clear()
            self._names |= _of_passwd(self._files, uid)
        if uid not in self._names:
            self._ask(uid)
        return self._names.get(uid, str(uid))

    def _ask(self, uid: int) -> None:
        if self._files.is_mounted:
            self._names[uid] = str(uid)
        elif self._asking is None or not self._asking.is_alive():  # one that hangs is waited for, in its own thread
            self._asking = threading.Thread(target=self._look_up, args=(uid,), name="stepscope-users", daemon=True)
            self._asking.start()

    def _look_up(self, uid: int) -> None:
        try:
            self._names[uid] = pwd.getpwuid(uid).pw_name
        except (KeyError, OSError):
            self._names[uid] = str(uid)  # there is none: not asked again


def _of_passwd(files: Files, uid: int) -> dict[int, str]:
    text = files.read("etc/passwd")
    for line in [] if isinstance(text, Unread) else text.splitlines():
        parts = line.split(":")
        if len(parts) > 2 and parts[2] == str(uid):
            return {uid: parts[0]}
    return {}
