"""A bar on standard error while a model is fetched and loaded."""

from __future__ import annotations

import sys
import time

WIDTH = 24
PATIENCE = 0.5
"""What takes less than this many seconds has no bar."""


class Bar:
    """Called with a line, bytes done and bytes in all; an empty line ends it."""

    def __init__(self) -> None:
        self._line = ""
        self._since = time.monotonic()
        self._shown = 0

    def __call__(self, line: str, done: int, total: int | None) -> None:
        now = time.monotonic()
        if line != self._line:
            self._clear()
            self._line, self._since = line, now
        if not line or now - self._since < PATIENCE:
            return
        text = line
        if total:
            part = min(done / total, 1.0)
            full = int(part * WIDTH)
            text = f"{line} [{'=' * full}{' ' * (WIDTH - full)}] {done / 1e6:.0f}/{total / 1e6:.0f} MB"
        elif done:
            text = f"{line} {done / 1e6:.0f} MB"
        self._show(text)

    def _show(self, text: str) -> None:
        if sys.stderr is None:
            return
        sys.stderr.write("\r" + text.ljust(self._shown))
        sys.stderr.flush()
        self._shown = len(text)

    def _clear(self) -> None:
        if self._shown and sys.stderr is not None:
            sys.stderr.write("\r" + " " * self._shown + "\r")
            sys.stderr.flush()
        self._shown = 0
