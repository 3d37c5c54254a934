"""What bench.py and prompt.py share: the time of a call on the device, options of the command line, results in a file."""

import json
import sys

import torch


def median_ms(calls, repeats, warm_up=1, sleep=0, between=None):
    """Median milliseconds of one call by CUDA events; calls take turns. sleep: cycles in front, which keep the host out of it.
    between: called once after the warm-up, to have other bytes in the caches."""
    for _ in range(warm_up):
        for call in calls:
            call()
    if between:
        between()
    torch.cuda.synchronize()
    times = []
    for i in range(repeats):
        begin, end = torch.cuda.Event(enable_timing=True), torch.cuda.Event(enable_timing=True)
        if sleep:
            torch.cuda._sleep(sleep)
        begin.record()
        calls[i % len(calls)]()
        end.record()
        torch.cuda.synchronize()
        times.append(begin.elapsed_time(end))
    return sorted(times)[repeats // 2]


def medians_in_turns(calls, rounds):
    """Median milliseconds of each of the calls, which take turns."""
    times = [[] for _ in calls]
    for turn in range(rounds + 1):
        for call, own in zip(calls, times):
            ms = median_ms([call], 1, warm_up=0)
            if turn != 0:  # the first one warms up
                own.append(ms)
    return [sorted(own)[len(own) // 2] for own in times]


def option(name):
    """What stands behind a name on the command line; None: it is not there."""
    return sys.argv[sys.argv.index(name) + 1] if name in sys.argv else None


def chosen(shapes, caches):
    """The shapes and caches that --shapes (numbers) and --caches (names) pick, all of them without."""
    numbers, names = option("--shapes"), option("--caches")
    return [shapes[int(i)] for i in numbers.split(",")] if numbers else shapes, names.split(",") if names else list(caches)


def write(rows):
    """To the file of --json, where there is one."""
    if option("--json"):
        with open(option("--json"), "w", encoding="utf-8") as out:
            json.dump(rows, out, indent=1)
            out.write("\n")
