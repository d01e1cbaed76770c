"""The Go test that runs these programs: it starts and stops servers for them."""

import faulthandler
import os
import sys
import threading
import unittest

asking = threading.Lock()
hosted = not sys.stdin.isatty() and bool(os.environ.get("NEARCALL_HOST"))

if hosted:
    faulthandler.dump_traceback_later(90, exit=True)  # a test that hangs says where


def ask(*words):
    """Asks the Go test for something."""
    if not hosted:
        raise unittest.SkipTest("servers are started by the Go test: go test ./foreign, in interop")
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
        """Lets one call that waits at the gate go on."""
        ask("open", self.target)

    def ended(self):
        """What a call found that ended at the gate: its context's error."""
        return ask("ended", self.target)

    def drain(self):
        ask("drain", self.target)

    def stop(self):
        ask("stop", self.target)
