#!/usr/bin/env python3
"""The tournament of the C++ library: nearcall, gRPC C++ and Cap'n Proto, and what the system itself costs.

Builds the peers and runs each row with each of them, in turns: what the machine does besides hits all of them. It prints tables with the median
of the turns, their range, and the ratio to gRPC's callback API over a unix socket. With --write it writes docs/results/cpp.csv and its chart.
Debian's packages: make cpp's, pkg-config libgrpc++-dev protobuf-compiler-grpc libcapnp-dev capnproto; and Go.
"""
import argparse, csv, os, pathlib, platform, shutil, signal, statistics, subprocess, sys, tempfile, time

here = pathlib.Path(__file__).resolve().parent
root = here.parent.parent

ROWS = {  # row: what is measured
    "empty": "empty call",
    "32B": "32 bytes",
    "nested": "nested record",
    "1MB": "1 MB there and back",
    "10MB": "10 MB there and back",
    "down100": "stream of 100 from the server",
    "up100": "stream of 100 to the server",
    "64callers": "64 callers, 1 connection, each call",
    "64callers16": "64 callers, 16 connections, each call",
}
KEPT = {"GLIBC_TUNABLES": "glibc.malloc.trim_threshold=1073741824:glibc.malloc.mmap_threshold=1073741824:glibc.malloc.mmap_max=0"}
REFERENCE = "gRPC callback, unix"


class Pair:
    """A server and the client that calls it."""

    def __init__(self, name, server, client, target, env=None, rows=None):
        self.name, self.server, self.client, self.target = name, server, client, target
        self.env, self.rows = env or {}, rows
        self.process = self.address = None

    def start(self, directory):
        target = self.target.replace("DIR", directory + "/" + "".join(c if c.isalnum() else "-" for c in self.name))
        self.process = subprocess.Popen([self.server, "serve", target], stdout=subprocess.PIPE, text=True, env=os.environ | self.env)
        self.address = self.process.stdout.readline().strip()
        if not self.address:
            sys.exit(f"{self.name}: the server did not start")

    def stop(self):
        if self.process:
            self.process.kill()
            self.process.wait()

    def has(self, row):
        return self.rows is None or row in self.rows

    def run(self, row, seconds):
        for attempt in range(3):
            done = subprocess.run([self.client, "call", self.address, row, str(seconds)], capture_output=True, text=True, timeout=120,
                                  env=os.environ | self.env)
            if done.returncode == 0:
                return float(done.stdout)
            print(f"{self.name}, {row}: {done.stderr.strip()}", file=sys.stderr)
            if "C++" in self.name or "nearcall" in self.name:
                break  # only rivals may fail
        sys.exit(1)

    def tail(self, seconds):
        """The median, p99, p99.9 and the longest of calls of 32 bytes, with each side pinned to a processor."""
        pin(self.process.pid, {0})
        try:
            done = subprocess.run(["taskset", "-c", "1", self.client, "call", self.address, "tail", str(seconds)], capture_output=True, text=True,
                                  timeout=120, env=os.environ | self.env, check=True)
        finally:
            pin(self.process.pid, range(os.cpu_count()))
        return [float(n) for n in done.stdout.split()]

    def idle(self, seconds):
        """Wake-ups and processor milliseconds of both sides, each second, on a connection without calls."""
        client = subprocess.Popen([self.client, "call", self.address, "idle", str(seconds + 2)], env=os.environ | self.env)
        time.sleep(1)
        before = [usage(p.pid) for p in (self.process, client)]
        time.sleep(seconds)
        after = [usage(p.pid) for p in (self.process, client)]
        client.wait()
        return tuple(sum(a[i] - b[i] for a, b in zip(after, before)) / seconds for i in (0, 1))


def pin(pid, processors):
    for task in pathlib.Path(f"/proc/{pid}/task").iterdir():
        os.sched_setaffinity(int(task.name), processors)


def usage(pid):
    """How often the threads of a process have slept, and their processor time in milliseconds."""
    sleeps = ms = 0
    for task in pathlib.Path(f"/proc/{pid}/task").iterdir():
        ms += int((task / "schedstat").read_text().split()[0]) / 1e6
        for line in (task / "status").read_text().splitlines():
            if line.startswith("voluntary_ctxt_switches"):
                sleeps += int(line.split()[1])
    return sleeps, ms


def build(to):
    run = lambda *c, **k: subprocess.run(c, check=True, stdout=subprocess.DEVNULL, **k)
    run("cmake", "-S", here.parent, "-B", to, "-G", "Ninja", "-DCMAKE_BUILD_TYPE=Release", "-DNEARCALL_TESTS=OFF", "-DNEARCALL_BENCH=ON")
    run("cmake", "--build", to)
    run("go", "build", "-o", f"{to}/go_peer", "./peer", cwd=here.parent / "test/go")


