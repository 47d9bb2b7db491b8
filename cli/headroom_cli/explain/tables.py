"""Decisions as text: one line a decision, or one decision with its endpoints as a table. Pure."""

from collections.abc import Sequence
from typing import Any

from headroom_cli.text_table import age, number, part, table

Object = dict[str, Any]


def listing(decisions: Sequence[Object]) -> str:
    """Return one line a decision, in the order given."""
    rows = [["AGE", "REQUEST", "MODEL", "PRIORITY", "ANSWER", "ENDPOINT OR REASON"]]
    for each in decisions:
        where = each["endpoint"] or each["reason"]
        rows.append([
            age(each["ageSeconds"]), each["requestId"], each["model"] or "-", str(each["priority"]),
            "picked" if each["status"] is None else str(each["status"]), where,
        ])  # fmt: skip
    return table(rows)


def explanation(decision: Object, picker: str) -> str:
    """Return one decision in full, for people."""
    facts = [
        ["Request", decision["requestId"]],
        ["Decided", f"{decision['at']} ({age(decision['ageSeconds'])} ago) by {picker}"],
        ["Model", decision["model"] or "-"],
        ["Objective", f"{decision['objective'] or '-'} (priority {decision['priority']})"],
    ]
    if decision["reason"]:
        facts.append(["Refused", f"{decision['status']} {decision['outcome']}: {decision['reason']}"])
    else:
        facts += [
            ["Endpoint", decision["endpoint"]],
            *([["Answer", f"{decision['status']} of the model server"]] if decision["status"] else []),
            ["Fallbacks", ", ".join(decision["fallbacks"]) or "-"],
            ["Prefix hit", f"{decision['prefixHit']:.0%}" + _source(decision)],
        ]
    if decision.get("stagesLeftOut"):
        facts.append(["Left out", f"{', '.join(decision['stagesLeftOut'])} stage"])
    if queue := decision.get("queue"):
        facts.append(["Waited", f"{age(queue['seconds'])} in the queue, behind {queue['position']}"])
    elif decision["waited"]:
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
                number(scored[endpoint]["total"]),
                *[f"{number(each['raw'])} = {number(each['weighted'])}" for each in scores],
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
        old = each["metricsAgeSeconds"]
        rows.append([
            each["endpoint"], each["name"], places.get(each["endpoint"], "-"), number(each["waiting"]),
            str(each["unseenRequests"]), number(each["running"]),
            part(each["kvUsage"]), "?" if old is None else age(old),
        ])  # fmt: skip
    return rows
