"""What benchmarks/soak.py makes of its clients' books, the server's log and the samples: counts, checks, the table.

Pure: touches nothing but standard output.
"""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Iterable
from datetime import datetime
from typing import TYPE_CHECKING, Any

from soak_causes import SIGNALLED, Line, Record, causes, excused
from soak_mix import KINDS

if TYPE_CHECKING:
    from soak_crowd import Crowd, Entry
    from soak_faults import Faults

FREED_S = 2.0
# What a process may gain in all; benchmarks/leaks.py measures smaller growth.
MAY_GROW_MIB = {"server": 96.0, "judges": 256.0, "zygotes": 64.0}
_COMPARED = ("outcome", "stage", "reward", "infra_code", "feedback", "phase_seconds", "turn", "t_new_ms", "t_ref_ms")


def quantile(values: Iterable[float], share: float) -> float | None:
    """A quantile by rank; None of nothing."""
    ordered = sorted(values)
    return round(ordered[min(len(ordered) - 1, int(len(ordered) * share))], 3) if ordered else None


def differs(entry: Entry, line: Line) -> list[str]:
    """In what the client's answer is not what the server logged for this very source."""
    return [name for name in _COMPARED if entry.answer.get(name) != line.get(name)]


def account(entries: list[Entry], log: list[Line]) -> tuple[dict[str, int], list[str]]:
    """How many steps ended in which way, and what does not add up. A step is known in the log by its source's hash."""
    lines: dict[str, list[Line]] = defaultdict(list)
    for line in log:
        if line["event"] == "step":
            lines[line.get("code_sha256") or "none"].append(line)
    counts: Counter[str] = Counter()
    odd: list[str] = []
    for entry in entries:
        found = lines.pop(entry.sha256, [])
        what = f"{entry.kind} {entry.nonce}"
        if len(found) > 1:
            odd.append(f"{what}: {len(found)} lines in the log")
        if entry.state == "answered":
            if not found:
                odd.append(f"{what}: answered and not in the log")
            elif names := differs(entry, found[0]):
                odd.append(f"{what}: the answer is another than the log's: {names}")
            counts["infrastructure fault" if entry.answer.get("infra_code") else "judged"] += 1
        elif entry.state in ("vanished", "frozen"):
            if not found:
                # The server may drop what it had not begun when its client went.
                counts["cancelled before it was begun"] += 1
                if entry.began:
                    odd.append(f"{what}: began, {entry.state}, and is not in the log")
            elif found[0].get("infra_code") == "cancelled":
                counts["cancelled"] += 1
            else:
                counts["infrastructure fault, unheard" if found[0].get("infra_code") else "judged, unheard"] += 1
        else:
            odd.append(f"{what}: {entry.state} {entry.error}")
    odd += [f"a line of the log without a step: {found[0]}"[:300] for found in lines.values()]
    return dict(counts), odd


def explain(entries: list[Entry], log: list[Line], records: list[Record]) -> tuple[dict[str, int], list[str]]:
    """Of the steps that met a fault of ours or were tried again: how many by which cause, and those without one."""
    lines = {line.get("code_sha256"): line for line in log if line["event"] == "step"}
    counts: Counter[str] = Counter()
    without: list[str] = []
    for entry in entries:
        if (line := lines.get(entry.sha256)) is None:
            continue
        ended = max(entry.ended or 0.0, datetime.fromisoformat(line["time"]).timestamp())
        what = line.get("infra_code") or f"{line.get('outcome')} after {line.get('attempts')} attempts"
        found = causes(entry, line, ended, records)
        if found is None:
            without.append(
                f"{entry.kind} {entry.nonce}: {what}: {line.get('infra_detail') or line.get('feedback')}"[:300]
            )
        elif found:
            counts[f"{what}: {' or '.join(found)}"] += 1
    return dict(counts), without


def misjudged(entry: Entry, mock: bool, records: list[Record]) -> str | None:
    """What is wrong with the reward of an answered step; None for nothing."""
    reward, code = entry.answer["reward"], entry.answer.get("infra_code")
    if reward is None:
        return None if code is not None else "no reward and no infra_code"
    if code is not None:
        return f"a reward of {reward} beside {code}"
    promised = KINDS[entry.kind].reward
    if mock and entry.kind != "syntax error":
        promised = "positive"
    if promised == "positive" and reward <= 0 and not excused(entry, entry.ended or entry.sent, records):
        return f"right, and paid {reward}: {entry.answer['outcome']}: {entry.answer['feedback'][:200]}"
    if promised == "zero" and reward != 0:
        return f"to be paid 0, and paid {reward}"
    if entry.answer["outcome"] == "runtime_error" and entry.kind == "raises":
        return None if entry.nonce in entry.answer["feedback"] else "another submission's error"
    return None