def pairs(to):
    b = f"{to}/bench"
    cpp, go = f"{b}/nearcall_peer", f"{to}/go_peer"
    found = []
    for path, target in (("shm", "shm:DIR"), ("unix", "unix:DIR"), ("TCP", "tcp:127.0.0.1:0")):
        found.append(Pair(f"nearcall, {path}", cpp, cpp, target))
    for path, target in (("shm", "shm:DIR"), ("unix", "unix:DIR")):
        found.append(Pair(f"C++ to Go, {path}", go, cpp, target))
        found.append(Pair(f"Go to C++, {path}", cpp, go, target))
        found.append(Pair(f"Go to Go, {path}", go, go, target))
    if os.path.exists(f"{b}/grpc_peer"):
        for api, path, target in (("callback", "unix", "unix:DIR"), ("sync", "unix", "unix:DIR"), ("callback", "TCP", "127.0.0.1:0")):
            found.append(Pair(f"gRPC {api}, {path}", f"{b}/grpc_peer", f"{b}/grpc_peer", target, {"GRPC_API": api}))
    if os.path.exists(f"{b}/asio_grpc_peer"):
        found.append(Pair("asio-grpc, unix", f"{b}/asio_grpc_peer", f"{b}/asio_grpc_peer", "unix:DIR"))
    if os.path.exists(f"{b}/capnp_peer"):
        for path, target in (("unix", "unix:DIR"), ("TCP", "127.0.0.1:0")):
            found.append(Pair(f"Cap'n Proto, {path}", f"{b}/capnp_peer", f"{b}/capnp_peer", target, rows=set(ROWS) - {"64callers16"}))
    kept = [Pair(p.name + ", memory kept", p.server, p.client, p.target, p.env | KEPT, {"1MB", "10MB"}) for p in found
            if "TCP" not in p.name and "Go" not in p.name and "sync" not in p.name]
    floor = [Pair(f"floor: {what}", f"{b}/floor_peer", f"{b}/floor_peer", f"{how}:DIR", rows={"32B"})
             for how, what in (("spin", "memory, both sides look"), ("futex", "memory and a futex"), ("unix", "unix socket"),
                               ("promise", "unix socket, thread and promise"))]
    return found + kept + floor


def amount(us):
    return f"{us:.2f} µs" if us < 10 else f"{us:.1f} µs" if us < 100 else f"{us:,.0f} µs" if us < 10000 else f"{us / 1000:.1f} ms"


def table(all_pairs, row, results):
    """A table of a row: each pair's median, range and ratio to gRPC in the same turns."""
    lines = ["| | median | range | to gRPC's |", "|---|---:|---:|---:|"]
    reference = results.get((REFERENCE, row))
    for p in all_pairs:
        turns = results.get((p.name, row))
        if not turns:
            continue
        ratio = statistics.median(t / r for t, r in zip(turns, reference)) if reference else None
        lines.append(f"| {p.name} | {amount(statistics.median(turns))} | {amount(min(turns))} to {amount(max(turns))} | "
                     + ("" if ratio is None else f"{ratio:.3f}" if ratio < 0.1 else f"{ratio:.2f}") + " |")
    return "\n".join(lines)


def chart(all_pairs, rows, results):
    """Bars on a logarithmic scale: the ratio of each path to gRPC's callback API over unix."""
    names = [n for n in ("nearcall, shm", "nearcall, unix", "nearcall, TCP", "Cap'n Proto, unix", REFERENCE) if any((n, r) in results for r in rows)]
    colors = dict(zip(names, ("#0b6e4f", "#2a9d8f", "#8ac6bd", "#e9a23b", "#8d99ae")))
    import math
    bar, gap, left, width = 11, 16, 215, 620
    height = sum(len([n for n in names if (n, r) in results]) * bar + gap for r in rows) + 70
    low, high = 0.02, 4
    x = lambda v: left + (math.log(min(max(v, low), high) / low) / math.log(high / low)) * (width - 20)
    out = [f'<svg xmlns="http://www.w3.org/2000/svg" width="{left + width + 60}" height="{height}" font-family="sans-serif" font-size="11">',
           '<rect width="100%" height="100%" fill="#fff"/>',
           f'<text x="{left}" y="16" font-size="13">Time of a call, gRPC C++ (callback API, unix socket) = 1; shorter is better, logarithmic</text>']
    for v in (0.02, 0.05, 0.1, 0.2, 0.5, 1, 2):
        out.append(f'<line x1="{x(v):.0f}" x2="{x(v):.0f}" y1="26" y2="{height - 30}" stroke="#ddd"/><text x="{x(v):.0f}" y="{height - 18}" text-anchor="middle" fill="#666">{v:g}</text>')
    y = 32
    for r in rows:
        reference = results.get((REFERENCE, r))
        present = [n for n in names if (n, r) in results]
        out.append(f'<text x="{left - 8}" y="{y + len(present) * bar / 2 + 4:.0f}" text-anchor="end">{ROWS[r]}</text>')
        for n in present:
            v = statistics.median(t / q for t, q in zip(results[(n, r)], reference))
            out.append(f'<rect x="{left}" y="{y}" width="{x(v) - left:.1f}" height="{bar - 2}" fill="{colors[n]}"/>'
                       f'<text x="{x(v) + 4:.0f}" y="{y + 8}" font-size="9" fill="#333">{v:.2g} ({amount(statistics.median(results[(n, r)]))})</text>')
            y += bar
        y += gap
    at = left
    for n in names:
        out.append(f'<rect x="{at}" y="{height - 11}" width="9" height="9" fill="{colors[n]}"/><text x="{at + 13}" y="{height - 3}">{n}</text>')
        at += 22 + 6.2 * len(n)
    return "\n".join(out + ["</svg>", ""])


