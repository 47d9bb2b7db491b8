"""Decisions as text: one line a decision, or one decision with its endpoints as a table. Pure."""

from collections.abc import Sequence
from typing import Any

Object = dict[str, Any]


def listing(decisions: Sequence[Object]) -> str:
    """Return one line a decision, in the order given."""
    rows = [["AGE", "REQUEST", "MODEL", "PRIORITY", "ANSWER", "ENDPOINT OR REASON"]]
    for each in decisions:
        where = each["endpoint"] or each["reason"]
        rows.append([
            _age(each["ageSeconds"]), each["requestId"], each["model"] or "-", str(each["priority"]),
            str(each["status"]), where,
        ])  # fmt: skip
    return table(rows)


def explanation(decision: Object, picker: str) -> str:
    """Return one decision in full, for people."""
    facts = [
        ["Request", decision["requestId"]],
        ["Decided", f"{decision['at']} ({_age(decision['ageSeconds'])} ago) by {picker}"],
        ["Model", decision["model"] or "-"],
        ["Objective", f"{decision['objective'] or '-'} (priority {decision['priority']})"],
    ]
    if decision["reason"]:
        facts.append(["Refused", f"{decision['status']} {decision['outcome']}: {decision['reason']}"])
    else:
        facts += [
            ["Endpoint", decision["endpoint"]],
            ["Fallbacks", ", ".join(decision["fallbacks"]) or "-"],
            ["Prefix hit", f"{decision['prefixHit']:.0%}" + _source(decision)],
        ]
    if decision.get("stagesLeftOut"):
        facts.append(["Left out", f"{', '.join(decision['stagesLeftOut'])} stage"])
    if decision["waited"]:
        facts.append(["Waited", "yes"])
    parts = [table(facts)]
    parts += [_profile(decision, profile) for profile in decision.get("profiles", ())]
    if not decision.get("profiles") and decision.get("endpoints"):
        parts.append("No profile ran. The candidates:\n" + table(_signal_rows(decision)))
    return "\n\n".join(parts)


def _source(decision: Object) -> str:
    source = decision.get("prefixSource")
    return f", {source}" if source else ""


def _profile(decision: Object, profile: Object) -> str:
    stage = f" ({profile['stage']} stage)" if profile.get("stage") else ""
    lines = [f"Profile {profile['name']}{stage}: {decision['candidates']} candidates"]
    cut_by: dict[str, str] = {}
    for each in profile["filters"]:
        cut_by |= dict.fromkeys(each["cut"], f"cut by {each['name']}")
        lines.append(f"  {each['name']} leaves {each['left']}")
    lines.append(f"  {profile['picker']} picks {profile['picked'] or 'nothing'}")
    scored = {each["endpoint"]: each for each in profile["scored"]}
    heads = [f"{each['name']} x{each['weight']:g}" for each in profile["scorers"]]
    rows = _signal_rows(decision, profile["picked"])
    rows[0] += ["TOTAL", *heads]
    for row in rows[1:]:
        endpoint = row[0]
        if endpoint in scored:
            scores = scored[endpoint]["scores"].values()
            row += [
                _number(scored[endpoint]["total"]),
                *[f"{_number(each['raw'])} = {_number(each['weighted'])}" for each in scores],
            ]
        else:
            row.append(cut_by.get(endpoint, "-"))
    order = {endpoint: at for at, endpoint in enumerate(scored)}
    body = sorted(rows[1:], key=lambda row: order.get(row[0], len(order)))
    return "\n".join([*lines, table([rows[0], *body])])


def _signal_rows(decision: Object, picked: str = "") -> list[list[str]]:
    """Return the candidates; `picked` is the choice of a profile, which may not be the destination."""
    places = {
        endpoint: str(at) for at, endpoint in enumerate([decision["endpoint"], *decision["fallbacks"]], 1)
    }
    if picked and picked not in places:
        places = {picked: "1"}
    rows = [["ENDPOINT", "NAME", "CHOICE", "WAITING", "UNSEEN", "RUNNING", "KV USED", "AGE"]]
    for each in decision["endpoints"]:
        age = each["metricsAgeSeconds"]
        rows.append([
            each["endpoint"], each["name"], places.get(each["endpoint"], "-"), _number(each["waiting"]),
            str(each["unseenRequests"]), _number(each["running"]),
            "?" if each["kvUsage"] is None else f"{each['kvUsage']:.0%}", "?" if age is None else _age(age),
        ])  # fmt: skip
    return rows


def table(rows: Sequence[Sequence[str]]) -> str:
    """Return the rows with their columns aligned; rows may be of unequal length."""
    widths: list[int] = []
    for row in rows:
        widths += [0] * (len(row) - len(widths))
        for at, text in enumerate(row):
            widths[at] = max(widths[at], len(text))
    lines = ["  ".join(text.ljust(width) for text, width in zip(row, widths, strict=False)) for row in rows]
    return "\n".join(line.rstrip() for line in lines)


def _number(value: float | None) -> str:
    return "?" if value is None else f"{value:g}" if value == int(value) else f"{value:.3f}"


def _age(seconds: float) -> str:
    if seconds < 10:
        return f"{seconds:.1f}s" if seconds >= 1 else f"{seconds * 1000:.0f}ms"
    return f"{seconds:.0f}s" if seconds < 120 else f"{seconds / 60:.0f}m"
