"""Access to the Go test that runs these programs and starts and stops servers for them."""

import faulthandler
import os
import sys
import threading
import unittest

asking = threading.Lock()
hosted = not sys.stdin.isatty() and bool(os.environ.get("NEARCALL_HOST"))

def ask(*words):
    """Sends a request to the Go test and returns its response."""
    if not hosted:
        raise unittest.SkipTest("servers are started by the Go test: go test ./foreign, in interop")
    faulthandler.dump_traceback_later(90, exit=True)  # shows where a test hangs
    with asking:
        print(*words, file=sys.__stdout__, flush=True)
        answer = sys.stdin.readline().rstrip("\n")
    if not answer or answer.startswith("error: "):
        raise AssertionError(f"{' '.join(words)}: {answer}")
    return answer


class Server:
    """A nearcall server in Go."""

    def __init__(self, network="unix", **options):
        self.target = ask("serve", network, *(f"{name}={n}" for name, n in options.items()))

    def open(self):
        """Lets one call that waits at the gate continue."""
        ask("open", self.target)

    def ended(self, seconds=10):
        """Returns the context's error of a call that ended while it waited at the gate.

        If there is none for that many seconds, it returns None.
        """
        answer = ask("ended", self.target, str(seconds))
        return None if answer == "none" else answer

    def drain(self):
        ask("drain", self.target)

    def stop(self):
        ask("stop", self.target)