def summarise(crowd: Crowd, faults: Faults, log: list[Line], result: dict[str, Any]) -> dict[str, Any]:
    """Everything that the table and the checks say about the run."""
    entries, mock = crowd.entries, result["evaluator"] == "mock"
    counts, odd = account(entries, log)
    answered = [entry for entry in entries if entry.state == "answered" and entry.ended is not None]
    seconds = [(entry.ended or 0.0) - entry.sent for entry in answered]
    wrong = [(entry, why) for entry in answered if (why := misjudged(entry, mock, faults.records)) is not None]
    explained, unexplained = explain(entries, log, faults.records)
    retried = Counter(line.get("attempts") for line in log if line["event"] == "step" and line.get("attempts"))
    # Those whose worker was killed or stopped just then wait for another.
    vanished = [entry for entry in entries if entry.state == "vanished" and entry.began]
    calm = [entry for entry in vanished if not _struck(entry, faults)]
    return {
        "steps": len(entries),
        "accounted": counts,
        "odd": odd,
        "submissions": dict(Counter(entry.kind for entry in entries)),
        "outcomes": dict(Counter(f"{entry.kind}: {entry.answer['outcome']}" for entry in answered)),
        "infrastructure": dict(Counter(code for entry in answered if (code := entry.answer.get("infra_code")))),
        "causes": explained,
        "unexplained": unexplained,
        "misjudged": [f"{entry.kind} {entry.nonce}: {why}" for entry, why in wrong],
        "attempts": {str(number): count for number, count in sorted(retried.items())},
        "faults": dict(Counter(record["kind"] for record in faults.records if record["hit"])),
        "faults that found nothing to hit": sum(not record["hit"] for record in faults.records),
        "skipped": faults.skipped,
        "unnoticed": sum(record.get("unnoticed", False) for record in faults.records),
        "fault kinds": faults.kinds,
        "latency_s": {"p50": quantile(seconds, 0.5), "p99": quantile(seconds, 0.99), "most": quantile(seconds, 1.0)},
        "vanished mid-step": {
            "seen": len(vanished),
            "not ended": sum(entry.freed_s is None for entry in vanished),
            "freed_s": [entry.freed_s for entry in calm],
            "logged_s": _logged(calm, log),
        },
        "frozen": {"seen": len(crowd.frozen), "reaped": crowd.reaped},
        "broken sessions": crowd.broken,
    }


def _struck(entry: Entry, faults: Faults) -> bool:
    """Whether one of the server's processes was killed or stopped in the moments around a client's end."""
    assert entry.ended is not None
    return any(
        (record["kind"] in SIGNALLED or record["kind"] == "server stopped")
        and record["began"] - FREED_S < entry.ended < (record["ended"] or entry.ended) + FREED_S
        for record in faults.records
    )


def _logged(vanished: list[Entry], log: list[Line]) -> list[float]:
    """How long after their clients had gone these steps were logged as cancelled."""
    times = {line.get("code_sha256"): line["time"] for line in log if line.get("infra_code") == "cancelled"}
    found = []
    for entry in vanished:
        if (text := times.get(entry.sha256)) is not None and entry.ended is not None:
            found.append(round(datetime.fromisoformat(text).timestamp() - entry.ended, 3))
    return found


