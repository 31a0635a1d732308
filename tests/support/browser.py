"""A real browser without a window, driven by its own debugging protocol.

``python -m tests.support.browser`` says in one sentence what to install when there is none. With ``--install``,
Debian's Chromium is installed first, if that needs no password. Without a browser only the tests that need one are
skipped, so the exit status is 0 all the same.

Guarantee: each page is opened in a new tab; what it complains of while it is driven (exceptions, refused requests,
errors on its console) is in ``complaints``, and nothing of an earlier page. After ``close`` the browser has ended.
The protocol goes over two pipes, so there is no port. Each wait has a deadline.
"""

from __future__ import annotations

import json
import os
import select
import shutil
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

from spark_client.connection import Closable
from tests.support import debian
from tests.support.polling import eventually

MISSING = "the dashboard is not tested in a browser: none is on PATH (Debian: apt-get install chromium)"
DEADLINE_SECONDS = 90.0

_NAMES = ("chromium", "chromium-browser", "google-chrome", "google-chrome-stable")
# Without a window, in a container, and with no words to any host but the one that is tested.
_FLAGS = (
    "--headless",
    "--no-sandbox",
    "--disable-gpu",
    "--disable-dev-shm-usage",
    "--disable-quic",
    "--disable-background-networking",
    "--disable-component-update",
    "--disable-sync",
    "--no-first-run",
    "--remote-debugging-pipe",
)
# The browser takes the protocol at its descriptor 3 and answers at 4.
_AT_3_AND_4 = 'exec "$@" 3<"/dev/fd/$COMMANDS" 4>"/dev/fd/$ANSWERS"'


class NoBrowserError(Exception):
    """There is none, or the one that there is does not start here."""


def find() -> str | None:
    """Return the path of a browser, or None."""
    return next(filter(None, map(shutil.which, _NAMES)), None)