def main():
    a = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    a.add_argument("--turns", type=int, default=7)
    a.add_argument("--seconds", type=float, default=0.25, help="of each row and turn")
    a.add_argument("--rows", default=",".join(ROWS), help="the rows to run: " + ", ".join(ROWS))
    a.add_argument("--only", default="", help="only pairs whose name has one of these words, with semicolons in between; gRPC's reference always runs")
    a.add_argument("--build", default=str(root / "bin/cpp-bench"), help="where to build")
    a.add_argument("--idle", type=float, default=3, help="seconds of each pair without calls; 0 leaves them out")
    a.add_argument("--tail", type=float, default=1, help="seconds of each pair and turn for percentiles; 0 leaves them out")
    a.add_argument("--write", action="store_true", help="write docs/results/cpp.csv and cpp.svg")
    o = a.parse_args()
    build(o.build)
    words = [w for w in o.only.split(";") if w]
    all_pairs = [p for p in pairs(o.build) if not words or p.name == REFERENCE or any(w in p.name for w in words)]
    rows = o.rows.split(",")
    results, idle, tails, loads = {}, {}, {}, []
    with tempfile.TemporaryDirectory() as directory:
        try:
            for p in all_pairs:
                p.start(directory)
            for turn in range(o.turns):
                loads.append(os.getloadavg()[0])
                for row in rows:
                    for p in all_pairs:
                        if p.has(row):
                            results.setdefault((p.name, row), []).append(p.run(row, o.seconds))
                for p in all_pairs:
                    if o.tail and os.cpu_count() > 1 and not any(w in p.name for w in ("Go", "kept", "floor", "TCP")):
                        tails.setdefault(p.name, []).append(p.tail(o.tail))
                print(f"turn {turn + 1} of {o.turns}, load {loads[-1]:.1f}", file=sys.stderr)
            if o.idle:
                for p in all_pairs:
                    if "floor" not in p.name and "kept" not in p.name:
                        idle[p.name] = p.idle(o.idle)
        finally:
            for p in all_pairs:
                p.stop()
    cpu = next((l.split(":")[1].strip() for l in open("/proc/cpuinfo") if l.startswith("model name")), platform.machine())
    head = (f"{cpu}, {os.cpu_count()} processors, {time.strftime('%Y-%m-%d')}; medians of {o.turns} turns of {o.seconds:g} s, all pairs in each turn; "
            f"load {min(loads):.1f} to {max(loads):.1f}.")
    text = [head, ""]
    for row in rows:
        text += [f"### {ROWS[row][0].upper()}{ROWS[row][1:]} (`{row}`)", "", table(all_pairs, row, results), ""]
    if tails:
        text += ["### 32 bytes, each side pinned to a processor", "", "| | median | p99 | p99.9 | longest |", "|---|---:|---:|---:|---:|"]
        text += [f"| {n} | " + " | ".join(amount(statistics.median(c)) for c in zip(*turns)) + " |" for n, turns in tails.items()] + [""]
    if idle:
        text += ["### A connection without calls", "", "| | wake-ups a second | processor time a second |", "|---|---:|---:|"]
        text += [f"| {n} | {w:.1f} | {ms:.2f} ms |" for n, (w, ms) in idle.items()] + [""]
    print("\n".join(text))
    if o.write:
        to = root / "docs/results"
        with open(to / "cpp.csv", "w") as f:
            w = csv.writer(f, lineterminator="\n")
            w.writerow("row,pair,median_us,least_us,most_us,p99_us,p999_us,longest_us,ratio_to_grpc_callback_unix,wakeups_per_s,cpu_ms_per_s,measured".split(","))
            for (pair, row), turns in results.items():
                reference = results.get((REFERENCE, row))
                ratio = statistics.median(t / r for t, r in zip(turns, reference)) if reference else ""
                w.writerow([row, pair, statistics.median(turns), min(turns), max(turns), "", "", "", ratio, "", "", head])
            for pair, turns in tails.items():
                median, *late = (statistics.median(c) for c in zip(*turns))
                w.writerow(["32B-pinned", pair, median, "", "", *late, "", "", "", head])
            for pair, (wakeups, ms) in idle.items():
                w.writerow(["idle", pair, *[""] * 7, wakeups, ms, head])
        (to / "cpp.svg").write_text(chart(all_pairs, rows, results))


if __name__ == "__main__":
    main()