def leaks(result: dict[str, Any]) -> list[str]:
    """What there is more of after the run than before."""
    before, after = result["before"], result["after"]
    first, last = before["sample"], after["sample"]
    found = [f"processes: {', '.join(last['strangers'])}"] if last["strangers"] else []
    for role, may_grow in MAY_GROW_MIB.items():
        gained = last[role]["rss"] - first[role]["rss"]
        if gained > may_grow:
            found.append(f"{role}: {gained:.0f} MiB more")
        for what in ("fds", "threads"):
            # A zygote makes the next submission's namespace ready when it has time; libraries start threads as late.
            slack = 2 if what == "threads" or role == "zygotes" else 0
            if last[role].get(what, 0) > first[role].get(what, 0) + slack:
                found.append(f"{role}: {first[role][what]} {what} before, {last[role][what]} after")
    for what in ("directories of judges", "submissions' directories"):
        if last[what] > first[what]:
            found.append(f"{what}: {first[what]} before, {last[what]} after")
    if more := set(last["other files"]) - set(first["other files"]):
        found.append(f"files: {sorted(more)[:5]}")
    if last["processes"] != first["processes"]:
        found.append(f"processes: {first['processes']} before, {last['processes']} after")
    if (after.get("sessions") or {}).get("open") != 0 or after.get("queue_depth") != 0:
        found.append(f"sessions: {after.get('sessions')}, queue: {after.get('queue_depth')}")
    holders = [state for lease in after.get("leases", []) for state in lease["holders"].values()]
    if any(state != "out" for state in holders):
        found.append(f"leases: {holders}")
    return found


def checks(result: dict[str, Any]) -> list[dict[str, Any]]:
    """The conditions, each with what speaks against it."""
    summary, stop = result["summary"], result["stop"]
    result["leaks"] = leaks(result)
    workers = result["after"].get("workers", [])
    missing = [kind for kind in summary["fault kinds"] if kind not in summary["faults"]]
    missing += [kind for kind in KINDS if result["evaluator"] in KINDS[kind].evaluators]
    missing = [kind for kind in missing if kind not in summary["submissions"] or kind in summary["fault kinds"]]
    vanished = summary["vanished mid-step"]
    slow = [value for value in (*vanished["freed_s"], *vanished["logged_s"]) if value is None or value > FREED_S]
    ended_badly = stop["processes"] or stop["files"] or stop["exit_code"] not in (0, -15)
    found: list[tuple[str, Any]] = [
        ("every step is accounted for exactly once, and its answer is its own", summary["odd"]),
        ("nothing right is paid 0, nothing wrong is paid more", summary["misjudged"]),
        ("every fault of ours, and every second attempt, has a cause that was injected", summary["unexplained"]),
        ("no session was lost", summary["broken sessions"]),
        ("no step hung", result["sessions that did not end"]),
        ("every kind of submission and of fault came up", missing),
        ("a judge or a zygote that is lost or stops answering is replaced", summary["unnoticed"]),
        (f"a client that vanishes gives its worker back within {FREED_S:.0f} s", slow or vanished["not ended"]),
        ("clients that freeze are given up", [one for one in summary["frozen"]["reaped"] if not one]),
        ("nothing leaks", result["leaks"]),
        ("every session slot can be had again", result["slots that cannot be had"]),
        ("no line of the log is lost", result["after"].get("log_lines_dropped")),
        ("every worker works at the end", [worker for worker in workers if worker["state"] != "idle"]),
        ("SIGTERM ends the server in time, and leaves nothing", stop if ended_badly else None),
    ]
    return [{"name": name, "ok": not against, "against": against or None} for name, against in found]


def report(result: dict[str, Any]) -> int:
    """Print the table; 0 only if every check holds."""
    summary = result["summary"]
    lasted = result["ended"] - result["began"]
    print(f"\n{summary['steps']} steps in {lasted:.0f} s, {result['sessions']} sessions, {result['evaluator']}")
    for title in ("accounted", "submissions", "outcomes", "infrastructure", "attempts", "causes", "faults", "skipped"):
        print(f"\n{title}")
        for name, count in sorted(summary[title].items()):
            print(f"  {name:40} {count}")
    latency = summary["latency_s"]
    print(f"\nlatency: p50 {latency['p50']} s, p99 {latency['p99']} s, at most {latency['most']} s")
    freed = [value for value in summary["vanished mid-step"]["freed_s"] if value is not None]
    print(
        f"clients that vanish: {len(freed)}, worker free after {quantile(freed, 0.5)} s, "
        f"at most {quantile(freed, 1.0)} s"
    )
    for role in ("server", "judges", "zygotes"):
        print(f"{role:8} {result['before']['sample'][role]} -> {result['after']['sample'][role]}")
    for check in result["checks"]:
        print(f"{'PASS' if check['ok'] else 'FAIL'} {check['name']}")
        if not check["ok"]:
            against = check["against"] if isinstance(check["against"], list) else [check["against"]]
            print("".join(f"     {one}\n" for one in against[:10]), end="")
    return 0 if all(check["ok"] for check in result["checks"]) else 1