class Browser(Closable):
    """One browser with one page at a time; also a context manager that closes it."""

    def __init__(self, profile: Path) -> None:
        """Start it with an empty profile directory.

        Raises:
            NoBrowserError: it says why.
        """
        program = find()
        if program is None:
            raise NoBrowserError(MISSING)
        self.complaints: list[str] = []
        self._target: str | None = None
        self._session: str | None = None
        self._calls = 0
        self._unread = b""
        log = profile.with_suffix(".log")
        commands, self._commands = os.pipe()
        self._answers, answers = os.pipe()
        with log.open("wb") as words:
            self._process = subprocess.Popen(
                ["/bin/sh", "-c", _AT_3_AND_4, "sh", program, *_FLAGS, f"--user-data-dir={profile}"],
                env={**os.environ, "COMMANDS": str(commands), "ANSWERS": str(answers)},
                pass_fds=(commands, answers),
                stdin=subprocess.DEVNULL,
                stdout=words,
                stderr=words,
                start_new_session=True,
            )
        os.close(commands)
        os.close(answers)
        try:
            self.leave()
        except (OSError, RuntimeError) as error:
            self.close()
            said = log.read_text(errors="replace").strip()[-1000:]
            raise NoBrowserError(f"{program} does not start here: {error}\n{said}") from error
        except BaseException:
            self.close()
            raise

    def open(self, url: str, *, width: int = 1280, before: str = "") -> None:
        """Load a page and return when it has loaded.

        Args:
            width: of the window, in the page's own pixels.
            before: a script that runs in the page before its own ones.
        """
        self.leave()
        size = {"width": width, "height": 800, "deviceScaleFactor": 1, "mobile": False}
        self._call("Emulation.setDeviceMetricsOverride", **size)
        self._call("Page.addScriptToEvaluateOnNewDocument", source=before)
        self._call("Page.navigate", url=url)
        eventually(lambda: self.evaluate("document.readyState"), "complete")

    def leave(self) -> None:
        """Show an empty page: it asks no server, whose port may soon be another's."""
        earlier, self._session = self._target, None
        self._target = self._call("Target.createTarget", url="about:blank")["targetId"]
        if earlier is not None:
            self._call("Target.closeTarget", targetId=earlier)
        attached = self._call("Target.attachToTarget", targetId=self._target, flatten=True)
        self._session = attached["sessionId"]
        self.complaints.clear()
        for domain in ("Page", "Runtime", "Log"):
            self._call(f"{domain}.enable")

    def prefer(self, scheme: str) -> None:
        """Have the page's user prefer the colours ``light`` or ``dark``."""
        features = [{"name": "prefers-color-scheme", "value": scheme}]
        self._call("Emulation.setEmulatedMedia", features=features)

    def evaluate(self, script: str) -> Any:
        """Run an expression in the page; its value as JSON has it, a promise's when it is kept.

        Raises:
            RuntimeError: it raised.
        """
        answer = self._call("Runtime.evaluate", expression=script, returnByValue=True, awaitPromise=True)
        if "exceptionDetails" in answer:
            raise RuntimeError(f"{script}: {_thrown(answer['exceptionDetails'])}")
        return answer["result"].get("value")

    def close(self) -> None:
        """End the browser, by force if need be; may be called twice."""
        if self._commands < 0:
            return
        # Chromium ends when the pipe does.
        os.close(self._commands)
        self._commands = -1
        try:
            self._process.wait(10)
        except subprocess.TimeoutExpired:
            os.killpg(self._process.pid, signal.SIGKILL)
            self._process.wait()
        os.close(self._answers)

    def _call(self, method: str, **params: Any) -> dict[str, Any]:
        """Send a command and return its answer; what comes before that is looked through for complaints."""
        self._calls += 1
        message: dict[str, Any] = {"id": self._calls, "method": method, "params": params}
        if self._session is not None:
            message["sessionId"] = self._session
        data = json.dumps(message).encode() + b"\0"
        while data:
            data = data[os.write(self._commands, data) :]
        deadline = time.monotonic() + DEADLINE_SECONDS
        while (answer := self._receive(deadline)).get("id") != self._calls:
            self._look(answer)
        if "error" in answer:
            raise RuntimeError(f"{method}: {answer['error']['message']}")
        result: dict[str, Any] = answer["result"]
        return result

    def _receive(self, deadline: float) -> dict[str, Any]:
        while b"\0" not in self._unread:
            ready, _, _ = select.select([self._answers], [], [], max(0.0, deadline - time.monotonic()))
            if not ready:
                raise RuntimeError(f"the browser has not answered within {DEADLINE_SECONDS:g} s")
            more = os.read(self._answers, 1 << 16)
            if not more:
                raise RuntimeError("the browser has ended")
            self._unread += more
        first, _, self._unread = self._unread.partition(b"\0")
        message: dict[str, Any] = json.loads(first)
        return message

    def _look(self, event: dict[str, Any]) -> None:
        if event.get("sessionId") != self._session:
            return  # of an earlier page
        params = event.get("params", {})
        if event.get("method") == "Runtime.exceptionThrown":
            self.complaints.append(_thrown(params["exceptionDetails"]))
        elif event.get("method") == "Runtime.consoleAPICalled" and params["type"] in (
            "error",
            "warning",
            "assert",
        ):
            self.complaints.append(" ".join(str(each.get("value")) for each in params["args"]))
        elif event.get("method") == "Log.entryAdded" and params["entry"]["level"] in ("error", "warning"):
            self.complaints.append(f"{params['entry']['text']} {params['entry'].get('url', '')}".strip())


def _thrown(details: dict[str, Any]) -> str:
    return str(details.get("exception", {}).get("description") or details["text"])


def main() -> int:
    """Install a browser where that is asked for, or say what to install."""
    if find() is None and "--install" in sys.argv[1:]:
        debian.install("a browser", ["chromium"])
    if find() is None:
        print(MISSING, file=sys.stderr)
    return 0


if __name__ == "__main__":
    sys.exit(main())
