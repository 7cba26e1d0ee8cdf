"""What a chat or another program is told of a night, as a value: a POST of JSON whose ``text`` Slack understands."""

import json
from dataclasses import dataclass

from harness.analysis.night.values import CaseVerdict, NightVerdict
from harness.records.redact import redact
from harness.report.console import on_one_line
from harness.report.json import SCHEMA_VERSION, Document
from harness.report.night_aa import aa_lines
from harness.report.night_remarks import story
from harness.report.night_words import (
    about,
    answer,
    headline,
    outcome_text,
    red_cases,
)
from harness.units import counted

_MOST_CASES = 20
_LONGEST = 300


@dataclass(frozen=True)
class WebhookMessage:
    """The body; where it goes to is a secret and no part of it."""

    document: Document

    def render(self) -> bytes:
        """The JSON that is sent, letter by letter."""
        return json.dumps(self.document, ensure_ascii=False, allow_nan=False).encode("utf-8")


def webhook_message(verdict: NightVerdict) -> WebhookMessage:
    """The night in a few lines and as fields; at most twenty cases, texts cut short and without secrets."""
    red, plan = red_cases(verdict), verdict.plan
    more = len(red) - _MOST_CASES
    lines = [
        f"{plan.title}: {answer(verdict)}",
        f"{headline(verdict)}. {about(verdict)}",
        *(aa_lines(verdict)[:1] if verdict.aa and not verdict.aa.holds else ()),
        *(_line(case) for case in red[:_MOST_CASES]),
        *([f"and {counted(more, 'case')} more"] if more > 0 else []),
    ]
    return WebhookMessage(
        {
            "schema_version": SCHEMA_VERSION,
            "text": _for_slack(redact("\n".join(map(on_one_line, lines)))),
            "night_id": plan.night_id,
            "suite": plan.suite,
            "shard": plan.shard or None,
            "outcome": verdict.outcome,
            "exit_code": int(verdict.exit_code),
            "aa_holds": verdict.aa.holds if verdict.aa else None,
            "num_cases": len(verdict.cases),
            "num_red_cases": len(red),
            "cases": [_case(case) for case in red[:_MOST_CASES]],
        }
    )


def _line(case: CaseVerdict) -> str:
    owner = f" [{case.planned.owner}]" if case.planned.owner else ""
    return f"• {case.planned.name}{owner}: {outcome_text(case)}: {_why(case)}"


def _why(case: CaseVerdict) -> str:
    """What a person would ask first; secrets go before the text is cut, for half a secret is not known as one."""
    said = redact(next(iter(story(case).lines), ""))
    return said if len(said) <= _LONGEST else f"{said[:_LONGEST]}…"


def _case(case: CaseVerdict) -> Document:
    return {
        "name": case.planned.name,
        "outcome": case.outcome,
        "owner": case.planned.owner or None,
        "reason": _why(case),
    }


def _for_slack(text: str) -> str:
    """Slack's own escapes: what is left of <, > and & would become links and mentions."""
    return text.replace("&", "&amp;").replace("<", "&lt;").replace(">", "&gt;")
